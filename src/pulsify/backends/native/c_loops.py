"""Scan and Loop with a known count: the body's kernels are called in a loop of C, on memory that moves with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from pulsify.backends.native.fuse import Chain, copy, emit_loop, indented
from pulsify.backends.native.nodes import constants_of, write
from pulsify.backends.native.scope import Kernel, Scope, Site
from pulsify.backends.native.table import op
from pulsify.backends.native.views import Buffer, View
from pulsify.backends.site import Uncovered
from pulsify.backends.subgraphs import reads


@dataclass(frozen=True, eq=False)
class Body:
    """What a loop calls. moving: a buffer that stands for a row of other memory -> the first, and how far the next."""

    graph: ir.Graph
    scope: Scope
    moving: dict[Buffer, tuple[View, int]] = field(default_factory=dict)

    def row(self, whole: View, axis: int, count: int, backwards: bool = False) -> View:
        """One index of an axis, another one at every turn."""
        rest = whole.permuted([a for a in range(len(whole.shape)) if a != axis])
        step = whole.strides[axis]
        first = whole.offset + (count - 1) * step if backwards and count else whole.offset
        own = Buffer("work", whole.ctype, max(rest.size, 1), whole.buffer.label)
        self.moving[own] = View(whole.buffer, rest.shape, rest.strides, first), -step if backwards else step
        return View(own, rest.shape, rest.strides)


def entered(n: Site) -> Body:
    """The body with all it reads from outside; its own inputs are still to be given."""
    graph, outer = n.attr("body"), n.scope
    constants = {**outer.constants, **constants_of(graph)}
    scope = Scope(outer.opset, outer.weights, {}, constants)
    scope.views.update({v: outer.view(v) for v in reads(n.node) if v not in constants and v not in n.node.inputs})
    scope.views.update({v: outer.view(v) for v in n.node.inputs if v is not None and v not in constants})
    return Body(graph, scope)


def carried(n: Site, body: Body, first: int, given: Sequence[ir.Value]) -> list[View]:
    """What goes from turn to turn, each in memory of its own that begins as the node's inputs from `first` on."""
    rooms = []
    for i, value in enumerate(given):
        room = n.scope.work(n.sizes(first + i), n.kind(first + i))
        copy(n.scope, n.x(first + i), room, "start")
        body.scope.views[value] = room
        rooms.append(room)
    return rooms


def turned(scope: Scope, made: Sequence[View], rooms: Sequence[View]) -> None:
    """What a turn made becomes what the next one is given."""
    held = {room.buffer for room in rooms}
    safe = []
    for source, room in zip(made, rooms, strict=True):
        if source.shape != room.shape:
            raise Uncovered("what goes from turn to turn changes its size")
        if source.buffer in held and source != room:  # another one's, which is about to change
            away = scope.work(source.shape, source.ctype)
            copy(scope, source, away, "keep")
            source = away
        safe.append(source)
    for source, room in zip(safe, rooms, strict=True):
        if source != room:
            copy(scope, source, room, "keep")


def emit(n: Site, body: Body, count: int, head: Mapping[Buffer, str] | None = None) -> None:
    """The loop as one kernel. head: what is written into a buffer at the start of a turn, by buffer."""
    calls, head = body.scope.calls, head or {}
    used = [*head, *(view.buffer for call in calls for view in call.args)]
    written = {*head, *(view.buffer for call in calls for view in call.args[len(call.args) - call.writes :])}
    order = [b for b in dict.fromkeys(used) if b not in written] + [b for b in dict.fromkeys(used) if b in written]
    names = {b: f"p{i}" for i, b in enumerate(order)}
    params, args = [], []
    for buffer in order:
        params.append(f"{'' if buffer in written else 'const '}{buffer.ctype} *{names[buffer]}")
        whole = View(buffer, (buffer.size,), (1,))
        args.append(body.moving[buffer][0] if buffer in body.moving else whole)

    def place(view: View) -> str:
        step = body.moving[view.buffer][1] if view.buffer in body.moving else 0
        return f"{names[view.buffer]}{f' + t * ({step})' if step else ''}{f' + {view.offset}' if view.offset else ''}"

    lines = [f"for (int t = 0; t < {count}; t++) {{", *(f"{names[b]}[0] = {text};" for b, text in head.items())]
    for i, call in enumerate(calls):
        if call.comment:
            lines.append(f"/* {call.comment.translate({ord(c): None for c in '{}*'})} */")
        lines.append(f"@{i}@({', '.join(place(v) for v in call.args)});")
    kernel = Kernel(n.op.lower(), tuple(params), indented([*lines, "}"]), tuple(c.kernel for c in calls))
    n.emit(kernel, args, len(written & set(order)))


