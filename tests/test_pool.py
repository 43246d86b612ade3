"""Many streams at once: each exactly what it would be alone, whatever the others do."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pulsify
from pulsify.runtime.pool import Lane
from tests import models
from tests.models import Array, close, frames, model, node, run_batch, run_stream, weights
from tests.side import Batch

PULSE = 4


def recurrent() -> onnx.ModelProto:
    """Batch on the second axis of the states."""
    nodes = [node("LSTM", "x w r", "h", hidden_size=3), node("Squeeze", "h one", "y")]
    constants = {"w": weights(1, 12, 3, seed=1), "r": weights(1, 12, 3, seed=2), "one": np.array([1])}
    return model(nodes, {"x": ["T", "B", 3]}, ["y"], constants)


def counting() -> onnx.ModelProto:
    """The position matters at every frame."""
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s two", "t"), node("Range", "zero t one", "p"),
        node("Cast", "p", "f", to=1), node("Sin", "f", "w"), node("Mul", "x w", "h"),
        node("Conv", "h k", "y", pads=[1, 1]),
    ]  # fmt: skip
    numbers = {"two": np.array(2), "zero": np.array(0), "one": np.array(1)}
    return model(nodes, {"x": ["B", 2, "T"]}, ["y"], {**numbers, "k": weights(3, 2, 3)})


def folded(batch_inside: bool) -> onnx.ModelProto:
    """Streams folded into another axis, in front of it or behind: [B, 2, C, T] -> [2B, C, T]."""
    perm = [1, 0, 2, 3] if batch_inside else [0, 1, 2, 3]
    nodes = [
        node("Transpose", "x", "a", perm=perm), node("Shape", "a", "s"), node("Gather", "s last", "t"),
        node("Concat", "lead t", "flat", axis=0), node("Reshape", "a flat", "b"), node("Conv", "b k", "c", pads=[2, 0]),
        node("Reshape", "c s", "d"), node("Transpose", "d", "y", perm=perm),
    ]  # fmt: skip
    numbers = {"lead": np.array([-1, 3]), "last": np.array([3])}
    return model(nodes, {"x": ["B", 2, 3, "T"]}, ["y"], {**numbers, "k": weights(3, 3, 3)})


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[int, ...], int]] = {
    "look_ahead": (lambda: models.look_ahead("B"), (1, 2, -1), 2),
    "causal": (lambda: models.causal("B"), (1, 2, -1), 2),
    "recurrent": (recurrent, (-1, 1, 3), 0),
    "counting": (counting, (1, 2, -1), 2),
}


class Driven:
    """A lane, its input and what has come out so far."""

    def __init__(self, lane: Lane, x: Array, axis: int) -> None:
        self.lane, self.x, self.axis, self.sent, self.out = lane, x, axis, 0, list[Array]()

    def push(self, count: int) -> None:
        head = (slice(None),) * self.axis
        self.lane.push(self.x[(*head, slice(self.sent, self.sent + count))])
        self.sent = min(self.sent + count, self.x.shape[self.axis])

    @property
    def done(self) -> bool:
        return self.sent == self.x.shape[self.axis]


def sound(shape: tuple[int, ...], length: int, seed: int) -> Array:
    return frames(*(length if d < 0 else d for d in shape), seed=seed)


def together(pool: pulsify.Pool, xs: Sequence[Array]) -> list[Array]:
    """Whole streams at once."""
    for x in xs:
        lane = pool.open()
        lane.push(x)
        lane.flush()
    return list(pool.run().values())


def come_and_go(pool: pulsify.Pool, shape: Any, axis: int, seed: int) -> list[Driven]:
    """Seven streams in the pool's three slots, each at its own pace; all of them when they have ended."""
    rng = np.random.default_rng(seed)
    driven: list[Driven] = []
    waiting = [sound(shape, int(n), seed + i) for i, n in enumerate(rng.integers(1, 9 * PULSE, 7))]
    live: list[Driven] = []
    while waiting or live:
        if waiting and len(pool) < 3 and rng.random() < 0.6:
            live.append(Driven(pool.open(), waiting.pop(), axis))
            driven.append(live[-1])
        for d in list(live):
            if rng.random() < 0.3:
                continue  # idle
            d.push(int(rng.integers(0, 3 * PULSE)))
            if d.done:
                d.lane.flush()
                live.remove(d)
        for lane, result in pool.run().items():
            next(d for d in driven if d.lane is lane).out.append(result)
    return driven


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_streams_come_and_go(name: str, seed: int) -> None:
    build, shape, axis = MODELS[name]
    proto = build()
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE, verify=False), 3, padding=float("nan"))
    driven = come_and_go(pool, shape, axis, seed)
    assert len(pool) == 0
    for d in driven:
        assert d.lane.closed
        close(np.concatenate(d.out, axis), run_batch(proto, d.x)["y"])


