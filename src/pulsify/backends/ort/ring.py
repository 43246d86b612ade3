"""Ring caches: a long window of keys or values is written in place, not copied at every pulse.

linear   [ f1 f2 f3 f4 )  ->  [ f2 f3 f4 f5 )      joined, then cut: the window is copied twice a pulse
ring     [ f1 f2 f3 f4 )  ->  [ f5 f2 f3 f4 )      the new frames overwrite the oldest, wherever they stand

Attention takes its keys in any order (see `order`); what meets them from outside (masks, biases) is turned to match:
laid out twice in a row, a window of it that starts at the right place is the turned one.
The write is a ScatterND whose input and output are bound to the same memory; it is in every opset, and as fast as
TensorScatter (opset 24).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InvariantError, PassResult

from pulsify.backends.seam import Cache, Ring
from pulsify.core.spec import Spec, State
from pulsify.core.traits import traits
from pulsify.optimize.builder import Builder
from pulsify.optimize.order import Following, Stuck, follow, regrouped, size_at
from pulsify.optimize.rewriting import Change, has_ports

SMALLEST = 1 << 14  # bytes of a cache below which copying it is as quick (benchmarks/caches.py)


@dataclass(eq=False)
class _Candidate:
    """state -> Concat -> full -> Slice -> new state."""

    state: State
    before: ir.Value
    after: ir.Value
    join: ir.Node
    keep: ir.Node
    axis: int
    size: int
    pulse: int

    @property
    def full(self) -> ir.Value:
        return self.join.outputs[0]


def ring_form(model: ir.Model, spec: Spec, like: tuple[Ring, ...] | None = None) -> tuple[ir.Model, tuple[Ring, ...]]:
    """The model with its long caches as rings, and those; the model itself if none is worth it.

    like: the rings of another form of the same model; they are made just so, or not at all.
    """
    if not _candidates(model, spec):
        return model, ()
    from onnx_ir.passes.common import ShapeInferencePass

    made = KeepInRings(spec, like)(ShapeInferencePass()(model.clone()))
    return (made.model, made.rings) if made.rings else (model, ())


@dataclass
class Ringed(PassResult):
    """rings: those that were made."""

    rings: tuple[Ring, ...]


class KeepInRings(Change[Ringed]):
    """Long caches become rings, in place; like: those to make, just so, or none at all.

    Requires: the spec's long states are ports; sizes inferred, or it finds nothing to do.
    Ensures: every ring's places are inputs, and its states have its shape; nodes stand behind what they read.
    """

    def __init__(self, spec: Spec, like: tuple[Ring, ...] | None = None) -> None:
        self.spec, self.like = spec, like

    def requires(self, model: ir.Model) -> None:
        long = _long(self.spec)
        has_ports(model, [s.name for s in long], [s.after for s in long])

    def call(self, model: ir.Model) -> Ringed:
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        rings: list[Ring] = []
        for (size, _), group in self._groups(model).items():
            following = _settle(model, group, size, forced=self.like is not None)
            if following is not None:
                rings.append(_rewrite(model, group, following, len(rings)))
        RemoveUnusedNodesPass()(model)
        self._check(model, rings)
        return Ringed(model, bool(rings), tuple(rings))

    def _groups(self, model: ir.Model) -> dict[tuple[int, int], list[_Candidate]]:
        """Caches that turn together: as long, and as many new frames."""
        groups: dict[tuple[int, int], list[_Candidate]] = {}
        wanted = None if self.like is None else {c.state for ring in self.like for c in ring.caches}
        for c in _candidates(model, self.spec):
            if wanted is not None and c.state.name not in wanted:
                continue
            if size_at(c.full, c.axis - len(c.state.shape)) != c.size:  # frames in it come twice
                continue
            groups.setdefault((c.size, c.pulse), []).append(c)
        return groups

    def _check(self, model: ir.Model, rings: list[Ring]) -> None:
        shapes = {v.name: tuple(v.shape or ()) for v in (*model.graph.inputs, *model.graph.outputs)}
        for ring in rings:
            has_ports(model, [ring.start, ring.stop, *(c.index for c in ring.caches)], [])
            for c in ring.caches:
                if any(shapes[name] != ir.Shape(c.shape) for name in (c.state, self.spec.after(c.state))):
                    raise InvariantError(f"{c.state} has not the shape of its ring")


def _long(spec: Spec) -> list[State]:
    return [s for s in spec.states if s.nbytes >= SMALLEST and not s.grows and s.dtype.kind == "f"]


def _candidates(model: ir.Model, spec: Spec) -> list[_Candidate]:
    inputs = {v.name: v for v in model.graph.inputs}
    outputs = {v.name: v for v in model.graph.outputs}
    found = [_candidate(state, inputs[state.name], outputs[state.after]) for state in _long(spec)]
    return [c for c in found if c is not None]


def _candidate(state: State, before: ir.Value, after: ir.Value) -> _Candidate | None:
    uses = list(before.uses())
    identity = after.producer()
    if len(uses) != 1 or uses[0].node.op_type != "Concat" or identity is None or identity.op_type != "Identity":
        return None
    join = uses[0].node
    keep = identity.inputs[0].producer() if identity.inputs[0] is not None else None
    axis = join.attributes["axis"].as_int()
    if keep is None or keep.op_type != "Slice" or keep.inputs[0] is not join.outputs[0] or len(join.inputs) != 2:
        return None
    start, stop = _number(keep.inputs[1]), _number(keep.inputs[2])
    past = state.shape[axis]
    assert isinstance(past, int)
    if axis == 0 or join.inputs[0] is not before or start is None or stop != start + past:
        return None
    return _Candidate(state, before, after, join, keep, axis, stop, start)


def _number(value: ir.Value | None) -> int | None:
    if value is None or value.const_value is None:
        return None
    return int(value.const_value.numpy().item())


def _settle(model: ir.Model, group: list[_Candidate], size: int, forced: bool) -> Following | None:
    """Leave out, one after another, the candidates whose order shows; None if nothing is left or won."""
    while group:
        starts = {c.full: c.axis - len(c.state.shape) for c in group}
        try:
            following = follow(model.graph, starts, size, {c.keep for c in group})
        except Stuck as stuck:
            group[:] = [c for c in group if c.full not in stuck.sources]
            continue
        won = 2 * sum(math.prod(s for s in c.state.shape if isinstance(s, int)) for c in group)
        cost = sum(_cost(node.inputs[i], axis, size) for node, i, axis in following.turns)
        return following if forced or cost < won else None
    return None


def _operands(value: ir.Value, axis: int, size: int) -> list[tuple[int, int]] | None:
    """The inputs of its maker to turn instead of the value itself (index, axis); None: turn the value."""
    node = value.producer()
    if node is None or node.domain or len(node.outputs) != 1:
        return None
    if traits(node.op_type).elementwise:
        sizes = [1 if v is None else size_at(v, axis) for v in node.inputs]
        return None if None in sizes else [(i, axis) for i, s in enumerate(sizes) if s == size]
    if traits(node.op_type).regroups and node.inputs[0] is not None:
        at = regrouped(value, node.inputs[0], axis)
        return None if at is None else [(0, at)]
    return None


def _cost(value: ir.Value | None, axis: int, size: int) -> int:
    """Elements copied to turn a value: one time if it is a constant, three times otherwise."""
    assert value is not None
    operands = _operands(value, axis, size)
    if operands is not None:
        inputs = value.producer().inputs  # type: ignore[union-attr]
        return sum(_cost(inputs[i], at, size) for i, at in operands)
    count = math.prod(s for s in value.shape or () if isinstance(s, int))
    return count if value.const_value is not None else 3 * count


@dataclass(eq=False)
class _Turner:
    """Puts values in ring order, each once."""

    graph: ir.Graph
    size: int
    start: ir.Value
    stop: ir.Value
    name: str  # of the ring: a value may be turned for several
    made: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)

    def __call__(self, value: ir.Value, axis: int, before: ir.Node) -> ir.Value:
        if (value, axis) not in self.made:
            self.made[value, axis] = self._turn(value, axis, before)
        return self.made[value, axis]

    def _turn(self, value: ir.Value, axis: int, before: ir.Node) -> ir.Value:
        node, operands = value.producer(), _operands(value, axis, self.size)
        b, name = Builder(self.graph, before), f"{value.name}/{self.name}/{axis}"
        if node is not None and operands is not None:
            inputs = list(node.inputs)
            for i, at in operands:
                inputs[i] = self(inputs[i], at, before)  # type: ignore[arg-type]
            attrs = {key: a.value for key, a in node.attributes.items()}
            return b.op(node.op_type, inputs, value.shape, value.dtype, name=name, domain="", **attrs)
        assert value.shape is not None
        at = len(value.shape) + axis
        axes = b.constant(f"{value.name}/axis/{at}", np.array([at], np.int64))
        inputs = [self._twice(b, value, at), self.start, self.stop, axes]
        return b.op("Slice", inputs, value.shape, value.dtype, name=name, domain="")

    def _twice(self, b: Builder, value: ir.Value, at: int) -> ir.Value:
        if value.const_value is not None:
            array = value.const_value.numpy()
            return b.constant(f"{value.name}/twice/{at}", np.concatenate([array, array], at))
        name = f"{value.name}/{self.name}/twice/{at}"
        return b.op("Concat", [value, value], None, None, name=name, domain="", axis=at)


def _rewrite(model: ir.Model, group: list[_Candidate], following: Following, number: int) -> Ring:
    graph = model.graph
    size, pulse = group[0].size, group[0].pulse
    start, stop = (ir.val(f"ring_{number}_{end}", ir.DataType.INT64, ir.Shape([1])) for end in ("start", "stop"))
    graph.inputs.extend([start, stop])
    turner = _Turner(graph, size, start, stop, f"turned_{number}")
    for node, i, axis in following.turns:
        value = node.inputs[i]
        assert value is not None
        node.replace_input_with(i, turner(value, axis, node))
    caches: list[Cache] = []
    for c in group:
        caches.append(_cache(c, f"ring_{number}_at", caches))
        _write_in_place(graph, c, caches[-1])
    return Ring(size, pulse, start.name or "", stop.name or "", tuple(caches))


def _cache(c: _Candidate, index: str, others: list[Cache]) -> Cache:
    """The ring of a state; those with the same axes in front of time share their index."""
    shape = [*c.state.shape]
    shape[c.axis] = c.size
    swapped = c.axis == len(shape) - 1 and len(shape) > 2  # frames side by side: rows are written whole
    if swapped:
        shape[-2:] = shape[:-3:-1]
    cache = Cache(c.state.name, c.axis, swapped, tuple(shape), f"{index}_{len(others)}")
    shared = next((o.index for o in others if o.lead == cache.lead), cache.index)
    return replace(cache, index=shared)


def _write_in_place(graph: ir.Graph, c: _Candidate, cache: Cache) -> None:
    """new frames -> ScatterND into the state; what read the joined window reads the ring."""
    b = Builder(graph, c.join)
    index = next((v for v in graph.inputs if v.name == cache.index), None)
    if index is None:
        dims = [*cache.lead, c.pulse, len(cache.lead) + 1]
        index = ir.val(cache.index, ir.DataType.INT64, ir.Shape(dims))
        graph.inputs.append(index)
    new = c.join.inputs[1]
    assert new is not None
    if cache.swapped:
        new = _swap(b, new, len(cache.shape), f"{c.state.name}/rows")
    c.before.shape = ir.Shape(cache.shape)
    out = b.op("ScatterND", [c.before, index, new], cache.shape, c.before.dtype, name=f"{c.state.name}/ring")
    out.name, c.after.name = c.after.name, f"{c.state.name}/unused"
    graph.outputs[list(graph.outputs).index(c.after)] = out  # no copy on the way out
    read = _swap(b, out, len(cache.shape), f"{c.state.name}/columns") if cache.swapped else out
    c.full.replace_all_uses_with(read)


def _swap(b: Builder, value: ir.Value, rank: int, name: str) -> ir.Value:
    return b.op("Transpose", [value], None, None, name=name, perm=[*range(rank - 2), rank - 1, rank - 2])
