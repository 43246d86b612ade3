"""A pulse of many streams in one call: what it takes and refuses, and that lanes go on beside it as ever."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.core.errors import InvalidArgument, InvalidChunk, InvalidLength, SessionBusy, SessionClosed
from pulsify.runtime.lane import Lane
from pulsify.runtime.many import BUSY, FREE, HERE, LANE
from pulsify.runtime.pool import Pool
from tests.models import Array, close, frames
from tests.unit.runtime.test_lane import Source, pool
from tests.unit.specs import remembered


def opened(count: int = 3, **options: Any) -> tuple[Pool, list[Lane]]:
    made = pool(count, **options)
    return made, [made.open() for _ in range(count)]


def held(p: Pool) -> list[int]:
    return list(p._standing.held)


# ---- frames


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_exchanges_and_lanes_in_any_order_are_each_stream(data: Any) -> None:
    """A pulse or a few of some at once, odd chunks of one, snapshots, forks, resets: always the stream's frames."""
    p, lanes = opened(4)
    x, sent, out = frames(4, 2, 60), [0] * 4, [list[Array]() for _ in range(4)]

    def cut(i: int, count: int) -> Array:
        sent[i] += count
        return x[i : i + 1, :, sent[i] - count : sent[i]]

    for _ in range(data.draw(st.integers(1, 12))):
        kind = data.draw(st.sampled_from(["exchange", "exchange", "push", "move", "again"]))
        i = data.draw(st.integers(0, 3))
        if kind == "exchange":
            size = 4 * data.draw(st.integers(1, 3))
            order = data.draw(st.permutations(range(4)))
            who = [k for k in order if sent[k] + size <= 60][: data.draw(st.integers(0, 4))]
            chunk = np.concatenate([cut(k, size) for k in who]) if who else np.zeros((0, 2, size), np.float32)
            made = p.exchange([lanes[k] for k in who], chunk)
            for row, k in enumerate(who):
                out[k].append(made.of(row))
        elif kind == "push":
            lanes[i].push(cut(i, min(data.draw(st.integers(0, 9)), 60 - sent[i])))
            for lane, result in p.run().items():
                out[lanes.index(lane)].append(result)
        elif kind == "move":
            blob = lanes[i].state()
            lanes[i].close()
            lanes[i] = p.open()
            lanes[i].restore(blob)
        else:
            lanes[i].reset()
            sent[i], out[i] = 0, []
    for lane in lanes:
        lane.flush()
    for lane, result in p.run().items():
        out[lanes.index(lane)].append(result)
    for i, parts in enumerate(out):
        if sent[i]:
            close(np.concatenate(parts, 2), remembered(x[i : i + 1, :, : sent[i]]))


def test_by_slot_and_by_lane_in_the_order_asked_for() -> None:
    p, lanes = opened()
    x = frames(3, 2, 8)
    first = p.exchange([lanes[2], lanes[0]], x[[2, 0], :, :4])
    close(first.frames, remembered(x[[2, 0], :, :4]))
    second = p.exchange(np.array([lanes[0].slot, lanes[2].slot]), x[[0, 2], :, 4:])
    close(second.frames, remembered(x[[0, 2]])[..., 4:])
    assert first.whole and second.real.tolist() == [[0, 4], [0, 4]]


def test_none_at_all() -> None:
    p, _ = opened()
    made = p.exchange([], np.zeros((0, 2, 4), np.float32))
    assert made.frames.shape == (0, 3, 4) and made.real.shape == (0, 2) and made.whole


def test_several_pulses_of_each_in_one_call() -> None:
    p, lanes = opened()
    x = frames(3, 2, 24)
    first = p.exchange(lanes[:2], x[:2, :, :12])
    assert first.pulses == 3 and first.whole and first.real.tolist() == [[0, 12], [0, 12]]
    second = p.exchange(lanes, np.stack([x[0, :, 12:20], x[1, :, 12:20], x[2, :, :8]]))
    close(np.concatenate([first.of(0), second.of(0)], 2), remembered(x[:1, :, :20]))
    close(second.of(2), remembered(x[2:, :, :8]))
    lanes[1].push(x[1:2, :, 20:23])
    lanes[1].flush()
    close(p.run()[lanes[1]], remembered(x[1:2, :, :23])[..., 20:])


def test_several_pulses_behind_a_delay_are_real_from_where_they_are() -> None:
    p = Pool(Source(outputs=(replace(Source().spec.outputs[0], delay=6),)), 2)
    lanes = [p.open(), p.open()]
    made = p.exchange(lanes, frames(2, 2, 12))
    assert made.real.tolist() == [[6, 12], [6, 12]] and not made.whole and made.of(1).shape == (1, 3, 6)
    assert p.exchange(lanes, frames(2, 2, 8)).whole