def test_streams_folded_into_another_axis() -> None:
    proto, xs = folded(batch_inside=False), [frames(1, 2, 3, 4 * n + 5, seed=n) for n in range(4)]
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE), 4)
    assert pool._slots.together
    for x, result in zip(xs, together(pool, xs), strict=True):
        close(result, run_batch(proto, x)["y"])


def test_streams_folded_inside_another_axis() -> None:
    """Which part of a state is whose is looked at, not guessed: they are computed one by one."""
    proto, xs = folded(batch_inside=True), [frames(1, 2, 3, 4 * n + 5, seed=n) for n in range(4)]
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE), 4)
    assert not pool._slots.together
    for x, result in zip(xs, together(pool, xs), strict=True):
        close(result, run_batch(proto, x)["y"])


@pytest.mark.parametrize("pads", [(0, 0, 0, 2), (0, 2, 0, 0), (0, 1, 0, 1)], ids=["end", "start", "both"])
def test_a_mask_of_ones_ends_with_each_stream(pads: tuple[int, ...]) -> None:
    """Padded and convolved, it is another one where a stream ends."""
    nodes = [
        node("Pad", "mask pads", "padded"), node("Unsqueeze", "padded one", "u"), node("Conv", "u k", "m"),
        node("Conv", "x w", "h", pads=[1, 1]), node("Mul", "h m", "y"),
    ]  # fmt: skip
    constants = {"pads": np.array(pads), "one": np.array([1]), "k": weights(1, 1, 3), "w": weights(3, 2, 3)}
    proto = model(nodes, {"x": ["B", 2, "T"], "mask": ["B", "T"]}, ["y"], constants)
    stream = pulsify.stream(proto, pulse=PULSE, bind={"mask": "ones"}, quiet=True)
    batch = Batch(proto)
    for length in (*range(1, 10), 23):
        x = frames(3, 2, length)
        ones = np.ones((3, length), np.float32)
        close(stream.run(x, padding=math.nan), batch.run({"x": x, "mask": ones})["y"])
    xs = [frames(1, 2, 5 * n + 1, seed=n) for n in range(4)]
    pool = pulsify.Pool(stream, 4, padding=math.nan)
    for x, result in zip(xs, together(pool, xs), strict=True):
        close(result, batch.run({"x": x, "mask": np.ones((1, x.shape[2]), np.float32)})["y"])


def test_warm_streams_run_together_wherever_they_are() -> None:
    stream = pulsify.stream(models.look_ahead("B"), pulse=PULSE)
    pool = pulsify.Pool(stream, 2)
    a, b = pool.open(), pool.open()
    calls: list[int] = []
    run = pool._slots.run
    pool._slots.run = lambda slots, *where: calls.append(len(slots)) or run(slots, *where)  # type: ignore[method-assign, func-returns-value]
    a.push(frames(1, 2, 8 * PULSE))
    pool.run()
    b.push(frames(1, 2, 8 * PULSE))
    pool.run()
    calls.clear()
    a.push(frames(1, 2, PULSE))
    b.push(frames(1, 2, PULSE))
    assert set(pool.run()) == {a, b}
    assert calls == [2]


def test_a_reset_does_not_touch_the_others() -> None:
    proto = models.look_ahead("B")
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE), 2)
    a, b, x = pool.open(), pool.open(), frames(1, 2, 21)
    a.push(x)
    b.push(frames(1, 2, 9, seed=5))
    first = pool.run()[a]
    b.reset()
    b.push(x[..., :7])
    a.flush()
    b.flush()
    rest = pool.run()
    close(np.concatenate([first, rest[a]], 2), run_batch(proto, x)["y"])
    close(rest[b], run_batch(proto, x[..., :7])["y"])


