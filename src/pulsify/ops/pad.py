"""Pad: frames that are not there, in front of and behind the stream. Negative pads cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Window, Wire, emitted
from pulsify.analysis.fields.shift import AMOUNTS
from pulsify.analysis.proof.claims import fixed_value
from pulsify.analysis.proof.numbers import in_frames, length_of, measured, numbers, runs_from
from pulsify.analysis.proof.values import known_at
from pulsify.analysis.rows.reaches import ROW_READS, in_pieces
from pulsify.analysis.rows.wanted import RowRead, Wanted
from pulsify.analysis.values.follow import VALUES, Follower, Value
from pulsify.analysis.values.moves import numbers_in, sliced
from pulsify.analysis.values.sizes import SIZES
from pulsify.core.length import Length
from pulsify.core.reach import Reach, shift
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.float_limits import Drift
from pulsify.lengths.joining import framed, side_by_side
from pulsify.lengths.series import Series, Unsure, add, compare, constant, extreme
from pulsify.lengths.sizes import Sizes, whole_item
from pulsify.ops.pointwise import static
from pulsify.ops.registry import rule
from pulsify.plan.boundary import Fill, mirrored_wire
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read, require_apart, settled
from pulsify.trace.shapes import CHECK, Inputs
from pulsify.trace.traced import CannotRun
from pulsify.trace.usage import SIZED, Sized

MODES = ("constant", "edge", "reflect")
END = (1 << 31) - 1  # of a slice that goes to the end


@rule("Pad", says="constant, edge and reflect, negative pads, amounts computed by the model")
def pad(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if wire is None:
        return static(ctx, node)
    axes = _axes(ctx, node, wire)
    if ctx.ask.known(node.inputs[1]) is None:
        ctx.ask.refuse(node, "how much it pads depends on the data", "pad a fixed amount", kind=Kind.DATA)
    before, back, others = _amounts(ctx, node, wire, axes)
    after = int(back.item) if back.constant else None
    if before == 0 and after == 0:
        return _plan(ctx, node, wire, others, None, shift(0), wire.length)
    mode = node.attr("mode", "constant")
    if mode not in MODES:
        ctx.ask.refuse(
            node,
            f"padding mode '{mode}' shows the other end of the stream",
            "use zero, edge or reflect",
            kind=Kind.BACKWARDS,
        )
    if mode != "constant":
        require_apart(ctx, node, wire)
    wire = measured(ctx.ask, node, wire)
    length = _length(ctx, node, wire, before, back)
    if after is None and mode == "reflect":
        _require_varying(ctx, node, wire, back)
    _require(ctx, node, wire, mode, before, after or 0)
    if mode != "constant" and length is not None and after is not None and not any(others):
        source = settled(ctx, node, wire) if wire.mirror is not None else wire
        ctx.ask.facts[node.outputs[0]] = mirrored_wire(ctx, node.outputs[0], source, before, after, mode, length)
        return None
    return _plan(ctx, node, wire, others, Fill(mode, _value(ctx, node)), shift(-before), length)


def _plan(
    ctx: Context, node: Node, wire: Wire, others: list[int], fill: Fill | None, reach: Reach, length: Length | None
) -> Plan:
    """Frames outside the stream are filled in as they are read; the other axes are padded by the operator itself."""
    value = ctx.ask.operand(node, node.input(2)) if any(others) else None

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        if not any(others):
            return (values[0],)
        mode, pads = node.attr("mode", "constant"), ctx.builder.ints(*others)
        return (ctx.builder.op("Pad", values[0], pads, emitted(value), mode=mode, name=node.name),)

    layout = ctx.ask.layout(node, node.outputs[0], wire.layout.outer)
    fills = any(others) and node.attr("mode", "constant") == "constant" and _value(ctx, node) != 0
    return Plan((Read(wire, reach, fill),), (layout,), length, emit, copies=wire.end is not None, fills=fills)


def _axes(ctx: Context, node: Node, wire: Wire) -> list[int]:
    rank = wire.layout.rank
    if not node.input(3):
        return list(range(rank))
    return [int(a) % rank for a in fixed_value(ctx.ask, node, node.input(3), "axes").reshape(-1)]


def _amounts(ctx: Context, node: Node, wire: Wire, axes: list[int]) -> tuple[int, Series, list[int]]:
    """Pads in front of and behind time (a number that goes with the length), and those of the other axes."""
    rank, n, unit = wire.layout.rank, len(axes), ctx.ask.traces.tracer.time.step
    pads = numbers(ctx.ask, node, node.inputs[1]).reshape(-1)
    front, back = constant(0, unit), constant(0, unit)
    others = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        if axis == wire.layout.axis:
            front, back = pads[i], pads[i + n]
            continue
        if not pads[i].constant or not pads[i + n].constant:
            ctx.ask.refuse(
                node,
                f"how much it pads axis {axis} changes with the length of the stream",
                ("pad a fixed amount", ctx.ask.declare("4*n")),
                kind=Kind.LENGTH,
            )
        others[axis], others[axis + rank] = int(pads[i].item), int(pads[i + n].item)
    if not front.constant:
        ctx.ask.refuse(
            node,
            "how much it pads in front depends on the total length",
            ("pad a fixed amount", ctx.ask.declare("4*n")),
            kind=Kind.LENGTH,
        )
    if not back.constant:
        runs_from(ctx.ask, node, lambda s: known_at(ctx.ask, node.inputs[1], s))
    return int(front.item), back, others


def _require_varying(ctx: Context, node: Node, wire: Wire, back: Series) -> None:
    """Streams must be longer than the longest that has too few frames to show again behind it."""
    if wire.length is None:
        return
    frames = in_frames(ctx.ask, wire.length)
    few = compare(back, extreme(frames, constant(1, back.unit), np.maximum), np.greater_equal)
    if few.values[few.horizon :].any():
        ctx.ask.refuse(
            node,
            "at some lengths, however long, it mirrors more frames than there are",
            ctx.ask.declare("4*n"),
            kind=Kind.LENGTH,
        )
    short = np.flatnonzero(few.values)
    least = int(frames.look(int(short[-1]) + 1)[-1]) + 1 if short.size else 1
    ctx.ask.ledger.require(node.name, wire.length, at_least=least)


def _length(ctx: Context, node: Node, wire: Wire, before: int, back: Series) -> Length | None:
    if wire.length is None:
        return None
    if back.constant:
        more = before + int(back.item)
        return wire.length.then(add=more, floor=more < 0)
    frames = in_frames(ctx.ask, wire.length)
    made = length_of(ctx.ask, node, add(add(frames, constant(before, back.unit)), back))
    if made.rate != wire.length.rate:
        ctx.ask.refuse(
            node, "how much it pads grows with the stream", "pad a fixed amount, or to a multiple", kind=Kind.LENGTH
        )
    return made


def _require(ctx: Context, node: Node, wire: Wire, mode: str, before: int, after: int) -> None:
    """What is cut off must be there, and so must the frames that are shown again."""
    if wire.length is None:
        return
    if mode == "constant":  # a cut may reach into the padding on the other side
        ctx.ask.ledger.require(node.name, wire.length, at_least=max(-before - after, 0))
        return
    cut = max(-before, 0) + max(-after, 0)
    shown = {"edge": 1, "reflect": max(before, after, 0) + 1}[mode]
    if cut + shown:
        ctx.ask.ledger.require(node.name, wire.length, at_least=cut + shown)


def _value(ctx: Context, node: Node) -> float | int:
    if not node.input(2):
        return 0
    array = fixed_value(ctx.ask, node, node.input(2), "padding value").reshape(-1)
    return array[0].item() if array.size else 0


# ---- roles of inputs
SIZED.add({"Pad": Sized((1,), "part")})


# ---- at one length
@CHECK("Pad")
def _mirrors_what_there_is(node: Node, ins: Inputs) -> None:
    x, pads = ins[0], ins[1]
    if node.attr("mode", "constant") != "reflect" or x is None or pads is None or not pads.known or len(ins) > 3:
        return
    if any(int(a) >= max(d, 1) for row in pads.array.reshape(2, -1) for a, d in zip(row, x.dims, strict=True)):
        raise CannotRun(node, "it reflects more frames than there are")


# ---- values by length
@VALUES("Pad")
def pad_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    v = f.spread(ins[0])
    pads = [int(p) for p in f.fixed(ins[1]).reshape(-1)]
    axes = [int(a) % v.rank for a in f.fixed(ins[3]).reshape(-1)] if len(ins) > 3 and ins[3] else list(range(v.rank))
    if str(node.attr("mode", "constant")) != "constant" and max(pads) > 0:
        raise Unsure("it is padded with entries of its own")
    fill = float(f.fixed(ins[2]).reshape(-1)[0]) if len(ins) > 2 and ins[2] is not None else 0.0
    n = len(axes)
    for i, axis in enumerate(axes):
        if min(pads[i], pads[i + n]) < 0:
            first, last = (constant(edge, f.unit) for edge in (max(-pads[i], 0), min(pads[i + n], 0) or END))
            v = f.spread(sliced(f, v, axis, first, last, 1))
        front, behind = max(pads[i], 0), max(pads[i + n], 0)
        if not front and not behind:
            continue
        sizes = list(v.sizes)
        sizes[axis] = add(sizes[axis], constant(front + behind, f.unit))
        other = Spread(tuple(sizes), lo=fill, hi=fill, floating=v.floating, drift=Drift(v.drift.digits))
        if axis in v.times:
            v = framed(v, axis, tuple(sizes), front, behind, [other])
        else:
            v = side_by_side([replace(v, sizes=tuple(sizes)), other], tuple(sizes))
    return v


@SIZES("Pad")
def pad_sizes(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    out, pads = list(sizes[0]), numbers_in(f, f.value(node.inputs[1]))
    axes = list(range(len(out)))
    if node.input(3):
        axes = [whole_item(a) % len(out) for a in numbers_in(f, f.value(node.inputs[3]))]
    for i, axis in enumerate(axes):
        out[axis] = add(out[axis], add(pads[i], pads[i + len(axes)]))
    return tuple(out)


# ---- rows of known tables
@ROW_READS("Pad")
def _padded_rows(w: Wanted) -> list[RowRead]:
    sizes, pads = w.sizes(), w.rows.numbers(w.node.inputs[1])
    rank = len(sizes)
    axes = [a % rank for a in w.rows.integers(w.node.inputs[3])] if w.node.input(3) else list(range(rank))
    fill = w.node.input(2) or ""
    is_constant = str(w.node.attr("mode", "constant")) == "constant"
    padded = False
    for i, axis in enumerate(axes):
        front, behind = pads[i], pads[i + len(axes)]
        if axis == w.axis or not any(n.values.any() for n in (front, behind)):
            continue
        for n in (front, behind, sizes[axis]):
            w.rows.item(n, "another axis is padded, otherwise at every length")
        padded = True
    if padded and not is_constant:
        raise Unsure("it is padded with entries of its own")
    reads = [RowRead(fill, None, None)] if padded else []
    if w.axis not in axes or w.axis is None:
        return [*reads, w.read(0, w.axis)]
    at = axes.index(w.axis)
    inside = w.node.inputs[0], sizes[w.axis]
    around = in_pieces(w, [("", pads[at]), inside, ("", pads[at + len(axes)])])
    if not is_constant and any(not r.name for r in around):
        raise Unsure("it is padded with entries of its own")
    return [*reads, *(r if r.name else replace(r, name=fill, axis=None, place=None) for r in around)]


AMOUNTS.add({"Pad": (1,)})
