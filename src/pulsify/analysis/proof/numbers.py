"""What was read off a few lengths is proven for all of them, or refused.

`lengths/` says how far one must look at a known value until nothing new can show. Here that is done: numbers are known
as whole series, and a claim about values over time is looked at for every kind of place there is. What is not certain
is refused by name, unless the caller accepts what a sample of lengths says (`proof="sampled"`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, TypeVar

import numpy as np

from pulsify.analysis.facts import Field, FirstFrames, Wire
from pulsify.analysis.ledger import shortest_length
from pulsify.analysis.proof.values import known_at, shaped_at
from pulsify.analysis.questions import Questions, Undecided
from pulsify.analysis.rows.walk import Rows
from pulsify.analysis.values.follow import LOOKS, Fixed, Follower
from pulsify.analysis.values.sampled import exhausted, guess
from pulsify.analysis.values.sizes import sizes_made
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.refusal import SAMPLED, Kind
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.as_length import as_length, as_series
from pulsify.lengths.series import LONGEST, Series, TooFar, Unsure, constant
from pulsify.trace.evaluate import Trace
from pulsify.trace.lengths import BATCHES
from pulsify.trace.traced import Array, CannotRun, Traced, unknown

if TYPE_CHECKING:
    from pulsify.frontend.model import Node

SHORT = 64  # streams that are shorter may be rejected where a rule does not hold for them
T = TypeVar("T")
ARITHMETIC = "make it of sums, constant multiples, comparisons and positions"
LATE = 4096  # a model that only takes longer streams than this is looked at no further


class Looked(Trace):
    """All known values at one length, evaluated when asked for; remembers who was asked for."""

    def __init__(self, ask: Questions, length: int, opaque: frozenset[str] = frozenset()) -> None:
        super().__init__(length, ask.traces.runs[0].batch)
        self._ctx, self.opaque, self.touched = ask, opaque, dict[str, None]()

    def __getitem__(self, name: str) -> Traced:
        first = self._ctx.traces.runs[0][name]
        if name in self.opaque or not first.known:
            return unknown(shaped_at(self._ctx, name, self.length))
        self.touched[name] = None
        return known_at(self._ctx, name, self.length)

    def __contains__(self, name: str) -> bool:
        return name in self._ctx.traces.runs[0]


# ---- who knows


def follower(ask: Questions) -> Follower:
    if ask.follower is None:
        traces = ask.traces
        ask.follower = Follower(
            ask.model,
            traces.tracer.evaluator,
            traces.tracer.time.step,
            lambda name: data_sizes(ask, name),
            lambda name, length: known_at(ask, name, length),
            frozenset(traces.tracer.time.bound),
            longest(ask),
            first=lambda name: traces.runs[0][name],
            filled={name: value for name, (*_, value) in traces.tracer.time.filled.items()},
        )
    return ask.follower


def rows_of(ask: Questions, end: int) -> Rows:
    """Follows rows of known tables in streams of up to `end` frames."""
    if end not in ask.rows:
        ask.rows[end] = Rows(follower(ask), end)
    return ask.rows[end]


def longest(ask: Questions) -> int:
    """No stream is longer, nor has the model been looked at further out: what is seen there goes into the stream."""
    declared = ask.traces.tracer.time.longest
    return LONGEST if declared is None else max(declared, ask.traces.longest.length)


def in_frames(ask: Questions, length: Length) -> Series:
    """How many frames a wire has, at every length there is."""
    return as_series(length, ask.traces.tracer.time.step, longest(ask))


def data_sizes(ask: Questions, name: str) -> tuple[Series, ...]:
    """The sizes of a value that depends on data."""
    unit = ask.traces.tracer.time.step
    dims, fact = ask.dims(name, 0), ask.facts.get(name)
    times = ask.time_axes(name)
    port = ask.traces.tracer.time.time_axis(name)
    out = [constant(d, unit) for d in dims]
    if port is not None:
        out[port[0]] = one.length_itself(unit, port[1], longest(ask))
    elif isinstance(fact, Wire) and fact.length is not None:
        out[fact.layout.axis] = one.multiply(in_frames(ask, fact.length), constant(fact.layout.outer[0], unit))
    elif isinstance(fact, Field) and fact.lengths is not None:
        for axis, length in fact.lengths.items():
            out[axis] = in_frames(ask, length)
    elif times or isinstance(fact, FirstFrames) or (fact is None and name in ask.model.producers):
        return sizes_by_operator(ask, name)  # first frames may be fewer, if the stream has no more
    return tuple(out)


def sizes_by_operator(ask: Questions, name: str) -> tuple[Series, ...]:
    """The sizes of data that no rule has seen: what the operator does with sizes, it does whatever the entries are."""
    node, f = ask.model.producers.get(name), follower(ask)
    if node is None:
        raise Unsure(f"nothing is known of the size of '{name}'")
    if not ask.time_axes(name) and _lasting(ask, node):
        return tuple(constant(d, f.unit) for d in ask.dims(name, 0))
    return sizes_made(f, node, name, f.sizes_of)


def _lasting(ask: Questions, node: Node) -> bool:
    """Is all that a node reads of the same size at every length, and what is known of it the same?"""
    f, run = follower(ask), ask.traces.runs[0]
    try:
        return all(
            isinstance(f.value(i), Fixed) if run[i].known else all(s.constant for s in f.sizes_of(i))
            for i in node.reads
            if i
        )
    except Unsure:  # its size may be known all the same
        return False


def uncertain(ask: Questions, node: Node | None, name: str, problem: Unsure) -> NoReturn:
    """Refuse what is not certain, naming the node at which the trail is lost."""
    lost = problem.node or node
    where = f", made by {lost.op} '{lost.name}'" if lost is not None and lost is not node else ""
    far = isinstance(problem, TooFar)
    arithmetic = problem.remedy or ARITHMETIC
    refusal = Undecided(
        f"what '{name}' is follows from the stream's length{where}, and it is not certain at every length: {problem}",
        node=node.name if node else name,
        op=node.op if node else "",
        hint=(
            "" if far else arithmetic,
            ask.declare("<=3000", "declare how long streams are, for example"),
            ask.declare("8*n", "declare which lengths there are, for example"),
            SAMPLED,
        ),
        kind=Kind.NOT_PROVEN,
    )
    refusal.far, refusal.otherwise = far, (SAMPLED,)
    raise refusal


# ---- numbers


def numbers(ask: Questions, node: Node | None, name: str) -> Array:
    """A known value of few entries: a Series each, dtype object."""
    try:
        value = follower(ask).value(name)
        if isinstance(value, Spread):
            value = follower(ask).count(name, value)
        cells = follower(ask).few(value)
        if not all(isinstance(c, Series) for c in cells.flat):
            raise Unsure("it is no linear function of the length")
    except Unsure as problem:
        cells = otherwise(ask, node, name, problem, lambda s: known_at(ask, name, s).array)
    for c in cells.flat:
        ask.ledger.series(c, name)
    return cells


def otherwise(ask: Questions, node: Node | None, name: str, problem: Unsure, at: Callable[[int], Array]) -> Array:
    """Numbers that cannot be followed: looked at in all lengths there are, if those are few; sampled, if accepted."""
    unit = ask.traces.tracer.time.step
    if longest(ask) // unit <= LOOKS:
        return exhausted(at, unit, longest(ask))
    if ask.options.proof != "sampled":
        uncertain(ask, node, name, problem)
    ask.ledger.sampled[name] = str(problem)
    try:
        return guess(at, unit)
    except Unsure as still:
        uncertain(ask, node, name, still)


def sizes(ask: Questions, node: Node | None, name: str) -> tuple[Series, ...]:
    """The sizes of any value."""
    try:
        return follower(ask).sizes_of(name)
    except Unsure as problem:
        return tuple(otherwise(ask, node, name, problem, lambda s: np.array(Looked(ask, s)[name].dims)))


def familiar(ask: Questions) -> list[Length]:
    """The lengths that wires have already, the latest first."""
    found = [f.length for f in ask.facts.values() if isinstance(f, Wire) and f.length is not None]
    return list(dict.fromkeys([*reversed(found), *ask.lengths_found]))


def length_of(ask: Questions, node: Node, frames: Series) -> Length:
    """A number of frames as a Length; what is no regular function of the stream's length is refused."""
    ask.ledger.series(frames)
    try:
        found = as_length(frames, familiar(ask))
    except Unsure as problem:
        raise NotStreamable(
            f"the length of its output is no regular function of the stream's length: {problem}",
            node=node.name,
            op=node.op,
            hint="cut or pad by a fixed amount, or to a multiple of a fixed number",
            kind=Kind.LENGTH,
        ) from problem
    ask.lengths_found[found] = None
    return found


