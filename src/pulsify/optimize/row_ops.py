"""Operators on rows: what a value [1, C, T] is as [T, C], and what nodes become of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.rules.pointwise import ELEMENTWISE

Array = np.ndarray[Any, Any]
MOST = 32  # frames of a convolution's output beyond which columns are as quick
FEWEST = 8  # channels below which a window of rows costs more to gather than the product takes
AXES = {1: 1, 2: 0, -2: 1, -1: 0}  # of a value [1, C, T]: where they are in [T, C]


@dataclass(eq=False)
class Work:
    """A graph being rewritten. rows: what stands for a value; ports: those that are rows; turned: nodes that turn."""

    model: ir.Model
    free: frozenset[str]  # ports that may be rows
    rows: dict[ir.Value, ir.Value] = field(default_factory=dict)
    ports: set[str] = field(default_factory=set)
    turned: int = 0
    convs: int = 0
    at: ir.Node | None = None  # new nodes go in front of it
    made: int = 0

    @property
    def graph(self) -> ir.Graph:
        return self.model.graph

    def constant(self, array: Array) -> ir.Value:
        self.made += 1
        value = ir.Value(name=f"rows/constant_{self.made}", const_value=ir.tensor(array))
        value.shape, value.dtype = ir.Shape(array.shape), ir.DataType.from_numpy(array.dtype)
        self.graph.register_initializer(value)
        return value

    def ints(self, *numbers: int) -> ir.Value:
        return self.constant(np.array(numbers, np.int64))

    def ops(
        self, op: str, inputs: Sequence[ir.Value | None], shapes: Sequence[Any], dtype: Any, **attrs: Any
    ) -> Sequence[ir.Value]:
        self.made += 1
        node = ir.node(op, inputs, attrs, num_outputs=len(shapes), name=f"rows/{op}_{self.made}")
        for i, (out, shape) in enumerate(zip(node.outputs, shapes, strict=True)):
            out.name, out.shape, out.dtype = f"{node.name}/{i}", ir.Shape(shape), dtype
        if self.at is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(self.at, [node])
        return node.outputs

    def op(self, op: str, inputs: Sequence[ir.Value | None], shape: Any, dtype: Any, **attrs: Any) -> ir.Value:
        return self.ops(op, inputs, [shape], dtype, **attrs)[0]


def frames_of(value: ir.Value | None) -> tuple[int, int] | None:
    """(T, C) of a value [1, C, T], or None if it is none."""
    if value is None or value.shape is None or len(value.shape) != 3:
        return None
    batch, channels, time = value.shape
    return (time, channels) if batch == 1 and isinstance(channels, int) and isinstance(time, int) else None


# ---- turning


def as_rows(work: Work, value: ir.Value) -> ir.Value:
    """The value as rows: known already, a port, a constant, or turned here."""
    if value in work.rows:
        return work.rows[value]
    if value.const_value is not None and value not in work.graph.inputs:
        return work.constant(_turned(value.const_value.numpy()))
    frames = frames_of(value)
    assert frames is not None
    time, channels = frames
    if value in work.graph.inputs and value.name in work.free:
        made = ir.val(str(value.name), value.dtype, ir.Shape([time, channels]))
        work.graph.inputs[work.graph.inputs.index(value)] = made
        value.name = f"{value.name}/columns"
        work.ports.add(str(made.name))
    elif (turned := _turned_from(value)) is not None:  # rows already, until someone turned them
        made = work.op("Reshape", [turned, work.ints(time, channels)], (time, channels), value.dtype)
    elif time == 1 or channels == 1:
        made = work.op("Reshape", [value, work.ints(time, channels)], (time, channels), value.dtype)
    else:
        flat = work.op("Reshape", [value, work.ints(channels, time)], (channels, time), value.dtype)
        made = work.op("Transpose", [flat], (time, channels), value.dtype, perm=[1, 0])
        work.turned += 1
    work.rows[value] = made
    return made


def _turned_from(value: ir.Value) -> ir.Value | None:
    """[1, T, C] of which this is the transpose."""
    maker = value.producer()
    turns = maker is not None and maker.op_type == "Transpose" and maker.attributes.get_ints("perm", ()) == (0, 2, 1)
    return maker.inputs[0] if turns and maker is not None else None


def _turned(array: Array) -> Array:
    """A constant that broadcasts against [1, C, T], for [T, C]."""
    if array.ndim == 0:
        return array
    return np.ascontiguousarray(array.reshape((1,) * (3 - array.ndim) + array.shape)[0].T)


def turned_back(work: Work, value: ir.Value) -> None:
    """Whoever still takes this value takes what is made of its rows."""
    rows, frames = work.rows[value], frames_of(value)
    assert frames is not None
    time, channels = frames
    work.at = _following(work.graph, rows)
    for use in list(value.uses()):
        if use.node.op_type == "Transpose" and tuple(use.node.attributes.get_ints("perm", ())) == (0, 2, 1):
            shape = (1, time, channels)
            use.node.outputs[0].replace_all_uses_with(work.op("Reshape", [rows, work.ints(*shape)], shape, value.dtype))
    if value.uses() or value in work.graph.outputs:
        if time > 1 and channels > 1:
            rows = work.op("Transpose", [rows], (channels, time), value.dtype, perm=[1, 0])
            work.turned += 1
        shape = (1, channels, time)
        back = work.op("Reshape", [rows, work.ints(*shape)], shape, value.dtype)
        name = value.name
        value.replace_all_uses_with(back, replace_graph_outputs=True)
        value.name, back.name = f"{name}/before", name


def _following(graph: ir.Graph, value: ir.Value) -> ir.Node | None:
    """The first node that may use a value."""
    nodes, maker = list(graph), value.producer()
    at = 0 if maker is None else nodes.index(maker) + 1
    return nodes[at] if at < len(nodes) else None


# ---- convolutions


@dataclass(frozen=True)
class Taps:
    """A convolution's weights as a matrix, and the row of every tap of every output frame."""

    weights: Array  # [K * C, N]
    bias: Array | None
    places: Array  # [T, K]


