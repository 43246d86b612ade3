"""Operators that mix some axes and leave the others alone: fine as long as time is not among the mixed ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from pulsify.analysis.axes import reduced_axes
from pulsify.analysis.facts import Late, Wire
from pulsify.analysis.mask_cells import CELLS, CellLaw
from pulsify.analysis.rows.reaches import ROW_READS, normalised
from pulsify.analysis.values.follow import VALUES, Fixed, Follower, Value
from pulsify.analysis.values.reductions import Reduction, reduced, reduced_sizes
from pulsify.analysis.values.sizes import SIZES
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths.affine_array import FAR, exactly
from pulsify.lengths.series import Unsure
from pulsify.ops import fold, late
from pulsify.ops.best import best_frames
from pulsify.ops.field_reduce import ROW_REDUCTIONS, RowReduction
from pulsify.ops.late import LATE
from pulsify.ops.pointwise import pointwise
from pulsify.ops.registry import rule
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan
from pulsify.trace.evaluate import DIGITS, exact, rounds
from pulsify.trace.shapes import NO_LARGER, SHAPE, Dims, Inputs, always
from pulsify.trace.sides import Sides
from pulsify.trace.usage import ROLE, SIZED, Count, Derived, Extent, Role, Sized, Use, Walk

BOUNDED = "use a bounded window (a convolution, a pool) or a running value (a cumulative sum) instead"


def guard(ctx: Context, node: Node, wire: Wire | None, mixed: Iterable[int], what: str, hint: str = BOUNDED) -> None:
    """Refuse if the time axis of an input is one of the mixed axes."""
    if wire is not None and wire.layout.axis in {a % wire.layout.rank for a in mixed}:
        ctx.ask.refuse(node, f"it {what} over the whole stream", hint, kind=Kind.WHOLE_STREAM)


@rule("Softmax", "LogSoftmax", "Hardmax", says="along any axis but time; over time (no Hardmax) if a sum follows")
def softmax(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    over_time = wire is not None and wire.layout.axis == node.attr("axis", -1) % wire.layout.rank
    data = ctx.ask.known(node.outputs[0]) is None
    if wire is not None and over_time and node.op != "Hardmax" and data and not wire.layout.folded:
        ctx.ask.facts[node.outputs[0]] = (
            Late(node, node, logits=wire) if node.op == "Softmax" else Late(node, node, value=wire, log=True)
        )
        return None
    guard(
        ctx,
        node,
        wire,
        [node.attr("axis", -1)],
        "normalises",
        "a softmax needs a bounded mask or window",
    )
    return pointwise(ctx, node)


@rule("ArgMax", "ArgMin", says="along any axis; over time at the end of the stream")
def arg_extreme(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if wire is not None and wire.layout.axis == node.attr("axis", 0) % wire.layout.rank:
        return fold.arg_extreme(ctx, node, wire)
    return pointwise(ctx, node)


@rule("TopK", says="along any axis; over time at the end of the stream, in order")
def top_k(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if wire is not None and wire.layout.axis == node.attr("axis", -1) % wire.layout.rank:
        return best_frames(ctx, node, wire)
    return pointwise(ctx, node)


@rule("LpNormalization", says="along any axis but time")
def lp_normalization(ctx: Context, node: Node) -> Plan | None:
    guard(ctx, node, ctx.ask.wire(node.inputs[0]), [node.attr("axis", -1)], "normalises")
    return pointwise(ctx, node)


@rule(
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    says="over any axes; over time at the end of the stream",
)
def reduce(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    axes = reduced_axes(ctx.ask, node)
    if wire is not None and wire.layout.axis in axes:
        return fold.reduced(ctx, node, wire, axes, keep=bool(node.attr("keepdims", 1)))
    return pointwise(ctx, node)


@rule("LayerNormalization", "RMSNormalization", says="over axes behind time")
def layer_norm(ctx: Context, node: Node) -> Plan | None:
    rank = len(ctx.ask.dims(node.inputs[0]))
    first = node.attr("axis", -1) % rank
    guard(ctx, node, ctx.ask.wire(node.inputs[0]), range(first, rank), "normalises")
    return pointwise(ctx, node)


@rule("BatchNormalization", says="in inference mode, channels not being time")
def batch_norm(ctx: Context, node: Node) -> Plan | None:
    if node.attr("training_mode", 0):
        ctx.ask.refuse(
            node,
            "it is in training mode and normalises over the whole batch",
            "export the model in eval mode",
            kind=Kind.EXPORT,
        )
    wire = ctx.ask.wire(node.inputs[0])
    if wire is not None and wire.layout.axis == 1:
        ctx.ask.refuse(node, "time is its channel axis", "put time on another axis", kind=Kind.AXES)
    return pointwise(ctx, node)


POOLED = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", says="over any axes; over time at the end of the stream")
def pool_all(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if wire is None or wire.layout.axis < 2:
        return pointwise(ctx, node)
    op = POOLED.get(node.op) or {1: "ReduceL1", 2: "ReduceL2"}.get(node.attr("p", 2))
    if op is None:
        ctx.ask.refuse(
            node, f"it pools over the whole stream with p={node.attr('p')}", "use p=1 or p=2", kind=Kind.WHOLE_STREAM
        )
    return fold.reduced(ctx, node, wire, set(range(2, wire.layout.rank)), keep=True, op=op)


@rule(
    "InstanceNormalization",
    "GroupNormalization",
    "MeanVarianceNormalization",
    says="with time folded into the batch axis only",
)
def over_features(ctx: Context, node: Node) -> Plan | None:
    rank = len(ctx.ask.dims(node.inputs[0]))
    mixed: Iterable[int] = range(1, rank)
    if node.op == "InstanceNormalization":
        mixed = range(2, rank)
    elif node.op == "MeanVarianceNormalization":
        mixed = node.attr("axes", (0, 2, 3))
    wire = ctx.ask.wire(node.inputs[0])
    guard(ctx, node, wire, mixed, "normalises")
    if node.op == "InstanceNormalization":
        guard(ctx, node, wire, [1], "takes time as channels and normalises")
    return pointwise(ctx, node)


@rule("ReverseSequence", says="along any axis but time")
def reverse_sequence(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if wire is not None and wire.layout.axis == node.attr("time_axis", 0):
        ctx.ask.refuse(
            node,
            "it reads the stream from its end",
            "keep the forward direction of the recurrence around it only",
            kind=Kind.BACKWARDS,
        )
    return pointwise(ctx, node)


@rule("Transpose", says="any permutation")
def transpose(ctx: Context, node: Node) -> Plan | None:
    return pointwise(ctx, node)


@rule("OneHot", says="time on the indices")
def one_hot(ctx: Context, node: Node) -> Plan | None:
    return pointwise(ctx, node)


# ---- roles of inputs
SIZED.add({"TopK": Sized((1,), "part")})


@ROLE("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin")
def _counted(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    role = own.get(0)
    if role is None or not walk.known(node.outputs[0]):
        walk.into_data(node, own)
        return None
    if isinstance(role, Sides) and not role.stream:
        walk.say(node, Use.OTHER, f"counts positions of '{node.inputs[0]}', which are not those of the stream")
        return None
    over = len(walk.timed(node.outputs[0])) < len(walk.timed(node.inputs[0]))
    if isinstance(role, Count) or over or not walk.timed(node.inputs[0]):
        return Count()
    kept = isinstance(role, Extent) or (isinstance(role, Sides) and node.op in ("ReduceMax", "ReduceMin"))
    return role if kept else Derived()


@ROLE("ReverseSequence")
def _reversed(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    if tuple(own) == (1,) and not walk.known(node.outputs[0]):
        timed = int(node.attr("time_axis", 0)) in walk.timed(node.inputs[0])
        walk.say(node, Use.LENGTH if timed else Use.OTHER, "reverses frames within it")
        return None
    walk.into_data(node, own)
    return Derived()


# ---- at one length
NO_LARGER.add({"Transpose": always})


DIGITS.add({"ArgMax": exact, "Softmax": rounds})


@SHAPE("MeanVarianceNormalization", "GroupNormalization")
def _as_its_input(_: Node, ins: Inputs) -> Dims | None:
    """Inference does not know them."""
    return None if ins[0] is None else ins[0].dims


# ---- values by length
REDUCTIONS = {
    "ReduceSum": Reduction("sum"),
    "ReduceProd": Reduction("product"),
    "ReduceMax": Reduction("largest"),
    "ReduceMin": Reduction("least"),
    **dict.fromkeys(("ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare"), Reduction()),
    "ArgMax": Reduction("largest", place=True),
    "ArgMin": Reduction("least", place=True),
}


VALUES.add({name: reduced(kind) for name, kind in REDUCTIONS.items()})


SIZES.add({name: reduced_sizes(kind) for name, kind in REDUCTIONS.items()})


@VALUES("LayerNormalization", "Softmax", "LogSoftmax")
def normalised_values(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    """Over axes that are no time axes: any function of what is normalised together."""
    v, others = f.spread(ins[0]), [x for x in ins[1:] if x is not None]
    first = int(node.attr("axis", -1)) % v.rank
    mixed = set(range(first, v.rank)) if node.op == "LayerNormalization" else {first}
    if mixed & {*v.times, *v.uses, *v.slope} or not all(isinstance(x, Fixed) for x in others) or len(node.outputs) > 1:
        raise Unsure("it is normalised over an axis along which it changes")
    out = replace(exactly(v), lo=-FAR, hi=FAR, hide=None, rises=False, apart=0.0)
    return replace(out, limit=min([out.limit, *(x.limit for x in others if isinstance(x, Fixed))]))


# ---- rows of known tables
ROW_READS("LayerNormalization", "RMSNormalization")(normalised)


# ---- cells of a mask
CELLS.add(
    {
        "Softmax": CellLaw("normalises"),
        "LogSoftmax": CellLaw("normalises", logarithm=True),
        **dict.fromkeys(
            ("ReduceMean", "ReduceMax", "ReduceMin"), CellLaw("mixes", keeps_offset=True, of_alike=lambda v, n: v)
        ),
        "ReduceSum": CellLaw("mixes", of_alike=lambda v, n: v * n),
        "ReduceL1": CellLaw("mixes", of_alike=lambda v, n: np.abs(v) * n),
        "ReduceL2": CellLaw("mixes", of_alike=lambda v, n: np.abs(v) * np.sqrt(n)),
        "ReduceSumSquare": CellLaw("mixes", of_alike=lambda v, n: v * v * n),
        "ReduceProd": CellLaw("mixes", of_alike=lambda v, n: v**n),
        "ReduceLogSumExp": CellLaw("mixes", of_alike=lambda v, n: v + np.log(n)),
    }
)


# ---- rows of attention scores
SUMS = ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum")


ROW_REDUCTIONS.add(
    {
        **dict.fromkeys(SUMS, RowReduction("sum")),
        "ReduceMean": RowReduction("mean"),
        "ReduceProd": RowReduction("product"),
        "ReduceLogSumExp": RowReduction("exponentials"),
        "ReduceMax": RowReduction("largest"),
        "ReduceMin": RowReduction("smallest"),
        "ArgMax": RowReduction("largest", gives_places=True),
        "ArgMin": RowReduction("smallest", gives_places=True),
        "TopK": RowReduction("best"),
    }
)


# ---- frames joined with a value of the whole stream
LATE.add(dict.fromkeys(("ReduceSum", "ReduceMean"), late.summed))
