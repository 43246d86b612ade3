"""Loops as scans: what a for-loop over frames gathers, carries and collects, said in Scan's terms.

    for t in range(T):                        Scan
        h = step(h, x[:, t])          -->         state h, scan input x along axis 1
        out.append(h)                             scan output
    y = stack(out, 1)                             ... along axis 1

What no iteration changes is moved out in front first. A loop that is no scan stays a Loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from pulsify.frontend.loop_branches import append_behind, lift_reads

SAME_NUMBER = ("Identity", "Cast")  # of an iteration's number


def loops_to_scans(model: ir.Model) -> None:
    """Rewrites the loops of the main graph and of branches in it, in place."""
    _settle(model.graph, inside=False)


def _settle(graph: ir.Graph, inside: bool) -> None:
    """inside: of another loop's body, where it stays a Loop."""
    for node in list(graph):
        looping = node.domain in ("", "ai.onnx") and node.op_type in ("Loop", "Scan")
        for inner in [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]:
            _settle(inner, inside or looping)
        if not looping:
            continue
        body = node.attributes["body"].as_graph()
        _drop_identities(body)
        if node.op_type == "Loop":
            _settle_condition(graph, node, body, inside)
        if not inside:
            append_behind(body)
            for _ in range(2):  # a frame of what is moved in front of the loop at first
                _lift_out_of_branches(node, body)
                _hoist(graph, node, body)
        if node.op_type == "Loop" and not inside:
            found = _Loop(node, body).read()
            if found is not None:
                found.rewrite(graph)


def _settle_condition(graph: ir.Graph, node: ir.Node, body: ir.Graph, inside: bool) -> None:
    """A Loop that never ends early says so in one way: it is given no condition and passes on what it finds."""
    going = body.inputs[1]
    if not all(v is None or v is going or _true(v) for v in (node.inputs[1], body.outputs[0])):
        return
    node.replace_input_with(1, None)
    body.outputs[0] = going
    uses = list(going.uses())
    if uses and not inside:
        true = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(np.array(True)))])
        graph.insert_before(node, true)
        for use in uses:
            use.node.replace_input_with(use.idx, true.outputs[0])


def _drop_identities(body: ir.Graph) -> None:
    inner = {*body.inputs, *(v for n in body for v in n.outputs)}
    for n in list(body):
        if n.op_type == "Identity" and n.inputs[0] is not None and n.inputs[0] in inner:  # no outer value is an output
            n.outputs[0].replace_all_uses_with(n.inputs[0], replace_graph_outputs=True)
            body.remove(n, safe=True)


def _lift_out_of_branches(node: ir.Node, body: ir.Graph) -> None:
    """What branches read of the frame of an iteration, so that it is seen to be scanned."""
    if node.op_type != "Loop":
        lift_reads(body, lambda n: False, lambda n: False)
        return
    number = body.inputs[0]

    def is_frame(n: ir.Node) -> bool:
        if n.op_type == "Gather" and _ints(n.inputs[1]) == [0]:
            return True
        source = n.inputs[0] if n.inputs else None
        producer = source.producer() if source is not None else None
        if source is None or source in body.inputs or (producer is not None and producer.graph is body):
            return False
        if source.const_value is not None:  # a table may be read by the first turns only
            return False
        found = _picked(n, number)
        return found is not None and found[2] == 0  # there is one for every iteration, whichever branch reads it

    lift_reads(body, is_frame, lambda n: _numbered(n.outputs[0], number) is not None)


def _hoist(main: ir.Graph, node: ir.Node, body: ir.Graph) -> None:
    """Move what depends on nothing inside the body in front of the node."""
    inner = {*body.inputs, *(v for n in body for v in n.outputs)}
    for n in list(body):
        graphs = any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in n.attributes.values())
        if graphs or any(v in inner for v in n.inputs) or any(v in body.outputs for v in n.outputs):
            continue
        body.remove(n)
        main.insert_before(node, n)
        inner -= set(n.outputs)


@dataclass(eq=False)
class _Gather:
    """x[..., t, ...] or x[..., t:t+1, ...] in the body: a scan input along `axis`.

    kept: the axis stays, of size 1. offset: the frame of the first iteration.
    """

    node: ir.Node
    source: ir.Value
    axis: int
    kept: bool
    offset: int


