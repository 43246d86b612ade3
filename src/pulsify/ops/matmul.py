"""Products: time may be a row, a column or a batch axis of either side; summed over, it is a fold."""

from __future__ import annotations

from pulsify.analysis.facts import Wire
from pulsify.analysis.rows.reaches import ROW_READS, beside, check_summed
from pulsify.analysis.rows.wanted import RowRead, Wanted
from pulsify.convert.context import Context
from pulsify.convert.plan import Plan
from pulsify.core.equation import explicit
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.ops import late
from pulsify.ops.axes import guard
from pulsify.ops.fold import contracted
from pulsify.ops.late import LATE
from pulsify.ops.pointwise import check_operands, pointwise
from pulsify.ops.registry import rule

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
        check_operands(ctx, node, summed)
        return contracted(ctx, node, summed)
    return pointwise(ctx, node)


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
