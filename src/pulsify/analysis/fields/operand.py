"""What a field operator reads: where the time axes of each input go, and that sizes agree at every length."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np

from pulsify.analysis.axes import AxisMap
from pulsify.analysis.facts import Field, FirstFrames, Varying, Wire
from pulsify.analysis.proof.claims import Claim, holds_everywhere
from pulsify.analysis.proof.numbers import (
    SHORT,
    as_expected,
    follower,
    in_frames,
    require_as_many,
    same_series,
    sizes_by_operator,
    uncertain,
)
from pulsify.analysis.proof.values import known_at
from pulsify.analysis.questions import Questions
from pulsify.core.errors import NotStreamable
from pulsify.core.refusal import Kind
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.lengths.affine_array import T
from pulsify.lengths.series import Unsure, constant
from pulsify.trace.evaluate import Trace
from pulsify.trace.traced import Array, same


@dataclass(frozen=True, eq=False)
class Operand:
    """An input of a field operator, whatever it is: where its time axes go, what its cells are, how to get a window."""

    index: int
    name: str
    fact: Wire | Field | None  # None: known over two axes, or without time
    axes: dict[int, int]  # its time axes -> axes of the output (or -1: summed over)


def operand_of(ask: Questions, node: Node, index: int, name: str, mapped: AxisMap) -> Operand:
    times = ask.time_axes(name)
    axes = {a: mapped.get(a, -1) for a in times}
    if len(times) > 2:
        ask.refuse(
            node,
            f"'{name}' has {len(times)} time axes",
            "keep time on one axis, or on two for attention scores",
            kind=Kind.AXES,
        )
    if times and traits(node.op).elementwise and ask.known(name) is not None:
        _check_alone(ask, node, name, times)
    if ask.known(name) is not None and (len(times) == 2 or _is_table(ask, node, name, times)):
        constant = len(times) == 1 or _same_at_all_lengths(ask, name)
        return Operand(index, name, None if constant else parts(ask, node, name), axes)
    fact = ask.fact(name)
    if isinstance(fact, (FirstFrames, Varying)):
        ask.operand(node, name)  # refuses
    return Operand(index, name, fact if isinstance(fact, (Wire, Field)) else None, axes)


def _same_at_all_lengths(ask: Questions, name: str) -> bool:
    """Is cell (i, j) the same whatever the length? A mask may hide the last frame at some lengths only."""
    if name not in ask.same_cells:
        ask.same_cells[name] = _by_place_alone(ask, name)
    return ask.same_cells[name]


def _by_place_alone(ask: Questions, name: str) -> bool:
    try:
        v = follower(ask).spread(follower(ask).value(name))
        if T not in v.uses:
            ask.ledger.up_to(v.certain, name)
            return True
    except Unsure:  # its parts may be certain, if it is not
        return ask.options.proof == "sampled"
    full: Array = known_at(ask, name, 2 * ask.traces.longest.length).array

    def agrees(run: Trace) -> bool:
        value = run[name].array
        both = tuple(slice(0, min(n, m)) for n, m in zip(value.shape, full.shape, strict=True))
        return same(value[both], full[both])

    try:
        return holds_everywhere(ask, Claim(None, f"'{name}' being the same at every length", agrees))
    except NotStreamable:
        return False


def parts(ask: Questions, node: Node, name: str) -> Field:
    """A known value as the field its own operator makes of its inputs: what of it depends on the end waits for that."""
    with contextlib.suppress(NotStreamable):
        if isinstance(fact := ask.fact(name), Field):
            return fact
    ask.refuse(
        node,
        f"'{name}' shows or hides some frames at some lengths of the stream only, in a way no rule is known for",
        "make it of comparisons with the length, joined by And, Or, Not, Where",
        kind=Kind.ATTENTION,
    )


def _is_table(ask: Questions, node: Node, name: str, times: list[int]) -> bool:
    """A known value over one time axis that is multiplied with data: rows of relative positions."""
    return len(times) == 1 and traits(node.op, node.domain).multiplies


def check_beside(ask: Questions, node: Node, operands: list[Operand]) -> None:
    """A known value has as many rows and columns as what it meets: where it has not, batch fails, and so do we."""
    fact = ask.facts[node.outputs[0]]
    if not isinstance(fact, Field):
        return
    for o in operands:
        try:
            own = follower(ask).sizes_of(o.name) if ask.known(o.name) is not None else ()
        except Unsure:
            continue
        for axis, side in ((a, s) for a, out in o.axes.items() for s in fact.sides if s.axis == out and own):
            if side.length is not None and own[axis].growth and not same_series(own[axis], in_frames(ask, side.length)):
                require_as_many(ask, node, side.length, own[axis])


def check_shape(ask: Questions, node: Node) -> None:
    """The shape that a field is given must be what it was taken for, at every length."""
    name = node.outputs[0]
    fact, unit = ask.facts[name], ask.traces.tracer.time.step
    try:
        made = sizes_by_operator(ask, name)
    except Unsure as problem:
        if traits(node.op, node.domain).regroups:
            return  # it keeps as many entries, so that no other shape of these axes is possible
        uncertain(ask, node, node.inputs[1], problem)
    for axis, (size, d) in enumerate(zip(made, ask.dims(name, 0), strict=True)):
        side = next((s for s in fact.sides if s.axis == axis), None) if isinstance(fact, Field) else None
        if side is None and axis not in ask.time_axes(name):
            as_expected(ask, node, name, axis, size, constant(d, unit))
        elif side is not None and side.length is not None:
            as_expected(ask, node, name, axis, size, in_frames(ask, side.length))


def _check_alone(ask: Questions, node: Node, name: str, times: list[int]) -> None:
    """A known value that has a single row or column at some length would be spread over all there."""
    try:
        own = follower(ask).sizes_of(name)
    except Unsure:
        return
    for size in (own[a] for a in times):
        seen = size.look(size.horizon + size.period)
        more = np.maximum.accumulate(seen) > 1  # one frame is all there is of a stream that is short
        alone = np.flatnonzero((seen == 1) & more)
        lengths = [(int(n) + 1) * size.unit for n in alone if (n + 1) * size.unit > SHORT]
        if lengths:
            ask.refuse(
                node,
                f"'{name}' has a single frame at length {lengths[0]}, which meets every other",
                "give it as many frames as the stream has",
                kind=Kind.ATTENTION,
            )
