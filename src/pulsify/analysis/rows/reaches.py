"""Which rows of which inputs a row is made of, by operator trait: the reach along an axis.

A reach takes the rows asked for (axis and place; None: entries at the same place at every length) and returns reads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pulsify.analysis.rows.edges import pieces
from pulsify.analysis.rows.groups import agree_until, groups
from pulsify.analysis.rows.picks import picked, picked_elements, picked_nd
from pulsify.analysis.rows.place import Place, Row
from pulsify.analysis.rows.wanted import RowRead, Wanted
from pulsify.core.equation import explicit
from pulsify.core.facet import Facet
from pulsify.core.traits import traits
from pulsify.lengths import series as one
from pulsify.lengths.series import Series, Unsure
from pulsify.lengths.sizes import bounds

if TYPE_CHECKING:
    from pulsify.analysis.rows.walk import Rows
    from pulsify.frontend.model import Node


Reach = Callable[[Wanted], "list[RowRead] | Row"]
ROW_READS = Facet[Reach](
    "row reads",
    "which rows of its inputs a row of a known table is made of",
    default=lambda t: BY_TRAIT.get(t.axes),
)


def reach_of(rows: Rows, node: Node, name: str, axis: int | None, place: Place | None) -> list[RowRead] | Row:
    """The reads of a node's output. Unsure if it has no reach along the axis."""
    wanted = Wanted(rows, node, name, axis, place)
    reach = ROW_READS.of(node)
    if reach is not None:
        return reach(wanted)
    if axis is None:
        return _whole(wanted)
    raise Unsure("its rows are mixed with others, or nothing is known of how")


def _whole(w: Wanted) -> list[RowRead]:
    """Any operator, of inputs that are as large at every length."""
    for i, name in enumerate(w.node.inputs):
        for size in w.sizes(i) if name else ():
            w.rows.item(size)
    return [w.read(i, None) for i, name in enumerate(w.node.inputs) if name]


# ---- one row of one row


def _broadcast(w: Wanted) -> list[RowRead]:
    """Entry by entry; an input with a single row gives it to all."""
    out = w.rows.sizes(w.name)
    inputs = [0] if traits(w.node.op, w.node.domain).shapes else range(len(w.node.inputs))
    return [beside(w, i, out) for i in inputs if w.node.inputs[i]]


def beside(w: Wanted, index: int, out: Sequence[Series]) -> RowRead:
    """The rows of an input that is broadcast to an output of these sizes."""
    own = w.sizes(index)
    shift = len(out) - len(own)
    for a, size in enumerate(own):
        if a + shift != w.axis and not size.constant:
            _as_many(size, out[a + shift])
    if w.axis is None or w.axis < shift:
        return w.read(index, None)
    size = own[w.axis - shift]
    if not size.constant:
        _as_many(size, out[w.axis])
    return w.read(index, w.axis - shift)


def _as_many(size: Series, out: Series) -> None:
    """A size that is 1 at some length only would be spread there over all rows."""
    _, _, (a, b) = one.aligned(size, out)
    if ((a == 1) & (b > 1)).any():
        raise Unsure("one of two values has a single row at some lengths")


def normalised(w: Wanted) -> list[RowRead]:
    """Normalised over other axes, which are as large at every length."""
    rank, along = len(w.sizes()), traits(w.node.op, w.node.domain).along
    first = w.node.attr("axis", -1) % rank
    mixed = range(first, rank) if along is None else [first]
    if w.axis in mixed:
        raise Unsure("its rows are mixed with each other")
    check_summed(w, 0, mixed)
    return [w.read(0, w.axis), *(w.read(i, None) for i, n in enumerate(w.node.inputs) if i and n)]


def check_summed(w: Wanted, index: int, axes: Sequence[int]) -> None:
    """Axes of an input that are summed over: all of it is read, as much at every length."""
    sizes = w.sizes(index)
    for a in axes:
        w.rows.item(sizes[a], "it sums over an axis that grows with the stream")


