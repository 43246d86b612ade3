"""A stateful model for OpenVINO: states are variables inside of it, and a client streams a file. docs/export.md

stream.xml, stream.bin      the model as IR, made stateful by OpenVINO's own pass
stream.json                 ports, delays, how many frames there are: what a caller needs
frames.py, client.py        chunks to pulses and back; the rest, with OpenVINO alone
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import openvino as ov
from openvino.passes import MakeStateful, Manager

from pulsify.core.errors import NotSupported
from pulsify.core.progress import counted, tell
from pulsify.core.spec import Spec
from pulsify.export import portable
from pulsify.export.clients.frames import whole
from pulsify.export.clients.openvino_client import opened
from pulsify.export.doubles import computes_double
from pulsify.export.known import hold, known_streams
from pulsify.export.registry import Target

# a stream is one thread's, which may run wherever there is room: pinned, all processes would meet on one core
EXACT: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}
# in the order in which they are tried: OpenVINO 2026.4 fuses some masked attention wrongly, by its snippets
SETTINGS = (EXACT, {**EXACT, "SNIPPETS_MODE": "DISABLE"})
HINT = "export to onnx or c instead"
NARROWER = 1 << 6  # twice a position fits into 30 bits (`Spec.unknown_length`), and float32 has 24
WIDE = 1 << 30  # of whole numbers wider than OpenVINO's: what it is tried with, and what the client takes
LONG = 1 << 13  # pulses of a stream whose sums are doubles, which OpenVINO computes in float32


@dataclass(frozen=True)
class OpenVino:
    """One stream a request; several streams are several requests of one compiled model."""

    def write(self, model: ir.Model, spec: Spec, path: Path) -> None:
        portable.refuse_growing(spec, "OpenVINO")
        _refuse_remainders(model)
        made = stateful(model, spec)
        facts = limited(portable.facts(spec), spec)
        if computes_double(model):
            facts["most"] = min(facts["most"], LONG * spec.pulse)  # errors add up: so long a stream was found right
        facts["compile"] = _settings(made, model, spec, facts)
        with portable.folder(path, "openvino") as place:
            ov.save_model(made, place / "stream.xml", compress_to_fp16=False)  # its default would round the weights
            portable.put(place, {portable.FACTS: portable.as_json(facts, "openvino"), **portable.client("openvino")})


def _refuse_remainders(model: ir.Model) -> None:
    """NotSupported if remainders of floats are taken: OpenVINO divides for them, which rounds.

    Right for small numbers, so that no check shows it; of large ones a remainder is beyond its divisor.
    """
    for node in model.graph.all_nodes():
        attribute = node.attributes.get("fmod")
        if node.op_type == "Mod" and attribute is not None and attribute.as_int() and not _whole(node):
            raise NotSupported(
                "OpenVINO rounds on the way to a remainder of floats: of large numbers it is another one",
                node=str(node.name),
                op="Mod",
                target="OpenVINO",
                hint=HINT,
            )


def _whole(node: ir.Node) -> bool:
    """Are they whole numbers, as far as is known?"""
    kinds = {v.dtype for v in (*node.inputs, *node.outputs) if v is not None and v.dtype is not None}
    return bool(kinds) and all(kind.is_integer() for kind in kinds)


def limited(facts: dict[str, Any], spec: Spec) -> dict[str, Any]:
    """With what keeps numbers where OpenVINO has them exactly: it compares whole ones in float32, and has 32 bits.

    counter: from which position on the client sets it back, by a multiple of what. Where it must not be set back, or
    the start of a stream goes on for long, streams end there.
    """
    for port in (*facts["inputs"], *facts["statics"].values()):
        if port["dtype"] in ("int64", "uint64", "uint32"):
            port["limit"] = WIDE
        if port["dtype"] == "int32":
            port["limit"] = (1 << 31) - 1  # it takes the least number of 32 bits for zero, as a truth value
    for port in facts["outputs"]:
        if port["dtype"] in ("int64", "uint64", "uint32"):
            port["limit"] = (1 << 31) - 2  # what has no room is the least number of 32 bits, or the largest
    counted = spec.unknown_length // NARROWER  # that is how far positions times the fastest rate are exact
    behind = spec.latency + spec.start_up
    start = max(spec.proof.horizon, behind, *spec.proof.critical)
    if spec.position is not None and spec.rebase and max(spec.rebase, start) < counted // 8:
        variable = spec.position + spec.after(spec.position)
        return {**facts, "counter": {"variable": variable, "from": counted // 2, "multiple": spec.rebase}}
    if spec.position is not None or spec.length is not None:
        facts["most"] = min(facts["most"], max(counted - spec.pulse - behind, spec.shortest))
    return {**facts, "counter": None}


def stateful(model: ir.Model, spec: Spec) -> Any:
    """The step for one stream, with its states inside."""
    with tempfile.TemporaryDirectory() as place, portable.told_the_length(model, spec):
        file = Path(place, "step.onnx")
        ir.save(model, file, external_data="step.data")
        try:
            made = ov.Core().read_model(file)
            shapes = {s.name: s.shape for s in spec.states} | {i.name: i.dims for i in spec.inputs}
            shapes |= {s.name: s.dims for s in spec.statics}
            made.reshape({port: _shape(port, shapes) for port in made.inputs})
            given = {port.any_name for port in made.inputs}
            if lost := [s.name for s in spec.states if s.name not in given]:
                raise NotSupported(f"OpenVINO drops the states {lost}, which nothing reads", target="OpenVINO")
            if spec.states:
                passes = Manager()
                passes.register_pass(MakeStateful({s.name: s.after for s in spec.states}))
                passes.run_passes(made)
            made.validate_nodes_and_infer_types()
        except RuntimeError as error:
            raise NotSupported(
                f"OpenVINO does not take the step: {_said(error)}",
                target="OpenVINO",
                hint=HINT,
            ) from error
        ov.serialize(made, Path(place, "own.xml"))  # weights are read from the step's file until they are its own
        return ov.Core().read_model(Path(place, "own.xml").read_bytes(), Path(place, "own.bin").read_bytes())


def _shape(port: Any, shapes: dict[str, Any]) -> list[int]:
    return portable.one(shapes[port.any_name]) if port.any_name in shapes else [1, 1]


def _said(error: Exception) -> str:
    """The line that says what, without places in OpenVINO's source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(line for line in lines if "src/" not in line and not line.startswith("Exception from"))[:300]


