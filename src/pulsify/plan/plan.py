"""A rule's answer, and what follows from it for the wires that the node makes.

A rule says which wires it reads, how far each output frame reaches, what its outputs look like and how to emit
the node for one window. When each frame can be had, which windows are read and what lies beyond the ends is worked out
here, the same for all operators. Nothing is emitted yet: a node that makes frames becomes a step of the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Awaited, Deferred, Layout, Static, Window, Wire, deferred_all
from pulsify.analysis.proof.numbers import as_expected, follower, in_frames, require_as_many, same_series
from pulsify.core.boundary import processing
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.length import constant as constant_length
from pulsify.core.reach import POINTWISE, Reach
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths.series import Unsure, aligned, compare, constant, multiply, subtract
from pulsify.plan.boundary import Fill, after_first, fill, first_shown, mirrored_wire, overrun, waits
from pulsify.plan.constant_prefix import at_least, fits, holds
from pulsify.plan.context import Context, PlannedRead, Step
from pulsify.plan.known_facts import constant_wire
from pulsify.plan.trail import Trail, look


@dataclass(frozen=True, eq=False)
class Read:
    """One wire an operator reads. `fill` says what it sees outside [0, L), if it reads there.

    least: what every frame far from both ends surely reads, if that is less than the reach.
    """

    wire: Wire
    reach: Reach = POINTWISE
    fill: Fill | None = None
    broadcast: bool = False  # a wire of equal frames may come as a single frame
    least: Reach | None = None


Emit = Callable[[list[ir.Value], Window], Sequence[ir.Value | None]]


@dataclass(frozen=True)
class Whole:
    """Outputs without time: values of all frames, right when the stream has ended; or of the first `count` frames.

    beside: values that go into it too, and have to be waited for.
    """

    count: int | None = None
    beside: tuple[Static, ...] = ()


@dataclass(frozen=True, eq=False)
class Plan:
    """reads, the outputs' layouts (None: not a stream, not wanted), their common length, and the node itself.

    emit(values, window) writes the node for one window of its output, once the whole stream is planned: it is given the
    frames that `reads` ask for, and `ctx.builder`, which does not exist before.

    exact: the operator must see each frame once (it carries state), so its window may not be wider than the pulse.
    """

    reads: tuple[Read, ...]
    layouts: tuple[Layout | None, ...]
    length: Length | None
    emit: Emit
    exact: bool = False
    copies: bool = False  # repeats its input across other axes: made anew from the input's buffer for every window
    merges: bool = False  # all reads hold the same frames, so in batch their lengths must agree
    tail: bool = False  # what it holds behind the end of what it reads follows from where that is
    ends: bool = False  # other frames, too, are made with a look at where the stream ends
    regroups: bool = False  # a reshape: reads whole rows of elements, whatever is folded in front of them
    most: int | None = None  # its windows end no later
    fills: bool = False  # puts something else than zeros into frames of zeros
    whole: Whole | None = None  # what outputs without a layout are
    check: Callable[[Window], None] | None = None  # refuses windows that cannot be made


def require_apart(ctx: Context, node: Node, wire: Wire) -> None:
    """Whoever reads across time reads one stream: none is folded in front of time."""
    if wire.layout.folded:
        ctx.ask.refuse(
            node,
            "it reads across time where time is merged with another axis (B*T, say)",
            "apply it before the reshape, or with time on an axis of its own",
            kind=Kind.AXES,
        )


def execute(ctx: Context, node: Node, plan: Plan) -> None:
    """Choose the latest window the data allow, plan the node for it, and file its outputs as wires."""
    for read in plan.reads:
        if not read.reach.pointwise and not plan.regroups:
            require_apart(ctx, node, read.wire)
    if _alike(plan):
        alike = [r.wire.constant_frame for r in plan.reads if r.wire.constant_frame is not None]
        frames = made_in(ctx, node, plan, alike, Window(1, 0, 1))
        for name, layout, frame in zip(node.outputs, plan.layouts, frames, strict=False):
            if name and layout is not None:
                ctx.ask.facts[name] = constant_wire(ctx, name, frame, layout)
        return
    early = _first_frames(ctx, node, plan)
    if all(r.wire.end is None for r in plan.reads):
        if plan.exact:  # such frames are made anew for whoever reads them, a state is carried once
            ctx.ask.refuse(
                node, "it carries a state over frames that no input has a part in",
                "add the frames of an input times zero to what it reads",
            )  # fmt: skip
        _file_formula(ctx, node, plan, _known_end(ctx, plan), waits=early)
        return
    if not early and _before_mirror(plan):
        _file_mirrored(ctx, node, plan)
        return
    length = plan.length
    assert length is not None
    p = ctx.frames(length.rate)
    for read in plan.reads:
        if read.wire.table_rows is not None:
            needed = length.then(read.reach.num, read.reach.hi - read.reach.num, read.reach.den).then(add=1)
            ctx.ask.ledger.require(node.name, needed, at_most=read.wire.table_rows)
    for read in plan.reads:
        if plan.merges and read.wire.length not in (None, length):
            ctx.ask.ledger.require(node.name, length, equals=read.wire.length)
        if plan.merges and read.wire.length is None and read.wire.name in ctx.ask.traces.runs[0]:
            check_known(ctx, node, read.wire, length, {r.wire.layout.outer[0] for r in plan.reads})
    end = min(r.reach.latest_end(r.wire.end) for r in plan.reads if r.wire.end is not None)
    end = min(end, ctx.latest_end(length), p if plan.exact else end, end if plan.most is None else plan.most)
    end = ctx.ends_by(after_first(ctx, early, p, end), p, node.outputs)
    known, ready = _known_frames(ctx, node, plan, Window(p, 0, end)), end
    while any(waits(ctx, r.wire, r.reach, r.fill, Window(p, min(end - p, known), end)) for r in plan.reads):
        end -= 1
    trail = _trail(ctx, node, plan, Window(p, end - p, end), bool(early), ready)
    ctx.trails.update((name, trail) for name in node.outputs if name)
    window = Window(p, end - p if plan.exact else min(end - p, known), end)
    if plan.copies:
        _file_formula(ctx, node, plan, end, known)
        return
    _add_step(ctx, node, plan, length, window, known)


def _add_step(ctx: Context, node: Node, plan: Plan, length: Length, window: Window, known: int) -> None:
    """The node in its window: wires of frames that are stored, and values without time."""
    window, first = _apart(plan, window)
    values = _values(ctx, node, plan, window)
    begun = _values(ctx, node, plan, first) if first is not None else [None] * len(values)
    stored, kept = [], list[Deferred]()
    for name, layout, value, start in zip(node.outputs, plan.layouts, values, begun, strict=False):
        if name and layout is not None:
            stored.append(ctx.file_wire(name, node.name, value, layout, length, window, known, start))
        elif name and plan.whole is not None:
            ctx.ask.facts[name] = _whole(node, plan.whole, value, length, window)
            kept.append(value)
    made = (*(s.value for s in stored), *kept) or values[:1]
    outputs = tuple(n for n, layout in zip(node.outputs, plan.layouts, strict=False) if n and (layout or plan.whole))
    ctx.add(Step(node.name, window, made, tuple(stored), outputs, _planned_reads(plan, window), plan.exact))


def _planned_reads(plan: Plan, window: Window) -> tuple[PlannedRead, ...]:
    return tuple(
        PlannedRead(r.wire.name, _read_window(r, window), r.reach, "" if r.fill is None else r.fill.text)
        for r in plan.reads
    )


def _whole(node: Node, made: Whole, value: Deferred, length: Length, window: Window) -> Static:
    """A value that waits for frames: the first ones, or all of them."""
    own = Awaited(length if made.count is None else constant_length(made.count), window, node)
    return Static(value, tuple(dict.fromkeys([own, *(w for s in made.beside for w in s.waits)])))


def _alike(plan: Plan) -> bool:
    """Are all frames it reads alike, each made into one by itself? One is all of them."""
    folded = any(w.folded for w in (*_layouts(plan), *(r.wire.layout for r in plan.reads)))
    return not (plan.length or plan.exact or folded) and all(
        r.wire.constant_frame is not None
        and r.wire.length is None
        and r.wire.end is None
        and not r.wire.waits
        and r.reach == POINTWISE
        and r.fill is None
        for r in plan.reads
    )


def _layouts(plan: Plan) -> list[Layout]:
    return [layout for layout in plan.layouts if layout is not None]


def _trail(ctx: Context, node: Node, plan: Plan, window: Window, early: bool, ready: int) -> Trail:
    """What it reads, and what its windows wait for. ready: where they would end but for the stream's first frames."""
    reads = [r for r in plan.reads if r.wire.end is not None]
    ends = [r.reach.latest_end(r.wire.end) for r in reads if r.wire.end is not None]
    after = reads[ends.index(min(ends))].wire.name
    assert plan.length is not None
    why = "carry" if plan.exact and window.end == window.p else "length"
    if window.end == min(ends):
        why = "ahead"
    elif window.end < ready:
        why = "start"
    elif early and window.end < min(window.p, ctx.latest_end(plan.length)):
        why = "first"
    looks = tuple(look(r.wire.name, r.reach, plan.exact) for r in reads)
    keys = [(node.name, r.wire.name, r.reach.num, r.reach.den, r.reach.hi) for r in reads]
    fewer = [ctx.spared.get(key, r.reach) for key, r in zip(keys, reads, strict=True)]
    spared = tuple(look(r.wire.name, less) for r, less in zip(reads, fewer, strict=True) if less is not None)
    read = [r.least or (r.reach if less is None else less) for r, less in zip(reads, fewer, strict=True)]
    least = tuple(look(r.wire.name, reach) for r, reach in zip(reads, read, strict=True))
    return Trail(window.p, window.end, looks, after, why, early, spared, least, plan.length)


