"""Fewer nodes where every size is known: what only renames axes is a Reshape, and one Reshape is enough.

[1, 8, 1] -Transpose-> [1, 1, 8] -Reshape-> [1, 1, 1, 8]      nothing moves: one Reshape, or none

Every node costs the runtime about a microsecond, however little it does; at a frame or two a pulse that is most of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import Sequential

from pulsify.core.traits import traits
from pulsify.optimize.builder import Builder
from pulsify.optimize.chain_products import ChainProducts, JoinSummands
from pulsify.optimize.constants import FoldConstants
from pulsify.optimize.cuts import CutOnce
from pulsify.optimize.heads import JoinHeads
from pulsify.optimize.overlap import ReadOverlap, SumBlocks
from pulsify.optimize.rewriting import NodeChange
from pulsify.optimize.scale import FoldScale, SpreadScale, TurnOnce
from pulsify.optimize.split_products import SplitProducts
from pulsify.optimize.unfold import FoldUnfold
from pulsify.optimize.views import constant, cut_of, is_view, only_reader, scale_and_shift, sizes, source

# ---- what does nothing


class DropNeutral(NodeChange):
    """Times one, a choice that is always the same, a repetition that its reader does by itself.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        if node.op_type == "Expand":
            _not_expanded(node)
        kept, out = _kept(node), node.outputs[0]
        if kept is not None and sizes(kept) == sizes(out) is not None and out not in b.graph.outputs:
            out.replace_all_uses_with(kept)


def _kept(node: ir.Node) -> ir.Value | None:
    """The input that a node gives out as it is, if its others are constants that make it so."""
    if node.op_type == "Where":
        choice = constant(node.inputs[0])
        same = choice is not None and (choice.all() or not choice.any())
        return node.inputs[1 if choice.all() else 2] if same and choice is not None else None
    if node.op_type in ("Mul", "Div"):
        x, y = node.inputs
        if (ones := constant(y)) is not None and (ones == 1).all():
            return x
        if node.op_type == "Mul" and (ones := constant(x)) is not None and (ones == 1).all():
            return y
    return None


def _not_expanded(node: ir.Node) -> None:
    """Whoever has the whole shape from another input repeats by itself."""
    out, before = node.outputs[0], node.inputs[0]
    for use in list(out.uses()):
        others = [v for v in use.node.inputs if v is not None and v is not out]
        kind = traits(use.node.op_type)
        repeats = kind.elementwise and not (kind.keeps_size and use.idx == 0)
        whole = {sizes(out), sizes(use.node.outputs[0])}
        if repeats and None not in whole and any(sizes(v) in whole for v in others):
            use.node.replace_input_with(use.idx, before)


class ReadUncut(NodeChange):
    """Frames cut off behind the last that a strided convolution reads need not be cut off.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        if node.op_type != "Conv":
            return
        x = node.inputs[0]
        cut = x.producer() if x is not None and only_reader(x) else None
        bounds = None if cut is None else cut_of(cut)
        whole, kernel, given = (sizes(v) for v in (cut.inputs[0] if cut else None, node.inputs[1], node.outputs[0]))
        if cut is None or bounds is None or whole is None or kernel is None or given is None:
            return
        (axis, start, _), rank = bounds, len(whole) - 2
        stride = node.attributes.get_ints("strides", (1,) * rank)[axis - 2]
        dilation = node.attributes.get_ints("dilations", (1,) * rank)[axis - 2]
        pads = node.attributes.get_ints("pads", (0,) * (2 * rank))
        padded = pads[axis - 2] or pads[rank + axis - 2] or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
        if axis < 2 or start or padded:
            return
        if (whole[axis] - dilation * (kernel[axis] - 1) - 1) // stride + 1 == given[axis]:
            node.replace_input_with(0, cut.inputs[0])


# ---- views


class OneView(NodeChange):
    """One Reshape of what the elements first came from, or nothing at all.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        if not is_view(node):
            return
        out, shape = node.outputs[0], sizes(node.outputs[0])
        origin = source(out)
        assert shape is not None
        ports = origin.producer() is None and any(use.node.op_type == "Identity" for use in out.uses())
        if sizes(origin) == shape and out not in b.graph.outputs and not ports:
            out.replace_all_uses_with(origin)
        elif (node.op_type != "Reshape" or origin is not node.inputs[0]) and out not in b.graph.outputs:
            out.replace_all_uses_with(b.reshaped(origin, shape))


