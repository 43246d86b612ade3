"""What was read off a few lengths is proven for all of them, or refused.

`known/` says how far one must look at a known value until nothing new can show. Here that is done: numbers are known as
whole series, and a claim about values over time is looked at for every kind of place there is. What is not certain is
refused by name, unless the caller accepts what a sample of lengths says (`proof="sampled"`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

import pulsify.known.elementwise
import pulsify.known.moves  # noqa: F401  fill the table of operators
from pulsify.analysis.amounts import known_at, shaped_at
from pulsify.analysis.facts import Field, Wire
from pulsify.analysis.length import Length
from pulsify.errors import NotStreamable
from pulsify.known import series as one
from pulsify.known.follow import LOOKS, OPERATORS, Few, Fixed, Follower, Value
from pulsify.known.lengths import as_length, as_series
from pulsify.known.sampled import every, exhausted, guess, sample
from pulsify.known.series import LONGEST, Series, TooFar, Unsure, constant
from pulsify.known.spread import FAR, Spread, exactly, ragged, reps
from pulsify.trace.evaluate import Array, CannotRun, Trace, Traced

if TYPE_CHECKING:
    from pulsify.emit.context import Context
    from pulsify.frontend.model import Node

SAME_SIZE = (
    *("Softmax", "LogSoftmax", "LayerNormalization", "BatchNormalization", "InstanceNormalization", "Relu", "PRelu"),
    *("LeakyRelu", "Elu", "Gelu", "Selu", "HardSigmoid", "HardSwish", "Mish", "Softplus", "Softsign", "Celu"),
    *("ThresholdedRelu", "Shrink"),
)  # operators whose output is as large as their input
CELLS = 50_000_000  # entries that a claim may look at, at one length; in all eight times as many
SHORT = 64  # streams that are shorter may be turned down where a rule does not hold for them
LATE = 4096  # a model that only takes longer streams than this is looked at no further


@dataclass(eq=False)
class Ledger:
    """What was proven of a conversion, and what was only sampled."""

    horizon: int = 1
    period: int = 1
    limit: int = LONGEST
    limited_by: str = ""  # the value, or node, that is exact no further
    claims: int = 0
    critical: set[int] = field(default_factory=set)  # lengths around which something changes
    sampled: dict[str, str] = field(default_factory=dict)  # what -> why it is not certain

    def saw(self, horizon: int, period: int) -> None:
        self.horizon = max(self.horizon, horizon)
        self.period = math.lcm(self.period, period) if period <= one.MOST else self.period
        if horizon > 1:
            self.critical.add(horizon)
        if period > 1:
            self.critical.add(horizon + period)

    def up_to(self, limit: int, name: str) -> None:
        """What is certain is so for streams of no more frames than this."""
        if limit < self.limit:
            self.limit, self.limited_by = limit, name

    def series(self, s: Series, name: str = "") -> None:
        self.claims += 1
        self.up_to(s.limit, name)
        self.saw(s.settled if s.horizon else 1, s.repeats)


class Looked(Trace):
    """All known values at one length, evaluated when asked for; remembers who was asked for."""

    def __init__(self, ctx: Context, length: int, opaque: frozenset[str] = frozenset()) -> None:
        super().__init__(length, ctx.traces.runs[0].batch)
        self._ctx, self.opaque, self.touched = ctx, opaque, dict[str, None]()

    def __getitem__(self, name: str) -> Traced:
        first = self._ctx.traces.runs[0][name]
        if name in self.opaque or not first.known:
            return replace_known(shaped_at(self._ctx, name, self.length))
        self.touched[name] = None
        return known_at(self._ctx, name, self.length)

    def __contains__(self, name: str) -> bool:
        return name in self._ctx.traces.runs[0]


def replace_known(value: Traced) -> Traced:
    return Traced(value.dtype, value.dims, False)


# ---- who knows


def follower(ctx: Context) -> Follower:
    if ctx.follower is None:
        traces = ctx.traces
        ctx.follower = Follower(
            ctx.model,
            traces.tracer.evaluator,
            traces.tracer.time.step,
            lambda name: data_sizes(ctx, name),
            lambda name, length: known_at(ctx, name, length),
            frozenset(traces.tracer.time.bound),
            longest(ctx),
            first=lambda name: traces.runs[0][name],
        )
    return ctx.follower


def longest(ctx: Context) -> int:
    """No stream is longer."""
    return ctx.traces.tracer.time.longest or LONGEST


def in_frames(ctx: Context, length: Length) -> Series:
    """How many frames a wire has, at every length there is."""
    return as_series(length, ctx.traces.tracer.time.step, longest(ctx))


def data_sizes(ctx: Context, name: str) -> tuple[Series, ...]:
    """The sizes of a value that depends on data."""
    unit = ctx.traces.tracer.time.step
    dims, fact = ctx.dims(name, 0), ctx.facts.get(name)
    times = ctx.time_axes(name)
    port = ctx.traces.tracer.time.streams.get(name)
    out = [constant(d, unit) for d in dims]
    if port is not None:
        out[port[0]] = one.length_itself(unit, port[1], longest(ctx))
    elif isinstance(fact, Wire) and fact.length is not None:
        out[fact.layout.axis] = one.multiply(in_frames(ctx, fact.length), constant(fact.layout.outer[0], unit))
    elif isinstance(fact, Field) and all(s.length is not None for s in fact.sides):
        for side in fact.sides:
            assert side.length is not None
            out[side.axis] = in_frames(ctx, side.length)
    elif times:
        return _sizes_by_operator(ctx, name)
    return tuple(out)


def _sizes_by_operator(ctx: Context, name: str) -> tuple[Series, ...]:
    """The sizes of data that no rule has seen: what the operator does with sizes, it does whatever the entries are."""
    node, f = ctx.model.producers.get(name), follower(ctx)
    if node is None:
        raise Unsure(f"nothing is known of the size of '{name}'")
    if node.op == "Conv" or node.op in ("MaxPool", "AveragePool", "LpPool"):
        return _convolved(ctx, node)
    kind = "Identity" if node.op in SAME_SIZE else node.op
    rule = OPERATORS.get(kind)
    if rule is None:
        raise Unsure(f"nothing is known of the size of '{name}'")
    inputs = [
        None if not i else f.value(i) if ctx.traces.runs[0][i].known else Spread(f.sizes_of(i), lo=-FAR, hi=FAR)
        for i in node.inputs
    ]
    made = rule(f, replace(node, outputs=node.outputs[:1]) if kind == "Identity" else node, inputs)
    made = made[list(node.outputs).index(name)] if isinstance(made, list) else made
    return tuple(f.spread(made).sizes)


def _convolved(ctx: Context, node: Node) -> tuple[Series, ...]:
    f = follower(ctx)
    own, dims = f.sizes_of(node.inputs[0]), ctx.dims(node.outputs[0], 0)
    if node.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or node.attr("ceil_mode", 0):
        raise Unsure(f"nothing is known of the size of '{node.outputs[0]}'")
    n = len(dims) - 2
    kernel = node.attr("kernel_shape") or ctx.dims(node.inputs[1], 0)[2:]
    strides, dilations = (node.attr(k) or (1,) * n for k in ("strides", "dilations"))
    pads = node.attr("pads") or (0,) * (2 * n)
    out = [constant(d, own[0].unit) for d in dims]
    for i in range(n):
        size = own[i + 2]
        if not size.constant:
            more = pads[i] + pads[i + n] - (kernel[i] - 1) * dilations[i] - 1
            steps = one.divide(one.add(size, constant(more, size.unit)), constant(strides[i], size.unit))
            out[i + 2] = one.add(steps, constant(1, size.unit))
    return tuple(out)


def uncertain(ctx: Context, node: Node | None, name: str, problem: Unsure) -> NoReturn:
    """Refuse what is not certain, naming the node at which the trail is lost."""
    lost = getattr(problem, "node", node)
    where = f", made by {lost.op} '{lost.name}'" if lost is not None and lost is not node else ""
    far = isinstance(problem, TooFar)
    raise NotStreamable(
        f"what '{name}' is follows from the stream's length{where}, and it is not certain at every length: {problem}",
        node=node.name if node else name,
        op=node.op if node else "",
        hint=("declare how long streams are" if far else "make it of arithmetic, comparisons and positions")
        + ', or which lengths there are: set={"T": "<=3000"}, set={"T": "8*n"}; or accept what a sample of lengths '
        'says: proof="sampled"',
    )


# ---- numbers


def numbers(ctx: Context, node: Node | None, name: str) -> Array:
    """A known value of few entries: a Series each, dtype object."""
    try:
        value = follower(ctx).value(name)
        if isinstance(value, Spread):
            value = follower(ctx).count(name, value)
        cells = follower(ctx).few(value)
        if not all(isinstance(c, Series) for c in cells.flat):
            raise Unsure("it is no linear function of the length")
    except Unsure as problem:
        cells = _otherwise(ctx, node, name, problem, lambda s: known_at(ctx, name, s).array)
    for c in cells.flat:
        ctx.ledger.series(c, name)
    return cells


def _otherwise(ctx: Context, node: Node | None, name: str, problem: Unsure, at: Callable[[int], Array]) -> Array:
    """Numbers that cannot be followed: looked at in all lengths there are, if those are few; sampled, if accepted."""
    unit = ctx.traces.tracer.time.step
    if longest(ctx) // unit <= LOOKS:
        return exhausted(at, unit, longest(ctx))
    if ctx.proof != "sampled":
        uncertain(ctx, node, name, problem)
    ctx.ledger.sampled[name] = str(problem)
    try:
        return guess(at, unit)
    except Unsure as still:
        uncertain(ctx, node, name, still)


def sizes(ctx: Context, node: Node | None, name: str) -> tuple[Series, ...]:
    """The sizes of any value."""
    try:
        return follower(ctx).sizes_of(name)
    except Unsure as problem:
        return tuple(_otherwise(ctx, node, name, problem, lambda s: np.array(Looked(ctx, s)[name].dims)))


def fixed(ctx: Context, node: Node | None, name: str) -> bool:
    """Is a known value the same at every length?"""
    if not name or name in ctx.model.constants:
        return True
    try:
        value = follower(ctx).value(name)
    except Unsure as problem:
        arrays = [run[name].array for run in ctx.traces.runs]
        if not all(_same(a, arrays[0]) for a in arrays):
            return False
        unit = ctx.traces.tracer.time.step
        if longest(ctx) // unit <= LOOKS:
            return all(_same(a, arrays[0]) for a in every(lambda s: known_at(ctx, name, s).array, unit, longest(ctx)))
        if ctx.proof == "sampled":
            ctx.ledger.sampled[name] = str(problem)
            return all(_same(a, arrays[0]) for a in sample(lambda s: known_at(ctx, name, s).array, unit))
        uncertain(ctx, node, name, problem)
    if isinstance(value, Fixed):
        ctx.ledger.up_to(value.limit, name)
        return True
    if isinstance(value, Few):
        return False  # a Few whose entries are all constant is Fixed
    if any(not s.constant for s in value.sizes):
        return False
    if value.until < LONGEST:
        uncertain(ctx, node, name, Unsure(f"a table ends after {value.until} frames"))
    if not value.uses and not value.slope:
        return True
    first = ctx.traces.runs[0][name].array
    if not all(_same(run[name].array, first) for run in ctx.traces.runs):
        return False
    claim = Claim(node, f"'{name}' being the same at every length", lambda run: _same(run[name].array, first))
    return holds_everywhere(ctx, claim)


def always_zero(ctx: Context, node: Node | None, name: str) -> bool:
    """Is a known value zero at every length, however large it is?"""
    try:
        value = follower(ctx).value(name)
        if isinstance(value, Spread) and not value.slope and value.lo == value.hi == 0:
            return True
    except Unsure:
        pass
    return not ctx.traces.runs[0][name].array.any() and fixed(ctx, node, name)


def _same(x: Array, y: Array) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def familiar(ctx: Context) -> list[Length]:
    """The lengths that wires have already, the latest first."""
    found = [f.length for f in ctx.facts.values() if isinstance(f, Wire) and f.length is not None]
    return list(dict.fromkeys([*reversed(found), *ctx.lengths_found]))


def length_of(ctx: Context, node: Node, frames: Series, name: str = "") -> Length:
    """A number of frames as a Length; what is no regular function of the stream's length is refused."""
    ctx.ledger.series(frames)
    try:
        found = as_length(frames, familiar(ctx))
    except Unsure as problem:
        raise NotStreamable(
            f"the length of its output is no regular function of the stream's length: {problem}",
            node=node.name,
            op=node.op,
            hint="cut or pad by a fixed amount, or to a multiple of a fixed number",
        ) from problem
    ctx.lengths_found[found] = None
    return found


