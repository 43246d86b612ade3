"""Cuts of cuts, and of what was just joined: taken where the frames come from.

[ state | frames ] -Slice-> -Slice-> frames        =        frames

Padding that ends early keeps frames for the end of a stream; while there is no end in sight it passes them on.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from pulsify.optimize.builder import Builder
from pulsify.optimize.rewriting import NodeChange
from pulsify.optimize.views import cut_of, sizes


class CutOnce(NodeChange):
    """A cut of a cut is one cut, a cut of one part of what is joined is one of that part, and a cut of all is none.

    What is given out stays where it is joined: a state may be read there, as the end of it, without being cut at all.
    settled: forms are; then only what lies in one piece stays.
    Requires and ensures what every `NodeChange` does.
    """

    def __init__(self, settled: bool = False) -> None:
        self.settled = settled

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        bounds, out = cut_of(node), node.outputs[0]
        if bounds is None or (_given_out(out) and not (self.settled and _in_pieces(out, bounds[0]))):
            return
        axis, start, stop = bounds
        value: ir.Value | None = node.inputs[0]
        while value is not None and (further := _further(value, axis, start, stop)) is not None:
            (value, moved), size = further, stop - start
            start, stop = moved, moved + size
        whole, shape = sizes(value), sizes(out)
        if value is None or whole is None or shape is None:
            return
        if whole == shape:
            b.replace(out, value)
        elif value is not node.inputs[0]:
            inputs = [value, *(b.ints(n) for n in (start, stop, axis))]
            b.replace(out, b.op("Slice", inputs, shape, out.dtype))


def _given_out(value: ir.Value) -> bool:
    return value.is_graph_output() or any(use.node.op_type == "Identity" for use in value.uses())


def _in_pieces(value: ir.Value, axis: int) -> bool:
    return math.prod((sizes(value) or ())[:axis]) > 1


def _further(value: ir.Value, axis: int, start: int, stop: int) -> tuple[ir.Value, int] | None:
    """What a stretch of a value is a stretch of, and where it begins there."""
    maker, dims = value.producer(), sizes(value)
    if maker is None or dims is None:
        return None
    bounds = cut_of(maker)
    if bounds is not None and bounds[0] == axis and maker.inputs[0] is not None:
        return maker.inputs[0], bounds[1] + start
    if maker.op_type != "Concat" or maker.attributes.get_int("axis", 0) % len(dims) != axis:
        return None
    for part in maker.inputs:
        size = sizes(part)
        if part is None or size is None:
            return None
        if start >= 0 and stop <= size[axis]:
            return part, start
        start, stop = start - size[axis], stop - size[axis]
    return None
