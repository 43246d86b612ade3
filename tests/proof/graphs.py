"""Small graphs whose values follow from the stream's length, made so that looking at a few lengths is not enough.

Each says around which lengths its behaviour changes, and what must happen: "exact", "refused", or "either" (exact at
every length that batch takes, or refused by NotStreamable). None may ever be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto

from tests.proof.net import Net, Wire

NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
Expect = Literal["exact", "refused", "either"]
COMMON = (*range(1, 13), 16, 23, 31, 64, 65, 100)  # judged for every graph
LONG = 50_000  # frames from which a length is left to the slow tests
MORE = {
    "uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32, "half": TensorProto.FLOAT16,
    "double": TensorProto.DOUBLE,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """near: lengths around which something changes. shortest: below, a stream may be turned down where batch is not."""

    name: str
    make: Callable[[Net], Wire]
    near: tuple[int, ...]
    expect: Expect
    shortest: int = 1
    channels: int = 2

    def model(self) -> onnx.ModelProto:
        net = Net(self.channels)
        return net.model(self.make(net))

    def lengths(self, slow: bool = False) -> list[int]:
        """Both sides of every change, and past the last; slow: the long ones, else the others."""
        around = {n + d for n in self.near for d in (-1, 0, 1, 2)}
        past = {max(self.near) + d for d in (37, 131)} if self.near else set()
        return sorted(n for n in {*COMMON, *around, *past} if n > 0 and (n >= LONG) == slow)

    @property
    def pulse(self) -> int:
        return 4 if max(self.near, default=0) <= 6000 else 64


CASES: list[Case] = []


def add(
    name: str, near: Iterable[int], expect: Expect, make: Callable[[Net], Wire], shortest: int = 1, channels: int = 2
) -> None:
    assert all(c.name != name for c in CASES), name
    CASES.append(Case(name, make, tuple(near), expect, shortest, channels))


Maker = Callable[[Net], Wire]


def case(near: Iterable[int], expect: Expect, shortest: int = 1, channels: int = 2) -> Callable[[Maker], Maker]:
    def keep(make: Maker) -> Maker:
        add(make.__name__, near, expect, make, shortest, channels)
        return make

    return keep


def cast(n: Net, value: Wire, to: str, back: str = "i") -> Wire:
    """Through another type and back."""
    return getattr(n.op("Cast", value, kind="?", to=MORE[to]), {"i": "int", "f": "float"}[back])()


# ---- a factor of the whole stream, chosen by its length

add("factor_mod_7", (10, 3000, 4000), "refused", lambda n: n.twice_if(n.T % 7 == 3))
add("factor_at_100", (100,), "either", lambda n: n.twice_if(n.T == 100))
add("factor_at_5000", (5000,), "either", lambda n: n.twice_if(n.T == 5000))
add("factor_between", (90, 110), "either", lambda n: n.twice_if((n.T > 90) & (n.T < 110)))
add("factor_hundreds", (3100,), "either", lambda n: n.twice_if(n.T // 100 > 30))
add("factor_float", (2000,), "either", lambda n: n.twice_if(n.T.float() > 2000.5))
add("factor_log", (1998,), "either", lambda n: n.twice_if(n.op("Log", n.T.float()) > 7.6))
add("factor_sqrt", (3025,), "either", lambda n: n.twice_if(n.op("Sqrt", n.T.float()) > 55.0))
add("factor_square", (1500,), "either", lambda n: n.twice_if(n.T * n.T > 2250000))
add("factor_pow", (1200,), "either", lambda n: n.twice_if(n.op("Pow", n.T, 2) > 1440000))
add("factor_cubic_mod", (39, 139, 1039), "refused", lambda n: n.twice_if(n.T * n.T * n.T % 100 == 19))
add("factor_floor_half", (1400,), "either", lambda n: n.twice_if(n.op("Floor", n.T / 2.0) > 700.0))
add("factor_floor_odd", (701, 1400), "refused", lambda n: n.twice_if(n.op("Floor", n.T / 2.0) * 2.0 == n.T.float()))
add("factor_ceil", (1198, 1200), "either", lambda n: n.twice_if(n.op("Ceil", n.T / 3.0) == 400.0))
add("factor_two_mods", (76, 153), "refused", lambda n: n.twice_if((n.T % 7) * (n.T % 11) == 60))
add("factor_mod_997", (500, 1497, 4488), "refused", lambda n: n.twice_if(n.T % 997 == 500))
add("factor_blocks", (64, 128, 1024), "refused", lambda n: n.twice_if(n.T // 64 % 2 == 1))
add("factor_mod_far", (4003,), "refused", lambda n: n.twice_if((n.T > 4000) & (n.T % 7 == 6)))
add("factor_abs", (698, 700, 702), "either", lambda n: n.twice_if(n.op("Abs", n.T - 700) < 2))
add("factor_sign", (2000,), "either", lambda n: n.x * n.op("Sign", n.T - 2000).float())
add("factor_min", (1000,), "either", lambda n: n.x * (n.least(n.T, 1000).float() * 0.01))
add("factor_max", (1000,), "either", lambda n: n.x * (n.most(n.T, 1000).float() * 0.01))
add("factor_relu", (1500,), "either", lambda n: n.x * (1.0 + n.op("Relu", n.T.float() - 1500.0)))
add("factor_clip", (1800,), "either", lambda n: n.x * n.op("Clip", n.T.float() - 1800.0, 1.0, 2.0))
add("factor_exp_inf", (88,), "either", lambda n: n.twice_if(n.op("IsInf", n.op("Exp", n.T.float()))))
add("factor_sine", (22, 355, 710), "refused", lambda n: n.twice_if(n.op("Sin", n.T.float()) > 0.0))
add("factor_sine_rare", (1065, 710), "refused", lambda n: n.twice_if(n.op("Abs", n.op("Sin", n.T.float())) < 1e-4))
add("factor_bit", (1024, 2048), "refused", lambda n: n.twice_if(n.op("BitwiseAnd", n.T, 1024) != 0))
add("factor_byte", (255, 256, 512), "refused", lambda n: n.twice_if(cast(n, n.T, "uint8") < 20))
add("factor_signed_byte", (127, 128), "refused", lambda n: n.twice_if(cast(n, n.T, "int8") < 0))
add("factor_half", (2049, 2051), "either", lambda n: n.twice_if(cast(n, n.T, "half", "f") != n.T.float()))
add("factor_size", (1500,), "either", lambda n: n.twice_if(n.op("Size", n.x) > 3000))
add("factor_last_position", (1201,), "either", lambda n: n.twice_if(n.op("ReduceMax", n.pos, keepdims=0) > 1200))
add("factor_argmax", (602,), "either", lambda n: n.twice_if(n.op("ArgMax", (n.pos > 600).int(), keepdims=0) > 0))
add("factor_or", (900, 2004), "refused", lambda n: n.twice_if((n.T == 900) | ((n.T > 2000) & (n.T % 5 == 4))))
add("factor_xor", (300, 600), "either", lambda n: n.twice_if(n.op("Xor", n.T > 300, n.T > 600)))
add(
    "factor_where_chain",
    (1000, 1100),
    "either",
    lambda n: n.x * n.where(n.T > 1000, n.where(n.T > 1100, 3.0, 2.0), 1.0),
)
add("factor_mod_of_min", (1000,), "either", lambda n: n.twice_if(n.least(n.T, 1000) % 7 == 3))
add("factor_mod_by_choice", (1000, 1004), "refused", lambda n: n.twice_if(n.T % n.where(n.T > 1000, 5, 1) == 4))
add("factor_difference", (877, 889), "either", lambda n: n.twice_if(n.T // 7 - n.T // 8 > 15))
add("factor_2_24", (100,), "either", lambda n: n.twice_if(n.T.float() + 16777116.0 == n.T.float() + 16777117.0))


@case((1234,), "either")
def factor_table_size(n: Net) -> Wire:
    rows = n.op("Shape", n.weights(1234, 2)).take(0)
    return n.twice_if(rows < n.T)


@case((750, 1500), "either")
def factor_count(n: Net) -> Wire:
    """How many positions have a property."""
    return n.twice_if(n.op("Shape", n.op("NonZero", n.pos % 2 == 1)).take(1) > 750)


@case((701, 1000), "either")
def factor_sum(n: Net) -> Wire:
    return n.twice_if(n.op("ReduceSum", (n.pos >= 700).float(), keepdims=0) > 0.0)


@case((40, 140, 940), "either")
def factor_table_lookup(n: Net) -> Wire:
    """One entry of a table by the length: 1, but for row 940."""
    table = np.ones(1000, np.float32)
    table[940] = 2
    return n.x * n.const(table).take(n.least(n.T, 999))


@case((7, 41, 701), "refused")
def factor_table_mod(n: Net) -> Wire:
    table = np.ones(701, np.float32)
    table[0] = 3
    return n.x * n.const(table).take(n.T % 701)


@case((1000,), "either")
def added_constant_by_length(n: Net) -> Wire:
    return n.x + (n.T // 1000).float()


# ---- values by position

add("pos_bias_min_1500", (1500,), "exact", lambda n: n.x + n.least(n.pos, 1500).float() * 0.01)
add("pos_bias_max_1500", (1500,), "exact", lambda n: n.x + n.most(n.pos, 1500).float() * 0.01)
add("pos_at_777", (777,), "exact", lambda n: n.twice_if(n.pos == 777))
add("pos_past_3000", (3000,), "exact", lambda n: n.twice_if(n.pos > 3000))
add("pos_mod_701", (700, 1401), "exact", lambda n: n.twice_if(n.pos % 701 == 5))
add("pos_mod_then_far", (2000, 2010), "exact", lambda n: n.twice_if((n.pos > 2000) & (n.pos % 11 == 0)))
add("pos_far_away", (100_000,), "exact", lambda n: n.twice_if(n.pos == 100_000), channels=1)
add("pos_last_three", (100, 1000), "exact", lambda n: n.twice_if(n.pos > n.T - 3))
add("pos_last_1000", (1000, 2000), "either", lambda n: n.twice_if(n.pos > n.T - 1000))
add("pos_from_end_clipped", (20, 1000), "either", lambda n: n.x + n.least(n.T - 1 - n.pos, 4).float())
add("pos_over_length", (100, 1000), "refused", lambda n: n.x + n.pos / n.T)
add("pos_first_half", (100, 1000), "refused", lambda n: n.twice_if(n.pos < n.T // 2))
add("pos_backwards", (100, 1000), "refused", lambda n: n.x + (n.T - 1 - n.pos).float())
add("pos_backwards_mod", (100, 1000), "refused", lambda n: n.twice_if((n.T - 1 - n.pos) % 3 == 0))
add("pos_plus_parity", (100, 1000), "refused", lambda n: n.twice_if((n.pos + n.T % 2) % 2 == 0))
add("pos_last_when_mod", (147, 1000), "either", lambda n: n.twice_if((n.pos == n.T - 1) & (n.T % 97 == 50)))
add("pos_last_when_long", (900,), "either", lambda n: n.twice_if((n.pos == n.T - 1) & (n.T > 900)))
add(
    "pos_last_by_table", (500, 1000), "either", lambda n: n.twice_if(n.pos >= n.T - n.const([0, 3, 1, 2]).take(n.T % 4))
)
add("pos_last_widening", (800,), "either", lambda n: n.twice_if(n.pos >= n.T - n.where(n.T > 800, 5, 2)))
add("pos_not_past_min", (100, 1000), "either", lambda n: n.twice_if(n.pos < n.least(n.T, 1000) - 2))
add("pos_squared", (1000,), "exact", lambda n: n.x + (n.pos * n.pos % 13).float())
add("pos_squared_past", (1200,), "exact", lambda n: n.twice_if(n.pos * n.pos > 1440000))
add("pos_pow", (1000,), "either", lambda n: n.x + n.op("Pow", n.pos.float() * 0.01, 2.0))
add("pos_decay", (1000,), "exact", lambda n: n.x * n.op("Pow", 0.999, n.pos.float()))
add("pos_sine", (1000,), "exact", lambda n: n.x + n.op("Sin", n.pos.float() * 0.37))
add("pos_floor", (1000,), "exact", lambda n: n.x + n.op("Floor", n.pos.float() / 3.0) * 0.01)
add("pos_byte", (256, 512), "exact", lambda n: n.x + cast(n, n.pos, "uint8").float() * 0.01)
add("pos_half", (2049, 4100), "either", lambda n: n.x + (n.pos.float() - cast(n, n.pos, "half", "f")))
add("pos_near_2_24", (400, 600), "either", lambda n: n.x + (n.pos.float() + 16776716.0 - 16776716.0) * 0.01)
add("pos_by_length_switch", (1000,), "either", lambda n: n.x + n.where(n.T > 1000, n.pos * 2, n.pos).float() * 0.01)
add("pos_cumsum_mask", (700, 1000), "either", lambda n: n.x + n.op("CumSum", (n.pos % 3 == 0).float(), 0) * 0.01)
add("pos_cumsum_late", (700, 1000), "either", lambda n: n.x + n.op("CumSum", (n.pos > 700).float(), 0) * 0.01)
add("pos_cumsum_of_ones", (1000,), "either", lambda n: n.x + n.op("CumSum", n.filled(0.01, n.T), 0))
add("pos_cumsum_reverse", (700,), "refused", lambda n: n.x + n.op("CumSum", n.filled(0.01, n.T), 0, reverse=1))
add("pos_range_steps", (1000,), "exact", lambda n: n.x + n.range(5, 5 + n.T * 3, 3).float() * 0.01)
add("pos_range_down", (1000,), "exact", lambda n: n.x + n.range(0, -n.T, -1).float() * 0.01)
add("pos_range_from_length", (1000,), "refused", lambda n: n.x + n.range(n.T, 0, -1).float() * 0.01)
add("pos_range_float", (1000,), "either", lambda n: n.x + n.range(0.0, n.T.float() * 0.5, 0.5))
add(
    "pos_range_start_late",
    (1000,),
    "either",
    lambda n: n.x + n.range((n.T > 1000).int(), n.T + (n.T > 1000).int(), 1).float(),
)
add(
    "pos_range_step_late",
    (1000,),
    "either",
    lambda n: n.x + n.range(0, n.T * (1 + (n.T > 1000).int()), 1 + (n.T > 1000).int()).float(),
)
add("pos_nonzero", (1000,), "either", lambda n: n.x + n.op("NonZero", n.filled(1, n.T)).float() * 0.01)
add("pos_nonzero_late", (900,), "either", lambda n: n.x * n.op("NonZero", n.pos != 900).cut(0, 1, 1).float())
add("pos_running_mean", (1000,), "exact", lambda n: n.op("CumSum", n.x, 2) / (n.pos + 1))
add("pos_running_mean_capped", (1000,), "exact", lambda n: n.op("CumSum", n.x, 2) / n.least(n.pos + 1, 1000))
add("pos_running_max", (1000,), "either", lambda n: n.x + n.most(n.pos, 1000 - n.pos).float() * 0.01)
add("pos_triangle_wave", (800, 1600), "exact", lambda n: n.x + n.op("Abs", n.pos % 800 - 400).float() * 0.01)
add("pos_late_mod_change", (2000,), "exact", lambda n: n.x + n.where(n.pos > 2000, n.pos % 5, n.pos % 3).float())
add("pos_negative_mod", (900,), "exact", lambda n: n.x + ((n.pos - 900) % 7).float())
add("pos_negative_div", (900,), "exact", lambda n: n.x + ((n.pos - 900) // 7).float() * 0.1)
add("pos_fmod", (900,), "exact", lambda n: n.x + n.op("Mod", (n.pos - 900).float(), 7.0, fmod=1))
add(
    "pos_reduced_depth",
    (500, 1000),
    "exact",
    lambda n: n.x + n.op("OneHot", n.pos % 2, 2, [0.0, 1.0], kind="f").by(1, 0),
)


@case((1500,), "exact")
def pos_one_hot_late(n: Net) -> Wire:
    """The second channel is 1 from frame 1,500 on."""
    return n.x + n.op("OneHot", (n.pos > 1500).int(), 2, [0.0, 1.0], kind="f").by(1, 0)


@case((800, 1200), "exact")
def pos_scanned(n: Net) -> Wire:
    """A recurrence whose gate closes at frame 800."""
    gate = (n.pos > 800).float().new(1)
    body = n.body(lambda m, h, u, g: [(s := h * 0.5 * (1.0 - g) + u), s], [("f", [2]), ("f", [2]), ("f", [1])])
    x = n.op("Squeeze", n.x, [0]).by(1, 0)
    return n.op("Scan", [0.0, 0.0], x, gate, kind="f", outputs=2, num_scan_inputs=2, body=body)[1]


# ---- tables


def embedded(n: Net, index: Wire, rows: int) -> Wire:
    """x [1, 2, T] + table[index]^T"""
    return n.x + n.weights(rows, 2).take(index).by(1, 0)


add("emb_clamped_3000", (3000, 4000), "exact", lambda n: embedded(n, n.least(n.pos, 3000), 3001))
add("emb_mod_4097", (4097, 8194), "exact", lambda n: embedded(n, n.pos % 4097, 4097))
add("emb_clamped_rows", (50, 300), "exact", lambda n: embedded(n, n.least(n.pos, 49), 50))
add("emb_plain", (50, 60), "exact", lambda n: embedded(n, n.pos, 50))
add("emb_plain_offset", (48, 60), "exact", lambda n: embedded(n, n.pos + 2, 50))
add("emb_quarter_rate", (120,), "either", lambda n: embedded(n, n.pos // 4, 30))
add("emb_negative", (5, 55), "exact", lambda n: embedded(n, n.pos - 5, 50))
add("emb_backwards", (50,), "exact", lambda n: embedded(n, -1 - n.pos, 50))
add("emb_far_below", (50, 100), "exact", lambda n: embedded(n, n.pos - 50, 50))
add("emb_jumping", (11, 500), "exact", lambda n: embedded(n, n.pos * 3 % 11, 11))
add("emb_jumping_far", (1009, 2018), "exact", lambda n: embedded(n, n.pos * 617 % 1009, 1009))
add("emb_shifted_mod", (7, 700), "exact", lambda n: embedded(n, (n.pos + 3) % 7, 7))
add("emb_late_row", (1500,), "exact", lambda n: embedded(n, (n.pos > 1500).int(), 2))
add("emb_late_out_of_range", (700,), "either", lambda n: embedded(n, n.where(n.pos > 700, 50, n.pos % 50), 50))
add("emb_skips_bad_row", (700,), "either", lambda n: embedded(n, n.where(n.pos == 700, n.pos - 700, n.pos % 50), 50))
add("emb_by_length_mod", (100, 1000), "refused", lambda n: embedded(n, (n.pos + n.T) % 7, 7))
add("emb_from_end", (50,), "refused", lambda n: embedded(n, n.T - 1 - n.pos, 50))
add("emb_first_late", (600,), "either", lambda n: embedded(n, n.pos % 7 + (n.T > 600).int(), 8))
add("emb_folded_clamp", (1000, 2000), "exact", lambda n: embedded(n, n.least(n.most(n.pos - 1000, 0), 99), 100))
add("emb_gather_nd", (700,), "exact", lambda n: n.x + n.op("GatherND", n.weights(7, 2), (n.pos % 7).new(1)).by(1, 0))
add("emb_sliced", (3000,), "exact", lambda n: n.x + n.weights(2, 3000).cut(0, n.T))
add(
    "emb_sliced_late",
    (1000,),
    "either",
    lambda n: n.x + n.weights(2, 3000).cut((n.T > 1000).int(), n.T + (n.T > 1000).int()),
)
add("emb_sliced_mod", (100, 1000), "refused", lambda n: n.x + n.weights(2, 3000).cut(n.T % 5, n.T + n.T % 5))
add("emb_sliced_from_end", (100, 1000), "refused", lambda n: n.x + n.weights(2, 3000).cut(3000 - n.T))
add("emb_tail_table", (1000,), "either", lambda n: n.x * n.weights(3).cut((n.T > 1000).int(), (n.T > 1000).int() + 1))
add(
    "emb_tiled",
    (700, 1401),
    "either",
    lambda n: n.x + n.op("Tile", n.weights(2, 7), n.vector(1, n.T // 7 + 1)).cut(0, n.T),
)
add(
    "emb_two_tables",
    (500, 1500),
    "exact",
    lambda n: n.x + n.op("Concat", n.weights(2, 500), n.filled(9.0, 2, 2000), axis=1).cut(0, n.T),
)
add("emb_gather_elements", (60,), "either", lambda n: n.x + n.op("GatherElements", n.weights(60), n.pos))


# ---- how much is cut off, padded, joined

add("cut_min_480000", (480_000,), "either", lambda n: n.x.cut(0, n.least(n.T, 480_000)), channels=1)
add("cut_300000", (300_000,), "either", lambda n: n.x.cut(0, 300_000), channels=1)
add("cut_min_3000", (3000,), "either", lambda n: n.x.cut(0, n.least(n.T, 3000)))
add("cut_30", (30,), "either", lambda n: n.x.cut(0, 30))
add("cut_start_late", (900,), "either", lambda n: n.x.cut((n.T > 900).int()))
add("cut_start_mod", (100, 1000), "refused", lambda n: n.x.cut(n.T % 3), shortest=3)
add("cut_end_mod", (10, 500), "either", lambda n: n.x.cut(0, n.T - (n.T % 7 == 3).int()))
add("cut_end_multiple", (100, 1000), "either", lambda n: n.x.cut(0, n.T // 4 * 4))
add("cut_end_late", (1000,), "either", lambda n: n.x.cut(0, n.T - (n.T > 1000).int()))
add("cut_last_16", (16, 1000), "either", lambda n: n.x.cut(-n.least(n.T, 16)))
add("cut_start_700", (700,), "either", lambda n: n.x.cut(700), shortest=701)
add("cut_start_min_700", (700,), "either", lambda n: n.x.cut(n.least(n.T - 1, 700)))
add("cut_half", (100, 1000), "either", lambda n: n.x.cut(0, n.T // 2))
add("cut_step_late", (700,), "either", lambda n: n.x.cut(0, n.T, -1, 1 + (n.T > 700).int()))
add("cut_clamped_window", (10, 2000), "either", lambda n: n.x.cut(n.most(n.T - 2000, 0)))
add("pad_multiple_of_480000", (1, 480_000), "either", lambda n: n.pad(n.x, 0, -n.T % 480_000), channels=1)
add("pad_multiple_of_4", (100, 1000), "exact", lambda n: n.pad(n.x, 0, -n.T % 4))
add("pad_multiple_of_1000", (1000, 2000), "either", lambda n: n.pad(n.x, 0, -n.T % 1000))
add("pad_late", (500,), "either", lambda n: n.pad(n.x, 0, 3 + (n.T > 500).int()))
add("pad_front_mod", (100, 1000), "refused", lambda n: n.pad(n.x, n.T % 3, 0))
add("pad_front_late", (500,), "either", lambda n: n.pad(n.x, (n.T > 500).int(), 0))
add("pad_to_3000", (3000,), "either", lambda n: n.pad(n.x, 0, n.most(3000 - n.T, 0)))
add("pad_or_cut_to_3000", (3000,), "either", lambda n: n.pad(n.x, 0, 3000).cut(0, 3000))
add("pad_value_late", (500,), "either", lambda n: n.op("Pad", n.x, [2, 2], (n.T > 500).float(), [-1]))
add("pad_value_mod", (101, 500), "either", lambda n: n.op("Pad", n.x, [0, 2], (n.T % 5).float(), [-1]))
add("pad_channels_late", (500,), "either", lambda n: n.op("Pad", n.x, n.vector(0, (n.T > 500).int()), 1.0, [1]))
add("join_zeros_mod", (100, 1000), "either", lambda n: n.op("Concat", n.x, n.filled(0.0, 1, 2, n.T % 4), axis=2))
add("join_front_mod", (100, 1000), "refused", lambda n: n.op("Concat", n.filled(0.0, 1, 2, n.T % 4), n.x, axis=2))
add("join_front_late", (800,), "either", lambda n: n.op("Concat", n.filled(0.0, 1, 2, (n.T > 800).int()), n.x, axis=2))
add("join_as_many_zeros", (100, 1000), "either", lambda n: n.op("Concat", n.x, n.filled(0.0, 1, 2, n.T), axis=2))
add("join_some_zeros", (300, 600), "either", lambda n: n.op("Concat", n.x, n.filled(0.0, 1, 2, n.T // 300), axis=2))
add("expand_late", (700,), "either", lambda n: n.op("Expand", n.x.cut(0, 1, 1), n.vector(1, 2 + (n.T > 700).int(), 1)))
add(
    "filled_late",
    (700,),
    "either",
    lambda n: n.op(
        "Concat", n.x, n.op("Expand", n.filled(1.0, 1, 1 + (n.T > 700).int(), 1), n.vector(1, 1, n.T)), axis=1
    ),
)
add("tile_channels_late", (1000,), "either", lambda n: n.op("Tile", n.x, n.vector(1, 1 + (n.T > 1000).int(), 1)))
add("tile_time_late", (1000,), "either", lambda n: n.op("Tile", n.x, n.vector(1, 1, 1 + (n.T > 1000).int())))
add("tile_channels_mod", (100, 1000), "refused", lambda n: n.op("Tile", n.x, n.vector(1, 1 + n.T % 3, 1)))
add("channel_by_length", (1300,), "either", lambda n: n.x.take((n.T > 1300).int(), 1).new(1))
add("channel_by_length_mod", (100, 1000), "refused", lambda n: n.x.take(n.T % 2, 1).new(1))
add("frames_by_index", (40, 400), "exact", lambda n: n.x.take(n.most(n.pos - 3, 0), 2))
add("frames_by_index_late", (900,), "either", lambda n: n.x.take(n.most(n.pos - n.where(n.pos > 900, 2, 1), 0), 2))
add("frames_by_index_mod", (70, 700), "either", lambda n: n.x.take(n.pos - n.pos % 7, 2))
add("frames_clamped", (2500,), "either", lambda n: n.x.take(n.least(n.pos, 2500), 2))
add("frames_from_end", (100,), "refused", lambda n: n.x.take(n.T - 1 - n.pos, 2))
add("frames_last_repeated", (100,), "either", lambda n: n.x.take(n.least(n.pos + 2, n.T - 1), 2))
add("frames_first_late", (450,), "either", lambda n: n.x + n.x.take((n.T > 450).int().one(), 2))


@case((8, 1000), "either")
def split_end(n: Net) -> Wire:
    """All but the last three."""
    return n.op("Split", n.x, n.vector(n.T - 3, 3), outputs=2, axis=2)[0]


@case((500,), "either")
def split_late(n: Net) -> Wire:
    back = 3 + (n.T > 500).int()
    return n.op("Split", n.x, n.vector(n.T - back, back), outputs=2, axis=2)[0]


@case((100, 1000), "refused", shortest=3)
def split_mod(n: Net) -> Wire:
    return n.op("Split", n.x, n.vector(n.T % 3, n.T - n.T % 3), outputs=2, axis=2)[1]


@case((100, 1000), "either")
def split_channels_late(n: Net) -> Wire:
    """One channel of four, another of long streams."""
    wide = n.op("Concat", n.x, n.x * 2.0, axis=1)
    first = 1 + (n.T > 1000).int()
    return n.op("Split", wide, n.vector(first, 4 - first), outputs=2, axis=1)[1].cut(0, 1, 1)


@case((500,), "either")
def pad_late_then_conv(n: Net) -> Wire:
    """A kernel of four behind a pad of three, and of four for long streams."""
    return n.op("Conv", n.pad(n.x, 3 + (n.T > 500).int(), 0), n.weights(2, 2, 4))


@case((480_000,), "either", channels=1)
def whisper_pad_then_conv(n: Net) -> Wire:
    """To thirty seconds of samples, then a frame every 160."""
    return n.op("Conv", n.pad(n.x, 0, -n.T % 480_000), n.weights(1, 1, 400), strides=[160], pads=[200, 200])


@case((99, 100, 101, 1000), "exact")
def pad_multiple_then_group(n: Net) -> Wire:
    """[1, 2, T] padded to [1, 2, 4k], as [1, 8, k]."""
    padded = n.pad(n.x, 0, -n.T % 4)
    return padded.by(0, 2, 1).shaped(1, -1, 8).by(0, 2, 1)


@case((500, 1201), "either")
def scattered_frame(n: Net) -> Wire:
    """Frame 1,200 is overwritten; shorter streams do not exist."""
    rows = n.op("Squeeze", n.x, [0]).by(1, 0)
    return n.op("ScatterND", rows, [[1200]], n.const(np.array([[9.0, 9.0]], np.float32)))


@case((700,), "either")
def scattered_last(n: Net) -> Wire:
    rows = n.op("Squeeze", n.x, [0]).by(1, 0)
    return n.op("ScatterND", rows, (n.T - 1).shaped(1, 1), n.const(np.array([[9.0, 9.0]], np.float32)))


@case((700, 900), "either")
def scattered_mask(n: Net) -> Wire:
    """A mask with a hole that is made by writing into it."""
    mask = n.op("ScatterND", n.filled(1.0, 900), [[700]], [0.0])
    return n.x * n.op("Concat", mask, n.filled(1.0, n.T), axis=0).cut(0, n.T)


# ---- sizes

add("resize_twice", (100, 1000), "exact", lambda n: n.op("Resize", n.x, None, None, n.vector(1, 2, n.T * 2), **NEAREST))
add(
    "resize_late",
    (1000,),
    "either",
    lambda n: n.op("Resize", n.x, None, None, n.vector(1, 2, n.T * (2 + (n.T > 1000).int())), **NEAREST),
)
add(
    "resize_mod",
    (100, 1000),
    "refused",
    lambda n: n.op("Resize", n.x, None, None, n.vector(1, 2, n.T * 2 + n.T % 5), **NEAREST),
)
add(
    "resize_scale_late",
    (1000,),
    "either",
    lambda n: n.op(
        "Resize", n.x, None, n.op("Concat", [1.0, 1.0], (2 + (n.T > 1000).int()).float().one(), axis=0), **NEAREST
    ),
)
add(
    "resize_capped",
    (2000,),
    "either",
    lambda n: n.op("Resize", n.x, None, None, n.vector(1, 2, n.least(n.T * 2, 4000)), **NEAREST),
)
add("reshape_fours", (100, 1000), "exact", lambda n: n.x.by(0, 2, 1).shaped(1, n.T // 4, 8))
add("reshape_late", (1000,), "either", lambda n: n.x.by(0, 2, 1).shaped(1, -1, n.where(n.T > 1000, 2, 4)))
add("reshape_mod", (100, 1000), "refused", lambda n: n.x.by(0, 2, 1).shaped(1, -1, n.where(n.T % 4 == 0, 4, 2)))
add("reshape_batch_late", (1000,), "either", lambda n: n.x.shaped(1 + (n.T > 1000).int(), -1, n.T))
add(
    "reshape_and_back_late",
    (1000,),
    "either",
    lambda n: n.op("ReduceMean", n.x.by(0, 2, 1).shaped(1, -1, n.where(n.T > 1000, 1, 2)), [2], keepdims=1),
)
add("top_k_late", (800,), "either", lambda n: n.op("TopK", n.x, n.vector(1 + (n.T > 800).int()), outputs=2, axis=1)[0])
add(
    "trilu_channels",
    (900,),
    "either",
    lambda n: (
        n.op("Squeeze", n.x, [0]) * n.op("Trilu", n.filled(1.0, 2, 2), n.where(n.T > 900, 1, 0)).take(1, 1).new(1)
    ),
)
add("eye_columns", (2, 300), "either", lambda n: n.x * (1.0 + n.op("EyeLike", n.filled(0.0, 2, n.T))))
add("eye_shifted", (300,), "either", lambda n: n.x * (1.0 + n.op("EyeLike", n.filled(0.0, 2, n.T), k=280)))


# ---- branches and loops

add(
    "if_odd",
    (100, 1000),
    "refused",
    lambda n: n.choose(n.T % 2 == 1, lambda m: m.here(n.x) * 2.0, lambda m: m.here(n.x) * 3.0),
)
add(
    "if_past_100000",
    (100_000,),
    "either",
    lambda n: n.choose(n.T > 100_000, lambda m: m.here(n.x) * 2.0, lambda m: m.here(n.x) * 3.0),
    channels=1,
)
add(
    "if_past_700",
    (700,),
    "either",
    lambda n: n.choose(n.T > 700, lambda m: m.here(n.x) * 2.0, lambda m: m.here(n.x) * 3.0),
)
add(
    "if_past_3",
    (3,),
    "either",
    lambda n: n.choose(n.T > 3, lambda m: m.here(n.x) * 2.0, lambda m: m.here(n.x) * 3.0),
    shortest=4,
)
add(
    "if_same_both",
    (700,),
    "either",
    lambda n: n.choose(n.T > 700, lambda m: m.here(n.x) * 2.0, lambda m: m.here(n.x) + m.here(n.x)),
)
add(
    "if_pad_or_not",
    (4, 100),
    "either",
    lambda n: n.choose(n.T % 4 == 0, lambda m: m.here(n.x) * 1.0, lambda m: m.pad(m.here(n.x), 0, -m.here(n.T) % 4)),
)
add(
    "if_cut_when_long",
    (3000,),
    "either",
    lambda n: n.choose(n.T > 3000, lambda m: m.here(n.x).cut(0, 3000), lambda m: m.here(n.x) * 1.0),
)
add(
    "if_mod_997",
    (997, 1994),
    "refused",
    lambda n: n.choose(n.T % 997 == 0, lambda m: m.here(n.x) * 2.0, lambda m: m.here(n.x) * 3.0),
)
add("loop_mod_7", (100, 1000), "refused", lambda n: n.repeat(n.T % 7, n.x, lambda m, v: v * 2.0))
add("loop_hundreds", (100, 1000), "either", lambda n: n.repeat(n.T // 100, n.x, lambda m, v: v + 1.0))
add("loop_late", (1000,), "either", lambda n: n.repeat(2 + (n.T > 1000).int(), n.x, lambda m, v: v * 2.0))
add("loop_short", (3,), "either", lambda n: n.repeat(n.least(n.T, 3), n.x, lambda m, v: v * 2.0), shortest=3)
add("loop_capped", (900,), "either", lambda n: n.repeat(n.least(n.T // 100, 9), n.x, lambda m, v: v + 1.0))
add("loop_stops_late", (600,), "either", lambda n: n.repeat(n.most(3 - n.T // 200, 0), n.x, lambda m, v: v * 2.0))


def scanned(n: Net, factor: Wire) -> Wire:
    """h = h / 2 + x * factor, the factor captured from around the loop."""
    body = n.body(lambda m, h, u: [(s := h * 0.5 + u * m.here(factor)), s], [("f", [2]), ("f", [2])])
    x = n.op("Squeeze", n.x, [0]).by(1, 0)
    return n.op("Scan", [0.0, 0.0], x, kind="f", outputs=2, num_scan_inputs=1, body=body)[1]


add("scan_capture_late", (800,), "either", lambda n: scanned(n, n.where(n.T > 800, 2.0, 1.0)))
add("scan_capture_mod", (100, 1000), "refused", lambda n: scanned(n, (n.T % 7 + 1).float()))
add("scan_capture_const", (800,), "exact", lambda n: scanned(n, (n.T * 0 + 3).float()))


# ---- attention

add(
    "mask_segments_1000",
    (1000, 2000),
    "either",
    lambda n: n.attend((n.grid()[0] // 1000 == n.grid()[1] // 1000) & (n.grid()[1] <= n.grid()[0])),
)
add(
    "mask_segments_near",
    (1000, 2000),
    "either",
    lambda n: n.attend((n.grid()[0] // 1000 == n.grid()[1] // 1000) & n.near()),
)
add("mask_segments_12", (24, 300), "either", lambda n: n.attend(n.grid()[0] // 12 == n.grid()[1] // 12))
add("mask_key_777", (777, 785), "either", lambda n: n.attend(n.near() & ((n.grid()[1] != 777) | (n.grid()[0] == 777))))
add(
    "mask_keys_mod_701",
    (701, 1402),
    "either",
    lambda n: n.attend(n.near() & ((n.grid()[1] % 701 != 700) | (n.grid()[0] == n.grid()[1]))),
)
add("mask_row_900", (900,), "either", lambda n: n.attend(n.near() & ((n.grid()[0] != 900) | (n.grid()[1] == 900))))
add(
    "mask_last_mod_97",
    (50, 147, 1020),
    "either",
    lambda n: n.attend(n.near() & ((n.grid()[1] != n.T - 1) | (n.T % 97 != 50))),
)
add("mask_last_when_long", (500,), "either", lambda n: n.attend(n.near() & ((n.grid()[1] != n.T - 1) | (n.T < 500))))
add(
    "mask_keys_past_600",
    (600, 700),
    "either",
    lambda n: n.attend(n.near() & ((n.grid()[1] < 600) | (n.grid()[1] % 3 == 0) | (n.grid()[0] == n.grid()[1]))),
)
add(
    "mask_late_lookahead",
    (600,),
    "either",
    lambda n: n.attend(n.near() | ((n.grid()[1] == n.grid()[0] + 2) & (n.grid()[0] > 600))),
)
add(
    "mask_late_by_length",
    (600,),
    "either",
    lambda n: n.attend(n.near() | ((n.grid()[1] == n.grid()[0] + 2) & (n.T > 600))),
)
add("mask_sink", (300,), "either", lambda n: n.attend(n.near() | ((n.grid()[1] < 2) & (n.grid()[1] <= n.grid()[0]))))
add(
    "mask_by_table",
    (70, 300),
    "either",
    lambda n: n.attend(
        n.near() & (n.const(np.eye(7) < 1).take(n.pos % 7).take(n.pos % 7, 1) | (n.grid()[0] == n.grid()[1]))
    ),
)
add(
    "mask_near_2_24",
    (300,),
    "either",
    lambda n: n.attend(n.near() & (n.grid()[0].float() + 16777100.0 - (n.grid()[1].float() + 16777100.0) < 3.0)),
)
add("bias_alibi", (300,), "either", lambda n: n.attend(n.near(), (n.grid()[1] - n.grid()[0]).float() * 0.1))
add(
    "bias_buckets",
    (300,),
    "either",
    lambda n: n.attend(n.near(), n.weights(9).take(n.least(n.most(n.grid()[0] - n.grid()[1], 0), 5)) * 0.1),
)
add("bias_by_length", (500,), "either", lambda n: n.attend(n.near(), (n.grid()[1] % 2 * (n.T // 500)).float()))
add("bias_by_length_mod", (100, 500), "refused", lambda n: n.attend(n.near(), (n.grid()[1] % 2 * (n.T % 3)).float()))
add("bias_late_column", (800,), "either", lambda n: n.attend(n.near(), (n.grid()[1] == 800).float()))
add(
    "mask_chunks",
    (100, 300),
    "exact",
    lambda n: n.attend((n.grid()[0] // 4 - n.grid()[1] // 4 <= 2) & (n.grid()[1] // 4 <= n.grid()[0] // 4)),
)
add("mask_near_plain", (100, 300), "exact", lambda n: n.attend(n.near()))
add("mask_all_causal", (100, 300), "refused", lambda n: n.attend(n.grid()[1] <= n.grid()[0]))
add("mask_two_ranges", (1500,), "either", lambda n: n.attend(n.near() | (n.grid()[0] - n.grid()[1] == 1500)))


@case((1000, 1030), "either")
def mask_window_widens(n: Net) -> Wire:
    """Eight frames back, sixteen from frame 1,000 on."""
    i, j = n.grid()
    return n.attend((j <= i) & (i - j <= n.where(i > 1000, 16, 8)))


@case((1000, 1030), "either")
def mask_window_narrows(n: Net) -> Wire:
    i, j = n.grid()
    return n.attend((j <= i) & (i - j <= n.where(i > 1000, 4, 8)))


@case((500, 1000), "either")
def mask_window_by_length(n: Net) -> Wire:
    i, j = n.grid()
    return n.attend((j <= i) & (i - j <= n.least(n.T // 100, 8)))


@case((2000, 2100), "either")
def mask_trilu_band(n: Net) -> Wire:
    """A band of 2,000 made by two triangles."""
    ones = n.filled(1.0, n.T, n.T)
    return n.attend(n.op("Trilu", n.op("Trilu", ones, -2000), 0, upper=0).bool())


@case((30, 300), "exact")
def mask_trilu_band_small(n: Net) -> Wire:
    ones = n.filled(1.0, n.T, n.T)
    return n.attend(n.op("Trilu", n.op("Trilu", ones, -9), 0, upper=0).bool())


@case((600,), "either")
def mask_trilu_late(n: Net) -> Wire:
    """The diagonal moves with long streams."""
    ones = n.filled(1.0, n.T, n.T)
    return n.attend(n.op("Trilu", n.op("Trilu", ones, -9), n.where(n.T > 600, 1, 0), upper=0).bool())


@case((400,), "either")
def mask_eye(n: Net) -> Wire:
    return n.attend(n.op("EyeLike", n.filled(0.0, n.T, n.T)).bool() | n.near(3))


@case((1000, 2000), "exact")
def emb_rows_alike(n: Net) -> Wire:
    """A table of 1,024 rows, all of them alike, read round and round."""
    table = n.const(np.ones((1024, 2), np.float32))
    return n.x * table.take(n.pos % 1024).by(1, 0)
