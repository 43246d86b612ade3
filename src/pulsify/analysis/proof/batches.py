"""What follows from the number of streams that go in step: read off two batch sizes, proven for all of them.

The batch is one more size that numbers may follow from, so it is followed as the length is (`lengths/`), at one length
of the stream. Sizes that grow with the batch are what the rules take for granted; anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from pulsify.analysis.proof.numbers import shortest_taken
from pulsify.analysis.values.follow import VALUES, Few, Fixed, Follower, Value
from pulsify.analysis.values.moves import COLUMNS
from pulsify.core.errors import NotStreamable
from pulsify.core.facet import Facet
from pulsify.core.refusal import Kind
from pulsify.core.traits import traits
from pulsify.lengths.affine_array import FAR, Spread
from pulsify.lengths.series import Series, Unsure, constant
from pulsify.lengths.sizes import alike
from pulsify.trace.evaluate import Trace
from pulsify.trace.lengths import BATCHES
from pulsify.trace.traced import CannotRun, Traced

if TYPE_CHECKING:
    from pulsify.analysis.questions import Questions
    from pulsify.frontend.model import Decision, Node


@dataclass(frozen=True)
class Batch:
    """What an operator does with known values, and with sizes, that follow from how many streams there are."""

    anew: bool = False  # it reads such a value where the step computes it anew
    removes: Callable[[Node], bool] = lambda node: False  # does it remove axes for being of size 1?


BATCH = Facet[Batch](
    "batch", "what it does with what follows from the number of streams", lambda trait: Batch(anew=trait.elementwise)
)


def _of(node: Node) -> Batch:
    return BATCH.of(node) or Batch()


def _follower(ask: Questions) -> Follower:
    """As `proof.follower`, with the batch size in place of the stream's length."""
    if ask.batch_follower is None:
        assert ask.traces.other_batch is not None
        ask.batch_follower = _followed(ask, ask.traces.runs[0], ask.traces.other_batch)
    return ask.batch_follower


def _followed(ask: Questions, first: Trace, other: Trace) -> Follower:
    """At one length, from two batch sizes."""
    tracer = ask.traces.tracer

    def sizes(name: str) -> tuple[Series, ...]:
        pairs = zip(first[name].dims, other[name].dims, strict=True)
        return tuple(_line(x, y, first.batch, other.batch) for x, y in pairs)

    return Follower(
        ask.model,
        tracer.evaluator,
        1,
        sizes,
        lambda name, batch: tracer.at(first.length, batch)[name],
        first=lambda name: first[name],
        _results={n: _filled(first[n], sizes(n)) for n in (*tracer.time.bound, *tracer.time.filled)},
    )


def _filled(value: Traced, sizes: tuple[Series, ...]) -> Value:
    """An input that holds the length, once for every stream, or is the same throughout."""
    item = float(value.array.reshape(-1)[0])
    return Spread(sizes, lo=item, hi=item)


def _line(x: int, y: int, at_x: int, at_y: int) -> Series:
    """The size that is x at one batch size and y at another."""
    if x == y:
        return constant(x, 1)
    growth = Fraction(x - y, at_x - at_y)
    start = x - growth * (at_x - 1)
    if growth.denominator > 1:
        raise Unsure("a size is no multiple of the batch size")
    return Series(constant(int(start), 1).values, 0, growth, 1)


def by_batch(ask: Questions, name: str) -> bool:
    """Does a known value follow from how many streams there are? What is not certain counts as following from it."""
    if ask.traces.other_batch is None:
        return False
    try:
        return not isinstance(_follower(ask).value(name), Fixed)
    except Unsure:
        return True


def one_number(ask: Questions, name: str) -> bool:
    """Is a known value the same number throughout, however many streams there are?"""
    try:
        value = _follower(ask).value(name)
    except Unsure:
        return False
    return isinstance(value, Spread) and value.lo == value.hi and not value.slope and value.drift.none


def each_stream(ask: Questions, name: str, column: int) -> bool:
    """Does a table of a row a stream name that stream in a column, and in the others what is the same for all?"""
    maker = ask.model.producers.get(name)
    columns = COLUMNS.of(maker) if maker is not None else None
    if ask.traces.other_batch is None or maker is None or columns is None:
        return False
    if len(ask.traces.runs[0][name].dims) != 2 or (names := columns(maker, 2)) is None:
        return False
    if any(ask.traces.runs[0][n].dims[1] != 1 for n in names):
        return False
    if not all(_streams(ask, n, counts=i == column) for i, n in enumerate(names)):
        return False
    ask.streams_named.add(name)
    return True


def one_behind_another(ask: Questions, name: str, frames: int) -> bool:
    """Are places in streams that lie one behind another, so many frames each, the same in all of them?"""
    if ask.traces.other_batch is None or len(ask.traces.runs[0][name].dims) != 1:
        return False
    try:
        value = _follower(ask).value(name)
    except Unsure:
        return False
    if not isinstance(value, Spread) or value.near or value.period > 1 or not value.drift.none:
        return False
    if dict(value.slope) != {0: Fraction(frames)}:
        return False
    ask.streams_named.add(name)
    return True


def _streams(ask: Questions, name: str, counts: bool) -> bool:
    """Is a known value 0, 1, 2, ... along the streams (counts), or else the same for all of them?"""
    try:
        value = _follower(ask).value(name)
    except Unsure:
        return False
    if not isinstance(value, Spread) or not value.drift.none:
        return False
    if not counts:
        return _regular(value)
    line = dict(value.slope) == {0: Fraction(1)} and value.lo == value.hi == 0
    return line and not value.near and value.period == 1