def test_states_move_between_lanes_and_sessions() -> None:
    proto = models.look_ahead("B")
    stream = pulsify.stream(proto, pulse=PULSE)
    pool, session, x = pulsify.Pool(stream, 2), stream.session(), frames(1, 2, 30)
    first = session.push(x[..., :14])
    lane = pool.open()
    lane.restore(session.state())
    lane.push(x[..., 14:19])
    second = pool.run()[lane]
    session.restore(lane.state())
    rest = [session.push(x[..., 19:]), session.flush()]
    close(np.concatenate([first, second, *rest], 2), run_batch(proto, x)["y"])


def test_an_empty_stream_and_a_place_given_back() -> None:
    pool = pulsify.Pool(pulsify.stream(models.causal("B"), pulse=PULSE), 1)
    lane = pool.open()
    with pytest.raises(pulsify.InvalidArgument, match="all 1 streams of this pool are open"):
        pool.open()
    lane.flush()
    assert pool.run()[lane].shape == (1, 3, 0)
    for use in (lane.flush, lane.reset, lambda: lane.push(frames(1, 2, 3)), lane.state):
        with pytest.raises(pulsify.SessionClosed, match="closed; open another"):
            use()
    other = pool.open()
    other.push(frames(1, 2, 3))
    other.flush()
    with pytest.raises(pulsify.SessionClosed, match="run the pool for the rest"):
        other.push(frames(1, 2, 3))
    assert pool.run()[other].shape == (1, 3, 3)


def test_chunks_are_checked_as_a_session_does() -> None:
    pool = pulsify.Pool(pulsify.stream(models.causal("B"), pulse=PULSE), 2)
    lane = pool.open()
    with pytest.raises(pulsify.InvalidChunk, match="takes float32"):
        lane.push(frames(1, 2, 3).astype(np.float64))
    with pytest.raises(pulsify.InvalidChunk, match="NaN at frame 1"):
        lane.push(np.array([[[0, np.nan, 0], [0, 0, 0]]], np.float32))
    assert pool.run() == {}


def test_what_no_pool_takes() -> None:
    with pytest.raises(pulsify.InvalidArgument, match="batch size is fixed"):
        pulsify.Pool(pulsify.stream(models.causal(), pulse=PULSE))
    with pytest.raises(pulsify.InvalidArgument, match="most=0"):
        pulsify.Pool(pulsify.stream(models.causal("B"), pulse=PULSE), 0)


def test_a_pool_of_one_is_a_session() -> None:
    proto, x = models.look_ahead("B"), frames(1, 2, 27)
    stream = pulsify.stream(proto, pulse=PULSE)
    lane = (pool := pulsify.Pool(stream, 1)).open()
    lane.push(x)
    lane.flush()
    close(pool.run()[lane], run_stream(stream.session(), x, [5]))


def strided() -> onnx.ModelProto:
    """Its end is worked out from the length."""
    nodes = [node("Conv", "x w", "h", pads=[2, 2], strides=[2]), node("Conv", "h v", "y", pads=[1, 1])]
    return model(nodes, {"x": ["B", 2, "T"]}, ["y"], {"w": weights(3, 2, 5), "v": weights(3, 3, 3)})


def test_a_model_that_asks_for_the_length() -> None:
    pool, x = pulsify.Pool(pulsify.stream(strided(), pulse=PULSE), 3), frames(1, 2, 23)
    lane = pool.open()
    lane.push(x)
    lane.flush()
    close(pool.run()[lane], run_batch(strided(), x)["y"])


@pytest.mark.parametrize("backend", ["ort", "native", "torch"])
def test_a_model_that_counts_its_streams(backend: str) -> None:
    """y = x + how many there are: each stream of a pool is alone."""
    if backend == "torch":
        pytest.importorskip("torch")
    size = [node("Shape", "x", "dims"), node("Gather", "dims zero", "count", axis=0), node("Cast", "count", "n", to=1)]
    proto = model([*size, node("Add", "x n", "y")], {"x": ["B", 2, "T"]}, ["y"], {"zero": np.array(0)})
    stream, xs = pulsify.stream(proto, pulse=4), [frames(1, 2, 9 + n, seed=n) for n in range(3)]
    pool = pulsify.Pool(stream, 4, backend=backend)
    lanes = [pool.open() for _ in xs]
    for lane, x in zip(lanes, xs, strict=True):
        lane.push(x)
        lane.flush()
    results = pool.run()
    for lane, x in zip(lanes, xs, strict=True):
        np.testing.assert_array_equal(results[lane], x + 1)