def _settings(made: Any, model: ir.Model, spec: Spec, facts: dict[str, Any]) -> dict[str, Any]:
    """Those with which it gives what the stream gives, to the last frame, or NotSupported."""
    wanted = list(known_streams(model, spec, wide=WIDE, long=LONG if computes_double(model) else 0))
    for settings in SETTINGS:
        try:
            tell("compiling it with OpenVINO")
            compiled = ov.Core().compile_model(made, "CPU", settings)
            _shapes(compiled, spec)
            for known in counted("checking stream", wanted):
                hold(whole(opened(compiled, facts, known.statics), known.inputs), known, "OpenVINO", HINT)
            return settings
        except NotSupported:
            if settings == SETTINGS[-1]:
                raise
        except (RuntimeError, ValueError) as error:
            raise NotSupported(
                f"OpenVINO does not run the step: {_said(error)}", target="OpenVINO", hint=HINT
            ) from error
    raise AssertionError("the last settings hold or raise")


def _shapes(compiled: Any, spec: Spec) -> None:
    """NotSupported if an output has not the axes, or the sizes, it should have."""
    for o in spec.outputs:
        shape, wanted = compiled.output(o.name).partial_shape, portable.one(o.dims)
        ranks = shape.rank.is_static and shape.rank.get_length() != len(wanted)
        if ranks or (shape.is_static and list(shape.to_shape()) != wanted):
            raise NotSupported(
                f"OpenVINO gives '{o.name}' as {shape}, where the stream gives {wanted}",
                target="OpenVINO",
                hint=HINT,
            )


TARGET: Target = OpenVino()
