"""A model repository for NVIDIA Triton: the server keeps the states of every sequence, a client streams a file.

    models/NAME/config.pbtxt        sequence batching, states by name, which start as zeros
    models/NAME/1/model.onnx        the step; streams are rows
    stream.json, frames.py, client.py

docs/export.md says why it is configured so. A server's batch may have any streams beside each other, at any place;
whether that changes one of them is tried before it is allowed.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.backends.counting import counts_streams
from pulsify.backends.neighbours import COUNT, kept_apart, mixed_places, same_place, warm_places
from pulsify.backends.registry import backend
from pulsify.backends.seam import Array, stream_axis
from pulsify.core.errors import InvalidArgument, NotSupported
from pulsify.core.progress import tell
from pulsify.core.runner import open_model, run_model
from pulsify.core.spec import Spec, concrete
from pulsify.core.weights import write
from pulsify.export import portable
from pulsify.export.front import dims_by_port, row, streams_in_front
from pulsify.export.registry import Target
from pulsify.optimize.builder import Builder

TYPES = {
    "bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    **{f"{u}int{n}": f"{u}int{n}".upper() for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip
STRATEGIES = ("oldest", "direct")
READY = "READY"
IDLE = 60_000_000  # microseconds without a chunk until a sequence is given up; Triton's own default is one second


@dataclass(frozen=True)
class Triton:
    """name: of the model; by default the folder's. strategy: "oldest" or "direct".

    batch: streams in one call at most. sequences: those that are open at once, for each instance ("oldest"; with
    "direct" there are as many as `batch`).
    """

    name: str = ""
    strategy: str = "oldest"
    batch: int = 16
    sequences: int = 256

    def write(self, model: ir.Model, spec: Spec, path: Path) -> None:
        name = self.name or re.sub(r"[^\w.-]+", "_", path.resolve().name)
        self._check(name)
        portable.refuse_growing(spec, "Triton")
        _check_ports(spec)
        with portable.told_the_length(model, spec):
            tell("trying whether streams of a batch show each other")
            rows = rows_are_streams(model, spec)
            ports = dims_by_port(spec)
            made = streams_in_front(model, ports) if rows else _without_scalars(model)
            ready = _free(made.graph, READY)
            if rows and self.strategy == "direct":
                _count_from_zero(made.graph, ready, [s.name for s in spec.states if s.dtype.kind != "f"])
            wires = {n: [1, *row(d)] if rows else portable.one(d) or [1] for n, d in ports.items()}
            facts = {"model": name, **portable.facts(spec), "wires": {n: wires[n] for n in _asked(spec)}}
            config = self._config(name, spec, {n: w[1:] if rows else w for n, w in wires.items()}, rows, ready)
            with portable.folder(path, "triton") as place:
                told = portable.as_json(facts, "triton")
                portable.put(place, {f"models/{name}/config.pbtxt": config, portable.FACTS: told})
                portable.put(place, portable.client("triton"))
                (place / "models" / name / "1").mkdir()
                write({place / "models" / name / "1" / "model.onnx": made}, share=False)
                _opens(place / "models" / name / "1" / "model.onnx")

    def _check(self, name: str) -> None:
        if self.strategy not in STRATEGIES:
            raise InvalidArgument(f"strategy={self.strategy!r}: there are {', '.join(STRATEGIES)}")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            raise InvalidArgument(f"name={name!r} is no name for a model: take letters, digits, _, - and .")
        for field, value in (("batch", self.batch), ("sequences", self.sequences)):
            if value < 1:
                raise InvalidArgument(f"{field}={value}: expected a whole number from 1 on")

    def _config(self, name: str, spec: Spec, dims: dict[str, list[int]], rows: bool, ready: str) -> str:
        types = _types(spec)
        outputs = [o.name for o in spec.outputs]
        inputs = [n for n in _asked(spec) if n not in outputs]
        return "\n".join([
            f'name: "{name}"',
            'backend: "onnxruntime"',
            f"max_batch_size: {self.batch}" if rows else "max_batch_size: 0  # streams beside each other would show",
            *(f"input {{ {_tensor(n, types[n], dims[n])} }}" for n in inputs),
            *(f"output {{ {_tensor(n, types[n], dims[n])} }}" for n in outputs),
            "instance_group [ { kind: KIND_CPU count: 1 } ]  # on a card TF32 would round: see docs/export.md",
            "sequence_batching {",
            f"  max_sequence_idle_microseconds: {IDLE}",
            *self._strategy(rows, ready),
            *(line for s in spec.states for line in _state(s.name, s.after, s.dtype, dims[s.name])),
            "}",
            "",
        ])  # fmt: skip

    def _strategy(self, rows: bool, ready: str) -> list[str]:
        if self.strategy == "direct":
            control = f"name: {_quoted(ready)} control {{ kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] }}"
            said = ["  direct { }  # a sequence keeps its row; rows that are not ready are computed for nothing"]
            return [*said, f"  control_input {{ {control} }}"] if rows else said
        return [
            f"  oldest {{ max_candidate_sequences: {self.sequences} }}"
            "  # only what is ready is computed; states are Triton's, so no row must stay where it is"
        ]


def _asked(spec: Spec) -> list[str]:
    """What a client sends and gets."""
    given = [i.name for i in spec.inputs] + [s.name for s in spec.statics] + ([spec.length] if spec.length else [])
    return given + [o.name for o in spec.outputs]


def _types(spec: Spec) -> dict[str, np.dtype[Any]]:
    """Of all ports; the length's too."""
    out = {i.name: i.dtype for i in spec.inputs} | {s.name: s.dtype for s in spec.statics}
    out |= {o.name: o.dtype for o in spec.outputs} | {s.name: s.dtype for s in spec.states}
    return out if spec.length is None else {**out, spec.length: np.dtype(np.int32)}


