"""How many frames a wire has, as a function of the stream's length S.

A `Length` is a chain of steps from S. It is evaluated in Python while converting and when a stream is
flushed, and emitted as a few integer nodes where a Boundary needs to know the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST = (1 << 30) - (1 << 12)  # no stream is longer; twice as many frames are fewer than 2^31 - 1, a slice's "all"
BRIEF = 4  # numbers of a table that are shown
Step = tuple[int, int, int]  # (multiply, add, floor-divide)


@dataclass(frozen=True, repr=False)
class Table:
    """An arbitrary quasi-periodic function: f(S) = growth * (S // period) + values[S % period]."""

    period: int
    growth: int
    values: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Table(period={self.period}, growth={self.growth}, values={_brief(self.values)})"

    def at(self, s: int) -> int:
        return self.growth * (s // self.period) + self.values[s % self.period]

    def to_json(self) -> list[object]:
        return [self.period, self.growth, list(self.values)]

    @staticmethod
    def from_json(data: Sequence[Any]) -> Table:
        period, growth, values = data
        if len(values) != period:
            raise ValueError(f"a table of period {period} has {len(values)} values")
        return Table(int(period), int(growth), tuple(values))


@dataclass(frozen=True, repr=False)
class Length:
    """f(S) = the steps, one after the other, applied to S (or to `table(S)`).

    A step is (m, c, d): x becomes floor((m*x + c) / d). `floors` are the steps after which a negative
    number of frames is no frames (a slice of a stream that is too short); they never matter to a stream
    that is long enough, and `at(s, steady=True)` ignores them. `short` lists the values for S = 0, 1, ... where a model
    treats the shortest streams in a way of its own. `cap`: there are never more frames than that, however long the
    stream is (x[:300000]); nor does a stream have to end for that to be known.
    """

    steps: tuple[Step, ...] = ()
    table: Table | None = None
    floors: frozenset[int] = frozenset()
    short: tuple[int, ...] = ()
    cap: int | None = None

    def __repr__(self) -> str:
        """As it is computed, S being the length of the stream: Length((S + 3) // 4)."""
        x = "S" if self.table is None else f"{self.table!r}[S]"
        for i, (m, c, d) in enumerate(self.steps):
            x = x if m == 1 else f"{m} * {x}" if m else "0"
            x = f"{x} {'+' if c > 0 else '-'} {abs(c)}" if c else x
            x = x if d == 1 else f"({x}) // {d}" if " " in x else f"{x} // {d}"
            x = f"max({x}, 0)" if i in self.floors else f"({x})" if " " in x and i + 1 < len(self.steps) else x
        x = x if self.cap is None else f"min({x}, {self.cap})"
        return f"Length({x})" if not self.short else f"Length({x}, short={_brief(self.short)})"

    @property
    def largest(self) -> int:
        """Of all numbers that it is written with."""
        table = (self.table.period, self.table.growth, *self.table.values) if self.table else ()
        steps = (n for step in self.steps for n in step)
        return max(map(abs, (*table, *steps, *self.short, self.cap or 0)), default=0)

    def at(self, s: int, steady: bool = False) -> int:
        if not steady and 0 <= s < len(self.short):
            return self.short[s]
        x = self.table.at(s) if self.table else s
        for i, (m, c, d) in enumerate(self.steps):
            x = (m * x + c) // d
            if i in self.floors and not steady:
                x = max(x, 0)
        return x if self.cap is None or steady else min(x, self.cap)

    def each(self, lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """`at` for many lengths at once."""
        s = np.asarray(lengths, np.int64)
        x = s
        if self.table:
            x = self.table.growth * (s // self.table.period) + np.array(self.table.values)[s % self.table.period]
        for i, (m, c, d) in enumerate(self.steps):
            x = (m * x + c) // d
            x = np.maximum(x, 0) if i in self.floors else x
        x = x if self.cap is None else np.minimum(x, self.cap)
        count = len(self.short)
        return np.where(s < count, np.array((*self.short, 0))[np.minimum(s, count)], x)

    @property
    def settled(self) -> int:
        """The shortest stream from which on it goes on for ever in the same way."""
        found = max(len(self.short), 1)
        for i in sorted(self.floors):
            ahead = Length(self.steps[: i + 1], self.table)
            found = max(found, _first(lambda s, ahead=ahead: ahead._least(s) >= 0))  # type: ignore[misc]
        if self.cap is not None:
            top, ahead = self.cap, Length(self.steps, self.table)
            found = max(found, _first(lambda s: ahead._least(s) >= top))
        return found

    def then(self, multiply: int = 1, add: int = 0, divide: int = 1, floor: bool = False) -> Length:
        """This length after one more step; neighbouring whole steps are merged."""
        if (multiply, add, divide) == (1, 0, 1) and not floor:
            return self
        short = tuple(max((multiply * x + add) // divide, 0 if floor else -(1 << 31)) for x in self.short)
        cap = self.cap if self.cap is None else (multiply * self.cap + add) // divide
        cap = max(cap, 0) if floor and cap is not None else cap
        last = len(self.steps) - 1
        if self.steps and last not in self.floors and not floor:
            m, c, d = self.steps[last]
            if d == 1:
                merged = _reduced(m * multiply, c * multiply + add, divide)
                steps = self.steps[:last] if merged == (1, 0, 1) else (*self.steps[:last], merged)
                return Length(steps, self.table, self.floors, short, cap)
        floors = self.floors | {last + 1} if floor else self.floors
        return Length((*self.steps, _reduced(multiply, add, divide)), self.table, floors, short, cap)

    @property
    def rate(self) -> Fraction:
        """Frames of this wire per frame of the stream."""
        r = Fraction(self.table.growth, self.table.period) if self.table else Fraction(1)
        for m, _, d in self.steps:
            r *= Fraction(m, d)
        return r

    @property
    def steepest(self) -> Fraction:
        """The largest rate between two of its steps."""
        r = most = Fraction(self.table.growth, self.table.period) if self.table else Fraction(1)
        for m, _, d in self.steps:
            r *= Fraction(m, d)
            most = max(most, r)
        return most

    @property
    def period(self) -> int:
        """Adding this many frames to S adds `period * rate` to the length, exactly."""
        return _period(self)

    def latest_end(self, pulse: int, phase: int = 0) -> int:
        """The largest b such that frames below n*p + b exist once (n+1)*pulse - phase frames have come in, for all n.

        They must exist however long the stream turns out to be: a number of frames may fall as the stream grows.
        """
        p = self.rate * pulse
        turns = self.period // math.gcd(self.period, pulse)
        steady = replace(self, short=(), floors=frozenset(), cap=None)
        counts = [int(steady._least(n)) - i * p for i, n in enumerate(range(pulse - phase, turns * pulse + 1, pulse))]
        short = range(pulse - phase, len(self.short), pulse)  # streams that may end there have no more frames than that
        counts += [min(self.short[n:]) - i * p for i, n in enumerate(short)]
        return math.floor(min(counts))

    def _least(self, s: int) -> int:
        """The fewest frames of any stream of at least s."""
        if self.table is None:
            return self.at(s)
        return int(self.each(np.arange(s, s + self.table.period)).min())

    def to_json(self, tables: list[Table] | None = None) -> dict[str, object]:
        """As JSON takes it. tables: where a table is written once for all; it is then named by its place there."""
        out: dict[str, object] = {"steps": [list(s) for s in self.steps]}
        if self.floors:
            out["floors"] = sorted(self.floors)
        if self.short:
            out["short"] = list(self.short)
        if self.table and tables is not None:
            if self.table not in tables:
                tables.append(self.table)
            out["table"] = tables.index(self.table)
        elif self.table:
            out["table"] = self.table.to_json()
        if self.cap is not None:
            out["cap"] = self.cap
        return out

    @staticmethod
    def from_json(data: dict[str, Any], tables: Sequence[Table] = ()) -> Length:
        table = data.get("table")
        return Length(
            tuple((int(m), int(c), int(d)) for m, c, d in data["steps"]),
            tables[table] if isinstance(table, int) else Table.from_json(table) if table else None,
            frozenset(data.get("floors", ())),
            tuple(data.get("short", ())),
            data.get("cap"),
        )


def _brief(values: Sequence[int]) -> str:
    """The first few of them, and how many there are."""
    shown = ", ".join(map(str, values[:BRIEF]))
    return f"[{shown}]" if len(values) <= BRIEF else f"[{shown}, ... {len(values)} numbers]"


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


def _first(holds: Callable[[int], bool]) -> int:
    """The first length from which on something holds that never stops holding."""
    low, high = 0, 1
    while not holds(high):
        low, high = high, 2 * high
        if high > LONGEST:
            return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
