"""Rows of known tables, followed like frames of a stream: is what a row holds the same at every length?

A table of relative positions is read at row base(T) + d, for example T - 1 + (j - i). Like a frame, a row is made of
rows of its inputs, and which ones follows from the operator's reach along that axis. So a row is followed back to
ranges, constants and numbers of the length. On the way its entries may go along with the length:

    T = 3      g(2) g(1) [g(0)] g(-1) g(-2)               base = T - 1: the row of a Range is start + step * base
    T = 4      g(3) g(2) g(1) [g(0)] g(-1) g(-2) g(-3)    (T - 1) - (T - 1 + d) = -d: T cancels

What is left, `Row.move`, is a number of the length; if it is a constant the rows are the same at every length. Only
places, sizes and single numbers are looked at: no table is ever evaluated.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.analysis.rows.laws import ROW_LAWS, alike, anything, held
from pulsify.analysis.rows.place import Place, Row, before, line, settled, steady
from pulsify.analysis.rows.reaches import reach_of
from pulsify.analysis.values.follow import Few, Fixed, Follower
from pulsify.analysis.values.sizes import sizes_made
from pulsify.lengths.affine_array import EXACT
from pulsify.lengths.float_limits import Drift
from pulsify.lengths.series import LONGEST, Series, Unsure, constant

if TYPE_CHECKING:
    from pulsify.frontend.model import Node

Array = np.ndarray[Any, Any]
BLOCK = 1 << 16  # entries that are looked at in one go
CHANGES = "its rows change with the length of the stream"


@dataclass(eq=False)
class Rows:
    """Follows rows through the known values of a model. What was followed is kept: layers share tables.

    end: no longer stream matters; the model's own tables may end there.
    """

    known: Follower
    end: int = LONGEST
    _shorter: dict[int, Rows] = field(default_factory=dict)
    _sizes: dict[str, tuple[Series, ...]] = field(default_factory=dict)
    _followed: dict[Hashable, Row | Unsure] = field(default_factory=dict)

    def pinned(self, name: str, axis: int, place: Place) -> Row:
        """Rows of a table that are the same at every length. Unsure if they are not, naming the node."""
        row = self.follow(name, axis, place)
        try:
            return settled(row, place, f"{CHANGES}: {described(row.move)}")
        except Unsure as problem:
            raise _at(problem, self.known.model.producers.get(name)) from None

    def follow(self, name: str, axis: int | None, place: Place | None) -> Row:
        """The entries of a known value in some rows of an axis; axis None: at the same place, at every length."""
        if axis is None or place is None or self._is_one(self.sizes(name)[axis]):
            axis = place = None
        key = name, axis, None if place is None else place.key
        if key not in self._followed:
            try:
                self._followed[key] = self._follow(name, axis, place)
            except Unsure as problem:
                self._followed[key] = problem
        row = self._followed[key]
        if isinstance(row, Unsure):
            raise row
        return row

    def before(self, end: int) -> Rows:
        """The same in streams of up to `end` frames."""
        return self._shorter.setdefault(end, Rows(self.known, min(end, self.end)))

    # ---- what reaches ask for

    def sizes(self, name: str) -> tuple[Series, ...]:
        if name not in self._sizes:
            self._sizes[name] = tuple(self.until_end(s) for s in self._sizes_of(name))
        return self._sizes[name]

    def _sizes_of(self, name: str) -> tuple[Series, ...]:
        node = self.known.model.producers.get(name)
        with contextlib.suppress(Unsure):
            self.known.value(name)
            return self.known.sizes_of(name)
        try:
            return self.known.sizes(name) if node is None else sizes_made(self.known, node, name, self.sizes)
        except Unsure as problem:
            raise _at(problem, node) from None

    def rank(self, name: str) -> int:
        return len(self.known.first(name).dims)

    def numbers(self, name: str) -> list[Series]:
        """A value of few entries as numbers of the length."""
        cells = list(self.known.few(self.known.value(name)).reshape(-1))
        if not all(isinstance(c, Series) for c in cells):
            raise Unsure("a number is no linear function of the length")
        return [self.until_end(c) for c in cells]

    def integers(self, name: str) -> list[int]:
        """The same, of numbers that are the same at every length."""
        return [self.item(n) for n in self.numbers(name)]

    def item(self, number: Series, otherwise: str = "a size changes with the length of the stream") -> int:
        if not number.constant:
            raise Unsure(otherwise)
        return int(number.item)

    def constant(self, number: int) -> Series:
        return constant(number, self.known.unit)

    def until_end(self, number: Series) -> Series:
        """The simplest number that is the same up to the end: behind a table's last row sizes are others."""
        count = self.end // number.unit
        if self.end >= number.longest or number.constant or count > number.horizon + number.period:
            return number
        return before(number, count)

    def _is_one(self, size: Series) -> bool:
        return bool(size.constant and size.item == 1)

    # ---- one step back

    def _follow(self, name: str, axis: int | None, place: Place | None) -> Row:
        node = self.known.model.producers.get(name)
        if (row := self._leaf(name, axis, place)) is not None:
            return row
        if node is None:
            raise Unsure(f"'{name}' is an input")
        try:
            row = self._through(node, name, axis, place)
            dtype = self.known.first(name).dtype
            whole = row.is_whole or not dtype.is_floating_point()
            return held(_calm(replace(row, is_whole=whole), place), dtype)
        except Unsure as problem:
            raise _at(problem, node) from None

    def _leaf(self, name: str, axis: int | None, place: Place | None) -> Row | None:
        """A constant, or a few numbers; None if it is made of others."""
        try:
            value = self.known.value(name)
        except Unsure:
            return None
        if isinstance(value, Fixed):
            row = self._of_constant(value, axis, place)
            return replace(row, limit=min(row.limit, value.limit))
        if isinstance(value, Few) and axis is None:
            cells = list(value.cells.flat)
            if cells and all(isinstance(c, Series) for c in cells):
                return alike([self._of_number(self.until_end(c)) for c in cells], None)
        return None

    def _of_number(self, number: Series) -> Row:
        if not ((number.values == np.round(number.values)).all() and number.growth.denominator == 1):
            if number.constant:
                return Row(self.constant(0))
            raise Unsure("a number changes with the length of the stream, in fractions")
        whole = replace(number, values=number.values.astype(np.int64), drift=Drift())
        limit = min(number.limit, number.drift.fits) if number.floating else number.limit
        return Row(whole, whole, whole, True, limit=limit)

    def _of_constant(self, value: Fixed, axis: int | None, place: Place | None) -> Row:
        array, zero = value.array(), self.constant(0)
        row = Row(zero)
        if _is_whole(array) and array.size and np.abs(array.astype(np.float64)).max() < EXACT:
            row = Row(zero, self.constant(int(array.min())), self.constant(int(array.max())), True)
        if axis is None or place is None:
            return row
        try:
            return replace(row, shortest=steady(place.base, place, "")[1])
        except Unsure:
            pass
        step = _even_step(array, axis) if row.is_whole and math.prod(array.shape) == array.shape[axis] else None
        if step is None:
            raise Unsure(f"it is read at rows that change with the length of the stream: {described(place.base)}")
        start = self.constant(int(array.reshape(-1)[0]))
        return line(start, step, place)

    def _through(self, node: Node, name: str, axis: int | None, place: Place | None) -> Row:
        reads = reach_of(self, node, name, axis, place)
        if isinstance(reads, Row):
            return reads
        rows = [self.follow(r.name, r.axis, r.place) for r in reads if r.name]
        shortest = max((r.shortest for r in reads), default=1)
        if any(not r.name for r in reads):
            rows.append(self._of_number(self.constant(0)))
        if not rows:
            raise Unsure("no row of it is ever read")
        law = ROW_LAWS.of(node)
        made = anything(rows, place, self.known.unit) if law is None else law(rows, place)
        return replace(made, shortest=max(made.shortest, shortest))


def _calm(row: Row, place: Place | None) -> Row:
    """A move that is a constant wherever rows are read is one."""
    with contextlib.suppress(Unsure):
        still = settled(row, place, "")
        if still.shortest == row.shortest:
            return still
    return row


def _is_whole(array: Array) -> bool:
    """Are all entries whole numbers? Tables may be large, and mostly the first rows tell."""
    if array.dtype.kind != "f":
        return array.dtype.kind in "biu"
    flat = array.reshape(-1)
    return all((x == np.round(x)).all() for x in (flat[n : n + BLOCK] for n in range(0, flat.size, BLOCK)))


def _even_step(array: Array, axis: int) -> int | None:
    """The step of a table that counts evenly along an axis."""
    steps = np.unique(np.diff(array.astype(np.float64), axis=axis))
    return int(steps[0]) if steps.size == 1 else None


def described(number: Series) -> str:
    """A number of the length, as text."""
    values = [number.at((n + 1) * number.unit) for n in range(4)]
    return ", ".join(str(v) for v in values) + ", ..."


def _at(problem: Unsure, node: Node | None) -> Unsure:
    problem.node = problem.node or node
    return problem
