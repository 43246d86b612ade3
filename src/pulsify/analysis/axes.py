"""Where each axis of an input goes: to an axis of the output, or nowhere (summed over, mixed)."""

from __future__ import annotations

import math
from collections.abc import Callable

from pulsify.analysis.proof.claims import fixed_value
from pulsify.analysis.questions import Questions
from pulsify.core.equation import explicit
from pulsify.core.facet import Facet
from pulsify.core.traits import traits
from pulsify.frontend.model import Node

AxisMap = dict[int, int]  # input axis -> output axis; an axis that is not there is summed over


AxesLaw = Callable[[Questions, Node], "list[AxisMap] | None"]
AXES = Facet[AxesLaw](
    "axes",
    "which output axis each axis of its inputs becomes",
    default=lambda t: BY_TRAIT.get(t.axes),
)


def axis_maps(ask: Questions, node: Node) -> list[AxisMap] | None:
    """For every input; None if the operator does not keep axes apart (a reshape that tears them, a gather)."""
    law = AXES.of(node)
    return None if law is None else law(ask, node)


def _ranks(ask: Questions, node: Node) -> list[int]:
    return [len(ask.dims(i)) if i else 0 for i in node.inputs]


def _rank(ask: Questions, node: Node) -> int:
    return len(ask.dims(node.outputs[0]))


def _first(node: Node, mapped: AxisMap) -> list[AxisMap]:
    """All other inputs are amounts, places or shapes."""
    return [mapped, *({} for _ in node.inputs[1:])]


# ---- by trait


def _broadcast(ask: Questions, node: Node) -> list[AxisMap]:
    out = _rank(ask, node)
    return [{a: a + out - r for a in range(r)} for r in _ranks(ask, node)]


def _repeated(ask: Questions, node: Node) -> list[AxisMap] | None:
    return None if _repeats_time(ask, node) else _first(node, {a: a for a in range(_rank(ask, node))})


def _multiplied(ask: Questions, node: Node) -> list[AxisMap]:
    return [_matmul(rank, _rank(ask, node), gone) for rank, gone in zip(_ranks(ask, node), (-1, -2), strict=True)]


def _transposed(ask: Questions, node: Node) -> list[AxisMap]:
    out = _rank(ask, node)
    perm = node.attr("perm") or tuple(reversed(range(out)))
    return [{a: perm.index(a) for a in range(out)}]


def _kept(ask: Questions, node: Node) -> list[AxisMap]:
    return _first(node, {a: a for a in range(_ranks(ask, node)[0])})


def _joined(ask: Questions, node: Node) -> list[AxisMap] | None:
    joined = node.attr("axis") % _rank(ask, node)
    if any(joined in ask.time_axes(i) for i in node.inputs):
        return None
    return [{a: a for a in range(r)} for r in _ranks(ask, node)]


def _regrouped(ask: Questions, node: Node) -> list[AxisMap] | None:
    kept = _reshape(ask, node)
    return None if kept is None else _first(node, kept)


def _best(ask: Questions, node: Node) -> list[AxisMap]:
    out = _rank(ask, node)
    return _first(node, {a: a for a in range(out) if a != node.attr("axis", traits(node.op, node.domain).along) % out})


# ---- parts of an axis that is not time: heads


def _cut(ask: Questions, node: Node) -> list[AxisMap] | None:
    rank = _ranks(ask, node)[0]
    cuts_time = set(_cut_axes(ask, node, rank)) & set(ask.time_axes(node.inputs[0]))
    return None if cuts_time else _first(node, {a: a for a in range(rank)})


def _picked(ask: Questions, node: Node) -> list[AxisMap] | None:
    rank, places = _ranks(ask, node)
    axis = node.attr("axis", 0) % rank
    if axis in ask.time_axes(node.inputs[0]) or ask.time_axes(node.inputs[1]):
        return None
    return _first(node, {a: a if a < axis else a + places - 1 for a in range(rank) if a != axis})