def test_several_pulses_behind_frames_that_wait() -> None:
    p, (a, b, _) = opened()
    x = frames(2, 2, 16)
    a.push(x[:1, :, :3])
    made = p.exchange([a, b], np.concatenate([x[:1, :, 3:15], x[1:, :, :12]]))
    close(made.frames, remembered(x[..., :12]))
    assert held(p)[:2] == [LANE, HERE]
    a.push(x[:1, :, 15:])
    close(p.run()[a], remembered(x[:1])[..., 12:16])


def test_frames_that_wait_in_a_lane_come_first() -> None:
    p, (a, b, _) = opened()
    x = frames(2, 2, 16)
    a.push(x[:1, :, :3])
    chunk = np.concatenate([x[:1, :, 3:7], x[1:, :, :4]])
    before = chunk.copy()
    made = p.exchange([a, b], chunk)
    np.testing.assert_array_equal(chunk, before)
    close(made.frames, remembered(x[..., :4]))
    assert held(p)[:2] == [LANE, HERE]
    a.push(x[:1, :, 7:8])
    close(p.run()[a], remembered(x[:1])[..., 4:8])
    close(p.exchange([a], x[:1, :, 8:12]).frames, remembered(x[:1])[..., 8:12])
    assert held(p)[0] == HERE, "nothing waits any more"


def test_a_lane_knows_how_far_it_is() -> None:
    p, lanes = opened()
    for _ in range(3):
        p.exchange(lanes, frames(3, 2, 4))
    assert repr(lanes[1]) == "<pulsify.Lane 1 [x: 12 frames in] open>"
    assert lanes[0].live
    lanes[0].flush()
    assert p.run()[lanes[0]].shape == (1, 3, 0)
    assert held(p) == [FREE, LANE, HERE]


# ---- refused, with nothing taken


@pytest.mark.parametrize(
    ("streams", "said"),
    [
        ([0, 1, 0], "slot 0 is given twice"),
        ([0, 3], r"slots 0 to 2, not \[3\]"),
        ([-1], r"slots 0 to 2, not \[-1\]"),
        (np.array([0.0, 1.0]), "expected lanes of this pool, or their slots, got float64"),
        (np.array([True, False]), "got bool"),
        (np.array([[0]]), r"got int64 \(1, 1\)"),
        (["a"], "'a' is no lane of this pool"),
    ],
)
def test_streams_that_are_none(streams: Any, said: str) -> None:
    p, lanes = opened()
    with pytest.raises(InvalidArgument, match=said):
        p.exchange(streams, frames(len(streams), 2, 4))
    assert held(p) == [LANE] * 3
    x = frames(3, 2, 4)
    close(p.exchange(lanes, x).frames, remembered(x))


def test_streams_of_another_pool_or_closed() -> None:
    p, lanes = opened()
    other, _ = opened()
    with pytest.raises(InvalidArgument, match="no lane of this pool"):
        other.exchange(lanes, frames(3, 2, 4))
    lanes[1].close()
    with pytest.raises(SessionClosed, match="this stream is closed"):
        p.exchange(lanes, frames(3, 2, 4))
    with pytest.raises(InvalidArgument, match="no stream is open in slot 1"):
        p.exchange([0, 1], frames(2, 2, 4))


@pytest.mark.parametrize(
    ("chunk", "said"),
    [
        (frames(2, 2, 4), r"a pulse of 3 streams is float32 \[3, 2, 4\], got float32 \[2, 2, 4\]"),
        (frames(3, 2, 5), r"a pulse of 3 streams is float32 \[3, 2, 4\], got float32 \[3, 2, 5\]"),
        (frames(3, 2, 0), r"a pulse of 3 streams is float32 \[3, 2, 4\], got float32 \[3, 2, 0\]"),
        (frames(3, 3, 8), r"2 pulses of 3 streams are float32 \[3, 2, 8\], got float32 \[3, 3, 8\]"),
        (frames(3, 2, 4).astype(np.float64), "got float64"),
        ({"z": frames(3, 2, 4)}, r"a pulse of every input: \['x'\], got \['z'\]"),
        (None, "got object"),
    ],
)
def test_frames_that_do_not_fit(chunk: Any, said: str) -> None:
    p, lanes = opened()
    with pytest.raises(InvalidChunk, match=said):
        p.exchange(lanes, chunk)
    x = frames(3, 2, 4)
    close(p.exchange(lanes, x).frames, remembered(x))


