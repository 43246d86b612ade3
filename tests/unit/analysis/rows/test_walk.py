"""Rows of known tables, followed like frames: each answer against the table itself, evaluated at many lengths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from pulsify.analysis.proof.numbers import follower
from pulsify.analysis.proof.values import known_at
from pulsify.analysis.questions import Questions
from pulsify.analysis.rows.place import Place
from pulsify.analysis.rows.walk import Rows
from pulsify.lengths.series import LONGEST, Series, Unsure, constant, length_itself, subtract
from tests.attention.build import Array, Builder
from tests.unit.convert.contexts import opened

REACH = 4  # rows asked for on both sides of the middle
LENGTHS = (*range(3, 40), 52, 64, 100, 131, 254)
FREQUENCIES = (0.4 ** np.arange(4)).astype(np.float32)
Make = Callable[[Builder, str], str]  # from the length to a table of 2 T - 1 rows, on its first axis


def asked(make: Make) -> Questions:
    b = Builder(5)
    b.op("Identity", make(b, b.size("x", 1)), called="table")
    b.op("Neg", "x", called="y")
    ports = {"x": ([1, "T", 2], np.float32)}
    shapes = onnx.shape_inference.infer_shapes(b.model(ports, {"y": (3, np.float32)}))
    types = {v.name: v.type.tensor_type for v in (*shapes.graph.value_info, *shapes.graph.output)}
    kind = types["table"]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    return opened(b.model(ports, {"y": (3, np.float32), "table": (len(kind.shape.dim), dtype)})).ask


def middle(reach: int = REACH) -> Place:
    """Rows T - 1 - reach ... T - 1 + reach, as far as they exist."""
    length = length_itself()
    base = subtract(length, constant(1))
    first = Series(np.array([max(n - 1 - reach, 0) for n in range(1, reach + 3)]), reach + 1, base.growth)
    last = Series(np.array([min(n - 1 + reach, 2 * n - 2) for n in range(1, reach + 3)]), reach + 1, base.growth)
    return Place(base, first, last)


def largest_difference(ask: Questions, shortest: int, axis: int = 0) -> float:
    """By how much the rows differ between lengths, beside the largest entry."""
    seen = dict[int, Array]()
    worst = scale = 0.0
    for n in (n for n in LENGTHS if n >= shortest):
        table = known_at(ask, "table", n).array
        for d in range(-REACH, REACH + 1):
            if 0 <= n - 1 + d < table.shape[axis]:
                row = np.asarray(table.take(n - 1 + d, axis), np.float64)
                worst = max(worst, float(np.abs(row - seen.setdefault(d, row)).max()))
                scale = max(scale, float(np.abs(row).max()))
    return worst / max(scale, 1e-9)


def positions(b: Builder, t: str, step: int = -1) -> str:
    """T - 1 ... 1 - T."""
    one = b.scalar(1)
    last = b.op("Sub", t, one)
    return b.op("Range", last, b.op("Neg", t), b.scalar(step))


def count(b: Builder, t: str) -> str:
    """0 ... 2 T - 2."""
    return b.range(b.op("Sub", b.op("Mul", t, b.scalar(2)), b.scalar(1)))


def sinusoids(b: Builder, rows: str, axis: int = 1) -> str:
    angle = b.op("Mul", b.unsqueeze(b.cast(rows, np.float32), axis), b.const(FREQUENCIES))
    return b.op("Concat", b.op("Sin", angle), b.op("Cos", angle), axis=-1)


def difference(b: Builder, t: str) -> str:
    return sinusoids(b, b.op("Sub", count(b, t), b.op("Sub", t, b.scalar(1))))


def joined(b: Builder, t: str) -> str:
    zero, one = b.scalar(0), b.scalar(1)
    down = b.op("Range", b.op("Sub", t, one), zero, b.scalar(-1))
    return sinusoids(b, b.op("Concat", down, b.op("Range", zero, b.op("Neg", t), b.scalar(-1)), axis=0))


def flipped(b: Builder, t: str) -> str:
    low = b.op("Sub", b.scalar(1), t)
    rows = b.op("Range", low, t, b.scalar(1))
    return sinusoids(b, b.slice(rows, 0, b.ints(-1), b.ints(-(2**62)), -1))


def every_other(b: Builder, t: str) -> str:
    twice = b.op("Mul", t, b.scalar(2))
    start = b.op("Sub", twice, b.scalar(2))
    rows = b.op("Range", start, b.op("Sub", b.scalar(1), twice), b.scalar(-1))
    return sinusoids(b, b.slice(rows, 0, b.ints(0), b.ints(2**62), 2))


def buffer_cut(b: Builder, t: str) -> str:
    start = b.vector(b.op("Sub", b.scalar(512), t))
    return b.slice(b.weight(1023, 3), 0, start, b.vector(b.op("Add", t, b.scalar(511))))


def buffer_looked_up(b: Builder, t: str) -> str:
    return b.op("Gather", b.weight(1023, 3), b.op("Add", positions(b, t), b.scalar(511)))


def clamped(b: Builder, t: str) -> str:
    rows = b.op("Clip", positions(b, t), b.scalar(-3), b.scalar(3))
    return b.op("Gather", b.weight(7, 3), b.op("Add", rows, b.scalar(3)))


def compared(b: Builder, t: str) -> str:
    ahead = b.cast(b.op("GreaterOrEqual", count(b, t), b.op("Sub", t, b.scalar(1))), np.int64)
    return sinusoids(b, b.op("Add", b.op("Mul", ahead, b.scalar(3)), positions(b, t)))


def expanded(b: Builder, t: str) -> str:
    angle = b.op("Mul", b.unsqueeze(b.cast(positions(b, t), np.float32), 1), b.const(FREQUENCIES))
    wide = b.op("Expand", b.unsqueeze(angle, 1), b.ints(1, 3, 1))
    return b.op("Sin", wide)


def interleaved(b: Builder, t: str) -> str:
    angle = b.op("Mul", b.unsqueeze(b.cast(positions(b, t), np.float32), 1), b.const(FREQUENCIES))
    pairs = b.op("Concat", *(b.unsqueeze(b.op(k, angle), -1) for k in ("Sin", "Cos")), axis=-1)
    return b.op("MatMul", b.reshape(pairs, -1, 8), b.weight(8, 6))


def heads(b: Builder, t: str) -> str:
    product = b.op("MatMul", b.unsqueeze(difference(b, t), 0), b.weight(8, 8))
    split = b.reshape(product, 1, -1, 2, 4)
    return b.transpose(b.op("Squeeze", split, b.ints(0)), 0, 2, 1)


def normalised(b: Builder, t: str) -> str:
    rows = b.op("LayerNormalization", difference(b, t), b.weight(8), axis=-1)
    return b.op("Sub", b.op("Softmax", rows, axis=-1), b.op("ReduceMean", rows, b.ints(1)))


def einsum(b: Builder, t: str) -> str:
    return b.op("Einsum", difference(b, t), b.weight(8, 2, 3), equation="rd,dhk->rhk")


def gemm(b: Builder, t: str) -> str:
    return b.op("Gemm", difference(b, t), b.weight(3, 8), b.weight(3), transB=1)


def padded(b: Builder, t: str) -> str:
    """T - 1 ... 0, then zeros for what is ahead."""
    rows = b.op("Range", b.op("Sub", t, b.scalar(1)), b.scalar(-1), b.scalar(-1))
    behind = b.vector(b.op("Sub", t, b.scalar(1)))
    return sinusoids(b, b.op("Pad", rows, b.op("Concat", b.ints(0), behind, axis=0), b.scalar(0)))


def convolved(b: Builder, t: str) -> str:
    """A window along the rows, with zeros at both ends."""
    rows = b.unsqueeze(b.transpose(difference(b, t), 1, 0), 0)
    mixed = b.op("Conv", rows, b.weight(4, 8, 3), pads=[1, 1])
    return b.transpose(b.op("Squeeze", mixed, b.ints(0)), 1, 0)


def pooled(b: Builder, t: str) -> str:
    """A row for every two, the middle one of an odd number being there twice."""
    twice = b.op("Sub", b.op("Mul", t, b.scalar(4)), b.scalar(2))
    rows = b.op("Sub", b.range(twice), b.op("Mul", t, b.scalar(2)))
    x = b.unsqueeze(b.transpose(sinusoids(b, rows), 1, 0), 0)
    return b.transpose(b.op("Squeeze", b.op("AveragePool", x, kernel_shape=[2], strides=[2]), b.ints(0)), 1, 0)


def regrouped(b: Builder, t: str) -> str:
    """Twice as many positions, two in a row of the table."""
    twice = b.op("Sub", b.op("Mul", t, b.scalar(4)), b.scalar(2))
    rows = b.op("Sub", b.range(twice), b.op("Mul", t, b.scalar(2)))
    return b.reshape(sinusoids(b, rows), -1, 16)


def counted_from_the_end(b: Builder, t: str) -> str:
    last = b.op("Gather", b.range(t), b.scalar(-1))
    shift = b.op("Sub", last, b.op("Sub", t, b.scalar(1)))
    return sinusoids(b, b.op("Add", positions(b, t), shift))


def picked_rows(b: Builder, t: str) -> str:
    """The rows of one table in the order of another."""
    order = b.op("Sub", b.op("Sub", b.op("Mul", t, b.scalar(2)), b.scalar(2)), count(b, t))
    return b.op("Gather", difference(b, t), order)


def picked_nd(b: Builder, t: str) -> str:
    return b.op("GatherND", b.weight(1023, 3), b.unsqueeze(b.op("Add", positions(b, t), b.scalar(511)), 1))


def kept_below_length(b: Builder, t: str) -> str:
    """Never more than T - 6, which long streams do not come to."""
    return sinusoids(b, b.op("Min", positions(b, t), b.op("Sub", t, b.scalar(6))))


def behind_the_first(b: Builder, t: str) -> str:
    """1 for all rows but the first ten, which long streams do not read."""
    late = b.cast(b.op("Greater", count(b, t), b.scalar(9)), np.int64)
    return sinusoids(b, b.op("Add", positions(b, t), late))


PINNED = [
    kept_below_length, behind_the_first,
    difference, joined, flipped, every_other, buffer_cut, buffer_looked_up, clamped, compared, expanded, interleaved,
    heads, normalised, einsum, gemm, padded, convolved, pooled, regrouped, counted_from_the_end, picked_rows, picked_nd,
]  # fmt: skip


@pytest.mark.parametrize("make", PINNED, ids=lambda make: make.__name__)
def test_rows_by_distance_are_the_same_at_every_length(make: Make) -> None:
    ask = asked(make)
    end = 511 if make in (buffer_cut, buffer_looked_up, picked_nd) else LONGEST  # the buffer ends
    row = Rows(follower(ask), end).pinned("table", 0, middle().before(end))
    assert row.shortest <= 16
    assert largest_difference(ask, row.shortest) < 1e-5


# ---- rows that change


def times_length(b: Builder, t: str) -> str:
    return sinusoids(b, b.op("Mul", positions(b, t), t))


def over_length(b: Builder, t: str) -> str:
    return b.op("Div", b.unsqueeze(b.cast(positions(b, t), np.float32), 1), b.cast(t, np.float32))


def absolute(b: Builder, t: str) -> str:
    return sinusoids(b, count(b, t))


def absolute_buffer(b: Builder, t: str) -> str:
    end = b.vector(b.op("Sub", b.op("Mul", t, b.scalar(2)), b.scalar(1)))
    return b.slice(b.weight(1023, 3), 0, b.ints(0), end)


def absolute_looked_up(b: Builder, t: str) -> str:
    return b.op("Gather", b.weight(1023, 3), count(b, t))


def another_floor(b: Builder, t: str) -> str:
    half = b.op("Div", b.op("Add", t, b.scalar(1)), b.scalar(2))
    start = b.op("Mul", half, b.scalar(2))
    return sinusoids(b, b.op("Sub", start, count(b, t)))


def less_their_last(b: Builder, t: str) -> str:
    rows = b.cast(count(b, t), np.float32)
    return b.unsqueeze(b.op("Sub", rows, b.op("ReduceMax", rows, b.ints(0))), 1)


def not_aligned(b: Builder, t: str) -> str:
    first = b.range(t)
    rest = b.op("Range", t, b.op("Sub", b.op("Mul", t, b.scalar(2)), b.scalar(1)), b.scalar(1))
    return sinusoids(b, b.op("Concat", first, b.op("Sub", rest, t), axis=0))


def modulo(b: Builder, t: str) -> str:
    return sinusoids(b, b.op("Mod", count(b, t), b.scalar(7)))


def off_by_a_remainder(b: Builder, t: str) -> str:
    return sinusoids(b, b.op("Add", positions(b, t), b.op("Mod", t, b.scalar(3))))


def padded_with_length(b: Builder, t: str) -> str:
    rows = b.op("Range", b.op("Sub", t, b.scalar(1)), b.scalar(-1), b.scalar(-1))
    behind = b.vector(b.op("Sub", t, b.scalar(1)))
    return sinusoids(b, b.op("Pad", rows, b.op("Concat", b.ints(0), behind, axis=0), t))


def running_sum(b: Builder, t: str) -> str:
    return sinusoids(b, b.op("CumSum", positions(b, t), b.scalar(0)))


def once(b: Builder, t: str) -> str:
    """Another table at one length."""
    there = b.cast(b.op("Equal", t, b.scalar(100)), np.int64)
    return sinusoids(b, b.op("Add", positions(b, t), there))


CHANGING = [
    times_length, over_length, absolute, absolute_buffer, absolute_looked_up, another_floor, less_their_last,
    not_aligned, modulo, off_by_a_remainder, padded_with_length, running_sum, once,
]  # fmt: skip


@pytest.mark.parametrize("make", CHANGING, ids=lambda make: make.__name__)
def test_rows_that_change_are_not_pinned(make: Make) -> None:
    ask = asked(make)
    with pytest.raises(Unsure) as caught:
        Rows(follower(ask)).pinned("table", 0, middle())
    assert getattr(caught.value, "node", None) is not None
    assert largest_difference(ask, 16) > 1e-3


def test_what_changes_in_short_streams_only_rules_those_out() -> None:
    """An edge T // 2 rows in front of the middle: in short streams rows in front of it are read, too."""

    def far(b: Builder, t: str) -> str:
        half = b.op("Div", t, b.scalar(2))
        end = b.op("Sub", b.op("Mul", t, b.scalar(2)), b.scalar(1))
        rest = b.op("Sub", b.op("Range", half, end, b.scalar(1)), t)
        return sinusoids(b, b.op("Concat", b.range(half), rest, axis=0))

    ask = asked(far)
    row = Rows(follower(ask)).pinned("table", 0, middle())
    assert 1 < row.shortest <= 16
    assert largest_difference(ask, row.shortest) < 1e-5
    assert largest_difference(ask, row.shortest - 1) > 1e-3


def test_floats_that_count_too_far_are_exact_no_longer() -> None:
    """float16 counts to 2,048."""

    def halves(b: Builder, t: str) -> str:
        rows = b.cast(count(b, t), np.float16)
        return b.op("Sub", rows, b.cast(b.op("Sub", t, b.scalar(1)), np.float16))

    row = Rows(follower(asked(halves))).pinned("table", 0, middle())
    assert 1500 < row.limit < 2048


def test_a_row_at_a_fixed_place_is_the_same() -> None:
    five = constant(5)
    row = Rows(follower(asked(absolute))).pinned("table", 0, Place(five, five, five))
    assert not row.moves
    assert row.limit > 2**20


def test_no_product_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = asked(heads)
    follows = follower(ask)
    seen: list[str] = []
    at = follows.at
    monkeypatch.setattr(follows, "at", lambda name, length: (seen.append(name), at(name, length))[1])
    Rows(follows).pinned("table", 0, middle())
    assert not seen
