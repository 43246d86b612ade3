"""Arrays over time whose entries follow from the length: how far must one look until nothing new can show?

An entry is a number at the coordinates (T, a, b): the stream's length and its place on one or two time axes, all
counted in frames of the stream. It is  slope . coordinates + deviation,  and the deviation is the same at two places if

- they differ by multiples of `period`, and
- every two coordinates (the origin counted among them) that are `near` each other at one place are just as far apart
  at the other, and those that are further apart are so at both, in the same order.

        0          a     b                T         a mask b - a <= 8 has near(a, b) = 8
        |----------|-----|----------------|         a mask b < T - 1 has near(b, T) = 1, i < 3000 near(0, i) = 3000

So a gap between neighbouring coordinates may be shortened by the period as long as it stays wider than all that is near
across it, and what holds for all places with short gaps (`reps`) holds for every length and every place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from pulsify.lengths.float_limits import LARGEST, LONG, NUMPY, Drift, beside, binary, common, together
from pulsify.lengths.series import LONGEST, MOST, Series, TooFar, Unsure

Array = np.ndarray[Any, Any]
T, ORIGIN = -1, -2  # coordinates; axes are 0, 1, ...
Pair = tuple[int, int]
Key = tuple[Pair, bool]  # a pair of axes (a, b), and whether b lies behind a or in front of it
FAR = math.inf
NEARLY = 1e-3  # what is off by no more than this, of its size, is as near as floats are
EXACT = 2.0**53  # whole numbers are exact in double precision up to here


def pair(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)


@dataclass(frozen=True)
class Spread:
    """See above. sizes: of every axis; lo, hi: of the deviation; uses: the coordinates that matter at all."""

    sizes: tuple[Series, ...]
    slope: Mapping[int, Fraction] = field(default_factory=dict)  # by frame of that axis; by frame of the stream for T
    lo: float = 0.0
    hi: float = 0.0
    period: int = 1
    near: Mapping[Pair, float] = field(default_factory=dict)
    uses: frozenset[int] = frozenset()
    floating: bool = False
    limit: int = LONGEST
    until: int = LONGEST  # a table it was read from ends there, and the model with it
    drift: Drift = field(default_factory=Drift)  # how far floats may be off
    grain: Fraction | None = None  # floats that are all multiples of this
    least: float = -FAR  # no entry is lower, wherever it is
    final: float | None = None  # what it is far out, if that is one number
    hide: Mapping[Pair, float] | None = None  # what must be near to tell where it is zero, or as low as a mask is
    rises: bool = False  # it is |a line| times a number: it only rises, or only falls, away from where that is zero
    apart: float = 0.0  # if that is known: where it is not zero it is so far from it (0: it may be rounded to zero,
    # past some place on a line and not before, which nobody needs to know who looks further than that)
    beyond: dict[Key, Any] = field(default_factory=dict, init=False)  # far from the diagonal, see lengths/beyond

    def __post_init__(self) -> None:
        """An axis ends where its size says: from where on that goes on evenly, and how it repeats, is part of it."""
        grows = [s for s in self.sizes if s.growth]
        period = math.lcm(self.period, *(s.repeats for s in grows if s.repeats != s.rate.denominator))
        settled = max((s.settled - s.unit for s in grows if s.horizon), default=0)
        if period != self.period:
            object.__setattr__(self, "period", period)
        if settled > self.near.get(pair(ORIGIN, T), 0.0):
            object.__setattr__(self, "near", joined([self.near, {pair(ORIGIN, T): float(settled)}]))

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def times(self) -> list[int]:
        return [a for a, s in enumerate(self.sizes) if not s.constant]

    def rate(self, c: int) -> Fraction:
        """Frames of this coordinate by frame of the stream."""
        return Fraction(1) if c == T else self.sizes[c].pace

    @property
    def longest(self) -> int:
        """The longest stream for which it is so: a table that an axis runs over may end."""
        return min([self.until, *(s.settled for s in self.sizes if not s.constant and not s.growth)])

    @property
    def step(self) -> Fraction | None:
        """Of what all entries are multiples, if that is known."""
        if not self.floating:
            return Fraction(1)
        known = self.grain is None and not self.slope and self.lo == self.hi and math.isfinite(self.lo)
        return abs(Fraction(self.lo)) if known else self.grain

    @property
    def certain(self) -> int:
        """The longest stream for which it is what it is said to be (or as near as floats are), and as large."""
        limit = min([self.limit, *(s.limit for s in self.sizes)])
        if not self.rough:
            return limit
        scale = min([most(self) or FAR, *(float(abs(q)) for q in self.slope.values())])
        return min(limit, max(self.drift.fits, self.drift.until(NEARLY * min(scale, 1.0)), 1))

    @property
    def rough(self) -> bool:
        """Is it rounded otherwise at places that are alike?"""
        return self.floating and self.drift.same < min([LONG, *(s.longest for s in self.sizes)])

    @property
    def range(self) -> tuple[float, float]:
        """Of the whole value: coordinates are never negative."""
        up, down = (any(q > 0 for q in self.slope.values()), any(q < 0 for q in self.slope.values()))
        return max(-FAR if down else self.lo, self.least), FAR if up else self.hi


def joined(near: Iterable[Mapping[Pair, float]]) -> dict[Pair, float]:
    out: dict[Pair, float] = {}
    for one in near:
        for k, g in one.items():
            out[k] = max(out.get(k, 0.0), g)
    return out


def joint(sizes: tuple[Series, ...], *of: Spread, **changes: Any) -> Spread:
    """A value made of others, entry by entry (all of one rank): what matters to them matters to it."""
    period = math.lcm(*(v.period for v in of))
    if period > MOST:
        raise TooFar(period)
    base = Spread(
        sizes,
        period=period,
        near=joined(v.near for v in of),
        uses=frozenset().union(*(v.uses for v in of)),
        floating=any(v.floating for v in of[-2:]),
        drift=beside(*(v.drift for v in of if v.floating)),
        grain=common(*(v.step for v in of if v.floating)),
        limit=min(v.limit for v in of),
        until=min(v.until for v in of),
    )
    return replace(base, **changes)


def with_near(v: Spread, more: Mapping[Pair, float]) -> Spread:
    return replace(v, near=joined([v.near, more]))


def streamwise(v: Spread) -> dict[int, Fraction]:
    """The slope by frame of the stream."""
    return {c: q * v.rate(c) for c, q in v.slope.items() if q}


def plane(v: Spread, far: float) -> dict[Pair, float]:
    """Which coordinates must be how near for the slope's part to be no larger than `far`."""
    s = streamwise(v)
    if not s:
        return {}
    if any(not q for q in s.values()):
        raise Unsure("its size does not grow with the stream")
    if len(s) == 2:
        (a, x), (b, y) = s.items()
        if x + y == 0:
            return {pair(a, b): far / float(abs(x))}
    if len({q > 0 for q in s.values()}) > 1:
        raise Unsure("it compares positions that do not move along with each other")
    return {pair(ORIGIN, c): far / float(abs(q)) for c, q in s.items()}