def require_as_many(ask: Questions, node: Node, length: Length, size: Series) -> None:
    """What meets a wire of this length has as many frames: where it has not, batch fails, and the stream says so."""
    with contextlib.suppress(Unsure):  # some are no lengths that could be written down
        ask.ledger.require(node.name, length, equals=as_length(size, familiar(ask)))


def parts_where_batch_fails(ask: Questions, node: Node, size: Series, own: Series, ones: bool = False) -> bool:
    """Where a size that is asked for is not what is there (a table has ended) batch fails, and so does the stream.

    ones: it does not if one of them is 1. False if they never part, or if that is nothing to ask of a stream.
    """
    off = one.subtract(size, own)
    if own.constant or (off.constant and not off.item) or min(size.growth, own.growth) < 0:
        return False
    _, _, (asked, there, apart) = one.aligned(size, own, off)
    if ones and ((apart != 0) & ((asked == 1) | (there == 1))).any():
        return False
    try:
        ask.ledger.require(node.name, as_length(size, familiar(ask)), equals=as_length(own, familiar(ask)))
    except Unsure:
        return False
    return True


def size_length(ask: Questions, node: Node, name: str, axis: int, outer: int = 1) -> Length:
    """How many frames a known value has on its time axis."""
    size = sizes(ask, node, name)[axis]
    runs_from(ask, node, lambda s: known_at(ask, name, s))
    return length_of(ask, node, one.divide(size, constant(outer, size.unit)))