@dataclass(eq=False)
class _Loop:
    """A Loop, and what has been found in it."""

    node: ir.Node
    body: ir.Graph
    gathers: list[_Gather] = field(default_factory=list)
    lists: dict[int, list[ir.Node]] = field(default_factory=dict)  # carried lists: index -> what appends to them

    def read(self) -> _Loop | None:
        """All of the loop is a scan, or None."""
        node, body = self.node, self.body
        trip, number = node.inputs[0], body.inputs[0]
        if trip is None or node.inputs[1] is not None or body.outputs[0] is not body.inputs[1]:
            return None
        for i, (carried, after) in enumerate(zip(body.inputs[2:], body.outputs[1:], strict=False)):
            inserts = _chain(after, carried)
            if inserts:
                if not self._appends(i, carried, inserts):
                    return None
                self.lists[i] = inserts
        appending = [n for inserts in self.lists.values() for n in inserts]
        if any("Sequence" in n.op_type and n not in appending for n in body):
            return None
        inner = {*body.inputs, *(v for n in body for v in n.outputs)}
        for n in body:
            source = n.inputs[0] if n.inputs else None
            if source is not None and source not in inner and (found := _picked(n, number)) is not None:
                self.gathers.append(_Gather(n, source, *found))
        return self

    def _appends(self, i: int, carried: ir.Value, inserts: list[ir.Node]) -> bool:
        """The list starts with given frames or none, is only appended to, and is stacked or joined afterwards."""
        start, end = self.node.inputs[2 + i], self.node.outputs[i]
        begun = start.producer() if start is not None else None
        held = [carried, *(n.outputs[0] for n in inserts[:-1])]
        only = all([use.node for use in v.uses()] == [n] for v, n in zip(held, inserts, strict=True))
        only = only and all(len(n.inputs) == 2 for n in inserts)
        users = [use.node for use in end.uses()]
        return (
            only
            and begun is not None
            and begun.op_type in ("SequenceEmpty", "SequenceConstruct")
            and not end.is_graph_output()
            and all(u.op_type == "ConcatFromSequence" for u in users)
        )

    def rewrite(self, main: ir.Graph) -> None:
        node, body = self.node, self.body
        count = len(body.inputs) - 2
        states = [i for i in range(count) if i not in self.lists]
        for i in self.lists:
            self._put_first(main, i)
        scanned, axes, slices = self._scan_inputs(main)
        made = [*(node.outputs[i] for i in states), *node.outputs[count:]]
        outputs = [*(body.outputs[1 + i] for i in states), *body.outputs[1 + count :]]
        out_axes = [0] * (len(node.outputs) - count)
        for i, inserts in self.lists.items():
            for use in list(node.outputs[i].uses()):
                axis = use.node.attributes["axis"].as_int()
                frame, whole = self._collected(main, [n.inputs[1] for n in inserts], use.node, axis)
                outputs.append(frame)
                out_axes.append(axis if whole is use.node.outputs[0] or axis >= 0 else axis - 1)
                made.append(whole)
        inputs = [*(body.inputs[2 + i] for i in states), *slices]
        starts = [node.inputs[2 + i] for i in states]
        body.outputs.clear()
        for insert in [n for inserts in self.lists.values() for n in reversed(inserts)]:
            body.remove(insert, safe=True)
        body.inputs.clear()
        body.inputs.extend(inputs)
        body.outputs.extend(_distinct(body, outputs))
        attrs = [
            ir.AttrGraph("body", body),
            ir.AttrInt64("num_scan_inputs", len(slices)),
            ir.AttrInt64s("scan_input_axes", axes),
            ir.AttrInt64s("scan_output_axes", out_axes),
        ]
        scan = ir.Node("", "Scan", [*starts, *scanned], attrs, num_outputs=len(made), name=node.name)
        main.insert_before(node, scan)
        for old, new in zip(made, scan.outputs, strict=True):
            _take_over(main, old, new)
        for use in [u for i in self.lists for u in list(node.outputs[i].uses())]:
            main.remove(use.node, safe=True)
        main.remove(node, safe=True)

    def _put_first(self, main: ir.Graph, i: int) -> None:
        """The frames that a list starts with, in front of those that the iterations add."""
        start = self.node.inputs[2 + i]
        begun = start.producer() if start is not None else None
        if begun is None or begun.op_type == "SequenceEmpty":
            return
        for use in list(self.node.outputs[i].uses()):
            join = use.node
            axis = join.attributes["axis"].as_int()
            later = ir.Node("", join.op_type, [self.node.outputs[i]], list(join.attributes.values()), name=join.name)
            frames = list(begun.inputs)
            if "new_axis" in join.attributes and join.attributes["new_axis"].as_int():
                wide = [ir.Node("", "Unsqueeze", [f, _int(main, join, axis)]) for f in frames]
                main.insert_before(join, wide)
                frames = [n.outputs[0] for n in wide]
            inputs = [*frames, later.outputs[0]]
            whole = ir.Node("", "Concat", inputs, [ir.AttrInt64("axis", axis)], name=f"{join.name}/Concat")
            main.insert_before(join, [later, whole])
            _take_over(main, join.outputs[0], whole.outputs[0])
            main.remove(join, safe=True)

    def _collected(
        self, main: ir.Graph, frames: list[ir.Value | None], join: ir.Node, axis: int
    ) -> tuple[ir.Value, ir.Value]:
        """What every iteration adds, without the axis it is stacked along, and the value all of them make.

        Several frames an iteration are one with an axis of its own: [.., T, n, ..], which become [.., n * T, ..].
        """
        out, stacked = join.outputs[0], "new_axis" in join.attributes and join.attributes["new_axis"].as_int()
        frame = frames[0]
        assert frame is not None
        if len(frames) == 1 and stacked:
            return frame, out
        node = frame.producer()  # joined along an axis of size one: the same without it
        if len(frames) == 1 and node is not None and node.op_type == "Unsqueeze" and _ints(node.inputs[1]) == [axis]:
            assert node.inputs[0] is not None
            return node.inputs[0], out
        if len(frames) > 1:
            if stacked:
                frames = [self._in_body("Unsqueeze", [f, _int(main, self.node, axis)]) for f in frames]
            frame = self._in_body("Concat", frames, axis=axis)
        whole = ir.Value(name=f"{out.name}/turns")
        _merge_axes(main, join, whole, axis)
        return frame, whole

    def _in_body(self, op: str, inputs: list[ir.Value | None], **attrs: int) -> ir.Value:
        made = ir.Node("", op, inputs, [ir.AttrInt64(k, v) for k, v in attrs.items()])
        self.body.append(made)
        return made.outputs[0]

    def _scan_inputs(self, main: ir.Graph) -> tuple[list[ir.Value], list[int], list[ir.Value]]:
        """Outer values to scan, along which axes, and what the body sees of them."""
        node, body, trip = self.node, self.body, self.node.inputs[0]
        number = body.inputs[0]
        assert trip is not None
        outer: list[ir.Value] = []
        axes: list[int] = []
        inner: list[ir.Value] = []

        def op(name: str, inputs: list[ir.Value], before: ir.Node = node, **attrs: int) -> ir.Value:
            attributes = [ir.AttrInt64(k, v) for k, v in attrs.items()]
            made = ir.Node(
                "", name, inputs, attributes, name=f"{node.name or node.op_type}/{name}"
            )  # refusals lead to the loop
            graph = before.graph
            assert isinstance(graph, ir.Graph)
            graph.insert_before(before, made)
            return made.outputs[0]

        def ints(*values: int, scalar: bool = False) -> ir.Value:
            array = np.array(values[0] if scalar else values, np.int64)
            made = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array))])
            main.insert_before(node, made)
            return made.outputs[0]

        def numbers() -> ir.Value:
            return op("Range", [ints(0, scalar=True), op("Reshape", [trip, ints()]), ints(1, scalar=True)])

        def sliced(source: ir.Value, axis: int, offset: int) -> ir.Value:
            if source.const_value is not None:  # a table: it must not end before the stream does
                places = op("Add", [numbers(), ints(offset)]) if offset else numbers()
                return op("Gather", [source, places], axis=axis)
            end = op(
                "Max", [op("Reshape", [trip, ints(1)]), ints(0)]
            )  # of less than none, a slice takes all but the last
            end = op("Add", [end, ints(offset)]) if offset else end
            return op("Slice", [source, ints(offset), end, ints(axis)])

        seen: dict[tuple[ir.Value, int, int], ir.Value] = {}
        for g in self.gathers:
            key = g.source, g.axis, g.offset
            if key not in seen:
                outer.append(sliced(*key))
                axes.append(g.axis)
                inner.append(ir.Value(name=f"{g.node.outputs[0].name}/frame"))
                seen[key] = inner[-1]
            frame = seen[key]
            if g.kept:
                frame = op("Unsqueeze", [frame, ints(g.axis)], before=g.node)
            g.node.outputs[0].replace_all_uses_with(frame, replace_graph_outputs=True)
            body.remove(g.node, safe=True)
        for n in reversed(list(body)):
            if not any(v.uses() or v in body.outputs for v in n.outputs):
                body.remove(n, safe=True)
        if list(number.uses()) or not inner:
            outer.append(numbers())
            axes.append(0)
            inner.append(number)
        return outer, axes, inner


