"""One stream of a pool: what it takes, when it has a pulse, where it ends, and who may use it."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.backends.ort.backend import BACKEND
from pulsify.backends.seam import Executable, Options
from pulsify.core.errors import InvalidChunk, InvalidLength, InvalidState, SessionBusy, SessionClosed
from pulsify.core.spec import Spec
from pulsify.runtime.lane import Lane
from pulsify.runtime.pool import Pool
from tests.models import Array, close, frames
from tests.unit.specs import remembered, remembers


class Source:
    """What a pool needs of a stream: three frames a convolution, four a pulse."""

    def __init__(self, **fields: Any) -> None:
        self.model, spec = remembers("B")
        self.spec = Spec(**{**vars(spec), **fields})

    def pooled(self, backend: str, portable: bool, fuse_quantised: bool, threads: int, own: Any = None) -> Executable:
        return BACKEND.compile(BACKEND.lower(self.model, self.spec, None), self.spec, Options())


SOURCE = Source()
OPENED = SOURCE.pooled("ort", False, True, 1)


def pool(most: int = 3, **options: Any) -> Pool:
    source = Source()
    source.pooled = lambda *args: OPENED  # type: ignore[method-assign]
    return Pool(source, most, **options)


def drained(p: Pool, *lanes: Lane) -> list[Array]:
    """What comes out of each; nothing is an array without frames."""
    out = p.run()
    return [out.get(lane, np.zeros((1, 3, 0), np.float32)) for lane in lanes]


# ---- frames


@given(lengths=st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=3), together=st.booleans())
@settings(max_examples=40, deadline=None)
def test_lanes_of_ragged_lengths_are_each_their_stream(lengths: list[list[int]], together: bool) -> None:
    """Pushed chunk by chunk in turn, the pool run after every round or only at the end."""
    p = pool()
    lanes = [p.open() for _ in lengths]
    data = [frames(1, 2, sum(sizes), seed=i) for i, sizes in enumerate(lengths)]
    parts: list[list[Array]] = [[] for _ in lengths]
    for turn in range(max(map(len, lengths))):
        for lane, x, sizes in zip(lanes, data, lengths, strict=True):
            if turn < len(sizes):
                at = sum(sizes[:turn])
                lane.push(x[..., at : at + sizes[turn]])
        if not together:
            for own, out in zip(parts, drained(p, *lanes), strict=True):
                own.append(out)
    for lane in lanes:
        lane.flush()
    for own, out in zip(parts, drained(p, *lanes), strict=True):
        own.append(out)
    for x, own in zip(data, parts, strict=True):
        close(np.concatenate(own, 2), remembered(x))
    assert len(p) == 0, "flushed streams are closed"


def test_nothing_is_computed_before_the_pool_runs_and_less_than_a_pulse_waits() -> None:
    p = pool()
    lane = p.open()
    lane.push(frames(1, 2, 3))
    assert p.run() == {}
    lane.push(frames(1, 2, 1))
    assert list(p.run()) == [lane]


def test_a_chunk_is_copied_when_it_is_pushed() -> None:
    p, x = pool(), frames(1, 2, 4)
    for size in (4, 2):  # straight into the model, and in pieces
        lane, chunk = p.open(), x.copy()
        for at in range(0, 4, size):
            lane.push(chunk[..., at : at + size])
        chunk[...] = 0
        close(drained(p, lane)[0], remembered(x))


def test_whole_pulses_pushed_while_others_wait_keep_their_order() -> None:
    p, x = pool(), frames(1, 2, 16)
    lane = p.open()
    for n in range(4):
        lane.push(x[..., 4 * n : 4 * n + 4])
    close(drained(p, lane)[0], remembered(x))


def test_empty_pushes_change_nothing() -> None:
    p, x = pool(), frames(1, 2, 4)
    lane = p.open()
    for chunk in (x[..., :0], x, x[..., :0]):
        lane.push(chunk)
    lane.push()
    close(drained(p, lane)[0], remembered(x))
    assert p.run() == {}


def test_a_stream_without_a_frame_ends_without_one() -> None:
    p = pool()
    lane = p.open()
    lane.push(frames(1, 2, 0))
    lane.flush()
    assert p.run()[lane].shape == (1, 3, 0) and lane.closed


# ---- what is turned down


@pytest.mark.parametrize(
    "chunk",
    [np.zeros((1, 2, 4)), np.zeros((1, 3, 4), np.float32), np.full((1, 2, 4), np.nan, np.float32), {"z": np.zeros(1)}],
)
def test_a_chunk_that_is_refused_takes_nothing(chunk: Any) -> None:
    p, x = pool(), frames(1, 2, 8)
    lane = p.open()
    lane.push(x[..., :4])
    for refuse in (lane.push, lambda c: lane.check(c if isinstance(c, dict) else {"x": c})):
        with pytest.raises(InvalidChunk):
            refuse(chunk)
    lane.push(x[..., 4:])
    close(drained(p, lane)[0], remembered(x))


def test_an_end_that_is_none_ends_nothing() -> None:
    source = Source(shortest=6)
    p = Pool(source, 1)
    lane = p.open()
    lane.push(frames(1, 2, 5))
    for refuse in (lane.flush, lane.check_end):
        with pytest.raises(InvalidLength, match="at least 6"):
            refuse()
    assert lane.live
    lane.push(frames(1, 2, 1))
    lane.flush()
    assert p.run()[lane].shape == (1, 3, 6)


def test_a_flushed_stream_takes_nothing_until_it_is_reset() -> None:
    p, x = pool(), frames(1, 2, 6)
    lane = p.open()
    lane.push(x)
    lane.flush()
    assert not lane.live and "flushed" in repr(lane)
    for refuse in (lambda: lane.push(x), lane.flush, lane.state):
        with pytest.raises(SessionClosed, match="has been flushed"):
            refuse()
    lane.reset()
    assert lane.live
    lane.push(x)
    lane.flush()
    close(drained(p, lane)[0], remembered(x))


def test_a_closed_lane_gives_its_place_back_and_says_so() -> None:
    p = pool(1)
    lane = p.open()
    lane.push(frames(1, 2, 4))
    lane.close()
    lane.close()
    assert p.run() == {} and len(p) == 0 and "closed" in repr(lane)
    for refuse in (lambda: lane.push(frames(1, 2, 4)), lane.reset, lambda: lane.restore(b"")):
        with pytest.raises(SessionClosed, match="this stream is closed"):
            refuse()
    assert p.open().slot == lane.slot


def test_a_lane_that_is_dropped_gives_its_place_back() -> None:
    p = pool(1)
    lane = p.open()
    lane.push(frames(1, 2, 4))
    p.run()
    del lane
    gc.collect()
    assert len(p) == 0 and p.open().live


# ---- moving on


@pytest.mark.parametrize("cut", [0, 3, 4, 6, 8])
def test_a_stream_goes_on_elsewhere_from_its_state(cut: int) -> None:
    """With frames that wait in line, in the model's input, or not at all."""
    p, x = pool(), frames(1, 2, 11)
    one = p.open()
    one.push(x[..., :cut])
    blob = one.state()
    other = p.open()
    other.push(frames(1, 2, 5, seed=9))  # forgotten
    other.restore(blob)
    third = one.fork()
    for lane in (one, other, third):
        lane.push(x[..., cut:])
        lane.flush()
    for out in drained(p, one, other, third):
        close(out, remembered(x))


