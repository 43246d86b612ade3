"""Attention to the first frames of the stream beside a window: those are kept, and stand in front of it.

    columns    0 1 2 | 3 4 5 6 7 8 9        3 first columns, and a window of 4 that ends at the row's own
    row 4      x x x | x x                  what is kept of 0, 1, 2 is looked at, and of the window what comes behind
    row 9      x x x |       x x x x

A first column counts where it is kept and nowhere else. Nothing is awaited: what has not come yet no row looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Layout, Window, Wire, deferred
from pulsify.analysis.proof.claims import prove
from pulsify.core.length import Length
from pulsify.core.refusal import Kind
from pulsify.emit.fold import Fold
from pulsify.emit.frames import along
from pulsify.frontend.model import Node
from pulsify.plan.context import Context
from pulsify.trace.evaluate import Trace
from pulsify.trace.traced import Array, same


def with_first(ctx: Context, node: Node, wire: Wire, window: Window) -> Deferred:
    """The frames of a window with the first ones of the stream in front."""
    if not window.first:
        return wire.take(window)
    if wire.layout.folded:
        ctx.ask.refuse(
            node,
            f"it looks at the first {window.first} frames of the stream, and '{wire.name}' has time merged with "
            "another axis",
            (ctx.ask.fix_batch(), "keep time on an axis of its own"),
            kind=Kind.LOOK_BACK,
        )
    x = wire.take(window.moving)
    since = replace(window.moving, start=min(window.start, 0))  # frames that every stream begins with come before it
    seen = wire.take(since)

    def make() -> ir.Value:
        fold = Fold(ctx, node, wire.length or Length(), since)
        kept = fold.first(seen.value, wire.layout, wire.dtype, window.first)
        return ctx.builder.op("Concat", kept, x.value, axis=wire.layout.axis)

    return deferred(make, x, seen, fixed=False)


def inside_both(ctx: Context, name: str, window: Window, col: int, length: Length | None) -> Deferred:
    """Which columns lie inside the stream; the first ones only where they are kept."""
    sizes = tuple(0 if i == col else s for i, s in enumerate(ctx.ask.sizes_static(name)))

    def make() -> ir.Value:
        b = ctx.builder
        places = b.constant(np.arange(window.first, dtype=np.int32)[None], "places")
        frames = ctx.clock.frames(window.moving)
        behind = b.op("GreaterOrEqual", frames, b.constant(np.array(window.first, np.int32), "int"))
        zero = b.constant(np.array(0, np.int32), "int")
        each = b.op("Mul", b.slice(frames, 1, 0, 1), zero)  # of every stream
        there = b.op("GreaterOrEqual", b.op("Add", each, places), zero)
        if length is not None:
            end = ctx.clock.end(length)
            behind = b.op("And", behind, b.op("Less", frames, end))
            there = b.op("And", there, b.op("Less", places, end))
        return along(ctx, b.op("Concat", there, behind, axis=1), Layout(sizes, col), window.frames)

    return Deferred(make, fixed=False)


def pulse_number(ctx: Context, window: Window, most: int) -> ir.Value:
    """The number of the pulse, or `most` if that is less."""
    b = ctx.builder
    begin = ctx.clock.frames(Window(window.p, 0, 1))
    number = b.op("Div", begin, b.constant(np.array(window.p, np.int32), "int"))
    return b.op("Min", number, b.constant(np.array(most, np.int32), "int"))


@dataclass(frozen=True, eq=False)
class Blocks:
    """What a known array shows of the first columns, by pulse; the last of them at all later pulses, too."""

    row: int
    col: int
    rows: Window
    first: int
    steady: Array
    before: tuple[Array, ...] = ()

    def at(self, n: int) -> Array:
        return self.before[n] if n < len(self.before) else self.steady

    def seen(self, array: Array) -> Iterator[tuple[int, Array, slice, int]]:
        """Of every pulse: what it sees of an array, in which of its rows, and of how many columns."""
        turned, count = np.moveaxis(array, (self.row, self.col), (-2, -1)), min(self.first, array.shape[self.col])
        for n in range(-(-(array.shape[self.row] - self.rows.start) // self.rows.p)):
            begin = n * self.rows.p + self.rows.start
            part = turned[..., max(begin, 0) : max(begin + self.rows.frames, 0), :count]
            if part.size:
                low = max(-begin, 0)
                yield n, part, slice(low, low + part.shape[-2]), count

    def holds(self, array: Array) -> bool:
        return all(same(part, self.at(n)[..., rows, :count]) for n, part, rows, count in self.seen(array))

    def each(self, how: Callable[[Array], Array]) -> Blocks:
        """The same of another form of the array."""

        def made(block: Array) -> Array:
            plain = np.moveaxis(block, (-2, -1), (self.row, self.col))
            return np.moveaxis(how(plain), (self.row, self.col), (-2, -1))

        return replace(self, steady=made(self.steady), before=tuple(made(b) for b in self.before))

    def stack(self, moving: Array) -> Array:
        """In front of the columns of a window, which see the same at every pulse."""
        blocks = [np.moveaxis(b, (-2, -1), (self.row, self.col)) for b in (*self.before, self.steady)]
        return np.stack([np.concatenate([b, moving], self.col) for b in blocks])


def first_blocks(ctx: Context, node: Node, name: str, row: int, col: int, windows: dict[int, Window]) -> Blocks:
    """What a known array shows of the first columns: proven at every length, and refused if it never settles."""
    array = ctx.ask.traces.longest[name].array
    found = Blocks(row, col, windows[row], windows[col].first, np.zeros(0))
    seen = list(found.seen(array))
    whole = [part for _, part, _, count in seen if part.shape[-2:] == (found.rows.frames, found.first)]
    if whole:
        found = replace(found, steady=whole[-1])
        other = [n for n, part, rows, count in seen if not same(part, found.steady[..., rows, :count])]
        before = [found.steady.copy() for _ in range(max(other, default=-1) + 1)]
        for n, part, rows, count in seen:
            if n < len(before):  # the first pulses show no row yet where rows come late
                before[n][..., rows, :count] = part
        found = replace(found, before=tuple(before))
    if not whole or 2 * len(found.before) > len(seen):
        ctx.ask.refuse(
            node,
            f"every frame looks back to the first {found.first} of the stream, and what '{name}' (a mask, a bias) says "
            "of them changes as the stream goes on",
            "add the bias in the window only, or bound the look-back in the mask",
            kind=Kind.LOOK_BACK,
        )
    reach = (len(found.before) * found.rows.p + found.first + found.rows.frames) * ctx.pulse / found.rows.p

    def holds(run: Trace) -> bool:
        return found.holds(run[name].array)

    what = f"what '{name}' says of the first frames of the stream"
    prove(ctx.ask, node, what, holds, near={"start": reach}, period=ctx.pulse)
    return found