def exactly(v: Spread, far: float = FAR) -> Spread:
    """Any function of it: however far apart what its slope compares is, it matters.

    far: the function is the same for all that is larger than this.
    """
    try:
        near = plane(v, most(v) + far)
    except Unsure:
        near = {pair(ORIGIN, c): FAR for c in v.slope}
    out = replace(with_near(v, near), slope={}, lo=v.range[0], hi=v.range[1], final=None, grain=None, least=-FAR)
    if not v.floating or v.rough:
        return out
    return replace(out, limit=min(v.limit, v.drift.same), drift=Drift(v.drift.digits))


def most(v: Spread) -> float:
    return max(abs(v.lo), abs(v.hi))


def same_slope(a: Spread, b: Spread) -> bool:
    return {c: q for c, q in a.slope.items() if q} == {c: q for c, q in b.slope.items() if q}


def summed(sizes: tuple[Series, ...], a: Spread, b: Spread, sign: int = 1) -> Spread:
    return rounded(_sum(sizes, a, b, sign))


def difference(sizes: tuple[Series, ...], a: Spread, b: Spread) -> Spread:
    """a - b as numbers are, for a comparison: the runtime subtracts nothing, and rounds nothing."""
    out = _sum(sizes, a, b, -1)
    return replace(out, drift=replace(out.drift, roundings=max(a.drift.roundings, b.drift.roundings)))


def _sum(sizes: tuple[Series, ...], a: Spread, b: Spread, sign: int) -> Spread:
    slope = dict(a.slope)
    for c, q in b.slope.items():
        slope[c] = slope.get(c, Fraction(0)) + sign * q
    lo, hi = (b.lo, b.hi) if sign > 0 else (-b.hi, -b.lo)
    slope = {c: q for c, q in slope.items() if q}
    with np.errstate(invalid="ignore"):
        out = joint(sizes, a, b, slope=slope, lo=finite(a.lo + lo, -FAR), hi=finite(a.hi + hi, FAR))
    return replace(out, drift=together(a.drift, b.drift) if out.floating else Drift())


def finite(x: float, otherwise: float) -> float:
    return otherwise if math.isnan(x) else x


