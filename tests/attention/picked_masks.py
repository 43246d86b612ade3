"""Random masks picked by indices of streams, rows and columns, as one graph.

drawn = draw(np.random.default_rng(7))     # drawn.model: x [B, T, 4] (and "mask" [B, T]) -> y; drawn.text: its parts
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from tests.attention.build import Builder

WIDTH = 4


@dataclass(frozen=True)
class Drawn:
    model: onnx.ModelProto
    text: str
    masked: bool


class Masks:
    """One graph in the making. Indices: streams [B, 1, 1, 1], rows [1, 1, T, 1], columns [1, 1, 1, T]."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.b, self.rng, self.text = Builder(), rng, list[str]()
        b = self.b
        self.streams, self.frames = b.size("x", 0), b.size("x", 1)
        self.stream = b.unsqueeze(b.range(self.streams), 1, 2, 3)
        self.row = b.unsqueeze(b.range(self.frames), 0, 1, 3)
        self.column = b.unsqueeze(b.range(self.frames), 0, 1, 2)
        self.masked = False

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def says(self, text: str) -> None:
        self.text.append(text)

    def at(self, table: str, place: str) -> str:
        """table[stream, place]"""
        b = self.b
        both = b.op("Max", self.stream, place)
        shape = b.op("Shape", both)
        columns = [b.unsqueeze(b.op("Expand", i, shape), -1) for i in (self.stream, place)]
        return b.op("GatherND", table, b.op("Concat", *columns, axis=-1))

    # ---- of positions [B, T]

    def positions(self) -> str:
        """The same for every stream."""
        b, kind = self.b, self.number(0, 4)
        at, n = b.range(self.frames), self.number(2, 6)
        self.says(f"{('count', 'mod', 'div', 'behind', 'clamped')[kind]} {n}")
        if kind == 1:
            at = b.op("Mod", at, b.scalar(n))
        elif kind == 2:
            at = b.op("Div", at, b.scalar(n))
        elif kind == 3:
            at = b.op("Add", at, b.scalar(n))
        elif kind == 4:
            at = b.op("Max", at, b.scalar(n))
        return b.op("Expand", b.unsqueeze(at, 0), b.shape(self.streams, 1))

    def numbered(self, at: str) -> str:
        """Which of several sequences: a new one begins where positions do not go on by one."""
        b = self.b
        first = b.slice(at, 1, b.ints(0), b.ints(1))
        whole = b.op("Concat", b.op("Sub", first, b.scalar(1)), at, axis=1)
        size = b.vector(self.frames)
        ahead = b.slice(whole, 1, b.ints(1), b.op("Add", size, b.ints(1)))
        steps = b.op("Sub", ahead, b.slice(whole, 1, b.ints(0), size))
        other = b.op("Not", b.op("Equal", steps, b.scalar(1)))
        return b.op("CumSum", b.cast(other, np.int64), b.scalar(1))

    def packed(self, mask: Callable[[str, str], str]) -> str:
        at = self.positions()
        number = self.numbered(at)
        alone = self.b.op("Equal", self.at(number, self.row), self.at(number, self.column))
        return self.b.op("And", alone, mask(self.at(at, self.row), self.at(at, self.column)))

    def blocks(self) -> str:
        at = self.positions()
        row, column = self.at(at, self.row), self.at(at, self.column)
        return self.b.op("Equal", row, column)

    # ---- of rows and columns

    def window(self, row: str, column: str) -> str:
        b, back, ahead = self.b, self.number(0, 5), self.number(0, 2)
        self.says(f"window {back} {ahead}")
        distance = b.op("Sub", column, row)
        behind = b.op("GreaterOrEqual", distance, b.scalar(-back))
        return b.op("And", behind, b.op("LessOrEqual", distance, b.scalar(ahead)))

    def near(self, row: str, column: str) -> str:
        b, far = self.b, self.number(0, 3)
        self.says(f"near {far}")
        distance = b.op("Abs", b.op("Sub", row, column))
        if self.number(0, 1):
            return b.op("Not", b.op("Less", b.scalar(far), distance))
        return b.op("LessOrEqual", distance, b.scalar(far))

    def chunk(self, row: str, column: str) -> str:
        b, of = self.b, self.number(2, 5)
        self.says(f"chunk {of}")
        zeros = b.op("Expand", b.scalar(0), b.vector(self.streams))
        left = b.op("GatherND", zeros, b.unsqueeze(self.stream, -1))
        chunks = [b.op("Div", b.op("Sub", i, left), b.scalar(of)) for i in (row, column)]
        return b.op("And", b.op("Equal", *chunks), b.op("LessOrEqual", column, row))

    # ---- of frames that count

    def real(self) -> str:
        b = self.b
        if self.number(0, 1):
            self.masked = True
            table = "mask"
        else:
            table = b.op("Expand", b.const(np.array(True)), b.shape(self.streams, self.frames))
        how = self.number(0, 4)
        self.says(f"real {table} {how}")
        false = b.const(np.array(False))
        if how == 1:
            table = b.op("Pad", table, b.ints(0, 0, 0, self.number(1, 3)), false)
        elif how == 2:
            hidden = self.number(1, 2)
            self.says(f"first {hidden} hidden")
            table = b.op("Pad", b.slice(table, 1, b.ints(hidden), b.ints(1 << 40)), b.ints(0, hidden, 0, 0), false)
        elif how == 3:
            wide = self.number(2, 4)
            whole = b.op("Pad", table, b.ints(0, wide - 1, 0, 0), false)
            ones = b.const(np.ones((1, 1, wide), np.float32))
            sums = b.op("Squeeze", b.op("Conv", b.cast(b.unsqueeze(whole, 1), np.float32), ones), b.ints(1))
            least = self.number(0, wide - 1)
            self.says(f"windows {wide} {least}")
            table = b.op("Greater", sums, b.const(np.float32(least)))
        elif how == 4:
            largest = b.op("MaxPool", b.cast(b.unsqueeze(table, 1), np.float32), kernel_shape=[3], pads=[1, 1])
            table = b.op("Greater", b.op("Squeeze", largest, b.ints(1)), b.const(np.float32(0.5)))
        return self.at(table, self.column)


def draw(rng: np.random.Generator) -> Drawn:
    m = Masks(rng)
    b, kinds = m.b, (m.window, m.near, m.chunk)
    mask = kinds[m.number(0, 2)]
    seen = m.packed(mask) if m.number(0, 1) else mask(m.row, m.column)
    others: list[Callable[[], str]] = [m.real, m.blocks, lambda: m.window(m.row, m.column)]
    for other in others:
        if m.number(0, 2) == 0:
            seen = b.op("And", seen, other())
    own = b.op("Equal", m.row, m.column)  # a row without any frame is no number
    seen = b.op("Or", seen, own)
    shape = b.shape(m.streams, 1, m.frames, m.frames)
    low = b.const(np.float32(-np.inf if m.number(0, 1) else np.finfo(np.float32).min))
    bias = b.op("Where", b.op("Expand", seen, shape), b.const(np.float32(0)), low)
    x = b.unsqueeze("x", 1)
    scores = b.op("Add", b.op("MatMul", x, b.transpose(x, 0, 1, 3, 2)), bias)
    b.op("Squeeze", b.op("MatMul", b.op("Softmax", scores, axis=-1), x), b.ints(1), called="y")
    inputs = {"x": (["B", "T", WIDTH], np.float32)} | ({"mask": (["B", "T"], np.bool_)} if m.masked else {})
    return Drawn(b.model(inputs, {"y": (3, np.float32)}), ", ".join(m.text), m.masked)
