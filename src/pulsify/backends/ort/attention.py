"""Scores, bias, softmax and values in one: ONNX Runtime's own MultiHeadAttention, for the form sessions run.

    Q . K' [* scale] [+ bias] -> Softmax -> . V        [B,H,q,d] . [B,H,k,d]'  ->  [B,H,q,k]  ->  [B,H,q,d]

It computes the same products in the same order (equal to the last bit), in one node instead of five to nine.
Masks that hide by selection (Where) stay as they are: adding minus infinity is not the same if a score is not finite.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import PassResult, PostconditionError

from pulsify.optimize.builder import Builder
from pulsify.optimize.order import permutation
from pulsify.optimize.rewriting import Change

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class _Found:
    """One attention: keys and values [B,H,k,d], the turn [B,q,H,d] -> [B,H,q,d] of the queries and the one back."""

    split: ir.Node
    k: ir.Value
    v: ir.Value
    bias: ir.Value | None
    scale: float
    merge: ir.Node


class FuseAttention(Change[PassResult]):
    """Fuses in place, where the runtime's operator does just the same.

    Requires: nothing; only what has known heads, sizes and ranks is fused.
    Ensures: the runtime's domain is imported if a node is of it; nodes stand behind what they read.
    """

    def call(self, model: ir.Model) -> PassResult:
        found = [f for node in model.graph if node.op_type == "Softmax" and (f := _match(node)) is not None]
        for f in found:
            _replace(Builder(model.graph, f.merge), f)
        if found:
            from onnx_ir.passes.common import RemoveUnusedNodesPass

            model.graph.opset_imports[MICROSOFT] = 1
            RemoveUnusedNodesPass()(model)
        return PassResult(model, bool(found))

    def ensures(self, model: ir.Model) -> None:
        super().ensures(model)
        if MICROSOFT not in model.graph.opset_imports and any(n.domain == MICROSOFT for n in model.graph):
            raise PostconditionError(f"the graph does not import {MICROSOFT}")


def _match(softmax: ir.Node) -> _Found | None:
    end = _only_user(softmax.outputs[0])
    x, v = softmax.inputs[0], None
    if end is not None and end.op_type == "MatMul" and end.inputs[0] is softmax.outputs[0]:
        v = end.inputs[1]
    axis = softmax.attributes.get("axis")
    if x is None or v is None or end is None or _rank(x) != 4 or (axis and axis.as_int() not in (-1, 3)):
        return None
    bias, x = _bias(x)
    scale, x = _scale(x)
    product = x.producer()
    if product is None or product.op_type != "MatMul" or _only_user(x) is None:
        return None
    q, kt = product.inputs
    k = _untransposed(kt)
    if q is None or k is None or not _heads_agree(q, k, v):
        return None
    split, merge = q.producer(), _only_user(end.outputs[0])
    if split is None or merge is None or not _turns_heads(split) or not _turns_heads(merge):
        return None  # turning heads to and fro for it costs more than it saves
    return _Found(split, k, v, bias, scale, merge)


def _rank(value: ir.Value | None) -> int | None:
    return len(value.shape) if value is not None and value.shape is not None else None


def _only_user(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _bias(x: ir.Value) -> tuple[ir.Value | None, ir.Value]:
    """x = scores + bias, if it is that and the bias has a shape the operator takes: [1 or B, 1 or H, q, k]."""
    node = x.producer()
    if node is None or node.op_type != "Add" or _only_user(x) is None or x.shape is None:
        return None, x
    for scores, bias in (node.inputs, node.inputs[::-1]):
        made = scores.producer() if scores is not None else None
        if made is None or bias is None or scores is None or made.op_type not in ("MatMul", "Mul", "Div"):
            continue
        if bias.shape is None or scores.shape is None or len(bias.shape) != 4 or tuple(scores.shape) != tuple(x.shape):
            continue
        if tuple(bias.shape)[2:] == tuple(x.shape)[2:] and all(bias.shape[i] in (1, x.shape[i]) for i in (0, 1)):
            return bias, scores
    return None, x


def _scale(x: ir.Value) -> tuple[float, ir.Value]:
    """x = scores * scale, or divided by it (checked to come out the same to the last bit)."""
    node = x.producer()
    if node is None or node.op_type not in ("Mul", "Div") or _only_user(x) is None:
        return 1.0, x
    factor, scores = node.inputs[1], node.inputs[0]
    if factor is None or scores is None or factor.const_value is None or factor.const_value.size != 1:
        return 1.0, x
    value = float(factor.const_value.numpy().item())
    return (value if node.op_type == "Mul" else 1 / value), scores


def _untransposed(kt: ir.Value | None) -> ir.Value | None:
    """The keys [B,H,k,d] behind [B,H,d,k]."""
    node = kt.producer() if kt is not None else None
    if node is None or node.op_type != "Transpose" or permutation(node) != [0, 1, 3, 2]:
        return None
    return node.inputs[0]


def _heads_agree(q: ir.Value, k: ir.Value, v: ir.Value) -> bool:
    """All float32 [B,H,.,d] with the same batch, heads and size: nothing broadcasts."""
    if any(_rank(x) != 4 or x.dtype not in (None, ir.DataType.FLOAT) for x in (q, k, v)):
        return False
    shapes = [tuple(x.shape or ()) for x in (q, k, v)]
    return all(isinstance(s[i], int) for s in shapes for i in (1, 3)) and (
        shapes[0][:2] == shapes[1][:2] == shapes[2][:2]
        and shapes[0][3] == shapes[1][3]
        and shapes[1][2] == shapes[2][2]
    )


def _replace(b: Builder, f: _Found) -> None:
    """Queries go in, and the result comes out, as [B,q,H*d]: no turns are needed any more."""
    assert f.k.shape is not None and f.v.shape is not None
    heads, width, depth = f.k.shape[1], f.k.shape[3], f.v.shape[3]
    assert isinstance(heads, int) and isinstance(width, int) and isinstance(depth, int)
    query = b.op("Reshape", [f.split.inputs[0], b.ints(0, 0, heads * width)], None, None)
    inputs = [query, f.k, f.v, None, None, f.bias]
    made = b.op("MultiHeadAttention", inputs, None, None, domain=MICROSOFT, num_heads=heads, scale=f.scale)
    rows = b.op("Reshape", [made, b.ints(0, 0, heads, depth)], None, None)
    b.replace(f.merge.outputs[0], rows)


def _turns_heads(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and permutation(node) == [0, 2, 1, 3]