def test_what_is_not_finite_is_named_and_nothing_is_taken() -> None:
    p, lanes = opened()
    x = frames(3, 2, 8)
    bad = x[..., :4].copy()
    bad[1, 0, 2], bad[2, 1, 0] = np.nan, np.inf
    with pytest.raises(InvalidChunk, match=r"not finite for the streams in slots 1, 2; nothing was taken"):
        p.exchange(lanes, bad)
    parts = [p.exchange(lanes, x[..., n : n + 4]).frames for n in (0, 4)]
    close(np.concatenate(parts, 2), remembered(x))


def test_it_stays_in_its_stream_if_let_through() -> None:
    p, lanes = opened(check=False)
    x = frames(3, 2, 12)
    bad = x.copy()
    bad[1] = np.nan
    parts = [p.exchange(lanes, bad[..., n : n + 4]).frames for n in (0, 4, 8)]
    got = np.concatenate(parts, 2)
    close(got[[0, 2]], remembered(x[[0, 2]]))
    assert np.isnan(got[1]).all()


def test_a_stream_that_has_ended_or_has_frames_to_give_refuses() -> None:
    p, (a, b, c) = opened()
    x = frames(3, 2, 4)
    a.push(x[:1])
    with pytest.raises(InvalidArgument, match=r"slot 0 has frames that were pushed and not given out") as caught:
        p.exchange([a, b], x[:2])
    assert caught.value.lane is a
    p.run()
    b.flush()
    with pytest.raises(SessionClosed, match="flushed") as ended:
        p.exchange([a, b, c], x)
    assert ended.value.lane is b
    close(p.exchange([c], x[2:]).frames, remembered(x[2:]))


# ---- failures


def test_a_stream_that_fails_fails_alone() -> None:
    p, lanes = opened(4)
    x, run = frames(4, 2, 8), p._slots.run

    def strict(slots: Array, positions: Array, lengths: Any, fed: Any) -> Any:
        if (fed["x"] > 90).any():
            raise RuntimeError("too loud")
        return run(slots, positions, lengths, fed)

    p._slots.run = strict  # type: ignore[method-assign]
    first = p.exchange(lanes, x[..., :4])
    loud = x[..., 4:].copy()
    loud[2, 0, 0] = 99
    made = p.exchange(lanes, loud)
    assert set(made.failures) == {2} and made.failures[2].lane is lanes[2]
    assert "too loud" in str(made.failures[2]) and "slot 2" in str(made.failures[2])
    assert made.of(2).shape == (1, 3, 0) and not made.whole
    assert lanes[2].closed and held(p) == [HERE, HERE, FREE, HERE]
    for i in (0, 1, 3):
        close(np.concatenate([first.of(i), made.of(i)], 2), remembered(x[i : i + 1]))
    with pytest.raises(SessionClosed, match="too loud"):
        lanes[2].push(x[:1])
    everyone = p.exchange([lanes[0]], np.full((1, 2, 4), 99, np.float32))
    assert set(everyone.failures) == {0} and everyone.frames.shape == (1, 3, 4)
    assert len(p) == 2


def test_one_that_fails_in_a_later_pulse_keeps_those_before() -> None:
    p, lanes = opened(4)
    x, run = frames(4, 2, 16), p._slots.run

    def strict(slots: Array, positions: Array, lengths: Any, fed: Any) -> Any:
        if (fed["x"] > 90).any():
            raise RuntimeError("too loud")
        return run(slots, positions, lengths, fed)

    p._slots.run = strict  # type: ignore[method-assign]
    loud = x.copy()
    loud[1, 0, 5], loud[3, 0, 15] = 99, 99
    made = p.exchange(lanes, loud)
    assert set(made.failures) == {1, 3} and made.real.tolist() == [[0, 16], [0, 4], [0, 16], [0, 12]]
    for i, count in enumerate((16, 4, 16, 12)):
        close(made.of(i), remembered(loud[i : i + 1])[..., :count])
    assert held(p) == [HERE, FREE, HERE, FREE] and not made.whole
    x = np.concatenate([x, x], 2)
    close(p.exchange([lanes[0], lanes[2]], x[[0, 2], :, 16:]).frames, remembered(x[[0, 2]])[..., 16:])


