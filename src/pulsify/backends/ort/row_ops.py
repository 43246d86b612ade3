"""Operators on rows: what a value [1, C, T] is as [T, C], and what nodes become of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.traits import traits
from pulsify.optimize.builder import Builder
from pulsify.optimize.views import constant, scale_and_shift

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
    windows: dict[tuple[ir.Value, bytes], ir.Value] = field(default_factory=dict)
    ports: set[str] = field(default_factory=set)
    turned: int = 0
    spared: int = 0  # turns of the model's own that are no longer needed
    convs: int = 0
    at: ir.Node | None = None  # new nodes go in front of it
    made: int = 0

    @property
    def graph(self) -> ir.Graph:
        return self.model.graph

    def constant(self, array: Array) -> ir.Value:
        self.made += 1
        return Builder(self.graph).constant(f"rows/constant_{self.made}", array)

    def ints(self, *numbers: int) -> ir.Value:
        return self.constant(np.array(numbers, np.int64))

    def ops(
        self, op: str, inputs: Sequence[ir.Value | None], shapes: Sequence[Any], dtype: Any, /, **attrs: Any
    ) -> Sequence[ir.Value]:
        self.made += 1
        name = f"rows/{op}_{self.made}"
        return Builder(self.graph, self.at).ops(op, inputs, shapes, dtype, name=name, domain="", **attrs)

    def op(self, op: str, inputs: Sequence[ir.Value | None], shape: Any, dtype: Any, /, **attrs: Any) -> ir.Value:
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
    elif (turned := turned_from(value)) is not None:  # rows already, until someone turned them
        made = work.op("Reshape", [turned, work.ints(time, channels)], (time, channels), value.dtype)
        work.spared += 1
    elif time == 1 or channels == 1:
        made = work.op("Reshape", [value, work.ints(time, channels)], (time, channels), value.dtype)
    else:
        flat = work.op("Reshape", [value, work.ints(channels, time)], (channels, time), value.dtype)
        made = work.op("Transpose", [flat], (time, channels), value.dtype, perm=[1, 0])
        work.turned += 1
    work.rows[value] = made
    return made


def turned_from(value: ir.Value) -> ir.Value | None:
    """[1, T, C] of which this is the transpose."""
    maker = value.producer()
    return maker.inputs[0] if maker is not None and _turns(maker) else None


def _turns(node: ir.Node) -> bool:
    """[1, C, T] to [1, T, C], or back."""
    return node.op_type == "Transpose" and tuple(node.attributes.get_ints("perm", ())) == (0, 2, 1)


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
        if _turns(use.node):
            shape = (1, time, channels)
            work.spared += 1
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
class Probes:
    """A convolution: weights [N, C, K], and the row of every tap of every output frame, [T, K]."""

    weights: ir.Value
    bias: ir.Value | None
    places: Array
    alone: bool  # every channel by itself

    @property
    def dims(self) -> tuple[int, int, int]:
        assert self.weights.const_value is not None
        count, channels, *taps = (int(d) for d in self.weights.const_value.shape if isinstance(d, int))
        return count, channels, taps[0] if taps else 1

    def array(self) -> Array:
        assert self.weights.const_value is not None
        return self.weights.const_value.numpy()


def conv_of(node: ir.Node) -> Probes | None:
    """A convolution along time that rows have something for; a product with a constant in front is one of one tap."""
    if node.op_type == "MatMul":
        return _mixes_channels(node)
    taken, given = frames_of(node.inputs[0]) if node.inputs else None, frames_of(node.outputs[0])
    if node.op_type != "Conv" or taken is None or given is None or given[0] > MOST:
        return None
    constants = [v for v in node.inputs[1:] if v is not None]
    if any(v.const_value is None or v.dtype != ir.DataType.FLOAT or v.is_graph_input() for v in constants):
        return None
    pads, auto = node.attributes.get_ints("pads", (0, 0)), node.attributes.get_string("auto_pad", "NOTSET")
    stride, dilation = node.attributes.get_ints("strides", (1,))[0], node.attributes.get_ints("dilations", (1,))[0]
    count, channels, taps = (int(d) for d in constants[0].const_value.shape)  # type: ignore[union-attr, arg-type]
    places = np.arange(given[0])[:, None] * stride + np.arange(taps) * dilation
    conv = Probes(
        constants[0], constants[1] if len(constants) > 1 else None, places, channels == 1 and count == taken[1] > 1
    )
    if (
        any(pads)
        or auto not in ("NOTSET", "VALID")
        or node.attributes.get_int("group", 1) != (count if conv.alone else 1)
    ):
        return None
    return conv if conv.alone or taps == 1 or given[0] == 1 or channels >= FEWEST else None


def _mixes_channels(node: ir.Node) -> Probes | None:
    """W [N, C] times [1, C, T]."""
    weights, taken, given = node.inputs[0], frames_of(node.inputs[1]), frames_of(node.outputs[0])
    if weights is None or taken is None or given is None or given[0] > MOST or weights.dtype != ir.DataType.FLOAT:
        return None
    if weights.const_value is None or weights.is_graph_input() or len(weights.const_value.shape) != 2:
        return None
    return Probes(weights, None, np.arange(given[0])[:, None], False)


def convolved(work: Work, node: ir.Node, conv: Probes) -> ir.Value:
    """The windows of all frames as rows, times the weights."""
    work.at = node
    given = node.inputs[1] if node.op_type == "MatMul" else node.inputs[0]
    assert given is not None
    x, dtype = as_rows(work, given), node.outputs[0].dtype
    if conv.alone:
        return _alone(work, node, conv, x)
    count, channels, taps = conv.dims
    time = len(conv.places)
    work.convs += 1
    x = _windows(work, x, conv, channels)
    if taps > 1:
        weights = np.ascontiguousarray(conv.array().transpose(0, 2, 1)).reshape(count, taps * channels)
        return work.op("Gemm", _some(x, work.constant(weights), conv.bias), (time, count), dtype, transB=1)
    return work.op("Gemm", _some(x, _matrix(work, conv.weights), conv.bias), (time, count), dtype, transB=1)


def _windows(work: Work, x: ir.Value, conv: Probes, channels: int) -> ir.Value:
    """What each output frame reads, side by side: [T, K * C]. Convolutions that read alike share them."""
    time, taps = conv.places.shape
    key = x, conv.places.tobytes()
    if key in work.windows:
        return work.windows[key]
    rows, made, dtype = int(x.shape[0]), x, x.dtype  # type: ignore[index, arg-type]
    if time == 1 and np.array_equal(conv.places[0], np.arange(taps)):  # one window, in one piece
        if rows > taps:
            made = work.op("Slice", [made, *(work.ints(n) for n in (0, taps, 0, 1))], (taps, channels), dtype)
    elif taps > 1 or rows != time:
        places = work.constant(conv.places.reshape(-1))
        made = work.op("Gather", [made, places], (time * taps, channels), dtype, axis=0)
    if taps > 1:
        made = work.op("Reshape", [made, work.ints(time, taps * channels)], (time, taps * channels), dtype)
    work.windows[key] = made
    return made


def _some(*values: ir.Value | None) -> list[ir.Value]:
    return [v for v in values if v is not None]


def _matrix(work: Work, weights: ir.Value) -> ir.Value:
    """Weights [N, C, 1] as [N, C]. Those in a file of their own stay there."""
    tensor = weights.const_value
    if not isinstance(tensor, ir.ExternalTensor):
        assert tensor is not None
        array = tensor.numpy()
        return work.constant(array.reshape(array.shape[:2]))
    shape = ir.Shape(list(tensor.shape)[:2])
    name = f"{weights.name}/matrix"
    flat = ir.ExternalTensor(
        tensor.location, tensor.offset, tensor.length, tensor.dtype, shape=shape, name=name, base_dir=tensor.base_dir
    )
    return Builder(work.graph).tensor(name, flat)


def _alone(work: Work, node: ir.Node, conv: Probes, x: ir.Value) -> ir.Value:
    """Every channel by itself: one frame is a sum of rows; several are an image of one line, which has good kernels.

    Turning them for that is not counted: it costs less than the runtime's convolution of channels in one dimension.
    """
    dtype, (time, taps) = node.outputs[0].dtype, conv.places.shape
    rows, channels = (int(d) for d in x.shape)  # type: ignore[union-attr, arg-type]
    kernel = conv.array()
    if time == 1 and rows == taps:
        scaled = work.op("Mul", [x, work.constant(np.ascontiguousarray(kernel[:, 0].T))], (rows, channels), dtype)
        total = work.op("ReduceSum", [scaled, work.ints(0)], (1, channels), dtype, keepdims=1)
        return total if conv.bias is None else work.op("Add", [total, conv.bias], (1, channels), dtype)
    stride, dilation = (node.attributes.get_ints(name, (1,))[0] for name in ("strides", "dilations"))
    turned = work.op("Transpose", [x], (channels, rows), dtype, perm=[1, 0])
    image = work.op("Reshape", [turned, work.ints(1, channels, 1, rows)], (1, channels, 1, rows), dtype)
    inputs = _some(image, work.constant(kernel[:, :, None]), conv.bias)
    made = work.op(
        "Conv", inputs, (1, channels, 1, time), dtype,
        group=channels, kernel_shape=[1, taps], strides=[1, stride], dilations=[1, dilation],
    )  # fmt: skip
    flat = work.op("Reshape", [made, work.ints(channels, time)], (channels, time), dtype)
    return work.op("Transpose", [flat], (time, channels), dtype, perm=[1, 0])


# ---- operators that pass frames on


def passes(node: ir.Node) -> bool:
    """Does it do the same to rows, on other axes?"""
    if not node.outputs or any(frames_of(o) is None for o in node.outputs):
        return False
    if traits(node.op_type).elementwise:
        return len(node.outputs) == 1 and all(v is None or _spreads(v) for v in node.inputs)
    if frames_of(node.inputs[0]) is None or any(v is None or constant(v) is None for v in node.inputs[1:]):
        return node.op_type == "Concat" and _axis(node) in AXES and all(frames_of(v) for v in node.inputs)
    if node.op_type in ("Concat", "Split"):
        return _axis(node) in AXES and all(frames_of(v) for v in node.inputs[:1])
    if node.op_type == "Slice":
        return len(node.inputs) == 5 and all(a in AXES for a in _numbers(node.inputs[3]))
    return node.op_type == "BatchNormalization" and scale_and_shift(node) is not None


def _axis(node: ir.Node) -> int:
    return node.attributes.get_int("axis", 0)


def _numbers(value: ir.Value | None) -> list[int]:
    assert value is not None and value.const_value is not None
    return [int(n) for n in value.const_value.numpy().reshape(-1)]


def _spreads(value: ir.Value) -> bool:
    """Frames, or a constant that broadcasts against them."""
    array = constant(value)
    if array is None:
        return frames_of(value) is not None
    return array.ndim < 3 or (array.ndim == 3 and array.shape[0] == 1)


def passed(work: Work, node: ir.Node) -> Sequence[ir.Value]:
    """The same on rows."""
    work.at = node
    shapes, dtype = [frames_of(o) for o in node.outputs], node.outputs[0].dtype
    attrs = {name: a.value for name, a in node.attributes.items()}
    if traits(node.op_type).elementwise:
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
    array = constant(value)
    return array is not None and array.ndim == 0


def _scaled(work: Work, node: ir.Node) -> ir.Value:
    """A batch norm of fixed statistics: part of the product before it, or a scale and a shift."""
    norm = scale_and_shift(node)
    assert norm is not None
    gain, shift = norm
    before, x = _given(node), as_rows(work, _given(node))
    shape, dtype, product = frames_of(node.outputs[0]), node.outputs[0].dtype, x.producer()
    if product is not None and product.op_type == "Gemm" and len(list(before.uses())) == 1:
        weights, bias = (constant(v) for v in (*product.inputs[1:], None)[:2])
        assert weights is not None
        weights = weights.T if product.attributes.get_int("transB", 0) else weights
        shift = shift if bias is None else shift + bias * gain
        return work.op("Gemm", [product.inputs[0], work.constant(weights * gain), work.constant(shift)], shape, dtype)
    scaled = work.op("Mul", [x, work.constant(gain)], shape, dtype)
    return work.op("Add", [scaled, work.constant(shift)], shape, dtype)


# ---- sums of products


def merge_sums(work: Work) -> None:
    """a.A + b.B + ... is one product, [a b ...] times A over B over ...; two products add the one to the other."""
    for root in [n for n in work.graph if n.op_type == "Add" and not _is_summand(n.outputs[0])]:
        products, others = _summands(root)
        biases = [b for p in products if len(p.inputs) > 2 and (b := constant(p.inputs[2])) is not None]
        work.at, out = root, root.outputs[0]
        whole = [v for v in others if v.shape == out.shape]
        if not products or (len(products) == 1 and (biases or not whole)):
            continue
        added = work.constant(np.array(sum(biases))) if biases else whole[0] if whole else None
        inputs, time = [p.inputs[0] for p in products], int(out.shape[0])  # type: ignore[index, arg-type]
        weights = [_weights(p) for p in products]
        if len(products) > 2:
            rows = np.concatenate(weights)
            inputs, weights = [work.op("Concat", inputs, (time, len(rows)), out.dtype, axis=1)], [rows]
        total = added
        for x, matrix in zip(inputs, weights, strict=True):
            total = work.op("Gemm", _some(x, work.constant(matrix), total), (time, matrix.shape[1]), out.dtype)
        for other in others:
            if other is not added:
                total = work.op("Add", [total, other], out.shape, out.dtype)
        assert total is not None
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


def _weights(product: ir.Node) -> Array:
    array = constant(product.inputs[1])
    assert array is not None
    return array.T if product.attributes.get_int("transB", 0) else array


def _plain(product: ir.Node) -> bool:
    tensor = None if product.inputs[1] is None else product.inputs[1].const_value
    return tensor is not None and not isinstance(tensor, ir.ExternalTensor) and set(product.attributes) <= {"transB"}
