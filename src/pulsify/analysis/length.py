"""How many frames a wire has, as a function of the stream's length S.

A `Length` is a chain of steps from S. It is evaluated in Python while converting and when a stream is
flushed, and emitted as a few integer nodes where a Boundary needs to know the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

FAR = (1500, 4096)  # frames further out, beyond the largest turn looked for
Step = tuple[int, int, int]  # (multiply, add, floor-divide)


@dataclass(frozen=True)
class Table:
    """An arbitrary quasi-periodic function: f(S) = growth * (S // period) + values[S % period]."""

    period: int
    growth: int
    values: tuple[int, ...]

    def at(self, s: int) -> int:
        return self.growth * (s // self.period) + self.values[s % self.period]


@dataclass(frozen=True)
class Length:
    """f(S) = the steps, one after the other, applied to S (or to `table(S)`).

    A step is (m, c, d): x becomes floor((m*x + c) / d). `floors` are the steps after which a negative
    number of frames is no frames (a slice of a stream that is too short); they never matter to a stream
    that is long enough, and `at(s, steady=True)` ignores them. `short` lists the values for S = 0, 1, ... where a model
    treats the shortest streams in a way of its own.
    """

    steps: tuple[Step, ...] = ()
    table: Table | None = None
    floors: frozenset[int] = frozenset()
    short: tuple[int, ...] = ()

    def at(self, s: int, steady: bool = False) -> int:
        if not steady and 0 <= s < len(self.short):
            return self.short[s]
        x = self.table.at(s) if self.table else s
        for i, (m, c, d) in enumerate(self.steps):
            x = (m * x + c) // d
            if i in self.floors and not steady:
                x = max(x, 0)
        return x

    def each(self, lengths: range) -> NDArray[np.int64]:
        """`at` for many lengths at once."""
        s = np.array(lengths, np.int64)
        x = s
        if self.table:
            x = self.table.growth * (s // self.table.period) + np.array(self.table.values)[s % self.table.period]
        for i, (m, c, d) in enumerate(self.steps):
            x = (m * x + c) // d
            x = np.maximum(x, 0) if i in self.floors else x
        count = len(self.short)
        return np.where(s < count, np.array((*self.short, 0))[np.minimum(s, count)], x)

    def then(self, multiply: int = 1, add: int = 0, divide: int = 1, floor: bool = False) -> Length:
        """This length after one more step; neighbouring whole steps are merged."""
        if (multiply, add, divide) == (1, 0, 1) and not floor:
            return self
        short = tuple(max((multiply * x + add) // divide, 0 if floor else -(1 << 31)) for x in self.short)
        last = len(self.steps) - 1
        if self.steps and last not in self.floors and not floor:
            m, c, d = self.steps[last]
            if d == 1:
                merged = _reduced(m * multiply, c * multiply + add, divide)
                steps = self.steps[:last] if merged == (1, 0, 1) else (*self.steps[:last], merged)
                return Length(steps, self.table, self.floors, short)
        floors = self.floors | {last + 1} if floor else self.floors
        return Length((*self.steps, _reduced(multiply, add, divide)), self.table, floors, short)

    @property
    def rate(self) -> Fraction:
        """Frames of this wire per frame of the stream."""
        r = Fraction(self.table.growth, self.table.period) if self.table else Fraction(1)
        for m, _, d in self.steps:
            r *= Fraction(m, d)
        return r

    @property
    def period(self) -> int:
        """Adding this many frames to S adds `period * rate` to the length, exactly."""
        return _period(self)

    def latest_end(self, pulse: int) -> int:
        """The largest b such that frames below n*p + b exist once (n+1)*pulse frames have come in, for all n."""
        p = self.rate * pulse
        turns = self.period // math.gcd(self.period, pulse)
        short = range(len(self.short) // pulse)  # streams that may end there have no more frames than that
        counts = [self.at((n + 1) * pulse, steady=True) - n * p for n in range(turns)]
        counts += [self.at((n + 1) * pulse) - n * p for n in short]
        return int(min(counts))

    def to_json(self) -> dict[str, object]:
        out: dict[str, object] = {"steps": [list(s) for s in self.steps]}
        if self.floors:
            out["floors"] = sorted(self.floors)
        if self.short:
            out["short"] = list(self.short)
        if self.table:
            out["table"] = [self.table.period, self.table.growth, list(self.table.values)]
        return out

    @staticmethod
    def from_json(data: dict[str, list]) -> Length:  # type: ignore[type-arg]
        table = data.get("table")
        return Length(
            tuple((int(m), int(c), int(d)) for m, c, d in data["steps"]),
            Table(table[0], table[1], tuple(table[2])) if table else None,
            frozenset(data.get("floors", ())),
            tuple(data.get("short", ())),
        )


@cache
def _period(length: Length) -> int:
    # Each floor-division by d needs the running rate to be whole before it.
    period = length.table.period if length.table else 1
    rate = Fraction(length.table.growth, length.table.period) if length.table else Fraction(1)
    for m, _, d in length.steps:
        rate *= Fraction(m, d)
        period = math.lcm(period, rate.denominator)
    return period


def _reduced(m: int, c: int, d: int) -> Step:
    """The same step in lowest terms: floor((33x + 40) / 33) is floor(x + 1)."""
    g = math.gcd(m, d)
    return m // g, c // g, d // g


def constant(frames: int) -> Length:
    return Length(((0, frames, 1),))


def fit(
    values: Callable[[int], int | None], around: int, period: int = 1, most: int = 2048, beyond: Sequence[int] = ()
) -> Length | None:
    """The length function behind `values(S)` (None where the model cannot run), or None if it is not quasi-periodic.

    Looks for the smallest multiple of `period` that explains what is seen from `around` on, for several turns, and at
    the lengths `beyond`.
    """
    seen: dict[int, int | None] = {}

    def at(s: int) -> int | None:
        if s not in seen:
            seen[s] = values(s)
        return seen[s]

    for turn in range(period, most + 1, period):
        growth = _growth(at, around, turn, beyond)
        if growth is not None:
            # Normalise so that the table is indexed by S % period and counts from S // period == 0.
            table: list[int] = [0] * turn
            for r in range(turn):
                s = around + r
                here = at(s)
                table[s % turn] = 0 if here is None else here - growth * (s // turn)
            return _simplify(Table(turn, growth, tuple(table)))
    return None


def _growth(at: Callable[[int], int | None], around: int, turn: int, beyond: Sequence[int]) -> int | None:
    """By how much every turn grows, or None if they do not all grow alike. A few are looked at far out."""
    growth: int | None = None
    places = [(around + r, 1) for r in range(max(2 * turn, 96))] + [
        (around, -(-far // turn)) for far in (*FAR, *beyond)
    ]
    for s, turns in places:
        x, y = at(s), at(s + turn * turns)
        if x is None or y is None:
            continue
        if growth is None:
            growth = y - x
        if y - x != growth * turns:
            return None
    return growth


def _simplify(t: Table) -> Length:
    if t.period == 1:
        return Length(((t.growth, t.values[0], 1),))
    return Length(table=t)
