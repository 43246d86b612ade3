"""What an attention computes, read off a step from the roles that the emitter gave its nodes (`core.roles`).

    score(i, j) = scale * queries(i) . keys(j) + terms(i, j) + positions(i, j - i)
    masks hide cells or fill them with a number; a softmax over j; the sum of values

Whoever has one operation for all of that asks here. What does not fit is said in words, and its nodes stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from pulsify.core.roles import POSITIONS, SCORES, SHIFTED, VALUES, WEIGHTS, role
from pulsify.optimize.views import Array, constant, only_reader, sizes

FAR = 16  # nodes between a sum and its scores, at the most
MOST_BEHIND = 500  # values looked at behind a mask or a bias


class Apart(Exception):
    """An attention that is not of this form; the reason is what a person reads."""


@dataclass(frozen=True, eq=False)
class Term:
    """Something added to the scores: an input of a node, times a number."""

    node: ir.Node
    at: int
    factor: float


@dataclass(frozen=True, eq=False)
class Mask:
    """The first input of a Where: cells that are seen, or (inverted) those that are not."""

    node: ir.Node
    inverted: bool

    def same(self, other: Mask) -> bool:
        return self.node.inputs[0] is other.node.inputs[0] and self.inverted == other.inverted


@dataclass(frozen=True, eq=False)
class Positions:
    """queries . table, read along the diagonal: the last axis of the table has rows + columns - 1 offsets.

    product: that node; factor: of all of it; term: the same as something added; nodes: what makes it.
    """

    product: ir.Node
    table: Array
    factor: float
    term: Term
    nodes: tuple[ir.Node, ...]

    @property
    def queries(self) -> ir.Value:
        value = self.product.inputs[0]
        assert value is not None
        return value


@dataclass(frozen=True, eq=False)
class Attention:
    """keys: [..., d, columns]; values: [..., columns, d]. fill: the score of masked cells; -inf: they take no part.

    hollow: what the weights of a row are that sees nothing, "nan" or "zero". nodes: all that is inside, without
    the last one and what makes positions.
    """

    last: ir.Node
    scores: ir.Node
    scale: float
    terms: tuple[Term, ...]
    masks: tuple[Mask, ...]
    fill: float
    hollow: str
    positions: Positions | None
    nodes: tuple[ir.Node, ...]

    @property
    def queries(self) -> ir.Value:
        return _given(self.scores, 0)

    @property
    def keys(self) -> ir.Value:
        return _given(self.scores, 1)

    @property
    def values(self) -> ir.Value:
        return _given(self.last, 1)


def _given(node: ir.Node, at: int) -> ir.Value:
    value = node.inputs[at]
    assert value is not None
    return value


@dataclass(eq=False)
class _Walk:
    """From the sum back to the scores: what was met on the way."""

    nodes: list[ir.Node] = field(default_factory=list)
    factor: float = 1.0
    terms: list[Term] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    fill: float = -math.inf
    positions: Positions | None = None


def attentions(model: ir.Model) -> Iterator[ir.Node]:
    """The sums that end an attention."""
    return (node for node in model.graph if role(node) == VALUES)


def reasons(model: ir.Model) -> dict[str, str]:
    """Every attention of a step by the node that ends it, and why it is not of this form; nothing if it is."""
    if not any(attentions(model)):
        return {}
    from onnx_ir.passes import Sequential

    from pulsify.optimize.constants import FoldConstants
    from pulsify.optimize.sized import ForStreams
    from pulsify.optimize.tidy import DropNeutral

    found: dict[str, str] = {}
    for last in attentions(Sequential(ForStreams(1), FoldConstants(), DropNeutral())(model).model):
        try:
            read(last)
            found[str(last.name)] = ""
        except Apart as reason:
            found[str(last.name)] = str(reason)
    return found


def read(last: ir.Node) -> Attention:
    """The attention that ends with this node, or `Apart` with the reason."""
    if last.op_type != "MatMul":
        raise Apart(f"it is written as {last.op_type}")
    walk = _Walk()
    softmax, zeros = _softmax(walk, last.inputs[0])
    scores = _scores(walk, _given(softmax, 0))
    if zeros and not (walk.fill == -math.inf and _alike(zeros, walk.masks)):
        raise Apart("weights are set to zero by another mask than the one that hides scores")
    hollow = "zero" if zeros else "nan"
    _check(last, _given(scores, 0), _given(scores, 1), _given(last, 1))
    return Attention(
        last, scores, walk.factor, tuple(walk.terms), tuple(walk.masks), walk.fill,
        hollow, walk.positions, tuple(walk.nodes),
    )  # fmt: skip


def _alike(some: list[Mask], others: list[Mask]) -> bool:
    """The same masks, in any order: a row that sees nothing has no weights but zeros then."""
    return all(any(a.same(b) for b in right) for left, right in ((some, others), (others, some)) for a in left)


def _inside(walk: _Walk, value: ir.Value | None) -> ir.Node:
    """What makes a value that is read here alone."""
    node = None if value is None else value.producer()
    if value is None or node is None:
        raise Apart("what it sums up is not made in this step")
    if not only_reader(value):
        raise Apart(f"something else reads '{value.name}' too")
    if len(walk.nodes) > FAR:
        raise Apart("there are too many operators in it")
    walk.nodes.append(node)
    return node


def _softmax(walk: _Walk, weights: ir.Value | None) -> tuple[ir.Node, list[Mask]]:
    """The softmax, and the masks that set weights to zero behind it."""
    zeros: list[Mask] = []
    while role(node := _inside(walk, weights)) != WEIGHTS:
        if node.op_type != "Where":
            raise Apart(f"weights pass through {node.op_type}")
        if _tests_for_nan(node):  # zeros times values that are NaN are NaN again, which a kernel would have to look for
            raise Apart("weights that are NaN are set to zero behind its softmax")
        mask, weights, filled = _where(node, _leads(node, WEIGHTS))
        if filled != 0:
            raise Apart("weights are replaced behind the softmax")
        zeros.append(mask)
    rank = len(sizes(node.outputs[0]) or node.outputs[0].shape or ())
    if node.attributes.get_int("axis", -1) not in (-1, rank - 1):
        raise Apart("its softmax is not over the last axis")
    return node, zeros


def _tests_for_nan(node: ir.Node) -> bool:
    """Where(IsNaN(weights), 0, weights), as torch exports its attention."""
    made = None if node.inputs[0] is None else node.inputs[0].producer()
    return made is not None and made.op_type == "IsNaN"


def _scores(walk: _Walk, x: ir.Value) -> ir.Node:
    """The product of queries and keys; what is added, multiplied and hidden on the way is noted."""
    while role(node := _inside(walk, x)) != SCORES:
        at = _leads(node, SCORES)
        inner = node.inputs[at]
        assert inner is not None
        if not _as_large(inner, node.outputs[0]):
            raise Apart(f"its scores are not as large as what {node.op_type} makes of them")
        if node.op_type == "Where":
            _hide(walk, node, at)
        elif node.op_type in ("Add", "Sub"):
            if node.op_type == "Sub" and at == 1:
                raise Apart("its scores are subtracted from something")
            _add(walk, Term(node, 1 - at, -walk.factor if node.op_type == "Sub" else walk.factor))
        elif node.op_type in ("Mul", "Div") and (node.op_type == "Mul" or at == 0):
            number = _number(node.inputs[1 - at])
            if number is None or not 0 < number < math.inf:
                raise Apart(f"its scores are scaled by more than a number ({node.op_type})")
            walk.factor *= number if node.op_type == "Mul" else 1 / number
        else:
            raise Apart(f"scores pass through {node.op_type}")
        x = inner
    if node.op_type != "MatMul":
        raise Apart(f"its scores are written as {node.op_type}")
    return node


def _hide(walk: _Walk, node: ir.Node, at: int) -> None:
    mask, _, filled = _where(node, at)
    if filled is None or math.isnan(filled):
        raise Apart("its mask fills in something that is not a number")
    changed = walk.terms or walk.positions is not None or walk.factor != 1
    if filled > -math.inf and (walk.masks or changed):
        raise Apart("one mask hides and another one fills, or scores are changed behind the mask")
    if walk.fill > -math.inf:
        raise Apart("one mask hides and another one fills")
    walk.masks.append(mask)
    walk.fill = filled


def _where(node: ir.Node, at: int) -> tuple[Mask, ir.Value | None, float | None]:
    """The mask, what it lets through, and what it puts in place of the rest."""
    if at == 0:
        raise Apart("its scores are what a mask is made of")
    return Mask(node, at == 2), node.inputs[at], _number(node.inputs[3 - at])


def _add(walk: _Walk, term: Term) -> None:
    found = _positions(term) if walk.positions is None else None
    if found is None:
        walk.terms.append(term)
    else:
        walk.positions = found


def _positions(term: Term) -> Positions | None:
    """A product with a table of offsets, if what is added is just that; else it is added as it is."""
    value, factor, nodes = _given(term.node, term.at), term.factor, list[ir.Node]()
    while (node := value.producer()) is not None and only_reader(value) and len(nodes) < FAR:
        nodes.append(node)
        if role(node) == POSITIONS:
            table = constant(node.inputs[1]) if node.op_type == "MatMul" else None
            return None if table is None else Positions(node, table, factor, term, tuple(nodes))
        number = _number(node.inputs[1]) if node.op_type == "Mul" else None
        within = any(role(n) == SHIFTED for n in nodes)
        if number is None and not (within and node.op_type in ("Reshape", "Slice")):
            return None
        factor *= 1.0 if number is None else number
        value = _given(node, 0)
    return None


def _leads(node: ir.Node, wanted: str) -> int:
    """Which of a node's inputs the node of a role stands behind."""
    found = [i for i, v in enumerate(node.inputs) if v is not None and _stands_behind(v, wanted)]
    if len(found) != 1:
        raise Apart(f"{node.op_type} joins several attentions, or none")
    return found[0]