def _first_frames(ctx: Context, node: Node, plan: Plan) -> tuple[Awaited, ...]:
    """First frames of the stream that it reads as values."""
    beside = [w for n in node.reads if isinstance(f := ctx.ask.facts.get(n), Static) for w in f.early]
    return tuple(dict.fromkeys([*(w for r in plan.reads for w in r.wire.waits), *beside]))


def _apart(plan: Plan, window: Window) -> tuple[Window, Window | None]:
    """The frames of a pulse, and those that a stream begins with over and above: made apart, and once.

    window   [ - - - - - - )            p = 4
    first    [ - - )                    what the state is at pulse 0
    window       [ - - - - )
    """
    if plan.exact or window.frames <= window.p or not all(map(holds, _layouts(plan))):
        return window, None
    main = Window(window.p, window.end - window.p, window.end)
    return main, Window(window.p, window.start, main.start)


def _known_frames(ctx: Context, node: Node, plan: Plan, window: Window) -> int:
    """So many of the first frames made are the same in every stream, if that spares computing them again and again."""
    if plan.exact or plan.length is None or window.end <= window.p:
        return 0
    frames = min(at_least(plan.length), *(_known_of(r) for r in plan.reads if r.wire.end is not None))
    return frames if frames > 0 and _independent(ctx, node, plan, window) else 0