def rounded(v: Spread) -> Spread:
    """The result of an operation as a float holds it."""
    if not v.floating:
        return v
    if not v.slope and v.drift.none:  # the runtime's own numbers, the same wherever their deviation is
        return replace(v, lo=_held(v.lo, v.drift.digits), hi=_held(v.hi, v.drift.digits))
    steep = _steep(v)
    cap = _within(v, steep, binary(v.step) * 2.0**v.drift.digits)
    enough = min([LONG, *(s.longest for s in v.sizes)])
    limit = min(v.limit, _within(v, steep, LARGEST[v.drift.digits])) if math.isfinite(most(v) + steep) else v.limit
    return replace(v, drift=v.drift.rounded(cap, most(v), steep, enough), limit=max(limit, 1))


def _held(x: float, digits: int) -> float:
    with np.errstate(over="ignore"):
        return float(np.array(x).astype(NUMPY[digits])) if digits in NUMPY else x


def _steep(v: Spread) -> float:
    """By how much an entry may grow with every frame of the stream."""
    try:
        return sum(float(abs(q)) for q in streamwise(v).values())
    except Unsure:
        return FAR


def _within(v: Spread, steep: float, bound: float) -> int:
    """The longest stream for which all entries stay within a bound; 0 if there is none."""
    size = most(v) + sum(float(abs(q)) * ragged(v.sizes[c]) * float(v.rate(c)) for c, q in v.slope.items() if c >= 0)
    if not size <= bound or not math.isfinite(steep):
        return 0
    return int(min((bound - size) / steep, LONGEST)) if steep else LONGEST


def within(v: Spread, bound: float) -> int:
    """The longest stream for which all entries stay within a bound; Unsure if there is none."""
    longest = _within(v, _steep(v), bound)
    if longest < 1:
        raise Unsure("it is too large a number")
    return longest


def cleared(v: Spread, points: Fraction | None) -> Spread:
    """The same for streams so short that rounding does not carry it across zero, or (points) across a multiple of that.

    Unsure if there are none.
    """
    if not v.floating or v.drift.none:
        return v
    if all(v.near.get(pair(ORIGIN, c)) == FAR for c in v.uses) and not v.slope:
        return v  # the runtime's own numbers, looked at one by one
    step = common(v.step, points) if points else v.step
    gap, met = (float(step), True) if step else (0.0, True)
    if step and v.lo == v.hi and math.isfinite(v.lo):  # it may never come to stand on such a point
        tight = common(*v.slope.values(), points or Fraction(0))
        rest = v.lo % float(tight) if tight else abs(v.lo)
        away = min(rest, float(tight) - rest) if tight else rest
        if away > float(tight or 0) * 1e-6 + abs(v.lo) * 1e-12:
            gap, met = away * 0.999, False
    return replace(v, limit=min(v.limit, v.drift.certain(gap, met)))


def decided(v: Spread) -> Spread:
    """The sign of a value, or anything else that changes only near where the value is zero."""
    far = most(v)
    if not math.isfinite(far):
        v = exactly(v)
        v = cleared(v, None) if v.rough else v
    elif (alone := _alone(v)) is not None:  # rounding matters near where it is zero, and there everything is looked at
        far = alone
    else:
        v = cleared(v, None)
    near = with_near(v, plane(v, far)).near
    return replace(
        v, near=near, slope={}, lo=0.0, hi=1.0, floating=False, final=None, hide=None, rises=False, least=-FAR,
        drift=Drift(), grain=None,
    )  # fmt: skip


def _alone(v: Spread) -> float | None:
    """How large the slope's part of a float may be where rounding decides its sign, if it goes with one coordinate."""
    if not v.floating or v.drift.none or len(v.slope) != 1 or v.uses != set(v.slope):
        return None
    ((_, q),) = streamwise(v).items()
    steep = float(abs(q))
    if not v.drift.noise < steep / 2 or not math.isfinite(v.drift.fuzz):
        return None
    return (most(v) + v.drift.fuzz) / (steep - v.drift.noise) * steep + steep


def lowest(v: Spread) -> float:
    """No entry is lower: places on an axis are not negative, nor do they lie behind its end."""
    least = v.lo
    ends = {c: -q for c, q in v.slope.items() if q < 0}
    if ends:
        if set(ends) & {T} or len(ends) > 1 or T not in v.slope:
            return v.least
        ((c, q),) = ends.items()
        if v.slope[T] < q * v.rate(c):
            return v.least
        size = v.sizes[c]
        over = size.values - float(size.pace) * size.unit * np.arange(1, len(size.values) + 1)
        least -= float(q) * (float(over.max()) - 1)
    elif T in v.slope:
        least += float(v.slope[T])
    return max(least, v.least)


def extreme(sizes: tuple[Series, ...], a: Spread, b: Spread, least: bool) -> Spread:
    """Min or Max."""
    made = _extreme(sizes, a, b, least)
    bounds = (lowest(a), lowest(b))
    return replace(made, least=min(bounds) if least else max(bounds))


