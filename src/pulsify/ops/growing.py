"""Attention that looks back to the start of the stream: the cache of keys and values grows (unbounded="grow").

    cols j   0 1 2 3 4 5 6 7        every row sees all columns up to its horizon
    row i    x x x x x . . .        horizon(i) - i repeats with the pulses
    row i+1  x x x x x x . .

What the model's own masks say is what the horizon says, so they need not be evaluated at a growing size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Window, Wire
from pulsify.analysis.proof.claims import prove
from pulsify.analysis.proof.numbers import follower, uncertain
from pulsify.analysis.template import MOST_PHASES
from pulsify.analysis.values.follow import Fixed
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.reach import POINTWISE
from pulsify.core.refusal import Kind
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.lengths.affine_array import T, exactly
from pulsify.lengths.series import Unsure
from pulsify.plan.attention_view import Seen, View
from pulsify.plan.boundary import bounded_wire, waits
from pulsify.plan.context import Context, Step
from pulsify.plan.known_facts import constant_value
from pulsify.trace.evaluate import Trace
from pulsify.trace.traced import Array


@dataclass(frozen=True, eq=False)
class Horizon:
    """phases[n % count][u]: the last column, relative to the pulse, that row u of pulse n sees."""

    rows: Window
    cols: Window
    phases: Array
    seen: Seen

    def needed(self, run: Trace) -> Array:
        """All cells that rows see."""
        return self.seen(run).mask

    def holds(self, run: Trace) -> bool:
        """Does every row see all columns up to its horizon, and none behind it?"""
        seen = self.seen(run)
        i = np.arange(seen.shape[0])
        pulse = np.maximum(-(-(i + 1 - self.rows.end) // self.rows.p), 0)  # the first that holds the row
        place = i - pulse * self.rows.p - self.rows.start
        last = pulse * self.cols.p + self.phases[pulse % len(self.phases), place]
        return seen.all_before and np.array_equal(seen.last, np.minimum(last, seen.shape[1] - 1))


def grow(ctx: Context, node: Node, value: Wire | None, view: View, seen: Seen) -> None:
    """Set up a growing window of columns, or refuse if rows do not see all of the past."""
    found = seen(ctx.ask.traces.longest)
    last = found.last
    if not found.all_before:
        ctx.ask.refuse(
            node,
            "it looks back without bound, but not at everything",
            "bound the look-back in the mask",
            kind=Kind.LOOK_BACK,
        )
    if value is None:
        ctx.ask.refuse(
            node,
            "it looks back without bound, at what no stream of frames says",
            "bound the look-back",
            kind=Kind.LOOK_BACK,
        )
    horizon = Horizon(view.rows, view.cols, _phases(ctx, node, last, view), seen)
    ahead = float(max(abs(int((last - np.arange(len(last))).max())), 1)) * ctx.pulse / view.rows.p
    near = {"start": ctx.pulse + ahead, "pair": ahead, "end": ctx.pulse + ahead}
    what = "that every frame sees all of the past"
    prove(ctx.ask, node, what, horizon.holds, near=near, period=len(horizon.phases) * ctx.pulse, hidden=True)
    ctx.ask.horizons[view.cols] = horizon
    kept = all_of(ctx, value, view.cols)
    measured = kept if kept.copies else bounded_wire(ctx, kept)  # whichever is cached
    shown, axis = measured.take(view.cols), value.layout.axis

    def count() -> None:
        ctx.clock.grown[view.cols] = ctx.builder.size(shown.value, axis)

    ctx.add(Step(node.name, view.cols, (shown,), extra=count))


def all_of(ctx: Context, wire: Wire, window: Window) -> Wire:
    """The wire as one that hands out all of its frames so far: a pulse's worth at every pulse, from the first on.

    Frames that come earlier than that (a pad in front) wait.
    """
    assert window.grows
    own = Window(window.p, window.end - window.p, window.end)
    plain = wire.mirror is None and wire.end == window.end and not wire.waits
    if plain and (wire.copies or ctx.windows.get(wire.name) == own):
        return wire
    name = f"{wire.name}#all"
    if name not in ctx.grown:
        if wire.mirror is not None and waits(ctx, wire, POINTWISE, None, own):
            raise NotStreamable(
                "all of its frames are kept, and the first ones show later ones",
                node=wire.name,
                hint="bound the look-back in the mask, or use a longer pulse",
                kind=Kind.LOOK_BACK,
            )
        ctx.grown[name] = ctx.file_variant(name, wire, wire.take(own), own)
        ctx.windows[name] = own
    return ctx.grown[name]


def _phases(ctx: Context, node: Node, last: Array, view: View) -> Array:
    rows, cols = view.rows, view.cols
    ahead = int((last - np.arange(len(last))).max()) + 1
    inside = [n for n in range(len(last)) if n * rows.p + rows.start >= 0 and n * rows.p + rows.end + ahead < len(last)]
    seen = [last[n * rows.p + rows.start : n * rows.p + rows.end] - n * cols.p for n in inside]
    for count in range(1, MOST_PHASES + 1):
        if len(seen) > 2 * count and all(np.array_equal(s, seen[i % count]) for i, s in enumerate(seen)):
            shift = inside[0] % count
            return np.stack([seen[(n - shift) % count] for n in range(count)])
    ctx.ask.refuse(
        node,
        "how far it looks ahead does not repeat with the pulses",
        "use a pulse that is a multiple of the chunk",
        kind=Kind.LOOK_BACK,
    )


def horizon(
    ctx: Context, node: Node, windows: dict[int, Window], col: int, length: Length | None, rank: int
) -> Deferred:
    """Which cells are seen, bool, laid out over the row and column axes of a tensor of this rank."""
    seen: Horizon = ctx.ask.horizons[windows[col]]
    return Deferred(lambda: _horizon(ctx, seen, windows, col, length, rank), fixed=False)


def _horizon(
    ctx: Context, seen: Horizon, windows: dict[int, Window], col: int, length: Length | None, rank: int
) -> ir.Value:
    b, cols = ctx.builder, windows[col]
    (row,) = (a for a in windows if a != col)
    frames = ctx.clock.frames(cols)  # [B, W]
    valid = b.op("GreaterOrEqual", frames, b.constant(np.array(0, np.int32), "int"))
    if length is not None:
        valid = b.op("And", valid, b.op("Less", frames, ctx.clock.end(length)))
    phases = seen.phases.astype(np.int32)
    if len(phases) == 1:
        reach = b.constant(phases, "horizon")
    else:
        phase = ctx.clock.phase(len(phases))
        reach = b.op("Gather", b.constant(phases, "horizon"), b.reshape(phase, [-1]))
    begin = ctx.clock.frames(Window(cols.p, 0, 1))
    limit = b.op("Add", begin, reach)  # [B, R]
    other = 1 if row < col else 2
    cell = b.op("LessOrEqual", b.op("Unsqueeze", frames, b.ints(other)), b.op("Unsqueeze", limit, b.ints(3 - other)))
    cell = b.op("And", cell, b.op("Unsqueeze", valid, b.ints(other)))  # [B, R, W] in the order of the axes
    lead = [a for a in range(1, rank) if a not in (row, col)]
    return b.op("Unsqueeze", cell, b.ints(*lead)) if lead else cell


def growing_template(ctx: Context, node: Node, name: str, windows: dict[int, Window]) -> Deferred:
    """A known array over rows and growing columns: one value wherever it counts, or a slope over the distance."""
    (col,) = (a for a, w in windows.items() if w.grows)
    (row,) = (a for a in windows if a != col)
    seen: Horizon = ctx.ask.horizons[windows[col]]
    run = ctx.ask.traces.longest
    array = run[name].array
    lead = tuple(i for i in range(array.ndim) if i not in (row, col))
    flat = array.transpose(*lead, row, col).reshape(-1, array.shape[row], array.shape[col])
    needed = seen.needed(run)
    shape = [1 if i in (row, col) else array.shape[i] for i in range(array.ndim)]
    cells = flat[:, needed]
    if (cells == cells[:, :1]).all():

        def alike(at: Trace) -> bool:
            found = at[name].array
            found = found.transpose(*lead, row, col).reshape(-1, found.shape[row], found.shape[col])
            return bool((found[:, seen.needed(at)] == cells[:, :1]).all())

        _check_followed(ctx, node, name)
        prove(ctx.ask, node, f"'{name}' being the same wherever it counts", alike, hidden=True)
        return constant_value(ctx, name, cells[:, 0].reshape(shape))
    if not _straight(ctx, name):
        ctx.ask.refuse(
            node, f"'{name}' is not certain to be linear over the distance, and the past is unbounded",
            "bound the look-back in the mask", kind=Kind.LOOK_BACK
        )  # fmt: skip
    i, j = np.nonzero(needed)
    x = cells.astype(np.float64)
    near, far = int((j - i).argmax()), int((j - i).argmin())
    slope = (x[:, far] - x[:, near]) / min(int((j - i)[far] - (j - i)[near]), -1)
    base = x[:, near] - slope * (j - i)[near]
    line = base[:, None] + slope[:, None] * (j - i)[None]
    off, scale = np.abs(x - line).max(1, initial=0), np.abs(x).max(1, initial=0)  # of every head
    if array.dtype.kind != "f" or not np.isfinite(x).all() or (off > 1e-6 * scale).any():
        ctx.ask.refuse(
            node, f"'{name}' is neither constant nor linear over the distance, and the past is unbounded",
            "bound the look-back in the mask", kind=Kind.LOOK_BACK
        )  # fmt: skip
    slope, base, rank = slope.reshape(shape), base.reshape(shape), array.ndim
    return Deferred(lambda: _slope(ctx, name, windows, (row, col), slope, base, rank))


def _check_followed(ctx: Context, node: Node, name: str) -> None:
    """What is claimed of a value's entries cannot be proven if they never repeat."""
    try:
        v = exactly(follower(ctx.ask).spread(follower(ctx.ask).value(name)))
        if not all(math.isfinite(g) for g in v.near.values()):
            raise Unsure("it never repeats, however long the stream is")
    except Unsure as problem:
        if ctx.ask.options.proof != "sampled":
            uncertain(ctx.ask, node, name, problem)


