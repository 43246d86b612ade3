"""What a sum or a reduction along one of a field's two time axes looks at: its windows, proven for every length."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from pulsify.analysis import mask_cells as cell
from pulsify.analysis.facts import Deferred, Field, Layout, Offsets, Part, Side, Window, Wire, deferred
from pulsify.analysis.fields.cells import AllRows
from pulsify.analysis.fields.operand import Operand, parts
from pulsify.analysis.mask_cells import CELLS, Cells
from pulsify.analysis.proof.claims import prove
from pulsify.analysis.proof.numbers import Looked, follower, length_of
from pulsify.analysis.template import in_step
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.refusal import Kind
from pulsify.emit.builder import choose
from pulsify.emit.frames import along, real_frames
from pulsify.frontend.model import Node
from pulsify.ops.field_template import field_template
from pulsify.ops.first_columns import inside_both
from pulsify.ops.growing import grow, horizon
from pulsify.plan.attention_view import Seen, View, choose_view, reaches
from pulsify.plan.context import Context, PlannedRead
from pulsify.plan.spans import Spans, joined, spans
from pulsify.plan.trail import Look, Trail, look
from pulsify.trace.evaluate import Trace
from pulsify.trace.traced import Array

REPEATS, FAR = 4, 1 << 18  # periods of the length at whose ends rows are looked at, if one is no longer than so many


MOST_CELLS = 400_000_000  # looked at there, in all


AT_ONCE = 1 << 21  # cells


Pick = Callable[[Cells, int], Array]  # of some rows, the first of which is this, the cells that they look at


@dataclass(frozen=True, eq=False)
class Over:
    """A field, its rows, and its columns, which are summed over; cached: what is kept of the columns if they grow."""

    field: Operand
    row: int
    col: int
    rows: Length
    cols: Length
    ends: tuple[int, int]
    cached: Wire | None


def over(ctx: Context, node: Node, field: Operand, value: Wire | None = None) -> Over:
    """What a node goes over. value: it has as many frames as there are columns."""
    cols = [a for a, out in field.axes.items() if out == -1]
    if len(cols) != 1:
        ctx.ask.refuse(
            node,
            "it sums over both time axes of a matrix of frame against frame",
            "sum over the columns of a row only",
            kind=Kind.ATTENTION,
        )
    (col,) = cols
    (row,) = (a for a in field.axes if a != col)
    sides = _sides(field)
    beside = _length(ctx, node, field, sides[col]) if value is None else value.length
    length = (_length(ctx, node, field, sides[row]) if value is None else sides[row].length) or beside
    if length is None or beside is None:
        ctx.ask.refuse(
            node,
            "it sums over time, and nothing says how fast rows and columns advance",
            "sum over data",
            kind=Kind.ATTENTION,
        )
    ends = (
        _least(sides[row].end, ctx.latest_end(length)),
        _least(sides[col].end, ctx.latest_end(beside) if value is None else value.end),
    )
    return Over(field, row, col, length, beside, ends, value or sides[col].wire)


def view_of(ctx: Context, node: Node, o: Over, seen: Seen, ends: bool = False, alike: Hashable | None = None) -> View:
    """The windows of rows and columns, proven to show all that is needed at every length.

    ends: what is needed depends on where the stream ends. alike: of another field that this is equal of, the same is
    needed.
    """
    p = ctx.frames(o.rows.rate), ctx.frames(o.cols.rate)
    try:
        view = choose_view(ctx, node, seen, p, o.ends, o.rows)
    except NotStreamable as problem:
        raise (problem.kind is Kind.LOOK_AHEAD and _by_data(ctx, o.field.name)) or problem from None
    if view.cols.grows:
        grow(ctx, node, o.cached, view, seen)
    elif view.whole:
        _prove_sight(ctx, node, o, Sight(seen, view, float(o.cols.rate / o.rows.rate)), ends, alike)
    return view


def _prove_sight(ctx: Context, node: Node, o: Over, sight: Sight, ends: bool, alike: Hashable | None) -> None:
    """It holds at every length. Of fields alike one is looked at: without the delay, all of them see the same."""
    (rows, cols), _ = in_step((sight.view.rows, sight.view.cols.moving))
    cols = replace(cols, first=sight.view.cols.first)
    view, ledger = replace(sight.view, rows=rows, cols=cols), ctx.ask.ledger
    key = (alike, o.row, o.col, o.rows, o.cols, view, ends)
    if alike is not None and (looked := ctx.ask.sights.get(key)) is not None:
        if looked in ledger.assumed:
            ledger.assume(o.field.name, ledger.assumed[looked])
        return
    reach = max(abs(view.offsets[0]), abs(view.offsets[1])) * ctx.pulse / view.rows.p
    begins = ctx.pulse + reach + cols.first * ctx.pulse / cols.p
    near = {"start": float(begins), "pair": float(reach)} | ({"end": float(reach)} if ends else {})
    what, sight = "how far attention looks", replace(sight, view=view)
    prove(ctx.ask, node, what, sight.holds, near=near, period=ctx.pulse, ends=ends, hidden=True)
    _check_last_rows(ctx, node, (o.rows, o.cols), sight)
    ctx.ask.sights[key] = o.field.name


def shown(ctx: Context, node: Node, over: Over, view: View, fill: float) -> Deferred:
    """The field at the windows, with what lies outside the stream along the columns at `fill`."""
    o, col = over.field, over.col
    windows = {over.row: view.rows, col: view.cols}
    offsets: Offsets = view.offsets if over.row < col else (-view.offsets[1], -view.offsets[0])
    if isinstance(o.fact, Field):
        first, second = (windows[s.axis] for s in o.fact.sides)
        x = o.fact.take((first, second), offsets)
        if col in o.fact.bounded and not fill:
            return x
    else:
        x = field_template(ctx, node, Operand(o.index, o.name, None, {a: a for a in windows}), windows)
    dtype, within = ctx.ask.dtype(o.name), inside(ctx, node, o.name, windows, col, over.cols)

    def make() -> ir.Value:
        other = ctx.builder.constant(np.array(fill, dtype.numpy()), "fill")
        return choose(ctx.builder, within.value, x.value, other, dtype)

    return deferred(make, x, within)


def read_by_field(made: Deferred) -> tuple[PlannedRead, ...]:
    """The windows of all wires that a field is made of."""
    return tuple(PlannedRead(name, window) for name, window in made.reads)


def trail_of(ctx: Context, over: Over, view: View, seen: Seen, summed: tuple[str, ...] = ()) -> Trail:
    """What a row reads of rows and columns, and for which of them it waits. summed: wires along the columns."""
    sides = _sides(over.field)
    names = sides[over.row].wires, (*sides[over.col].wires, *summed)
    rows, cols = ([n for n in found if n in ctx.trails] for found in names)
    waited = cols if view.rows.end < over.ends[0] or not rows else rows
    after = min(waited, key=lambda n: Fraction(ctx.trails[n].end - ctx.trails[n].p, ctx.trails[n].p), default=None)
    p = ctx.frames(over.rows.rate), ctx.frames(over.cols.rate)
    found, step = reaches(seen(ctx.ask.traces.longest).behind(view.cols.first), p)
    since = view.cols.grows or not view.whole or view.cols.first > 0
    looks = [look(n) for n in rows] + [Look(n, found, step, since) for n in cols]
    return Trail(view.rows.p, view.rows.end, tuple(looks), after, "look", length=over.rows)


def inside(
    ctx: Context, node: Node, name: str, windows: dict[int, Window], col: int, length: Length | None
) -> Deferred:
    """Which columns of a field lie inside the stream (and before the horizon, if they grow), as a mask over it."""
    if windows[col].first:
        return inside_both(ctx, name, windows[col], col, length)
    if windows[col].grows:
        return horizon(ctx, node, windows, col, length, len(ctx.ask.dims(name)))
    sizes = tuple(0 if i == col else s for i, s in enumerate(ctx.ask.sizes_static(name)))

    def make() -> ir.Value:
        valid = real_frames(ctx, windows[col], length, starts=True)
        return along(ctx, valid, Layout(sizes, col), windows[col].frames)

    return Deferred(make, fixed=length is None)


def _by_data(ctx: Context, name: str) -> NotStreamable | None:
    """If a mask made of data alone is what should have bounded a sum: say so, at that mask."""
    todo, seen = [name], {name}
    while todo:
        node = ctx.ask.model.producers.get(todo.pop())
        if node is None:
            continue
        run = ctx.ask.traces.longest
        law = CELLS.of(node)
        if law is not None and law.kind == "chooses" and _hides_by_data(ctx, node):
            return NotStreamable(
                f"its mask '{node.inputs[0]}' depends on the data, so nothing bounds how far attention looks",
                node=node.name, op=node.op,
                hint="mask a window of positions as well (a chunk, so many frames back and ahead)", kind=Kind.LOOK_AHEAD
            )  # fmt: skip
        fields = [i for i in node.inputs if i and i not in seen and len(ctx.ask.time_axes(i)) > 1 and not run[i].known]
        seen.update(fields)
        todo.extend(fields)
    return None


def _hides_by_data(ctx: Context, choice: Node) -> bool:
    """Does a choice go by data? Not by whether that is a number: torch sets weights that are none to zero."""
    mask = choice.inputs[0]
    if ctx.ask.traces.longest[mask].known:
        return False
    maker = ctx.ask.model.producers.get(mask)
    while maker is not None and maker.op == "Not":
        maker = ctx.ask.model.producers.get(maker.inputs[0])
    return maker is None or maker.op != "IsNaN" or maker.inputs[0] not in choice.inputs[1:]


def _least(*ends: int | None) -> int:
    return min(e for e in ends if e is not None)


def _length(ctx: Context, node: Node, o: Operand, side: Side) -> Length | None:
    """How many rows or columns there are: of a known value, as many as its size says."""
    if side.length is not None or ctx.ask.known(o.name) is None:
        return side.length
    return length_of(ctx.ask, node, follower(ctx.ask).sizes_of(o.name)[side.axis])


def _sides(o: Operand) -> dict[int, Side]:
    if isinstance(o.fact, Field):
        return {s.axis: s for s in o.fact.sides}
    return {a: Side(a, None, None) for a in o.axes}


def seen_rows(ctx: Context, node: Node, over: Over, pick: Pick) -> Seen:
    """Which columns rows look at, at a length: worked out some rows at a time, and once for all looks at the model."""
    kept, assumed = ctx.ask.traces.tracer.spans, ctx.ask.ledger.assumed

    def seen(run: Trace) -> Spans:
        opaque = run.opaque if isinstance(run, Looked) else None
        key = (node.name, over.field.name, over.row, over.col, run.length, run.batch, opaque)
        if key in kept:
            found, margin, touched = kept[key]
        else:
            found = _seen_by_all(ctx, node, over, run, pick)
            margin = assumed.get(over.field.name)
            touched = tuple(run.touched) if isinstance(run, Looked) else ()
            kept[key] = found, margin, touched
        if margin is not None:
            ctx.ask.ledger.assume(over.field.name, margin)
        if isinstance(run, Looked):
            run.touched |= dict.fromkeys(touched)
        return found

    return seen


def _seen_by_all(ctx: Context, node: Node, over: Over, run: Trace, pick: Pick) -> Spans:
    rows, cols = (run[over.field.name].dims[a] for a in (over.row, over.col))
    ctx.ask.traces.tracer.cells += rows * cols
    some = max(AT_ONCE // cols, 1)
    blocks = [slice(n, min(n + some, rows)) for n in range(0, rows, some)] if rows > some else [slice(None)]
    try:
        return joined(_seen(ctx, node, over, run, p, pick) for p in blocks)
    except AllRows:
        return _seen(ctx, node, over, run, slice(None), pick)


def _seen(ctx: Context, node: Node, over: Over, run: Trace, rows: slice, pick: Pick) -> Spans:
    if rows != slice(None):
        ctx.ask.cells.clear()
    count, cols = (run[over.field.name].dims[a] for a in (over.row, over.col))
    found = _cells(ctx, node, over, run, rows).spread((len(range(*rows.indices(count))), cols))
    start = rows.start or 0
    return spans(np.broadcast_to(pick(found, start), found.live.shape), start)


def _cells(ctx: Context, node: Node, over: Over, run: Trace, rows: slice) -> Cells:
    """The field's cells, rows first."""
    o, row, col = over.field, over.row, over.col
    fact = o.fact
    if not isinstance(fact, Field) and not run[o.name].known:  # it never repeats: what it is made of may tell
        fact = parts(ctx.ask, node, o.name)
    if not isinstance(fact, Field):
        return cell.constants(run[o.name].cut(row, rows), (row, col))
    turned = fact.sides[0].axis != row
    found = fact.cells(Part(run, rows, turned))
    return found.turned if turned else found


