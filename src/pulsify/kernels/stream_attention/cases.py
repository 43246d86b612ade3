"""Cases of `stream_attention`: what must hold, with inputs from seeds. Expected is what the specification gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pulsify.kernels.registry import Case

Array = npt.NDArray[Any]
Made = dict[str, Any]
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Shape:
    """Sizes of a case, and which of the optional parts it has."""

    batch: int = 2
    heads: int = 2
    queries: int = 4
    depth: int = 16
    width: int = 12
    new: int = 0
    value_depth: int = 0  # 0: as deep as the keys
    ring: bool = False
    relative: bool = False
    biased: bool = False
    seed: int = 0


def inputs(shape: Shape) -> Made:
    """Normal numbers, scores of about 1."""
    rng = np.random.default_rng(shape.seed)
    b, h, t, d, w, n = shape.batch, shape.heads, shape.queries, shape.depth, shape.width, shape.new
    e = shape.value_depth or d
    made: Made = {
        "q": rng.standard_normal((b, h, t, d)), "keys": rng.standard_normal((b, h, w, d)),
        "values": rng.standard_normal((b, h, w, e)), "scale": d**-0.5,
    }  # fmt: skip
    if n:
        made |= {"new_keys": rng.standard_normal((b, h, n, d)), "new_values": rng.standard_normal((b, h, n, e))}
    if shape.ring:
        made["start"] = rng.integers(0, max(w, 1), b)
    if shape.relative:
        made |= {"table": rng.standard_normal((h, w + n + t + 2, d)), "shift": t}  # with a row to spare at both ends
    if shape.biased:
        made["u"] = rng.standard_normal((h, d))
        made |= {"v": rng.standard_normal((h, d))} if shape.relative else {}
    return made


def whole(made: Made) -> tuple[int, int, int, int]:
    """Batch, heads, queries, columns."""
    b, h, t, _ = made["q"].shape
    return b, h, t, made["keys"].shape[2] + (made["new_keys"].shape[2] if "new_keys" in made else 0)


# ---- what is done to the inputs of a case


def bias(made: Made, axes: str = "bhtc") -> Made:
    """A bias along some axes, broadcast along the others."""
    sizes = [size if axis in axes else 1 for axis, size in zip("bhtc", whole(made))]
    return made | {"bias": np.random.default_rng(1).standard_normal(sizes)}


def mask(made: Made, axes: str = "bhtc", **options: Any) -> Made:
    """Every row sees a column; the last query's first."""
    sizes = [size if axis in axes else 1 for axis, size in zip("bhtc", whole(made))]
    shown = np.random.default_rng(2).random(sizes) < 0.6
    shown[..., 0] = True
    return made | {"mask": shown, **options}


def hollow(made: Made, kind: str) -> Made:
    """Row 1 of every head sees nothing."""
    made = mask(made, hollow=kind)
    made["mask"][:, :, 1] = False
    return made


def invalid(made: Made, first: Any = (3, 0), last: Any = (11, 9), **options: Any) -> Made:
    return made | {"first": np.array(first), "last": np.array(last), **options}


def poison(made: Made, name: str, at: Any, number: float = math.nan) -> Made:
    made[name][at] = number
    return made


def scored(made: Made, size: float) -> Made:
    """Scores of about this size."""
    return made | {"q": made["q"] * size, "scale": made["scale"]}


def lowered(made: Made, rows: slice, kind: str = "nan") -> Made:
    """-inf in the bias: every third column, and all of some rows."""
    added = np.zeros(whole(made))
    added[..., ::3] = -math.inf
    added[:, :, rows] = -math.inf
    return made | {"bias": added, "hollow": kind}


def arena(made: Made) -> Made:
    """Rows of other streams between; the last stream is padding, that reads a row nobody writes to."""
    b = len(made["q"])
    rng = np.random.default_rng(3)
    for name in ("keys", "values"):
        made[name] = rng.standard_normal((2 * b + 2, *made[name].shape[1:]))
    read = 2 * np.arange(b)[::-1] + 1
    write = read.copy()
    write[-1] = 2 * b
    return made | {"read": read, "write": write}


