"""The written set, exact from the first frame to the last at ragged lengths, and as early as without recurrences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.core.runner import open_model
from tests.recurrence.build import Built, Cell, Window
from tests.recurrence.check import check, frames, open_session
from tests.recurrence.graphs import CASES, DUAL_PATH, ENDS, GRU, LSTM, MIXED, PREFIX, RNN, Case, stacked
from tests.selection import turns

KINDS = pytest.mark.parametrize("cell", [LSTM, GRU, RNN], ids=lambda c: c.op)


@cache
def bare_delay(front: Window | None, back: Window | None, pulse: int) -> int:
    """Of the same model without its recurrences."""
    bare = stacked(Case((), front=front, back=back))
    return pulsify.stream(bare.model, pulse=pulse, verify=False).outputs[0].delay


def in_turn(things: Mapping[str, Any]) -> list[Any]:
    """Each at two pulses, in granules: an odd one that few delays are a multiple of, and one frame or many."""
    listed = enumerate(things.items())
    return [pytest.param(t, (3, (1, 8, 2)[i % 3]), id=n, marks=turns(i // 3, 2)) for i, (n, t) in listed]


@pytest.mark.parametrize(("case", "pulses"), in_turn(CASES))
def test_recurrences(case: Case, pulses: tuple[int, ...]) -> None:
    built = stacked(case)
    for factor in pulses:
        stream = check(built, factor)
        if not case.alone:
            assert stream.outputs[0].delay == bare_delay(case.front, case.back, stream.pulse)


def check_at(built: Built, pulses: tuple[int, ...]) -> None:
    for factor in pulses:
        check(built, factor)


@pytest.mark.parametrize(("graph", "pulses"), in_turn(ENDS))
def test_frames_added_and_cut(graph: Callable[[], Built], pulses: tuple[int, ...]) -> None:
    check_at(graph(), pulses)


@pytest.mark.parametrize(("graph", "pulses"), in_turn(DUAL_PATH))
def test_dual_path(graph: Callable[[], Built], pulses: tuple[int, ...]) -> None:
    check_at(graph(), pulses)


@pytest.mark.parametrize(("graph", "pulses"), in_turn(PREFIX))
def test_prefix(graph: Callable[[], Built], pulses: tuple[int, ...]) -> None:
    check_at(graph(), pulses)


@pytest.mark.parametrize(("graph", "pulses"), in_turn(MIXED))
def test_mixed(graph: Callable[[], Built], pulses: tuple[int, ...]) -> None:
    check_at(graph(), pulses)


@pytest.mark.parametrize(
    ("cell", "kernel"),
    [*((LSTM, k) for k in (2, 3, 4, 5, 6)), (GRU, 3), (GRU, 6), (RNN, 4), (RNN, 5)],
    ids=lambda v: v.op if isinstance(v, Cell) else None,
)
def test_no_latency_of_its_own(cell: Cell, kernel: int) -> None:
    """Behind any look-ahead, a multiple of the pulse or not."""
    ahead = kernel - 1
    case = Case(cell, front=Window(kernel, 0, ahead), finals=True)
    built = stacked(case)
    for pulse in (1, 2, 3, 4, 5, 8):
        stream = check(built, pulse, [1, pulse, 3 * pulse + ahead + 1])
        assert stream.outputs[0].delay == bare_delay(case.front, None, pulse) == ahead


@pytest.mark.parametrize("case", [Case(LSTM, raw=True, alone=True), Case(GRU, finals=True), Case(RNN)], ids=str)
def test_final_states_come_at_the_end(case: Case) -> None:
    """No push gives one, flush gives all."""
    built = stacked(case)
    stream, feeds = pulsify.stream(built.model, pulse=4, verify=False), built.feeds(11)
    session = open_session(stream, built, feeds)
    names = {o.name for o in stream.outputs}
    finals = {o.name for o in stream.outputs if o.axis is None}
    assert finals == {n for n in names if n.endswith(("_h", "_c"))}
    for start, end in ((0, 0), (0, 9), (9, 11)):
        assert given(session.push(frames(built, feeds, start, end)), names) == names - finals
    assert given(session.flush(), names) == names


def given(result: object, names: set[str]) -> set[str]:
    """The outputs in a result; one of a model with a single output has no name."""
    if isinstance(result, dict):
        return set(result)
    return names if isinstance(result, np.ndarray) else set()


@KINDS
def test_state_is_one_frame(cell: Cell) -> None:
    """What is carried is h and c, however long the pulse."""
    built = stacked(Case(cell, raw=True))
    sizes = {pulsify.stream(built.model, pulse=p, verify=False).state_bytes for p in (1, 4, 32)}
    assert sizes == {4 * cell.hidden * (2 if cell is LSTM else 1)}


@pytest.mark.parametrize("name", ["GRU_layout_1", "LSTM_layout_1", "RNN_layout_1"])
def test_onnx_runtime_does_not_run_layout_1(name: str) -> None:
    """Once it does, these models can be their own reference."""
    built = stacked(CASES[name])
    with pytest.raises(Exception, match=r"layout == 1.*not supported"):
        open_model(built.model)
    assert open_model(built.reference).get_outputs()