def certain(ctx: Context, node: Node, over: Over, found: Cells) -> Cells:
    """The cells, refused where data decide what a row looks at, or what other rows there are."""
    if found.soft:
        _refuse_scaled(ctx, over.field.name, found)
        ctx.ask.refuse(
            node,
            "where the data hide every key of a row with a finite score, batch looks at the whole stream",
            "fill with -inf, set the weights to zero behind the softmax, or let every row see itself",
            kind=Kind.ATTENTION,
        )
    if found.across is not None:
        ctx.ask.refuse(
            node,
            f"'{over.field.name}' was normalised along the other time axis than the one it is summed over: "
            "over all rows",
            "sum over the axis that the softmax goes along",
            kind=Kind.ATTENTION,
        )
    if math.isfinite(found.margin):
        ctx.ask.ledger.assume(over.field.name, found.margin)
    return found


def _refuse_scaled(ctx: Context, name: str, found: Cells) -> None:
    """If what may hide keys is no mask of data but scores times a large number: say so, where they are multiplied."""
    if any(hider for hider, _ in found.hiders):
        return
    run, todo, seen = ctx.ask.traces.longest, [name], {name}
    while todo:
        node = ctx.ask.model.producers.get(todo.pop())
        read = [i for i in node.inputs if i] if node is not None else []
        factors = [
            float(np.abs(run[i].array).max(initial=0)) for i in read if run[i].known and not ctx.ask.time_axes(i)
        ]
        law = CELLS.of(node) if node is not None else None
        if node is not None and law is not None and law.scales and cell.ADDED <= max(factors, default=0) < math.inf:
            ctx.ask.refuse(
                node,
                f"it multiplies scores by {max(factors):.4g}, so that data alone may put every key of a row as low as "
                "the mask does, and batch then looks at the whole stream",
                f"fill the mask with -inf, or scale scores by less than {cell.ADDED:.0f}",
                kind=Kind.ATTENTION,
            )
        fresh = [i for i in read if i not in seen and len(ctx.ask.time_axes(i)) > 1 and not run[i].known]
        seen.update(fresh)
        todo.extend(fresh)


