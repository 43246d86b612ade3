"""Where a tensor lies: a piece of memory seen through strides. Transposes, slices and most reshapes move nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import onnx_ir as ir

Kind = Literal["work", "state", "weight", "in", "out"]
Sizes = tuple[int, ...]

C_TYPES = {
    ir.DataType.FLOAT: "float", ir.DataType.DOUBLE: "double", ir.DataType.INT64: "int64_t",
    ir.DataType.INT32: "int32_t", ir.DataType.INT16: "int16_t", ir.DataType.INT8: "int8_t",
    ir.DataType.UINT8: "uint8_t", ir.DataType.UINT16: "uint16_t", ir.DataType.UINT32: "uint32_t",
    ir.DataType.BOOL: "uint8_t",
}  # fmt: skip
NUMPY = {
    "double": "float64",
    "int64_t": "int64",
    "float": "float32",
    "int32_t": "int32",
    "uint32_t": "uint32",
    "int16_t": "int16",
    "uint16_t": "uint16",
    "int8_t": "int8",
    "uint8_t": "uint8",
}  # fmt: skip  widest first: so they lie in a struct
FLOATING = ("float", "double")


def width(ctype: str) -> int:
    """Bytes of an element."""
    return np.dtype(NUMPY[ctype]).itemsize


@dataclass(eq=False)
class Buffer:
    """A piece of one arena. offset: in elements, worked out when all lifetimes are known.

    moved: what it is seen from on is as many times so many elements further on as another one says, when it runs.
    """

    kind: Kind
    ctype: str
    size: int
    label: str
    offset: int = 0
    moved: tuple[Buffer, int] | None = None


@dataclass(frozen=True)
class View:
    """Elements of a buffer: the one at index i lies at offset + sum(i * strides)."""

    buffer: Buffer
    shape: Sizes
    strides: Sizes
    offset: int = 0

    @property
    def ctype(self) -> str:
        return self.buffer.ctype

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def order(self) -> Sizes:
        """The axes, from the outermost in memory to the innermost."""
        return tuple(sorted(range(len(self.shape)), key=lambda a: -self.strides[a] if self.shape[a] > 1 else -math.inf))

    @property
    def dense(self) -> bool:
        """Does it lie in one piece, its elements in their own order?"""
        return all(d == 1 or s == t for d, s, t in zip(self.shape, self.strides, row_major(self.shape), strict=True))

    def permuted(self, axes: Sequence[int]) -> View:
        pick = tuple(axes)
        return replace(self, shape=tuple(self.shape[a] for a in pick), strides=tuple(self.strides[a] for a in pick))

    def cut(self, axis: int, start: int, size: int, step: int = 1) -> View:
        """Along an axis, so many from `start` on, `step` apart."""
        shape, strides = list(self.shape), list(self.strides)
        at = self.offset + start * strides[axis]
        shape[axis], strides[axis] = size, strides[axis] * step
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=at)

    def spread(self, shape: Sequence[int]) -> View:
        """Repeated to a larger shape, as ONNX broadcasts."""
        more = len(shape) - len(self.shape)
        own = (1,) * more + self.shape
        strides = (0,) * more + self.strides
        pairs = zip(own, shape, strides, strict=True)
        return replace(self, shape=tuple(shape), strides=tuple(0 if d != w else s for d, w, s in pairs))

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """The same elements in the same order; None if that takes a copy."""
        strides = reshaped_strides(self.shape, self.strides, tuple(shape))
        return None if strides is None else replace(self, shape=tuple(shape), strides=strides)


def row_major(shape: Sequence[int]) -> Sizes:
    out, step = [], 1
    for d in reversed(shape):
        out.append(step)
        step *= max(d, 1)
    return tuple(reversed(out))


def in_order(shape: Sequence[int], order: Sequence[int]) -> Sizes:
    """Strides of a dense piece of memory with the axes in this order, the last innermost."""
    inner = row_major([shape[a] for a in order])
    return tuple(inner[list(order).index(a)] for a in range(len(shape)))


def reshaped_strides(old: Sizes, strides: Sizes, new: Sizes) -> Sizes | None:
    """Strides under which memory of shape `old` is seen as `new`, or None."""
    if math.prod(old) == 0 or math.prod(new) == 0:
        return row_major(new)
    kept = [(d, s) for d, s in zip(old, strides, strict=True) if d != 1]
    out: list[int] = []
    want = [d for d in new if d != 1]
    i = j = 0
    while i < len(kept) and j < len(want):
        have, need, i2, j2 = kept[i][0], want[j], i + 1, j + 1
        while have != need:
            if have < need:
                if i2 >= len(kept):
                    return None
                have *= kept[i2][0]
                i2 += 1
            else:
                if j2 >= len(want):
                    return None
                need *= want[j2]
                j2 += 1
        for k in range(i, i2 - 1):
            if kept[k][1] != kept[k + 1][0] * kept[k + 1][1]:
                return None
        inner, part = kept[i2 - 1][1], []
        for d in reversed(want[j:j2]):
            part.append(inner)
            inner *= d
        out += reversed(part)
        i, j = i2, j2
    found = iter(out)
    return tuple(next(found) if d != 1 else 1 for d in new)


def merged(shape: Sizes, many: Sequence[Sizes]) -> tuple[Sizes, list[Sizes]]:
    """Neighbouring axes that lie together in all of these become one; axes of one element go."""
    kept = [a for a, d in enumerate(shape) if d != 1]
    groups: list[list[int]] = []
    for a in kept:
        if groups and all(s[groups[-1][-1]] == s[a] * shape[a] for s in many):
            groups[-1].append(a)
        else:
            groups.append([a])
    sizes = tuple(math.prod(shape[a] for a in g) for g in groups)
    return sizes, [tuple(s[g[-1]] for g in groups) for s in many]


def indices(names: Sequence[str], strides: Sequence[int]) -> str:
    """i0 * 12 + i1, as C."""
    terms = [n if s == 1 else f"{n} * {s}" for n, s in zip(names, strides, strict=True) if s]
    return " + ".join(terms) or "0"


def loops(names: Sequence[str], sizes: Sequence[int]) -> Iterator[str]:
    """The heads of nested loops."""
    for name, size in zip(names, sizes, strict=True):
        yield f"for (int {name} = 0; {name} < {size}; {name}++) {{"