def _straight(ctx: Context, name: str) -> bool:
    """Is a known value sure to go on over the distance as it begins: a line, perhaps bent where that is zero?"""
    f, node = follower(ctx.ask), ctx.ask.model.producers.get(name)
    try:
        value = f.value(name)
    except Unsure:
        return False
    if isinstance(value, Fixed):
        return True
    v = f.spread(value)
    ctx.ask.ledger.up_to(v.certain, name)
    if len(v.slope) == 2 and v.lo == v.hi and v.period == 1 and not v.near:
        return True
    if not v.slope and v.period == 1 and all(math.isfinite(g) for g in v.near.values()) and T not in v.uses:
        return max(v.near.values(), default=0.0) < ctx.ask.traces.lengths[0] / 2  # settled where it was looked at
    if node is None or not traits(node.op).straight or not all(_straight(ctx, i) for i in node.inputs if i):
        return False
    if node.op in ("Div", "Cast") and not ctx.ask.dtype(name).is_floating_point():
        return False  # whole numbers of a line are steps
    return not traits(node.op).bends or _bent_within(ctx, node.inputs[0])


def _bent_within(ctx: Context, name: str) -> bool:
    """Is a line zero, and so bent by some operators, within the distances that were looked at?"""
    try:
        v = follower(ctx.ask).spread(follower(ctx.ask).value(name))
    except Unsure:
        return False
    steepest = max((abs(float(q)) for q in v.slope.values()), default=0.0)
    return not v.slope or max(abs(v.lo), abs(v.hi)) < steepest * ctx.ask.traces.lengths[0] / 2


def _slope(
    ctx: Context, name: str, windows: dict[int, Window], axes: tuple[int, int], slope: Array, base: Array, rank: int
) -> ir.Value:
    b, dtype = ctx.builder, ctx.ask.dtype(name)
    row, col = axes
    # rows and columns count from the same start in all streams: the first one's distances are everybody's
    r, c = (b.slice(ctx.clock.frames(windows[a]), 0, 0, 1) for a in axes)
    other = 1 if row < col else 2
    distance = b.op("Sub", b.op("Unsqueeze", c, b.ints(other)), b.op("Unsqueeze", r, b.ints(3 - other)))  # [B, ., .]
    lead = [a for a in range(1, max(rank, 3)) if a not in (row, col)]
    if rank > 3:
        distance = b.op("Unsqueeze", distance, b.ints(*[a for a in lead if a > 0]))
    elif rank == 2:
        distance = b.op("Squeeze", distance, b.ints(0)) if ctx.batch is None else distance
    x = b.op("Cast", distance, to=int(dtype))
    return b.op(
        "Add",
        b.op("Mul", x, b.constant(slope.astype(dtype.numpy()), "slope")),
        b.constant(base.astype(dtype.numpy()), "base"),
    )