def _transposed(w: Wanted) -> list[RowRead]:
    rank = len(w.sizes())
    perm = w.node.attr("perm") or tuple(reversed(range(rank)))
    return [w.read(0, None if w.axis is None else perm[w.axis])]


def _multiplied(w: Wanted) -> list[RowRead]:
    left, right = (w.rows.rank(n) for n in w.node.inputs[:2])
    check_summed(w, 0, [left - 1])
    axes: list[int | None] = [None, None]
    out = w.rows.sizes(w.name)
    if w.axis is None:
        pass
    elif right == 1:
        axes[0] = w.axis
    elif left == 1:
        axes[1] = right - 1 if w.axis == len(out) - 1 else w.axis
    elif w.axis == len(out) - 2:
        axes[0] = left - 2
    elif w.axis == len(out) - 1:
        axes[1] = right - 1
    else:  # one product for every row
        for i, rank in enumerate((left, right)):
            own = w.axis - len(out) + rank
            if own >= 0:
                _as_many(w.sizes(i)[own], out[w.axis])
                axes[i] = own
    return [w.read(i, a) for i, a in enumerate(axes)]


def _einsum(w: Wanted) -> list[RowRead]:
    ranks = [w.rows.rank(n) for n in w.node.inputs]
    terms, result = explicit(str(w.node.attr("equation")), ranks).split("->")
    reads = []
    for i, term in enumerate(terms.split(",")):
        if len(set(term)) < len(term):
            raise Unsure("it takes a diagonal")
        check_summed(w, i, [a for a, letter in enumerate(term) if letter not in result])
        letter = None if w.axis is None else result[w.axis]
        reads.append(w.read(i, term.index(letter) if letter is not None and letter in term else None))
    return reads


def _reduced(w: Wanted) -> list[RowRead]:
    rank, along = len(w.sizes()), traits(w.node.op, w.node.domain).along
    if along is not None:
        gone = {w.node.attr("axis", along) % rank}
    else:
        axes = w.attr_or_input("axes", 1)
        empty = set() if w.node.attr("noop_with_empty_axes", 0) else set(range(rank))
        gone = {a % rank for a in axes} if axes else empty
    check_summed(w, 0, sorted(gone))
    kept = [a for a in range(rank) if w.node.attr("keepdims", 1) or a not in gone]
    return [w.read(0, None if w.axis is None else kept[w.axis])]


# ---- rows that stand elsewhere


def _cut(w: Wanted) -> list[RowRead]:
    sizes = w.sizes()
    given = [w.rows.numbers(n) if n else None for n in w.node.inputs[1:]] + [None, None]
    starts, stops = given[:2]
    assert starts is not None and stops is not None
    axes = [w.rows.item(n) % len(sizes) for n in given[2]] if given[2] is not None else list(range(len(starts)))
    steps = given[3] if given[3] is not None else [w.rows.constant(1)] * len(starts)
    place = w.place
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        by = w.rows.item(step)
        first, _ = bounds(start, stop, by, sizes[axis])
        if axis == w.axis and place is not None:
            place = place.moved(first, by)
        else:
            w.rows.item(first, "another axis is cut at a place that changes with the length of the stream")
    return [RowRead(w.node.inputs[0], w.axis, place)]


def _concat(w: Wanted) -> list[RowRead]:
    axis = w.node.attr("axis") % w.rows.rank(w.name)
    sizes = [w.sizes(i)[axis] for i in range(len(w.node.inputs))]
    if axis == w.axis:
        return in_pieces(w, list(zip(w.node.inputs, sizes, strict=True)))
    for size in sizes[:-1]:
        w.rows.item(size, "it is joined behind something that grows with the stream")
    return [w.read(i, w.axis) for i in range(len(w.node.inputs))]


