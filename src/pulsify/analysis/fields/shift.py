"""A relative shift followed at every length: which row of its table do the cells (i, i + offset) show?

Cells are moved by sums and products of sizes and amounts, each a line of the length past its horizon. What such terms
compare like is settled where the largest root of the quadratic forms they make up lies behind; up to there the moves
are run on an iota, at one length of each kind.

    far          past it every offset's row moves on along a line of the length: a Series
    pinned       what the table holds there is the same at every length (`analysis/rows`)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import NoReturn

import numpy as np

from pulsify.analysis.facts import Field
from pulsify.analysis.proof.claims import fixed, kinds, numbers_behind
from pulsify.analysis.proof.numbers import Looked, follower, longest, rows_of, sizes, uncertain
from pulsify.analysis.proof.values import known_at
from pulsify.analysis.questions import Questions
from pulsify.analysis.rows.place import Place
from pulsify.analysis.values.follow import Few, Fixed
from pulsify.core.errors import NotStreamable
from pulsify.core.facet import Facet
from pulsify.core.length import Length
from pulsify.core.refusal import Kind
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.lengths.number import steady_growth
from pulsify.lengths.series import LONGEST, Series, TooFar, Unsure
from pulsify.trace.traced import Array, CannotRun, known

MOST_CELLS = 400_000_000  # looked at, at all lengths together
MOST_BEFORE = 64  # lengths before the first that counts
MOST_KINDS = 2_000  # of lengths
MOST_AT_ONCE = 2_000_000  # cells that are compared in one go
BEHIND = 3  # sizes of a table behind its end that are tried
TRIED = (2, 4, 8)  # times the longest length that was traced
STEADY = 8  # so many lengths at one rate are no coincidence: whether the model ends there is looked at
Moves = tuple[tuple[Node, int], ...]
AMOUNTS = Facet[tuple[int, ...]](
    "amounts",
    "which inputs say how far entries are moved, or where they are cut",
    default=lambda t: (1, 2) if t.axes == "cut" else None,
)
Places = dict[int, int]  # by offset, the row of the table


@dataclass(frozen=True, eq=False)
class Shift:
    """places: at one length of each kind up to `far`; which: of which kind each length is; end: no stream is longer."""

    numbers: list[Series]
    far: int
    end: int
    which: Array
    places: dict[int, Places]

    def place(self) -> Place:
        """The rows that cells show: of the offset 0, and the first and the last there are, as numbers of the length."""
        shown = list(self.places.values())
        step = _step(shown)
        bases = [next((row - step * offset for offset, row in p.items()), None) for p in shown]
        for p, base in zip(shown, bases, strict=True):
            if any(row - step * offset != base for offset, row in p.items()):
                raise Unsure("its relative positions move on unevenly")
        by_length = np.array([np.nan if b is None else b for b in bases])[self.which]
        missing = np.flatnonzero(np.isnan(by_length))
        if missing.size == len(by_length):
            raise Unsure("its relative positions reach further than was looked")
        known = np.flatnonzero(~np.isnan(by_length))
        after = np.minimum(np.searchsorted(known, np.arange(len(by_length))), len(known) - 1)
        base = by_length[known[after]].astype(np.int64)  # where no row is shown any will do
        ends = [np.array([fold(p.values()) if p else 0 for p in shown])[self.which] for fold in (min, max)]
        ends = [np.where(np.isnan(by_length), base - n, end) for n, end in enumerate(ends)]
        return Place(self._series(base, missing), *(self._series(e, missing) for e in ends))

    def _series(self, values: Array, missing: Array) -> Series:
        unit = self.numbers[0].unit
        turn = math.lcm(*(_line(s, self.far).turn for s in self.numbers)) // unit
        horizon = len(values) - 2 * turn
        if horizon < 0 or (missing.size and missing[-1] >= horizon):
            raise Unsure("its relative positions reach further than was looked")
        grown = values[-turn:] - values[-2 * turn : -turn]
        if (grown != grown[0]).any():
            raise Unsure("its relative positions move on unevenly")
        return replace(Series(values[:-turn], horizon, Fraction(int(grown[0])), unit).reduced(), longest=self.end)


def _step(shown: Sequence[Places]) -> int:
    """How many rows further the next offset is."""
    for p in shown:
        if len(p) > 1:
            (first, row), (second, other) = sorted(p.items())[:2]
            if (other - row) % (second - first) == 0:
                return (other - row) // (second - first)
    return 0


@dataclass(frozen=True, eq=False)
class Shown:
    """Rows by length and offset; place: of all of them, if they are proven to hold the same up to streams of `end`."""

    places: Mapping[int, Places]
    place: Place | None = None
    end: int = LONGEST


def rows_shown(ask: Questions, node: Node, origin: Field, moves: Moves, offsets: tuple[int, int]) -> Shown:
    """The rows of its table that each offset shows, proven to hold the same at every length."""
    assert origin.product is not None
    product, at = origin.product
    name, place = product.inputs[at], None
    try:
        shift = _followed(ask, node, origin, moves, offsets)
        place = shift.place()
        row = rows_of(ask, shift.end).pinned(name, ask.time_axes(name)[0], place)
    except Unsure as problem:
        if place is not None and not _look_alike(ask, name, place):
            _refuse_changing(problem.node or node, str(problem))
        if ask.options.proof != "sampled":
            uncertain(ask, node, name, problem)
        ask.ledger.sampled[name] = str(problem)
        return Shown({s: _tried(ask, node, origin, moves, s, offsets) for s in ask.traces.lengths})
    ask.ledger.up_to(row.limit, name)
    ask.ledger.saw(shift.far, 1)
    if row.shortest > 1:
        ask.ledger.require(node.name, Length(), at_least=row.shortest)
    return Shown(_long_enough(ask, node, origin, moves, offsets, shift, row.shortest), place, shift.end)


def _long_enough(
    ask: Questions, node: Node, origin: Field, moves: Moves, offsets: tuple[int, int], shift: Shift, shortest: int
) -> dict[int, Places]:
    """Lengths that were looked at and at which rows hold what they hold from then on; there is one with all of them."""
    places = {s: p for s, p in shift.places.items() if s >= shortest}
    if all(len(p) <= offsets[1] - offsets[0] for p in places.values()):
        unit = shift.numbers[0].unit
        longer = -(-(max(shift.places) + shortest) // unit) * unit
        places[longer] = _tried(ask, node, origin, moves, longer, offsets)
    return places


def _look_alike(ask: Questions, name: str, place: Place) -> bool:
    """Does a table hold the same rows at some lengths? Looked at only to tell what changes from what is unknown."""
    axis, rows = ask.time_axes(name)[0], dict[int, Array]()
    for s in (*ask.traces.lengths, *(ask.traces.lengths[-1] * n for n in TRIED)):
        try:
            table: Array = known_at(ask, name, s).array
        except CannotRun:
            continue
        scale = float(np.abs(table).max(initial=0, where=np.isfinite(table)))
        base = int(place.base.at(s))
        for at in range(int(place.first.at(s)), int(place.last.at(s)) + 1):
            row = np.asarray(table.take(at, axis))
            if not np.allclose(row, rows.setdefault(at - base, row), rtol=1e-5, atol=1e-6 * scale):  # they are rounded
                return False
    return True


def _refuse_changing(node: Node, why: str) -> NoReturn:
    raise NotStreamable(
        f"its relative positions depend on the length of the stream: {why}",
        node=node.name,
        op=node.op,
        hint="index them by the offset j - i",
        kind=Kind.LENGTH,
    )


def everywhere(
    ask: Questions, node: Node, origin: Field, moves: Moves, offsets: tuple[int, int], places: Mapping[int, Places]
) -> None:
    """All cells of a field show what those near the diagonal show, row place(offset, T): looked at in whole fields.

    Cells move by lines of row, column and length, of which there are so many kinds as sizes compare in ways; those
    are all there in a stream long enough for constants not to matter, from its first cell to its last, at one length of
    each kind.
    """
    with suppress(Unsure):  # places: of lengths at which the table differs, not the moves
        places = {**_followed(ask, node, origin, moves, offsets).places, **places}
    for s, near in places.items():
        if len(near) < 2:
            continue
        (offset, place), (last, end) = min(near.items()), max(near.items())
        rows = Looked(ask, s)[origin.name].dims[origin.sides[0].axis]
        found = _tried(ask, node, origin, moves, s, (1 - rows, offsets[1]))
        if any((p - place) * (last - offset) != (o - offset) * (end - place) for o, p in found.items()):
            ask.refuse(
                node,
                "far from the diagonal, attention scores belong to other offsets than near it",
                "use the usual relative-position shift",
                kind=Kind.ATTENTION,
            )


def _followed(ask: Questions, node: Node, origin: Field, moves: Moves, offsets: tuple[int, int]) -> Shift:
    """Layers shift alike: one of them is followed."""
    given = [n for move, i in moves for k, n in enumerate(move.inputs) if n and k != i and not _joined(move, k, i)]
    numbers = [*numbers_behind(ask, given), *(s for s in sizes(ask, node, origin.name) if not s.constant)]
    numbers = list({_signature(s): s for s in numbers}.values())
    end = _end(ask, node, numbers)
    key = _key(ask, node, origin, moves, given, offsets)
    if key is not None and key in ask.shifts:
        found: Shift = ask.shifts[key]
        return found
    lines = [_line(s, end) for s in numbers]
    far = min(_settled(lines, _amounts(ask, moves) + _picked(ask, moves), max(map(abs, offsets))), end)
    lengths, which = kinds(numbers, far)
    cells = math.prod(s.at(lengths[-1]) for s in sizes(ask, node, origin.name))
    if len(lengths) > MOST_KINDS or len(lengths) * cells > MOST_CELLS:
        raise TooFar(far)
    made = Shift(numbers, far, end, which, {s: _tried(ask, node, origin, moves, s, offsets) for s in lengths})
    if key is not None:
        ask.shifts[key] = made
    return made


def _signature(s: Series) -> Hashable:
    return s.values.tobytes(), s.horizon, s.growth, s.unit


def _key(
    ask: Questions, node: Node, origin: Field, moves: Moves, given: list[str], offsets: tuple[int, int]
) -> Hashable | None:
    """Equal for shifts that move cells alike at every length; None if that cannot be told."""
    parts: list[Hashable] = [offsets, tuple(_signature(s) for s in sizes(ask, node, origin.name))]
    parts += [(move.op, at, repr(sorted(move.attrs.items()))) for move, at in moves]
    for name in given:
        value = follower(ask).value(name)
        if isinstance(value, Fixed):
            parts.append(value.array().tobytes())
        elif isinstance(value, Few) and all(isinstance(c, Series) for c in value.cells.flat):
            parts.append(tuple(_signature(c) for c in value.cells.flat))
        else:
            return None
    return tuple(parts)


@dataclass(frozen=True)
class Line:
    """A number past `horizon` frames: rate * T, and off by no more than `off`; it repeats so after `turn` frames."""

    horizon: int
    turn: int
    rate: Fraction
    off: float


def _line(s: Series, end: int) -> Line:
    rate, first = s.rate, s.horizon
    if (steady := _steady(s)) is not None and steady.until >= end // s.unit:
        rate, first = steady.rate, steady.since
    values = s.values[first : max(end // s.unit, 1)].astype(np.float64)
    off = float(np.abs(values - float(rate) * (first + 1 + np.arange(len(values))) * s.unit).max(initial=0))
    horizon = (first + 1) * s.unit if first else 0
    return Line(horizon, math.lcm(s.repeats, rate.denominator), rate, off)


@dataclass(frozen=True)
class Steady:
    """A number grows at one rate from some length on (`since`, counted from 0) until another."""

    rate: Fraction
    since: int
    until: int


def _steady(s: Series) -> Steady | None:
    """At which rate a number grows from the start, or from its first change: before it there may be no frame at all."""
    changes = np.flatnonzero(np.diff(s.values[:MOST_BEFORE]))
    for since in (0, *(changes[:1] + 1).tolist()):
        found = steady_growth(s.values[since:])
        if found is not None and found[1] >= STEADY:
            return Steady(found[0] / s.unit, since, since + found[1])
    return None


def _settled(lines: list[Line], amounts: float, reach: int) -> int:
    """The length from which on nothing that the moves compare changes any more."""
    turn = math.lcm(*(n.turn for n in lines))
    grown = [n for n in lines if n.rate]
    slowest = min((n.rate * turn for n in grown), default=Fraction(1))
    apart = sum(n.off / float(n.rate * turn) for n in grown)
    apart += (sum(n.off for n in lines if not n.rate) + amounts) / float(slowest)
    turns = max((1 + apart) ** 2, reach / float(slowest) + apart + 1)
    return max(n.horizon for n in lines) + turn * (math.ceil(turns) + 3)


def _amounts(ask: Questions, moves: Moves) -> float:
    """The sum of all constant amounts that cells are moved by, or cut at."""
    total = 0.0
    for move, _ in moves:
        for name in (move.input(i) for i in AMOUNTS.of(move) or ()):
            value = ask.traces.runs[0][name] if name else None
            if value is not None and value.known and value.array.dtype.kind == "i" and fixed(ask, move, name or ""):
                amounts = np.abs(value.array.astype(np.float64))
                total += float(amounts[amounts < LONGEST].sum())
    return total


def _picked(ask: Questions, moves: Moves) -> float:
    """What is added to the places that cells are picked from, which must lie on lines of length, row and column."""
    total = 0.0
    for move, _ in moves:
        if traits(move.op, move.domain).axes not in ("pick", "elements"):
            continue
        v = follower(ask).spread(follower(ask).value(move.inputs[1]))
        if v.lo != v.hi or v.period != 1 or v.near:
            raise Unsure("it picks attention scores by an index that is no plain sum of length, row and column")
        ask.ledger.up_to(v.certain, move.inputs[1])
        total += abs(v.lo)
    return total


def _end(ask: Questions, node: Node, numbers: list[Series]) -> int:
    """The longest stream that matters: past the end of the model's table batch fails, and the stream goes on alone.

    Where batch does not fail (a slice that wraps around gives it other rows), streams of such lengths are rejected.
    """
    unit, end = ask.traces.tracer.time.step, longest(ask)
    for s in numbers:
        if s.growth or not s.horizon or (steady := _steady(s)) is None:
            continue
        last = steady.until
        end = min(end, last * unit)
        begins = [last, *(last + 1 + np.flatnonzero(np.diff(s.values[last:]))), len(s.values)]
        for begin, before in list(pairwise(begins))[:BEHIND]:
            if ask.traces.tracer.works((int(begin) + 1) * unit):
                outside = ((int(begin) + 1) * unit, int(before) * unit)
                ask.ledger.require(node.name, Length(), outside=outside)
        if ask.traces.tracer.works((s.horizon + 2) * unit):  # and so on for ever
            ask.ledger.require(node.name, Length(), at_most=end)
    return end


def _tried(ask: Questions, node: Node, origin: Field, moves: Moves, s: int, offsets: tuple[int, int]) -> Places:
    try:
        return _places(ask, node, origin, moves, s, *offsets)
    except CannotRun:  # the model's table ends before
        return {}


def _joined(move: Node, index: int, at: int) -> bool:
    return traits(move.op, move.domain).axes == "join" and index != at


def _places(ask: Questions, node: Node, origin: Field, moves: Moves, s: int, lo: int, hi: int) -> dict[int, int]:
    """For every offset lo ... hi that there is, the table row that all cells (i, i + offset) show."""
    run = Looked(ask, s)
    dims = run[origin.name].dims
    moved = np.arange(int(np.prod(dims)), dtype=np.int64).reshape(dims)
    evaluator = ask.traces.tracer.evaluator
    for move, at in moves:
        inputs = [run[n] if n and i != at else None for i, n in enumerate(move.inputs)]
        inputs[at] = known(moved)
        # other inputs are joined to it (zeros in front): they must have its type, and show as no cell at all
        inputs = [
            known(np.full(v.dims, -1, np.int64)) if _joined(move, i, at) and v else v for i, v in enumerate(inputs)
        ]
        moved = evaluator.run(move, inputs)[0]
    row, col = (side.axis for side in origin.sides)
    heads = np.moveaxis(moved, (row, col), (-2, -1)).reshape(-1, moved.shape[row], moved.shape[col])
    block, places = max(MOST_AT_ONCE // max(heads[:, :, :1].size, 1), 1), dict[int, int]()
    for first in range(lo, hi + 1, block):
        shown = _shown_cells(heads, dims, (row, col), (first, min(first + block - 1, hi)))
        if shown is None or (shown and _lead(dims, row, col) != _lead(moved.shape, row, col)):
            ask.refuse(
                node,
                "attention scores are moved about in a way that is no relative-position shift",
                "use the usual relative-position shift",
                kind=Kind.ATTENTION,
            )
        places |= shown
    return places


def _shown_cells(heads: Array, dims: tuple[int, ...], axes: tuple[int, int], offsets: tuple[int, int]) -> Places | None:
    """For every offset there is, the column that all cells (i, i + offset) were moved from; None if they differ.

    heads: for every cell, the place of the cell that it shows, counted through an array of these dims.
    """
    row, col = axes
    wanted, i = np.arange(offsets[0], offsets[1] + 1), np.arange(heads.shape[1])
    j = i + wanted[:, None]
    there = (j >= 0) & (j < heads.shape[2])  # [offsets, rows]
    wanted, j, there = (x[there.any(1)] for x in (wanted, j, there))
    cells = heads[:, i[None], np.clip(j, 0, heads.shape[2] - 1)]
    where = np.unravel_index(np.maximum(cells, 0), dims)
    lead = [w for k, w in enumerate(where) if k not in (row, col)]
    head = np.ravel_multi_index(lead, _lead(dims, row, col)) if lead else np.zeros_like(cells)
    columns = where[col][0, np.arange(len(wanted)), there.argmax(1)] if len(wanted) else wanted
    moved = (head != np.arange(len(heads))[:, None, None]) | (cells < 0) | (where[row] != i)
    if ((moved | (where[col] != columns[None, :, None])) & there).any():
        return None
    return dict(zip(wanted.tolist(), columns.tolist(), strict=True))


def _lead(dims: tuple[int, ...], row: int, col: int) -> tuple[int, ...]:
    """All axes but the two of time: heads, streams."""
    return tuple(d for k, d in enumerate(dims) if k not in (row, col))
