"""Nodes that stand for other nodes are replaced by them: branches by the one taken, fused operators by their parts.

One walk over the graph at a concrete length decides. What it decided is kept with the model: that it is decided so at
every length is proven when all sizes are known (`analysis/proof/decided.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

import onnx
import onnx_ir as ir
from onnx import helper

from pulsify.core.errors import NotStreamable
from pulsify.core.refusal import Kind
from pulsify.frontend.branches import branch, chosen, is_branch, may_fail, side
from pulsify.frontend.columns import Columns, may_join
from pulsify.frontend.empty_parts import cut_parts, is_left_out, without_parts
from pulsify.frontend.fused import only_of_data, stands_for_others, written_out
from pulsify.frontend.in_place import as_joins, is_write, reading
from pulsify.frontend.joined_parts import part_read, reads_a_part
from pulsify.frontend.loop_ports import looped
from pulsify.frontend.model import Decision, Model, Node
from pulsify.frontend.time import Lengths, TimeSpec
from pulsify.frontend.unroll import first_turn, unrolled
from pulsify.frontend.write_joins import Reading
from pulsify.trace.evaluate import Evaluator, iterations
from pulsify.trace.lengths import BATCHES, RESIDUES, SCALES, Tracer
from pulsify.trace.tied import Run, tied, without_entries
from pulsify.trace.traced import CannotRun, Traced
from pulsify.trace.window import windowed

SHORT = (64, 24, 12)  # lengths at which columns are looked for: position tables may end early


def resolve(model: Model, time: TimeSpec) -> Model:
    """The model without `If` and without fused operators, or NotStreamable if a branch is not decided."""
    model = _without_empty_parts(model, time)
    needed = any(_stands_for_others(n) for n in model.nodes)
    if not needed and not may_join(model.nodes):
        return model
    try:
        first = _first_walk(model, time, SCALES if needed else SHORT, explain=needed)
        if first.iterations or first.places or first.joins:
            decided = bool(first.iterations or first.places)
            other = _first_walk(model, time, _others(first.length), batch=BATCHES[1], explain=decided)
            turns = other.iterations  # loops that turn as often at another length are written out
            same = frozenset(n for n, count in first.iterations.items() if turns.get(n) == count)
            sizes = other.sizes if first.joins else None
            first = _first_walk(model, time, (first.length,), same, other.places, sizes=sizes, explain=needed)
    except NotStreamable:
        if needed:
            raise
        return model  # what is in the way is said where the model is run
    return dataclasses.replace(first.model, decisions=(*model.decisions, *first.decisions), producers={})


def _others(length: int) -> tuple[int, ...]:
    """Other lengths than this one; shorter ones too, since tables may end."""
    return 2 * length, length + length // 2, length + 4, max(length // 2, 1)


def _without_empty_parts(model: Model, time: TimeSpec) -> Model:
    """Joins without the parts that have no entries at a first length; that it is so at every length is proven later."""
    parts = cut_parts(model)
    if not parts:
        return model
    evaluator = Evaluator(model, parts)
    values = dict(Tracer(model, time).inputs(time.lengths.next(SCALES[0] + 3), BATCHES[0]))
    values.update(evaluator.constants())
    with suppress(CannotRun, NotStreamable):  # whatever else is in the way is said where the model is run
        for node in model.nodes:
            evaluator.step(node, values)
    empty = {p: js for p, js in parts.items() if p in values and all(is_left_out(j, values[p].dims) for j in js)}
    if not empty:
        return model
    makers = {p: model.producers[p] for p in empty}
    decisions = (
        Decision(n.name, n.op, p, js[0].attr("axis", 0) % len(values[p].dims), 0)
        for (p, js), n in zip(empty.items(), makers.values(), strict=True)
    )
    return dataclasses.replace(without_parts(model, empty), decisions=(*model.decisions, *decisions), producers={})


@dataclass(frozen=True, eq=False)
class Walk:
    """The settled model as one length decides it, and the decisions.

    iterations: of the Scans and Loops left in it; places: where nodes write into parts of tensors; joins: may columns
    stand beside those of the frames; sizes: of all values.
    """

    length: int
    model: Model
    decisions: tuple[Decision, ...]
    iterations: dict[str, int]
    places: dict[str, Reading]
    joins: bool
    sizes: dict[str, tuple[int, ...]]


def _first_walk(
    model: Model,
    time: TimeSpec,
    scales: tuple[int, ...],
    unroll: frozenset[str] = frozenset(),
    places: Mapping[str, Reading] = MappingProxyType({}),
    batch: int = BATCHES[0],
    sizes: Mapping[str, tuple[int, ...]] | None = None,
    explain: bool = True,
) -> Walk:
    """A walk at the first length that works. explain: is it worth a search why none does?"""
    problems = list[CannotRun]()
    for tries, length in enumerate(_lengths(scales, time.lengths)):
        try:
            return _walk(model, time, length, unroll, places, batch, sizes)
        except CannotRun as error:
            problems.append(error)
        if not tries and explain:
            run = _tries(model, time, unroll, places, batch)
            refusal = windowed(run, model, time) or tied(run, time.step, (1,), exporter=model.exporter)
            if refusal is not None:
                raise refusal
    if (refusal := without_entries(*problems)) is not None:
        raise refusal
    problem = problems[-1]
    raise NotStreamable(
        f"the model runs at no length tried: {problem.reason}",
        node=problem.node.name,
        op=problem.node.op,
        hint="export it with a dynamic time axis, and check that it runs in ONNX Runtime at several lengths",
        kind=Kind.EXPORT,
    )


def _tries(model: Model, time: TimeSpec, unroll: frozenset[str], places: Mapping[str, Reading], batch: int) -> Run:
    """Walks at many lengths: what is the same at all of them is computed once."""
    evaluator = Evaluator(model)
    lasting = evaluator.lasting(lambda n: not _stands_for_others(n))
    return lambda length, _: _walk(model, time, length, unroll, places, batch, None, evaluator, lasting)


def _lengths(scales: tuple[int, ...], declared: Lengths) -> Iterator[int]:
    """Short ones, longer ones (a pad may mirror many frames), and all residues of the first few."""
    starts, step = [declared.next(scale) for scale in scales], declared.every
    yield from starts[:-1] or starts
    for start in starts[:3]:
        yield from range(start + step, start + RESIDUES * step, step)
    yield starts[-1]


def _stands_for_others(node: Node) -> bool:
    return is_branch(node) or node.body is not None or is_write(node) or stands_for_others(node)


def _walk(
    model: Model,
    time: TimeSpec,
    length: int,
    unroll: frozenset[str],
    places: Mapping[str, Reading],
    batch: int,
    sizes: Mapping[str, tuple[int, ...]] | None,
    evaluator: Evaluator | None = None,
    lasting: Mapping[str, Traced] = MappingProxyType({}),
) -> Walk:
    """The settled model and the decisions taken, at one length.

    unroll: names of loops to write out. places: where nodes write at another length; sizes: of all values there.
    lasting: what is the same at every length.
    """
    tracer = Tracer(model, time)
    settling = _Settling(model, evaluator or Evaluator(model), unroll, places, dict(model.constants), sizes, lasting)
    values = dict(tracer.inputs(length, batch if time.batch else 1))
    values.update(settling.evaluator.constants())
    values.update(lasting)
    nodes = settling.settle(model.nodes, values)
    settled = dataclasses.replace(model, nodes=tuple(nodes), constants=settling.constants, producers={})
    return Walk(
        length,
        settled,
        tuple(settling.decisions),
        settling.counts,
        settling.read,
        settling.joins,
        {n: v.dims for n, v in values.items()},
    )


@dataclass(eq=False)
class _Settling:
    """What a walk has found so far."""

    model: Model
    evaluator: Evaluator
    unroll: frozenset[str]
    places: Mapping[str, Reading]  # where nodes write, at another length
    constants: dict[str, ir.TensorProtocol]
    sizes: Mapping[str, tuple[int, ...]] | None  # of all values, at another length
    lasting: Mapping[str, Traced]  # the same at every length
    decisions: list[Decision] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    read: dict[str, Reading] = field(default_factory=dict)  # where nodes write, at this length
    numbers: set[str] = field(default_factory=set)  # of the turns of loops, and what is known of each turn
    makers: dict[str, Node] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)  # values that writes into axes of fixed size are replaced by
    joins: bool = False  # columns may stand beside those of the frames

    def settle(self, given: Sequence[Node], values: dict[str, Traced], inside: bool = False) -> list[Node]:
        """The nodes that stand for these. inside: of a body, where every loop is written out."""
        nodes: list[Node] = []
        todo = list(reversed(given))
        columns = Columns(self.sizes, values, self.makers, BATCHES)
        while todo:
            node = todo.pop()
            if not inside and (apart := columns.instead(node)) is not None:
                self.joins = True
                if self.sizes is not None:
                    self.decisions += apart.decisions
                    self.constants.update(apart.constants)
                    values.update(self.evaluator.lazy_constants(apart.constants))
                    todo.extend(reversed(apart.nodes))
                    continue
            if node.body is not None and node.body.nested:
                node = self._without_bodies(node, values)
            looping = node.body is not None and node.name not in self.unroll and not inside
            stays = not (_stands_for_others(node) or (self.written and reads_a_part(node)))
            whole = looping or stays or (only_of_data(node) and values[node.inputs[0]].known)
            replaced = None if whole else self._replaced(node, values, inside)
            if replaced is None:
                if not all(o in self.lasting for o in node.outputs if o):
                    self.evaluator.step(node, values)
                nodes.append(node)
                self.makers.update(dict.fromkeys(node.outputs, node))
                if not inside:
                    columns.follow(node)
                if looping:
                    self.counts[node.name] = iterations(node, values)
                continue
            inner, lifted = replaced
            self.constants.update(lifted)
            values.update(self.evaluator.lazy_constants(lifted))
            todo.extend(reversed(inner))
        return nodes

    def _replaced(
        self, node: Node, values: dict[str, Traced], inside: bool
    ) -> tuple[list[Node], dict[str, ir.TensorProtocol]] | None:
        """The nodes that stand for this one, and their constants; None if it stays."""
        if node.body is not None:
            count = iterations(node, values)
            self.decisions.append(_turned(node, count))
            return unrolled(node, count)
        if is_branch(node):
            if inside and not values[node.inputs[0]].known:
                return self._both(node, values), {}
            taken = _decide(node, values[node.inputs[0]])
            self.decisions.append(Decision(node.name, node.op, node.inputs[0], None, int(taken)))
            return branch(node, taken, self.model.opset_imports)
        if is_write(node):
            read = None if inside else reading(node, values)
            if read is not None:
                self.read[node.name] = read
            other = self.places.get(node.name)
            if read is None or other is None:
                return None
            joins = as_joins(node, values, other, self.constants, self.makers)
            if joins is None:
                return None
            self.decisions += joins.decisions
            if all(a.whole or a.size == b.size for a, b in zip(read, other, strict=True)):
                self.written.update(o for n in joins.nodes for o in n.outputs)
            return joins.nodes, joins.constants
        if reads_a_part(node):
            part = part_read(node, values, self.makers, self.written)
            if part is None:
                return None
            self.decisions += part.decisions
            return part.nodes, part.constants
        types = [_type(values[i]) if i else onnx.TypeProto() for i in node.inputs]
        return written_out(node, types, self.model.opset_imports.get("", 0))

    def _both(self, node: Node, values: dict[str, Traced]) -> list[Node]:
        """Both branches of an If that the turns of a loop take or not, and a choice."""
        by_turn, opsets = self._by_turn(node.inputs[0], values), self.model.opset_imports
        nodes: list[Node] = []
        for taken in (True, False):
            inner, lifted = branch(side(node, taken), taken, opsets)
            self.constants.update(lifted)
            values.update(self.evaluator.lazy_constants(lifted))
            try:
                nodes += self.settle(inner, values, inside=True)
            except CannotRun as problem:
                raise _undecided(node, by_turn, f"one of its branches cannot run: {problem.reason}") from problem
        for n in nodes:
            if may_fail(n, lambda name: values[name].known, values[n.outputs[0]].dtype):
                raise _undecided(node, by_turn, f"{n.op} in one of its branches may fail where that is not taken")
        scalar = not values[node.inputs[0]].dims
        for i, pair in enumerate(zip(*(side(node, taken).outputs for taken in (True, False)), strict=True)):
            one, other = (values[name] for name in pair)
            if (one.dtype, one.dims) != (other.dtype, other.dims):
                shapes = f"{list(one.dims)} and {list(other.dims)}"
                raise _undecided(node, by_turn, f"its branches make values of different shapes, {shapes}")
            nodes += chosen(node, i, one.dtype, scalar, opsets.get("", 0))
        return nodes

    def _by_turn(self, name: str, values: Mapping[str, Traced]) -> bool:
        """Is a value known but for the number of the turn?"""
        todo, seen = [name], set[str]()
        while todo:
            at = todo.pop()
            if at and at not in seen and not values[at].known and at not in self.numbers:
                if at not in self.makers:
                    return False
                todo.extend(self.makers[at].reads)
            seen.add(at)
        return bool(seen & self.numbers)

    def _without_bodies(self, node: Node, values: dict[str, Traced]) -> Node:
        """The loop with all loops and branches in its body written out there."""
        assert node.body is not None
        body, before = node.body, len(self.decisions)
        parts = looped(node, nested=True)
        known = {along.inner for along in parts.scanned if values[along.outer].known}
        self.numbers |= known | ({parts.number} - {""})
        inner = values | self.evaluator.inside(node, parts, values)  # branches in it read what the body does not
        nodes = tuple(self.settle(body.nodes, inner, inside=True))
        values.update(self.evaluator.lazy_constants({n: t for n, t in self.constants.items() if n not in values}))
        made = {*body.inputs, *(o for n in nodes for o in n.outputs), ""}
        captured = dict.fromkeys([*(i for n in nodes for i in n.reads), *body.outputs])
        settled = dataclasses.replace(
            node, body=dataclasses.replace(body, nodes=nodes, captured=tuple(i for i in captured if i not in made))
        )
        taken, self.decisions[before:] = self.decisions[before:], []
        for decision in taken:
            if node.name in self.unroll:
                self.decisions.append(dataclasses.replace(decision, name=first_turn(settled, decision.name)))
            elif decision.name not in made:
                self.decisions.append(decision)
            else:  # a scan over time: nothing in its body has time, see ops/scan, but for what is known around it
                _check_inside(node, nodes, decision, values, self.constants)
        return settled


def _check_inside(
    node: Node, nodes: Sequence[Node], decision: Decision, values: Mapping[str, Traced], constants: Container[str]
) -> None:
    """What decides inside a body must not be made of what goes with the length around it."""
    makers = {o: n for n in nodes for o in n.outputs}
    todo, seen = [decision.name], set[str]()
    while todo:
        name = todo.pop()
        if name in seen or not name:
            continue
        seen.add(name)
        if name in makers:
            todo.extend(makers[name].inputs)
        elif name in values and values[name].known and name not in constants:
            raise NotStreamable(
                f"a loop or branch inside its body ('{decision.node}') is decided by '{name}', which is made around it",
                node=node.name,
                op=node.op,
                hint="write it out, or decide it by a constant",
                kind=Kind.DATA,
            )


def _turned(node: Node, count: int) -> Decision:
    """What says how often a loop turns: a number, or the size of an axis."""
    parts = looped(node)
    if parts.count:
        return Decision(node.name, node.op, parts.count, None, count)
    along = parts.scanned[0]
    return Decision(node.name, node.op, along.outer, along.axis, count)


def _decide(node: Node, condition: Traced) -> bool:
    if not condition.known:
        raise NotStreamable(
            "the condition depends on the data",
            node=node.name,
            op=node.op,
            hint="export the model so that the branch is decided (trace instead of script)",
            kind=Kind.DATA,
        )
    return bool(condition.array.reshape(-1)[0])


def _undecided(node: Node, by_turn: bool, reason: str) -> NotStreamable:
    """Why the branches of an If inside a loop are not both computed."""
    what = "which turn of the loop it is" if by_turn else "the data"
    return NotStreamable(
        f"the condition depends on {what}, and {reason}",
        node=node.name,
        op=node.op,
        hint="carry what is read of other turns as a state; compute both values every turn and choose with torch.where",
        kind=Kind.DATA,
    )


def _type(value: Traced) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(int(value.dtype), value.dims)