class SinkViews(NodeChange):
    """What works element by element does so before the view, which then meets the next one.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        if not traits(node.op_type).elementwise or len(node.outputs) != 1 or node.op_type == "Identity":
            return
        shape = sizes(node.outputs[0])
        data = [v for v in node.inputs if v is not None and not _single(v)]
        sources = [source(v) for v in data]
        if shape is None or not data or any(sizes(v) != shape or not only_reader(v) for v in data):
            return
        inner = {sizes(v) for v in sources}
        if len(inner) != 1 or None in inner or inner == {shape}:
            return
        given: dict[ir.Value | None, ir.Value] = dict(zip(data, sources, strict=True))
        attrs = {k: a.value for k, a in node.attributes.items()}
        (before,) = (d for d in inner if d is not None)
        made = b.op(node.op_type, [given.get(v, v) for v in node.inputs], before, node.outputs[0].dtype, **attrs)
        b.replace(node.outputs[0], b.reshaped(made, shape))


def _single(value: ir.Value) -> bool:
    """One number, whatever its rank: it broadcasts against anything (of at least that rank)."""
    array = constant(value)
    return array is not None and array.ndim == 0


class CutSources(NodeChange):
    """A piece of a view: a piece of its source, if that has the same axis.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        bounds, whole, piece = cut_of(node), sizes(node.inputs[0]), sizes(node.outputs[0])
        if bounds is None or whole is None or piece is None or node.inputs[0] is None:
            return
        axis, origin = bounds[0], source(node.inputs[0])
        dims = sizes(origin)
        at = None if dims is None else _same_axis(whole, axis, dims)
        if origin is node.inputs[0] or dims is None or at is None or dims[at] != whole[axis]:
            return
        cut = (*dims[:at], piece[axis], *dims[at + 1 :])
        inputs = [origin, *(b.ints(n) for n in (*bounds[1:], at))]
        made = b.op("Slice", inputs, cut, node.outputs[0].dtype)
        b.replace(node.outputs[0], b.reshaped(made, piece))


def _same_axis(dims: tuple[int, ...], axis: int, others: tuple[int, ...]) -> int | None:
    """The axis of another view of the same elements that has as many in front of it and behind."""
    outer, inner = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
    fits = (a for a in range(len(others)) if (math.prod(others[:a]), math.prod(others[a + 1 :])) == (outer, inner))
    return next(fits, None)


class JoinSources(NodeChange):
    """Views joined: their sources joined, if those have the same place to do it.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        shape, out = sizes(node.outputs[0]), node.outputs[0]
        if node.op_type != "Concat" or shape is None or any(v is None for v in node.inputs) or out in b.graph.outputs:
            return
        axis = node.attributes.get_int("axis", 0) % len(shape)
        sources = [source(v) for v in node.inputs if v is not None]
        dims = [d for v in sources if (d := sizes(v)) is not None]
        if sources == list(node.inputs) or len(dims) < len(sources) or len({len(d) for d in dims}) != 1:
            return
        at = _same_axis(shape, axis, dims[0])
        if at is None or len({(*d[:at], *d[at + 1 :]) for d in dims}) != 1:
            return
        total = (*dims[0][:at], sum(d[at] for d in dims), *dims[0][at + 1 :])
        made = b.op("Concat", list(sources), total, out.dtype, axis=at)
        out.replace_all_uses_with(b.reshaped(made, shape))


# ---- products


class ProductsWithBias(NodeChange):
    """A product with a constant matrix, and the bias behind it: one Gemm over all rows.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        if node.op_type != "MatMul":
            return
        weights, taken = constant(node.inputs[1]), sizes(node.inputs[0])
        out, shape = node.outputs[0], sizes(node.outputs[0])
        if weights is None or weights.ndim != 2 or weights.dtype != np.float32 or taken is None or shape is None:
            return
        uses = list(out.uses())
        add = uses[0].node if len(uses) == 1 and uses[0].node.op_type == "Add" else None
        bias = None if add is None else next((v for v in add.inputs if v is not out and v is not None), None)
        array = constant(bias)
        if add is None or array is None or array.shape != (shape[-1],) or sizes(add.outputs[0]) != shape:
            return
        rows, width = int(np.prod(taken[:-1])), taken[-1]
        assert node.inputs[0] is not None
        flat = b.reshaped(node.inputs[0], (rows, width))
        made = b.op("Gemm", [flat, node.inputs[1], bias], (rows, shape[-1]), out.dtype)
        b.replace(add.outputs[0], b.before(add).reshaped(made, shape))


