"""Fused operators as the plain nodes they stand for.

Operators of ONNX itself come with their own definition as a function of other operators, which the onnx package hands
out; the few of ONNX Runtime's own that matter are written down here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from pulsify.core.errors import NotStreamable
from pulsify.frontend.model import Node

MICROSOFT = "com.microsoft"
FUSED = {  # with what docs/operators.md says of them
    ("", "Attention"): "written out by ONNX's own definition; then the rules of its parts hold",
    ("", "RotaryEmbedding"): "written out by ONNX's own definition; then the rules of its parts hold",
    ("", "CastLike"): "a Cast to the type of its second input",
    ("", "Trilu"): "of data: what the places of its rows and columns show, and zeros",
    (MICROSOFT, "MultiHeadAttention"): "written out: separate 3-D queries, keys and values, no past, no padding mask",
    (MICROSOFT, "RotaryEmbedding"): "written out as ONNX's own",
}


RECURRENT = ("LSTM", "GRU", "RNN")


def stands_for_others(node: Node) -> bool:
    """Is it written out as other nodes?

    Recurrences with the batch in front are: no runtime takes those. So are transposed convolutions without a stride,
    which are convolutions read backwards: those need no frames beyond their own, and are quicker.
    """
    if node.op in RECURRENT:
        return bool(node.attr("layout", 0))
    return (node.domain, node.op) in FUSED or (node.op == "ConvTranspose" and _spreads_nothing(node))


def only_of_data(node: Node) -> bool:
    """Is it written out only if it reads data? A mask made by Trilu is known unmodified."""
    return node.op == "Trilu" and not node.domain


def written_out(
    node: Node, types: Sequence[onnx.TypeProto], version: int
) -> tuple[list[Node], dict[str, ir.TensorProtocol]]:
    """The plain nodes that make the same outputs, and the constants they need. types: of its inputs."""
    nodes: list[Node] = []
    constants: dict[str, ir.TensorProtocol] = {}
    for proto in _named(parts(node, types), node):
        if proto.op_type == "Constant":
            constants[proto.output[0]] = ir.from_proto(_constant(proto))
            continue
        attrs = {a.name: ir.serde.deserialize_attribute(a).value for a in proto.attribute}
        nodes.append(
            Node(
                proto.name, proto.op_type, proto.domain, version, tuple(proto.input), tuple(proto.output), attrs, proto
            )
        )
    return nodes, constants


def _constant(proto: onnx.NodeProto) -> onnx.TensorProto:
    value = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    if "value" in value:
        return value["value"]
    (content,) = value.values()
    dtype = np.float32 if "float" in next(iter(value)) else np.int64
    return numpy_helper.from_array(np.asarray(content, dtype))


def _named(protos: Iterable[onnx.NodeProto], node: Node) -> list[onnx.NodeProto]:
    out = []
    for i, proto in enumerate(protos):
        itself = proto.op_type == node.op or proto.name == node.name  # refusals name it as the model does
        proto.name = node.name if itself else f"{node.name}/{proto.op_type}_{i}"
        out.append(proto)
    return out


def parts(node: Node, types: Sequence[onnx.TypeProto]) -> list[onnx.NodeProto]:
    """The nodes that make the same outputs from the same inputs, in order."""
    if node.domain == MICROSOFT:
        return _multi_head(node, types) if node.op == "MultiHeadAttention" else _rotary(node, types)
    if node.op in RECURRENT:
        return _batch_second(node)
    if node.op == "ConvTranspose":
        return _backwards(node, types)
    if node.op == "CastLike":  # reads the other input's type, not its values
        return [helper.make_node("Cast", [node.inputs[0]], node.outputs, to=types[1].tensor_type.elem_type)]
    if node.op == "Trilu":
        return _triangle(node, types[0])
    schema = onnx.defs.get_schema(node.op, node.version, node.domain)
    body = schema.get_context_dependent_function(node.proto.SerializeToString(), [t.SerializeToString() for t in types])
    function = onnx.FunctionProto()
    function.ParseFromString(body)
    names = dict(zip(function.input, node.inputs, strict=False))
    names.update({f: o for f, o in zip(function.output, node.outputs, strict=False) if o})

    def outer(name: str, formal: bool) -> str:
        if not name or name in names:
            return names.get(name, "")
        return "" if formal and name in function.input else f"{node.name}/{name}"

    out = []
    for inner in function.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        del copy.input[:], copy.output[:]
        copy.input.extend(outer(i, True) for i in inner.input)
        copy.output.extend(outer(o, False) for o in inner.output)
        out.append(copy)
    return _without_rest(node, out) if _rotates_all(node, types) else out


def _rotates_all(node: Node, types: Sequence[onnx.TypeProto]) -> bool:
    """Does it turn whole heads, as nearly all models do?"""
    if node.op != "RotaryEmbedding":
        return False
    dims, turned = _dims(types[0]), _int(node, "rotary_embedding_dim")
    head = dims[3] if len(dims) == 4 else dims[2] // max(_int(node, "num_heads"), 1)
    return turned in (0, head)


def _int(node: Node, name: str) -> int:
    return next((a.i for a in node.proto.attribute if a.name == name), 0)


def _without_rest(node: Node, nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """ONNX's definition splits off what is not turned and joins it again: nothing, and a size of 0 is no size here."""
    rest = f"{node.name}/XNoRotate"
    out = []
    for n in nodes:
        if rest in n.output or rest in n.input:
            n = helper.make_node("Identity", n.input[:1], n.output[:1])
        out.append(n)
    return out