def measured(ask: Questions, node: Node, wire: Wire) -> Wire:
    """A known wire with its length, for those who look beyond its ends: all ones, but none behind the last frame."""
    if wire.length is not None:
        return wire
    axis, other, first = wire.layout.axis, ask.traces.other_batch, ask.traces.runs[0]
    apart = other is None or first[wire.name].dims[axis] == other[wire.name].dims[axis]
    outer = 1 if apart and wire.layout.outer == BATCHES else wire.layout.outer[0]  # a clock of each stream's own
    return replace(wire, length=size_length(ask, node, wire.name, axis, outer))


def check_target(ask: Questions, node: Node, target: str, expected: Mapping[int, Series]) -> None:
    """A shape that a node is given (-1, 0: worked out from the rest) must be what the rule takes it for."""
    for axis, size in enumerate(numbers(ask, node, target).reshape(-1)):
        if axis in expected and not (size.constant and size.item in (-1, 0)):
            as_expected(ask, node, node.outputs[0], axis, size, expected[axis])


def runs_from(
    ask: Questions, node: Node, evaluate: Callable[[int], T], enough: Callable[[T], bool] = lambda value: True
) -> None:
    """Streams too short for a known value to be computed at all are ruled out.

    enough: does a value show that all longer streams work as well?
    """
    step, failed = ask.traces.tracer.time.step, 0
    for s in range(step, min(ask.traces.lengths[0], LATE) + 1, step):
        try:
            if not enough(evaluate(s)):
                continue
        except CannotRun:
            failed = s
            continue
        if failed:
            ask.ledger.require(node.name, Length(), at_least=failed + step)
        return


def same_series(a: Series, b: Series) -> bool:
    off = one.subtract(a, b)
    return off.constant and not off.item


def shortest_taken(ask: Questions) -> int:
    """Shorter streams are rejected already, or were never declared."""
    time = ask.traces.tracer.time
    return max(time.lengths.least, shortest_length(ask.ledger.conditions, time.step))


def as_expected(ask: Questions, node: Node, name: str, axis: int, size: Series, expected: Series) -> None:
    """A size must be what the rule says it is, at every length; the shortest streams may be ruled out."""

    ask.ledger.series(size)
    off = one.subtract(size, expected)
    if off.constant and not off.item:
        return
    if off.growth or off.period > 1 or off.values[-1] or off.settled > max(SHORT, shortest_taken(ask)):
        n = int(np.flatnonzero(off.look(off.horizon + off.period + 1))[-1])
        raise NotStreamable(
            f"axis {axis} of its output '{name}' changes with the length of the stream ({size.at((n + 1) * size.unit)} "
            f"at length {(n + 1) * size.unit} where {expected.at((n + 1) * size.unit)} would be regular)",
            node=node.name,
            op=node.op,
            hint=("make it a constant", ask.declare("8*n")),
            kind=Kind.LENGTH,
        )
    ask.ledger.require(node.name, Length(), at_least=off.settled)
