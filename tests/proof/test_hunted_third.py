"""A third hunt: graphs that streamed wrong, died of a raw exception or never ended, and back ends that departed."""

from __future__ import annotations

import numpy as np
import pytest

import pulsify
from pulsify.core.errors import InvalidArgument, InvalidPulse, NotStreamable
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


BEYOND = {
    "factor": lambda n, late: n.twice_if(late),
    "slice": lambda n, late: n.x.cut(late.int()),
    "pad": lambda n, late: n.pad(n.x, late.int(), 0),
    "pad_end": lambda n, late: n.pad(n.x, 0, late.int()),
    "table": lambda n, late: n.x * n.const([1.0, 2.0]).take(late.int()),
    "window": lambda n, late: n.attend(n.near(3) | (late & n.near(6))),
    "tile": lambda n, late: n.op("Tile", n.x, n.vector(1, late.int() + 1, 1)),
}


@pytest.mark.parametrize("name", BEYOND)
def test_what_changes_beyond_the_declared_lengths_is_not_what_is_seen_there(name: str) -> None:
    for bound, change in ((20, 50), (5, 6), (200, 300)):
        n = Net()
        made = judge(n.model(BEYOND[name](n, change < n.T)), 4, range(1, min(bound, 40) + 1), set={"T": f"<={bound}"})
        assert made.kind in ("exact", "refused"), (bound, change, made)


def test_positions_of_a_growing_past_and_any_number_of_streams() -> None:
    n = Net(4)
    i, j = n.grid()
    q = n.x.by(0, 2, 1)
    made = n.model(n.op("Softmax", n.where(j <= i, (q @ n.x) * 0.1 + (j % 3).float(), -1e9), axis=-1) @ q)
    assert judge(made, 4, range(1, 20), unbounded="grow").kind == "exact"
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "B"
    with pytest.raises(NotStreamable, match="any number"):
        pulsify.stream(made, pulse=4, unbounded="grow")
    assert pulsify.stream(made, pulse=4, unbounded="grow", set={"B": 1}).spec.batch is None


def test_branches_that_no_declared_length_takes() -> None:
    n = Net()
    made = n.model(n.choose(n.T > 50, lambda m: m.here(n.x) * 2.0, lambda m: m.here(n.x) * 1.0))
    with pytest.raises(NotStreamable, match="declared lengths"):
        pulsify.stream(made, pulse=4, set={"T": "<=20"}, verify=False)


@pytest.mark.parametrize("pulse", [None, 2, 6])
def test_a_constant_prefix_where_only_some_lengths_are_taken(pulse: int | None) -> None:
    nodes = [
        node("Pad", "x pads", "p"),
        node("Abs", "p", "a"),
        node("Unsqueeze", "a two", "u"),
        node("Tile", "u rep", "t"),
        node("SpaceToDepth", "t", "y", blocksize=2),
    ]
    constants = {"pads": np.array([0, 0, 4, 0, 0, 0]), "two": np.array([2]), "rep": np.array([1, 1, 2, 1])}
    outcome = judge(model(nodes, {"x": [1, 2, "T"]}, ["p", "y"], constants), pulse, range(1, 30))
    assert outcome.kind == "exact", outcome
