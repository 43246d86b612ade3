"""Values that follow from the length of the whole stream, as numbers of the streaming graph: right when it has ended.

x.sum(1) / x.shape[1]        the number of frames is the clock's, once the stream's length is known
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn

import onnx_ir as ir

from pulsify.analysis.facts import Awaited, Deferred, Static, Varying, deferred, emitted
from pulsify.analysis.proof.numbers import length_of, numbers, same_series
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.refusal import Kind
from pulsify.lengths import series as one
from pulsify.lengths.series import Series, Unsure
from pulsify.trace.evaluate import measures

if TYPE_CHECKING:
    from pulsify.frontend.model import Node
    from pulsify.plan.context import Context

COUNTED = (1 << 31) - 1  # no number of a clock is larger
THE_LENGTH = Awaited(Length(), None)


def at_end(ctx: Context, name: str) -> Static:
    """The value of a known number, or a few, that differ with the stream's length."""
    node = ctx.ask.model.producers.get(name)
    whole = ctx.ask.dtype(name).is_integer()
    if node is not None and not whole and not any(ctx.ask.time_axes(i) for i in node.inputs if i):
        return _copied(ctx, node, name)
    try:
        return Static(_counted(ctx, node, name), (THE_LENGTH,))
    except NotStreamable:
        if node is None or not whole or any(ctx.ask.time_axes(i) for i in node.inputs if i):
            raise
        return _copied(ctx, node, name)


def told(ctx: Context, name: str) -> Length | None:
    """The number of frames that a value tells, if it is that."""
    node = ctx.ask.model.producers.get(name)
    if node is None or not ctx.ask.dtype(name).is_integer():
        return None
    cells = numbers(ctx.ask, node, name).reshape(-1)
    return length_of(ctx.ask, node, cells[0]) if cells.size and all(same_series(c, cells[0]) for c in cells) else None


def _copied(ctx: Context, node: Node, name: str) -> Static:
    """As the model works it out, from numbers that are known when the stream has ended."""
    if measures(node) or node.body is not None:
        _refuse(node, name)
    inputs: list[Deferred | None] = []
    for i in node.inputs:
        fact = ctx.ask.fact(i) if i else None
        if isinstance(fact, Varying):
            fact = at_end(ctx, i)
        if isinstance(fact, Static):
            inputs.append(fact.recipe)
        elif fact is None:
            inputs.append(None)
        else:
            _refuse(node, name)

    def make() -> ir.Value:
        given, count = [emitted(i) for i in inputs], len(node.outputs)
        made = ctx.builder.ops(node.op, given, node.attrs, outputs=count, domain=node.domain)
        return made[list(node.outputs).index(name)]

    return Static(deferred(make, *inputs), (THE_LENGTH,))


def _refuse(node: Node, name: str) -> NoReturn:
    raise NotStreamable(
        f"'{name}' depends on the total length in an irregular way",
        node=node.name,
        op=node.op,
        hint="compute it outside the model, after the stream",
        kind=Kind.LENGTH,
    )


def _counted(ctx: Context, node: Node | None, name: str) -> Deferred:
    """Each entry as a number of frames: a Length, evaluated by the clock."""
    dtype, sizes = ctx.ask.dtype(name), ctx.ask.sizes_static(name)
    cells = [_whole(ctx, node, name, c) for c in numbers(ctx.ask, node, name).reshape(-1)]
    alike = all(same_series(c, cells[0]) for c in cells)
    if not cells or (not alike and any(s < 0 for s in sizes)):
        _refuse(_by(ctx, node, name), name)
    by_stream = any(s < 0 for s in sizes)
    by = _by(ctx, node, name)
    found = [end_number(ctx, by, length_of(ctx.ask, by, c), dtype, by_stream) for c in cells[: 1 if alike else None]]

    def make() -> ir.Value:
        b = ctx.builder
        if by_stream:
            each = b.reshape(found[0].value, [-1 if s < 0 else 1 for s in sizes])
            whole = [max(s, 1) for s in sizes]
            return each if math.prod(whole) == 1 else b.op("Expand", each, b.ints(*whole))
        if not alike:
            return b.reshape(b.op("Concat", *(n.value for n in found), axis=0), sizes)
        if math.prod(sizes) == 1:
            return b.reshape(found[0].value, sizes)
        return b.op("Expand", b.reshape(found[0].value, [1] * len(sizes)), b.ints(*sizes))

    return deferred(make, *found)


def _by(ctx: Context, node: Node | None, name: str) -> Node:
    """Whom to blame: the node that makes it, or the first that reads it."""
    return node or next(n for n in ctx.ask.model.nodes if name in n.reads)


def _whole(ctx: Context, node: Node | None, name: str, cell: Series) -> Series:
    if cell.floating:
        try:
            whole = one.cast(cell, "i", 64)
            if (whole.values == cell.values).all():
                return whole
        except Unsure:
            pass
        _refuse(_by(ctx, node, name), name)
    return cell


def end_number(ctx: Context, node: Node, length: Length, dtype: ir.DataType, by_stream: bool) -> Deferred:
    """One number a stream, [B, 1]; or one for all streams of a session, which end together, [1]."""
    if length.largest > COUNTED:
        ctx.ask.refuse(
            node,
            f"it makes a number of the length that is counted in 32 bits, by way of {length.largest}",
            "cast the length to a float first, or compute it outside the model, after the stream",
            kind=Kind.LENGTH,
        )

    def make() -> ir.Value:
        b, ctx.clock.absolute = ctx.builder, True  # counters that were set back would tell another length
        x = b.op("Cast", ctx.clock.end(length), to=int(dtype))
        if by_stream:
            return x
        return b.reshape(b.op("Gather", x, b.ints(0), axis=0) if ctx.batch is not None else x, [1])

    return Deferred(make, fixed=False)
