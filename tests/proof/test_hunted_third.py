"""A third hunt: graphs that streamed wrong, died of a raw exception or never ended, and back ends that departed."""

from __future__ import annotations

import numpy as np
import pytest

import pulsify
from pulsify.core.errors import InvalidArgument, InvalidPulse
from tests.models import Array, model, node
from tests.proof.judge import judge
from tests.proof.net import Net, Wire


def test_a_length_that_belongs_to_no_stream_is_given_to_several() -> None:
    nodes = [node("Add", "x x", "y"), node("Shape", "x", "s"), node("Gather", "s two", "n")]
    proto = model(nodes, {"x": ["B", 2, "T"]}, ["y", "n"], {"two": np.array(2)}, dtypes={"n": np.int64})
    stream = pulsify.stream(proto, pulse=4)
    for options in ({}, {"portable": True}):
        for streams in (1, 3):
            assert stream.run(np.ones((streams, 2, 9), np.float32), **options)["n"] == 9
    pool = pulsify.Pool(stream, most=2)
    lanes = [pool.open() for _ in range(2)]
    for lane, frames in zip(lanes, (9, 6), strict=True):
        lane.push(np.ones((1, 2, frames), np.float32))
        lane.flush()
    assert [int(r["n"]) for r in pool.run().values()] == [9, 6]


def _resized(n: Net, x: Wire, by: float, mode: str) -> Wire:
    how = {"nearest": "asymmetric"}.get(mode, "half_pixel")
    more = {"nearest_mode": "floor"} if mode == "nearest" else {}
    scales = np.array([1, 1, by], np.float32)
    return n.op("Resize", x, None, scales, mode=mode, coordinate_transformation_mode=how, **more)


@pytest.mark.parametrize("by", [1.5, 2.0, 2.5, 3.0])
def test_known_frames_between_frames_wait_for_the_last(by: float) -> None:
    for beside in (None, "nearest", "linear"):
        n = Net()
        known = _resized(n, n.op("Expand", (n.pos % 5).float(), n.vector(1, 2, n.T)), by, "linear")
        made = [n.x * 2.0, known] if beside is None else [_resized(n, n.x, by, beside) + known]
        outcome = judge(n.model(*made), 4, range(1, 20))
        assert outcome.kind == "exact", (beside, outcome)


@pytest.mark.parametrize("pulse", [2, 6])
def test_known_frames_that_never_come_in_whole_pulses(pulse: int) -> None:
    n = Net()
    known = n.op("Expand", (n.pos % 5).float(), n.vector(1, 2, n.T))
    pooled = n.op("MaxPool", known, kernel_shape=[4], strides=[3], ceil_mode=1)
    how = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "ceil"}
    made = n.model(n.x * 2.0, n.op("Resize", pooled, None, np.array([1, 1, 1.5], np.float32), **how))
    if pulse == 6:
        assert judge(made, 6, range(1, 30)).kind == "exact"
    else:
        with pytest.raises(InvalidPulse, match="multiple of 6"):
            pulsify.stream(made, pulse=pulse)


@pytest.mark.parametrize("p", [1, 2])
def test_silence_has_no_length_on_torch_either(p: int) -> None:
    n = Net()
    stream = pulsify.stream(n.model(n.op("LpNormalization", n.x, axis=1, p=p)), pulse=4)
    x = np.ones((1, 2, 6), np.float32)
    x[..., 3] = 0
    assert np.array_equal(_run(stream, x, "torch")[..., 3], np.zeros((1, 2), np.float32))
    assert np.allclose(_run(stream, x, "torch"), stream.run(x), atol=1e-6)


@pytest.mark.parametrize(("op", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_the_reference_refuses_what_it_would_leave_out(op: str, gates: int) -> None:
    rng = np.random.default_rng(0)
    for more, said in (({}, "sequence_lens"), ({"clip": 0.4}, "clip")):
        n = Net()
        w = [n.const(rng.normal(size=(1, gates * 2, 2)).astype(np.float32)) for _ in range(2)]
        w.append(n.const(rng.normal(size=(1, gates * 4)).astype(np.float32)))
        y, last = n.op(op, n.x.by(2, 0, 1), *w, hidden_size=2, outputs=2, **more)
        stream = pulsify.stream(n.model(y, last) if not more else n.model(y), pulse=4)
        with pytest.raises(InvalidArgument, match=said):
            _run(stream, np.ones((1, 2, 5), np.float32), "reference")


def test_the_reference_sums_up_no_signs() -> None:
    n = Net()
    stream = pulsify.stream(n.model(n.op("LpNormalization", n.x, axis=1, p=1)), pulse=4)
    with pytest.raises(InvalidArgument, match="p is 1"):
        _run(stream, np.ones((1, 2, 5), np.float32), "reference")


def _run(stream: pulsify.Stream, x: Array, backend: str) -> Array:
    return np.asarray(stream.run(x, backend=backend))
