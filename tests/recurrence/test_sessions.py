"""Recurrent state in sessions: taken, restored, forked, started anew, and for several streams at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

import pulsify
from tests.attention.build import Array
from tests.attention.check import TOLERANCE, Batch
from tests.property.check import collect, difference
from tests.recurrence.build import STREAMS, Built, Cell
from tests.recurrence.check import frames, joined, open_session, run_stream
from tests.recurrence.graphs import AHEAD, CASES, CENTRE, DUAL_PATH, GRU, LSTM, MIXED, PREFIX, RNN, Case, stacked

TOTAL, PULSE = 29, 4
GRAPHS: dict[str, Callable[[], Built]] = {
    "LSTM": partial(stacked, Case(LSTM, front=CENTRE, finals=True)),
    "static": partial(stacked, CASES["LSTM_static"]),
    "computed": partial(stacked, CASES["GRU_computed"]),
    "three_streams": partial(stacked, Case((RNN, LSTM), front=AHEAD, finals=True, batch="B")),
    "static_streams": partial(stacked, Case(Cell("GRU", initial="static"), front=AHEAD, finals=True, batch="B")),
    "dual_path": DUAL_PATH["two_blocks"],
    "dual_path_streams": DUAL_PATH["LSTM_bidirectional_B"],
    "layer_norm": PREFIX["layer_norm_ahead"],
    "product": PREFIX["product_exclusive_ahead"],
    "linear_attention": PREFIX["linear_attention_ahead"],
    "strides": MIXED["down_and_transposed"],
    "attention": MIXED["beside_attention_batch"],
}
EACH = pytest.mark.parametrize("name", GRAPHS)


@cache
def opened(name: str) -> tuple[Built, pulsify.Stream]:
    built = GRAPHS[name]()
    return built, pulsify.stream(built.model, pulse=PULSE, verify=False)


def other_end(built: Built, feeds: dict[str, Array], at: int, total: int) -> dict[str, Array]:
    """The same up to frame `at` and in all static inputs; other frames behind, `total` in all."""
    fresh = built.feeds(total + 100)  # another length, other numbers
    both = {
        n: np.concatenate([np.take(feeds[n], range(at), axis), np.take(fresh[n], range(at, total), axis)], axis)
        for n, axis in built.streamed.items()
    }
    return feeds | both


class Run:
    """A session and what has come out of it."""

    def __init__(self, built: Built, stream: pulsify.Stream, feeds: dict[str, Array]) -> None:
        self.built, self.stream, self.feeds = built, stream, feeds
        self.session = open_session(stream, built, feeds)
        self.parts: dict[str, list[Array]] = {o.name: [] for o in stream.outputs}

    def push(self, start: int, end: int) -> None:
        collect(self.parts, self.session.push(frames(self.built, self.feeds, start, end)))

    def check(self) -> None:
        """Ends the stream: is all that came out what batch says?"""
        collect(self.parts, self.session.flush())
        got, wanted = joined(self.stream, self.parts), Batch(self.built.reference).run(self.feeds)
        for o in self.stream.outputs:
            assert not difference(got[o.name], wanted[o.name], o.axis, TOLERANCE), o.name


@pytest.mark.parametrize("at", [0, 1, 6, 8, 17])
@EACH
def test_fork(name: str, at: int) -> None:
    """One state in two sessions: they go on in turns, each with frames and an end of its own."""
    built, stream = opened(name)
    feeds = built.feeds(TOTAL)
    one, two = Run(built, stream, feeds), Run(built, stream, other_end(built, feeds, at, TOTAL + 5))
    one.push(0, at // 2)
    one.push(at // 2, at)
    two.push(0, 3)  # whatever the second has read before
    two.session.restore(one.session.state())
    two.parts = {n: list(p) for n, p in one.parts.items()}
    for start in range(at, TOTAL + 5, 3):
        one.push(min(start, TOTAL), min(start + 3, TOTAL))
        two.push(start, min(start + 3, TOTAL + 5))
    one.check()
    two.check()


@EACH
def test_go_back(name: str) -> None:
    """A session restores a state of its own and reads other frames from there."""
    built, stream = opened(name)
    feeds = built.feeds(TOTAL)
    run = Run(built, stream, feeds)
    run.push(0, 11)
    blob, kept = run.session.state(), {n: list(p) for n, p in run.parts.items()}
    run.push(11, TOTAL)
    run.session.flush()
    run.session.restore(blob)
    run.parts, run.feeds = kept, other_end(built, feeds, 11, TOTAL)
    run.push(11, TOTAL)
    run.check()


@EACH
def test_reset_starts_from_the_initial_state(name: str) -> None:
    built, stream = opened(name)
    run = Run(built, stream, built.feeds(TOTAL))
    run.push(5, 22)
    run.session.reset()
    run.parts = {n: [] for n in run.parts}
    run.push(0, TOTAL)
    run.check()


@pytest.mark.parametrize("name", [n for n in GRAPHS if n.endswith("streams")])
def test_streams_do_not_mix(name: str) -> None:
    """Each of three streams is what it is alone."""
    built, stream = opened(name)
    feeds = built.feeds(TOTAL)
    together = run_stream(stream, built, feeds, [7, 0, 15, 7])
    batch_axis = {o.name: o.batch_axis if o.axis is not None else 1 for o in stream.outputs}
    for i in range(STREAMS):
        own = {n: np.take(x, [i], 0 if n in built.streamed else 1) for n, x in feeds.items()}
        session = stream.session(batch=1, statics={n: own[n] for n in built.statics})
        parts: dict[str, list[Array]] = {o.name: [] for o in stream.outputs}
        collect(parts, session.push(frames(built, own, 0, TOTAL)))
        collect(parts, session.flush())
        for o_name, alone in joined(stream, parts).items():
            same = np.take(together[o_name], [i], batch_axis[o_name])
            np.testing.assert_allclose(same, alone, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("cell", [LSTM, GRU, RNN], ids=lambda c: c.op)
def test_final_states_begin_the_next_stream(cell: Cell) -> None:
    """A recording in two streams, the second one begun where the first has ended, is the recording in one."""
    built = stacked(Case(Cell(cell.op, initial="static"), raw=True, finals=True))
    stream, feeds = pulsify.stream(built.model, pulse=PULSE, verify=False), built.feeds(TOTAL)
    wanted = Batch(built.reference).run(feeds)
    first = run_stream(stream, built, frames(built, feeds, 0, 13) | {n: feeds[n] for n in built.statics}, [13])
    begun = {n: first[n.removesuffix("0")] for n in built.statics}
    second = run_stream(stream, built, frames(built, feeds, 13, TOTAL) | begun, [5, 11])
    assert not difference(np.concatenate([first["r0"], second["r0"]]), wanted["r0"], 0, TOLERANCE)
    for final in first.keys() - {"r0"}:
        assert not difference(second[final], wanted[final], None, TOLERANCE)


def test_state_goes_with_the_file(tmp_path: Path) -> None:
    """A stream saved and loaded elsewhere goes on where the first one was."""
    built, stream = opened("computed")
    stream.save(tmp_path / "stream.onnx")
    feeds = built.feeds(TOTAL)
    run = Run(built, stream, feeds)
    run.push(0, 10)
    elsewhere = Run(built, pulsify.load(tmp_path / "stream.onnx"), feeds)
    elsewhere.session.restore(run.session.state())
    elsewhere.parts = run.parts
    elsewhere.push(10, TOTAL)
    elsewhere.check()


def test_state_of_another_number_of_streams() -> None:
    built, stream = opened("three_streams")
    three = open_session(stream, built, built.feeds(9))
    with pytest.raises(pulsify.InvalidState, match=f"batch={STREAMS}"):
        stream.session(batch=2).restore(three.state())