def test_outputs_folded_inside_another_axis() -> None:
    nodes = [
        node("Transpose", "x", "a", perm=[1, 0, 2]), node("Shape", "x", "s"), node("Gather", "s last", "t"),
        node("Concat", "lead t", "flat", axis=0), node("Reshape", "a flat", "y"),
    ]  # fmt: skip
    proto = model(nodes, {"x": ["B", 2, "T"]}, ["y"], {"lead": np.array([-1]), "last": np.array([2])})
    pool, xs = pulsify.Pool(pulsify.stream(proto, pulse=PULSE, time="T"), 3), [frames(1, 2, n) for n in (5, 9, 9)]
    assert not pool._slots.together
    for x, result in zip(xs, together(pool, xs), strict=True):
        close(result, run_batch(proto, x)["y"])


# ---- what is not finite stays where it is


def interpolated(*dims: int | str, mode: str = "linear", log: bool = False) -> onnx.ModelProto:
    """ONNX Runtime interpolates along the batch too: a row has weight zero in the one before it, and 0 * inf is NaN."""
    scales = np.array([1] * (len(dims) - 1) + [2], np.float32)
    nodes = [node("Log" if log else "Identity", "x", "l"), node("Resize", "l _ scales", "y", mode=mode)]
    return model(nodes, {"x": list(dims)}, ["y"], {"scales": scales})


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    ("proto", "apart"),
    [
        (interpolated("B", 2, "T"), False),
        (interpolated("B", 2, "T", log=True), False),
        (interpolated("B", 2, "T", mode="nearest"), True),
        (interpolated("B", 1, 2, "T"), True),
        (models.look_ahead("B"), True),
    ],
    ids=["linear", "log", "nearest", "rank 4", "conv"],
)
def test_what_is_not_finite_stays_in_its_stream(
    proto: onnx.ModelProto, apart: bool, value: float, tmp_path: Path
) -> None:
    shape = [d.dim_value or 1 for d in proto.graph.input[0].type.tensor_type.shape.dim]
    xs = [np.abs(frames(*shape[:-1], 30, seed=i)) + 0.1 for i in range(5)]
    for x in xs[1::2]:
        x[..., 0, 7], x[..., -1, 20] = value, -value
    stream = pulsify.stream(proto, pulse=PULSE)
    stream.save(tmp_path / "stream.onnx")
    for made in (stream, pulsify.load(tmp_path / "stream.onnx")):
        pool = pulsify.Pool(made, 5, check=False)
        assert pool._slots.together == apart
        for x, result in zip(xs, together(pool, xs), strict=True):
            np.testing.assert_allclose(result, run_stream(made.session(check=False), x, [30]), rtol=1e-5, atol=1e-6)


def test_noise_that_makes_nan_is_no_reason_to_refuse_or_to_split() -> None:
    """Square roots of what is tried are NaN here and there."""
    nodes = [node("Sqrt", "x", "s"), node("Conv", "s k", "y", pads=[2, 0])]
    proto = model(nodes, {"x": ["B", 2, "T"]}, ["y"], {"k": weights(3, 2, 3)})
    pool, xs = pulsify.Pool(pulsify.stream(proto, pulse=PULSE), 3), [np.abs(frames(1, 2, n)) for n in (5, 9, 9)]
    assert pool._slots.together
    for x, result in zip(xs, together(pool, xs), strict=True):
        close(result, run_batch(proto, x)["y"])


def looked_up() -> onnx.ModelProto:
    """A table of four rows: other numbers make the runtime fail."""
    nodes = [
        node("Gather", "table x", "e"),
        node("Transpose", "e", "c", perm=[0, 2, 1]),
        node("Conv", "c k", "y", pads=[1, 1]),
    ]
    constants = {"table": weights(4, 3), "k": weights(3, 3, 3)}
    return model(nodes, {"x": ["B", "T"]}, ["y"], constants, dtypes={"x": np.int64})


def test_a_stream_that_fails_takes_none_with_it() -> None:
    pool = pulsify.Pool(pulsify.stream(looked_up(), pulse=PULSE), 3)
    old, bad, good = (pool.open() for _ in range(3))
    x = np.random.default_rng(0).integers(0, 4, (1, 8 * PULSE))
    old.push(x)
    first = pool.run()[old]  # somewhere else than the others: a call of its own
    bad.push(np.full((1, PULSE), 99))
    good.push(x[:, : 2 * PULSE])
    old.push(x[:, :PULSE])
    with pytest.raises(pulsify.InvalidChunk, match="the stream it belongs to is closed"):
        pool.run()
    assert bad.closed
    assert not good.closed  # though they were computed together
    old.flush()
    good.flush()
    rest = pool.run()
    close(rest[good], run_batch(looked_up(), x[:, : 2 * PULSE])["y"])
    close(np.concatenate([first, rest[old]], 2), run_batch(looked_up(), np.concatenate([x, x[:, :PULSE]], 1))["y"])