def _chain(after: ir.Value, carried: ir.Value) -> list[ir.Node]:
    """The inserts that make a list of what it was before, the first one first; none if it is made otherwise."""
    found: list[ir.Node] = []
    value: ir.Value | None = after
    while value is not None and value is not carried:
        node = value.producer()
        if node is None or node.op_type != "SequenceInsert":
            return []
        found.insert(0, node)
        value = node.inputs[0]
    return found


def _int(main: ir.Graph, before: ir.Node, *values: int) -> ir.Value:
    made = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(np.array(values, np.int64)))])
    main.insert_before(before, made)
    return made.outputs[0]


def _merge_axes(main: ir.Graph, join: ir.Node, whole: ir.Value, axis: int) -> None:
    """What a join made is `whole` with two axes as one, [.., T, n, ..] -> [.., T * n, ..]; axis: of n, without T."""

    def op(name: str, inputs: list[ir.Value], **attrs: int) -> ir.Node:
        made = ir.Node("", name, inputs, [ir.AttrInt64(k, v) for k, v in attrs.items()], name=f"{join.name}/{name}")
        main.insert_before(join, made)
        return made

    sizes = op("Shape", [whole]).outputs[0]
    last = 1 << 31
    ends = [(0, axis), (axis + 2, last)] if axis >= 0 else [(0, axis - 1), (axis + 1 or last, last)]
    kept = [op("Slice", [sizes, *(_int(main, join, n) for n in end)]).outputs[0] for end in ends]
    shape = op("Concat", [kept[0], _int(main, join, -1), kept[1]], axis=0).outputs[0]
    _take_over(main, join.outputs[0], op("Reshape", [whole, shape]).outputs[0])


