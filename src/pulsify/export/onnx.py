"""Plain ONNX, state in and state out: what `Stream.save` writes. docs/format.md says what is in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from pulsify.backends.seam import Opening
from pulsify.core.spec import OPENING, Spec
from pulsify.core.weights import write
from pulsify.export.registry import Target


@dataclass(frozen=True, eq=False)
class Onnx:
    """share: weights that lie beside the file already are read there. opening: what runs the first pulses."""

    share: bool = True
    opening: Opening | None = None

    def write(self, model: ir.Model, spec: Spec, path: Path) -> None:
        if self.opening is None:
            write({path: model}, self.share)
            return
        beside = path.with_name(f"{path.stem}.opening{path.suffix}")
        said = model.metadata_props[OPENING]
        model.metadata_props[OPENING] = json.dumps({"file": beside.name, "pulses": spec.opening})
        try:
            write({path: model, beside: self.opening.model}, self.share)
        finally:
            model.metadata_props[OPENING] = said


TARGET: Target = Onnx()