def test_a_flushed_state_is_still_flushed() -> None:
    stream = pulsify.stream(models.causal("B"), pulse=PULSE)
    session, lane = stream.session(), pulsify.Pool(stream, 1).open()
    session.push(frames(1, 2, 9))
    session.flush()
    lane.restore(session.state())
    with pytest.raises(pulsify.SessionClosed, match="flushed"):
        lane.push(frames(1, 2, 3))


def test_only_the_offender_fails_and_the_error_names_it() -> None:
    """Eight streams computed together; one has a number outside the table."""
    pool = pulsify.Pool(pulsify.stream(looked_up(), pulse=PULSE), 8)
    lanes, x = [pool.open() for _ in range(8)], np.random.default_rng(0).integers(0, 4, (8, 6 * PULSE))
    parts: list[list[Array]] = [[] for _ in lanes]
    for at in range(0, x.shape[1], 2 * PULSE):
        for i, lane in enumerate(lanes):
            if not lane.closed:
                chunk = x[i : i + 1, at : at + 2 * PULSE].copy()
                chunk[0, PULSE + 1] = 99 if (i, at) == (3, 2 * PULSE) else chunk[0, PULSE + 1]
                lane.push(chunk)
        outcome = pool.step(rounds=None)
        for lane, result in outcome.results.items():
            parts[lanes.index(lane)].append(result)
        if at == 2 * PULSE:
            assert set(outcome.failures) == {lanes[3]}
            assert outcome.failures[lanes[3]].lane is lanes[3]
        else:
            assert not outcome.failures
    assert [lane.closed for lane in lanes] == [i == 3 for i in range(8)]
    for lane in lanes:
        if not lane.closed:
            lane.flush()
    for lane, result in pool.run().items():
        parts[lanes.index(lane)].append(result)
    for i, part in enumerate(parts):
        want = run_batch(looked_up(), x[i : i + 1])["y"]
        close(np.concatenate(part, 2), want[..., : 3 * PULSE - 1] if i == 3 else want)  # frames made before are kept
    with pytest.raises(pulsify.SessionClosed, match=r"model failed.*this stream is closed; open another one"):
        lanes[3].push(x[:1])


def test_run_names_the_offender() -> None:
    pool = pulsify.Pool(pulsify.stream(looked_up(), pulse=PULSE, verify=False), 2)
    bad, good = pool.open(), pool.open()
    bad.push(np.full((1, PULSE), 99))
    good.push(np.zeros((1, PULSE), np.int64))
    with pytest.raises(pulsify.InvalidChunk) as caught:
        pool.run()
    assert caught.value.lane is bad
    assert set(pool.run()) == {good}


# ---- how much is done at a time


def test_a_long_stream_does_not_hold_the_others_back() -> None:
    proto = models.look_ahead("B")
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE), 9)
    long, x = pool.open(), frames(1, 2, 5000 * PULSE)
    long.push(x)
    others = [pool.open() for _ in range(8)]
    for lane in others:
        lane.push(x[..., : 2 * PULSE])
    first = pool.step(rounds=2).results
    assert set(first) == {long, *others}
    parts = [first[long]]
    assert parts[0].shape[2] < 2 * PULSE
    while pool._ready:
        others[0].push(x[..., :PULSE])
        results = pool.step(rounds=100).results
        assert others[0] in results
        parts.append(results[long])
    assert len(parts) == 51
    long.flush()
    close(np.concatenate([*parts, pool.run()[long]], 2), run_batch(proto, x)["y"])


