"""Attention with relative positions behind strides: how the table is made, what is done to it, what stands in front.

built = build(Relative(front=(("pool", 3),), rows="joined", form="sin", steps=("expand", "project")))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx

from tests.attention.build import Array, Builder

WIDTH, HEADS = 8, 2
LONGEST = 600  # frames that learned tables are made for

FRONTS = ("conv", "pool", "max", "slice")
ROWS = ("direct", "difference", "joined", "flipped", "longer", "padded")  # how positions T - 1 ... 1 - T are written
FORMS = ("sin", "interleaved", "learned_gather", "learned_slice", "learned_clamped")
STEPS = (  # what is done to the table
    "expand", "heads", "flip_twice", "slice", "concat", "norm", "window", "gather", "pad", "split",
)  # fmt: skip
PRODUCTS = ("matmul", "einsum")
SHIFTS = ("pad", "concat")


@dataclass(frozen=True)
class Relative:
    front: tuple[tuple[str, int], ...] = ()
    rows: str = "direct"
    form: str = "sin"
    steps: tuple[str, ...] = ()
    product: str = "matmul"
    shift: str = "pad"
    chunk: int = 2  # frames that see each other, and `back` chunks before
    back: int = 1
    batch: int | str = 1
    change: str = ""  # what makes the table depend on the length
    longest: int = LONGEST  # frames that a learned table that is cut is made for

    @property
    def stride(self) -> int:
        return math.prod(by for _, by in self.front)


@dataclass(frozen=True)
class BuiltRelative:
    model: onnx.ModelProto
    feeds: Callable[[int], dict[str, Array]]
    streamed: Mapping[str, int] = field(default_factory=lambda: {"x": 1})


CHANGES: dict[str, Callable[[Builder, str], str]] = {
    "scaled": lambda b, t: b.op("Mul", descending(b, t), t),
    "absolute": lambda b, t: count(b, t),
    "floor": lambda b, t: b.op("Sub", b.op("Mul", b.op("Div", t, b.scalar(3)), b.scalar(3)), count(b, t)),
    "padded": lambda b, t: _behind(b, t, t),
    "modulo": lambda b, t: b.op("Mod", count(b, t), b.scalar(5)),
    "remainder": lambda b, t: b.op("Add", descending(b, t), b.op("Mod", t, b.scalar(3))),
}


def build(case: Relative) -> BuiltRelative:
    b = Builder(7)
    x = "x"
    for kind, by in case.front:
        x = _fewer(b, x, kind, by)
    t = b.size(x, 1)
    q, k, v = (_heads(b, b.op("MatMul", x, b.weight(WIDTH, WIDTH, scale=0.5))) for _ in range(3))
    scores = b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2))
    scores = b.op("Mul", b.op("Add", scores, _positions(b, case, x, q, t)), b.const(0.3))
    seen = b.op("Where", _mask(b, case, t), scores, b.const(-math.inf))
    y = b.op("MatMul", b.op("Softmax", seen, axis=-1), v)
    b.op("Tanh", b.reshape(b.transpose(y, 0, 2, 1, 3), 0, 0, -1), called="y")
    model = b.model({"x": ([case.batch, "T", WIDTH], np.float32)}, {"y": (3, np.float32)})

    def feeds(length: int) -> dict[str, Array]:
        size = 3 if isinstance(case.batch, str) else case.batch
        return {"x": np.random.default_rng(length).standard_normal((size, length, WIDTH)).astype(np.float32)}

    return BuiltRelative(model, feeds)


def _fewer(b: Builder, x: str, kind: str, by: int) -> str:
    if kind == "slice":
        return b.slice(x, 1, b.ints(0), b.ints(2**31), by)
    x = b.transpose(x, 0, 2, 1)
    if kind == "conv":
        x = b.op("Conv", x, b.weight(WIDTH, WIDTH, 3, scale=0.3), strides=[by], pads=[2, by - 1])
    else:
        x = b.op("AveragePool" if kind == "pool" else "MaxPool", x, kernel_shape=[by], strides=[by])
    return b.transpose(x, 0, 2, 1)


def _heads(b: Builder, x: str) -> str:
    return b.transpose(b.reshape(x, 0, 0, HEADS, WIDTH // HEADS), 0, 2, 1, 3)


def _mask(b: Builder, case: Relative, t: str) -> str:
    chunk = b.op("Div", b.range(t), b.scalar(case.chunk))
    apart = b.op("Sub", b.unsqueeze(chunk, 1), b.unsqueeze(chunk, 0))
    return b.op("And", b.op("GreaterOrEqual", apart, b.scalar(0)), b.op("LessOrEqual", apart, b.scalar(case.back)))


# ---- the table


def count(b: Builder, t: str) -> str:
    """0 ... 2 T - 2."""
    return b.range(b.op("Sub", b.op("Mul", t, b.scalar(2)), b.scalar(1)))


def descending(b: Builder, t: str) -> str:
    """T - 1 ... 1 - T."""
    return b.op("Range", b.op("Sub", t, b.scalar(1)), b.op("Neg", t), b.scalar(-1))


def _behind(b: Builder, t: str, fill: str) -> str:
    """T - 1 ... 0, and one number for all that is ahead."""
    rows = b.op("Range", b.op("Sub", t, b.scalar(1)), b.scalar(-1), b.scalar(-1))
    more = b.vector(b.op("Sub", t, b.scalar(1)))
    return b.op("Pad", rows, b.op("Concat", b.ints(0), more, axis=0), fill)


def _offsets(b: Builder, case: Relative, t: str) -> str:
    if case.change:
        return CHANGES[case.change](b, t)
    last, zero = b.op("Sub", t, b.scalar(1)), b.scalar(0)
    if case.rows == "direct":
        return descending(b, t)
    if case.rows == "difference":
        return b.op("Sub", last, count(b, t))
    if case.rows == "joined":
        back, ahead = b.op("Range", last, zero, b.scalar(-1)), b.op("Range", zero, b.op("Neg", t), b.scalar(-1))
        return b.op("Concat", back, ahead, axis=0)
    if case.rows == "flipped":
        ascending = b.op("Range", b.op("Sub", b.scalar(1), t), t, b.scalar(1))
        return b.slice(ascending, 0, b.ints(-1), b.ints(-(2**62)), -1)
    if case.rows == "padded":
        return _behind(b, t, zero)
    longer = b.op("Range", b.op("Add", t, b.scalar(4)), b.op("Sub", b.scalar(-3), t), b.scalar(-1))
    return b.slice(longer, 0, b.ints(5), b.ints(-3))


def _table(b: Builder, case: Relative, t: str) -> str:
    """[2 T - 1, WIDTH]."""
    if case.form == "learned_slice" and not case.change:
        start = b.vector(b.op("Sub", b.scalar(case.longest), t))
        end = b.vector(b.op("Add", t, b.scalar(case.longest - 1)))
        rows = b.rng.standard_normal((2 * LONGEST - 1, WIDTH))[LONGEST - case.longest : LONGEST + case.longest - 1]
        return b.slice(b.const(rows.astype(np.float32)), 0, start, end)
    rows = _offsets(b, case, t)
    if case.form == "learned_clamped":
        near = b.op("Clip", rows, b.scalar(-3), b.scalar(3))
        return b.op("Gather", b.weight(7, WIDTH), b.op("Add", near, b.scalar(3)))
    if case.form.startswith("learned"):
        return b.op("Gather", b.weight(4 * LONGEST, WIDTH), b.op("Add", rows, b.scalar(LONGEST)))
    w = b.const(np.exp(-math.log(100.0) * np.arange(0, WIDTH, 2) / WIDTH))
    angle = b.op("Mul", b.unsqueeze(b.cast(rows, np.float32), 1), w)
    pair = b.op("Sin", angle), b.op("Cos", angle)
    if case.form == "interleaved":
        return b.reshape(b.op("Concat", *(b.unsqueeze(p, -1) for p in pair), axis=-1), -1, WIDTH)
    return b.op("Concat", *pair, axis=1)


def _changed(b: Builder, case: Relative, x: str, table: str) -> str:
    """[1 or batch, 2 T - 1, WIDTH]."""
    table = b.unsqueeze(table, 0)
    for step in case.steps:
        if step == "expand":
            sizes = b.op("Concat", b.vector(b.size(x, 0)), b.ints(1, 1), axis=0)
            table = b.op("Expand", table, sizes)
        elif step == "heads":
            table = b.op("Squeeze", b.op("Tile", b.unsqueeze(table, 1), b.ints(1, 1, 1, 1)), b.ints(1))
        elif step == "flip_twice":
            table = _flipped(b, _flipped(b, table))
        elif step == "slice":
            table = b.slice(b.op("Concat", table, table, axis=2), 2, b.ints(0), b.ints(2 * WIDTH), 2)
        elif step == "concat":
            more = b.weight(1, 3, WIDTH)
            if "expand" in case.steps:  # a row of entries a stream, wherever that comes
                more = b.op("Expand", more, b.op("Concat", b.vector(b.size(table, 0)), b.ints(1, 1), axis=0))
            table = b.slice(b.op("Concat", more, table, axis=1), 1, b.ints(3), b.ints(2**62))
        elif step == "norm":
            table = b.op("LayerNormalization", table, b.weight(WIDTH), axis=-1)
        elif step == "window":
            mixed = b.op("Conv", b.transpose(table, 0, 2, 1), b.weight(WIDTH, WIDTH, 3, scale=0.4), pads=[1, 1])
            table = b.transpose(mixed, 0, 2, 1)
        elif step == "gather":
            table = _flipped(b, b.op("Gather", table, _last_first(b, table), axis=1))
        elif step == "pad":
            padded = b.op("Pad", table, b.ints(0, 2, 0, 0, 3, 0), b.const(0.5))
            table = b.slice(padded, 1, b.ints(2), b.ints(-3))
        elif step == "split":
            left = b.op("Split", table, b.ints(3, WIDTH - 3), axis=2)
            b.nodes[-1].output.append(f"{left}_right")
            table = b.op("Concat", f"{left}_right", left, axis=2)
    return table


def _flipped(b: Builder, table: str) -> str:
    return b.slice(table, 1, b.ints(-1), b.ints(-(2**62)), -1)


def _last_first(b: Builder, table: str) -> str:
    rows = b.size(table, 1)
    return b.op("Sub", b.op("Sub", rows, b.scalar(1)), b.range(rows))


def _positions(b: Builder, case: Relative, x: str, q: str, t: str) -> str:
    """Scores by offset, [B, H, T, T]."""
    table = _changed(b, case, x, _table(b, case, t))
    table = b.op("MatMul", table, b.weight(WIDTH, WIDTH, scale=0.7))
    streams: int | str = b.size(x, 0) if "expand" in case.steps else 1
    split = b.reshape(table, streams, -1, HEADS, WIDTH // HEADS)
    biased = b.op("Add", q, b.weight(HEADS, 1, WIDTH // HEADS))
    if case.product == "matmul" or "expand" in case.steps:
        raw = b.op("MatMul", biased, b.transpose(split, 0, 2, 3, 1))
    else:
        raw = b.op("Einsum", biased, b.op("Squeeze", split, b.ints(0)), equation="bhid,rhd->bhir")
    batch, width = b.size(q, 0), b.op("Sub", b.op("Mul", t, b.scalar(2)), b.scalar(1))
    if case.shift == "pad":
        padded = b.op("Pad", raw, b.ints(0, 0, 0, 1, 0, 0, 0, 0))
    else:
        padded = b.op("Concat", b.op("ConstantOfShape", b.shape(batch, HEADS, t, 1)), raw, axis=3)
    skewed = b.slice(b.reshape(padded, batch, HEADS, -1, t), 2, b.ints(1), b.ints(2**31))
    return b.slice(b.reshape(skewed, batch, HEADS, t, width), 3, b.ints(0), b.vector(t))
