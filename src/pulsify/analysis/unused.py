"""Entries that no result depends on, as all that reads them multiplies them by zero; and those that are zero.

    frames    a b c d e f      samples of a frame, cut by an index table
    window    0 . . . . 0      a and f count for nothing; no frame has to wait for f

Followed from a value through operators that keep entries apart, to products with constants. What is finite stays finite
on the way, so that zero times it is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pulsify.analysis.proof.claims import Claim, holds_everywhere
from pulsify.analysis.questions import Questions
from pulsify.analysis.zeros import NONE, Ends, weights, zero_ends
from pulsify.core.errors import NotStreamable
from pulsify.core.traits import Traits, traits
from pulsify.frontend.model import Node

FURTHEST = 32  # operators that an entry is followed through
MOVED = ("transpose", "regroup")


def unused_entries(ask: Questions, name: str, axis: int) -> Ends:
    """So many of the first and last entries along an axis (other than time) that no result depends on."""
    return _Search(ask).entries(name, axis)


def zero_entries(ask: Questions, name: str, axis: int, depth: int = FURTHEST) -> Ends:
    """So many of the first and last entries along an axis (other than time) that are zero, whatever the data are."""
    node = ask.model.producers.get(name)
    if node is None or not depth or not ask.dtype(name).is_floating_point():
        return NONE
    rank, kind = len(ask.dims(name)), traits(node.op, node.domain)
    if kind.axes in MOVED:
        places = [a for a in range(len(ask.dims(node.inputs[0]))) if _moved(ask, node, a) == axis]
        return zero_entries(ask, node.inputs[0], places[0], depth - 1) if len(places) == 1 else NONE
    if kind.axes == "matmul" and axis == rank - 1:
        array = weights(ask, node.inputs[1])
        return NONE if array is None or array.ndim < 2 else zero_ends(array, array.ndim - 1)
    if not _is_scaled(kind):
        return NONE
    found = NONE
    for other in node.inputs:
        array, at = weights(ask, other), axis - rank
        if array is not None and array.ndim >= -at and array.shape[at] == ask.dims(name)[axis] > 1:
            front, back = zero_ends(array, array.ndim + at)
            found = max(found[0], front), max(found[1], back)
    return found[0], min(found[1], ask.dims(name)[axis] - 1 - found[0])


def unused_frames(ask: Questions, name: str, axis: int, count: int) -> int:
    """`count`, if no result depends on so many of the first frames along time, however long the stream is; else 0."""
    search = _Search(ask, count)
    if search.entries(name, axis)[0] < count:
        return 0
    claims = (
        Claim(None, f"the first frames of '{n}' being zero", partial(search.silent, n, a), {"start": count})
        for n, a in search.zeros
    )
    try:
        return count if all(holds_everywhere(ask, claim) for claim in claims) else 0
    except NotStreamable:  # it is not certain
        return 0


@dataclass(eq=False)
class _Search:
    """Entries followed from a value through what reads it.

    first: so many of the first frames are asked for, along time; zeros: known values that must then be zero there.
    """

    ask: Questions
    first: int = 0
    zeros: list[tuple[str, int]] = field(default_factory=list)
    seen: dict[tuple[str, int], Ends] = field(default_factory=dict)

    def entries(self, name: str, axis: int, depth: int = FURTHEST) -> Ends:
        if (name, axis) not in self.seen:
            self.seen[name, axis] = self._entries(name, axis, depth) if depth else NONE
        return self.seen[name, axis]

    def _entries(self, name: str, axis: int, depth: int) -> Ends:
        ask = self.ask
        if name in ask.model.outputs or not ask.dtype(name).is_floating_point():
            return NONE
        front = back = size = ask.dims(name)[axis]
        for node, place in ask.model.readers.get(name, ()):
            ends = self._of_reader(node, place, axis, depth - 1)
            if ends == NONE:
                return NONE
            front, back = min(front, ends[0]), min(back, ends[1])
        front = min(front, size - 1)
        return front, min(back, size - 1 - front)

    def _of_reader(self, node: Node, place: int, axis: int, depth: int) -> Ends:
        ask, rank, kind = self.ask, len(self.ask.dims(node.reads[place])), traits(node.op, node.domain)
        if kind.axes == "matmul" and rank > 1:
            return self._of_product(node, place, axis, depth)
        if kind.axes in MOVED and place == 0:
            moved = _moved(ask, node, axis)
            return NONE if moved is None else self.entries(node.outputs[0], moved, depth)
        if not kind.finite:
            return NONE
        out = node.outputs[0]
        at = axis + len(ask.dims(out)) - rank
        if ask.dims(out)[at] != ask.dims(node.inputs[place])[axis]:
            return NONE  # one entry, spread over many
        scaled = self._times_zero(node, place, at) if _is_scaled(kind) else NONE
        after = self.entries(out, at, depth)
        return max(scaled[0], after[0]), max(scaled[1], after[1])

    def _of_product(self, node: Node, place: int, axis: int, depth: int) -> Ends:
        """What is summed over by a product of matrices meets rows of zeros; other entries stay entries."""
        ask, dims, other = self.ask, self.ask.dims(node.inputs[place]), node.inputs[1 - place]
        if axis == (len(dims) - 1 if place == 0 else len(dims) - 2):
            array = weights(ask, other)
            if array is None:
                return NONE
            return zero_ends(array, 0 if array.ndim == 1 else array.ndim - 2 if place == 0 else array.ndim - 1)
        out = node.outputs[0]
        at = axis + len(ask.dims(out)) - len(dims)
        alike = len(ask.dims(other)) > 1 and ask.dims(out)[at] == dims[axis]
        return self.entries(out, at, depth) if alike else NONE

    def _times_zero(self, node: Node, place: int, at: int) -> Ends:
        """Entries along an axis of a product's output that are zero times something."""
        ask, other = self.ask, node.inputs[1 - place]
        axis = at - (len(ask.dims(node.outputs[0])) - len(ask.dims(other)))
        if axis < 0 or ask.dims(other)[axis] == 1:
            return NONE
        if self.first:
            if ask.known(other) is None or not all(self.silent(other, axis, run) for run in ask.traces.runs):
                return NONE
            self.zeros.append((other, axis))
            return self.first, 0
        array = weights(ask, other)
        return NONE if array is None else zero_ends(array, axis)

    def silent(self, name: str, axis: int, run: Any) -> bool:
        """Are the first frames of a known value zero?"""
        return not run[name].cut(axis, slice(self.first)).any()


def _is_scaled(kind: Traits) -> bool:
    """Is it zero wherever either of its operands is?"""
    return kind.law == "zero" and kind.either


def _moved(ask: Questions, node: Node, axis: int) -> int | None:
    """Where an axis is behind an operator that moves axes or sizes about; None if it is no axis there."""
    if traits(node.op, node.domain).axes == "transpose":
        perm = node.attr("perm") or tuple(reversed(range(len(ask.dims(node.inputs[0])))))
        return list(perm).index(axis)
    places = [_same_axis(run[node.inputs[0]].dims, run[node.outputs[0]].dims, axis) for run in ask.traces.runs]
    return places[0] if len(set(places)) == 1 else None


def _same_axis(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """The axis of the same size that has as many elements behind it."""
    inner = math.prod(before[axis + 1 :])
    for at, size in enumerate(after):
        if size == before[axis] > 1 and math.prod(after[at + 1 :]) == inner:
            return at
    return None