def test_a_state_of_something_else_changes_nothing() -> None:
    p, x = pool(), frames(1, 2, 8)
    lane = p.open()
    lane.push(x[..., :6])
    with pytest.raises(InvalidState):
        lane.restore(b"nothing")
    lane.push(x[..., 6:])
    close(drained(p, lane)[0], remembered(x))


def test_a_fork_needs_a_place() -> None:
    p = pool(1)
    lane = p.open()
    with pytest.raises(ValueError, match="all 1 streams of this pool are open"):
        lane.fork()
    assert lane.live


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_lane_is_neither_copied_nor_pickled(way: Any) -> None:
    lane = pool().open()
    with pytest.raises(TypeError, match=r"fork\(\)|state\(\)"):
        way(lane)


# ---- threads


def test_two_threads_in_one_lane_are_told() -> None:
    lane = pool().open()
    caught: list[Exception] = []

    def meddle() -> None:
        for call in (lambda: lane.push(frames(1, 2, 4)), lane.flush):
            try:
                call()
            except SessionBusy as error:
                caught.append(error)

    lane._users[0] = threading.get_ident()  # in the middle of a push
    other = threading.Thread(target=meddle)
    other.start()
    other.join()
    del lane._users[0]
    assert len(caught) == 2
    lane.push(frames(1, 2, 4))
    assert lane.live


def test_threads_that_push_to_lanes_of_their_own_do_not_wait_for_each_other() -> None:
    p = pool(3)
    lanes = [p.open() for _ in range(3)]
    data = [frames(1, 2, 40, seed=i) for i in range(3)]

    def feed(lane: Lane, x: Array) -> None:
        for piece in np.split(x, 8, -1):
            lane.push(piece)

    threads = [threading.Thread(target=feed, args=pair) for pair in zip(lanes, data, strict=True)]
    for thread in threads:
        thread.start()
    parts: Sequence[list[Array]] = [[] for _ in lanes]
    while any(t.is_alive() for t in threads) or p._ready:
        for own, out in zip(parts, drained(p, *lanes), strict=True):
            own.append(out)
    for x, own in zip(data, parts, strict=True):
        close(np.concatenate(own, 2), remembered(x))


def test_a_lane_says_how_far_it_is() -> None:
    lane = pool().open()
    lane.push(frames(1, 2, 7))
    assert repr(lane) == "<pulsify.Lane 0 [x: 7 frames in] open>"
