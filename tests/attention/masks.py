"""Masks over (query i, key j): what they allow, and the many ways to write the same one down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.attention.build import Array, Builder

TABLE = 1024  # rows of the tables that cap the batch model

POSITIONS = ("int", "float", "cumsum", "gather", "tril", "buffer")
LOGICS = ("and", "not", "where", "mul")
KINDS = (
    "chunk", "token", "chunk_causal", "chunk_token", "block", "dilated", "strided", "columns", "causal", "prefix",
    "ahead", "none",
)  # fmt: skip
TRIL = ("token", "causal", "chunk_causal", "dilated", "ahead")


@dataclass(frozen=True)
class Mask:
    """What i may look at.

    chunk: chunks of i//chunk - left ... + right; token: frames i - left ... i + right; chunk_causal: both chunk and
    j <= i; chunk_token: the chunk of i and `left` frames before it (NeMo's att_context counts so);
    block: the own chunk; dilated: every second frame of token; strided: the last two frames and every chunk-th before,
    of token; columns: the last frame of every chunk and the two frames i, i-1, of token; causal: everything before;
    prefix: everything before the end of the chunk; ahead: everything from i on.
    """

    kind: str = "chunk"
    chunk: int = 4
    left: int = 2
    right: int = 0

    def allows(self, i: Array, j: Array) -> Array:
        """The mask itself, in numpy."""
        c, d = i // self.chunk - j // self.chunk, i - j
        band = (d >= -self.right) & (d <= self.left)
        return {
            "chunk": (c >= -self.right) & (c <= self.left),
            "token": band,
            "chunk_causal": (c >= 0) & (c <= self.left) & (d >= 0),
            "chunk_token": (c >= 0) & (i // self.chunk * self.chunk - j <= self.left),
            "block": c == 0,
            "dilated": band & (d % 2 == 0),
            "strided": band & ((d < 2) | (d % self.chunk == 0)),
            "columns": band & ((d < 2) | (j % self.chunk == self.chunk - 1)),
            "causal": d >= 0,
            "prefix": c >= 0,
            "ahead": d <= 0,
            "none": d == d,
        }[self.kind]

    @property
    def aligned(self) -> int:
        """Pulses that are multiples of this add no delay; 0: there is no such pulse."""
        if self.kind in ("chunk", "token", "dilated", "strided", "columns") and self.right:
            return 0
        return self.chunk if self.kind in ("chunk", "chunk_token", "block", "prefix") else 1


@dataclass(frozen=True)
class Writing:
    """How it is written: where positions come from, how conditions are joined."""

    positions: str = "int"
    logic: str = "and"


class MaskWriter:
    """Writes a mask over `rows` x `cols` frames; rows and cols count `steps` frames each."""

    def __init__(self, b: Builder, writing: Writing, sizes: tuple[str, str], steps: tuple[int, int] = (1, 1)) -> None:
        self.b, self.how, self.sizes, self.steps = b, writing, sizes, steps

    def write(self, mask: Mask) -> str:
        """A bool tensor [rows, cols]."""
        if self.how.positions == "buffer":
            return self._buffer(mask)
        b = self.b
        if mask.kind == "none":
            zero = b.op("Mul", self._distance(self._places()), b.scalar(0))
            return b.op("Equal", zero, b.scalar(0))
        if mask.kind in ("chunk", "block"):
            left, right = (mask.left, mask.right) if mask.kind == "chunk" else (0, 0)
            return self._between(self._distance(self._chunks(mask)), -right, left)
        if mask.kind == "prefix":
            return b.op("GreaterOrEqual", self._distance(self._chunks(mask)), self._number(0))
        if mask.kind == "chunk_causal":
            chunks = self._between(self._distance(self._chunks(mask)), 0, mask.left)
            return self._both(chunks, self._band(None, 0))
        if mask.kind == "chunk_token":
            chunks = b.op("GreaterOrEqual", self._distance(self._chunks(mask)), self._number(0))
            start = b.op("Mul", self._chunks(mask)[0], self._number(mask.chunk))
            since = b.op("LessOrEqual", b.op("Sub", start, self._places()[1]), self._number(mask.left))
            return self._both(chunks, since)
        if mask.kind in ("causal", "ahead"):
            return self._band(None, 0) if mask.kind == "causal" else self._band(0, None)
        band = self._band(mask.left, mask.right)
        return band if mask.kind == "token" else self._both(band, self._sparse(mask))

    def _sparse(self, mask: Mask) -> str:
        b = self.b
        i, j = (b.cast(p, np.int64) for p in self._places())
        d = b.op("Sub", i, j)
        if mask.kind == "dilated":
            return b.op("Equal", b.op("Mod", d, b.scalar(2)), b.scalar(0))
        near = b.op("Less", d, b.scalar(2))
        if mask.kind == "strided":
            return b.op("Or", near, b.op("Equal", b.op("Mod", d, b.scalar(mask.chunk)), b.scalar(0)))
        return b.op("Or", near, b.op("Equal", b.op("Mod", j, b.scalar(mask.chunk)), b.scalar(mask.chunk - 1)))

    # ---- positions

    def _places(self) -> tuple[str, str]:
        """i as a column, j as a row."""
        found = [self._place(size, step) for size, step in zip(self.sizes, self.steps, strict=True)]
        return self.b.unsqueeze(found[0], 1), self.b.unsqueeze(found[1], 0)

    def _place(self, size: str, step: int) -> str:
        b = self.b
        if self.how.positions == "cumsum":
            ones = b.op("ConstantOfShape", b.vector(size), value=_one(np.int64))
            p = b.op("Sub", b.op("CumSum", ones, b.scalar(0)), b.scalar(1))
        elif self.how.positions == "gather":
            p = b.op("Gather", b.const(np.arange(TABLE)), b.range(size))
        else:
            p = b.range(size)
        if step != 1:
            p = b.op("Mul", p, b.scalar(step))
        return b.cast(p, np.float32) if self.how.positions == "float" else p

    def _chunks(self, mask: Mask) -> tuple[str, str]:
        b = self.b
        if self.how.positions == "gather" and self.steps == (1, 1):
            table = b.const(np.arange(TABLE) // mask.chunk)
            i, j = (b.op("Gather", table, b.range(size)) for size in self.sizes)
            return b.unsqueeze(i, 1), b.unsqueeze(j, 0)
        i, j = (b.op("Div", p, self._number(mask.chunk)) for p in self._places())
        if self.how.positions == "float":
            i, j = b.op("Floor", i), b.op("Floor", j)
        return i, j

    def _distance(self, places: tuple[str, str]) -> str:
        return self.b.op("Sub", *places)

    def _number(self, value: int) -> str:
        return self.b.const(np.array(value, np.float32 if self.how.positions == "float" else np.int64))

    # ---- conditions

    def _band(self, left: int | None, right: int | None) -> str:
        """i - left <= j <= i + right; None: no bound."""
        b = self.b
        if self.how.positions != "tril":
            return self._between(self._distance(self._places()), None if right is None else -right, left)
        ones = b.op("ConstantOfShape", b.shape(*self.sizes), value=_one(np.float32))
        if right is not None:
            ones = b.op("Trilu", ones, b.scalar(right), upper=0)
        if left is not None:
            ones = b.op("Trilu", ones, b.scalar(-left), upper=1)
        return b.op("Greater", ones, b.const(0.5))

    def _between(self, d: str, low: int | None, high: int | None) -> str:
        b, number = self.b, self._number
        if low is None or high is None:
            if self.how.logic == "not":
                kind, bound = ("Less", low) if high is None else ("Greater", high)
                return b.op("Not", b.op(kind, d, number(bound or 0)))
            kind, bound = ("GreaterOrEqual", low) if high is None else ("LessOrEqual", high)
            return b.op(kind, d, number(bound or 0))
        if self.how.logic == "not":
            return b.op("Not", b.op("Or", b.op("Less", d, number(low)), b.op("Greater", d, number(high))))
        if self.how.logic == "where":
            inner = b.op("Where", b.op("Greater", d, number(high)), b.const(0.0), b.const(1.0))
            return b.cast(b.op("Where", b.op("Less", d, number(low)), b.const(0.0), inner), np.bool_)
        return self._both(b.op("GreaterOrEqual", d, number(low)), b.op("LessOrEqual", d, number(high)))

    def _both(self, x: str, y: str) -> str:
        b = self.b
        if self.how.logic == "not":
            return b.op("Not", b.op("Or", b.op("Not", x), b.op("Not", y)))
        if self.how.logic == "where":
            return b.cast(b.op("Where", x, b.cast(y, np.float32), b.const(0.0)), np.bool_)
        if self.how.logic == "mul":
            product = b.op("Mul", b.cast(x, np.float32), b.cast(y, np.float32))
            return b.op("Greater", product, b.const(0.5))
        return b.op("And", x, y)

    def _buffer(self, mask: Mask) -> str:
        """A table of the largest size, cut to length (GPT-2)."""
        b = self.b
        p, q = (np.arange(TABLE) * step for step in self.steps)
        table = b.const(mask.allows(p[:, None], q[None]))
        cut = b.slice(table, 0, b.ints(0), b.vector(self.sizes[0]))
        return b.slice(cut, 1, b.ints(0), b.vector(self.sizes[1]))


def _one(dtype: type) -> object:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.ones(1, dtype))
