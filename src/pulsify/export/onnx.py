"""Plain ONNX, state in and state out: what `Stream.save` writes. docs/format.md says what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from pulsify.core.spec import Spec
from pulsify.core.weights import write
from pulsify.export.registry import Target


@dataclass(frozen=True)
class Onnx:
    """share: weights that lie beside the file already are read there."""

    share: bool = True

    def write(self, model: ir.Model, spec: Spec, path: Path) -> None:
        write(model, path, self.share)


TARGET: Target = Onnx()
