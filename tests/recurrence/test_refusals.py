"""What reads the future, or the end, is refused by name, beside recurrences that are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pulsify
from tests.recurrence.build import GATES, Builder, Cell
from tests.recurrence.check import check
from tests.recurrence.graphs import AHEAD, GRU, LSTM, RNN, WIDTH, Write, graph

KINDS = pytest.mark.parametrize("cell", [LSTM, GRU, RNN], ids=lambda c: c.op)


def refusal(write: Write, batch: int | str = 1, opset: int = 18, **options: Any) -> pulsify.NotStreamable:
    built = graph(write, batch=batch, opset=opset)()
    with pytest.raises(pulsify.NotStreamable) as caught:
        pulsify.stream(built.model, pulse=4, verify=False, **options)
    assert caught.value.hint
    return caught.value


def behind(bad: Callable[[Builder, str], str]) -> Write:
    """Behind a convolution and a good recurrence, in front of another; [T, B, 3] in and out of `bad`."""

    def write(b: Builder) -> list[str]:
        x = b.conv(b.input("x", b.batch, WIDTH, "T"), AHEAD, WIDTH, WIDTH)
        x = b.merged(b.recurrent(b.transpose(x, 2, 0, 1), GRU, WIDTH, "good"), GRU)
        return [b.recurrent(bad(b, x), GRU, 3, "other")]

    return write


# ---- the future


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("layout", [0, 1])
@KINDS
def test_backwards_over_time(cell: Cell, layout: int, direction: str) -> None:
    wrong = replace(cell, layout=layout, direction=direction)

    def bad(b: Builder, x: str) -> str:
        rows = b.transpose(x, 1, 0, 2) if layout else x
        y = b.merged(b.recurrent(rows, wrong, 3, "wrong"), wrong)
        y = b.transpose(y, 1, 0, 2) if layout else y
        return b.op("MatMul", y, b.weight(3 * wrong.directions, 3))

    error = refusal(behind(bad))
    assert (error.node, error.op) == ("wrong", cell.op)
    assert f"{direction} over time" in error.reason and "forward" in error.hint


@pytest.mark.parametrize("batch", [1, "B"])
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_sums_from_the_end(op: str, exclusive: int, batch: int | str) -> None:
    error = refusal(
        behind(lambda b, x: b.op(op, x, b.scalar(0), reverse=1, exclusive=exclusive, called="wrong")), batch, opset=26
    )
    assert (error.node, error.op) == ("wrong", op)
    assert "from the end" in error.reason and "from the start" in error.hint


def turned_by_slice(b: Builder, x: str) -> str:
    far = -(1 << 40)
    return b.op("Slice", x, b.ints(-1), b.ints(far), b.ints(0), b.ints(-1), called="wrong")


def turned_by_operator(b: Builder, x: str) -> str:
    lengths = b.op("Expand", b.size(x, 0), b.ints(1))
    return b.op("ReverseSequence", x, lengths, batch_axis=1, time_axis=0, called="wrong")


@pytest.mark.parametrize(("bad", "op"), [(turned_by_slice, "Slice"), (turned_by_operator, "ReverseSequence")])
def test_frames_turned_around(bad: Callable[[Builder, str], str], op: str) -> None:
    """A reverse recurrence, written as a forward one of the frames in reverse."""
    error = refusal(behind(bad))
    assert (error.node, error.op) == ("wrong", op)
    assert error.reason


# ---- lengths that are not the stream's


def of_data(b: Builder, x: str) -> str:
    return b.input("valid", b.batch, dtype=np.int32)


def one_less(b: Builder, x: str) -> str:
    return b.cast(b.op("Sub", b.vector(b.size(x, 0)), b.ints(1)), np.int32)


def fixed(b: Builder, x: str) -> str:
    return b.const(np.array([7], np.int32))


def free(b: Builder, x: str) -> str:
    return b.cast(b.input("length", b.batch, dtype=np.int64), np.int32)


@pytest.mark.parametrize(
    ("lengths", "options"),
    [(of_data, {}), (one_less, {}), (fixed, {}), (free, {"bind": {"length": None}})],
    ids=lambda v: getattr(v, "__name__", ""),
)
@KINDS
def test_lengths_of_their_own(cell: Cell, lengths: Callable[[Builder, str], str], options: dict[str, Any]) -> None:
    def bad(b: Builder, x: str) -> str:
        gates = GATES[cell.op] * cell.hidden
        inputs = [x, b.weight(1, gates, 3), b.weight(1, gates, cell.hidden), "", lengths(b, x)]
        b.node(cell.op, inputs, ["wrong"], hidden_size=cell.hidden)
        return b.merged("wrong", cell)

    error = refusal(behind(bad), **options)
    assert (error.node, error.op) == ("wrong", cell.op)
    assert "sequence lengths" in error.reason and "length" in error.hint


# ---- the end


def starts_at_the_end(b: Builder, x: str) -> str:
    """An encoder's final state is where the decoder starts."""
    w, r = b.weight(1, 9, 3), b.weight(1, 9, 3)
    b.node("GRU", [x, w, r, "", "", "good_h"], ["wrong"], hidden_size=3)
    return b.op("Squeeze", "wrong", b.ints(1))