def _stands_behind(value: ir.Value, wanted: str) -> bool:
    todo, seen = [value], {value}
    for found in todo:  # the nearest first
        node = found.producer()
        if node is None or role(node) == VALUES or len(seen) > MOST_BEHIND:  # another attention's result
            continue
        if role(node) == wanted:
            return True
        if role(node) not in (SCORES, POSITIONS):
            fresh = [v for v in node.inputs if v is not None and v not in seen]
            seen.update(fresh)
            todo += fresh
    return False


def _number(value: ir.Value | None) -> float | None:
    array = constant(value)
    if array is None or array.size == 0 or array.dtype.kind != "f":
        return None
    first = array.reshape(-1)[0]
    return float(first) if (array == first).all() else None


def _as_large(one: ir.Value, other: ir.Value) -> bool:
    """Sizes that are not known (of columns that grow) are not known in both."""
    a, b = _size(one), _size(other)
    if a is None or b is None or len(a) != len(b):
        return False
    return all(x == y if isinstance(x, int) else not isinstance(y, int) for x, y in zip(a, b, strict=True))


def _size(value: ir.Value) -> tuple[object, ...] | None:
    return None if value.shape is None else tuple(value.shape)


def _check(last: ir.Node, queries: ir.Value, keys: ir.Value, values: ir.Value) -> None:
    shapes = [_size(v) for v in (queries, keys, values)]
    if any(s is None for s in shapes) or len({len(s) for s in shapes if s is not None}) != 1:
        raise Apart("its queries, keys and values do not have the same axes")
    ranks = len(shapes[0] or ())
    if not 2 <= ranks <= 4:
        raise Apart(f"it has {ranks} axes")
    kinds = {v.dtype for v in (queries, keys, values, last.outputs[0])}
    if len(kinds) != 1 or np.dtype(queries.dtype.numpy() if queries.dtype else float) == np.float64:
        raise Apart("its types differ, or are not float32 or lower")
