"""The streaming graph under construction: nodes, constants, and nothing said twice.

A node has no place here until all are there (`convert/assemble.py` puts them in order): so the same operator on the
same inputs is one node. Names are made up, sizes inferred at the end. Of a graph that is there, `optimize/builder.py`
has a place: what is new stands in front of one node, and has its name and its sizes at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.constants import CHOSEN_AS, elements, holding, of_array


@dataclass(eq=False)
class Builder:
    """Collects nodes. The same operator on the same inputs is emitted once; equal small constants are one."""

    nodes: list[ir.Node] = field(default_factory=list)
    constants: dict[str, ir.Value] = field(default_factory=dict)
    inputs: dict[str, ir.Value] = field(default_factory=dict)
    _known: dict[Any, tuple[ir.Value, ...]] = field(default_factory=dict)
    _small: dict[Any, ir.Value] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)

    def unique(self, name: str) -> str:
        """`name`, or `name.2`, `name.3` ... if it is taken."""
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else self.unique(f"{name}.{count}")

    def reserve(self, names: Iterable[str]) -> None:
        """Keep names for the graph's outputs."""
        for name in names:
            self._names[name] = self._names.get(name, 0) + 1

    def input(self, name: str, dtype: ir.DataType, dims: Sequence[int | str]) -> ir.Value:
        value = ir.val(self.unique(name), dtype, ir.Shape(dims))
        self.inputs[name] = value
        return value

    def inside(self) -> Builder:
        """For the body of a node: names and constants are the graph's, nodes its own."""
        return Builder(constants=self.constants, _small=self._small, _names=self._names)

    def constant(self, array: Any, name: str = "const") -> ir.Value:
        array = np.asarray(array)
        key = elements(array)
        if key not in self._small:
            made = self._small[key] = of_array(self.unique(name), array)
            self.constants[str(made.name)] = made
        return self._small[key]

    def tensor(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """An initializer that shares the given tensor."""
        value = self.constants[name] = holding(name, tensor)
        return value

    def ints(self, *values: int) -> ir.Value:
        return self.constant(np.array(values, np.int64), "ints")

    def ops(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        outputs: int = 1,
        domain: str = "",
        name: str = "",
    ) -> tuple[ir.Value, ...]:
        """One node with any number of outputs."""
        attrs = {k: v for k, v in (attrs or {}).items() if v is not None}
        key: Any = (
            op,
            domain,
            tuple(id(i) for i in inputs),
            outputs,
            tuple(sorted((k, repr(v)) for k, v in attrs.items())),
        )
        simple = all(isinstance(v, (int, float, str, tuple, list)) for v in attrs.values())
        if simple and key in self._known:
            return self._known[key]
        base = self.unique(name or op.lower())
        made = [
            ir.Value(
                name=self.unique(base if outputs == 1 else f"{base}.{i}")
                if name
                else f"{base}/{i}"
                if outputs > 1
                else f"{base}/out"
            )
            for i in range(outputs)
        ]
        attributes = ir.convenience.convert_attributes(attrs)
        self.nodes.append(ir.Node(domain, op, list(inputs), attributes, outputs=made, name=base))
        if simple:
            self._known[key] = tuple(made)
        return tuple(made)

    def op(self, op: str, *inputs: ir.Value | None, name: str = "", **attrs: Any) -> ir.Value:
        """One node with one output."""
        return self.ops(op, inputs, attrs, name=name)[0]

    def reshape(self, x: ir.Value, dims: Sequence[int]) -> ir.Value:
        return self.op("Reshape", x, self.ints(*dims))

    def size(self, x: ir.Value, axis: int) -> ir.Value:
        """The size of one axis, int64 [1]."""
        return self.op("Gather", self.op("Shape", x), self.ints(axis))

    def slice(self, x: ir.Value, axis: int, start: int, stop: int, step: int = 1) -> ir.Value:
        return self.op("Slice", x, self.ints(start), self.ints(stop), self.ints(axis), self.ints(step))


def choose(b: Builder, condition: ir.Value, x: ir.Value, y: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Where, for values of any type: casts between whole numbers of 64 bits keep every bit."""
    wide = CHOSEN_AS.get(dtype)
    if wide is None:
        return b.op("Where", condition, x, y)
    chosen = b.op("Where", condition, *(b.op("Cast", v, to=int(wide)) for v in (x, y)))
    return b.op("Cast", chosen, to=int(dtype))


def read_by(node: ir.Node) -> list[ir.Value]:
    """All values a node reads, those that bodies of its own capture included."""
    found = [v for v in node.inputs if v is not None]
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            body = attribute.as_graph()
            inner = {*body.inputs, *(v for n in body for v in n.outputs)}
            found += [v for n in body for v in read_by(n) if v not in inner]
    return found
