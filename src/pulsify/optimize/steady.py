"""The steady state: once every window lies inside the stream and no end is in sight, boundaries have nothing to do.

position   0 ....... warm .............................. end
general    [ - - - - - )                              [ - )
steady                 [ - - - - - - - - - - - - - - )          no masks for what is before 0 or past the end

What follows from `position` and `length` alone is evaluated, not matched (see `eventual`): where it no longer changes
with the pulse it becomes a constant, and so does all that is made of such things.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InvariantError, PassResult

from pulsify.core.one_node import NoKernel
from pulsify.core.spec import Spec
from pulsify.core.traits import traits
from pulsify.optimize.builder import Builder
from pulsify.optimize.constants import evaluator
from pulsify.optimize.eventual import lines
from pulsify.optimize.rewriting import Change, has_ports, wiring

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]  # a value for one stream, and for several: what depends on their number shows
BATCHES = (1, 3)
LATEST = 4096  # pulses: whatever is not settled by then is left as it is


@dataclass(frozen=True)
class Steady:
    """A step that holds from pulse number `since` on, while the end is unknown."""

    model: ir.Model
    since: int
    counts: bool  # it still needs the position


def steady_form(model: ir.Model, spec: Spec) -> Steady | None:
    """The step without boundaries, or None if there are none to leave out."""
    if spec.position is None and spec.length is None:
        return None
    from onnx_ir.passes.common import ShapeInferencePass

    copy = ShapeInferencePass()(model.clone()).model
    found = _settled(copy, spec)
    if found is None:
        return None
    since, settled = found
    made = DropClock(spec)(FoldSettled(settled)(copy))
    return Steady(made.model, since, made.counts)


def _clock_nodes(model: ir.Model, spec: Spec) -> list[ir.Node]:
    """Nodes that depend on nothing but position, length and constants."""
    known = {v for v in model.graph.inputs if v.name in (spec.position, spec.length)}
    nodes = []
    for node in model.graph:
        if any(v in known for v in node.inputs) and all(
            v is None or v in known or v.const_value is not None for v in node.inputs
        ):
            nodes.append(node)
            known.update(node.outputs)
    return nodes


def _settled(model: ir.Model, spec: Spec) -> tuple[int, dict[str, Arrays]] | None:
    """The pulse from which on some of the clock's values stay as they are, and what they are then.

    What follows from the length alone counts only where it decides something together with the position.
    """
    nodes = _clock_nodes(model, spec)
    batches = [lines(model, nodes, spec, batch) for batch in (BATCHES if spec.batch else BATCHES[:1])]
    moving = _moving(nodes, spec)
    settled: dict[str, Arrays] = {}
    since = 1
    for value, line in batches[0].items():
        others = [found.get(value) for found in batches]
        if value not in moving or not line.flat or line.since > LATEST or any(o is None for o in others):
            continue
        settled[str(value.name)] = tuple(o.start for o in others if o is not None)
        since = max(since, *(o.since for o in others if o is not None))
    return (since, settled) if settled else None


def _moving(nodes: list[ir.Node], spec: Spec) -> set[ir.Value]:
    """Values that depend on the position."""
    moving: set[ir.Value] = set()
    for node in nodes:
        if any(v is not None and (v in moving or v.name == spec.position) for v in node.inputs):
            moving.update(node.outputs)
    return moving


class FoldSettled(Change[PassResult]):
    """Comparisons become constants, what is made of constants too; a Where whose answer is known falls away.

    In place. settled: by name, what a value is for one stream and for several.
    Requires: nodes make the settled values; sizes inferred, as far as a Where is to fall away.
    Ensures: nodes stand behind what they read. Those that nobody reads any more are left for `DropClock`.
    """

    def __init__(self, settled: Mapping[str, Arrays]) -> None:
        self.settled = settled

    def requires(self, model: ir.Model) -> None:
        made = {out.name for node in model.graph for out in node.outputs}
        if missing := self.settled.keys() - made:
            raise InvariantError(f"no node makes {', '.join(missing)}")

    def call(self, model: ir.Model) -> PassResult:
        before, b = wiring(model), Builder(model.graph)
        known = self._known(model, b)
        for value, arrays in known.items():
            uses = [use for use in value.uses() if use.node.outputs[0] not in known and _fits(use.node, arrays)]
            for use in uses:
                use.node.replace_input_with(use.idx, b.constant(f"{value.name}/steady", arrays[0]))
        return PassResult(model, wiring(model) != before)

    def _known(self, model: ir.Model, b: Builder) -> dict[ir.Value, Arrays]:
        """All that follows from what is settled."""
        known: dict[ir.Value, Arrays] = {}
        for node in list(model.graph):
            out = node.outputs[0]
            if (name := str(out.name)) in self.settled:
                known[out] = self.settled[name]
            elif any(v in known for v in node.inputs) and (arrays := _run_one(model, node, known)) is not None:
                known[out] = arrays
            elif (places := _places(node, known)) is not None:
                _cut(b.before(node), node, places)
            elif node.op_type == "Where" and (condition := _condition(node, known)) is not None:
                _choose(b.before(node), node, condition)
        return known


def _fits(user: ir.Node, arrays: Arrays) -> bool:
    """May the value for one stream stand for all? If it is the same, or broadcasts over them."""
    one, several = arrays[0], arrays[-1]
    if one.shape == several.shape:
        return np.array_equal(one, several, equal_nan=one.dtype.kind == "f")  # a size may count the streams
    spread = all(x == y or x == 1 for x, y in zip(one.shape, several.shape, strict=True))
    return spread and traits(user.op_type).elementwise and np.array_equal(np.broadcast_to(one, several.shape), several)


def _foldable(node: ir.Node, known: dict[ir.Value, Arrays]) -> bool:
    return len(node.outputs) == 1 and all(v is None or v in known or v.const_value is not None for v in node.inputs)


def _run_one(model: ir.Model, node: ir.Node, known: dict[ir.Value, Arrays]) -> Arrays | None:
    """What a node makes of what is known; None if that is not all it reads, or ONNX Runtime has no kernel for it."""
    if not _foldable(node, known):
        return None
    inputs = [v for v in node.inputs if v is not None]
    run = evaluator(model.graph, node)
    count = next(len(known[v]) for v in inputs if v in known)
    try:
        return tuple(run({v: known[v][i] if v in known else _array(v) for v in inputs})[0] for i in range(count))
    except NoKernel:
        return None


def _array(value: ir.Value) -> Array:
    assert value.const_value is not None
    return value.const_value.numpy()


def _condition(node: ir.Node, known: dict[ir.Value, Arrays]) -> Array | None:
    """A Where's condition if it is settled, or was a constant all along (a mask that hides nothing in its window)."""
    value = node.inputs[0]
    if value in known:
        return np.concatenate([array.reshape(-1) for array in known[value]])
    return _array(value) if value is not None and value.const_value is not None else None


