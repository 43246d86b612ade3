"""More graphs that streamed wrong without an error: sizes that settle late, functions as the runtime has them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.proof.judge import judge
from tests.proof.net import Net, Wire
from tests.proof.test_hunted import LARGE, back
from tests.selection import rotated

Make = Callable[[Net], Wire]
LATE = [499, 500, 510]
REPEATS = [49, 50, 51, 147]
CAPPED = [100, 999, 1001, 1004, 1005]
SHORT = [1, 2, 3, 5, 9, 10, 11, 49, 50, 51]


def late(n: Net) -> Wire:
    """T, or one less from 500 on."""
    return n.T - (n.T >= 500).int()


def at_times(n: Net) -> Wire:
    """T, or one less where T % 97 is 50."""
    return n.T - (n.T % 97 == 50).int()


def ones(n: Net, size: Wire) -> Wire:
    return n.op("ReduceSum", n.filled(1, size), [0], keepdims=0)


def padded(n: Net, size: Wire) -> Wire:
    return n.op("Pad", n.filled(1, size), [0, 1], n.const(0), mode="constant").cut(0, n.T)


def reduced(n: Net, op: str, value: Wire) -> Wire:
    return n.op(op, value, [0], keepdims=0)


def masked(n: Net, keep: Wire) -> Wire:
    return n.attend(n.near() & (keep.new(0) == 1))


def frames(n: Net, part: Wire, axis: int = 2) -> Wire:
    return n.op("Shape", part).take(axis)


def few(n: Net) -> Wire:
    return frames(n, n.x.cut(0, n.where(n.T > 1000, 3, 1)))


def parts(n: Net) -> Wire:
    a = n.where(n.T > 1000, 1, 2)
    made: Wire = n.op("Split", n.const([1.0, 2.0, 3.0]), n.vector(a, 3 - a), outputs=2, axis=0)[0]
    return made


def split_data(n: Net) -> Wire:
    a = n.where(n.T > 1000, 1, 2)
    part = n.op("Split", n.op("Concat", n.x, n.x, axis=1), n.vector(a, 4 - a), outputs=2, axis=1)[0]
    return n.x * frames(n, part, 1).float()


def dropped(n: Net) -> Wire:
    _, mask = n.op("Dropout", n.op("Expand", n.const(np.zeros(1, np.float32)), n.vector(n.T)), outputs=2)
    mask.kind = "b"
    return back(n, mask.int() * n.pos > 100)


def no_zero(n: Net) -> Wire:
    one = (n.pos.float() + LARGE) - (n.pos.float() + (LARGE - 1))  # or 0, or 2, by rounding
    return n.x.cut(0, n.op("Shape", n.op("NonZero", one)).take(1))


def low_far_out(n: Net) -> Wire:
    i, j = n.grid()
    d = i - j
    shown = (d >= 0) & (d <= 8) | (d >= 500) & (d <= 503)
    h = n.op("Cos", d.float()) + n.where(shown, 0.0, 12.0)
    return n.attend(None, n.where(j <= i, -n.op("Exp", h), -1e9))


def sigmoid_mask(n: Net) -> Wire:
    i, j = n.grid()
    q = n.x.by(0, 2, 1)
    seen = (n.op("Sigmoid", (j - i).float()) > 1e-9) | (i - j == 25)
    s = n.where(seen, (q @ n.x) * 0.02, -1e9)
    return n.op("Softmax", n.where(n.near(25), s, -1e9), axis=-1) @ q


def sigmoid_tail(n: Net) -> Wire:
    s = n.op("Sigmoid", -n.T.float())
    return n.twice_if((s > float(np.exp(-20.5))) == (n.T <= 20))


def backwards(n: Net) -> Wire:
    k = frames(n, n.pos.cut(-10, -(1 << 40), 0, -1), 0)
    return n.twice_if((k == 1) & (n.T < 10))


def powers(n: Net) -> Wire:
    k = n.op("Pow", n.const(94906267) + n.T % 2 - n.T % 2, n.const(2))
    return n.twice_if(k == 94906267 * 94906267)


def bent_power(n: Net) -> Wire:
    return n.twice_if(n.op("Pow", n.op("Log", n.T.float()) - 5.0, 2.0) < 1.0)


def kernels(n: Net) -> Wire:
    k = n.filled(1.0, n.where(n.T > 1000, 3, 2), 2, 1)
    return n.x * frames(n, n.op("Conv", n.x, k), 1).float()


def reshaped(special: int) -> Make:
    def make(n: Net) -> Wire:
        p = n.op("Reshape", n.pos, n.vector(n.where(n.T == 500, special, n.T)))
        return n.pad(n.x, 0, n.T - frames(n, p, 0))

    return make


def wrapped(n: Net) -> Wire:
    v = n.range(0, n.T + (n.T >= 500).int(), 1) < n.T
    return n.twice_if(v.take(n.where(n.T > 3, -1, 0), 0))


def wrapped_and_capped(n: Net) -> Wire:
    v = (n.range(0, n.T, 1) < 1003).cut(0, 1000)
    return n.twice_if((n.T - v.int().take(n.where(n.T > 3, -1, 0), 0)) > 1001)


FOUND: dict[str, tuple[Make, list[int]]] = {
    "pad_behind_a_size_that_repeats": (lambda n: masked(n, padded(n, at_times(n))), REPEATS),
    "concat_behind_a_size_that_repeats": (
        lambda n: masked(n, n.op("Concat", n.filled(1, at_times(n)), n.const([0]), axis=0).cut(0, n.T)), REPEATS
    ),
    "pad_behind_a_size_that_settles": (lambda n: masked(n, padded(n, late(n))), LATE),
    "wrapped_around_a_size_that_settles": (wrapped, LATE),
    "maximum_over_a_size_that_settles": (
        lambda n: n.twice_if(reduced(n, "ReduceMax", n.range(0, late(n), 1)) == n.T - 1), LATE
    ),
    "minimum_over_a_size_that_settles": (
        lambda n: n.twice_if(reduced(n, "ReduceMin", n.T - n.range(0, late(n), 1)) == 1), LATE
    ),
    "mask_over_a_size_that_settles": (
        lambda n: n.twice_if(reduced(n, "ReduceMax", (n.range(0, late(n), 1) == n.T - 1).int()) == 1), LATE
    ),
    "sum_over_a_size_that_settles": (lambda n: n.twice_if(ones(n, late(n)) == n.T), LATE),
    "sum_over_a_size_that_repeats": (lambda n: n.twice_if(ones(n, at_times(n)) == n.T), REPEATS),
    "cut_by_such_a_sum": (lambda n: n.x.cut(0, ones(n, late(n))), LATE),
    "pad_by_such_a_sum": (lambda n: n.pad(n.x, 0, n.T - ones(n, late(n))), LATE),
    "branch_by_such_a_sum": (
        lambda n: n.choose(ones(n, late(n)) == n.T, lambda m: m.here(n.x) * 1.0, lambda m: m.here(n.x) * 3.0), LATE
    ),
    "loop_by_such_a_sum": (lambda n: n.repeat(1 + n.T - ones(n, late(n)), n.x, lambda m, v: v * 2.0), LATE),
    "size_jumps": (
        lambda n: n.twice_if(
            n.T - reduced(n, "ReduceMax", n.range(0, n.where(n.T > 1000, n.T + 50, n.T), 1)) < 0
        ), [999, 1000, 1001],
    ),
    "last_of_a_late_running_sum": (
        lambda n: n.x * n.op("CumSum", n.filled(1.0, n.most(n.T - 1000, 1)), 0).take(-1), [999, 1001, 1010]
    ),
    "capped_maximum": (lambda n: n.twice_if(n.T - reduced(n, "ReduceMax", n.pos.cut(0, 1000)) > 5), CAPPED),
    "capped_minimum": (lambda n: n.twice_if(reduced(n, "ReduceMin", n.T - n.pos.cut(0, 1000)) > 3), CAPPED),
    "capped_sum": (
        lambda n: n.twice_if(n.T - reduced(n, "ReduceSum", n.filled(1, n.T).cut(0, 1000)) > 5), [*CAPPED, 1006, 1010]
    ),
    "capped_any": (
        lambda n: n.twice_if(reduced(n, "ReduceMax", (n.pos > n.T - 5).int().cut(0, 1000)) > 0), CAPPED
    ),
    "capped_as_amount": (lambda n: n.pad(n.x, 0, n.T - ones(n, n.least(n.T, 1000))), CAPPED),
    "capped_and_wrapped": (wrapped_and_capped, [999, 1000, 1001, 1002, 1003, 1010]),
    "nonzero_of_rounded": (no_zero, [100, 999, 1001, 1004]),
    "dropout_mask": (dropped, [90, 105]),
    "expand_of_one_frame": (
        lambda n: n.x + n.op("Expand", n.pos, n.vector(n.where(n.T == 1, 5, 1))).float(), [1, 2, 100]
    ),
    "log_of_less_than_nothing": (lambda n: n.twice_if(n.op("Log", n.T.float() - 100.0) < 2.0), [50, 99, 100, 107, 108]),
    "root_of_less_than_nothing": (
        lambda n: n.pad(n.x, 0, (n.op("Sqrt", n.T.float() - 100.0) < 5.0).int()), [50, 99, 100, 105, 125]
    ),
    "power_of_a_curve_through_zero": (bent_power, [5, 54, 55, 148, 403, 404, 500]),
    "reshape_to_minus_one_once": (reshaped(-1), LATE),
    "reshape_to_zero_once": (reshaped(0), LATE),
    "split_sizes": (lambda n: n.x * frames(n, parts(n), 0).float(), [1000, 1001]),
    "split_entries": (lambda n: n.x * n.op("ReduceSum", parts(n), keepdims=0), [1000, 1001]),
    "split_of_data": (split_data, [1000, 1001]),
    "shape_of_a_prefix": (lambda n: n.x * frames(n, n.x.cut(0, 50)).float(), SHORT),
    "shape_changes_late": (lambda n: n.x * few(n).float(), [100, 1000, 1001]),
    "shape_of_channels": (kernels, [100, 1000, 1001]),
    "branch_by_a_shape": (
        lambda n: n.choose(few(n) == 1, lambda m: m.here(n.x) * 1.0, lambda m: m.here(n.x) * 2.0), [100, 1000, 1001]
    ),
    "loop_by_a_shape": (lambda n: n.repeat(frames(n, n.x.cut(-5)), n.x, lambda m, v: v * 2.0), SHORT),
    "nothing_left": (lambda n: n.twice_if((ones(n, frames(n, n.x.cut(10))) == 0) & (n.T <= 10)), SHORT),
    "backwards_from_before_the_start": (backwards, SHORT),
    "sigmoid_tail": (sigmoid_tail, [10, 17, 18, 20, 21, 30]),
    "sigmoid_mask": (sigmoid_mask, [10, 100]),
    "power_of_whole_numbers": (powers, [1, 2, 3]),
    "low_far_out": (low_far_out, [100, 480, 600]),
}  # fmt: skip


@pytest.mark.parametrize("name", rotated(FOUND, 2))
def test_never_wrong_again(name: str) -> None:
    make, lengths = FOUND[name]
    net = Net()
    made = judge(net.model(make(net)), 4, lengths)
    assert made.kind in ("exact", "refused"), made