def test_a_budget_ends_a_step_and_the_rest_comes_first() -> None:
    proto = folded(batch_inside=True)  # every stream is a call
    pool, x = pulsify.Pool(pulsify.stream(proto, pulse=PULSE), 4), frames(1, 2, 3, 3 * PULSE)
    lanes = [pool.open() for _ in range(4)]
    for lane in lanes:
        lane.push(x)
    seen = [list(pool.step(rounds=None, budget=0.0).results) for _ in range(12)]
    assert [len(lanes) for lanes in seen] == [1] * 12  # one call each
    assert {lane for (lane,) in seen[:4]} == set(lanes)
    assert not pool.step().results
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(pulsify.InvalidArgument, match="rounds="):
            pool.step(rounds=wrong)  # type: ignore[arg-type]


def test_run_does_not_wait_for_what_is_pushed_meanwhile() -> None:
    pool = pulsify.Pool(pulsify.stream(models.causal("B"), pulse=PULSE), 1)
    lane, x = pool.open(), frames(1, 2, PULSE)
    run, pushes = pool._slots.run, [0]

    def busy(*given: Any) -> Any:
        pushes[0] += 1
        lane.push(x)  # as another thread would
        return run(*given)

    pool._slots.run = busy  # type: ignore[method-assign]
    lane.push(x)
    assert pool.run()[lane].shape[2] == PULSE
    assert pushes[0] == 1


def test_nothing_to_do_costs_nothing() -> None:
    """500 open, none ready: no more than with one open."""
    stream = pulsify.stream(models.causal("B"), pulse=PULSE, verify=False)
    times = []
    for count in (1, 500):
        pool = pulsify.Pool(stream, count)
        lanes = [pool.open() for _ in range(count)]
        for lane in lanes:
            lane.push(frames(1, 2, 3))
        pool.run()
        times.append(min(timeit.repeat(pool.run, number=100, repeat=20)))
    assert times[1] < 5 * times[0]


def test_a_dropped_lane_gives_its_place_back() -> None:
    pool = pulsify.Pool(pulsify.stream(models.causal("B"), pulse=PULSE), 2)
    kept, x = pool.open(), frames(1, 2, 3)
    for _ in range(5):
        pool.open().push(x)
        pool.run()
    assert len(pool) == 1
    lane = pool.open()
    lane.push(frames(1, 2, 2 * PULSE))
    number = lane.number
    del lane
    assert [found.number for found in pool.run()] == [number]  # what is to be computed still is
    assert len(pool) == 1
    kept.push(x)
    kept.flush()
    close(pool.run()[kept], run_batch(models.causal("B"), x)["y"])


def test_lanes_fork_and_are_not_copied() -> None:
    proto, x, z = models.look_ahead("B"), frames(1, 2, 30), frames(1, 2, 30, seed=5)
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE), 2)
    lane = pool.open()
    lane.push(x[..., :14])
    first, other = pool.run()[lane], lane.fork()
    z[..., :14] = x[..., :14]
    lane.push(x[..., 14:])
    other.push(z[..., 14:])
    lane.flush()
    other.flush()
    rest = pool.run()
    close(np.concatenate([first, rest[lane]], 2), run_batch(proto, x)["y"])
    close(np.concatenate([first, rest[other]], 2), run_batch(proto, z)["y"])
    for use, what in itertools.product((copy.copy, copy.deepcopy, pickle.dumps), (lane, pool)):
        with pytest.raises(TypeError, match=r"state\(\)|fork\(\)"):
            use(what)


def test_pools_and_lanes_in_a_line() -> None:
    pool = pulsify.Pool(pulsify.stream(models.causal("B"), pulse=PULSE), 3)
    lane = pool.open()
    lane.push(frames(1, 2, 5))
    assert repr(pool) == "<pulsify.Pool pulse=4, 1 of 3 streams open, 1 ready>"
    assert repr(lane) == "<pulsify.Lane 0 [x: 5 frames in] open>"
    lane.close()
    assert repr(lane).endswith("closed>")


# ---- a fixed number side by side


def test_streams_of_a_session_start_wait_and_end_on_their_own() -> None:
    proto, x = models.look_ahead("B"), frames(3, 2, 40)
    together = pulsify.stream(proto, pulse=PULSE).session(batch=3, independent=True)
    out: list[list[Array]] = [[], [], []]

    def keep(results: list[Array | None]) -> None:
        for parts, result in zip(out, results, strict=True):
            if result is not None:
                parts.append(result)

    sent = [0, 0, 0]
    for turn in range(10):
        active = [True, turn % 2 == 0, turn >= 3]
        chunk = np.stack([x[i, :, n : n + PULSE] for i, n in enumerate(sent)])
        keep(together.push(chunk, active=active))
        sent = [n + PULSE * a for n, a in zip(sent, active, strict=True)]
    keep(together.flush([1]))  # one ends, the others go on
    close(np.concatenate(out[1], 2), run_batch(proto, x[1:2, :, : sent[1]])["y"])
    together.reset([1])
    out[1].clear()
    keep(together.push(x[..., :7], active=[False, True, False]))
    keep(together.flush())
    for i, n in enumerate([sent[0], 7, sent[2]]):
        close(np.concatenate(out[i], 2), run_batch(proto, x[i : i + 1, :, :n])["y"])


