"""Plain ONNX, state in and state out: what `Stream.save` writes. docs/format.md says what is in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from pulsify.backends.seam import Opening
from pulsify.core.checksum import KEY as CHECKSUM
from pulsify.core.errors import InvalidArgument, NotSupported
from pulsify.core.runner import IN_MEMORY, embedded_bytes, open_model
from pulsify.core.spec import OPENING, Spec
from pulsify.core.weights import write
from pulsify.export.registry import Target

ROUNDED = "pulsify.fp16"  # by output: how far it was off the float32 stream, of its scale
OLDEST_OPSET = 13  # of streams
REDEFINED = {"RoiAlign", "GroupNormalization", "GridSample", "DFT"}  # of the same form once, and another meaning
OLDEST_IR = 8  # before 4, a default (the stream's length) could not be overridden


@dataclass(frozen=True, eq=False)
class Onnx:
    """share: weights that lie beside the file already are read there. opening: what runs the first pulses.

    fp16: weights and states in half precision, ports as they are; how far outputs are off is measured, and in the file.
    opset: the version of ONNX's operators to write in; 0: the stream's own. ort_format: ONNX Runtime's own format.
    """

    share: bool = True
    fp16: bool = False
    opset: int = 0
    ort_format: bool = False
    opening: Opening | None = None

    def write(self, model: ir.Model, spec: Spec, path: Path) -> None:
        if path.is_dir():
            raise InvalidArgument(f"{path} is a folder: onnx takes a file")
        if self.ort_format and path.suffix != ".ort":
            raise InvalidArgument(f"{path.name!r}: a file in ONNX Runtime's own format is called *.ort")
        if not (self.fp16 or self.opset or self.ort_format):
            self._written(model, spec, self.opening, path, self.share)
            return
        from pulsify.export.known import hold, known_streams  # what runs streams is not needed to save one

        made, known, opening = model, spec, self.opening
        if self.fp16:
            made, known, opening = _halved(model, spec, opening)
        if self.opset:
            made = _at_opset(made, self.opset)
            opening = None if opening is None else Opening(_at_opset(opening.model, self.opset), opening.spec)
            pairs = zip(known_streams(made, known, opening=opening), known_streams(model, spec, opening=self.opening))
            for got, wanted in pairs if not self.fp16 else ():
                hold(got.outputs, wanted, f"ONNX in opset {self.opset}")
        if self.ort_format:
            self._in_ort_format(made, known, opening, path)
        else:
            self._written(made, known, opening, path, False)

    def _written(self, model: ir.Model, spec: Spec, opening: Opening | None, path: Path, share: bool) -> None:
        if opening is None:
            write({path: model}, share)
            return
        beside = path.with_name(f"{path.stem}.opening{path.suffix}")
        said = model.metadata_props[OPENING]
        model.metadata_props[OPENING] = json.dumps({"file": beside.name, "pulses": spec.opening})
        try:
            write({path: model, beside: opening.model}, share)
        finally:
            model.metadata_props[OPENING] = said

    def _in_ort_format(self, model: ir.Model, spec: Spec, opening: Opening | None, path: Path) -> None:
        """By ONNX Runtime's own tool, which reads ONNX files and writes beside them."""
        with tempfile.TemporaryDirectory() as place:
            self._written(model, spec, opening, Path(place, f"{path.stem}.onnx"), False)
            for file in Path(place).glob("*.onnx"):
                _renamed(file)
            tool = [
                sys.executable,
                "-m",
                "onnxruntime.tools.convert_onnx_models_to_ort",
                "--optimization_style",
                "Fixed",
            ]
            done = subprocess.run(
                [*tool, "--output_dir", f"{place}/out", place], capture_output=True, text=True, check=False
            )
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["it does not say why"]
                raise NotSupported(f"ONNX Runtime's tool fails: {lines[-1][:200]}", target="ONNX Runtime's own format")
            path.parent.mkdir(parents=True, exist_ok=True)
            for file in Path(place, "out").glob("*.ort"):
                shutil.move(file, path.with_name(file.name))


def _renamed(file: Path) -> None:
    """The opening by the name it will have, and no checksums: those are of the ONNX files."""
    proto = onnx.load(file, load_external_data=False)
    kept = [(p.key, p.value) for p in proto.metadata_props if p.key != CHECKSUM]
    del proto.metadata_props[:]
    for key, value in kept:
        if key == OPENING:
            opening = json.loads(value)
            value = json.dumps({"file": f"{Path(opening['file']).stem}.ort", "pulses": opening["pulses"]})
        proto.metadata_props.add(key=key, value=value)
    onnx.save(proto, file)


