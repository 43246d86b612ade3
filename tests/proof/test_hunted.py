"""Graphs whose numbers outgrow what a type can hold, or that change where nobody looked: exact now, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from tests.proof.judge import judge
from tests.proof.net import Net, Wire
from tests.selection import rotated

HALF, DOUBLE, INT32, UINT32, INT64 = (
    TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.UINT32, TensorProto.INT64
)  # fmt: skip
BFLOAT = TensorProto.BFLOAT16
LARGE = 16776216.0  # 2^24 - 1000
THIRDS = 2096152.25
Make = Callable[[Net], Wire]


def cast(n: Net, w: Wire, to: int, kind: str = "f") -> Wire:
    return n.op("Cast", w, kind=kind, to=to)


def back(n: Net, condition: Wire) -> Wire:
    """Frame pos, or the one before it where that holds."""
    return n.x.take(n.most(n.pos - condition.int(), 0), 2)


def double(n: Net, value: float) -> Wire:
    name = f"k{len(n.constants)}"
    n.constants.append(numpy_helper.from_array(np.array(value), name))
    return Wire(n, name, "f")


def grid(make: Callable[[Net, Wire, Wire], Wire]) -> Make:
    return lambda n: n.attend(n.near() & make(n, *n.grid()))


def floor(n: Net, w: Wire) -> Wire:
    return n.op("Floor", w)


def summed(n: Net, w: Wire) -> Wire:
    return n.op("CumSum", w, 0)


def by_parity(n: Net) -> Wire:
    """Ones over time, or zeros, by the parity of the length."""
    return n.op("Expand", n.where(n.T % 2 == 0, 1, 0), n.vector(n.T))


def bumped(n: Net) -> Wire:
    """The largest of the positions, of which the first counts as 500."""
    return n.op("ReduceMax", n.pos + n.where(n.pos == 0, 500, 0), keepdims=0)


def not_zero(n: Net) -> Wire:
    one = n.op("Not", n.op("Expand", n.const(np.array([False])), n.vector(n.T))).int()
    return back(n, n.pos * one > 1000)


def marked(n: Net) -> Wire:
    o = n.op("OneHot", n.op("Sign", n.pos - 5), 2, n.const(np.array([0, 1])), kind="i")
    v = n.pos.new(1) - n.pos.new(1) * o
    return back(n, n.op("ReduceMax", v, [1], keepdims=0) > 1000)


def narrowed(n: Net) -> Wire:
    d = n.op("Add", cast(n, n.pos, DOUBLE), double(n, 1 / 1024))
    return back(n, n.op("Equal", cast(n, d, 1), n.pos.float()))


def unsigned(n: Net, w: Wire) -> Wire:
    return cast(n, cast(n, w, UINT32, "i"), INT64, "i")


def int32(n: Net, w: Wire, by: int) -> Wire:
    name = f"k{len(n.constants)}"
    n.constants.append(numpy_helper.from_array(np.array(by, np.int32), name))
    return n.op("Mul", cast(n, w, INT32, "i"), Wire(n, name, "i"))


def here(n: Net) -> Wire:
    return n.pos == 200


FOUND: dict[str, tuple[Make, int, list[int]]] = {
    "sum_past_2_24": (lambda n: back(n, ~(n.pos.float() + LARGE < (n.pos + 1).float() + LARGE)), 16, [100, 999, 1100]),
    "sum_past_2_24_in_a_mask": (
        grid(lambda n, i, j: i.float() + LARGE - (j.float() + LARGE) < 2.5),
        16,
        [100, 999, 1100],
    ),
    "binary_fraction": (lambda n: back(n, ~(n.pos.float() + (1 / 1024) > n.pos.float())), 64, [100, 16000, 17500]),
    "floor_of_binary_factor": (
        lambda n: back(n, floor(n, n.pos.float() * (1023 / 1024)).int() + (n.pos + 1023) // 1024 > n.pos),
        64,
        [100, 16000, 17500],
    ),
    "double_to_float": (narrowed, 16, [100, 16000, 17000]),
    "cumsum_rounds": (
        lambda n: back(n, (c := summed(n, n.filled(16384.0, n.T))) + 1.0 <= c),
        16,
        [100, 1000, 1030],
    ),
    "third_plus_large_t": (
        lambda n: n.pad(n.x, 0, (floor(n, n.T / 3.0 + THIRDS) - 2096152.0).int() - n.T // 3),
        16,
        [100, 200, 2999, 3002],
    ),
    "third_plus_large_pos": (
        lambda n: back(n, (floor(n, n.pos / 3.0 + THIRDS) - 2096152.0).int() > n.pos // 3),
        16,
        [100, 2999, 3100],
    ),
    "absorbed": (lambda n: n.twice_if((n.T.float() * 1e-11 + 1.0) - 1.0 > 0.0), 16, [1000, 5500, 6000]),
    "curve": (lambda n: n.twice_if(n.op("Sqrt", n.T.float()) * 1e-9 + 1.0 > 1.0), 16, [1000, 3500, 3600]),
    "negative_to_unsigned": (lambda n: n.twice_if(unsigned(n, n.T - 1000) > 2**31), 16, [900, 999, 1000]),
    "int64_product": (lambda n: n.twice_if(n.T * 2**53 < 0), 16, [1000, 1023, 1024]),
    "int64_product_pos": (lambda n: back(n, n.pos * 2**53 < 0), 16, [1000, 1025]),
    "int64_curve": (lambda n: n.twice_if(n.T * n.T * 2**40 < 0), 16, [1000, 2896, 2897]),
    "int64_cumsum": (lambda n: back(n, summed(n, n.filled(2**52, n.T)) < 0), 16, [100, 2040, 2050]),
    "int64_sum": (lambda n: n.twice_if(n.T + (2**63 - 1000) < 0), 4, [100, 999, 1000]),
    "large_constants": (
        lambda n: n.twice_if(n.where(n.T % 97 == 50, 2**61, 2**62) > 2**61 + 5),
        4,
        [49, 50, 51, 147],
    ),
    "large_factor": (lambda n: back(n, (n.pos * (2**53 + 1)) % 512 == 400), 4, [100, 399, 401]),
    "not_of_zeros": (not_zero, 16, [100, 999, 1100]),
    "onehot_of_sign": (marked, 16, [100, 999, 1002]),
    "max_of_bent_line": (lambda n: n.twice_if(bumped(n) - n.T < 50), 16, [100, 449, 450, 451, 502, 700]),
    "max_of_bent_line_as_amount": (
        lambda n: n.pad(n.x, 0, (bumped(n) - n.T < 50).int()),
        16,
        [100, 449, 450, 451, 502, 700],
    ),
    "cumsum_by_parity": (lambda n: back(n, summed(n, by_parity(n)) > 1000), 4, [100, 999, 1000, 1001, 1002]),
    "sum_by_parity": (
        lambda n: n.twice_if(n.op("ReduceSum", by_parity(n), keepdims=0) > 1000),
        4,
        [100, 999, 1000, 1001, 1002],
    ),
    "gather_wraps": (
        lambda n: n.twice_if(here(n).int().take(n.pos - 5).bool() & (n.pos < 5)),
        16,
        [100, 200, 201, 205, 206],
    ),
    "gather_nd_wraps": (
        lambda n: n.twice_if(n.op("GatherND", here(n).int(), (n.pos - 5).new(1)).bool() & (n.pos < 5)),
        16,
        [100, 200, 201, 205, 206],
    ),
}

# of the same kind, by other operators
SIBLINGS: dict[str, tuple[Make, int, list[int]]] = {
    "tiny_by_parity": (lambda n: n.twice_if(n.where(n.T % 2 == 0, 1e-8, 0.0) > 0.0), 4, [10, 11, 12]),
    "crossing_at_the_limit": (lambda n: n.twice_if(n.T.float() + (1 / 1024) > 16384.0), 64, [16383, 16384, 16385]),
    "sum_of_a_square": (
        lambda n: n.twice_if(n.op("ReduceSum", n.filled(1, n.T, n.T), keepdims=0) > 10000),
        4,
        [99, 100, 101],
    ),
    "sine_of_a_difference": (
        grid(lambda n, i, j: n.op("Sin", i.float() * 0.1 - j.float() * 0.1) < float(np.sin(np.float32(0.3)))),
        16,
        [50, 400],
    ),
    "difference_as_data": (lambda n: n.x * (n.pos.float() + (1 / 1024) - n.pos.float()), 64, [100, 16000, 17500]),
    "int32_in_floats": (lambda n: n.twice_if(int32(n, n.T, 10**6).float() < 0.0), 16, [2147, 2148]),
    "int32_in_a_curve": (
        lambda n: n.twice_if(n.op("Sqrt", n.op("Relu", int32(n, n.T, 10**6).float())) < 1.0),
        16,
        [2147, 2148],
    ),
    "fmod_of_a_large_sum": (
        lambda n: back(n, n.op("Mod", n.pos.float() + LARGE, 2.0, fmod=1) == 1.0),
        16,
        [999, 1000, 1101],
    ),
    "max_of_a_large_sum": (
        lambda n: back(n, n.most(n.pos.float() + LARGE, 0.0) >= n.most((n.pos + 1).float() + LARGE, 0.0)),
        16,
        [100, 999, 1100],
    ),
    "where_of_fractions": (
        lambda n: back(n, n.where(n.pos % 2 == 0, n.pos.float() + (1 / 1024), n.pos.float()) > n.pos.float()),
        64,
        [100, 16000, 17500],
    ),
    "abs_of_a_large_sum": (
        lambda n: back(n, n.op("Abs", -(n.pos.float() + LARGE)) >= n.op("Abs", -((n.pos + 1).float() + LARGE))),
        16,
        [100, 999, 1100],
    ),
    "pad_of_a_fraction": (
        lambda n: back(n, ~(n.pad(n.pos.float(), 0, 1, 1 / 1024).cut(0, -1) + (1 / 1024) > n.pos.float())),
        64,
        [100, 16000, 17500],
    ),
    "sum_of_three": (
        lambda n: back(n, n.op("Sum", n.pos.float(), LARGE, -LARGE) != n.pos.float()),
        16,
        [100, 999, 1100],
    ),
    "float_range": (
        lambda n: back(n, ~(n.range(LARGE, n.T.float() + LARGE, 1.0) < (n.pos + 1).float() + LARGE)),
        16,
        [100, 999, 1100],
    ),
    "infinite": (lambda n: back(n, n.pos.float() * 1e36 - n.pos.float() * 1e36 != 0.0), 16, [100, 341, 400]),
    "vanishing": (lambda n: n.twice_if(n.T.float() * 1e-30 * 1e-20 > 0.0), 4, [1, 100, 5000]),
    "vanishing_pos": (lambda n: back(n, n.pos.float() * 1e-30 * 1e-18 > 0.0), 4, [1, 100, 5000]),
    "halved_away": (lambda n: n.twice_if(n.T.float() * 2.0**-100 * 2.0**-60 > 0.0), 4, [1, 500, 600, 2000]),
    "halves": (
        lambda n: back(n, n.op("Less", cast(n, n.pos, HALF), cast(n, n.pos + 1, HALF)) == n.const(False)),
        4,
        [100, 2040, 2060],
    ),
    "pad_by_a_rounded_number": (
        lambda n: n.pad(n.x, 0, (n.T.float() + LARGE - LARGE).int() - n.T + 2),
        16,
        [100, 999, 1001, 1003],
    ),
    "least_integer": (lambda n: n.twice_if(n.op("Abs", n.where(n.T % 7 == 3, -(2**63), 5)) < 0), 4, [2, 3, 10]),
    "modulo_large": (lambda n: back(n, n.pos % (2**53 + 1) * (2**53 + 1) < 0), 4, [100, 1023, 1025]),
    "large_by_place": (
        lambda n: back(n, n.where(n.pos < 500, 2**61, 2**62) > 2**61 + 5),
        4,
        [100, 499, 505],
    ),
    "min_of_bent_line": (
        lambda n: n.twice_if(n.op("ReduceMin", n.pos - n.where(n.pos == 300, 500, 0), keepdims=0) < 0),
        16,
        [100, 299, 301, 302],
    ),
    "gather_from_the_end": (
        lambda n: n.twice_if((n.pos == 200).int().take(n.T - 5 - n.pos).bool() & (n.pos > n.T - 3)),
        16,
        [100, 200, 201, 203, 205],
    ),
    "gather_at_a_remainder": (
        lambda n: n.twice_if(here(n).int().take(n.pos % 3 - 1).bool()),
        16,
        [100, 200, 201, 202],
    ),
    "third_twice": (
        lambda n: back(n, floor(n, (n.pos / 3.0) * 3.0).int() < n.pos),
        16,
        [100, 1000, 3000],
    ),
    "product_of_curves": (lambda n: n.twice_if(n.T * n.T * n.T * n.T * n.T < 0), 16, [6000, 6208, 6209]),
    "curve_to_int": (
        lambda n: n.twice_if(n.op("Sqrt", n.T.float() + LARGE).int() > 4095),
        16,
        [999, 1000, 1001, 1003],
    ),
    "sum_of_fractions": (
        lambda n: n.twice_if(n.op("ReduceSum", n.filled(16384.5, n.T), keepdims=0) - n.T.float() * 16384.5 != 0.0),
        16,
        [100, 511, 700, 2000],
    ),
    "equal_thirds": (lambda n: back(n, n.pos / 3.0 + LARGE == (n.pos + 1) / 3.0 + LARGE), 16, [10, 100]),
}  # fmt: skip


def outcome(case: tuple[Make, int, list[int]]) -> Any:
    make, pulse, lengths = case
    net = Net()
    return judge(net.model(make(net)), pulse, lengths)


@pytest.mark.parametrize("name", rotated(FOUND, 2))
def test_never_wrong_again(name: str) -> None:
    made = outcome(FOUND[name])
    assert made.kind in ("exact", "refused"), made


@pytest.mark.parametrize("name", rotated(SIBLINGS, 2))
def test_nor_are_others_of_its_kind(name: str) -> None:
    made = outcome(SIBLINGS[name])
    assert made.kind in ("exact", "refused"), made