class TakeInBias(NodeChange):
    """A constant added to a product that has no bias yet is one.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        for product, added, shape in _added_to_products(node):
            array = constant(added)
            if array is None or array.dtype != np.float32:
                continue
            if array.size in (1, shape[1]) and array.shape[:-1] in ((), (1,)):  # by channel
                bias = b.constant(f"{node.name}/bias", np.broadcast_to(array.reshape(-1), (shape[1],)))
                _take_in(b, node, product, bias)
                return


class TakeInSum(NodeChange):
    """What is added to a product that has no bias, row by row, is where it begins to sum.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        for product, added, shape in _added_to_products(node):
            if sizes(added) == shape and constant(added) is None:
                _take_in(b, node, product, added)
                return


def _added_to_products(node: ir.Node) -> Iterator[tuple[ir.Node, ir.Value, tuple[int, ...]]]:
    """A Gemm of rows that has no bias and that nobody else reads, what a node adds to it, and the shape of the sum."""
    shape = sizes(node.outputs[0]) if node.op_type == "Add" else None
    if shape is None or len(shape) != 2:
        return
    for x, added in (node.inputs, node.inputs[::-1]):
        product = None if x is None else x.producer()
        if x is None or added is None or product is None or product.op_type != "Gemm" or len(product.inputs) != 2:
            continue
        if x is not added and only_reader(x) and sizes(x) == shape:
            yield product, added, shape


def _take_in(b: Builder, node: ir.Node, product: ir.Node, added: ir.Value) -> None:
    out, attrs = node.outputs[0], {name: a.value for name, a in product.attributes.items() if name != "beta"}
    b.replace(out, b.op("Gemm", [*product.inputs, added], sizes(out), product.outputs[0].dtype, **attrs))


# ---- norms of fixed statistics


class FoldNorm(NodeChange):
    """Scale and shift by channel become part of the (transposed) convolution in front, if only the norm reads it.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        conv = _behind_cuts(node) if node.op_type == "BatchNormalization" else None
        if conv is None or conv.op_type != "ConvTranspose" or (norm := scale_and_shift(node)) is None:
            return
        gain, shift = norm
        weights, bias = (
            constant(conv.inputs[1]),
            constant(conv.inputs[2]) if len(conv.inputs) > 2 else np.zeros_like(gain),
        )
        if weights is None or bias is None or weights.dtype != np.float32:
            return
        groups = conv.attributes.get_int("group", 1)
        split = weights.reshape(groups, -1, *weights.shape[1:])  # [group, in, out, ...]
        scaled = split * gain.reshape(groups, 1, -1, *[1] * (weights.ndim - 2))
        constants = {"weights": scaled.reshape(weights.shape), "bias": bias * gain + shift}
        inputs = [conv.inputs[0], *(b.constant(f"{node.name}/{name}", array) for name, array in constants.items())]
        attrs = {name: a.value for name, a in conv.attributes.items()}
        before = conv.outputs[0]
        before.replace_all_uses_with(b.before(conv).op("ConvTranspose", inputs, sizes(before), before.dtype, **attrs))
        assert node.inputs[0] is not None
        b.replace(node.outputs[0], node.inputs[0])


def _behind_cuts(node: ir.Node) -> ir.Node | None:
    """What makes a node's input, seen through slices; None if anything else reads it on the way."""
    value = node.inputs[0]
    while value is not None and only_reader(value) and (maker := value.producer()) is not None:
        if maker.op_type != "Slice":
            return maker
        whole, cut = sizes(maker.inputs[0]), sizes(value)
        if whole is None or cut is None or whole[1:2] != cut[1:2]:  # a part of the channels
            return None
        value = maker.inputs[0]
    return None


# ---- all of them, in the order in which one makes room for the next

SIMPLIFY = Sequential(
    FoldConstants(),
    DropNeutral(),
    CutOnce(),
    ReadUncut(),
    ReadOverlap(),
    FoldUnfold(),
    FoldNorm(),
    SpreadScale(),
    FoldScale(),
    TurnOnce(),
)  # without what has no effect
TIDY = Sequential(
    ProductsWithBias(),
    TakeInBias(),
    ChainProducts(),
    JoinSummands(),
    SumBlocks(),
    SinkViews(),
    CutSources(),
    JoinSources(),
    OneView(),
    CutOnce(settled=True),
    SplitProducts(),
    JoinHeads(),
    TakeInSum(),
)  # with fewer nodes