def _check_ports(spec: Spec) -> None:
    """Types that Triton has, and names by which it finds the state that an output replaces."""
    for name, dtype in _types(spec).items():
        if str(dtype) not in TYPES:
            raise NotSupported(f"'{name}' is {dtype}, which Triton's ONNX Runtime does not take", target="Triton")
    before, after = sorted(s.name for s in spec.states), sorted(spec.states, key=lambda s: s.after)
    if before != [s.name for s in after]:  # it pairs the n-th input with the n-th output, both in order of their names
        raise NotSupported(
            "Triton pairs the states that go in and come out by the order of their names, and the names of this "
            "stream are in another order",
            target="Triton",
            hint="export to onnx or openvino instead",
        )


def _free(graph: ir.Graph, name: str) -> str:
    """The name, or one like it that no value has."""
    taken = {v.name for node in graph for v in node.outputs} | {v.name for v in graph.inputs} | set(graph.initializers)
    numbered = (f"{name}_{n}" for n in itertools.count(1))
    return name if name not in taken else next(n for n in numbered if n not in taken)


def _without_scalars(model: ir.Model) -> ir.Model:
    """The same step with ports of one axis at least: Triton's have no fewer."""
    if all(v.shape is None or len(v.shape) for v in (*model.graph.inputs, *model.graph.outputs)):
        return model
    made = model.clone()
    graph = made.graph
    for inner in [v for v in graph.inputs if v.shape is not None and not len(v.shape)]:
        outer = ir.Value(name=inner.name, shape=ir.Shape([1]), type=inner.type)
        inner.name = f"{inner.name}/inside"
        graph.inputs[graph.inputs.index(inner)] = outer
        at = Builder(graph, graph[0])
        none = at.constant(f"{outer.name}/scalar", np.zeros(0, np.int64))
        inner.replace_all_uses_with(at.op("Reshape", [outer, none], [], inner.dtype))
    for inner in [v for v in graph.outputs if v.shape is not None and not len(v.shape)]:
        name, inner.name = inner.name, f"{inner.name}/inside"
        at = Builder(graph)
        outer = at.op("Reshape", [inner, at.ints(1)], [1], inner.dtype)
        outer.name, outer.type = name, inner.type
        graph.outputs[graph.outputs.index(inner)] = outer
    return made


