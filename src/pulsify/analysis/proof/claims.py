"""Claims about known values over time: looked at for every kind of place there is, so they hold at every length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.analysis.proof.failing import failing
from pulsify.analysis.proof.numbers import SHORT, Looked, follower, longest, otherwise, shortest_taken, uncertain
from pulsify.analysis.proof.values import known_at
from pulsify.analysis.questions import Questions, Unclear
from pulsify.analysis.values.follow import LOOKS, Few, Fixed, Value
from pulsify.analysis.values.sampled import every, sample
from pulsify.core.length import Length
from pulsify.core.refusal import Kind
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import Spread, exactly, ragged, reps
from pulsify.lengths.series import LONGEST, Series, TooFar, Unsure
from pulsify.trace.evaluate import measures
from pulsify.trace.traced import Array, CannotRun, TooLarge, same

if TYPE_CHECKING:
    from pulsify.frontend.model import Node

BEYOND = (1, 2, 3, 7, 64, 1000)  # frames behind the end of a table: no model takes as many
CELLS = 100_000_000  # entries that a claim may look at, at one length; in all eight times as many


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


def holds_everywhere(ask: Questions, claim: Claim) -> bool:
    """Looked at wherever it could fail. Refused if it is not certain where that is."""
    try:
        critical = _critical(ask, claim)
    except Unsure as problem:
        if ask.options.proof != "sampled":
            uncertain(ask, claim.node, problem.value or claim.what, problem)
        ask.ledger.sampled[claim.what] = str(problem)
        critical = Critical(sampled_lengths(ask))
    ask.ledger.claims += 1
    failed = None
    for s in _spread_out(critical.lengths):
        ask.cells.clear()
        try:
            if not claim.holds(Looked(ask, s, critical.opaque)):
                return False
        except TooLarge:
            uncertain(ask, claim.node, claim.what, TooFar(s))
        except CannotRun as problem:
            failed = problem
            critical.failed.append(s)
        finally:
            ask.cells.clear()
    if len(critical.failed) == len(critical.lengths):
        last = critical.lengths[-1]
        uncertain(ask, claim.node, claim.what, Unsure(f"it cannot be computed for streams of {last} frames"))
    if failed is not None and critical.names:
        failing(ask, critical.names, numbers_behind(ask, critical.names), critical.lengths[-1], failed)
    return True


def _spread_out(lengths: list[int]) -> list[int]:
    """The last first, then all over: what does not hold shows early."""
    rest = np.random.default_rng(0).permutation(lengths[:-1]).tolist()
    return [*lengths[-1:], *rest]


@dataclass(frozen=True, eq=False)
class Critical:
    """Lengths at which every kind of place that some values have is seen. opaque: values taken for data.

    names: of the others, and of what those are made of; failed: lengths at which they could not be computed.
    """

    lengths: list[int]
    opaque: frozenset[str] = frozenset()
    names: list[str] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)


def sampled_lengths(ask: Questions) -> list[int]:
    """A few lengths, where it is not known how far to look."""
    step, base, longest = ask.traces.step, ask.traces.lengths[0], ask.traces.lengths[-1]
    return [*ask.traces.lengths, *(base + n * step for n in range(2, 9)), base + 4 * longest // step * step]


def critical_lengths(ask: Questions, claim: Claim) -> tuple[list[int], frozenset[str]]:
    """Lengths at which every kind of place that the claim's values have is seen, and values taken for data."""
    found = _critical(ask, claim)
    return found.lengths, found.opaque


def _critical(ask: Questions, claim: Claim) -> Critical:
    seen: dict[str, Spread | Fixed | None] = {}  # None: taken for data
    while True:  # what is made of values taken for data is looked at in other ways, at other values
        opaque = frozenset(n for n, v in seen.items() if v is None)
        run = Looked(ask, ask.traces.longest.length, opaque)
        ask.cells.clear()
        claim.holds(run)
        ask.cells.clear()
        new = [n for n in run.touched if n not in seen]
        if not new:
            spreads = {n: v for n, v in seen.items() if isinstance(v, Spread)}
            return replace(_looked_at(ask, claim, spreads), opaque=opaque)
        seen |= {n: _as_claimed(ask, claim, n) for n in new}