def test_interrupted_streams_say_so_and_others_do_not_notice() -> None:
    p, (a, b, c) = opened()
    x, run = frames(3, 2, 8), p._slots.run
    p.exchange([a, b, c], x[..., :4])
    kept = b.state()

    def struck(*given: Any) -> Any:
        run(*given)
        raise KeyboardInterrupt

    p._slots.run = struck  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        p.exchange([a, b], x[:2, :, 4:])
    p._slots.run = run  # type: ignore[method-assign]
    assert held(p) == [BUSY, BUSY, HERE] and not a.live
    close(p.exchange([c], x[2:, :, 4:]).frames, remembered(x[2:])[..., 4:])
    for use in (lambda: a.push(x[:1]), a.state, a.flush):
        with pytest.raises(SessionClosed, match="interrupted"):
            use()
    with pytest.raises(SessionClosed, match="interrupted"):
        p.exchange([b], x[1:2, :, :4])
    a.reset()
    b.restore(kept)
    both = p.exchange([a, b], np.concatenate([x[:1, :, :4], x[1:2, :, 4:]]))
    close(both.of(0), remembered(x[:1])[..., :4])
    close(both.of(1), remembered(x[1:2])[..., 4:])


def test_a_thread_that_meets_an_exchange_in_a_lane() -> None:
    p, lanes = opened()
    x, run, met = frames(3, 2, 4), p._slots.run, list[BaseException]()

    def other() -> None:
        try:
            lanes[0].push(x[:1])
        except SessionBusy as error:
            met.append(error)

    def slow(*given: Any) -> Any:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return run(*given)

    p._slots.run = slow  # type: ignore[method-assign]
    close(p.exchange(lanes, x).frames, remembered(x))
    assert len(met) == 1
    lanes[0].flush()


def test_a_slot_dropped_in_an_exchange_is_opened_behind_it() -> None:
    """Nothing of the old stream is written over the new one."""
    p, lanes = opened()
    x, run = frames(3, 2, 4), p._slots.run
    slots, opened_late, threads = np.arange(3), list[Lane](), list[threading.Thread]()

    def slow(*given: Any) -> Any:
        lanes.clear()
        thread = threading.Thread(target=lambda: opened_late.append(p.open()))
        thread.start()
        thread.join(0.05)
        assert not opened_late, "it waits"
        threads.append(thread)
        return run(*given)

    p._slots.run = slow  # type: ignore[method-assign]
    p.exchange(slots, x)
    p._slots.run = run  # type: ignore[method-assign]
    threads[0].join()
    (lane,) = opened_late
    close(p.exchange([lane], x[:1]).frames, remembered(x[:1]))


# ---- counters


def test_counters_are_set_back_stream_by_stream() -> None:
    source = Source(position=None)
    p = Pool(source, 2)
    lanes = [p.open(), p.open()]
    x = frames(2, 2, 12)
    parts = [p.exchange(lanes, x[..., :4])]
    p._standing.until[0] = 1
    asked: list[int] = []
    framer = lanes[0]._framer
    kept = type(framer).rebase
    type(framer).rebase = lambda self: asked.append(self.pulses) or kept(self)  # type: ignore[method-assign, func-returns-value]
    try:
        parts += [p.exchange(lanes, x[..., n : n + 4]) for n in (4, 8)]
    finally:
        type(framer).rebase = kept  # type: ignore[method-assign]
    assert asked == [1, 2], "only the first stream's are looked at"
    for row in range(2):
        close(np.concatenate([made.of(row) for made in parts], 2), remembered(x[row : row + 1]))


def test_more_pulses_than_the_counter_holds_are_refused() -> None:
    p = Pool(Source(), 1)
    a = p.open()
    p.exchange([a], frames(1, 2, 4))
    p.spec = replace(p.spec, position="at")
    p._standing.pulses[0], p._standing.until[0] = p.spec.unknown_length // 4 - 2, p.spec.unknown_length
    with pytest.raises(InvalidArgument, match="4 pulses at once are too many for the counter"):
        p.exchange([a], frames(1, 2, 16))


def test_a_table_that_ends_is_said_before_anything_is_taken() -> None:
    from pulsify.core.length import Length
    from pulsify.core.spec import Condition

    p = Pool(Source(conditions=(Condition("table", Length(), at_most=8),)), 2)
    a, b = p.open(), p.open()
    x = frames(2, 2, 12)
    parts = [p.exchange([a], x[:1, :, n : n + 4]) for n in (0, 4)]
    with pytest.raises(InvalidLength, match="'table' goes no further than 8"):
        p.exchange([a, b], x[..., 8:])
    parts.append(p.exchange([b], x[1:, :, :4]))
    close(parts[2].frames, remembered(x[1:])[..., :4])
    a.flush()
    assert p.run()[a].shape == (1, 3, 0)
