"""The reference evaluator behind the seam: the file as it is, states replaced at every pulse."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.backends.reference.backend import BACKEND
from pulsify.backends.seam import Options
from tests.models import Array, close, frames, model, node, run_batch
from tests.unit.specs import remembered, remembers


def test_what_runs_is_the_file_itself() -> None:
    model, spec = remembers("B")
    for batch in (1, 2, None):
        program = BACKEND.lower(model, spec, batch)
        assert program.general is model and program.steady is None and not program.places


def test_there_are_no_slots_here() -> None:
    model, spec = remembers("B")
    assert BACKEND.compile(BACKEND.lower(model, spec, None), spec, Options()).slots(4) is None


@pytest.mark.parametrize("batch", [1, 3])
def test_pulses_give_what_all_frames_at_once_give(batch: int) -> None:
    model, spec = remembers("B")
    step = BACKEND.compile(BACKEND.lower(model, spec, batch), spec, Options()).stepper(batch, {})
    x = frames(batch, 2, 12)
    parts = []
    for n in range(3):
        step.inputs["x"][...] = x[..., 4 * n : 4 * n + 4]
        parts.append(step.run()["y"].copy())
    close(np.concatenate(parts, 2), remembered(x))
    np.testing.assert_array_equal(step.states()["s"], x[..., -2:])


def test_states_are_copies_and_a_reset_stream_starts_anew() -> None:
    model, spec = remembers()
    step = BACKEND.compile(BACKEND.lower(model, spec, 1), spec, Options()).stepper(1, {})
    step.inputs["x"][...] = frames(1, 2, 4)
    first = step.run()["y"].copy()
    kept = step.states()
    again = step.run()["y"].copy()
    kept["s"][...] = 0
    assert step.states()["s"].any(), "nobody outside writes into a state"
    step.reset()
    np.testing.assert_array_equal(step.run()["y"], first)
    step.restore(kept, 0)
    np.testing.assert_array_equal(step.run()["y"], first)
    assert not np.array_equal(first, again)


OTHERWISE: dict[str, tuple[list[onnx.NodeProto], dict[str, Array], type, str]] = {
    "whole numbers between others": (
        [node("Resize", "x _ scales", "y", mode="linear")], {"scales": np.array([1, 1, 2], np.float32)}, np.int32,
        "rounds whole numbers",
    ),
    "means in half precision": (
        [node("Transpose", "x", "t", perm=[0, 2, 1]), node("LayerNormalization", "t gain", "l"),
         node("Transpose", "l", "y", perm=[0, 2, 1])], {"gain": np.ones(2, np.float16)}, np.float16,
        "means in half precision",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERWISE)
def test_what_the_evaluator_computes_otherwise_is_refused(case: str) -> None:
    nodes, known, dtype, says = OTHERWISE[case]
    proto = model(nodes, {"x": [1, 2, "T"]}, ["y"], known, dtypes={"x": dtype, "y": dtype}, opset=18)
    stream = pulsify.stream(proto, pulse=4, verify=False)
    with pytest.raises(pulsify.InvalidArgument, match=says):
        stream.session(backend="reference")
    x = (frames(1, 2, 11) * 9).astype(dtype)
    for backend in ("ort", "torch"):
        np.testing.assert_allclose(stream.run(x, 3, backend=backend), run_batch(proto, x)["y"], rtol=0, atol=2e-3)
