"""A program's steps as C: nodes to kernels, kernels to calls on memory that is planned by lifetime."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from pulsify.backends.native.buffers import plan
from pulsify.backends.native.fuse import copy, indented
from pulsify.backends.native.nodes import constants_of, write
from pulsify.backends.native.scope import Call, Kernel, Port, Scope, Weights
from pulsify.backends.native.views import C_TYPES, Buffer, View, row_major
from pulsify.backends.seam import Opening, StepProgram
from pulsify.core.errors import NotSupported
from pulsify.core.spec import Spec, concrete
from pulsify.optimize.constants import FoldConstants
from pulsify.optimize.sized import ForStreams
from pulsify.optimize.views import constant


@dataclass(frozen=True, eq=False)
class Step:
    """One step: what it calls, in order, and what it needs for that beside what stays. work: elements by type.

    inputs, outputs: as the caller has them.
    """

    name: str
    calls: tuple[Call, ...]
    work: Mapping[str, int]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]


@dataclass(frozen=True, eq=False)
class Written:
    """All steps of a program, the general one first. ports: what stays from pulse to pulse."""

    steps: tuple[Step, ...]
    ports: Mapping[str, Port]
    weights: Weights


def moves(ports: Mapping[str, Port]) -> list[Buffer]:
    """How far states have moved on, each."""
    return [port.buffer.moved[0] for port in ports.values() if port.buffer is not None and port.buffer.moved]


def prepared(model: ir.Model) -> ir.Model:
    """For one stream: every size is known, and what follows from sizes is a constant."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass, ShapeInferencePass

    made = FoldConstants()(_sized(ForStreams(1)(model).model)).model
    for _ in range(PASSES):
        if all(o.shape is not None and o.shape.is_static() for node in made.graph.all_nodes() for o in node.outputs):
            break
        made = FoldConstants()(_sized(ShapeInferencePass()(made).model)).model  # more is known now
    return RemoveUnusedNodesPass()(made).model


def _sized(made: ir.Model) -> ir.Model:
    """With what onnx's inference does not say of some."""
    for node in made.graph:
        if node.op_type in KEEP_SIZE:
            _alike(node.inputs[0], node.outputs[0])
        elif node.op_type == "Loop":
            _loop_sized(node)
    return made


def _loop_sized(node: ir.Node) -> None:
    """What goes from turn to turn keeps its size, or is refused; of the rest there is one a turn."""
    begin, body, count = node.inputs[2:], node.attributes["body"].value, constant(node.inputs[0])
    for given, inside, out in zip(begin, body.inputs[2:], node.outputs, strict=False):
        _alike(given, inside)
        _alike(given, out)
    for each, out in zip(body.outputs[1 + len(begin) :], node.outputs[len(begin) :], strict=True):
        if count is not None and each.shape is not None and each.shape.is_static():
            out.shape = ir.Shape([int(count.reshape(-1)[0]), *each.shape])


def _alike(given: ir.Value | None, out: ir.Value) -> None:
    if given is not None:
        out.shape = out.shape if out.shape is not None and out.shape.is_static() else given.shape
        if out.dtype is None and given.dtype is not None:
            out.dtype = given.dtype


def written(program: StepProgram, spec: Spec, opening: Opening | None = None) -> Written:
    """The program as calls of kernels, or NotSupported that names the node. opening: one more step, `opening`."""
    growing = next((s for s in spec.states if s.grows), None)
    if growing is not None:
        raise NotSupported(
            "its cache grows with the stream, and memory here is laid out once", node=growing.node, op="state",
            target="C", hint="convert with unbounded=N, which keeps the last N frames",
        )  # fmt: skip
    weights, ports = Weights(), _ports(spec)
    models = [("general", program.general, spec), ("steady", program.steady, spec)]
    models += [] if opening is None else [("opening", opening.model, opening.spec)]
    steps = []
    for name, model, own in models:
        if model is not None:
            inputs = tuple(_outside("in", i.name, i.dims, i.dtype) for i in own.inputs)
            outputs = tuple(_outside("out", o.name, o.dims, o.dtype) for o in own.outputs)
            scope = _lowered(prepared(model), own, weights, ports, inputs, outputs)
            steps.append(Step(name, tuple(scope.calls), plan(scope.calls), inputs, outputs))
    at: dict[str, int] = {}
    for port in ports.values():
        buffer = port.view().buffer
        buffer.offset = at.get(port.ctype, 0)
        at[port.ctype] = buffer.offset + max(buffer.size, 1)
    for moved in moves(ports):
        moved.offset = at.get(moved.ctype, 0)
        at[moved.ctype] = moved.offset + 1
    return Written(tuple(steps), ports, weights)