@dataclass(eq=False)
class Sight:
    """Do rows look at no more than their view shows? slack: by how much the first column that any row looks at lies
    before the column that comes with that row (`pace` columns come with every row), at the least."""

    looked: Seen
    view: View
    pace: float
    slack: float = math.inf

    def holds(self, run: Trace) -> bool:
        p, rows, cols = self.view.rows.p, self.view.rows, self.view.cols
        seen = self.looked(run)
        i, first, last = seen.rows, seen.behind(cols.first).first, seen.last
        earliest = np.maximum(-(-(i + 1 - rows.end) // p), 0)
        latest = (i - rows.start) // p
        self.slack = min(self.slack, float((i * self.pace - seen.first).min(initial=math.inf)))
        return bool((first >= latest * cols.p + cols.start).all() and (last < earliest * cols.p + cols.end).all())


def _check_last_rows(ctx: Context, node: Node, sides: tuple[Length, Length], sight: Sight) -> None:
    """Where keys end before rows do, the last rows of some lengths see no key at all: look there what batch does."""
    (rows, cols), unit = sides, ctx.ask.traces.tracer.time.step
    turn = math.lcm(rows.period, cols.period, ctx.pulse, unit)
    settled = max(ctx.ask.traces.lengths[-1], rows.settled, cols.settled)
    lengths = np.arange(unit, settled + turn * (REPEATS if turn < FAR else 1), unit)
    r, c = rows.each(lengths), cols.each(lengths)
    blind = np.flatnonzero((r > 0) & ((r - 1) * sight.pace - sight.slack >= c))
    kinds: dict[tuple[float, int], list[int]] = {}  # by what is missing, and where in a pulse the last row lies
    traced = int(np.searchsorted(lengths, ctx.ask.traces.lengths[-1] + turn)) if turn < FAR else 0
    for i in (int(n) for n in blind if n >= traced):
        kinds.setdefault((float(r[i] * sight.pace - c[i]), int(r[i]) % sight.view.rows.p), []).append(i)
    chosen = [*(int(n) for n in blind if n < traced), *sorted(i for found in kinds.values() for i in found[:2])]
    for s, cells in zip(lengths[chosen], (r * c)[chosen].cumsum(), strict=True):
        if not ctx.ask.traces.tracer.works(int(s)):
            continue
        if cells > MOST_CELLS or not sight.holds(Looked(ctx.ask, int(s))):
            ctx.ask.refuse(node, *_blind(int(s)), kind=Kind.ATTENTION)


def _blind(s: int) -> tuple[str, str]:
    """Reason and hint."""
    return (
        f"the last rows of some streams (of {s} frames, say) see no key, and batch then looks at all of them",
        "fill with -inf, set such weights to zero behind the softmax, or let there be as many keys as rows",
    )