def _places(node: ir.Node, known: dict[ir.Value, Arrays]) -> Array | None:
    """The frames that a gather takes along its axis, if they are settled and the same for all channels and streams."""
    index = node.inputs[1] if node.op_type in ("Gather", "GatherElements") else None
    if index is None or index not in known or node.inputs[0] is None:
        return None
    axis, found = node.attributes.get_int("axis", 0), []
    for array in known[index]:
        if node.op_type == "GatherElements":
            whole = node.inputs[0].shape
            others = [i for i in range(array.ndim) if i != axis % array.ndim]
            if whole is None or any(isinstance(whole[i], int) and whole[i] != array.shape[i] for i in others):
                return None
            line = np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])
            if not (line == line[:1]).all():
                return None
            array = line[0]
        found.append(array)
    alike = found[0].ndim == 1 and all(np.array_equal(a, found[0]) for a in found) and (found[0] >= 0).all()
    return found[0] if alike else None


def _cut(b: Builder, node: ir.Node, places: Array) -> None:
    """A gather of frames that are one after the other is a slice, or nothing at all."""
    x, out = node.inputs[0], node.outputs[0]
    assert x is not None and x.shape is not None
    axis, first, count = node.attributes.get_int("axis", 0) % len(x.shape), int(places[0]), len(places)
    if not np.array_equal(places, np.arange(first, first + count)):
        made = b.op("Gather", [x, b.ints(*places.tolist())], out.shape, out.dtype, axis=axis)
    elif first == 0 and x.shape[axis] == count:
        made = x
    else:
        made = b.op("Slice", [x, *(b.ints(n) for n in (first, first + count, axis, 1))], out.shape, out.dtype)
    b.replace(out, made)


def _choose(b: Builder, node: ir.Node, condition: Array) -> None:
    """Where with a settled condition: one of its branches, if that has the whole shape already."""
    if not (condition.all() or not condition.any()):
        return
    branch, out = node.inputs[1 if condition.all() else 2], node.outputs[0]
    if branch is not None and branch.shape is not None and branch.shape == out.shape:
        b.replace(out, branch)


@dataclass
class Clockless(PassResult):
    """counts: the position is still needed."""

    counts: bool


class DropClock(Change[Clockless]):
    """Drops what nobody needs any more: nodes, the length, and the position if only its own count is left.

    In place. Requires: the position is a port, before and after. Ensures: what comes out of flush alone is gone.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.last = {o.name for o in spec.outputs if o.axis is None}

    def requires(self, model: ir.Model) -> None:
        if (position := self.spec.position) is not None:
            has_ports(model, [position], [self.spec.after(position)])

    def ensures(self, model: ir.Model) -> None:
        super().ensures(model)
        if left := self.last & {v.name for v in model.graph.outputs}:
            raise InvariantError(f"{', '.join(left)} is no output of a step")

    def call(self, model: ir.Model) -> Clockless:
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        spec, graph = self.spec, model.graph
        before = len(graph), len(graph.inputs), len(graph.outputs)
        for v in [v for v in graph.outputs if v.name in self.last]:
            graph.outputs.remove(v)
        RemoveUnusedNodesPass()(model)
        counts = False
        if spec.position is not None:
            position = next(v for v in graph.inputs if v.name == spec.position)
            after = next(v for v in graph.outputs if v.name == spec.after(spec.position))
            chain = set(_behind(after))
            counts = any(use.node not in chain for use in position.uses())
            if not counts:
                graph.outputs.remove(after)
                RemoveUnusedNodesPass()(model)
        for v in list(graph.inputs):
            if v.name in (spec.length, *([] if counts else [spec.position])) and not list(v.uses()):
                graph.inputs.remove(v)
                graph.initializers.pop(str(v.name), None)
        return Clockless(model, (len(graph), len(graph.inputs), len(graph.outputs)) != before, counts)


def _behind(value: ir.Value) -> list[ir.Node]:
    """The nodes a value is made by, back to the inputs."""
    found: list[ir.Node] = []
    todo = [value]
    while todo:
        node = todo.pop().producer()
        if node is not None and node not in found:
            found.append(node)
            todo.extend(v for v in node.inputs if v is not None)
    return found
