"""Products: time may be a row, a column or a batch axis of either side; summed over, it is a fold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pulsify.analysis.facts import Wire
from pulsify.analysis.mask_cells import CELLS, CellLaw
from pulsify.analysis.rows.reaches import ROW_READS, beside, check_summed
from pulsify.analysis.rows.wanted import RowRead, Wanted
from pulsify.analysis.values.follow import VALUES, Fixed, Follower, Value
from pulsify.analysis.values.sizes import SIZES
from pulsify.core.equation import explicit
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths.affine_array import FAR, exactly, joint
from pulsify.lengths.indexing import met, moved_axes
from pulsify.lengths.series import Series, Unsure
from pulsify.lengths.sizes import Sizes
from pulsify.ops import late
from pulsify.ops.axes import guard
from pulsify.ops.fold import contracted
from pulsify.ops.late import LATE
from pulsify.ops.pointwise import pointwise
from pulsify.ops.registry import rule
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan
from pulsify.trace.sides import Sides, combined
from pulsify.trace.usage import ROLE, Derived, Extent, Role, Use, Walk

CONTRACTION = "a sum over time needs a bounded window (a convolution) or a bounded attention mask"


@rule(
    "MatMul",
    "MatMulInteger",
    "QLinearMatMul",
    says="time on a row, column or batch axis; summed over it (MatMul) at the end of the stream",
)
def matmul(ctx: Context, node: Node) -> Plan | None:
    second = 3 if node.op == "QLinearMatMul" else 1
    left, right = ctx.ask.wire(node.inputs[0]), ctx.ask.wire(node.inputs[second])
    if node.op == "MatMul" and left is not None and right is not None and _both_summed(left, right):
        return contracted(ctx, node, {0: left, 1: right})
    guard(ctx, node, left, [-1], "sums", CONTRACTION)
    if right is not None:
        guard(ctx, node, right, [-2 if right.layout.rank > 1 else -1], "sums", CONTRACTION)
    _one_time_axis(ctx, node, left, right)
    return pointwise(ctx, node)


def _both_summed(left: Wire, right: Wire) -> bool:
    """Is time what a product of matrices sums over, on both sides?"""
    if min(left.layout.rank, right.layout.rank) < 2:
        return False
    return left.layout.axis == left.layout.rank - 1 and right.layout.axis == right.layout.rank - 2


def _one_time_axis(ctx: Context, node: Node, left: Wire | None, right: Wire | None) -> None:
    if left is None or right is None:
        return
    from_end = left.layout.rank - left.layout.axis, right.layout.rank - right.layout.axis
    if from_end[0] != from_end[1] or from_end[0] <= 2:
        ctx.ask.refuse(
            node,
            "every frame meets every other frame (attention scores), and nothing bounds how far it looks",
            "mask the scores so that a frame sees a bounded number of frames before and after it",
            kind=Kind.LOOK_AHEAD,
        )


@rule("Gemm", says="time on the rows or columns that stay")
def gemm(ctx: Context, node: Node) -> Plan | None:
    left, right = ctx.ask.wire(node.inputs[0]), ctx.ask.wire(node.inputs[1])
    guard(ctx, node, left, [0 if node.attr("transA", 0) else 1], "sums", CONTRACTION)
    guard(ctx, node, right, [1 if node.attr("transB", 0) else 0], "sums", CONTRACTION)
    _one_time_axis(ctx, node, left, right)
    return pointwise(ctx, node)


@rule("Einsum", says="time on an index that stays in the result; one that does not, at the end of the stream")
def einsum(ctx: Context, node: Node) -> Plan | None:
    terms, _, result = explicit(str(node.attr("equation")), [len(ctx.ask.dims(i)) for i in node.inputs]).partition("->")
    letters: set[str] = set()
    summed: dict[int, Wire] = {}
    for i, (name, term) in enumerate(zip(node.inputs, terms.split(","), strict=True)):
        wire = ctx.ask.wire(name)
        if wire is None:
            continue
        letter = term[wire.layout.axis]
        letters.add(letter)
        if term.count(letter) > 1:
            ctx.ask.refuse(node, "it takes a diagonal over time", "index the frames another way")
        if letter not in result:
            summed[i] = wire
    if len(letters) > 1:
        ctx.ask.refuse(
            node,
            "every frame meets every other frame (attention scores), and nothing bounds how far it looks",
            "mask the scores so that a frame sees a bounded number of frames before and after it",
            kind=Kind.LOOK_AHEAD,
        )
    if summed:
        return contracted(ctx, node, summed)
    return pointwise(ctx, node)


# ---- roles of inputs
@ROLE("MatMul", "Gemm", "Einsum")
def _product_of_masks(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    operands = [own.get(i) for i in (0, 1)]
    if walk.known(node.outputs[0]) and all(isinstance(o, Sides) for o in operands):
        return combined("Mul", [o for o in operands if isinstance(o, Sides)])
    side = next((o for o in operands if isinstance(o, Sides)), None)
    if not walk.known(node.outputs[0]) and side is not None:
        dropped = side.beyond == 0
        walk.say(node, Use.LENGTH if dropped else Use.PLAIN, "sums the frames before it" if dropped else "reads it")
        return None
    if walk.known(node.outputs[0]):
        return next((r for r in own.values() if isinstance(r, Extent)), Derived())
    walk.say(node, Use.PLAIN, "reads it")
    return None


# ---- values by length
@VALUES("MatMul", "Gemm")
def product_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    """Sums over axes that are no time axes: any function of what is multiplied."""
    a, b = (exactly(f.spread(v)) for v in ins[:2])
    if node.op == "Gemm":
        if node.attr("transA", 0) or not all(isinstance(v, Fixed) for v in ins[1:]):
            raise Unsure("nothing is known of what Gemm does with it")
        b = replace(b, sizes=b.sizes[::-1]) if node.attr("transB", 0) else b
    if a.rank < 2 or b.rank < 2 or a.rank - 1 in a.times or b.rank - 2 in b.times:
        raise Unsure("it sums over time")
    rank = max(a.rank, b.rank)
    pairs = [[v.sizes[i - rank + v.rank] for v in (a, b) if i - rank + v.rank >= 0] for i in range(rank - 2)]
    sizes = (*map(met, pairs), a.sizes[-2], b.sizes[-1])
    left = moved_axes(a, {c: c + rank - a.rank for c in range(a.rank - 1)}, sizes)
    right = moved_axes(b, {c: c + rank - b.rank for c in range(b.rank) if c != b.rank - 2}, sizes)
    return joint(sizes, left, right, lo=-FAR, hi=FAR, floating=True, grain=None)


@SIZES("MatMul")
def product_sizes(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    a, b = sizes
    if len(a) < 2 or len(b) < 2:
        return (*a[:-1], *b[:-2], *(b[-1:] if len(b) > 1 else ()))
    rank = max(len(a), len(b)) - 2
    lead = [met([s[i - rank - 2] for s in (a, b) if len(s) >= rank + 2 - i]) for i in range(rank)]
    return (*lead, a[-2], b[-1])


def _letters(node: Node) -> tuple[list[str], str]:
    """Of an Einsum: of every input, and of the output."""
    equation = str(node.attr("equation", "")).replace(" ", "")
    if "." in equation or "->" not in equation:
        raise Unsure("nothing is known of what Einsum does with it")
    inputs, out = equation.split("->")
    return inputs.split(","), out


@VALUES("Einsum")
def einsum_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    """As MatMul, by letters."""
    letters, out = _letters(node)
    spreads = [exactly(f.spread(v)) for v in ins]
    by_letter: dict[str, Series] = {}
    for v, own in zip(spreads, letters, strict=True):
        if len(set(own)) < len(own) or any(own[a] not in out for a in v.times):
            raise Unsure("it sums over time")
        for s, letter in zip(v.sizes, own, strict=True):
            by_letter[letter] = s if letter not in by_letter or not s.constant else by_letter[letter]
    sizes = tuple(by_letter[letter] for letter in out)
    moved = [
        moved_axes(v, {a: out.index(letter) for a, letter in enumerate(own) if letter in out}, sizes)
        for v, own in zip(spreads, letters, strict=True)
    ]
    return joint(sizes, *moved, lo=-FAR, hi=FAR, floating=True, grain=None)


@SIZES("Einsum")
def einsum_sizes(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    letters, out = _letters(node)
    by_letter: dict[str, list[Series]] = {}
    for own, size in zip(letters, sizes, strict=True):
        for letter, s in zip(own, size, strict=True):
            by_letter.setdefault(letter, []).append(s)
    return tuple(met(by_letter[letter]) for letter in out)


# ---- cells of a mask
CELLS.add(dict.fromkeys(("MatMul", "Einsum"), CellLaw("weighs")))


# ---- rows of known tables
@ROW_READS("Gemm")
def _gemm(w: Wanted) -> list[RowRead]:
    flip = [int(bool(w.node.attr(t, 0))) for t in ("transA", "transB")]
    check_summed(w, 0, [1 - flip[0]])
    sides = [None, None] if w.axis is None else [flip[0], None] if w.axis == 0 else [None, 1 - flip[1]]
    reads = [w.read(i, a) for i, a in enumerate(sides)]
    if w.node.input(2):
        reads.append(beside(w, 2, w.rows.sizes(w.name)))
    return reads


# ---- frames joined with a value of the whole stream
LATE.add({"MatMul": late.contracted})