def conv_of(node: ir.Node) -> Taps | None:
    """A convolution along time that a product of rows can stand for."""
    taken, given = frames_of(node.inputs[0]) if node.inputs else None, frames_of(node.outputs[0])
    if node.op_type != "Conv" or taken is None or given is None or given[0] > MOST:
        return None
    constants = [None if v is None else v.const_value for v in node.inputs[1:]]
    if any(v is not None and c is None for v, c in zip(node.inputs[1:], constants, strict=True)):
        return None
    group = node.attributes.get_int("group", 1)
    pads = node.attributes.get_ints("pads", (0, 0))
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    assert constants[0] is not None
    weights = constants[0].numpy()
    if group != 1 or any(pads) or auto not in ("NOTSET", "VALID") or weights.dtype != np.float32:
        return None
    count, channels, taps = weights.shape
    if taps > 1 and channels < FEWEST:
        return None
    stride, dilation = node.attributes.get_ints("strides", (1,))[0], node.attributes.get_ints("dilations", (1,))[0]
    places = np.arange(given[0])[:, None] * stride + np.arange(taps) * dilation
    bias = constants[1].numpy() if len(constants) > 1 and constants[1] is not None else None
    return Taps(np.ascontiguousarray(weights.transpose(2, 1, 0)).reshape(taps * channels, count), bias, places)


def convolved(work: Work, node: ir.Node, conv: Taps) -> ir.Value:
    """The windows of all frames as rows, times the weights."""
    work.at = node
    x, dtype = as_rows(work, _given(node)), node.outputs[0].dtype
    time, taps = conv.places.shape
    channels = conv.weights.shape[0] // taps
    if taps > 1 or frames_of(_given(node)) != (time, channels):
        x = work.op("Gather", [x, work.constant(conv.places.reshape(-1))], (time * taps, channels), dtype, axis=0)
        if taps > 1:
            x = work.op("Reshape", [x, work.ints(time, taps * channels)], (time, taps * channels), dtype)
    inputs = [x, work.constant(conv.weights), *([work.constant(conv.bias)] if conv.bias is not None else [])]
    return work.op("Gemm", inputs, (time, conv.weights.shape[1]), dtype)


# ---- operators that pass frames on


def passes(node: ir.Node) -> bool:
    """Does it do the same to rows, on other axes?"""
    if not node.outputs or any(frames_of(o) is None for o in node.outputs):
        return False
    if node.op_type in ELEMENTWISE:
        return len(node.outputs) == 1 and all(v is None or _spreads(v) for v in node.inputs)
    if frames_of(node.inputs[0]) is None or any(v is None or v.const_value is None for v in node.inputs[1:]):
        return node.op_type == "Concat" and _axis(node) in AXES and all(frames_of(v) for v in node.inputs)
    if node.op_type in ("Concat", "Split"):
        return _axis(node) in AXES and all(frames_of(v) for v in node.inputs[:1])
    if node.op_type == "Slice":
        return len(node.inputs) == 5 and all(a in AXES for a in _numbers(node.inputs[3]))
    return node.op_type == "BatchNormalization" and len(node.outputs) == 1


def _axis(node: ir.Node) -> int:
    return node.attributes.get_int("axis", 0)


def _numbers(value: ir.Value | None) -> list[int]:
    assert value is not None and value.const_value is not None
    return [int(n) for n in value.const_value.numpy().reshape(-1)]