def turned(made: Made) -> Made:
    """Other orders in memory: frames before heads, and depth not innermost."""
    made |= {name: _stored(made[name], (0, 2, 1, 3)) for name in ("q", "new_keys", "values")}
    return made | {name: _stored(made[name], (0, 1, 3, 2)) for name in ("keys", "new_values")}


def _stored(array: Array, order: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


# ---- the cases


def _case(name: str, about: str, shape: Shape | None = None, *steps: Callable[[Made], Made]) -> Case:
    def make() -> Made:
        made = inputs(shape or Shape())
        for step in steps:
            made = step(made)
        return made

    return Case(name, about, make)


FULL = Shape(new=4, ring=True, relative=True, biased=True)
BLOCKS = Shape(batch=1, heads=1, width=300, new=4, ring=True, relative=True, biased=True)
ROW = (slice(None), slice(None), 2)  # of queries: the third; of keys and values: the third column

CASES: tuple[Case, ...] = (
    _case("plain", "softmax of the products, times the values"),
    _case("values-deeper", "values have a depth of their own", Shape(value_depth=24)),
    _case("query-bias", "u is added to the queries", Shape(biased=True)),
    _case("ring", "a start per stream", Shape(ring=True, batch=5)),
    _case("appended", "new frames take part, then replace the oldest", Shape(new=5, ring=True)),
    _case("appended-plain", "new frames of a window without a start", Shape(new=5)),
    _case("appended-many", "more new frames than the window has", Shape(new=17, ring=True, width=7)),
    _case("appended-nothing-kept", "a window of no columns keeps none", Shape(new=4, width=0)),
    _case("arena", "rows of an arena, read and written", Shape(new=4, ring=True, batch=3), arena),
    _case("valid", "columns before the start and past the end take no part", None, invalid),
    _case("valid-blocks", "whole blocks are invalid", BLOCKS, partial(invalid, first=(150,), last=(290,))),
    *(
        _case(f"bias-{axes or 'one'}", "a bias, broadcast along the other axes", None, partial(bias, axes=axes))
        for axes in ("bhtc", "htc", "bc", "t", "")
    ),
    *(
        _case(f"mask-{axes}", "hidden cells take no part", None, partial(mask, axes=axes))
        for axes in ("bhtc", "tc", "bc")
    ),
    _case("mask-filled", "a finite score where cells are hidden", None, partial(mask, fill=-3.0)),
    _case("mask-lowest", "the lowest score where cells are hidden", None, partial(mask, fill=LOWEST)),
    _case("mask-blocks", "hidden cells, block by block", BLOCKS, mask),
    _case("hollow-nan", "a row that sees nothing is NaN, as in ONNX", None, partial(hollow, kind="nan")),
    _case("hollow-zero", "or zero, where the graph selects zeros", None, partial(hollow, kind="zero")),
    _case("hollow-quiet", "zero, and wherever weights are NaN", FULL, partial(hollow, kind="quiet"),
          partial(poison, name="q", at=(0, 1, 2, 3)), partial(poison, name="keys", at=(1, 1, 3, 3))),
    _case("hollow-quiet-blocks", "the same, block by block", BLOCKS, partial(hollow, kind="quiet"),
          partial(poison, name="keys", at=(0, 0, 200, 3))),
    _case(
        "hollow-filled", "with a finite score all hidden cells are alike", None,
        partial(hollow, kind="nan"), lambda made: made | {"fill": -1e4},
    ),
    _case("hollow-invalid-nan", "no valid column at all", None, partial(invalid, first=(3, 5), last=(11, 5))),
    _case(
        "hollow-invalid-zero", "no valid column at all, zeros", None,
        partial(invalid, first=(3, 5), last=(11, 5), hollow="zero"),
    ),
    _case("hollow-blocks", "in some blocks nothing is seen", BLOCKS, partial(hollow, kind="zero")),
    _case("scores-high", "scores of 1e4 stay finite", None, partial(scored, size=1e4)),
    _case("scores-low", "scores of -1e4 stay finite", None, lambda made: made | {"bias": np.full((1, 1, 1, 1), -1e4)}),
    _case("scores-high-blocks", "scores of 1e4, block by block", BLOCKS, partial(scored, size=1e3)),
    _case("nan-query", "NaN in a query reaches its row", FULL, partial(poison, name="q", at=(0, 1, 2, 3))),
    _case("nan-key", "NaN in a key reaches all that see it", FULL, partial(poison, name="keys", at=(0, 1, 2, 3))),
    _case("nan-value", "NaN in a value reaches all that see it", FULL, partial(poison, name="values", at=(0, 1, 2, 3))),
    _case("nan-new", "NaN in a new frame", FULL, partial(poison, name="new_values", at=(1, 0, 2, 3))),
    _case("nan-table", "NaN in an offset reaches its diagonal", FULL, partial(poison, name="table", at=(0, 7, 3))),
    *(
        _case(f"nan-hidden-{name}", "NaN reaches no row that does not see it", None, mask,
              partial(poison, name=name, at=ROW))
        for name in ("keys", "values")
    ),
    _case("nan-hidden-blocks", "the same, block by block", BLOCKS, mask,
          partial(poison, name="values", at=(0, 0, 200, 3))),
    _case("inf-hidden", "infinite values, too", None, mask, partial(poison, name="values", at=ROW, number=math.inf),
          partial(poison, name="values", at=(0, 0, 5, 1), number=-math.inf)),
    *(
        _case(f"nan-invalid-{name}", "NaN in an invalid column reaches none", None, invalid,
              partial(poison, name=name, at=(slice(None), slice(None), 11)))
        for name in ("keys", "values")
    ),
    _case("bias-lowered", "-inf in the bias: the weight is 0", None, partial(lowered, rows=slice(0, 0))),
    _case("bias-lowered-rows", "a row of -inf alone is NaN", None, partial(lowered, rows=slice(1, 2))),
    _case("bias-lowered-zero", "and no hollow row", None, partial(lowered, rows=slice(1, 2), kind="zero")),
    _case("relative", "a table's row per offset, along the diagonal", Shape(relative=True)),
    _case("relative-biased", "with both query biases", Shape(relative=True, biased=True)),
    _case("relative-appended", "positions, a ring, new frames", FULL),
    _case("relative-many", "so many queries that products are made beforehand",
          Shape(19, 1, 14, 8, 9, 14, ring=True, relative=True, biased=True)),
    _case("relative-one", "a single query", Shape(queries=1, new=1, ring=True, relative=True, biased=True)),
    _case("relative-blocks", "positions, block by block", BLOCKS),
    _case("relative-tile", "offsets beyond one tile", Shape(queries=20, width=110, new=18, relative=True, biased=True)),
    _case("everything", "bias, mask and valid columns as well", FULL, bias, mask, invalid),
    _case("turned", "any order in memory", Shape(new=4, ring=True, batch=3, relative=True), turned),
    _case("flagship", "window 70 + 14, 14 queries", replace(FULL, batch=1, queries=14, depth=128, width=70, new=14)),
    _case("flagship-one", "window 70 + 1, one query", replace(FULL, queries=1, depth=128, width=70, new=1)),
    _case("many-queries", "more than one program takes", Shape(1, 1, 100, 16, 30, 100, ring=True, relative=True)),
    *(
        _case(f"depth-{d}", "no power of two", replace(FULL, batch=1, heads=1, queries=3, depth=d, width=9, new=3))
        for d in (1, 3, 40, 64, 80, 96, 128, 256)
    ),
    *(
        _case(f"queries-{t}", "one query to 64", Shape(1, 1, t, 16, 20, t, relative=True))
        for t in (1, 2, 15, 16, 17, 33, 64)
    ),
    *(
        _case(f"width-{w}", "one column to 8,192", Shape(1, 1, 2, 16, w, 2, ring=True, relative=True))
        for w in (1, 2, 16, 63, 64, 127, 128, 129, 1024, 8192)
    ),
)  # fmt: skip