def _take_over(main: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """`new` is what `old` was, by name too."""
    new.name, old.name = old.name or None, None
    new.shape, new.type = old.shape, old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def _true(value: ir.Value | None) -> bool:
    while value is not None and value.const_value is None:
        node = value.producer()
        if node is None or node.op_type not in SAME_NUMBER:
            return False
        value = node.inputs[0]
    return value is not None and value.const_value is not None and bool(value.const_value.numpy().all())


def _picked(node: ir.Node, number: ir.Value) -> tuple[int, bool, int] | None:
    """Does this node pick the iteration's own frame? Along which axis, does that axis stay, and from which one on?"""
    if node.op_type == "Gather" and (place := _numbered(node.inputs[1], number)) is not None:
        return node.attributes["axis"].as_int() if "axis" in node.attributes else 0, *place
    if node.op_type == "Slice" and len(node.inputs) > 3:
        start, end = (_numbered(v, number) for v in node.inputs[1:3])
        axes, steps = _ints(node.inputs[3]), _ints(node.inputs[4]) if len(node.inputs) > 4 else [1]
        if axes is None or len(axes) != 1 or steps != [1] or start is None or end is None:
            return None
        if start[0] and end[1] == start[1] + 1:
            return axes[0], True, start[1]
    return None


def _ints(value: ir.Value | None) -> list[int] | None:
    """A constant's numbers, whatever its shape; None if it is no constant."""
    while value is not None and value.const_value is None:
        node = value.producer()
        value = node.inputs[0] if node is not None and node.op_type in ("Unsqueeze", *SAME_NUMBER) else None
    return None if value is None or value.const_value is None else value.const_value.numpy().reshape(-1).tolist()


def _numbered(index: ir.Value | None, number: ir.Value) -> tuple[bool, int] | None:
    """Is this index the iteration's number, or so much more? (Has it an axis of its own?, how much); None if not."""
    kept, more = False, 0
    while index is not None and index is not number:
        node = index.producer()
        if node is None:
            return None
        if node.op_type in ("Add", "Sub", "Mul"):
            x, y = node.inputs
            turned = node.op_type != "Sub" and _ints(x) is not None
            index, by = (y, _ints(x)) if turned else (x, _ints(y))
            if by is None or len(by) != 1 or (node.op_type == "Mul" and by != [1]):
                return None
            more += {"Add": by[0], "Sub": -by[0], "Mul": 0}[node.op_type]
        elif node.op_type in (*SAME_NUMBER, "Unsqueeze") and not (kept and node.op_type == "Unsqueeze"):
            kept = kept or node.op_type == "Unsqueeze"
            index = node.inputs[0]
        else:
            return None
    return (kept, more) if index is number and more >= 0 else None


def _distinct(body: ir.Graph, outputs: list[ir.Value]) -> list[ir.Value]:
    """Every output is a value of its own, made in the body."""
    inner = {v for n in body for v in n.outputs}
    out: list[ir.Value] = []
    for v in outputs:
        if v in out or v not in inner:
            node = ir.Node("", "Identity", [v])
            body.append(node)
            v = node.outputs[0]
        out.append(v)
    return out