def _as_claimed(ask: Questions, claim: Claim, name: str) -> Spread | Fixed | None:
    """What a claim is made of; None if it is not certain, and may be taken for data."""
    try:
        value = follower(ask).value(name)
        if isinstance(value, Fixed):
            return value
        v = follower(ask).spread(value)
        if claim.slope and v.slope and v.slope != claim.slope:
            raise Unsure("it does not go on along the line it seems to lie on")
        v = v if claim.slope else exactly(v)
        if claim.slope and not v.slope:  # if it is no line after all, that shows in a second period
            v = replace(v, period=2 * v.period)
        if claim.hidden and v.hide is not None and not _finite(v):
            v = replace(v, near=v.hide)
        if claim.hidden and not _finite(v) and v.longest >= longest(ask):
            raise Unsure("it never repeats, however long the stream is")
        reps([v], claim.near, claim.period, claim.ends, min(v.longest, longest(ask)))
    except Unsure as problem:
        if claim.hidden:
            return None
        problem.value = name
        raise
    ask.ledger.up_to(v.certain, name)
    return v


def _looked_at(ask: Questions, claim: Claim, by_name: Mapping[str, Spread]) -> Critical:
    names, spreads = list(by_name), list(by_name.values())
    unit, end = ask.traces.tracer.time.step, _end(ask, spreads)
    length, by_length = reps(spreads, claim.near, claim.period, claim.ends, end)
    length = min(-(-(length + _ragged(spreads)) // unit), end // unit) * unit
    if end < longest(ask):
        _ends_there(ask, claim, end)
    ask.ledger.saw(length, 1)
    if not by_length:
        length = _runs_at(ask, claim, names, length)
        _affordable(spreads, [length])
        return Critical([length], names=names)
    low = shortest_taken(ask)
    if SHORT < low < end - length:  # shorter ones are rejected; all others look like one of as many behind them
        length = -(-(length + low) // unit) * unit
        found = distinct(ask, names, length // unit, low)
    else:
        found = distinct(ask, names, length // unit)
    _affordable(spreads, found)
    return Critical(found, names=names)


def _ends_there(ask: Questions, claim: Claim, end: int) -> None:
    """A table that values are read from ends: batch takes no longer stream. If that is not certain, nor do we."""
    unit = ask.traces.tracer.time.step
    if end not in ask.ends:
        ask.ends[end] = next((s for n in BEYOND if ask.traces.tracer.works(s := end + n * unit)), None)
    if ask.ends[end] is not None:
        raise Unsure(f"its size stops growing at {end} frames, and the model takes {ask.ends[end]}")
    ask.ledger.tables.setdefault(end, claim.node.name if claim.node else "")


def _end(ask: Questions, spreads: Iterable[Spread]) -> int:
    """The longest stream for which all values go on: a table ends, and its last frame may be as long as several."""
    unit, end = ask.traces.tracer.time.step, longest(ask)
    for v in spreads:
        if v.longest < end:
            slowest = max((1 / v.rate(a) for a in v.times), default=Fraction(1))
            lengths = range(v.longest, v.longest + math.ceil(slowest), unit)
            end = max((s for s in lengths if ask.traces.tracer.works(s)), default=v.longest)
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
    unit = max((s.unit for v in spreads for s in v.sizes), default=1)
    if len(lengths) > 8 * CELLS // 64:
        raise TooFar(lengths[-1])
    at = np.array(lengths) // unit - 1
    cells = np.zeros(len(lengths))
    for v in spreads:
        each = [s.item if s.constant else s.look(int(at[-1]) + 1)[at] for s in v.sizes]
        cells = np.maximum(cells, math.prod(np.asarray(e, np.float64) for e in each))
    if cells.max() > CELLS or cells.sum() > 8 * CELLS:
        raise TooFar(lengths[-1])


def _runs_at(ask: Questions, claim: Claim, names: list[str], length: int) -> int:
    """This length, or a longer one, at which the values can be computed: the model may take only some lengths.

    If there is none, what they are looked up in ends before: the last length at which they can be computed.
    """
    unit = ask.traces.tracer.time.step

    def runs(n: int) -> bool:
        try:
            return all(known_at(ask, name, n * unit).dims is not None for name in names)
        except CannotRun:
            return False

    low, high, step = ask.traces.lengths[0] // unit, length // unit, ask.traces.step // unit
    taken = high + (low - high) % step  # as far from each other as those traced
    longer = [taken + n * (taken - taken % step + step) for n in (0, 1, 3)]
    for n in (*range(high, high + 8), *longer):
        if runs(n):
            return n * unit
    turns, fewest = -(-(taken - low) // step), 0
    while turns - fewest > 1:
        middle = (fewest + turns) // 2
        fewest, turns = (middle, turns) if runs(low + middle * step) else (fewest, middle)
    end = (low + fewest * step) * unit
    _ends_there(ask, claim, end)
    return end


def kinds(numbers: list[Series], longest: int, low: int = 1) -> tuple[list[int], Array]:
    """One length of each kind (all numbers agree) of those from `low` to `longest`, and of which kind each is."""
    unit = numbers[0].unit if numbers else 1
    before = -(-low // unit) - 1
    columns = [s.look(-(-longest // unit)).astype(np.float64)[before:] for s in numbers]
    _, first, which = np.unique(np.stack(columns, 1), axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return [(before + int(first[n]) + 1) * unit for n in order], np.argsort(order)[which.reshape(-1)]


def distinct(ask: Questions, names: list[str], count: int, low: int = 1) -> list[int]:
    """Of the first `count` lengths, one of each kind: those at which all numbers the values are made of agree."""
    unit, numbers = ask.traces.tracer.time.step, numbers_behind(ask, names)
    return kinds(numbers, count * unit, low)[0] if numbers else [count * unit]


def numbers_behind(ask: Questions, names: list[str]) -> list[Series]:
    """All numbers that some values are made of."""
    found: list[Series] = []
    seen: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in seen or not name or not ask.traces.runs[0][name].known:
            continue
        seen.add(name)
        value: Value | None
        try:
            value = follower(ask).value(name)
        except Unsure:
            value = None
        if isinstance(value, Fixed):
            continue
        if isinstance(value, Few) and all(isinstance(c, Series) for c in value.cells.flat):
            found.extend(c for c in value.cells.flat if not c.constant)
            continue
        node = ask.model.producers.get(name)
        if node is None or measures(node):
            found.append(one.length_itself(ask.traces.tracer.time.step, 1, longest(ask)))
            continue
        todo.extend(node.inputs)
    return found


def tabulated(ask: Questions, node: Node, name: str, count: Callable[[Array], int | None]) -> Series | None:
    """A number read off a known value over one time axis (how many frames it shows), at every length.

    None if there is no such number at one of them.
    """
    try:
        value = follower(ask).value(name)
        v = follower(ask).spread(value)
        period = math.lcm(v.period, *(v.sizes[a].repeats for a in v.times))
        length, _ = reps([exactly(v)], {}, period, True, longest(ask))
        ask.ledger.up_to(exactly(v).certain, name)
    except Unsure as problem:
        cells = otherwise(ask, node, name, problem, lambda s: np.array(count(known_at(ask, name, s).array) or 0))
        found: Series = cells.reshape(-1)[0]
        return found
    unit = ask.traces.tracer.time.step
    period = math.lcm(v.period, unit, *(v.sizes[a].repeats for a in v.times)) // unit
    horizon = -(-length // unit)
    numbers, count_of = numbers_behind(ask, [name]), horizon + 2 * period
    lengths, which = kinds(numbers, count_of * unit) if numbers else ([count_of * unit], np.zeros(count_of, np.int64))
    values = np.zeros(len(lengths), np.int64)
    for n in reversed(range(len(lengths))):  # what is none is mostly none where it is long
        try:
            found_there = count(known_at(ask, name, lengths[n]).array)
        except CannotRun:
            continue
        if found_there is None:
            return None
        if n == len(lengths) - 1 and sum(lengths) > 8 * CELLS:
            uncertain(ask, node, name, TooFar(lengths[-1]))
        values[n] = found_there
    values = values[which]
    grown = values[horizon + period :] - values[horizon : horizon + period]
    if (grown != grown[0]).any():
        uncertain(ask, node, name, Unsure("it grows unevenly"))
    return Series(values[: horizon + period], horizon, Fraction(int(grown[0])), unit, longest=longest(ask)).reduced()


# ---- questions


def fixed(ask: Questions, node: Node | None, name: str) -> bool:
    """Is a known value the same at every length?"""
    if not name or name in ask.model.constants:
        return True
    try:
        value = follower(ask).value(name)
    except Unsure as problem:
        arrays = [run[name].array for run in ask.traces.runs]
        if not all(same(a, arrays[0]) for a in arrays):
            return False
        unit = ask.traces.tracer.time.step
        if longest(ask) // unit <= LOOKS:
            return all(same(a, arrays[0]) for a in every(lambda s: known_at(ask, name, s).array, unit, longest(ask)))
        if ask.options.proof == "sampled":
            ask.ledger.sampled[name] = str(problem)
            return all(same(a, arrays[0]) for a in sample(lambda s: known_at(ask, name, s).array, unit))
        uncertain(ask, node, name, problem)
    if isinstance(value, Fixed):
        ask.ledger.up_to(value.limit, name)
        return True
    if isinstance(value, Few):
        return False  # a Few whose entries are all constant is Fixed
    if any(not s.constant for s in value.sizes):
        return False
    if value.until < LONGEST:
        uncertain(ask, node, name, Unsure(f"a table ends after {value.until} frames"))
    ask.ledger.up_to(value.certain, name)
    if not value.uses and not value.slope:
        return True
    first = ask.traces.runs[0][name].array
    if not all(same(run[name].array, first) for run in ask.traces.runs):
        return False
    claim = Claim(node, f"'{name}' being the same at every length", lambda run: same(run[name].array, first))
    return holds_everywhere(ask, claim)


def filled_later(ask: Questions, node: Node, name: str) -> bool:
    """A value of one number, of the same size for all but the shortest streams: those are ruled out."""
    try:
        value = follower(ask).value(name)
    except Unsure:
        return False
    first = ask.traces.runs[0][name].array
    if not isinstance(value, Spread) or value.slope or value.uses or value.until < LONGEST or not first.size:
        return False
    if not (first == first.flat[0]).all() or value.lo != value.hi or not value.drift.none:
        return False
    offs = [one.subtract(s, one.constant(n, s.unit)) for s, n in zip(value.sizes, first.shape, strict=True)]
    settled = max(off.settled for off in offs)
    if any(off.growth or off.period > 1 or off.values[-1] for off in offs) or settled > max(SHORT, shortest_taken(ask)):
        return False
    ask.ledger.up_to(value.certain, name)
    ask.ledger.require(node.name, Length(), at_least=settled)
    return True


def always_zero(ask: Questions, node: Node | None, name: str) -> bool:
    """Is a known value zero at every length, however large it is?"""
    try:
        value = follower(ask).value(name)
        if isinstance(value, Spread) and not value.slope and value.lo == value.hi == 0 and value.drift.none:
            ask.ledger.up_to(value.certain, name)
            return True
    except Unsure:
        pass
    return not ask.traces.runs[0][name].array.any() and fixed(ask, node, name)


def fixed_value(ask: Questions, node: Node, name: str, what: str) -> Array:
    """A value that is known and the same at every length."""
    arrays = ask.known(name)
    if arrays is None or not all(np.array_equal(a, arrays[0]) for a in arrays) or not fixed(ask, node, name):
        why = "depends on the data" if arrays is None else "changes with the length of the stream"
        ask.refuse(node, f"its {what} {why}", "export the model with a constant there", kind=Kind.LENGTH)
    return arrays[0]


def prove(ask: Questions, node: Node | None, what: str, holds: Callable[[Any], bool], **about: Any) -> None:
    """Something read off the traces that must hold at every length (about: see `Claim`): proven, or refused."""
    claim = Claim(node, what, holds, **about)
    if not all(holds(run) for run in ask.traces.runs) or not (ask.left_open() or holds_everywhere(ask, claim)):
        raise Unclear(
            f"{what} does not hold at every length",
            node=node.name if node else "",
            op=node.op if node else "",
            hint="make it a constant, or a value that follows from the position alone",
            kind=Kind.NOT_PROVEN,
        )
