"""The Boundary: what an operator sees before frame 0 and from frame L on.

    frames      -2 -1 | 0  1  2 ... L-1 | L  L+1
    constant     v  v | x0 x1 x2 ...    | v  v
    edge        x0 x0 | x0 x1 x2 ...    | xL-1 ...
    reflect     x2 x1 | x0 x1 x2 ...    | xL-2 xL-3
    repeat      x0 x1 | x0 x1 x2 ...                     (the first `value` frames once more, in front only)

Nothing is emitted where it cannot matter: a start that reads the zero initial state where zeros are wanted, an
end that no output frame reaches.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Awaited, Deferred, Layout, Mirror, Window, Wire, deferred
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.reach import Reach, shift
from pulsify.core.refusal import Kind
from pulsify.emit.builder import choose
from pulsify.emit.frames import along, gather_frames, real_frames
from pulsify.plan.context import counted
from pulsify.plan.trail import Trail, look

if TYPE_CHECKING:
    from pulsify.plan.context import Context

MOST_RESIDUES = 4096


@dataclass(frozen=True)
class Fill:
    """What stands in for frames outside [0, L): a constant, the nearest frame, or the mirrored one."""

    mode: str = "constant"  # constant | edge | reflect | symmetric (the end itself shown twice) | repeat
    value: float | int = 0
    past: int = 0  # frames behind the end that are touched with weight zero, and must be finite all the same

    @property
    def text(self) -> str:
        return f"{self.value:g}" if self.mode == "constant" else self.mode


def ready(wire: Wire, reach: Reach, how: Fill | None, window: Window, since: int = 0) -> bool:
    """Do the first frames of the stream find the frames they are shown already there, from pulse `since` on?"""
    m = wire.mirror
    if m is not None and m.source.end is not None and _shown(reach, how, window, m, since) > m.source.end:
        return False
    if how is None or how.mode == "constant" or wire.end is None:
        return True
    return _shown(reach, how, window, since=since) <= wire.end


def waits(ctx: Context, wire: Wire, reach: Reach, how: Fill | None, window: Window) -> bool:
    """Must a window come later, for the first frames of the stream to find what they are shown?

    Noted, and left at that, where the start is not this plan's business (an opening has been run before).
    """
    if wire.constant_frame is None and (wire.mirror is not None or (how is not None and how.mode != "constant")):
        ctx.frames(Fraction(window.p * reach.num, ctx.pulse * reach.den))  # else it would never be there in time
    if ready(wire, reach, how, window):
        return False
    ctx.waited.append(partial(_over_by, wire, reach, how, window))
    return not ctx.started


def after_first(ctx: Context, first: Sequence[Awaited], p: int, end: int) -> int:
    """The end of windows whose frames are made of first frames, too: frame 0 comes when those are there.

    pulse      0    1    2            two pulses until they are there
    window   ) .    .  [ 0 ...        frame 0 comes with the third: end <= -p
    """
    for frames in first:
        if frames.pulse > 0:
            ctx.waited.append(frames.over)
            end = end if ctx.started else min(end, -(frames.pulse - 1) * p)
    return end


def _over_by(wire: Wire, reach: Reach, how: Fill | None, window: Window, pulses: int) -> bool:
    """Is all there that the first frames are shown: in so many pulses taken as one, and at every pulse after them?"""
    more = (pulses - 1) * window.p
    longer = Window(window.p * pulses, window.start, window.end + more)
    opened = ready(_later(wire, more * reach.num // reach.den), reach, how, longer)
    return opened and ready(wire, reach, how, window, since=pulses)


def _later(wire: Wire, frames: int) -> Wire:
    """The wire when so many more frames of it are there."""
    mirror = wire.mirror
    if mirror is not None:
        mirror = replace(mirror, source=_later(mirror.source, frames))
    return replace(wire, end=None if wire.end is None else wire.end + frames, mirror=mirror)


def _shown(reach: Reach, how: Fill | None, window: Window, mirror: Mirror | None = None, since: int = 0) -> int:
    """The end (relative to the pulse) of the frames that the first pulses read, those shown in front included.

    mirror: the wire read is itself made of another one's frames, and those are counted.
    """
    p = window.p * reach.num // reach.den
    end, n = -(1 << 30), since
    while True:
        first = max(0, n * window.p + window.start)
        last = n * window.p + window.end
        seen = _seen(reach, how, first, last)
        if mirror is not None:
            back, again = shift(-mirror.before), Fill(mirror.mode, mirror.before)
            seen = [s for r in seen for s in _seen(back, again, r.start, r.stop)]
        end = max([end, *(r.stop - n * p for r in seen)])
        if reach.first(first) >= (mirror.before if mirror is not None else 0):
            return end
        n += 1


def _seen(reach: Reach, how: Fill | None, first: int, last: int) -> list[range]:
    """The real frames that output frames first ... last - 1 read, or are shown in place of those before 0."""
    if last <= first:
        return []
    low, high = reach.first(first), reach.last(last - 1)
    seen, before = [range(max(low, 0), high + 1)], min(high, -1)
    if how is not None and low < 0 and how.mode == "repeat":
        seen.append(range(low + int(how.value), before + int(how.value) + 1))
    elif how is not None and low < 0 and how.mode != "constant":
        again = {"edge": range(1), "symmetric": range(-before - 1, -low)}
        seen.append(again.get(how.mode, range(-before, -low + 1)))
    return [r for r in seen if r]


def mirrored_wire(ctx: Context, name: str, source: Wire, before: int, after: int, mode: str, length: Length) -> Wire:
    """`source` with frames of its own shown again in front and behind; made for whatever window is asked for.

    Nothing is emitted here, so that what reads it waits only for the frames it really sees.
    """
    how = Fill(mode, before)
    ends = max(after, 0)

    def take(window: Window) -> Deferred:
        lo, hi = window.start - before, window.end - before
        latest = source.end if source.end is not None else hi + 2 * max(before, 0)
        wide = Window(window.p, lo - ends * (1 if mode == "edge" else 2), max(hi, latest))
        return _mirrored(ctx, source, Window(window.p, lo, hi), wide, how, before > 0, ends > 0)

    end = None if source.end is None else min(source.end + before, ctx.latest_end(length))
    if source.end is None and ends > 0 and source.length is not None:  # what is shown behind depends on where it ends
        end = min(ctx.latest_end(source.length) + before, ctx.latest_end(length))
    if end is not None:
        looks = (look(source.name, shift(-before)),)
        ctx.trails[name] = Trail(ctx.frames(length.rate), end, looks, source.name, length=length)
    mirror = Mirror(source, before, after, mode) if before > 0 else None
    known = max(source.known + before, 0) if source.known >= first_shown(how, before) else 0
    return Wire(name, source.layout, source.dtype, length, end, take, mirror=mirror, known=known)


def first_shown(how: Fill | None, before: int) -> int:
    """So many of the stream's first frames are shown in front of it, `before` frames far."""
    if how is None or how.mode == "constant" or before <= 0:
        return 0
    return {"edge": 1, "reflect": before + 1, "symmetric": before}.get(how.mode, 1 << 40)


def overrun(reach: Reach, read: Length, made: Length) -> int:
    """How many frames past the last real one are read, at the most, by an output frame that exists."""
    period = math.lcm(read.period, made.period)
    base = period * 64
    lengths: Sequence[int] = range(base, base + period + 1)
    if period > MOST_RESIDUES:  # it is largest where another output frame has just come into being
        frames = range(made.at(base, steady=True) + 1, made.at(base + period, steady=True) + 1)
        lengths = [bisect_left(lengths, n, key=lambda s: made.at(s, steady=True)) + base for n in frames]
    steady = max(reach.last(made.at(s, steady=True) - 1) - read.at(s, steady=True) + 1 for s in lengths)
    short = np.arange(1, min(max(made.settled, read.settled), MOST_RESIDUES))  # short streams have ways of their own
    k, real = made.each(short), read.each(short)
    early = np.where(k > 0, (k - 1) * reach.num + reach.hi, -reach.den) // reach.den - real + 1
    return max(steady, int(early.max(initial=0)), 0)


def fill(ctx: Context, wire: Wire, reach: Reach, how: Fill | None, window: Window, made: Length | None) -> Deferred:
    """The input window that `window` of the output reads, with real or filled-in frames wherever it matters."""
    p = window.p * reach.num // reach.den
    if how is not None or not reach.pointwise:
        wire = _of_every_stream(ctx, wire)
    if wire.constant_frame is None:  # what is known also comes in whole frames, unless all of them are alike
        p = ctx.frames(Fraction(window.p * reach.num, ctx.pulse * reach.den))
    lo, hi = reach.span(window.start, window.end)
    if how is None:
        return wire.take(Window(p, lo, hi))
    starts = reach.first(0) < 0
    ends = how.past
    if wire.length is not None and made is not None:
        ends = max(ends, overrun(reach, wire.length, made))
    if how.mode == "constant":
        return _constant(ctx, wire, Window(p, lo, hi), how, starts, ends > 0)
    if not starts and not ends:
        return wire.take(Window(p, lo, hi))
    shown = _shown(reach, how, window) if starts else hi
    wide_hi = max(hi, shown if wire.end is None else min(shown, wire.end))
    ends = 0 if how.mode == "repeat" else ends
    wide_lo = lo - ends * (1 if how.mode == "edge" else 2)
    return _mirrored(ctx, wire, Window(p, lo, hi), Window(p, wide_lo, wide_hi), how, starts, ends > 0)


def _of_every_stream(ctx: Context, wire: Wire) -> Wire:
    """Equal frames are kept as those of one stream: where a stream has its own ends, it needs its own frames."""
    layout = Layout(ctx.ask.sizes(wire.name, wire.layout.axis), wire.layout.axis)
    if wire.constant_frame is None or ctx.batch is None or wire.layout.folded or layout.batch is None:
        return wire

    def take(window: Window) -> Deferred:
        x = wire.take(window)
        sizes = tuple(s if s < 0 else 1 for s in layout.sizes)
        return deferred(lambda: ctx.builder.op("Expand", x.value, counted(ctx, sizes)), x)

    return replace(wire, layout=layout, take=take)


def _constant(ctx: Context, wire: Wire, window: Window, how: Fill, starts: bool, ends: bool) -> Deferred:
    x = wire.take(window)
    if wire.clean and how.value == 0:
        ctx.zeroed.update([wire.name] if starts else [])
        starts = False
    if not starts and not ends:
        return x

    def make() -> ir.Value:
        valid, b = real_frames(ctx, window, wire.length if ends else None, starts), ctx.builder
        value = b.constant(np.array(how.value, wire.dtype.numpy()), "fill")
        return choose(b, along(ctx, valid, wire.layout, window.frames), x.value, value, wire.dtype)

    return deferred(make, x, fixed=not ends)


def bounded_wire(ctx: Context, wire: Wire) -> Wire:
    """The same wire with zeros in all its frames outside the stream, whatever its operator made of them.

    Whatever is summed over time must be finite there: nothing times NaN is NaN.
    """
    if wire.name not in ctx.bounded:
        own = ctx.windows.get(wire.name)
        if wire.length is None:
            return wire
        if own is None:  # a copy of another wire: mask its windows
            how = Fill()
            return replace(wire, take=lambda w: _constant(ctx, wire, w, how, starts=True, ends=True), clean=True)
        value, begun = _constant(ctx, wire, own, Fill(), starts=True, ends=True), None
        if ctx.stored[wire.name].begun is not None:
            first = Window(own.p, wire.known, own.start)
            begun = _constant(ctx, wire, first, Fill(), starts=False, ends=True)
        name = f"{wire.name}#bounded"
        ctx.bounded[wire.name] = ctx.file_variant(name, wire, value, own, clean=True, begun=begun)
    return ctx.bounded[wire.name]


def check_aligned(ctx: Context, wire: Wire, target: Layout, window: Window) -> None:
    """Refuse to align windows that grow, of streams of any number."""
    if window.grows and ctx.batch is not None and wire.layout.outer != target.outer and wire.constant_frame is None:
        raise NotStreamable(
            "positions of a past that grows meet streams of any number",
            node=wire.name,
            op="position",
            hint=ctx.ask.fix_batch(),
            kind=Kind.BATCH,
        )


def _mirrored(ctx: Context, wire: Wire, window: Window, wide: Window, how: Fill, starts: bool, ends: bool) -> Deferred:
    """Gather the frames each position shows out of a window wide enough to hold them."""
    x = wire.take(wide)

    def make() -> ir.Value:
        place = _places(ctx, wire, window, wide, how, starts, ends)
        return gather_frames(ctx, x.value, place, wire.layout, window.frames)

    return deferred(make, x, fixed=not ends and how.mode != "repeat")


def _places(ctx: Context, wire: Wire, window: Window, wide: Window, how: Fill, starts: bool, ends: bool) -> ir.Value:
    """Where in the wide window the frames lie that are shown, int32 [B, frames]."""
    b = ctx.builder
    frames = ctx.clock.frames(window)
    zero, one = (b.constant(np.array(v, np.int32), "int") for v in (0, 1))
    shown = frames
    if starts:
        shown = _shown_in_front(ctx, wire, shown, how)
    if ends:
        assert wire.length is not None
        last = b.op("Sub", ctx.clock.end(wire.length), one)
        if how.mode == "edge":
            shown = b.op("Min", shown, last)
        else:
            two = b.constant(np.array(2, np.int32), "int")
            around = b.op("Mul", last, two) if how.mode == "reflect" else b.op("Add", b.op("Mul", last, two), one)
            shown = b.op("Min", shown, b.op("Sub", around, shown))
    begin = ctx.clock.frames(Window(wide.p, wide.start, wide.start + 1))
    place = b.op("Sub", shown, begin)
    return b.op("Min", b.op("Max", place, zero), b.constant(np.array(wide.frames - 1, np.int32), "int"))


def _shown_in_front(ctx: Context, wire: Wire, frames: ir.Value, how: Fill) -> ir.Value:
    b = ctx.builder
    zero = b.constant(np.array(0, np.int32), "int")
    if how.mode == "reflect":
        return b.op("Abs", frames)
    if how.mode == "edge":
        return b.op("Max", frames, zero)
    if how.mode == "symmetric":
        return b.op("Max", frames, b.op("Sub", b.constant(np.array(-1, np.int32), "int"), frames))
    assert wire.length is not None
    count = b.constant(np.array(how.value, np.int32), "int")
    there = b.op("Min", count, ctx.clock.end(wire.length))  # a shorter stream has fewer frames to repeat
    again = b.op("Add", frames, count)
    return b.op("Where", b.op("Less", again, there), again, b.op("Sub", again, there))