def by_streams(ask: Questions, name: str) -> list[int]:
    """For every entry of a known value, how many times the number of streams it is; 0: it does not follow from it."""
    first, other = ask.traces.runs[0], ask.traces.other_batch
    here = first[name].array.reshape(-1)
    if other is None or not by_batch(ask, name):
        return [0] * len(here)
    value, node = _follower(ask).value(name), ask.model.producers.get(name)
    if not isinstance(value, Few) or not _regular(value):
        _refuse(ask, node, name, "it changes otherwise than by growing with the batch")
    pairs = zip(here.tolist(), other[name].array.reshape(-1).tolist(), strict=True)
    times = [(x - y) // (first.batch - other.batch) for x, y in pairs]
    if any(n and n * first.batch != x for n, x in zip(times, here.tolist(), strict=True)):
        _refuse(ask, node, name, "it is no multiple of the batch size")
    return times


def check_batches(ask: Questions, nodes: list[Node]) -> None:
    """Known values that some nodes read grow with the batch, or not at all; whatever else is refused."""
    if ask.traces.other_batch is None:
        return
    first, other = ask.traces.runs[0], ask.traces.other_batch
    for node in nodes:
        _check_sizes(ask, node)
        for name in [*node.reads, *(o for o in node.outputs if o)]:
            if name and not first[name].known:
                for x, y in zip(first[name].dims, other[name].dims, strict=True):
                    if x * other.batch != y * first.batch and x != y:
                        _refuse(ask, node, name, "it is no multiple of the batch size")
            elif name not in ask.streams_named and name and not (_of(node).anew and not ask.time_axes(name)):
                _check_known(ask, node, name)
    for name in ask.model.outputs:
        maker = ask.model.producers.get(name)
        if maker is not None and first[name].known and name not in ask.streams_named:
            _check_known(ask, maker, name)
    for decision in ask.model.decisions:
        if decision.axis is not None or _everywhere(ask, decision):
            continue
        if by_batch(ask, decision.name) or not _same_when_short(ask, decision):
            _refuse(ask, ask.model.producers.get(decision.name), decision.name, "a branch or a loop is decided by it")


def _same_when_short(ask: Questions, decision: Decision) -> bool:
    """Is the shortest stream decided alike in every batch? What follows from both may change at either end."""
    tracer, shortest, step = ask.traces.tracer, shortest_taken(ask), ask.traces.tracer.time.step
    for length in range(shortest, ask.traces.runs[0].length + 1, step):
        try:
            return isinstance(_followed(ask, *(tracer.at(length, n) for n in BATCHES)).value(decision.name), Fixed)
        except CannotRun:
            continue
        except Unsure:
            return False
    return True


def _everywhere(ask: Questions, decision: Decision) -> bool:
    """Has a value the same entries for every stream, however many there are?"""
    try:
        return decision.everywhere and _regular(_follower(ask).value(decision.name))
    except Unsure:
        return False


def _check_sizes(ask: Questions, node: Node) -> None:
    """What an operator makes of sizes must grow with the batch as it seems to: x[:3] along it does not."""
    f, rule = _follower(ask), VALUES.of(node)
    batched = any(not s.constant for i in node.inputs[:1] if i for s in f.sizes_of(i))
    if batched and _of(node).removes(node):
        _refuse(ask, node, node.outputs[0], "an axis of one stream would go")
    if rule is None or not batched or not (traits(node.op).moves or traits(node.op).shapes):
        return
    try:
        made = rule(f, node, [_given(ask, i) for i in node.inputs])
        found = made[0] if isinstance(made, list) else made
        if not all(alike(x, y) for x, y in zip(f.spread(found).sizes, f.sizes(node.outputs[0]), strict=True)):
            _refuse(ask, node, node.outputs[0], "its size is no multiple of the batch size")
    except Unsure as problem:
        if (
            traits(node.op).axes == "cut"
        ):  # all others make sizes that go with their amounts, which are looked at by themselves
            _refuse(ask, node, node.outputs[0], str(problem))


def _given(ask: Questions, name: str) -> Value | None:
    if not name:
        return None
    f = _follower(ask)
    return f.value(name) if ask.traces.runs[0][name].known else Spread(f.sizes(name), lo=-FAR, hi=FAR)


def _check_known(ask: Questions, node: Node, name: str) -> None:
    try:
        value = _follower(ask).value(name)
    except Unsure as problem:
        return _refuse(ask, node, name, str(problem))
    if not _regular(value):
        _refuse(ask, node, name, "it changes otherwise than by growing with the batch")


def _regular(value: Value) -> bool:
    """Does it only grow with the batch, from one stream on?"""
    if isinstance(value, Fixed):
        return True
    if isinstance(value, Few):
        return all(isinstance(c, Series) and not c.horizon and c.period == 1 for c in value.cells.flat)
    sizes = all(not s.horizon and s.period == 1 for s in value.sizes)
    return sizes and not value.near and not value.slope and value.period == 1


def _refuse(ask: Questions, node: Node | None, name: str, why: str) -> None:
    if ask.options.proof == "sampled":
        ask.ledger.sampled[name] = why
        return
    raise NotStreamable(
        f"what '{name}' is follows from how many streams there are, and it is not certain for every number: {why}",
        node=node.name if node else name,
        op=node.op if node else "",
        hint=ask.fix_batch(),
        kind=Kind.BATCH,
    )