def _points(ask: Questions, node: Node) -> list[AxisMap] | None:
    rank, places = _ranks(ask, node)
    count = ask.dims(node.inputs[1])[-1]
    picks_time = any(a < count for a in ask.time_axes(node.inputs[0])) or ask.time_axes(node.inputs[1])
    if node.attr("batch_dims", 0) or picks_time:
        return None
    return _first(node, {a: a - count + places - 1 for a in range(count, rank)})


def _elements(ask: Questions, node: Node) -> list[AxisMap] | None:
    rank, places = _ranks(ask, node)
    axis = node.attr("axis", 0) % rank
    if axis in ask.time_axes(node.inputs[0]):
        return None
    return [{a: a for a in range(rank) if a != axis}, {a: a for a in range(places)}]


def _cut_axes(ask: Questions, node: Node, rank: int) -> list[int]:
    if not node.input(3):
        return list(range(len(ask.traces.runs[0][node.inputs[1]].array)))
    return [int(a) % rank for a in fixed_value(ask, node, node.inputs[3], "axes").reshape(-1)]


def _matmul(rank: int, out: int, contracted: int) -> AxisMap:
    return {a: a + out - rank for a in range(rank) if a != contracted % rank}


def _einsum(ask: Questions, node: Node) -> list[AxisMap]:
    terms, result = explicit(str(node.attr("equation")), _ranks(ask, node)).split("->")
    return [{a: result.index(c) for a, c in enumerate(t) if c in result} for t in terms.split(",")]


def reduced_axes(ask: Questions, node: Node) -> set[int]:
    """The axes a Reduce operator goes over: an attribute or an input, all of them if none is named."""
    rank, along = len(ask.dims(node.inputs[0])), traits(node.op, node.domain).along
    if along is not None:
        return {node.attr("axis", along) % rank}
    axes = node.attr("axes")
    if axes is None and node.input(1):
        axes = [int(a) for a in fixed_value(ask, node, node.input(1), "axes").reshape(-1)]
    if not axes:
        return set() if node.attr("noop_with_empty_axes", 0) else set(range(rank))
    return {a % rank for a in axes}


def _reduced(ask: Questions, node: Node) -> list[AxisMap]:
    gone, keeps = reduced_axes(ask, node), node.attr("keepdims", 1)
    left = [a for a in range(_ranks(ask, node)[0]) if a not in gone]
    return _first(node, {a: a if keeps else a - sum(g < a for g in gone) for a in left})


def _reshape(ask: Questions, node: Node) -> AxisMap | None:
    """Time axes that stay axes of their own: the elements in front of, between and behind them stay the same."""
    name, made = node.inputs[0], node.outputs[0]
    before, after = ask.time_axes(name), ask.time_axes(made)
    if len(before) != len(after):
        return None
    x, y = ask.dims(name), ask.dims(made)
    for a, b in zip(before, after, strict=True):
        if x[a] != y[b] or math.prod(x[:a]) != math.prod(y[:b]):
            return None
    return dict(zip(before, after, strict=True))


def repeats_one(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Is all that is repeated a single frame? It is an Expand."""
    return all(x in (1, y) for x, y in zip(before, after, strict=True))


def _repeats_time(ask: Questions, node: Node) -> bool:
    """Does it say frames again, of more than one?"""
    before, after = ask.dims(node.inputs[0]), ask.dims(node.outputs[0])
    times = ask.time_axes(node.outputs[0])
    return any(x not in (1, y) for a, (x, y) in enumerate(zip(before, after, strict=True)) if a in times)


BY_TRAIT: dict[str, AxesLaw] = {
    "broadcast": _broadcast,
    "repeat": _repeated,
    "matmul": _multiplied,
    "einsum": _einsum,
    "transpose": _transposed,
    "same": _kept,
    "join": _joined,
    "regroup": _regrouped,
    "reduce": _reduced,
    "top": _best,
    "cut": _cut,
    "pick": _picked,
    "points": _points,
    "elements": _elements,
}