@op("Scan")
def scan(n: Site) -> None:
    if n.opset < 9:
        raise Uncovered("as it was before opset 9")
    rows = int(n.attr("num_scan_inputs"))
    states, body = n.count() - rows, entered(n)
    inputs, outputs = body.graph.inputs, body.graph.outputs
    axes = [int(a) % len(n.sizes(states + i)) for i, a in enumerate(n.attr("scan_input_axes", [0] * rows))]
    back = [bool(d) for d in n.attr("scan_input_directions", [0] * rows)]
    count = n.sizes(states)[axes[0]]
    rooms = carried(n, body, 0, inputs[:states])
    for i, value in enumerate(inputs[states:]):
        body.scope.views[value] = body.row(n.x(states + i), axes[i], count, back[i])
    write(body.graph, body.scope)
    many = len(outputs) - states
    out_axes, ways = n.attr("scan_output_axes", [0] * many), n.attr("scan_output_directions", [0] * many)
    for i, value in enumerate(outputs[states:]):
        _stacked(n, body, states + i, value, int(out_axes[i]), count, bool(ways[i]))
    turned(body.scope, [body.scope.view(v) for v in outputs[:states]], rooms)
    emit(n, body, count)
    for i, room in enumerate(rooms):
        n.alias(room, i)


@op("Loop")
def loop(n: Site) -> None:
    (count,) = n.ints(0, "count")
    if n.has(1) and not n.known(1, "condition").all():
        raise Uncovered("its condition is false from the start")
    body = entered(n)
    inputs, outputs = body.graph.inputs, body.graph.outputs
    going: ir.Value | None = outputs[0]
    while going is not None and (maker := going.producer()) is not None and maker.op_type == "Identity":
        going = maker.inputs[0]
    known = body.scope.array(going)
    if going is not inputs[1] and (known is None or not known.all()):
        raise Uncovered("its count follows from data")
    turn, yes = n.scope.work((), "int64_t"), n.scope.work((), "uint8_t")
    emit_loop(n.scope, Chain((), "1", ()), yes, "yes")
    body.scope.views.update({inputs[0]: turn, inputs[1]: yes})
    rooms = carried(n, body, 2, inputs[2:])
    write(body.graph, body.scope)
    for i, value in enumerate(outputs[1 + len(rooms) :]):
        _stacked(n, body, len(rooms) + i, value, 0, count, False)
    turned(body.scope, [body.scope.view(v) for v in outputs[1 : 1 + len(rooms)]], rooms)
    emit(n, body, count, {turn.buffer: "t"})
    for i, room in enumerate(rooms):
        n.alias(room, i)


def _stacked(n: Site, body: Body, i: int, value: ir.Value, axis: int, count: int, backwards: bool) -> None:
    """What a turn makes, put beside what the others made."""
    if n.wanted(i):
        whole = n.out(i)
        if whole.shape[axis] != count:
            raise Uncovered("how much it makes is not known before it runs")
        body.scope.comment = f"output {value.name}"
        copy(body.scope, body.scope.view(value), body.row(whole, axis % len(whole.shape), count, backwards), "give")