def _halved(model: ir.Model, spec: Spec, opening: Opening | None) -> tuple[ir.Model, Spec, Opening | None]:
    """In half precision, with how far outputs are off it; NotSupported if a number is too large for it."""
    from pulsify.export.half import halved
    from pulsify.export.known import departure, known_streams

    made, known = halved(model, spec)
    first = None if opening is None else Opening(*halved(opening.model, opening.spec))
    off: dict[str, float] = {o.name: 0.0 for o in spec.outputs}
    pairs = zip(known_streams(made, known, opening=first), known_streams(model, spec, opening=opening))
    for got, wanted in pairs:
        for name, value in wanted.outputs.items():
            off[name] = max(off[name], departure(got.outputs[name], value))
    if worst := next((name for name, error in off.items() if error == float("inf")), None):
        raise NotSupported(
            f"'{worst}' is not finite in half precision: a number on its way is larger than 65504",
            target="ONNX in half precision",
            hint="leave fp16 out; float32 has the range",
        )
    made.metadata_props[ROUNDED] = json.dumps([{"name": n, "error": float(f"{e:.2g}")} for n, e in off.items()])
    return made, known, first


def rounding(path: Path) -> Mapping[str, float]:
    """What a file in half precision says of itself; nothing if it is none."""
    return {o["name"]: o["error"] for o in json.loads(said(path).get(ROUNDED, "[]"))}


def said(path: Path) -> Mapping[str, str]:
    """What a file says of itself, in ONNX or in ONNX Runtime's own format."""
    if path.suffix == ".ort":
        return open_model(str(path)).get_modelmeta().custom_metadata_map
    return {p.key: p.value for p in onnx.load(path, load_external_data=False).metadata_props}


def _at_opset(model: ir.Model, opset: int) -> ir.Model:
    """Written in another version of ONNX's operators, by ONNX's own converter."""
    from onnx import helper, version_converter

    own = model.opset_imports.get("", 0)
    newest = onnx.defs.onnx_opset_version()
    if not 7 <= opset <= newest:
        raise InvalidArgument(f"opset={opset}: this onnx converts to versions from 7 to {newest}")
    if opset == own:
        return model
    if embedded_bytes(model) > IN_MEMORY:
        raise NotSupported("ONNX's converter takes models of up to a gigabyte", target=f"ONNX in opset {opset}")
    whole = ir.to_proto(ir.external_data.load_to_model(model.clone()))
    try:
        made = _relabelled(whole, opset) if opset < own else None
        made = version_converter.convert_version(whole, opset) if made is None else made
        onnx.checker.check_model(made)
    except Exception as error:  # the converter has no class of its own for it
        raise _unwritten(model, str(error), own, opset) from error
    made.ir_version = max(OLDEST_IR, helper.find_min_ir_version_for(list(made.opset_import)))
    out = ir.from_proto(made)
    out.metadata_props.update(model.metadata_props)
    return out


def _relabelled(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto | None:
    """The same nodes, if the older version has them all in the form they are in: ONNX's converter rarely goes back."""
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    for domain in out.opset_import:
        domain.version = opset if domain.domain in ("", "ai.onnx") else domain.version
    ops = {n.op_type for n in proto.graph.node if n.domain in ("", "ai.onnx")}
    own = next(d.version for d in proto.opset_import if d.domain in ("", "ai.onnx"))
    changed = {op for op in ops & REDEFINED if onnx.defs.get_schema(op, own).since_version > opset}
    if opset < OLDEST_OPSET or changed:
        return None
    try:
        onnx.checker.check_model(out, full_check=True)
    except Exception:  # an operator, an attribute or a type that came later: the converter may know another way
        return None
    return out


def _unwritten(model: ir.Model, said: str, own: int, opset: int) -> NotSupported:
    """Which operator the converter stops at, and where the model has it."""
    said = re.sub(r"^/\S+ \w+: Assertion `\w+` failed: ", "", said.strip().splitlines()[0])
    words = set(re.findall(r"\w+", said))
    node = next((n for n in model.graph if n.op_type in words), None)
    return NotSupported(
        f"ONNX's converter does not get from opset {own} to {opset}: {said[:160]}",
        node="" if node is None else str(node.name),
        op="" if node is None else node.op_type,
        target=f"ONNX in opset {opset}",
        hint=f"export the batch model in opset {opset} and convert that: a stream has its model's own",
    )


TARGET: Target = Onnx()
