"""Nodes that torch has one function for: written as one line, where the last of them stands.

Sigmoid, Mul                   F.silu        Split, Sigmoid, Mul         F.glu
MatMul, Add                    F.linear      Mul, Add                    torch.add(..., alpha=...)
MatMul, Mul, Add, Softmax, MatMul            the kernel `stream_attention` (`attention`)

A node that anybody else reads, or that is on the CPU, is written by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pulsify.backends.site import Uncovered
from pulsify.backends.torch.attention import Writer
from pulsify.backends.torch.rings import Ring
from pulsify.backends.torch.site import FLOATS, Need, Scope, Site, literal, narrowed
from pulsify.backends.torch.table import Code
from pulsify.optimize.attention import Apart, read
from pulsify.optimize.views import only_reader, sizes


@dataclass(frozen=True)
class Joint:
    """nodes: those that are inside, without the last one. rings: caches that it writes to by itself."""

    nodes: tuple[ir.Node, ...]
    code: Code
    rings: tuple[Ring, ...] = ()


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
            inner = g.site(scaled)
            alpha = literal(narrowed(np.float32(number), inner.kind(at)))
            return [scaled], f"torch.add({g.site(g.last).x(i)}, {inner.x(at)}, alpha={alpha})"
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


def attended(last: ir.Node, codes: Mapping[ir.Node, Code], scope: Scope) -> Joint:
    """The attention that ends with this node as one line; `Apart` or `Uncovered` with the reason if it is not."""
    group = Group(last, scope, codes, {})
    nodes, text, rings = Writer(read(last), scope, group.needs).text()
    if (elsewhere := next((n for n in nodes if n not in codes), None)) is not None:
        raise Apart(f"a part of it ({elsewhere.op_type}) is not on the device")
    return Joint(tuple(nodes), Code((f"{group.site(last).out()} = {text}",), dict(group.needs)), rings)


FORMS: dict[str, tuple[Writes, ...]] = {
    "Mul": (_silu, _glu),
    "Add": (_linear, _scaled_sum),
}
