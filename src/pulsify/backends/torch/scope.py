"""What holds for a whole step: which values are constants, which follow from the clock, which from sizes alone."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import onnx_ir as ir

from pulsify.backends.subgraphs import bodies, reads
from pulsify.backends.torch.site import Scope
from pulsify.core.spec import Spec

ABOUT_SIZES = (
    "Gather", "Reshape", "Squeeze", "Unsqueeze", "Add", "Sub", "Mul", "Div", "Concat", "Cast", "Slice", "Identity",
    "Max", "Min", "Neg",
)  # fmt: skip

COUNTS = (ir.DataType.INT64, ir.DataType.INT32)


def scope_of(
    model: ir.Model,
    spec: Spec,
    device: str,
    low: str | None,
    compiled: bool = False,
    attention: str | None = None,
    streams: int | None = None,
) -> Scope:
    """streams: so many, with the caches of attention in rings."""
    constants = dict(_constants(model.graph))
    nodes = list(model.graph)
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))
    exact = _exact(model, spec, constants.keys()) if low else frozenset[ir.Value]()
    host = _from_sizes(nodes, constants.keys())
    keeps = None if streams is None else (spec, streams)
    return Scope(
        device, opset, low, exact, host, constants=constants, compiled=compiled, attention=attention, keeps=keeps
    )


def _constants(graph: ir.Graph) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    ports = set(graph.inputs)
    for value in graph.initializers.values():
        if value.const_value is not None and value not in ports:
            yield value, value.const_value
    for node in graph:
        if node.op_type == "Constant" and "value" in node.attributes:
            yield node.outputs[0], node.attributes["value"].as_tensor()
        for inner in bodies(node):
            yield from _constants(inner)


def _exact(model: ir.Model, spec: Spec, constants: Container[ir.Value]) -> frozenset[ir.Value]:
    """What stays in float32: floats that count (frames, or what an integer counts), sums as long as the stream."""
    clock = {v for v in model.graph.inputs if v.name in (spec.position, spec.length)}
    found = clock | _following(list(model.graph), clock | _counts(model.graph, spec, constants), constants)
    for state in spec.states:
        if state.kind == "carry":
            found |= _carried(model.graph, state.name, state.after)
    for node in model.graph:
        if any(v in found for v in node.outputs):
            found.update(_inner(node))
    return frozenset(found)


def _counts(graph: ir.Graph, spec: Spec, constants: Container[ir.Value]) -> set[ir.Value]:
    """Integers, and running sums of what is made of them and of truth values alone: within a pulse and carried on."""
    made = [*graph.inputs, *(v for node in graph for v in node.outputs if v not in constants)]
    counts = {v for v in made if v.dtype in COUNTS}
    start = counts | {v for v in made if v.dtype == ir.DataType.BOOL}
    carried = {s.name: s.after for s in spec.states if s.kind == "carry"}
    while True:  # a carried number is one of them if what replaces it is, taken that it is
        states = {v for v in graph.inputs if v.name in carried}
        of_them = _following(list(graph), start | states, constants) | start
        names = {v.name for v in of_them}
        wrong = [name for name, after in carried.items() if after not in names]
        if not wrong:
            break
        for name in wrong:
            del carried[name]
    sums = {node.outputs[0] for node in graph if node.op_type == "CumSum" and node.outputs[0] in of_them}
    return counts | states | sums


def _carried(graph: ir.Graph, before: str, after: str) -> set[ir.Value]:
    """A state, what replaces it, and all that lies between: made of the one, and needed for the other."""
    found = {v for v in graph.inputs if v.name == before}
    reached = []
    for node in graph:
        if any(v in found for v in reads(node)):
            reached.append(node)
            found.update(node.outputs)
    needed = {v for v in graph.outputs if v.name == after}
    between = {v for v in graph.inputs if v.name == before} | needed
    for node in reversed(reached):
        if any(v in needed for v in node.outputs):
            needed.update(reads(node))
            between.update(node.outputs)
    return between


def _inner(node: ir.Node) -> Iterator[ir.Value]:
    """The values in a node's bodies."""
    for graph in bodies(node):
        yield from graph.inputs
        for inner in graph:
            yield from inner.outputs
            yield from _inner(inner)


def _from_sizes(nodes: Sequence[ir.Node], constants: Container[ir.Value]) -> frozenset[ir.Value]:
    """Values that depend on nothing but sizes that are not known before: of a cache that grows."""
    about = [n for n in nodes if n.op_type in ABOUT_SIZES]
    shapes = {n.outputs[0] for n in nodes if n.op_type == "Shape" and not _static(n.inputs[0])}
    return frozenset(shapes | _following(about, shapes, constants))


def _static(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and value.shape.is_static()


def _following(nodes: Sequence[ir.Node], start: set[ir.Value], constants: Container[ir.Value]) -> set[ir.Value]:
    known, found = set(start), set[ir.Value]()
    for node in nodes:
        data = [v for v in reads(node) if v not in constants]
        if data and all(v in known for v in data):
            known.update(node.outputs)
            found.update(node.outputs)
    return found
