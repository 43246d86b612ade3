"""Graphs that streamed wrong without an error, found by hunting: exact now, or refused, and never wrong again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from tests.proof.judge import judge
from tests.proof.net import Net, Wire
from tests.selection import rotated

HALF, FLOAT, INT32, INT64 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
END = 2**60
LINEAR = {"mode": "linear"}
Make = Callable[[Net], Any]


def grid(make: Callable[[Net, Wire, Wire], Wire]) -> Make:
    return lambda n: make(n, *n.grid())


def cast(n: Net, w: Wire, to: int, kind: str = "f") -> Wire:
    return n.op("Cast", w, kind=kind, to=to)


def narrow(n: Net, value: int) -> Wire:
    """A constant of 32 bits."""
    name = f"k{len(n.constants)}"
    n.constants.append(numpy_helper.from_array(np.array(value, np.int32), name))
    return Wire(n, name, "i")


def smoothed(n: Net, known: Wire) -> Wire:
    return n.op("Conv", known, n.const(np.array([[[1.0, 2.0, 3.0]]], np.float32)), pads=[1, 1])


def one(n: Net) -> Wire:
    """The length, but for one length at which it is one."""
    return n.where(n.T == 700, 1, n.T)


def sign_final(n: Net) -> Wire:
    m = n.op("ReduceMin", n.op("Expand", n.op("Sign", n.pos - 5).new(0), n.vector(n.T, n.T)), [1], keepdims=0)
    return n.x * n.where(m * n.T - n.T < -3000, 2.0, 1.0)


def hidden_at_first(n: Net, i: Wire, j: Wire) -> Wire:
    q = n.x.by(0, 2, 1)
    s = q @ n.x
    h = n.where((i % 7) == 0, n.most(i * i - 1000000, 0), 0).float()
    return ((s * ((j > i) & (j - i <= 8)).float()) * h * 0.001 + s * ((j <= i) & (i - j <= 8)).float()) @ q


def cut_towards_zero(n: Net) -> Wire:
    v = (n.pos - 1700).float() + 0.5
    return n.x.take(n.most(n.pos + n.op("Cast", v, kind="i", to=7) - n.op("Floor", v).int() - 1, 0), 2)


def counting_table(n: Net) -> Wire:
    t, p = n.const(np.arange(9000)), n.pos
    return n.x.take(n.most(n.where(t.take(p - 1400) > p, p, p - 1), 0), 2)


CASES: dict[str, tuple[Make, int, list[int], dict[str, Any]]] = {
    "a1_known_conv": (lambda n: n.x * smoothed(n, n.filled(1.0, 1, 1, n.T)), 3, [1, 2, 3], {}),
    "a2_known_pool": (
        lambda n: n.x * n.op("AveragePool", (n.pos % 5).float().new(0, 1), kernel_shape=[3], pads=[0, 2]),
        3,
        [1, 2, 3],
        {},
    ),
    "a3_known_pad_cut": (lambda n: n.x * n.pad((n.pos % 5).float(), 0, 3, 9.0).cut(3, END, 0), 3, [1, 2, 3], {}),
    "a4_known_concat_cut": (
        lambda n: n.x * n.op("Concat", n.pos % 5, n.const(np.array([7, 8, 9])), axis=0).cut(3, END, 0).float(),
        3,
        [1, 2, 3],
        {},
    ),
    "b1_size_one_range": (lambda n: n.x + n.range(0, one(n), 1).float(), 4, [699, 700], {}),
    "b2_size_one_table": (lambda n: n.x + n.weights(2, 2000).cut(0, one(n)), 4, [699, 700], {}),
    "b3_size_one_attn": (
        grid(lambda n, i, j: n.attend(n.near() & ((n.range(0, one(n), 1).new(0) % 3 != 1) | (i == j)))),
        4,
        [699, 700],
        {},
    ),
    "b4_squeeze_t_1": (lambda n: n.op("Squeeze", n.x), 4, [1, 2], {}),
    "b5_squeeze_known_t_1": (
        lambda n: n.x * n.op("Squeeze", n.op("Expand", n.const(np.ones((1, 1, 1), np.float32)), n.vector(1, 2, n.T))),
        4,
        [1, 2],
        {},
    ),
    "b6_output_range": (lambda n: [n.x * 2.0, n.range(0, one(n), 1)], 4, [699, 700], {}),
    "c1_too_large": (grid(lambda n, i, j: n.attend(n.near() & ((j % 1240 < 1176) | (i == j)))), 100, [1178], {}),
    "d1_ending_min": (lambda n: n.x * n.where(n.pos < n.least(n.T, 500), 2.0, 1.0), 4, [999, 1002, 1003], {}),
    "e1_t_3": (lambda n: n.twice_if(float(np.float32(100) / np.float32(3)) == n.T / 3.0), 4, [99, 100], {}),
    "e2_1t": (
        lambda n: n.pad(n.x, 0, (n.T.float() * 0.1 >= float(np.float32(0.1) * np.float32(1003))).int()),
        4,
        [1002, 1003],
        {},
    ),
    "e3_sqrt": (
        lambda n: n.twice_if((n.op("Sqrt", n.T.float()) <= float(np.sqrt(np.float32(2)))) & (n.T >= 2)),
        4,
        [1, 2],
        {},
    ),
    "e4_t_t_float": (lambda n: n.twice_if(((n.T * n.T).float() <= 16785408.0) & (n.T >= 4097)), 64, [4096, 4097], {}),
    "e5_sqrt_t_2733": (
        lambda n: n.pad(n.x, 0, n.where(n.op("Sqrt", (n.T % 2733).float()) <= float(np.sqrt(np.float32(391))), 2, 3)),
        64,
        [390, 391, 392],
        {},
    ),
    "f1_floor_i_9999": (
        lambda n: n.x.take(n.most(n.op("Floor", n.pos.float() + 0.9999).int() - 1, 0), 2),
        64,
        [2000, 2060],
        {},
    ),
    "f2_i_0001_j": (
        grid(lambda n, i, j: n.attend(((i.float() + 0.0001 > j.float()) | (j == i - 1) | (i == 0)) & n.near())),
        64,
        [2040, 2060],
        {},
    ),
    "f3_f16_frames": (
        lambda n: n.x.take(n.least(cast(n, cast(n, n.pos.float(), HALF), FLOAT).int(), n.pos), 2),
        16,
        [2040, 2060],
        {},
    ),
    "g1_trunc_frames": (cut_towards_zero, 16, [1700, 1701], {}),
    "g2_trunc_attn": (
        grid(
            lambda n, i, j: n.attend(
                n.near()
                & (
                    (
                        n.op("Cast", (j - 700).float() + 0.5, kind="i", to=7)
                        > n.op("Floor", (j - 700).float() + 0.5).int()
                    )
                    | (i == j)
                )
            )
        ),
        16,
        [699, 720],
        {},
    ),
    "h1_round_t": (
        lambda n: n.pad(n.x, 0, n.op("Round", n.T.float() / 512.0).int() - (n.T + 255) // 512),
        16,
        [256, 768],
        {},
    ),
    "h2_round_frames": (
        lambda n: n.x.take(
            n.most(n.pos - (n.op("Round", n.pos.float() / 2048.0).int() - (n.pos + 1023) // 2048), 0), 2
        ),
        16,
        [3072, 3073],
        {},
    ),
    "i1_pow_int_div": (
        grid(lambda n, i, j: n.attend((((n.op("Pow", i % 2, 1) + i) // 997 * 997 - i == 0) | (i == j)) & n.near())),
        16,
        [990, 1010],
        {},
    ),
    "i2_isinf_int_div": (
        lambda n: n.x.take(
            n.most(n.pos - (n.where(n.op("IsInf", (n.pos % 2).float()), n.pos, n.pos) // 997 * 997 == n.pos).int(), 0),
            2,
        ),
        16,
        [990, 1010],
        {},
    ),
    "j1_sign_final": (sign_final, 16, [1400, 1600], {}),
    "k1_hide_1d": (grid(hidden_at_first), 16, [990, 1010], {}),
    "k2_grow_hide_value": (
        grid(lambda n, i, j: n.attend(j <= i, n.where(j <= i, n.most(j * j - 1000000, 0).float() * 0.001, 0.0))),
        4,
        [990, 1010],
        {"unbounded": "grow"},
    ),
    "k3_grow_opaque_raw": (
        grid(lambda n, i, j: n.attend(j <= i, n.most(j * j - 1000000, 0).float() * 0.001 + 0.0 * i.float())),
        4,
        [990],
        {"unbounded": "grow"},
    ),
    "l1_line_table_neg": (counting_table, 16, [1400, 1402], {}),
    "l2_line_table_end": (
        lambda n: n.x + n.weights(200, 2).take(n.const(np.arange(100)).take(n.pos)).by(1, 0),
        4,
        [100, 101],
        {},
    ),
    "l3_table_of_t_ends": (lambda n: n.x * n.const(np.ones(150, np.float32)).take(n.T), 4, [149, 150], {}),
    "m1_never_max": (
        lambda n: n.twice_if(n.most(n.where(n.T == 777, n.T, n.T - 3000000000), 0) > 0),
        16,
        [776, 777],
        {},
    ),
    "m2_never_min": (
        lambda n: n.twice_if(n.least(n.where(n.T == 777, 5000, n.T), 2000) == 2000),
        16,
        [776, 777],
        {"set": {"T": "<=1000"}},
    ),
    "n1_unsqueeze_axis": (lambda n: n.op("Unsqueeze", n.x, n.where(n.T == 100, 2, 1).one()), 4, [99, 100], {}),
    "o1_int32_t": (
        lambda n: n.twice_if(n.op("Less", n.op("Mul", cast(n, n.T, INT32, "i"), narrow(n, 1000000)), narrow(n, 0))),
        16,
        [2147, 2148],
        {},
    ),
    "o2_int32_frames": (
        lambda n: n.x.take(
            n.most(
                n.where(
                    n.op("Less", n.op("Mul", cast(n, n.pos, INT32, "i"), narrow(n, 1000000)), narrow(n, 0)),
                    n.pos - 1,
                    n.pos,
                ),
                0,
            ),
            2,
        ),
        16,
        [2147, 2150],
        {},
    ),
    "p1_float_range": (
        lambda n: n.x + n.op("Sin", n.range(0.0, (n.T.float() - 0.5) * 0.1, 0.1)),
        64,
        [100, 1000, 20000],
        {},
    ),
    "p2_cumsum_1": (lambda n: n.x + n.op("Sin", n.op("CumSum", n.filled(0.1, n.T), 0)), 64, [100, 1000, 20000], {}),
    "q1_pad_t_raw": (lambda n: n.pad(n.x, 0, n.T), 4, [1, 2], {}),
    "q2_table_pad_raw": (lambda n: n.x * n.pad(n.weights(2, 60).cut(0, n.T), 0, 3, 5.0).cut(3), 4, [1, 2], {}),
    "q3_known_linear_raw": (
        lambda n: (
            n.op("Resize", n.x, None, [1.0, 1.0, 2.0], **LINEAR)
            * n.op("Resize", (n.pos % 5).float().new(0, 1), None, [1.0, 1.0, 2.0], **LINEAR)
        ),
        4,
        [1, 2],
        {},
    ),
    "q4_cumsum_sqrt_raw": (
        lambda n: n.x + n.op("CumSum", (n.op("Sqrt", n.pos.float()) <= 50.0).int(), 0).float(),
        4,
        [1, 2],
        {},
    ),
    "r3_expand_short": (lambda n: n.op("Expand", n.x.cut(0, 1, 1), n.vector(1, n.least(n.T, 2), 1)), 4, [1, 2], {}),
}


@pytest.mark.parametrize("name", rotated(CASES, 2))
def test_never_wrong_again(name: str) -> None:
    make, pulse, lengths, options = CASES[name]
    net = Net()
    made = make(net)
    model = net.model(*(made if isinstance(made, list) else [made]))
    outcome = judge(model, pulse, lengths, **options)
    assert outcome.kind in ("exact", "refused"), outcome