def test_streams_that_do_not_exist() -> None:
    together = pulsify.stream(models.causal("B"), pulse=PULSE).session(batch=2, independent=True)
    with pytest.raises(pulsify.InvalidArgument, match="expected 2 truth values"):
        together.push(frames(2, 2, 4), active=[True])
    with pytest.raises(pulsify.InvalidArgument, match="streams 0 to 1"):
        together.reset([2])
    with pytest.raises(pulsify.InvalidChunk, match="expected frames of 2 streams"):
        together.push(frames(3, 2, 4))


def test_streams_take_all_or_nothing() -> None:
    together, x = pulsify.stream(models.causal("B"), pulse=PULSE).session(batch=2, independent=True), frames(2, 2, 8)
    spoilt = x.copy()
    spoilt[1, 0, 2] = np.nan
    with pytest.raises(pulsify.InvalidChunk, match="nothing was taken"):
        together.push(spoilt)
    together.flush([1])
    with pytest.raises(pulsify.SessionClosed):
        together.push(x)
    first = together.push(x, active=[True, False])[0]
    rest = together.flush()  # those that have not ended yet
    assert rest[1] is None
    close(np.concatenate([first, rest[0]], 2), run_batch(models.causal("B"), x[:1])["y"])


def test_streams_end_all_or_none() -> None:
    """One is too short to end: none does, the error says which, and all go on."""
    nodes = [node("Conv", "x w", "y")]
    proto = model(nodes, {"x": ["B", 2, "T"]}, ["y"], {"w": weights(3, 2, 5)})
    together, x = pulsify.stream(proto, pulse=PULSE).session(batch=3, independent=True), frames(3, 2, 12)
    first = [together.push(x[..., :3]), together.push(x[..., 3:9], active=[True, False, True])]
    with pytest.raises(pulsify.InvalidLength, match="at least 5") as caught:
        together.flush()
    assert caught.value.lane == 1
    first.append(together.push(x[..., 3:9], active=[False, True, False]))
    first.append(together.push(x[..., 9:]))
    rest = together.flush()
    for i in range(3):
        parts = [r[i] for r in [*first, rest] if r[i] is not None]
        close(np.concatenate(parts, 2), run_batch(proto, x[i : i + 1])["y"])


def test_streams_say_which_failed_and_give_what_the_others_made() -> None:
    together = pulsify.stream(looked_up(), pulse=PULSE).session(batch=3, independent=True)
    x = np.random.default_rng(0).integers(0, 4, (3, 2 * PULSE))
    spoilt = x.copy()
    spoilt[1, 0] = 99
    with pytest.raises(pulsify.InvalidChunk) as caught:
        together.push(spoilt)
    assert caught.value.lane == 1
    results: Any = caught.value.results
    assert results[1] is None
    rest = together.flush()  # those that are left
    for i in (0, 2):
        close(np.concatenate([results[i], rest[i]], 2), run_batch(looked_up(), x[i : i + 1])["y"])


def test_independent_streams_run_the_portable_form_if_asked() -> None:
    proto, x = models.look_ahead("B"), frames(2, 2, 9 * PULSE)
    stream = pulsify.stream(proto, pulse=PULSE, verify=False)
    for portable in (True, False):
        together = stream.session(batch=2, independent=True, portable=portable)
        engine: Any = together._pool._slots
        assert (engine._on.steady is None) == portable
        assert (engine._on.program.general is stream.model) and (engine._on.program.steady is None) == portable
        parts = [together.push(x), together.flush()]
        for i in range(2):
            close(np.concatenate([p[i] for p in parts], 2), run_batch(proto, x[i : i + 1])["y"])
    with pytest.raises(pulsify.InvalidArgument, match=r"no option or static input 'scale'"):
        stream.session(batch=2, independent=True, statics={"scale": 1})  # type: ignore[call-overload]