def _outside(kind: str, name: str, dims: tuple[int | str, ...], dtype: object) -> Buffer:
    shape = concrete(dims, 1)
    ctype = C_TYPES.get(ir.DataType.from_numpy(dtype))  # type: ignore[arg-type]
    if ctype is None:
        raise NotSupported(f"'{name}' is {dtype}, which C has no type for", node=name, op="port", target="C")
    return Buffer("in" if kind == "in" else "out", ctype, math.prod(shape), name)


def _ports(spec: Spec) -> dict[str, Port]:
    out = {}
    for s in spec.states:
        shape = concrete(s.shape, 1)
        out[s.name] = Port(s.name, shape, _ctype(s.name, s.dtype), s.axis if s.kind in ("buffer", "cache") else None)
    for static in spec.statics:
        out[static.name] = Port(static.name, concrete(static.dims, 1), _ctype(static.name, static.dtype))
    if spec.length:
        out[spec.length] = Port(spec.length, (1, 1), "int32_t")
    return out


def _ctype(name: str, dtype: object) -> str:
    return _outside("in", name, (1,), dtype).ctype


def _lowered(
    model: ir.Model, spec: Spec, weights: Weights, ports: Mapping[str, Port], inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
) -> Scope:  # fmt: skip
    graph = model.graph
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))
    scope = Scope(opset, weights, ports, constants_of(graph))
    by_name = {b.label: b for b in inputs}
    for value in graph.inputs:
        name = str(value.name)
        if name in by_name:
            shape = scope.shape(value)
            scope.views[value] = View(by_name[name], shape, row_major(shape))
    write(graph, scope)
    _finish(graph, spec, scope, {b.label: b for b in outputs})
    return scope


PASSES = 3  # of inference: sizes that follow from sizes that follow from a loop
KEEP_SIZE = ("GroupNormalization", "RMSNormalization", "LpNormalization", "Swish")  # what onnx does not infer


def _finish(graph: ir.Graph, spec: Spec, scope: Scope, outputs: Mapping[str, Buffer]) -> None:
    """Results to where the caller wants them; then states, each where it lies."""
    states = {s.after: scope.ports[s.name] for s in spec.states}
    made = {str(v.name): v for v in graph.outputs}
    for name, buffer in outputs.items():
        if name in made:
            value = made[name]
            shape = scope.shape(value)
            scope.comment = f"output {name}"
            copy(scope, scope.view(value), View(buffer, shape, row_major(shape)), "give")
    moves: list[tuple[View, View, str]] = []
    for name, port in states.items():
        if name in made:
            moves.append((scope.view(made[name]), port.view(), port.name))
    own = {id(p.buffer) for p in states.values() if p.buffer is not None}
    for i, (source, target, label) in enumerate(moves):  # what lies with another state is moved away first
        if id(source.buffer) in own and source.buffer is not target.buffer:
            away = scope.work(source.shape, source.ctype, source.order)
            scope.comment = f"state {label}, by way of"
            copy(scope, source, away, "keep")
            moves[i] = away, target, label
    for source, target, label in moves:
        if source == target or not target.size:
            continue
        scope.comment = f"state {label}"
        if source.buffer is target.buffer:
            _slide(scope, source, target, scope.ports[label].slack)
        else:
            copy(scope, source, target, "keep")


def _slide(scope: Scope, source: View, target: View, slack: int) -> None:
    """Within a state's own memory: frames move to the front. Or the front moves on, up to `slack` frames."""
    forward = (
        source.strides == target.strides and source.offset >= target.offset and target.permuted(target.order).dense
    )
    if not forward:
        away = scope.work(source.shape, source.ctype, source.order)
        copy(scope, source, away, "keep")
        copy(scope, away, target, "keep")
        return
    whole, far = View(target.buffer, (target.buffer.size,), (1,)), source.offset - target.offset
    if target.buffer.moved is None:
        body = f"    memmove(y, y + {far}, sizeof(*y) * {target.size});"
        scope.emit(Kernel("slide", (f"{target.ctype} *y",), body), (whole,))
        return
    moved, frame = target.buffer.moved
    lines = [
        f"{target.ctype} *const front = y - *moved * {frame};", f"*moved += {far // frame};",
        f"if (*moved > {slack}) {{", f"memmove(front, front + *moved * {frame}, sizeof(*y) * {target.size});",
        "*moved = 0;", "}",
    ]  # fmt: skip
    kernel = Kernel("slide", (f"{target.ctype} *y", "int32_t *moved"), indented(lines))
    scope.emit(kernel, (whole, View(moved, (1,), (1,))), 2)
