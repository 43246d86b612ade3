"""A graph as text, one line a node, small constants in place: what an eye can follow.

y = Conv(x/full, weight: float32[64, 32, 5], bias: float32[64]) strides=[2]
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

INLINE = 8  # constants up to this many elements are written out


def listing(model: ir.Model) -> str:
    """The whole graph: what goes in, what is computed, what comes out."""
    graph = model.graph
    constants = set(graph.initializers.values())
    lines = [f"in   {_typed(v)}" + _default(v) for v in graph.inputs]
    lines += [""] + [_line(n, constants) for n in graph] + [""]
    lines += [f"out  {_typed(v)}" for v in graph.outputs]
    return "\n".join(lines)


def _line(node: ir.Node, constants: set[ir.Value]) -> str:
    outputs = ", ".join(str(o.name) for o in node.outputs)
    inputs = ", ".join("_" if i is None else _operand(i, constants) for i in node.inputs)
    op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    attributes = "".join(f" {text}" for text in _attributes(node))
    return f"     {outputs} = {op}({inputs}){attributes}"


def _operand(value: ir.Value, constants: set[ir.Value]) -> str:
    tensor = value.const_value
    if value not in constants or tensor is None or value.is_graph_input():
        return str(value.name)
    if tensor.size <= INLINE:
        return str(tensor.numpy().tolist())
    return f"{value.name}: {_type(value)}"


def _attributes(node: ir.Node) -> Iterator[str]:
    for name, attr in node.attributes.items():
        value = attr.value
        if isinstance(value, (tuple, list)):
            yield f"{name}={list(value)}"
        elif isinstance(value, (int, float, str)):
            yield f"{name}={value}"
        else:  # a tensor or a subgraph: too long for a line
            yield f"{name}=<{attr.type.name.lower()}>"


def _typed(value: ir.Value) -> str:
    return f"{value.name}: {_type(value)}"


def _type(value: ir.Value) -> str:
    dims = "?" if value.shape is None else ", ".join(str(d) for d in value.shape)
    return f"{value.dtype.numpy().name if value.dtype is not None else '?'}[{dims}]"


def _default(value: ir.Value) -> str:
    return "" if value.const_value is None else "  (optional)"
