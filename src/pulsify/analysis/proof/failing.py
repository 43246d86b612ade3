"""Lengths at which batch fails while a claim is looked at: the stream turns them down, or the model is refused.

A known value may be made of an index that leaves its table, or of sizes that do not fit, at some lengths only. Batch
gives nothing there, so that a claim has nothing to look at; but neither may the stream go on as if nothing was wrong.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from pulsify.analysis.proof.numbers import follower, longest, uncertain
from pulsify.analysis.proof.values import known_at
from pulsify.analysis.values.follow import LOOKS, Follower
from pulsify.core.errors import NotStreamable
from pulsify.core.facet import Facet
from pulsify.core.length import Length, Table
from pulsify.core.refusal import Kind
from pulsify.core.spec import Condition
from pulsify.core.traits import traits
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.series import LONGEST, Series, TooFar, Unsure
from pulsify.trace.traced import Array, CannotRun, TooLarge

if TYPE_CHECKING:
    from pulsify.analysis.questions import Questions
    from pulsify.frontend.model import Node

FARTHEST = 1 << 22  # lengths: tables are no longer
MOST_RUNS = 16  # of rejected lengths that are named one by one
LOOKS_UP = Facet[Callable[[Follower, "Node"], int | None]](
    "looks up", "of which axis of its first input the second one names entries"
)


@dataclass(frozen=True, eq=False)
class Failing:
    """At which lengths (unit, 2 * unit, ...) batch fails, up to where that repeats; period: in units, after which."""

    problem: CannotRun
    fails: Array
    period: int
    unit: int

    @property
    def lengths(self) -> Array:
        return (np.flatnonzero(self.fails) + 1) * self.unit


def failing(ask: Questions, names: list[str], numbers: list[Series], upto: int, problem: CannotRun) -> None:
    """File all lengths at which some of these values cannot be computed, given that there is one."""
    from pulsify.analysis.proof.claims import kinds

    unit = ask.traces.tracer.time.step
    period = math.lcm(1, *(s.repeats // math.gcd(s.repeats, unit) for s in numbers))
    count = max([-(-upto // unit), *(-(-s.settled // unit) for s in numbers)]) + 2 * period
    if count > LOOKS:
        uncertain(ask, problem.node, names[0], TooFar(count * unit))
    lengths, which = kinds(numbers, count * unit)
    bad = np.array([_fails(ask, names, s) for s in lengths])[which]
    ask.ledger.failing.append(Failing(problem, bad[:count], period, unit))


def _fails(ask: Questions, names: list[str], s: int) -> bool:
    try:
        for name in names:
            if known_at(ask, name, s).array is None:
                return True
    except TooLarge as problem:
        uncertain(ask, problem.node, names[0], TooFar(s))
    except CannotRun:
        return True
    return False


def reject_failing(ask: Questions) -> None:
    """Conditions for all lengths at which batch was found to fail, and that no other condition rules out."""
    if ask.ledger.tables:
        sure = _fails_behind(ask)
        for end, node in ask.ledger.tables.items():
            if end < sure:
                ask.ledger.require(node, Length(), at_most=end)
    for found in (*ask.ledger.failing, *_unfitting(ask)):
        lengths = found.lengths
        left = lengths[_taken(list(ask.ledger.conditions), lengths)]
        if left.size:
            _reject(ask, found, left)


def _taken(conditions: list[Condition], lengths: Array) -> Array:
    """Which of these lengths meet all conditions."""
    if len(lengths) > LOOKS:  # some will do, of a rule that repeats
        return np.ones(len(lengths), bool)
    return np.array([all(c.met(int(s)) for c in conditions) for s in lengths], bool)


def _reject(ask: Questions, found: Failing, lengths: Array) -> None:
    node, unit, last = found.problem.node, found.unit, len(found.fails)
    tail = found.fails[last - found.period :]
    if not np.array_equal(found.fails[last - 2 * found.period : last - found.period], tail):
        raise NotStreamable(
            f"the model cannot run at some lengths ({int(lengths[0])} frames, say), which follow no rule: "
            f"{found.problem.reason}",
            node=node.name,
            op=node.op,
            hint=ask.declare("8*n", "declare which lengths there are, for example"),
            kind=Kind.EXPORT,
        )
    breaks = np.flatnonzero(np.diff(lengths) > unit) + 1
    runs = [(int(r[0]), int(r[-1])) for r in np.split(lengths, breaks)]
    if not tail.any() and len(runs) <= MOST_RUNS:
        for first, end in runs:
            rule = {"at_least": end + unit} if first == unit else {"outside": (first, end)}
            ask.ledger.require(node.name, Length(), **rule)
        return
    if last > LOOKS:
        uncertain(ask, node, node.outputs[0], TooFar(last * unit))
    # by S: 1 where batch fails, 0 elsewhere
    flags = np.zeros(last * unit + 1, np.int64)
    flags[(np.flatnonzero(found.fails) + 1) * unit] = 1
    turn, settled = found.period * unit, (last - found.period) * unit + 1
    table = Table(turn, 0, tuple(int(flags[s + -(-(settled - s) // turn) * turn]) for s in range(turn)))
    short = tuple(map(int, flags[:settled])) if settled > turn + 1 or flags[:settled].any() else ()
    ask.ledger.require(node.name, Length(table=table, short=short), equals=Length(((0, 0, 1),)))


def _unfitting(ask: Questions) -> Iterator[Failing]:
    """Lengths at which known values meet that do not fit, whoever looks at what comes out of it."""
    for node in ask.model.nodes:
        given = [i for i in node.inputs if i]
        plain = traits(node.op, node.domain).elementwise and len(given) > 1
        if plain and all(ask.traces.runs[0][i].known for i in given):
            with contextlib.suppress(Unsure):
                for beside in _by_axis([follower(ask).sizes_of(i) for i in given]):
                    for a, b in combinations(beside, 2):
                        if (found := _apart(node, a, b)) is not None:
                            yield found


def _apart(node: Node, a: Series, b: Series) -> Failing | None:
    if a is b or (a.constant and b.constant) or any(s.constant and s.item == 1 for s in (a, b)):
        return None
    off = one.subtract(a, b)
    if off.growth or (off.constant and not off.item):  # (one of them ends, which is looked at where it is read)
        return None
    period = math.lcm(off.period, a.period, b.period)
    count = max(off.horizon, a.horizon, b.horizon) + 2 * period
    if count > FARTHEST:
        raise TooFar(count)
    x, y = a.look(count), b.look(count)
    fails = (x != y) & (x != 1) & (y != 1)
    return Failing(CannotRun(node, "its operands do not fit"), fails, period, a.unit) if fails.any() else None


def _fails_behind(ask: Questions) -> int:
    """Batch is certain to fail at all lengths behind this: what has ended meets what has not, or an index leaves it."""
    sure = longest(ask)
    for node in ask.model.nodes:
        with contextlib.suppress(Unsure):
            looks_up = LOOKS_UP.of(node)
            if looks_up is not None and ask.traces.runs[0][node.inputs[1]].known:
                sure = min(sure, _index_leaves(ask, node, looks_up(follower(ask), node)))
            elif traits(node.op, node.domain).elementwise and len(node.inputs) > 1:
                sizes = [follower(ask).sizes_of(i) for i in node.inputs if i]
                sure = min([sure, *(_last_fitting(beside) for beside in _by_axis(sizes))])
    return sure


def _index_leaves(ask: Questions, node: Node, table: int | None) -> int:
    """The last length at which an index that counts on lies within its table, which is an axis of the first input."""
    index = follower(ask).value(node.inputs[1])
    if table is None:
        return LONGEST
    size = follower(ask).sizes_of(node.inputs[0])[table]
    if not isinstance(index, Spread) or not size.constant or len(index.slope) != 1 or not math.isfinite(index.lo):
        return LONGEST
    ((axis, slope),) = index.slope.items()
    if axis < 0 or slope <= 0:
        return LONGEST
    most = math.ceil((float(size.item) - index.lo) / float(slope)) + 1  # with as many frames the last one is outside
    return _last(index.sizes[axis], lambda frames: frames < most)


def _by_axis(sizes: Sequence[tuple[Series, ...]]) -> list[list[Series]]:
    return [[s[-a] for s in sizes if len(s) >= a] for a in range(1, max(map(len, sizes)) + 1)]


def _last_fitting(beside: list[Series]) -> int:
    """The last length at which sizes that meet may be equal, if one of them ends."""
    grown = [s for s in beside if s.growth > 0]
    ended = [int(s.values[-1]) for s in beside if not s.growth and not s.constant and s.period == 1]
    found = [_last(s, lambda frames, n=n: frames <= n) for s in grown for n in ended if n > 1]  # type: ignore[misc]
    return min(found, default=LONGEST)


def _last(size: Series, fits: Callable[[Array], Array]) -> int:
    """The last length at which a size that grows fits."""
    count = size.horizon + size.period
    while fits(size.look(count)[-size.period :]).any():
        count *= 2
        if count > FARTHEST:
            return LONGEST
    met = np.flatnonzero(fits(size.look(count)))
    return (int(met[-1]) + 1 if met.size else 1) * size.unit