def size_length(ctx: Context, node: Node, name: str, axis: int, outer: int = 1) -> Length:
    """How many frames a known value has on its time axis."""
    size = sizes(ctx, node, name)[axis]
    runs_from(ctx, node, lambda s: known_at(ctx, name, s))
    return length_of(ctx, node, one.divide(size, constant(outer, size.unit)))


def measured(ctx: Context, node: Node, wire: Wire) -> Wire:
    """A known wire with its length, for those who look beyond its ends: all ones, but none behind the last frame."""
    if wire.length is not None:
        return wire
    return replace(wire, length=size_length(ctx, node, wire.name, wire.layout.axis, wire.layout.outer[0]))


def check_target(ctx: Context, node: Node, target: str, expected: Mapping[int, Series]) -> None:
    """A shape that a node is given (-1, 0: worked out from the rest) must be what the rule takes it for."""
    for axis, size in enumerate(numbers(ctx, node, target).reshape(-1)):
        if axis in expected and not (size.constant and size.item in (-1, 0)):
            as_expected(ctx, node, node.outputs[0], axis, size, expected[axis])


def runs_from(ctx: Context, node: Node, evaluate: Callable[[int], Any]) -> None:
    """Streams too short for a known value to be computed at all are ruled out."""
    from pulsify.emit.context import Requirement

    step = ctx.traces.tracer.time.step
    for s in range(step, min(ctx.traces.lengths[0], LATE) + 1, step):
        try:
            evaluate(s)
        except CannotRun:
            continue
        if s > step:
            ctx.require(Requirement(Length(), node.name, at_least=s))
        return


