"""Known values followed through the graph: what each of them is, as a function of the stream's length.

A value is *fixed* (the same at every length), *few* (a handful of numbers, each a Series), or *spread* over time. One
answer per operator in the facet `VALUES`; an operator without one leaves its output unsure, with the reason, and so is
all that is made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.analysis.values.sides import with_its_sides
from pulsify.core.facet import Facet
from pulsify.frontend.model import Model, Node
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import EXACT, FAR, ORIGIN, Spread, T, exactly, lowest, pair, within
from pulsify.lengths.beyond import kept
from pulsify.lengths.curves import Number
from pulsify.lengths.float_limits import INT64, OF_SIZE, Drift, beside, common, digits_of, step_of
from pulsify.lengths.series import Series, Unsure, constant
from pulsify.trace.evaluate import Evaluator, measures
from pulsify.trace.traced import CannotRun, Traced

Array = np.ndarray[Any, Any]
FEW = 64  # numbers that are followed one by one
LOOKS = 20_000  # lengths at which a value over time is evaluated to find a number made of it


@dataclass(frozen=True, eq=False)
class Fixed:
    """The same at every length; `array` is computed when asked for."""

    name: str
    dims: tuple[int, ...]
    array: Callable[[], Array]
    limit: int = one.LONGEST  # the longest stream for which that is certain


@dataclass(frozen=True, eq=False)
class Few:
    """An array of fixed shape whose entries are numbers that go with the length."""

    cells: Array  # of Number, dtype object
    floating: bool = False

    @property
    def dims(self) -> tuple[int, ...]:
        return self.cells.shape


Value = Fixed | Few | Spread
Rule = Callable[["Follower", Node, list[Any]], Any]
VALUES = Facet[Rule]("value", "what a value that follows from the length becomes")


@dataclass(eq=False)
class Follower:
    """What every known value of a model is. `sizes` tells the sizes of data, `at` a known value at a length."""

    model: Model
    evaluator: Evaluator
    unit: int
    sizes: Callable[[str], tuple[Series, ...]]
    at: Callable[[str, int], Traced]
    bound: frozenset[str] = frozenset()  # inputs that hold the length
    longest: int = one.LONGEST  # no stream is longer
    first: Callable[[str], Traced] = field(kw_only=True)  # what is known of a value at the shortest traced length
    filled: Mapping[str, float] = field(default_factory=dict)  # inputs that are this throughout
    _results: dict[str, Value | Unsure] = field(default_factory=dict)

    def value(self, name: str) -> Value:
        """Raises Unsure, naming the node at which the trail is lost."""
        if name not in self._results:
            try:
                self._results[name] = self._follow(name)
            except Unsure as problem:
                self._results[name] = problem
        result = self._results[name]
        if isinstance(result, Unsure):
            raise result
        return result

    @property
    def followed(self) -> list[Value]:
        """All values that are certain so far."""
        return [v for v in self._results.values() if not isinstance(v, Unsure)]

    def _follow(self, name: str) -> Value:
        if name in self.model.constants:
            traced = self.first(name)
            return Fixed(name, traced.dims, lambda: traced.array)
        if name in self.bound:
            cells = np.full(self.first(name).dims, None, object)
            cells.fill(one.length_itself(self.unit, 1, self.longest))
            return Few(cells)
        if name in self.filled:
            return Spread(self.sizes(name), lo=self.filled[name], hi=self.filled[name])
        node = self.model.producers.get(name)
        if node is None:
            raise Unsure(f"'{name}' is an input")
        if measures(node):
            return self._settled(node, name, _law(node)(self, node, []))
        inputs = [self.value(i) if i else None for i in node.inputs]
        if all(v is None or isinstance(v, Fixed) for v in inputs):
            traced = self.first(name)
            limit = min((v.limit for v in inputs if isinstance(v, Fixed)), default=one.LONGEST)
            return Fixed(name, traced.dims, lambda: traced.array, limit)
        try:
            result = _law(node)(self, node, inputs)
        except Unsure as problem:
            problem.node = problem.node or node
            raise
        made = self._settled(node, name, result)
        if isinstance(made, Spread) and len(made.times) > 1:
            made = with_its_sides(node, made, [self.spread(v) for v in inputs if v is not None])
        return made

    def _settled(self, node: Node, name: str, result: Any) -> Value:
        """What a law answered for one of the node's outputs, in the type of that output."""
        value = result[list(node.outputs).index(name)] if isinstance(result, list) else result
        dtype = self.first(name).dtype
        beyond = value.beyond if isinstance(value, Spread) else {}
        if isinstance(value, Spread):
            floating = dtype.is_floating_point()
            drift = replace(value.drift, digits=digits_of(dtype)) if floating else Drift()
            value = replace(value, floating=floating, drift=drift)
        value = _fitting(value, dtype)
        if isinstance(value, Few) and all(isinstance(c, Series) and c.constant for c in value.cells.flat):
            array = np.array([c.item for c in value.cells.flat]).reshape(value.dims)
            limit = min((c.limit for c in value.cells.flat), default=one.LONGEST)
            return Fixed(name, value.dims, lambda: array.astype(dtype.numpy()), limit)
        return kept(value, beyond) if isinstance(value, Spread) else value

    def sizes_of(self, name: str) -> tuple[Series, ...]:
        if not self.first(name).known:
            return self.sizes(name)
        try:
            value = self.value(name)
        except Unsure:  # what its entries are is one question, how many there are another
            return self.sizes(name)
        if isinstance(value, Spread):
            return value.sizes
        return tuple(constant(d, self.unit) for d in value.dims)

    # ---- the forms of a value

    def few(self, value: Value | None, what: str = "it") -> Array:
        """The cells of a value of few entries (dtype object)."""
        if isinstance(value, Few):
            return value.cells
        if isinstance(value, Fixed):
            array = value.array()
            if array.size > FEW:
                raise Unsure(f"{what} has {array.size} entries")
            numbers = [replace(constant(x, self.unit), limit=value.limit) for x in array.reshape(-1, 1)]
            return cells_of(numbers).reshape(array.shape)
        raise Unsure(f"{what} is spread over time")

    def number(self, value: Value | None) -> Series:
        cells = self.few(value).reshape(-1)
        if len(cells) != 1 or not isinstance(cells[0], Series):
            raise Unsure("it is no single number")
        return cells[0]

    def fixed(self, value: Value | None) -> Array:
        if not isinstance(value, Fixed):
            raise Unsure("it changes with the length")
        return value.array()

    def spread(self, value: Value) -> Spread:
        """Any value as one spread over time."""
        if isinstance(value, Spread):
            return value
        if isinstance(value, Fixed):
            return replace(_fixed_spread(value.array(), self.unit), limit=value.limit)
        return _few_spread(value, self.unit)

    def count(self, name: str, value: Spread) -> Few:
        """A value without a time axis that was made of values over time: evaluated at all lengths it takes to know."""
        until = value.near.get(pair(ORIGIN, T), 0.0)
        if value.until < one.LONGEST:
            raise Unsure(f"a table ends after {value.until} frames")
        if value.times or not math.isfinite(until) or set(value.slope) - {T}:
            raise Unsure("it never repeats, however long the stream is")
        horizon, period = math.ceil(until / self.unit), max(value.period // math.gcd(value.period, self.unit), 1)
        count = horizon + period
        if count > LOOKS or math.prod(int(s.item) for s in value.sizes) > FEW:
            raise one.TooFar(count)
        rows = [self.evaluated(name, (n + 1) * self.unit) for n in range(count)]
        if any(r is None for r in rows[horizon:]):
            raise Unsure("it cannot be computed at every length")
        dims = next((r.shape for r in rows if r is not None), None)
        if dims is None or any(r is not None and r.shape != dims for r in rows):
            raise Unsure("its size changes with the length")
        filled = _filled(rows)
        growth = value.slope.get(T, Fraction(0)) * period * self.unit
        columns = np.stack([r.reshape(-1) for r in filled], 1)
        if columns.dtype.kind == "f":
            columns = columns.astype(np.float64)
        drift = value.drift if value.floating and growth else replace(value.drift, noise=0.0, fuzz=0.0)
        if value.floating and not growth and not drift.none:
            raise Unsure("its rounding never repeats, however long the stream is")
        cells = [Series(c, horizon, growth, self.unit, limit=value.limit, drift=drift).reduced() for c in columns]
        return Few(cells_of(cells).reshape(dims), value.floating)

    def evaluated(self, name: str, length: int) -> Array | None:
        """The entries of a known value at a length; None if the model does not run there.

        Raises Unsure for data: rules are asked for the sizes of data too, and these do not tell what it holds.
        """
        if not self.first(name).known:
            raise Unsure("it depends on the data")
        try:
            return self.at(name, length).array
        except CannotRun:
            return None

    def evaluated_or_unsure(self, name: str, length: int) -> Array:
        array = self.evaluated(name, length)
        if array is None:
            raise Unsure(f"it cannot be computed at length {length}")
        return array


def _law(node: Node) -> Rule:
    law = VALUES.of(node)
    if law is None:
        raise Unsure(f"nothing is known of what {node.op} does with it")
    return law


def _fitting(value: Value, dtype: ir.DataType) -> Value:
    """Whole numbers run over: certain only for streams that are shorter."""
    if dtype.is_floating_point() or dtype.numpy().kind not in "iu":
        return value
    kind = np.iinfo(dtype.numpy())
    low, high = int(kind.min), min(int(kind.max), INT64)
    if isinstance(value, Few):
        cells = [one.fitting(c, low, high) if isinstance(c, Series) else c for c in value.cells.flat]
        if any(not isinstance(c, Series) for c in cells) and dtype != ir.DataType.INT64:
            raise Unsure(f"it may be too large for {dtype.name}")
        return Few(cells_of(cells).reshape(value.dims), value.floating)
    return _fitting_spread(value, low, high) if isinstance(value, Spread) else value


def _fitting_spread(v: Spread, low: int, high: int) -> Spread:
    if not max(abs(v.lo), abs(v.hi)) < EXACT:  # running over, it is the same wherever it was
        if high < INT64:
            raise Unsure("it may be too large for its type")
        return replace(exactly(v), lo=-FAR, hi=FAR)
    if low == 0 and lowest(v) < 0:
        raise Unsure("it may be negative, and is held in a type that is not")
    return replace(v, limit=min(v.limit, within(v, high * (1 - 2.0**-40) if high > EXACT else high)))


def _filled(rows: list[Array | None]) -> list[Array]:
    """Lengths at which the model does not run have no value: any will do."""
    some = next(r for r in rows if r is not None)
    out = []
    for r in rows:
        some = r if r is not None else some
        out.append(some)
    return out


def cells_of(numbers: Sequence[Number]) -> Array:
    out = np.empty(len(numbers), object)
    for i, n in enumerate(numbers):
        out[i] = n
    return out


def _fixed_spread(array: Array, unit: int) -> Spread:
    sizes = tuple(constant(d, unit) for d in array.shape)
    floating = array.dtype.kind == "f"
    if not array.size or array.dtype.kind not in "biuf":
        return Spread(sizes, lo=-FAR, hi=FAR, floating=floating)
    lo, hi = float(np.min(array)), float(np.max(array))
    if math.isnan(lo):
        return Spread(sizes, lo=-FAR, hi=FAR, floating=floating)
    if not floating and max(abs(lo), abs(hi)) >= EXACT:
        return Spread(sizes, lo=-FAR, hi=FAR)
    drift = Drift(OF_SIZE.get(array.dtype.itemsize, 24) if floating else 24)
    return Spread(sizes, lo=lo, hi=hi, floating=floating, drift=drift, grain=step_of(array) if floating else None)


def _few_spread(value: Few, unit: int) -> Spread:
    cells = list(value.cells.flat)
    sizes = tuple(constant(d, unit) for d in value.dims)
    if not all(isinstance(c, Series) for c in cells):
        return Spread(sizes, lo=-FAR, hi=FAR, near={pair(ORIGIN, T): FAR}, uses=frozenset({T}), floating=True)
    rates = {c.rate for c in cells}
    period = math.lcm(*(c.repeats for c in cells)) if cells else 1
    if period > one.MOST:
        raise one.TooFar(period)
    settled = max((c.settled - c.unit for c in cells if c.horizon), default=0)
    uses = frozenset({T}) if any(not c.constant for c in cells) else frozenset()
    limit = min((c.limit for c in cells), default=one.LONGEST)
    floating = any(c.floating for c in cells)
    drift = beside(*(c.drift for c in cells if c.floating))
    if len(rates) > 1:
        near = {pair(ORIGIN, T): FAR}
        return Spread(sizes, {}, -FAR, FAR, period, near, uses, floating, limit, drift=drift)
    rate = rates.pop() if rates else Fraction(0)
    ends = [_deviation(c, rate) for c in cells]
    near = {pair(ORIGIN, T): float(settled)} if settled else {}
    slope = {T: rate} if rate else {}
    lo, hi = min((e[0] for e in ends), default=0.0), max((e[1] for e in ends), default=0.0)
    if max(abs(lo), abs(hi)) >= EXACT and not floating:
        raise Unsure("it is too large a number")
    grain = common(*(step_of(c.values) for c in cells), *(abs(c.growth) for c in cells)) if floating else None
    return Spread(sizes, slope, lo, hi, period, near, uses, floating, limit, drift=drift, grain=grain)


def _deviation(s: Series, rate: Fraction) -> tuple[float, float]:
    if not s.floating and max(abs(int(s.values.min())), abs(int(s.values.max()))) >= EXACT / 2:
        if len(s.values) > FEW:
            raise Unsure("it is too large a number")
        exact = [int(x) - rate * s.unit * (n + 1) for n, x in enumerate(s.values)]
        return float(min(exact)), float(max(exact))
    off = s.values.astype(np.float64) - float(rate) * s.unit * np.arange(1, len(s.values) + 1)
    return float(off.min()), float(off.max())