def _spreads(value: ir.Value) -> bool:
    """Frames, or a constant that broadcasts against them."""
    if value.const_value is None:
        return frames_of(value) is not None
    dims = value.const_value.shape
    return len(dims) < 3 or (len(dims) == 3 and dims[0] == 1)


def passed(work: Work, node: ir.Node) -> Sequence[ir.Value]:
    """The same on rows."""
    work.at = node
    shapes, dtype = [frames_of(o) for o in node.outputs], node.outputs[0].dtype
    attrs = {name: a.value for name, a in node.attributes.items()}
    if node.op_type in ELEMENTWISE:
        inputs = [None if v is None else v if _scalar(v) else as_rows(work, v) for v in node.inputs]
    elif node.op_type == "BatchNormalization":
        return [_scaled(work, node)]
    elif node.op_type == "Slice":
        axes = work.ints(*(AXES[a] for a in _numbers(node.inputs[3])))
        inputs = [as_rows(work, _given(node)), *node.inputs[1:3], axes, node.inputs[4]]
    else:
        attrs["axis"] = AXES[_axis(node)]
        frames = len(node.inputs) if node.op_type == "Concat" else 1
        inputs = [as_rows(work, v) if v is not None and i < frames else v for i, v in enumerate(node.inputs)]
    return work.ops(node.op_type, inputs, shapes, dtype, **attrs)


def _given(node: ir.Node) -> ir.Value:
    assert node.inputs[0] is not None
    return node.inputs[0]


def _scalar(value: ir.Value) -> bool:
    return value.const_value is not None and len(value.const_value.shape) == 0


def _scaled(work: Work, node: ir.Node) -> ir.Value:
    """A batch norm of fixed statistics: part of the product before it, or a scale and a shift."""
    gain, shift, mean, variance = (v.const_value.numpy() for v in node.inputs[1:5] if v and v.const_value)
    gain = gain / np.sqrt(variance + np.float32(node.attributes.get_float("epsilon", 1e-5)))
    shift = shift - mean * gain
    before, x = _given(node), as_rows(work, _given(node))
    shape, dtype, product = frames_of(node.outputs[0]), node.outputs[0].dtype, x.producer()
    if product is not None and product.op_type == "Gemm" and len(list(before.uses())) == 1:
        weights, bias = (_array(v) for v in (*product.inputs[1:], None)[:2])
        assert weights is not None
        shift = shift if bias is None else shift + bias * gain
        return work.op("Gemm", [product.inputs[0], work.constant(weights * gain), work.constant(shift)], shape, dtype)
    scaled = work.op("Mul", [x, work.constant(gain)], shape, dtype)
    return work.op("Add", [scaled, work.constant(shift)], shape, dtype)


def _array(value: ir.Value | None) -> Array | None:
    return None if value is None or value.const_value is None else value.const_value.numpy()


# ---- sums of products


def merge_sums(work: Work) -> None:
    """a.A + b.B + ... is one product: [a b ...] times A over B over ..."""
    for root in [n for n in work.graph if n.op_type == "Add" and not _is_summand(n.outputs[0])]:
        products, others = _summands(root)
        if len(products) < 2:
            continue
        work.at, out = root, root.outputs[0]
        weights = np.concatenate([a for p in products if (a := _array(p.inputs[1])) is not None])
        biases = [b for p in products if len(p.inputs) > 2 and (b := _array(p.inputs[2])) is not None]
        inputs = [p.inputs[0] for p in products]
        time = int(out.shape[0])  # type: ignore[index, arg-type]
        joined = work.op("Concat", inputs, (time, weights.shape[0]), out.dtype, axis=1)
        bias = [work.constant(np.array(sum(biases)))] if biases else []
        total = work.op("Gemm", [joined, work.constant(weights), *bias], (time, weights.shape[1]), out.dtype)
        for other in others:
            total = work.op("Add", [total, other], out.shape, out.dtype)
        out.replace_all_uses_with(total)


def _is_summand(value: ir.Value) -> bool:
    uses = list(value.uses())
    return len(uses) == 1 and uses[0].node.op_type == "Add" and uses[0].node.outputs[0].shape == value.shape


def _summands(node: ir.Node) -> tuple[list[ir.Node], list[ir.Value]]:
    """The products and the other values that a tree of sums is made of."""
    products: list[ir.Node] = []
    others: list[ir.Value] = []
    for v in node.inputs:
        assert v is not None
        maker = v.producer()
        if maker is not None and _is_summand(v) and maker.op_type == "Add":
            inner = _summands(maker)
            products, others = products + inner[0], others + inner[1]
        elif maker is not None and _is_summand(v) and maker.op_type == "Gemm" and _plain(maker):
            products.append(maker)
        else:
            others.append(v)
    return products, others


def _plain(product: ir.Node) -> bool:
    return _array(product.inputs[1]) is not None and not product.attributes