def same_series(a: Series, b: Series) -> bool:
    return one.subtract(a, b).constant and not one.subtract(a, b).item


def as_expected(ctx: Context, node: Node, name: str, axis: int, size: Series, expected: Series) -> None:
    """A size must be what the rule says it is, at every length; the shortest streams may be ruled out."""
    from pulsify.emit.context import Requirement

    ctx.ledger.series(size)
    off = one.subtract(size, expected)
    if off.constant and not off.item:
        return
    if off.growth or off.period > 1 or off.values[-1] or off.settled > SHORT:
        n = int(np.flatnonzero(off.look(off.horizon + off.period + 1))[-1])
        raise NotStreamable(
            f"axis {axis} of its output '{name}' changes with the length of the stream ({size.at((n + 1) * size.unit)} "
            f"at length {(n + 1) * size.unit} where {expected.at((n + 1) * size.unit)} would be regular)",
            node=node.name,
            op=node.op,
            hint='make it a constant, or declare the lengths you use: set={"T": "8*n"}',
        )
    ctx.require(Requirement(Length(), node.name, at_least=off.settled))


# ---- claims


@dataclass(frozen=True, eq=False)
class Claim:
    """Something read off known values that must hold at every length.

    near: what the claim itself looks at beyond the values, in frames of the stream ("start", "pair", "end", "within");
    period: of its own; ends: where values end is part of it; slope: by axis, of the line that the claim says its value
    lies on; hidden: values that never repeat may be taken for data (cells: a mask wins over data).
    """

    node: Node | None
    what: str
    holds: Callable[[Any], bool]
    near: Mapping[str, float] = field(default_factory=dict)
    period: int = 1
    ends: bool = False
    slope: Mapping[int, Fraction] = field(default_factory=dict)
    hidden: bool = False


