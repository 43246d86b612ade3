"""What operators make of rows entry by entry: of f(distance) + move(T) again such a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pulsify.analysis.rows.place import Place, Row, settled, steady
from pulsify.core.facet import Facet
from pulsify.lengths import series as one
from pulsify.lengths.float_limits import NUMPY, digits_of
from pulsify.lengths.series import Series, Unsure, constant

Array = np.ndarray[Any, Any]
Law = Callable[[Sequence[Row], "Place | None"], Row]
Fold = Callable[[Array, Array], Array]
MOVES = ("transpose", "regroup", "repeat", "join", "cut", "pick", "points", "elements")  # entries, as they are
CHANGES = "its rows change with the length of the stream, and this makes no row that is a whole number of them"


def together(rows: Sequence[Row], move: Series, least: Series | None = None, most: Series | None = None) -> Row:
    """A row made of others, certain where all of them are."""
    return Row(
        move,
        least,
        most,
        all(r.is_whole for r in rows),
        max((r.shortest for r in rows), default=1),
        min([move.limit, *(r.limit for r in rows)]),
    )


def anything(rows: Sequence[Row], place: Place | None, unit: int) -> Row:
    """Whatever is made of rows that stay as they are stays as it is."""
    still = [settled(r, place, CHANGES) for r in rows]
    return replace(together(still, constant(0, unit)), is_whole=False)


def alike(rows: Sequence[Row], place: Place | None) -> Row:
    """Rows beside each other: they move alike."""
    return _beside(rows, place, np.minimum, np.maximum)


def _beside(rows: Sequence[Row], place: Place | None, low: Fold, high: Fold) -> Row:
    shortest = 1
    for row in rows[1:]:
        apart = one.subtract(row.move, rows[0].move)
        _, since = steady(apart, place, "its entries change with the length of the stream, each in its own way")
        shortest = max(shortest, since)
    least, most = _folded([r.least for r in rows], low), _folded([r.most for r in rows], high)
    made = together(rows, rows[0].move, least, most)
    return replace(made, shortest=max(made.shortest, shortest))


def _folded(ends: Sequence[Series | None], how: Fold) -> Series | None:
    out = ends[0]
    for end in ends[1:]:
        out = None if out is None or end is None else one.extreme(out, end, how)
    return out


def added(rows: Sequence[Row], place: Place | None) -> Row:
    out = rows[0]
    for row in rows[1:]:
        ends = [None if a is None or b is None else one.add(a, b) for a, b in _ends(out, row)]
        out = together([out, row], one.add(out.move, row.move), *ends)
    return out


def _ends(a: Row, b: Row) -> list[tuple[Series | None, Series | None]]:
    return [(a.least, b.least), (a.most, b.most)]


def negated(rows: Sequence[Row], place: Place | None) -> Row:
    (row,) = rows
    least, most = (None if end is None else one.negated(end) for end in (row.most, row.least))
    return replace(row, move=one.negated(row.move), least=least, most=most)


def difference(rows: Sequence[Row], place: Place | None) -> Row:
    return added([rows[0], negated(rows[1:], place)], place)


def product(rows: Sequence[Row], place: Place | None) -> Row:
    """A row and one number; or two of which neither moves."""
    number = next((r for r in reversed(rows) if _one_number(r)), None)
    if number is None:
        scaled = "rows that change with the length of the stream are scaled by what is no single number"
        still = [settled(r, place, scaled) for r in rows]
        return together(still, constant(0, still[0].move.unit))
    row = rows[0] if rows[1] is number else rows[1]
    assert number.least is not None
    by = number.least
    ends = [None if end is None else one.multiply(end, by) for end in (row.least, row.most)]
    return together(rows, one.multiply(row.move, by), *(ends if by.item >= 0 else ends[::-1]))


def _one_number(row: Row) -> bool:
    ends = row.least, row.most
    return all(e is not None and e.constant for e in ends) and ends[0].item == ends[1].item  # type: ignore[union-attr]


def compared(rows: Sequence[Row], place: Place | None) -> Row:
    """Of rows that move alike; or one is always below the other, and the answer is the same throughout."""
    try:
        both = alike(rows, place)
    except Unsure:
        apart = [_below(a, b, place, strictly=True) for a, b in (rows, rows[::-1])]
        since = next((n for n in apart if n is not None), None)
        if since is None:
            raise
        both = together(rows, rows[0].move)
        both = replace(both, shortest=max(both.shortest, since))
    zero, yes = (constant(n, both.move.unit) for n in (0, 1))
    return replace(both, move=zero, least=zero, most=yes)


def _below(a: Row, b: Row, place: Place | None, strictly: bool = False) -> int | None:
    """The shortest stream from which on no entry of a row is above any of another; None if that is unknown."""
    if a.most is None or b.least is None:
        return None
    try:
        holds, since = steady(one.compare(a.most, b.least, np.less if strictly else np.less_equal), place, "")
    except Unsure:
        return None
    return since if holds else None


def chosen(rows: Sequence[Row], place: Place | None) -> Row:
    condition = settled(rows[0], place, "whether a row is chosen changes with the length of the stream")
    made = alike(rows[1:], place)
    return replace(made, shortest=max(made.shortest, condition.shortest), limit=min(made.limit, condition.limit))


def extreme(how: Fold) -> Law:
    def law(rows: Sequence[Row], place: Place | None) -> Row:
        out = rows[0]
        for row in rows[1:]:
            out = _extreme_of(out, row, place, how)
        return out

    return law


def _extreme_of(a: Row, b: Row, place: Place | None, how: Fold) -> Row:
    """Of rows that move alike; or one is never above the other, and it is always that one, or the other."""
    try:
        return _beside([a, b], place, how, how)
    except Unsure:
        for low, high in ((a, b), (b, a)):
            if (since := _below(low, high, place)) is not None:
                wins = low if how is np.minimum else high
                both = together([a, b], wins.move, wins.least, wins.most)
                return replace(both, shortest=max(both.shortest, since))
        raise


def clipped(rows: Sequence[Row], place: Place | None) -> Row:
    """At bounds that move along, that are never reached, or always."""
    low, high = (*rows[1:], None, None)[:2]
    made = rows[0] if low is None else _extreme_of(rows[0], low, place, np.maximum)
    return made if high is None else _extreme_of(made, high, place, np.minimum)


ROW_LAWS = Facet[Law](
    "row laws",
    "what it makes of rows of a known table that move with the length",
    default=lambda t: alike if t.moves or t.axes in MOVES else None,
)


def held(row: Row, dtype: object) -> Row:
    """A row as its type holds it: whole numbers that grow with the stream fit for so many frames."""
    if not row.moves:
        return row
    if not row.is_whole:
        raise Unsure("its rows change with the length of the stream, and are rounded")
    kind = dtype.numpy()  # type: ignore[attr-defined]
    if kind.kind == "b":
        raise Unsure("whether its rows are zero changes with the length of the stream")
    if kind.kind in "iu":
        bound = int(np.iinfo(kind).max)
    else:
        digits = digits_of(dtype)
        if digits not in NUMPY:
            raise Unsure("nothing is known of how its rows are rounded")
        bound = 1 << digits
    if row.least is None or row.most is None:
        raise Unsure("its rows change with the length of the stream, by how much is unknown")
    if kind.kind == "u" and (row.least.values.min() < 0 or row.least.growth < 0):
        raise Unsure("its rows may be negative, and are held in a type that is not")
    limits = [one.within(end, bound) for end in (row.least, row.most)]
    return replace(row, limit=min(row.limit, *limits))
