"""peek: what flush would give now, the stream going on unharmed; in sessions and pools, on every back end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.core.arrays import Array
from tests.models import model, node, weights
from tests.side import Batch, streamed
from tests.whole.check import same
from tests.whole.graphs import CHANNELS, exported

NAMES = ("statistics", "attentive_statistics", "beside_frames", "last_of_gru", "log_sum_exp", "scaled", "argmax")


def named(stream: pulsify.Stream, result: Any) -> dict[str, Array]:
    return result if isinstance(result, dict) else {stream.outputs[0].name: result}


def frames(length: int, batch: int = 1, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((batch, length, CHANNELS)).astype(np.float32)


@pytest.mark.parametrize("backend", ["ort", "torch", "reference"])
@pytest.mark.parametrize("name", NAMES)
def test_at_any_time(name: str, backend: str) -> None:
    proto = exported("legacy", name)
    batch, stream, x = Batch(proto), pulsify.stream(proto, pulse=4, verify=False), frames(23)
    session, came = stream.session(backend=backend), {o.name: [] for o in stream.outputs if o.axis is not None}
    for at in range(0, 23, 5):
        pushed = session.push(x[:, at : at + 5])
        for output, parts in came.items():
            parts.append(named(stream, pushed)[output])
        so_far = min(at + 5, 23)
        if so_far < stream.spec.shortest:
            continue
        shown, want = named(stream, session.peek()), batch.run({"x": x[:, :so_far]})
        whole = {n: np.concatenate([*came[n], a], 1) if n in came else a for n, a in shown.items()}
        same(whole, want)
    last = named(stream, session.flush())
    same({n: np.concatenate([*came[n], a], 1) if n in came else a for n, a in last.items()}, batch.run({"x": x}))


@pytest.mark.parametrize("backend", ["ort", "torch", "reference"])
@pytest.mark.parametrize("name", ["attentive_statistics", "beside_frames", "edges", "state"])
def test_back_ends_agree(name: str, backend: str) -> None:
    proto, x = exported("legacy", name), frames(31, 2)
    stream = pulsify.stream(proto, pulse=4, verify=False)
    same(streamed(stream, x, [3, 11, 17], backend=backend), Batch(proto).run({"x": x}))


def test_a_stream_that_may_not_end_here_says_so_and_goes_on() -> None:
    proto = exported("legacy", "last_five")
    stream, x = pulsify.stream(proto, pulse=4, verify=False), frames(9)
    session = stream.session()
    session.push(x[:, :3])
    with pytest.raises(pulsify.InvalidLength, match="at least 5"):
        session.peek()
    session.push(x[:, 3:])
    same(named(stream, session.flush()), Batch(proto).run({"x": x}))
    with pytest.raises(pulsify.SessionClosed):
        session.peek()


def test_nothing_has_come_yet() -> None:
    proto = model([node("ReduceMean", "x", "y", axes=[1])], {"x": [1, "T", 2]}, ["y"])
    session = pulsify.stream(proto, pulse=2).session()
    assert session.peek() is None and session.flush() is None, "as of a stream without a single frame"


def test_frames_are_left_alone() -> None:
    proto = model([node("Conv", "x w", "y", pads=[2, 2])], {"x": [1, 2, "T"]}, ["y"], {"w": weights(3, 2, 5)})
    stream, x = pulsify.stream(proto, pulse=3), np.random.default_rng(1).standard_normal((1, 2, 17)).astype(np.float32)
    session = stream.session()
    first, shown = session.push(x[..., :8]), session.peek()
    np.testing.assert_array_equal(session.peek(), shown)
    again = stream.session()
    again.restore(session.state())
    np.testing.assert_array_equal(again.flush(), shown)
    np.testing.assert_allclose(np.concatenate([first, shown], 2), Batch(proto).run({"x": x[..., :8]})["y"], atol=1e-5)
    rest = [session.push(x[..., 8:]), session.flush()]
    np.testing.assert_allclose(np.concatenate([first, *rest], 2), Batch(proto).run({"x": x})["y"], atol=1e-5)


@pytest.mark.parametrize("backend", ["ort", "torch"])
@pytest.mark.parametrize("name", ["attentive_statistics", "scaled"])
def test_lanes_of_a_pool(name: str, backend: str) -> None:
    proto = exported("legacy", name)
    stream, batch = pulsify.stream(proto, pulse=4, verify=False), Batch(proto)
    pool = pulsify.Pool(stream, 3, backend=backend)
    lanes = [pool.open() for _ in range(3)]
    xs = [frames(19 + i, seed=i) for i in range(3)]
    came: list[list[Array]] = [[] for _ in lanes]

    def run() -> None:
        for lane, result in pool.run().items():
            if result is not None:
                came[lanes.index(lane)].append(result)

    for lane, x in zip(lanes, xs, strict=True):
        lane.push(x[:, :10])
    run()
    timed = stream.outputs[0].axis is not None
    for lane, x, parts in zip(lanes, xs, came, strict=True):
        shown, want = lane.peek(), batch.run({"x": x[:, :10]})
        same({stream.outputs[0].name: np.concatenate([*parts, shown], 1) if timed else shown}, want)
        lane.push(x[:, 10:])
        lane.flush()
    run()
    for x, parts in zip(xs, came, strict=True):
        same({stream.outputs[0].name: np.concatenate(parts, 1) if timed else parts[-1]}, batch.run({"x": x}))


def test_independent_streams_of_a_session() -> None:
    proto, x = exported("legacy", "statistics"), frames(12, 2)
    together = pulsify.stream(proto, pulse=4, verify=False).session(batch=2, independent=True)
    together.push(x[:, :6])
    shown = together.peek()
    batch = Batch(proto)
    for i in range(2):
        np.testing.assert_allclose(shown[i], batch.run({"x": x[i : i + 1, :6]})[batch.names[0]], atol=1e-5)
    together.flush([0])
    assert together.peek()[0] is None and together.peek()[1] is not None


@pytest.mark.parametrize("backend", ["ort", "torch"])
def test_many_streams_without_a_frame_to_give(backend: str) -> None:
    """A pulse of each goes in, nothing comes out before the end."""
    proto, x = exported("legacy", "classifier"), frames(20, 3)
    pool, batch = pulsify.Pool(pulsify.stream(proto, pulse=4, verify=False), 3, backend=backend), Batch(proto)
    lanes = [pool.open() for _ in range(3)]
    for at in range(0, 20, 4):
        made = pool.exchange([lane.slot for lane in lanes], x[:, at : at + 4])
        assert made.frames == {} and made.whole and made.of(1) == {}
    for lane in lanes:
        lane.flush()
    results = pool.run()
    for i, lane in enumerate(lanes):
        same({batch.names[0]: results[lane]}, batch.run({"x": x[i : i + 1]}))


def test_a_push_that_gives_nothing() -> None:
    """One output or several, a whole pulse or not: as a stream whose frames are still late."""
    one = pulsify.stream(exported("legacy", "mean"), pulse=4, verify=False).session()
    nodes = [node("ReduceMax", "x", "a", axes=[1]), node("ReduceMin", "x", "b", axes=[1])]
    two = pulsify.stream(model(nodes, {"x": [1, "T", CHANNELS]}, ["a", "b"]), pulse=4, verify=False).session()
    x = frames(30)
    for cut in (slice(0, 4), slice(4, 8), slice(8, 11), slice(11, 30)):
        assert one.push(x[:, cut]) is None and two.push(x[:, cut]) == {}
    np.testing.assert_allclose(one.flush(), x.mean(1), atol=1e-6)
    np.testing.assert_array_equal(two.flush()["a"], x.max(1, keepdims=True))
