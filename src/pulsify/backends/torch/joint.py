"""Nodes that torch has one function for: written as one line, where the last of them stands.

Sigmoid, Mul                   F.silu        Split, Sigmoid, Mul         F.glu
MatMul, Add                    F.linear      Mul, Add                    torch.add(..., alpha=...)
MatMul, Mul, Add, Softmax, MatMul            F.scaled_dot_product_attention, in a lower type

A node that anybody else reads, or that is on the CPU, is written by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from pulsify.backends.torch.site import FLOATS, Need, Scope, Site, Uncovered, literal
from pulsify.backends.torch.table import Code
from pulsify.optimize.views import only_reader, sizes


@dataclass(frozen=True)
class Joint:
    """nodes: those that are inside, without the last one."""

    nodes: tuple[ir.Node, ...]
    code: Code


@dataclass(frozen=True)
class Group:
    """A last node, the ones in front of it that were taken in, and the constants their line names."""

    last: ir.Node
    scope: Scope
    codes: Mapping[ir.Node, Code]
    needs: dict[str, Need]

    def site(self, node: ir.Node) -> Site:
        return Site(node, self.scope, self.needs)

    def maker(self, value: ir.Value | None, *ops: str) -> ir.Node | None:
        """What makes a value for one reader, if it is such an operator on the device."""
        node = None if value is None else value.producer()
        if value is None or node is None or node.op_type not in ops or node not in self.codes:
            return None
        return node if only_reader(value) else None

    def one_kind(self, *nodes: ir.Node) -> bool:
        """Do all of them compute in the same type of floats?"""
        kinds = {self.scope.kind(v) for n in (self.last, *nodes) for v in n.outputs if v.name}
        return len(kinds) == 1 and kinds <= set(FLOATS)


Wrote = tuple[list[ir.Node], str] | None
Writes = Callable[[Group], Wrote]


def joint(last: ir.Node, codes: Mapping[ir.Node, Code], scope: Scope) -> Joint | None:
    """The nodes that end with this one, as one line, if there is a function for them."""
    for function in FORMS.get(last.op_type, ()):
        group = Group(last, scope, codes, {})
        try:
            found = function(group)
        except Uncovered:  # sizes or types are not known
            continue
        if found is not None and group.one_kind(*found[0]):
            nodes, text = found
            return Joint(tuple(nodes), Code((f"{group.site(last).out()} = {text}",), dict(group.needs)))
    return None


# ---- activations


def _silu(g: Group) -> Wrote:
    for i, (x, y) in enumerate((g.last.inputs, g.last.inputs[::-1])):
        gate = g.maker(y, "Sigmoid")
        if gate is not None and gate.inputs[0] is x:
            return [gate], f"F.silu({g.site(g.last).x(i)})"
    return None


def _glu(g: Group) -> Wrote:
    x, y = g.last.inputs
    gate = g.maker(y, "Sigmoid")
    split = g.maker(x, "Split")
    if gate is None or split is None or list(split.outputs) != [x, gate.inputs[0]] or not only_reader(split.outputs[1]):
        return None
    halves = [sizes(v) for v in split.outputs]
    if halves[0] is None or halves[0] != halves[1]:
        return None
    site = g.site(split)
    return [split, gate], f"F.glu({site.x()}, {site.axis()})"


# ---- sums


def _linear(g: Group) -> Wrote:
    for i, (x, _) in enumerate((g.last.inputs, g.last.inputs[::-1])):
        product, site = g.maker(x, "MatMul"), g.site(g.last)
        bias = site.const(1 - i)
        if product is None or bias is None:
            continue
        weights = g.site(product).const(1)
        if weights is not None and weights.ndim == 2 and bias.shape == weights.shape[1:]:
            inner = g.site(product)
            return [product], f"F.linear({inner.x(0)}, {inner.x(1)}.t(), {site.x(1 - i)})"
    return None


def _scaled_sum(g: Group) -> Wrote:
    for i, (x, y) in enumerate((g.last.inputs, g.last.inputs[::-1])):
        scaled = g.maker(y, "Mul")
        if scaled is None or x is None or x.dtype != ir.DataType.FLOAT:
            continue
        number, at = _times(g, scaled)
        if number is not None and sizes(y) == sizes(scaled.inputs[at]):
            return [scaled], f"torch.add({g.site(g.last).x(i)}, {g.site(scaled).x(at)}, alpha={literal(number)})"
    return None


def _times(g: Group, node: ir.Node) -> tuple[float | None, int]:
    """The number that a node multiplies with, and the place of what it multiplies."""
    site = g.site(node)
    for at in (0, 1):
        array = site.const(1 - at)
        if array is not None and array.size == 1 and site.const(at) is None:
            return float(array.reshape(-1)[0]), at
    return None, 0


# ---- attention


def _attention(g: Group) -> Wrote:
    """In float32 it stays as it is: the card's own kernel does not keep all of its products in float32."""
    softmax = g.maker(g.last.inputs[0], "Softmax") if g.scope.low else None
    if softmax is None or g.site(softmax).axis(default=-1) != 3 or g.site(softmax).rank() != 4:
        return None
    inside, bias = [softmax], "None"
    scores = softmax.inputs[0]
    if (add := g.maker(scores, "Add")) is not None:
        at = next((i for i in (0, 1) if g.maker(add.inputs[i], "MatMul", "Mul") is not None), None)
        if at is None or not _bias_fits(add, at):
            return None
        inside, bias, scores = [*inside, add], f"op.aligned({g.site(add).x(1 - at)})", add.inputs[at]
    scale: float | None = 1.0
    if (mul := g.maker(scores, "Mul")) is not None:
        scale, at = _times(g, mul)
        inside, scores = [*inside, mul], mul.inputs[at]
    product = g.maker(scores, "MatMul")
    if product is None or scale is None or not _heads_agree(product, g.last):
        return None
    site, values = g.site(product), g.site(g.last).x(1)
    text = f"{site.x(0)}, {site.x(1)}.transpose(2, 3), {values}, attn_mask={bias}, scale={literal(scale)}"
    return [*inside, product], f"F.scaled_dot_product_attention({text})"


def _bias_fits(add: ir.Node, at: int) -> bool:
    """[1 or B, 1 or H, q, k] beside scores of the sum's own size."""
    scores, bias, whole = sizes(add.inputs[at]), sizes(add.inputs[1 - at]), sizes(add.outputs[0])
    if scores is None or bias is None or scores != whole or len(bias) != 4:
        return False
    return bias[2:] == scores[2:] and all(b in (1, s) for b, s in zip(bias[:2], scores[:2], strict=True))


def _heads_agree(product: ir.Node, end: ir.Node) -> bool:
    """[B, H, q, d], [B, H, d, k] and [B, H, k, d]: nothing is repeated."""
    q, k, v = (sizes(x) for x in (*product.inputs, end.inputs[1]))
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4:
        return False
    return q[:2] == k[:2] == v[:2] and q[3] == k[2] == v[3] and k[3] == v[2]


FORMS: dict[str, tuple[Writes, ...]] = {
    "Mul": (_silu, _glu),
    "Add": (_linear, _scaled_sum),
    "MatMul": (_attention,),
}