def _independent(ctx: Context, node: Node, plan: Plan, window: Window) -> bool:
    """Does what is made of known frames depend on nothing else, and can it be held?"""
    if not fits(ctx) or not all(map(holds, _layouts(plan))):
        return False
    clocked = [r.wire.take(_read_window(r, window)) for r in plan.reads if r.wire.end is None]
    return not plan.ends and all(v.fixed for v in (*clocked, *_beside(ctx, node)))


def _beside(ctx: Context, node: Node) -> list[Deferred]:
    """The values without time that a node reads."""
    return [f.recipe for n in node.reads if isinstance(f := ctx.ask.facts.get(n), Static)]


def _known_of(read: Read) -> int:
    """So many of the first frames read nothing but known frames, or are filled in with what is known."""
    shown = first_shown(read.fill, -read.reach.first(0))
    return read.reach.latest_end(read.wire.known) if read.wire.known >= shown else 0


def _read_window(read: Read, window: Window) -> Window:
    return Window(window.p * read.reach.num // read.reach.den, *read.reach.span(window.start, window.end))


def _known_end(ctx: Context, plan: Plan) -> int | None:
    """Known frames can be had at any time, but for those that follow from where what they are made of ends."""
    ends = []
    for read in plan.reads:
        own = read.wire.length
        if own is None or plan.length is None:
            continue
        if plan.tail or (read.fill is not None and overrun(read.reach, own, plan.length)):
            ends.append(read.reach.latest_end(ctx.latest_end(own)))
    return min([*ends, ctx.latest_end(plan.length)]) if ends and plan.length is not None else None


def check_known(ctx: Context, node: Node, wire: Wire, length: Length, folded: Iterable[int] = ()) -> None:
    """A known value beside data must have as many frames, at every length: one frame alone would be spread over all.

    folded: so many may lie in front of time on the same axis.
    """
    try:
        size = follower(ctx.ask).sizes_of(wire.name)[wire.layout.axis]
        expected = in_frames(ctx.ask, length)
        alike = [multiply(expected, constant(n, size.unit)) for n in (1, *folded)]
    except (Unsure, KeyError):
        return
    if size.constant or any(same_series(size, s) for s in alike):
        return
    off, alone = aligned(subtract(size, expected), compare(size, constant(1, size.unit), np.equal))[2]
    if ((off != 0) & alone).any():
        as_expected(ctx.ask, node, node.outputs[0], wire.layout.axis, size, expected)
    elif off.any() and size.growth:  # batch fails where they differ; a table that ends is looked after elsewhere
        require_as_many(ctx.ask, node, length, size)


def _before_mirror(plan: Plan) -> bool:
    """Is it all the same whether frames are shown again before or after this? Then later: nobody waits in vain."""
    if len(plan.reads) != 1 or plan.exact or plan.length is None:
        return False
    read = plan.reads[0]
    mirror, wire = read.wire.mirror, read.wire
    if mirror is None or mirror.source.end is None or wire.length is None:
        return False
    if any(at.folded for at in (wire.layout, *_layouts(plan))):
        return False  # frames are shown again along an axis of their own
    # what is filled in or put behind it is none of the frames shown again
    return read.reach.pointwise and read.fill is None and not overrun(read.reach, wire.length, plan.length)


def _file_mirrored(ctx: Context, node: Node, plan: Plan) -> None:
    """The operator on the frames themselves; its results are shown again instead of its inputs."""
    mirror = plan.reads[0].wire.mirror
    assert mirror is not None and plan.length is not None
    source = mirror.source
    assert source.end is not None
    here = Window(ctx.frames(source.rate), 0, source.end)
    known = source.known if here.end > here.p and _independent(ctx, node, plan, here) else 0
    window, first = _apart(plan, _own_window(ctx, source, known))
    values = made_in(ctx, node, plan, [source.take(window)], window)
    begun = made_in(ctx, node, plan, [source.take(first)], first) if first is not None else [None] * len(values)
    for name, layout, value, start in zip(node.outputs, plan.layouts, values, begun, strict=False):
        if name and layout is not None:
            like = replace(source, name=name, layout=layout, dtype=ctx.ask.dtype(name), known=known)
            inner = ctx.file_variant(f"{name}#source", like, value, window, offset=mirror.before, begun=start)
            ctx.trails[inner.name] = Trail(window.p, window.end, (look(source.name),), source.name)
            ctx.ask.facts[name] = mirrored_wire(ctx, name, inner, mirror.before, mirror.after, mirror.mode, plan.length)


def _own_window(ctx: Context, wire: Wire, known: int) -> Window:
    """The latest window in which the wire can be had; so many of its first frames need not be."""
    assert wire.end is not None
    p, end = ctx.frames(wire.rate), wire.end
    while waits(ctx, wire, POINTWISE, None, Window(p, min(end - p, known), end)):
        end -= 1
    return Window(p, min(end - p, known), end)


def _values(ctx: Context, node: Node, plan: Plan, window: Window) -> tuple[Deferred, ...]:
    """What the node makes in a window."""
    single = all(r.wire.constant_frame is not None for r in plan.reads if r.broadcast)
    values = []
    for read in plan.reads:
        if read.broadcast and read.wire.constant_frame is not None and not single:
            values.append(read.wire.constant_frame)
        else:
            values.append(fill(ctx, read.wire, read.reach, read.fill, window, plan.length))
    return made_in(ctx, node, plan, values, window)


def made_in(ctx: Context, node: Node, plan: Plan, values: Sequence[Deferred], window: Window) -> tuple[Deferred, ...]:
    """What the node makes in a window, of these values."""
    if plan.check is not None:
        plan.check(window)

    def make() -> Sequence[ir.Value | None]:
        given = [v.value for v in values]
        seen = ctx.clock.ends_seen
        with processing(node):
            made = plan.emit(given, window)
        if ctx.clock.ends_seen > seen and not (plan.ends or plan.tail or plan.exact):
            raise NotStreamable(
                "its rule looks at where the stream ends, and its plan does not say so",
                node=node.name,
                op=node.op,
                hint="declare it in the rule: Plan(..., ends=True)",
                kind=Kind.BUG,
            )
        return made

    fixed = not (plan.ends or plan.tail)
    return deferred_all(make, len(plan.layouts), *values, *_beside(ctx, node), fixed=fixed)


def _file_formula(
    ctx: Context, node: Node, plan: Plan, end: int | None = None, known: int = 0, waits: tuple[Awaited, ...] = ()
) -> None:
    """The node is emitted anew for whatever window is read.

    So is done with what does not wait for data (positions, tables, constants), and with mere copies of data.
    """
    clean = not plan.fills and all(map(_zeros_before, plan.reads))
    made: dict[Window, tuple[Deferred, ...]] = {}

    def take(index: int) -> Callable[[Window], Deferred]:
        def at(window: Window) -> Deferred:
            if window not in made:
                made[window] = _values(ctx, node, plan, window)
            return made[window][index]

        return at

    rows = min(
        (r.reach.latest_end(r.wire.table_rows) for r in plan.reads if r.wire.table_rows is not None), default=None
    )
    for i, (name, layout) in enumerate(zip(node.outputs, plan.layouts, strict=False)):
        if name and layout is not None:
            dtype = ctx.ask.dtype(name)
            ctx.formulas[name] = _planned_reads(plan, Window(1, 0, 1))
            ctx.ask.facts[name] = Wire(
                name, layout, dtype, plan.length, end, take(i), clean, table_rows=rows, copies=plan.copies,
                known=known, waits=waits,
            )  # fmt: skip


def _zeros_before(read: Read) -> bool:
    """Do frames before the first read zeros, and nothing else? (Not those shown again, nor what was cut in front.)"""
    zeros = read.fill is None or (read.fill.mode == "constant" and read.fill.value == 0)
    return read.wire.clean and zeros and read.reach.last(-1) < 0


def settled(ctx: Context, node: Node, wire: Wire) -> Wire:
    """A wire of mirrored frames as one that is emitted, for those who mirror it once more."""
    name = f"{node.outputs[0]}#source"
    plan = Plan((Read(wire),), (wire.layout,), wire.length, lambda values, window: (values[0],))
    window, first = _apart(plan, _own_window(ctx, wire, wire.known))
    begun = _values(ctx, node, plan, first)[0] if first is not None else None
    return ctx.file_variant(name, wire, _values(ctx, node, plan, window)[0], window, begun=begun)