def holds_everywhere(ctx: Context, claim: Claim) -> bool:
    """Looked at wherever it could fail. Refused if it is not certain where that is."""
    try:
        lengths, opaque = critical_lengths(ctx, claim)
    except Unsure as problem:
        if ctx.proof != "sampled":
            uncertain(ctx, claim.node, getattr(problem, "value", claim.what), problem)
        ctx.ledger.sampled[claim.what] = str(problem)
        lengths, opaque = sampled_lengths(ctx), frozenset()
    ctx.ledger.claims += 1
    looked = 0
    for s in lengths:
        ctx.cells.clear()
        try:
            if not claim.holds(Looked(ctx, s, opaque)):
                ctx.cells.clear()
                return False
            looked += 1
        except CannotRun:
            continue
    ctx.cells.clear()
    if not looked:
        uncertain(ctx, claim.node, claim.what, Unsure(f"it cannot be computed for streams of {lengths[-1]} frames"))
    return True


def sampled_lengths(ctx: Context) -> list[int]:
    """A few lengths, where it is not known how far to look."""
    step, base, longest = ctx.traces.step, ctx.traces.lengths[0], ctx.traces.lengths[-1]
    return [*ctx.traces.lengths, *(base + n * step for n in range(2, 9)), base + 4 * longest // step * step]


def critical_lengths(ctx: Context, claim: Claim) -> tuple[list[int], frozenset[str]]:
    """Lengths at which every kind of place that the claim's values have is seen, and values taken for data."""
    run = Looked(ctx, ctx.traces.longest.length)
    ctx.cells.clear()
    claim.holds(run)
    ctx.cells.clear()
    spreads, opaque, names = [], set(), []
    for name in run.touched:
        try:
            value = follower(ctx).value(name)
            if isinstance(value, Fixed):
                continue
            v = follower(ctx).spread(value)
            if claim.slope and v.slope and v.slope != claim.slope:
                raise Unsure("it does not go on along the line it seems to lie on")
            v = v if claim.slope else exactly(v)
            if claim.slope and not v.slope:  # if it is no line after all, that shows in a second period
                v = replace(v, period=2 * v.period)
            if claim.hidden and v.hide is not None and not _finite(v):
                v = replace(v, near=v.hide)
            if claim.hidden and not _finite(v) and v.longest >= longest(ctx):
                raise Unsure("it shows something new however far one looks")
            reps([v], claim.near, claim.period, claim.ends, min(v.longest, longest(ctx)))
        except Unsure as problem:
            if not claim.hidden:
                problem.value = name  # type: ignore[attr-defined]
                raise
            opaque.add(name)
            continue
        spreads.append(v)
        names.append(name)
        ctx.ledger.up_to(v.limit, name)
    unit, end = ctx.traces.tracer.time.step, _end(ctx, spreads)
    length, by_length = reps(spreads, claim.near, claim.period, claim.ends, end)
    length = min(-(-(length + _ragged(spreads)) // unit), end // unit) * unit
    if length == end < longest(ctx) and ctx.traces.tracer.works(end + unit):
        raise Unsure(f"its size stops growing at {end} frames")
    ctx.ledger.saw(length, 1)
    if not by_length:
        length = _runs_at(ctx, names, length)
        _affordable(spreads, [length])
        return [length], frozenset(opaque)
    found = distinct(ctx, names, length // unit)
    _affordable(spreads, found)
    return found, frozenset(opaque)


def _end(ctx: Context, spreads: Iterable[Spread]) -> int:
    """The longest stream for which all values go on: a table ends, and its last frame may be as long as several."""
    unit, end = ctx.traces.tracer.time.step, longest(ctx)
    for v in spreads:
        if v.longest < end:
            slowest = max((1 / v.rate(a) for a in v.times), default=Fraction(1))
            lengths = range(v.longest, v.longest + math.ceil(slowest), unit)
            end = max((s for s in lengths if ctx.traces.tracer.works(s)), default=v.longest)
    return end


def _finite(v: Spread) -> bool:
    return all(math.isfinite(g) for g in v.near.values())


def _ragged(spreads: Iterable[Spread]) -> int:
    """How many frames longer a stream must be for a value to have its last place there."""
    worst = 0.0
    for v in spreads:
        for a in v.times:
            worst = max(worst, ragged(v.sizes[a]) + 1 / float(v.rate(a)))
    return math.ceil(worst)


def _affordable(spreads: Iterable[Spread], lengths: list[int]) -> None:
    cells = [max((math.prod(s.at(n) for s in v.sizes) for v in spreads), default=0) for n in lengths]
    if max(cells) > CELLS or sum(cells) > 8 * CELLS:
        raise TooFar(lengths[-1])


def _runs_at(ctx: Context, names: list[str], length: int) -> int:
    """This length, or the longest before it at which the values can be computed (a table may end before)."""
    unit = ctx.traces.tracer.time.step

    def runs(n: int) -> bool:
        try:
            return all(known_at(ctx, name, n * unit).dims is not None for name in names)
        except CannotRun:
            return False

    low, high = ctx.traces.lengths[0] // unit, length // unit
    for n in range(high, high + 8):  # some lengths are none that the model takes
        if runs(n):
            return n * unit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    return low * unit


def kinds(numbers: list[Series], longest: int) -> tuple[list[int], Array]:
    """One length of each kind (all numbers agree) of those up to `longest`, and of which kind each length is."""
    unit = numbers[0].unit if numbers else 1
    columns = [s.look(-(-longest // unit)).astype(np.float64) for s in numbers]
    _, first, which = np.unique(np.stack(columns, 1), axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return [(int(first[n]) + 1) * unit for n in order], np.argsort(order)[which.reshape(-1)]


def distinct(ctx: Context, names: list[str], count: int) -> list[int]:
    """Of the first `count` lengths, one of each kind: those at which all numbers the values are made of agree."""
    unit, numbers = ctx.traces.tracer.time.step, numbers_behind(ctx, names)
    return kinds(numbers, count * unit)[0] if numbers else [count * unit]


def numbers_behind(ctx: Context, names: list[str]) -> list[Series]:
    """All numbers that some values are made of."""
    found: list[Series] = []
    seen: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in seen or not name or not ctx.traces.runs[0][name].known:
            continue
        seen.add(name)
        value: Value | None
        try:
            value = follower(ctx).value(name)
        except Unsure:
            value = None
        if isinstance(value, Fixed):
            continue
        if isinstance(value, Few) and all(isinstance(c, Series) for c in value.cells.flat):
            found.extend(c for c in value.cells.flat if not c.constant)
            continue
        node = ctx.model.producers.get(name)
        if node is None or node.op in ("Shape", "Size"):
            found.append(one.length_itself(ctx.traces.tracer.time.step, 1, longest(ctx)))
            continue
        todo.extend(node.inputs)
    return found


def tabulated(ctx: Context, node: Node, name: str, count: Callable[[Array], int]) -> Series:
    """A number read off a known value over one time axis (how many frames it shows), at every length."""
    try:
        value = follower(ctx).value(name)
        v = follower(ctx).spread(value)
        period = math.lcm(v.period, *(v.sizes[a].repeats for a in v.times))
        length, _ = reps([exactly(v)], {}, period, True, longest(ctx))
    except Unsure as problem:
        cells = _otherwise(ctx, node, name, problem, lambda s: np.array(count(known_at(ctx, name, s).array)))
        found: Series = cells.reshape(-1)[0]
        return found
    unit = ctx.traces.tracer.time.step
    period = math.lcm(v.period, unit, *(v.sizes[a].repeats for a in v.times)) // unit
    horizon = -(-length // unit)
    numbers, count_of = numbers_behind(ctx, [name]), horizon + 2 * period
    lengths, which = kinds(numbers, count_of * unit) if numbers else ([count_of * unit], np.zeros(count_of, np.int64))
    values = np.zeros(len(lengths), np.int64)
    for n, s in enumerate(lengths):
        try:
            values[n] = count(known_at(ctx, name, s).array)
        except CannotRun:
            continue
    values = values[which]
    grown = values[horizon + period :] - values[horizon : horizon + period]
    if (grown != grown[0]).any():
        uncertain(ctx, node, name, Unsure("it grows unevenly"))
    return Series(values[: horizon + period], horizon, Fraction(int(grown[0])), unit, longest=longest(ctx)).reduced()