def _spreads_nothing(node: Node) -> bool:
    """Are its strides one, and its padding such that a convolution has the same frames?"""
    kernel, pads = node.attr("kernel_shape", ()), node.attr("pads", ())
    if not kernel:
        return False
    wide = [d * (k - 1) for k, d in zip(kernel, node.attr("dilations", (1,) * len(kernel)), strict=True)]
    return (
        set(node.attr("strides", (1,))) == {1}
        and not any(node.attr("output_padding", ()))
        and not node.attr("output_shape", ())
        and node.attr("auto_pad", "NOTSET") in ("NOTSET", b"NOTSET")
        and all(p <= w for p, w in zip(pads, wide * 2, strict=False))
    )


def _backwards(node: Node, types: Sequence[onnx.TypeProto]) -> list[onnx.NodeProto]:
    """y[t] = sum of x[t - k] w[k]: a convolution with the taps in reverse, padded by what the kernel reaches over."""
    w, groups, (inputs, outputs, *kernel) = _Writer(node), node.attr("group", 1), _dims(types[1])
    axes = range(len(kernel))
    dilations = list(node.attr("dilations", (1,) * len(kernel)))
    pads = node.attr("pads", (0,) * (2 * len(kernel)))
    split = w.op("Reshape", node.inputs[1], w.constant([groups, inputs // groups, outputs, *kernel]))
    turned = w.op("Transpose", split, perm=[0, 2, 1, *(a + 3 for a in axes)])
    joined = w.op("Reshape", turned, w.constant([groups * outputs, inputs // groups, *kernel]))
    ends = (w.constant([n] * len(kernel)) for n in (-1, -(1 << 31)))
    weights = w.op("Slice", joined, *ends, w.constant([a + 2 for a in axes]), w.constant([-1] * len(kernel)))
    wide = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    w.op(
        "Conv", node.inputs[0], weights, *node.inputs[2:], out=node.outputs[0],
        group=groups, dilations=dilations, kernel_shape=kernel, strides=[1] * len(kernel),
        pads=[a - p for a, p in zip(wide * 2, pads, strict=True)],
    )  # fmt: skip
    w.nodes[-1].name = node.name  # refusals name it as the model does
    return w.nodes


def _triangle(node: Node, of: onnx.TypeProto) -> list[onnx.NodeProto]:
    """Entries on one side of a diagonal: a mask like any other, made of where rows and columns stand."""
    w, x = _Writer(node), node.inputs[0]
    shape, zero = w.op("Shape", x), w.constant(0)
    row, col = (
        w.op("Range", zero, w.op("Gather", shape, w.constant(axis)), w.constant(1)) for axis in (-2, -1)
    )  # fmt: skip
    ahead = w.op("Sub", col, w.op("Unsqueeze", row, w.constant([1])))
    kind = "GreaterOrEqual" if node.attr("upper", 1) else "LessOrEqual"
    kept = w.op(kind, ahead, node.input(1) or zero)
    dtype = helper.tensor_dtype_to_np_dtype(of.tensor_type.elem_type)
    w.op("Where", kept, x, w.constant(0, dtype), out=node.outputs[0])
    w.nodes[-1].name = node.name  # refusals name it as the model does
    return w.nodes


def _batch_second(node: Node) -> list[onnx.NodeProto]:
    """layout=1, [batch, time, ...], as layout=0, [time, batch, ...], between transposes."""
    before, after = {0: [1, 0, 2], 5: [1, 0, 2], 6: [1, 0, 2]}, ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])
    inner = onnx.NodeProto()
    inner.CopyFrom(node.proto)
    kept = [a for a in inner.attribute if a.name != "layout"]
    del inner.attribute[:], inner.input[:], inner.output[:]
    inner.attribute.extend(kept)
    inner.input.extend(f"{node.name}/{i}/in" if name and i in before else name for i, name in enumerate(node.inputs))
    inner.output.extend(f"{node.name}/{i}/out" if name else "" for i, name in enumerate(node.outputs))
    turn = [
        helper.make_node("Transpose", [name], [inner.input[i]], perm=before[i])
        for i, name in enumerate(node.inputs)
        if name and i in before
    ]
    back = [
        helper.make_node("Transpose", [inner.output[i]], [name], perm=after[i])
        for i, name in enumerate(node.outputs)
        if name
    ]
    return [*turn, inner, *back]


class _Writer:
    """Writes nodes one after the other, naming their results."""

    def __init__(self, node: Node) -> None:
        self.prefix, self.nodes = node.name, list[onnx.NodeProto]()

    def op(self, op: str, *inputs: str, out: str = "", **attrs: Any) -> str:
        name = out or f"{self.prefix}/{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))


def _dims(t: onnx.TypeProto) -> list[int]:
    return [d.dim_value for d in t.tensor_type.shape.dim]


def _multi_head(node: Node, types: Sequence[onnx.TypeProto]) -> list[onnx.NodeProto]:
    """com.microsoft MultiHeadAttention on separate queries, keys and values [B, T, heads * d]."""
    absent = [node.input(i) for i in (4, 6, 7)]  # key padding mask, past key, past value
    if any(absent) or not node.input(2) or len(_dims(types[0])) != 3 or any(o for o in node.outputs[1:]):
        raise NotStreamable(
            "only separate 3-D queries, keys and values without past or padding mask are known",
            node=node.name,
            op=node.op,
            hint="export the attention with standard ONNX operators",
        )
    w, heads = _Writer(node), node.attr("num_heads")
    dtype = helper.tensor_dtype_to_np_dtype(types[0].tensor_type.elem_type)
    names = list(node.inputs[:3])
    sizes = [_dims(t)[2] for t in types[:3]]
    if node.input(3):  # one bias for all three, one after the other
        ends = np.cumsum([0, *sizes])
        for i in range(3):
            cut = w.op("Slice", node.inputs[3], w.constant([ends[i]]), w.constant([ends[i + 1]]), w.constant([0]))
            names[i] = w.op("Add", names[i], cut)
    q, k, v = (
        w.op("Transpose", w.op("Reshape", n, w.constant([0, 0, heads, s // heads])), perm=[0, 2, 1, 3])
        for n, s in zip(names, sizes, strict=True)
    )
    scale = node.attr("scale", 0.0) or 1 / np.sqrt(sizes[0] // heads)
    scores = w.op("MatMul", w.op("Mul", q, w.constant(scale, dtype)), w.op("Transpose", k, perm=[0, 1, 3, 2]))
    if node.input(5):
        scores = w.op("Add", scores, node.inputs[5])
    if node.attr("unidirectional", 0):
        raise NotStreamable("unidirectional is not supported", node=node.name, op=node.op, hint="use an explicit mask")
    mixed = w.op("MatMul", w.op("Softmax", scores, axis=-1), v)
    back = w.op("Transpose", mixed, perm=[0, 2, 1, 3])
    w.op("Reshape", back, w.constant([0, 0, sizes[2]]), out=node.outputs[0])
    return w.nodes


def _rotary(node: Node, types: Sequence[onnx.TypeProto]) -> list[onnx.NodeProto]:
    """com.microsoft RotaryEmbedding has its inputs in another order than ONNX's own."""
    plain = helper.make_node(
        "RotaryEmbedding",
        [node.inputs[0], node.inputs[2], node.inputs[3], node.inputs[1]],
        list(node.outputs),
        interleaved=node.attr("interleaved", 0),
        num_heads=node.attr("num_heads", 0),
        rotary_embedding_dim=node.attr("rotary_embedding_dim", 0),
    )
    moved = Node(node.name, plain.op_type, "", 23, tuple(plain.input), node.outputs, {}, plain)
    return parts(moved, [types[0], types[2], types[3], types[1]])
