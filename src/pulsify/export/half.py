"""A step in half precision: weights, states and most of what is computed. Ports stay as they are.

What follows from the clock alone stays float32 (frame 3001 is no number of half precision's), and so does what is
carried from pulse to pulse with all that lies between a carried state and what replaces it: a sum over the stream would
stand still. Sums, norms, softmax and recurrent cells are computed in float32 too, between casts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir

from pulsify.backends.torch.types import complete
from pulsify.core.constants import of_array
from pulsify.core.spec import Spec

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
LARGEST = 65504.0  # of half precision
PRECISE = {
    "CumSum", "Einsum", "GRU", "GroupNormalization", "InstanceNormalization", "LSTM", "LayerNormalization",
    "LogSoftmax", "MeanVarianceNormalization", "Pow", "RNN", "Range", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "RMSNormalization", "Resize",
    "Softmax", "STFT", "DFT",
}  # fmt: skip
FOLLOWING = {"Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}  # as what they are given
CARRIED = ("carry", "fold", "clock")  # kinds of states that grow by small steps, or count


def halved(model: ir.Model, spec: Spec) -> tuple[ir.Model, Spec]:
    """A copy, and what is to know of it: states that are half are so in the spec."""
    made = model.clone()
    complete(made)
    low = {s.name for s in spec.states if s.dtype == np.float32 and s.kind not in CARRIED}
    states = tuple(replace(s, dtype=np.dtype(np.float16)) if s.name in low else s for s in spec.states)
    found = replace(spec, states=states)
    graph, own = made.graph, {s.after for s in spec.states if s.name in low}
    precise = _precise(graph, spec, low)
    for given in graph.inputs:
        if given.name in low:
            given.type = ir.TensorType(HALF)  # the copy's values share theirs with the model's
    casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
    for node in list(graph):
        kept = node in precise or (node.op_type in FOLLOWING and node.inputs[0].dtype != HALF)  # type: ignore[union-attr]
        takes = {} if kept else _takes(node, made.opset_imports.get("", 0))
        for i, value in enumerate(node.inputs):
            if value is not None and value.dtype in (FLOAT, HALF):
                wanted = HALF if takes.get(i) else FLOAT
                if value.dtype != wanted:
                    node.replace_input_with(i, _cast(graph, value, wanted, node, casts))
        for inner, place, value in _captured(node):
            if value.dtype == HALF:
                inner.replace_input_with(place, _cast(graph, value, FLOAT, node, casts))
        for value in _gives(node, takes, made.opset_imports.get("", 0)):
            value.type = ir.TensorType(HALF)
    for place, out in enumerate(graph.outputs):
        wanted = HALF if out.name in own else FLOAT
        if out.dtype in (FLOAT, HALF) and out.dtype != wanted:
            _give(graph, place, out, wanted)
    for name in [n for n, v in graph.initializers.items() if not v.uses() and not v.is_graph_input()]:
        graph.initializers.pop(name)
    made.metadata_props.update(found.to_properties())
    return made, found


def _precise(graph: ir.Graph, spec: Spec, low: set[str]) -> set[ir.Node]:
    """Nodes that stay float32: by what they are, by the clock, and from a carried state to the one that replaces it."""
    out = {n for n in graph if n.op_type in PRECISE or n.domain not in ("", "ai.onnx") or any(_graphs(n))}
    clock = {n for n in (spec.position, spec.length) if n is not None}
    known = {v for v in graph.inputs if v.name in clock} | set(graph.initializers.values())
    for node in graph:
        given = [v for v in node.inputs if v is not None]
        if all(v in known for v in given) and not any(_graphs(node)):
            known |= set(node.outputs)
            out.add(node)
    after = {v.name: v for v in graph.outputs}
    for state in spec.states:
        if state.name not in low and state.name not in clock:
            behind = _reached([v for v in graph.inputs if v.name == state.name])
            out |= {n for n in _leading(after[state.after]) if n in behind}
    return out


def _reached(values: Iterable[ir.Value]) -> set[ir.Node]:
    """All nodes behind these."""
    out: set[ir.Node] = set()
    queue = list(values)
    while queue:
        for node, _ in queue.pop().uses():
            if node not in out:
                out.add(node)
                queue.extend(node.outputs)
    return out


def _leading(value: ir.Value) -> set[ir.Node]:
    """All nodes in front of it."""
    out: set[ir.Node] = set()
    queue = [value]
    while queue:
        node = queue.pop().producer()
        if node is not None and node not in out:
            out.add(node)
            queue.extend(v for v in node.inputs if v is not None)
    return out


def _graphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()


def _captured(node: ir.Node) -> Iterator[tuple[ir.Node, int, ir.Value]]:
    """What bodies of it read from outside."""
    for graph in _graphs(node):
        for inner in graph.all_nodes():
            for place, value in enumerate(inner.inputs):
                if value is not None and value.graph is node.graph:
                    yield inner, place, value


def _formal(parameters: list[onnx.defs.OpSchema.FormalParameter], place: int) -> str:
    """The type's name of a parameter; the last may stand for many."""
    return str(parameters[min(place, len(parameters) - 1)].type_str) if parameters else ""


def _takes(node: ir.Node, opset: int) -> dict[int, bool]:
    """Which inputs may be half: those of a type that may be, by ONNX's own definition."""
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    may = {c.type_param_str for c in schema.type_constraints if "tensor(float16)" in c.allowed_type_strs}
    return {i: _formal(schema.inputs, i) in may for i in range(len(node.inputs))}


def _gives(node: ir.Node, takes: Mapping[int, bool], opset: int) -> list[ir.Value]:
    """Outputs that are half because an input of the same type is."""
    if not any(takes.values()):
        return []
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    bound = {_formal(schema.inputs, i) for i, v in enumerate(node.inputs) if v is not None and v.dtype == HALF}
    outs = enumerate(node.outputs)
    return [v for i, v in outs if v.dtype == FLOAT and _formal(schema.outputs, i) in bound]


def _cast(
    graph: ir.Graph, value: ir.Value, to: ir.DataType, at: ir.Node, made: dict[tuple[ir.Value, ir.DataType], ir.Value]
) -> ir.Value:
    """The value as such, made once: a constant is a constant again."""
    if (value, to) not in made:
        tensor = value.const_value
        if tensor is not None and value.is_initializer() and not value.is_graph_input():
            array = np.clip(
                tensor.numpy(), -LARGEST, LARGEST, where=np.isfinite(tensor.numpy()), out=tensor.numpy().copy()
            )
            out = of_array(f"{value.name}/half", array.astype(np.float16))
            graph.register_initializer(out)
        else:
            node = ir.node("Cast", [value], {"to": to}, name=f"{value.name}/{to.name}")
            out = node.outputs[0]
            out.name, out.type, out.shape = f"{value.name}/{to.name}", ir.TensorType(to), value.shape
            graph.insert_before(at, node)
        made[value, to] = out
    return made[value, to]


def _give(graph: ir.Graph, place: int, value: ir.Value, to: ir.DataType) -> None:
    """An output of the type it is to have, under its name."""
    name, value.name = value.name, f"{value.name}/inside"
    node = ir.node("Cast", [value], {"to": to}, name=f"{name}/{to.name}")
    out = node.outputs[0]
    out.name, out.type, out.shape = name, ir.TensorType(to), value.shape
    graph.append(node)
    graph.outputs[place] = out