def _repeated(w: Wanted) -> list[RowRead]:
    for a, (size, times) in enumerate(zip(w.sizes(), w.rows.numbers(w.node.inputs[1]), strict=True)):
        once, single = times.constant and times.item == 1, size.constant and size.item == 1
        if not once and not single and (a == w.axis or not size.constant):
            raise Unsure("its rows are repeated, one pass behind the other")
    return [w.read(0, w.axis)]


def _regrouped(w: Wanted) -> list[RowRead] | Row:
    """Entries keep their order: an index is split by the sizes of all axes of a group but the first."""
    before, after = w.sizes(), w.rows.sizes(w.name)
    if not _pair_up(before, after) and (end := agree_until(before, after)) is not None:
        return w.rows.before(end).follow(w.name, w.axis, None if w.place is None else w.place.before(end))
    axis, place = None, None
    for sources, results in groups(before, after):
        if len(sources) == len(results) == 1:
            if w.axis == results[0]:
                axis, place = sources[0], w.place
            continue
        inner = [
            math.prod(w.rows.item(sizes[a], "rows are split") for a in axes[1:])
            for sizes, axes in ((before, sources), (after, results))
        ]
        if w.axis not in results or w.place is None:
            continue
        if w.axis == results[0]:
            zero = w.rows.constant(0)
            axis, place = sources[0], w.place.moved(zero, inner[1], inner[1]).divided(inner[0])
        else:
            w.rows.item(w.place.base, "rows are split")
    return [RowRead(w.node.inputs[0], axis, place)]


def _pair_up(before: Sequence[Series], after: Sequence[Series]) -> bool:
    with contextlib.suppress(Unsure):
        return bool(list(groups(before, after))) or True
    return False


def in_pieces(w: Wanted, parts: Sequence[tuple[str, Series]]) -> list[RowRead]:
    """Parts one behind the other: those in which rows are read."""
    assert w.place is not None
    found = pieces(w.place, [size for _, size in parts])
    return [RowRead(parts[i][0], w.axis, place, shortest) for i, place, shortest in found]


# ---- windows


def windowed_rows(w: Wanted) -> list[RowRead]:
    """Conv and pools: rows of a window, which may begin in front of the first and end behind the last."""
    sizes = w.sizes()
    rank = len(sizes) - 2
    kernel = w.node.attr("kernel_shape") or [w.rows.item(n) for n in w.sizes(1)[2:]]
    strides, dilations = (list(w.node.attr(k) or (1,) * rank) for k in ("strides", "dilations"))
    pads = list(w.node.attr("pads") or (0,) * (2 * rank))
    if str(w.node.attr("auto_pad", "NOTSET")) not in ("NOTSET", "VALID") or w.node.attr("ceil_mode", 0):
        raise Unsure("its padding is worked out from the size")
    others = [w.read(i, 0 if w.axis == 1 else None) for i, n in enumerate(w.node.inputs) if i and n]
    for a in range(rank):
        if a + 2 != w.axis and (pads[a + rank] or pads[a]):
            w.rows.item(sizes[a + 2], "another axis is padded, otherwise at every length")
    if w.axis is None or w.axis < 2:
        return [w.read(0, None if w.axis == 1 and others else w.axis), *others]
    a = w.axis - 2
    assert w.place is not None
    span = dilations[a] * (kernel[a] - 1) + 1
    place = w.place.moved(w.rows.constant(0), strides[a], span)  # in padded rows
    front, behind = (w.rows.constant(pads[a + n * rank]) for n in (0, 1))
    window = replace(w, place=place)
    reads = in_pieces(window, [("", front), (w.node.inputs[0], sizes[w.axis]), ("", behind)])
    return [*reads, *others]


BY_TRAIT: dict[str, Reach] = {
    "broadcast": _broadcast,
    "same": normalised,
    "transpose": _transposed,
    "matmul": _multiplied,
    "einsum": _einsum,
    "reduce": _reduced,
    "join": _concat,
    "regroup": _regrouped,
    "repeat": _repeated,
    "cut": _cut,
    "pick": picked,
    "points": picked_nd,
    "elements": picked_elements,
}
