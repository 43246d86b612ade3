"""The one place where rewrites get new nodes and constants from: each has a name, and its size and type where known.

The graph is there: a node equal to one that is asked for may stand behind the place where it is needed, so each is made
anew, and the next rule asks for its sizes at once. One that is still being written is `emit/builder.py`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.constants import elements, holding, of_array
from pulsify.optimize.views import Array, sizes

Shape = ir.Shape | Sequence[int | str] | None


@dataclass(frozen=True, eq=False)
class Builder:
    """Adds to a graph. New nodes go in front of `at`, or to the end if there is none."""

    graph: ir.Graph
    at: ir.Node | None = None

    def before(self, at: ir.Node | None) -> Builder:
        """The same graph, elsewhere."""
        return Builder(self.graph, at)

    def ops(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        shapes: Sequence[Shape],
        dtype: ir.DataType | None,
        /,
        *,
        name: str = "",
        domain: str | None = None,
        **attrs: Any,
    ) -> Sequence[ir.Value]:
        """A node with an output for each of the shapes, all of one type. It stays in the domain of one like it."""
        if domain is None:
            domain = self.at.domain if self.at is not None and self.at.op_type == op else ""
        name = name or f"{'' if self.at is None else self.at.name}/tidy/{op}_{len(self.graph)}"
        node = ir.node(op, inputs, attrs, domain=domain, num_outputs=len(shapes), name=name)
        for i, (out, shape) in enumerate(zip(node.outputs, shapes, strict=True)):
            out.name = name if len(shapes) == 1 else f"{name}/{i}"
            out.shape = None if shape is None else ir.Shape(shape)
            if dtype is not None:
                out.dtype = dtype
        if self.at is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(self.at, node)
        return node.outputs

    def op(
        self, op: str, inputs: Sequence[ir.Value | None], shape: Shape, dtype: ir.DataType | None, /, **attrs: Any
    ) -> ir.Value:
        """A node with one output."""
        return self.ops(op, inputs, [shape], dtype, **attrs)[0]

    def reshaped(self, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        """The value itself if it has that shape already."""
        if sizes(value) == shape:
            return value
        return self.op("Reshape", [value, self.ints(*shape)], shape, value.dtype)

    def replace(self, value: ir.Value, by: ir.Value) -> None:
        """Whoever reads a value reads another one. If it is an output, the other is, under the same name."""
        if value.is_graph_output():
            if by.producer() is None or by.is_graph_output():  # it has a name to keep
                by = self.op("Identity", [by], value.shape, value.dtype)
            name = value.name
            value.name = f"{name}/before"
            by.name, by.shape, by.type = name, value.shape, value.type
        value.replace_all_uses_with(by, replace_graph_outputs=True)

    def constant(self, name: str, array: Array) -> ir.Value:
        """A constant; one that is there already, name and elements alike, is used again."""
        there = self.graph.initializers.get(name)
        held = None if there is None or there.const_value is None else there.const_value.numpy()
        if there is not None and held is not None and elements(held) == elements(array):
            return there
        return self._registered(of_array(name, array))

    def tensor(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """A constant that shares the given tensor: what lies in a file stays there."""
        return self._registered(holding(name, tensor))

    def _registered(self, value: ir.Value) -> ir.Value:
        self.graph.register_initializer(value)
        return value

    def ints(self, *numbers: int) -> ir.Value:
        return self.constant("view/" + "x".join(map(str, numbers)), np.array(numbers, np.int64))
