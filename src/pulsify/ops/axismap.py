"""Where each axis of an input goes: to an axis of the output, or nowhere (summed over, mixed)."""

from __future__ import annotations

import math

from pulsify.analysis.proof.claims import fixed_value
from pulsify.core.equation import explicit
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.plan.context import Context

AxisMap = dict[int, int]  # input axis -> output axis; an axis that is not there is summed over


def axis_maps(ctx: Context, node: Node) -> list[AxisMap] | None:
    """For every input; None if the operator does not keep axes apart (a reshape that tears them, a gather)."""
    out = len(ctx.ask.dims(node.outputs[0]))
    ranks = [len(ctx.ask.dims(i)) if i else 0 for i in node.inputs]
    kind = traits(node.op, node.domain).axes
    if kind == "broadcast":
        return [{a: a + out - r for a in range(r)} for r in ranks]
    if kind == "repeat" and not _repeats_time(ctx, node):
        return [{a: a for a in range(out)}, {}]
    if kind == "matmul":
        return [_matmul(ranks[0], out, -1), _matmul(ranks[1], out, -2)]
    if kind == "einsum":
        return _einsum(node, ranks)
    if kind == "transpose":
        perm = node.attr("perm") or tuple(reversed(range(out)))
        return [{a: perm.index(a) for a in range(out)}]
    if kind == "same":
        return [{a: a for a in range(ranks[0])}, *({} for _ in ranks[1:])]
    if kind == "join":
        joined = node.attr("axis") % out
        if any(joined in ctx.ask.time_axes(i) for i in node.inputs):
            return None
        return [{a: a for a in range(r)} for r in ranks]
    if kind == "regroup":
        kept = _reshape(ctx, node)
        return None if kept is None else [kept, *({} for _ in ranks[1:])]
    if kind == "reduce":
        return [_reduce(ctx, node, ranks[0]), *({} for _ in ranks[1:])]
    if kind == "top":
        return [{a: a for a in range(out) if a != node.attr("axis", -1) % out}, *({} for _ in ranks[1:])]
    if kind in ("cut", "pick", "elements"):
        return _picked(ctx, node, kind, ranks)
    return None


def _picked(ctx: Context, node: Node, kind: str, ranks: list[int]) -> list[AxisMap] | None:
    """Parts of an axis that is not time: heads."""
    rest: list[AxisMap] = [{} for _ in ranks[1:]]
    times, axis = ctx.ask.time_axes(node.inputs[0]), node.attr("axis", 0) % ranks[0]
    if kind == "cut":
        return None if set(_cut_axes(ctx, node, ranks[0])) & set(times) else [{a: a for a in range(ranks[0])}, *rest]
    if node.op == "GatherND":
        count, front = ctx.ask.dims(node.inputs[1])[-1], ranks[1] - 1
        if node.attr("batch_dims", 0) or ctx.ask.time_axes(node.inputs[1]) or any(a < count for a in times):
            return None
        return [{a: a - count + front for a in range(count, ranks[0])}, *rest]
    if axis in times or (kind == "pick" and ctx.ask.time_axes(node.inputs[1])):
        return None
    if kind == "elements":
        return [{a: a for a in range(ranks[0]) if a != axis}, {a: a for a in range(ranks[1])}]
    return [{a: a if a < axis else a + ranks[1] - 1 for a in range(ranks[0]) if a != axis}, *rest]


def _cut_axes(ctx: Context, node: Node, rank: int) -> list[int]:
    if not node.input(3):
        return list(range(len(ctx.ask.traces.runs[0][node.inputs[1]].array)))
    return [int(a) % rank for a in fixed_value(ctx.ask, node, node.inputs[3], "axes").reshape(-1)]


def _matmul(rank: int, out: int, contracted: int) -> AxisMap:
    return {a: a + out - rank for a in range(rank) if a != contracted % rank}


def _einsum(node: Node, ranks: list[int]) -> list[AxisMap]:
    terms, result = explicit(str(node.attr("equation")), ranks).split("->")
    return [{a: result.index(c) for a, c in enumerate(t) if c in result} for t in terms.split(",")]


def reduced_axes(ctx: Context, node: Node) -> set[int]:
    """The axes a Reduce operator goes over: an attribute or an input, all of them if none is named."""
    rank = len(ctx.ask.dims(node.inputs[0]))
    if node.op in ("ArgMax", "ArgMin"):
        return {node.attr("axis", 0) % rank}
    axes = node.attr("axes")
    if axes is None and node.input(1):
        axes = [int(a) for a in fixed_value(ctx.ask, node, node.input(1), "axes").reshape(-1)]
    if not axes:
        return set() if node.attr("noop_with_empty_axes", 0) else set(range(rank))
    return {a % rank for a in axes}


def _reduce(ctx: Context, node: Node, rank: int) -> AxisMap:
    gone = reduced_axes(ctx, node)
    if node.attr("keepdims", 1):
        return {a: a for a in range(rank) if a not in gone}
    return {a: a - sum(g < a for g in gone) for a in range(rank) if a not in gone}


def _reshape(ctx: Context, node: Node) -> AxisMap | None:
    """Time axes that stay axes of their own: the elements in front of, between and behind them stay the same."""
    name, made = node.inputs[0], node.outputs[0]
    before, after = ctx.ask.time_axes(name), ctx.ask.time_axes(made)
    if len(before) != len(after):
        return None
    x, y = ctx.ask.dims(name), ctx.ask.dims(made)
    for a, b in zip(before, after, strict=True):
        if x[a] != y[b] or math.prod(x[:a]) != math.prod(y[:b]):
            return None
    return dict(zip(before, after, strict=True))


def repeats_one(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Is all that is repeated a single frame? It is an Expand."""
    return all(x in (1, y) for x, y in zip(before, after, strict=True))


def _repeats_time(ctx: Context, node: Node) -> bool:
    """Does it say frames again, of more than one?"""
    before, after = ctx.ask.dims(node.inputs[0]), ctx.ask.dims(node.outputs[0])
    times = ctx.ask.time_axes(node.outputs[0])
    return any(x not in (1, y) for a, (x, y) in enumerate(zip(before, after, strict=True)) if a in times)
