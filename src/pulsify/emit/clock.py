"""The Clock: where in the stream the current pulse is, and where the stream ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Window
from pulsify.core.length import Length
from pulsify.emit.builder import Builder

FAR = 4  # times the unknown length is more than 32 bits hold


@dataclass(eq=False)
class Clock:
    """Makes frame indices and lengths on demand; `position` and `length` exist only if someone asked.

    Counters are int32 [B, 1], one a stream (B is 1 where the batch is fixed).
    """

    builder: Builder
    pulse: int
    batch: str | None
    position: ir.Value | None = None
    length: ir.Value | None = None
    ends_seen: int = 0  # how often somebody asked where the stream ends
    absolute: bool = False  # something other than the ends depends on the position
    phases: set[int] = field(default_factory=set)  # what the number of the pulse is taken modulo
    grown: dict[Window, ir.Value] = field(default_factory=dict)  # the size of windows that grow, int64 [1]
    _lengths: dict[Length, ir.Value] = field(default_factory=dict)

    def _counter(self, name: str) -> ir.Value:
        return ir.val(self.builder.unique(name), ir.DataType.INT32, ir.Shape([self.batch or 1, 1]))

    def frames(self, window: Window) -> ir.Value:
        """The index of every frame in the window, int32 [B, frames]."""
        if self.position is None:
            self.position = self._counter("position")
        per = Fraction(window.p, self.pulse)
        at = self.position
        if per.denominator != 1:  # it divides all positions there are; the other way round, far ones would run over
            at = self.builder.op("Div", at, self._int(per.denominator))
        if per.numerator != 1:
            at = self.builder.op("Mul", at, self._int(per.numerator))
        if window.grows:
            return self._all_frames(at, window)
        offsets = np.arange(window.start, window.end, dtype=np.int32)[None]
        return self.builder.op("Add", at, self.builder.constant(offsets, "offsets"))

    def _all_frames(self, at: ir.Value, window: Window) -> ir.Value:
        """A window that grows is counted from its end, which is where the stream is now."""
        self.absolute = True
        b, size = self.builder, self.grown[window]
        count = b.op(
            "Range",
            *(b.constant(np.array(v, np.int64), "int") if v is not None else b.reshape(size, []) for v in (0, None, 1)),
        )
        back = b.op("Cast", b.op("Sub", count, size), to=int(ir.DataType.INT32))
        return b.op("Add", b.op("Add", at, self._int(window.end)), b.op("Unsqueeze", back, b.ints(0)))

    def positions(self, window: Window) -> ir.Value:
        """As `frames`, for values that depend on the absolute position: the counter must never be set back."""
        self.absolute = True
        return self.frames(window)

    def phase(self, count: int) -> ir.Value:
        """The number of this pulse modulo `count`, int32 [B, 1]."""
        self.phases.add(count)
        self.frames(Window(self.pulse, 0, 1))
        assert self.position is not None
        number = self.builder.op("Div", self.position, self._int(self.pulse)) if self.pulse > 1 else self.position
        return self.builder.op("Mod", number, self._int(count))

    def end(self, length: Length) -> ir.Value:
        """How many frames there are in the whole stream, int32 [B, 1]."""
        self.ends_seen += 1
        if self.length is None:
            self.length = self._counter("length")
        if length not in self._lengths:
            self._lengths[length] = self._short(length, self.length, self._emit(length, self.length))
        return self._lengths[length]

    @property
    def told(self) -> Iterable[Length]:
        """All lengths that are asked for."""
        return self._lengths

    def _emit(self, length: Length, x: ir.Value) -> ir.Value:
        b = self.builder
        if length.table:
            periods = self._floor(x, length.table.period)
            rest = b.op("Sub", x, b.op("Mul", periods, self._int(length.table.period)))
            values = b.constant(np.array(length.table.values, np.int32), "lengths")
            x = b.op("Add", b.op("Mul", periods, self._int(length.table.growth)), b.op("Gather", values, rest))
        for i, (m, c, d) in enumerate(length.steps):
            whole = None
            if m >= FAR and d != 1:  # m * x would run over where x is far from the start
                periods = self._floor(x, d)
                whole, x = b.op("Mul", periods, self._int(m)), b.op("Sub", x, b.op("Mul", periods, self._int(d)))
            x = b.op("Mul", x, self._int(m)) if m != 1 else x
            x = b.op("Add", x, self._int(c)) if c else x
            x = self._floor(x, d) if d != 1 else x
            x = x if whole is None else b.op("Add", whole, x)
            x = b.op("Max", x, self._int(0)) if i in length.floors else x
        if length.cap is not None:  # it ends there whether the stream does or not
            self.absolute = True
            x = b.op("Min", x, self._int(length.cap))
        return x

    def _short(self, length: Length, total: ir.Value, x: ir.Value) -> ir.Value:
        """The shortest streams may have values of their own."""
        if not length.short:
            return x
        b, count = self.builder, len(length.short)
        values = b.constant(np.array(length.short, np.int32), "short")
        own = b.op("Gather", values, b.op("Min", total, self._int(count - 1)))
        return b.op("Where", b.op("Less", total, self._int(count)), own, x)

    def _floor(self, x: ir.Value, by: int) -> ir.Value:
        rest = self.builder.op("Mod", x, self._int(by))  # Mod takes the divisor's sign, Div truncates
        return self.builder.op("Div", self.builder.op("Sub", x, rest), self._int(by))

    def _int(self, value: int) -> ir.Value:
        return self.builder.constant(np.array(value, np.int32), "int")
