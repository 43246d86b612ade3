"""Both sides of a comparison: the batch model on the whole input, and the whole stream, cut as told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

import pulsify
from pulsify.core.arrays import Array, Arrays
from pulsify.core.runner import open_model, run_model


class Batch:
    """The batch model on ONNX Runtime, one thread. optimize=False: every operator as it is written."""

    def __init__(self, model: onnx.ModelProto | str | Path, optimize: bool = True) -> None:
        self._session = open_model(str(model) if isinstance(model, Path) else model, optimize=optimize)
        self.names = [o.name for o in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> Arrays:
        return run_model(self._session, feeds)

    def attempt(self, feeds: Mapping[str, Array]) -> Arrays | None:
        """The outputs, or None where the model does not take this input."""
        try:
            return self.run(feeds)
        except Exception:  # ONNX Runtime has no common class for them
            return None


def streamed(
    stream: pulsify.Stream, inputs: Mapping[str, Array] | Array, cuts: Sequence[int], **options: Any
) -> Arrays:
    """All outputs by name, with NaN behind the end. Inputs the stream does not have (they hold the length) are left."""
    if isinstance(inputs, Mapping):
        names = {*(i.name for i in stream.inputs), *(s.name for s in stream.statics)}
        inputs = {name: value for name, value in inputs.items() if name in names}
    got = stream.run(inputs, cuts, **{"padding": math.nan, **options})
    return got if isinstance(got, dict) else {stream.outputs[0].name: got}
