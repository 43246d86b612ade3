"""Known arrays over both time axes, cut out at the windows of a sum: see `template`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Window, Windows, deferred, never
from pulsify.analysis.fields.alike import known_alike
from pulsify.analysis.fields.operand import Operand
from pulsify.analysis.proof.claims import prove
from pulsify.analysis.proof.numbers import Looked
from pulsify.analysis.questions import Unclear
from pulsify.analysis.template import Template, find, in_step
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.ops.first_columns import first_blocks, pulse_number
from pulsify.ops.growing import growing_template
from pulsify.plan.attention_view import MOST_LOOKED
from pulsify.plan.context import Context, streams_in_step
from pulsify.plan.known_facts import constant_value
from pulsify.trace.evaluate import Trace
from pulsify.trace.traced import Array, CannotRun, same

PULSES = 34  # that are looked at beyond the windows of one


MERGES = ("Reshape", "Flatten")  # axes, so that one entry for all streams is too few


FOLDED_HEADS = (
    "a mask or bias that differs by head, or from pulse to pulse, has no room for the batch on the first axis"
)


def field_template(ctx: Context, node: Node, o: Operand, windows: dict[int, Window]) -> Deferred:
    """A known array over both axes, cut out at the windows; by phase, if pulses differ."""
    a, b = o.axes
    if ctx.ask.left_open():
        return never()
    if any(windows[o.axes[x]].grows for x in (a, b)):
        return growing_template(ctx, node, o.name, {x: windows[o.axes[x]] for x in (a, b)})
    folded = folded_streams(ctx, o.name)
    kept = next((x for x in (a, b) if windows[o.axes[x]].first), None)
    if kept is not None:
        return _beside_first(ctx, node, o, (b if kept == a else a, kept), windows, folded)
    pair, late = in_step((windows[o.axes[a]], windows[o.axes[b]]))
    key = (known_alike(ctx.ask, o.name), ctx.ask.sizes_static(o.name), (a, b), pair)
    if key not in ctx.ask.templates:
        ctx.ask.templates[key] = _template(ctx, node, o.name, (a, b), pair, folded)
    phases: tuple[Array, ...] = ctx.ask.templates[key].phases
    if len(phases) == 1:
        made = constant_value(ctx, o.name, phases[0])
        return made if folded is None else folded.spread(ctx, made, phases[0].shape, merged=node.op in MERGES)
    if folded is not None and node.op in MERGES:
        ctx.ask.refuse(
            node,
            FOLDED_HEADS,
            (ctx.ask.fix_batch(), "use a pulse that is a multiple of the chunk"),
            kind=Kind.BATCH,
        )
    return _by_phase(ctx, node, np.roll(np.stack(phases), late, axis=0), o.name, folded)


def _beside_first(
    ctx: Context,
    node: Node,
    o: Operand,
    axes: tuple[int, int],
    windows: dict[int, Window],
    folded: Folded | None,
) -> Deferred:
    """With what it says of the first columns in front. axes: of rows and columns."""
    row, col = axes
    own = {x: windows[o.axes[x]] for x in axes}
    blocks = first_blocks(ctx, node, o.name, row, col, own)
    count, cols = own[col].first, own[col].moving
    shifted = Window(cols.p, cols.start - count, cols.end - count)
    order = (own[row], shifted) if row < col else (shifted, own[row])
    pair, _ = in_step(order)
    found = _template(ctx, node, o.name, (min(axes), max(axes)), pair, folded, behind=(col, count))
    if len(found.phases) > 1:
        ctx.ask.refuse(
            node,
            f"every frame looks back to the first {count} of the stream, and '{o.name}' differs from pulse to pulse",
            "use a pulse that is a multiple of the chunk",
            kind=Kind.LOOK_BACK,
        )
    if folded is not None:
        blocks = blocks.each(lambda x: folded.once(ctx, node, x))
    stack = blocks.stack(found.phases[0])
    if len(stack) > 1:
        if ctx.batch is not None:
            _check_room(ctx, node, stack, folded)
        number = partial(pulse_number, ctx, own[row], len(stack) - 1)
        return Deferred(lambda: _picked(ctx, node, stack, o.name, folded, number()))
    made = constant_value(ctx, o.name, stack[0])
    return made if folded is None else folded.spread(ctx, made, stack[0].shape, merged=node.op in MERGES)


def _template(
    ctx: Context,
    node: Node,
    name: str,
    axes: tuple[int, int],
    windows: Windows,
    folded: Folded | None,
    behind: tuple[int, int] = (0, 0),
) -> Template:
    """Found at one length, proven at every other. behind: on this axis so many places are left out."""

    def array(run: Trace) -> Array:
        whole = run[name].array[(slice(None),) * behind[0] + (slice(behind[1], None),)]
        return whole if folded is None else folded.once(ctx, node, whole)

    found = find(array(ctx.ask.traces.longest), axes, windows) or _further(ctx, array, axes, windows)
    if found is None:
        raise Unclear(
            f"'{name}' (a mask, a bias) does not move on with time in a regular way",
            node=node.name, op=node.op,
            hint="masks and biases must depend on the distance of two frames or on chunks; it helps if the pulse "
            "shares a factor with the chunk", kind=Kind.ATTENTION
        )  # fmt: skip
    prove(ctx.ask, node, f"'{name}' moving on with time", lambda run: found.fits(array(run)), **_windowed(ctx, found))
    return found


def _further(ctx: Context, array: Callable[[Trace], Array], axes: tuple[int, int], windows: Windows) -> Template | None:
    """The template that shows in a stream so long that some pulses see nothing but what lies inside it."""
    base, step = ctx.ask.traces.lengths[0], ctx.ask.traces.step
    reach = max((max(w.end, 0) - min(w.start, 0)) * ctx.pulse // w.p for w in windows) + PULSES * ctx.pulse
    length = base + -(-max(reach - base, 0) // step) * step
    if length <= ctx.ask.traces.longest.length or length > MOST_LOOKED:
        return None
    with contextlib.suppress(CannotRun):
        return find(array(Looked(ctx.ask, length)), axes, windows)
    return None


def _windowed(ctx: Context, template: Template) -> dict[str, Any]:
    """What a template looks at, in frames of the stream: no pair further apart than its windows, phase by phase."""
    rows, cols = template.windows
    stream = ctx.pulse / rows.p, ctx.pulse / cols.p
    apart = max(abs(rows.end * stream[0] - cols.start * stream[1]), abs(cols.end * stream[1] - rows.start * stream[0]))
    start = max(-rows.start * stream[0], -cols.start * stream[1], rows.end * stream[0], cols.end * stream[1], 0)
    near = {"within": float(apart), "pair": float(apart), "start": float(start)}
    return {"near": near, "period": len(template.phases) * ctx.pulse}


@dataclass(frozen=True)
class Folded:
    """Heads on the same axis as the streams, `heads` entries a stream; 1: all are alike.

    inside: the streams of one head are neighbours, not the heads of one stream.
    """

    axis: int
    heads: int
    inside: bool = False

    def once(self, ctx: Context, node: Node, array: Array) -> Array:
        """Of one stream."""
        axis, k = self.axis, self.heads
        count = array.shape[axis] // k
        apart = (k, count) if self.inside else (count, k)
        split = array.reshape(*array.shape[:axis], *apart, *array.shape[axis + 1 :])
        one = split.take([0], axis + 1 if self.inside else axis)
        if not np.array_equal(np.broadcast_to(one, split.shape), split, equal_nan=array.dtype.kind == "f"):
            ctx.ask.refuse(node, FOLDED_HEADS, ctx.ask.fix_batch(), kind=Kind.BATCH)
        return one.reshape(*array.shape[:axis], k, *array.shape[axis + 1 :])

    def spread(self, ctx: Context, x: Deferred, dims: tuple[int, ...], merged: bool) -> Deferred:
        """The heads of one stream, as often as there are streams. merged: what follows counts all of them."""
        if self.heads == 1 and not merged:
            return x

        def make() -> ir.Value:
            b, axis, streams = ctx.builder, self.axis, streams_in_step(ctx)
            at = axis + 1 if self.inside else axis
            times = b.op("Concat", *(streams if i == at else b.ints(1) for i in range(len(dims) + 1)), axis=0)
            many = b.op("Tile", b.op("Unsqueeze", x.value, b.ints(at)), times)
            return b.reshape(many, [*dims[:axis], -1, *dims[axis + 1 :]])

        return deferred(make, x)


def folded_streams(ctx: Context, name: str) -> Folded | None:
    """Where a known value has an entry a stream (and head): values that are known do not differ between streams."""
    sizes, array = ctx.ask.sizes_static(name), ctx.ask.traces.runs[0][name].array
    axis = next((i for i, s in enumerate(sizes) if s < 0), None)
    if axis is None:
        return None
    k, total = -sizes[axis], array.shape[axis]
    flat = np.moveaxis(array, axis, 0)
    if k == 1 or same(np.broadcast_to(flat[:1], flat.shape), flat):
        return Folded(axis, 1)
    return Folded(axis, k, inside=same(flat, np.repeat(flat[:: total // k], total // k, 0)))


def _by_phase(ctx: Context, node: Node, stack: Array, name: str, folded: Folded | None) -> Deferred:
    if ctx.batch is not None:
        _check_room(ctx, node, stack, folded)
    return Deferred(lambda: _at_phase(ctx, node, stack, name, folded))


def _check_room(ctx: Context, node: Node, stack: Array, folded: Folded | None) -> None:
    """Streams may be at different phases, so the first axis must have room for them."""
    rank, dims, sizes = len(ctx.ask.dims(node.outputs[0])), stack.shape[1:], ctx.ask.sizes_static(node.outputs[0])
    first = ((1,) * (rank - len(dims)) + dims)[0]
    if sizes[0] >= 0 or first not in (1, -sizes[0]) or (first > 1 and folded is None):
        ctx.ask.refuse(
            node,
            FOLDED_HEADS,
            (ctx.ask.fix_batch(), "use a pulse that is a multiple of the chunk"),
            kind=Kind.BATCH,
        )


def _at_phase(ctx: Context, node: Node, stack: Array, name: str, folded: Folded | None) -> ir.Value:
    return _picked(ctx, node, stack, name, folded, ctx.clock.phase(len(stack)))


def _picked(ctx: Context, node: Node, stack: Array, name: str, folded: Folded | None, phase: ir.Value) -> ir.Value:
    """That of these which a number says."""
    b = ctx.builder
    table = b.constant(stack, name)
    if ctx.batch is None:
        return b.op("Gather", table, b.reshape(phase, []), axis=0)
    rank, dims = len(ctx.ask.dims(node.outputs[0])), stack.shape[1:]
    full = (1,) * (rank - len(dims)) + dims
    sizes, k = ctx.ask.sizes_static(node.outputs[0]), full[0] if folded is not None else 1
    each = b.reshape(b.op("Gather", table, b.reshape(phase, [-1]), axis=0), [-1, *full])  # [B, k, ...]
    if k == 1 and sizes[0] < -1:  # all heads of a stream alike
        each = b.op("Expand", each, b.ints(1, -sizes[0], *([1] * (rank - 1))))
    if folded is not None and folded.inside and k > 1:
        each = b.op("Transpose", each, perm=[1, 0, *range(2, rank + 1)])
    return b.reshape(each, [-1, *full[1:]])
