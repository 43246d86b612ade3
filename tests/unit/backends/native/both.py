"""The same small graph in ONNX Runtime, every operator as it is written, and as C, compiled and run."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest

import pulsify
from pulsify.backends.native.backend import BACKEND
from pulsify.backends.seam import Options, StepProgram
from pulsify.core.length import Length
from pulsify.core.spec import Input, Output, Spec
from tests.models import Array
from tests.unit.backends.alike import fed, same, small
from tests.unit.graphs import run
from tests.unit.specs import a_stream

__all__ = ["alike", "by_c", "fed", "reason", "same", "small", "spec_of"]
CLOSE = 2e-6  # of the scale


def _dims(value: ir.Value) -> tuple[int, ...]:
    assert value.shape is not None
    return tuple(d if isinstance(d, int) else 1 for d in value.shape)


def spec_of(model: ir.Model, feeds: Mapping[str, Array]) -> Spec:
    """A stream without memory whose ports are the graph's, just as they are."""
    shapes = {k: a.shape for k, a in run(model, feeds).items()}
    inputs = tuple(Input(str(v.name), 0, Fraction(1), v.dtype.numpy(), _dims(v)) for v in model.graph.inputs if v.dtype)
    outputs = tuple(
        Output(str(v.name), None, Fraction(1), 0, 0, v.dtype.numpy(), shapes[str(v.name)], Length())
        for v in model.graph.outputs
        if v.dtype
    )
    return a_stream(inputs=inputs, outputs=outputs)


def by_c(model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    step = BACKEND.compile(StepProgram(model), spec_of(model, feeds), Options()).stepper(1, {})
    for name, array in feeds.items():
        step.inputs[name][...] = array
    return {name: np.array(a) for name, a in step.run().items()}


def alike(model: ir.Model, feeds: Mapping[str, Array] | None = None, tolerance: float = CLOSE) -> None:
    """C gives what the runtime gives."""
    given = fed(model) if feeds is None else feeds
    want, got = run(model, given), by_c(model, given)
    for name, array in want.items():
        same(got[name], array, tolerance)


def reason(model: ir.Model) -> str:
    """Why there is no C for it."""
    with pytest.raises(pulsify.NotSupported) as refused:
        by_c(model, fed(model))
    assert refused.value.op and refused.value.target == "C" and refused.value.hint
    return str(refused.value)