def _opens(file: Path) -> None:
    """NotSupported if ONNX Runtime does not take what was written: then the server does not either."""
    try:
        open_model(str(file), as_others=True)
    except Exception as error:  # it has no class of its own for it
        raise NotSupported(f"ONNX Runtime does not open the step: {str(error)[:300]}", target="Triton") from error


def _count_from_zero(graph: ir.Graph, name: str, states: Sequence[str]) -> None:
    """Rows that are not ready have states of any bits, and a position that is none may be no place in a table.

    Floats may be anything: that they stay in their row is tried.
    """
    ready = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT32), shape=ir.Shape(["B", 1]))
    graph.inputs.append(ready)
    at = Builder(graph, graph[0])
    real = at.op("Cast", [ready], ["B", 1], ir.DataType.BOOL, to=ir.DataType.BOOL)
    for value in [v for v in graph.inputs if v.name in states]:
        users = list(value.uses())
        assert value.dtype is not None and value.shape is not None
        here = at.op("Reshape", [real, at.ints(-1, *[1] * (len(value.shape) - 1))], None, ir.DataType.BOOL)
        held = _held(at, here, value)
        for node, place in users:
            node.replace_input_with(place, held)


def _held(at: Builder, here: ir.Value, value: ir.Value) -> ir.Value:
    """The value where it is real, else zero. ONNX Runtime chooses between numbers of some types only."""
    assert value.dtype is not None
    if value.dtype == ir.DataType.BOOL:
        return at.op("And", [here, value], value.shape, value.dtype)
    through = ir.DataType.INT64 if value.dtype == ir.DataType.UINT64 else value.dtype  # the same bits
    given = value if through == value.dtype else at.op("Cast", [value], value.shape, through, to=through)
    zero = at.constant(f"{value.name}/zero", np.zeros((), through.numpy()))
    held = at.op("Where", [here, given, zero], value.shape, through)
    return held if through == value.dtype else at.op("Cast", [held], value.shape, value.dtype, to=value.dtype)


def rows_are_streams(model: ir.Model, spec: Spec) -> bool:
    """May any streams lie beside each other in one call? Tried on five: it must not show, to the last bit."""
    if spec.batch is None or any(stream_axis(dims) is None for dims in dims_by_port(spec).values()):
        return False  # of a port that is one for all streams, every request has its own
    if counts_streams(model):
        return False
    runner, rng = open_model(model), np.random.default_rng(3)
    fixed = {s.name: _noise(rng, concrete(s.dims, COUNT), s.dtype) for s in spec.statics}
    warm = backend("ort").lower(model, spec, 2).since * spec.pulse
    scenes = [same_place(warm, spec.unknown_length), *mixed_places(spec, warm), *warm_places(spec, warm)]
    takes = {i.name for i in runner.get_inputs()}

    def run(feeds: dict[str, Array]) -> dict[str, Array]:
        return run_model(runner, {n: v for n, v in {**fixed, **feeds}.items() if n in takes})

    return kept_apart(run, spec, scenes, last=True)


def _noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return rng.uniform(-1, 1, shape).astype(dtype) if dtype.kind == "f" else rng.integers(0, 2, shape).astype(dtype)


def _state(before: str, after: str, dtype: np.dtype[Any], dims: Sequence[int]) -> list[str]:
    return [
        "  state {",
        f"    input_name: {_quoted(before)} output_name: {_quoted(after)} "
        f"data_type: TYPE_{TYPES[str(dtype)]} dims: {list(dims)}",
        f"    initial_state {{ {_tensor('zeros', dtype, dims)} zero_data: true }}",
        "  }",
    ]


def _tensor(name: str, dtype: np.dtype[Any], dims: Sequence[int]) -> str:
    return f"name: {_quoted(name)} data_type: TYPE_{TYPES[str(dtype)]} dims: {list(dims)}"


def _quoted(name: str) -> str:
    """As protobuf's text has it, which escapes what JSON escapes."""
    return json.dumps(name, ensure_ascii=False)


TARGET: Target = Triton()