def _extreme(sizes: tuple[Series, ...], a: Spread, b: Spread, least: bool) -> Spread:
    d = difference(sizes, a, b)
    how = min if least else max
    (a0, a1), (b0, b1) = a.range, b.range
    if not d.slope:
        lo, hi = how(a.lo, b.lo), how(a.hi, b.hi)
        return joint(sizes, a, b, slope=dict(a.slope), lo=lo, hi=hi)
    by_end = len(d.slope) == 2 and T in d.slope and sum(streamwise(d).values()) == 0
    if (len(d.slope) > 1 and not by_end) or not math.isfinite(most(d)):
        return joint(sizes, exactly(a), exactly(b), lo=how(a0, b0), hi=how(a1, b1))
    near = plane(d, most(d))
    c = next(c for c in d.slope if c != T or not by_end)
    over = ragged(d.sizes[c]) if by_end else 0.0  # no place lies further behind the end
    falls = (d.slope[c] < 0) != by_end  # d, towards places further out (or further in front of the end)
    wins = a if falls == least else b
    # before that it may be off by what both differ there
    off = float(abs(d.slope[c]) * d.rate(c)) * (max(near.values()) + over) + most(d)
    lo, hi = wins.lo - off, wins.hi + off
    out = joint(sizes, a, b, slope=dict(wins.slope), lo=lo, hi=hi)
    return with_near(out, near)


def ragged(size: Series) -> float:
    """How many frames of the stream an axis may be longer or shorter than its rate says."""
    off = size.values - float(size.pace) * size.unit * np.arange(1, len(size.values) + 1)
    return float(np.abs(off).max()) / float(size.pace)


def gathered_over(v: Spread, axes: Iterable[int]) -> dict[Pair, float]:
    """What is near once entries are gathered over some time axes: what is near to one of them is near to the others."""
    near = dict(v.near)
    for a in axes:
        end = {pair(a, T): ragged(v.sizes[a])} if v.sizes[a].growth else {}  # what stops growing has a start only
        near = joined([near, {pair(ORIGIN, a): 0.0}, end])
        beside = {(y if x == a else x): g for (x, y), g in near.items() if a in (x, y)}
        near = {k: g for k, g in near.items() if a not in k}
        for x, g in beside.items():
            for y, h in beside.items():
                if x < y:
                    near = joined([near, {pair(x, y): g + h}])
    return near


def bounded(v: Spread, axes: Iterable[int]) -> Spread:
    """The same where some axes stop growing: all their places lie near the start, and their slope is no slope."""
    for a in axes:
        size = v.sizes[a]
        if size.growth:
            continue
        settled, q = float(size.settled), float(v.slope.get(a, Fraction(0))) * float(size.values.max())
        slope = {c: x for c, x in v.slope.items() if c != a}
        near = {pair(ORIGIN, a): settled + ragged(size), pair(ORIGIN, T): settled}
        v = replace(with_near(v, near), slope=slope, lo=v.lo + min(q, 0.0), hi=v.hi + max(q, 0.0))
    return v


def reps(
    spreads: Iterable[Spread], more: Mapping[str, float], period: int, ends: bool, longest: int = LONGEST
) -> tuple[int, bool]:
    """How long a stream must be looked at to see every kind of place there is; do shorter ones differ from it?

    more: what the question itself looks at: near "start", "pair", "end" and what it hides ("within": a pair further
    apart is not looked at, however it goes on there).
    """
    start = pairs = end = total = 0.0
    axes, by_length = 0, ends
    for v in spreads:
        axes = max(axes, len(v.times))
        period = math.lcm(period, v.period, *(v.rate(a).denominator for a in v.times))
        by_length = by_length or T in v.uses
        for (a, b), g in v.near.items():
            if a == ORIGIN and b == T:
                total = max(total, g)
            elif a == ORIGIN:
                start = max(start, g)
            elif a == T:
                end = max(end, g)
            else:
                pairs = max(pairs, min(g, more.get("within", FAR)))
    start, pairs, end = max(start, more.get("start", 0)), max(pairs, more.get("pair", 0)), max(end, more.get("end", 0))
    gaps = [max(start, total)]
    if axes > 1:
        gaps.append(max(start, total, pairs, end))
    if by_length and axes:
        gaps.append(max(total, end))
    if not all(map(math.isfinite, gaps)):
        if longest < LONGEST:
            return longest, True
        raise Unsure("it never repeats, however long the stream is")
    length = min(sum(math.ceil(g) + period for g in gaps), longest)
    if length > MOST:
        raise TooFar(length)
    return length, by_length