def adds_the_end(b: Builder, x: str) -> str:
    return b.op("Add", x, "good_h", called="wrong")


def starts_at_a_frame(b: Builder, x: str) -> str:
    w, r = b.weight(1, 9, 3), b.weight(1, 9, 3)
    b.node("GRU", [x, w, r, "", "", b.slice(x, 0, b.ints(-1), b.ints(1 << 40))], ["wrong"], hidden_size=3)
    return b.op("Squeeze", "wrong", b.ints(1))


def divides_by_the_length(b: Builder, x: str) -> str:
    total = b.op("CumSum", x, b.scalar(0))
    return b.op("Div", total, b.cast(b.size(x, 0), np.float32), called="wrong")


@pytest.mark.parametrize(
    ("bad", "op"),
    [(starts_at_the_end, "GRU"), (adds_the_end, "Add"), (starts_at_a_frame, "GRU"), (divides_by_the_length, "Div")],
)
@pytest.mark.parametrize("batch", [1, "B"])
def test_known_at_the_end_only(bad: Callable[[Builder, str], str], op: str, batch: int | str) -> None:
    """Final states, single frames and the total length are no values that a frame can wait for."""
    error = refusal(behind(bad), batch)
    assert (error.node, error.op) == ("wrong", op)
    assert error.reason


def test_sum_along_a_given_axis() -> None:
    error = refusal(behind(lambda b, x: b.op("CumSum", x, b.input("axis", dtype=np.int64), called="wrong")))
    assert (error.node, error.op) == ("wrong", "CumSum")
    assert "axis" in error.reason


# ---- folded


def over_all_streams(op: str) -> Write:
    """[B, T, C] as [B*T, C]: what follows goes on from stream to stream."""

    def write(b: Builder) -> Sequence[str]:
        x = b.reshape(b.input("x", b.batch, "T", WIDTH), -1, WIDTH)
        if op == "CumSum":
            return [b.op("CumSum", x, b.scalar(0), called="wrong")]
        b.recurrent(b.unsqueeze(x, 1), GRU, WIDTH, "wrong")
        return ["wrong"]

    return write


@pytest.mark.parametrize("op", ["CumSum", "GRU"])
def test_over_time_folded_into_the_batch(op: str) -> None:
    """With one stream nothing is folded, and it is exact; with several, one reads all of the one before."""
    assert check(graph(over_all_streams(op))(), 3).outputs[0].delay == 0
    error = refusal(over_all_streams(op), batch="B")
    assert (error.node, error.op) == ("wrong", op)
    assert "merged with another axis" in error.reason and "plain time axis" in error.hint
