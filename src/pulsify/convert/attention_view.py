"""Where a field is summed up (scores times values), its windows are chosen from the cells that take part.

cols j   . . . x x x . . . .        a row looks at the cells x; the columns of all rows of a pulse,
row i          [---]                from the first to the last, are the window of keys and values
row i+1          [---]
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pulsify.convert.context import Context, OutOfStep
from pulsify.convert.facts import ALL, Offsets, Window
from pulsify.convert.known.series import Unsure
from pulsify.convert.proof.claims import Claim, critical_lengths
from pulsify.convert.proof.numbers import uncertain
from pulsify.convert.questions import Unclear
from pulsify.convert.trail import Span
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.frontend.model import Node
from pulsify.trace.evaluate import Array, Trace

FAR = 1 << 40  # frames: no stream is as long


@dataclass(frozen=True)
class View:
    """Rows of a pulse, the columns they look at, and the smallest and largest (col - row) among them.

    whole: all the columns that the model looks at, not just the last ones.
    """

    rows: Window
    cols: Window
    offsets: Offsets
    whole: bool = True


def choose_view(
    ctx: Context,
    node: Node,
    looked: Callable[[Trace], Array],
    p: tuple[int, int],
    ends: tuple[int, int],
    length: Length,
) -> View:
    """The view that holds at every traced length; Unclear if they disagree (look-back or look-ahead grows).

    looked: the cells that take part, at a length. What two lengths disagree about is without bound if both are so long
    that nothing new can show; otherwise longer ones are looked at. length: how many rows there are.
    """
    seen = [looked(run) for run in ctx.ask.traces.runs]
    views = [_view(ctx, node, cells, p, ends) for cells in seen]
    longest, before = views[-1], views[-2]
    chunk = math.ceil(_chunk(seen[-1], p) / length.rate)
    ctx.ask.ledger.chunks.update([chunk] if chunk else [])
    if longest.rows == before.rows and longest.cols == before.cols:
        return longest
    ahead = longest.rows != before.rows or longest.cols.end != before.cols.end
    need = enough(ctx, node, looked)
    if need > ctx.ask.traces.lengths[0] and not ctx.ask.longest_look:
        raise _without_bound(node, ahead, need)
    if not ahead and ctx.ask.unbounded != "refuse":
        return _unbounded(ctx, longest, length)
    if chunk and chunk % ctx.pulse and ctx.pulse % chunk:  # what differs is where chunks lie in a pulse
        raise OutOfStep(chunk)
    raise _without_bound(node, ahead, 0)


def _chunk(looked: Array, p: tuple[int, int]) -> int:
    """Rows that wait for the same column, chunk by chunk; 0 if each waits for one of its own.

    row      0 1 2 3 4 5 6 7
    waits    3 3 3 3 7 7 7 7      4
    """
    rows = np.flatnonzero(looked.any(1))
    last = looked.shape[1] - 1 - looked[rows, ::-1].argmax(1)
    rows = rows[last < last.max(initial=0)]  # the others wait for the end of the stream
    ahead = (last[: len(rows)] * p[0] - rows * p[1])[len(rows) // 3 :]  # past the start
    for count in range(1, len(ahead) // 2 + 1):
        if (ahead[count:] == ahead[:-count]).all():
            return count if count > 1 else 0
    return 0


def spans(looked: Array, p: tuple[int, int]) -> tuple[tuple[Span, ...], int]:
    """The first and last column of every row of a chunk, and by how many columns the next chunk's lie further on.

    A row near an end of the stream sees less than its like, never more.
    """
    rows = np.flatnonzero(looked.any(1))
    first, last = looked[rows].argmax(1), looked.shape[1] - 1 - looked[rows, ::-1].argmax(1)
    inner = slice(len(rows) // 3, -(len(rows) // 3) or None)
    moved = np.stack([first, last])[:, inner] * p[0] - rows[inner] * p[1]
    repeats = (n for n in range(1, moved.shape[1] // 2 + 1) if (moved[:, n:] == moved[:, :-n]).all())
    count = math.lcm(next(repeats, _chunk(looked, p) or 1), p[0] // math.gcd(*p))
    step = count * p[1] // p[0]
    back = rows // count * step
    every = (int((first - back).min()), int((last - back).max()))
    own = [rows % count == i for i in range(count)]
    return tuple((int((first - back)[m].min()), int((last - back)[m].max())) if m.any() else every for m in own), step


def enough(ctx: Context, node: Node, looked: Callable[[Trace], Array]) -> int:
    """A length at which all there is to see of a mask is seen."""
    what = "how far attention looks"
    claim = Claim(node, what, lambda run: looked(run) is not None, hidden=True)
    try:
        return critical_lengths(ctx.ask, claim)[0][-1] + 2 * ctx.pulse
    except Unsure as problem:
        if isinstance(ctx.ask.unbounded, int):
            return 0  # so many frames are kept, whatever the mask says
        if ctx.ask.proof != "sampled":
            uncertain(ctx.ask, node, getattr(problem, "value", what), problem)
        ctx.ask.ledger.sampled[what] = str(problem)
        return 0


def _without_bound(node: Node, ahead: bool, look: int) -> NotStreamable:
    if ahead:
        reason = "every frame looks ahead without bound, to the end of the stream"
        hint = "train or export the model with an attention mask that bounds how far it looks ahead"
    else:
        reason = "unbounded look-back: every frame looks back to the start of the stream"
        hint = 'bound the look-back in the mask, or pass unbounded="grow" to keep all of the past'
    if not look:
        return NotStreamable(reason, node=node.name, op=node.op, hint=hint)
    reason += f" (one would have to look at streams of {look} frames to be sure)"
    problem = Unclear(reason, node=node.name, op=node.op, hint=hint)
    problem.look = look
    return problem


def _unbounded(ctx: Context, view: View, length: Length) -> View:
    """Everything so far, or (no longer exact) the last N columns before those of the pulse."""
    rows, cols = view.rows, view.cols
    if not isinstance(ctx.ask.unbounded, int):
        return replace(view, cols=Window(cols.p, ALL, cols.end))
    start = rows.start * cols.p // rows.p - ctx.ask.unbounded
    pulses = -start // cols.p + 1  # until the first column falls out of the window
    exact = _longest(length, pulses * rows.p + rows.start)
    if exact is not None:
        ctx.ask.ledger.kept = exact if ctx.ask.ledger.kept is None else min(ctx.ask.ledger.kept, exact)
    return replace(view, cols=Window(cols.p, start, cols.end), whole=False)


def _longest(length: Length, frames: int) -> int | None:
    """The longest stream with no more frames than this on a wire; None if the wire never has more."""
    more = bisect_right(range(FAR), frames, key=length.at)  # the shortest that has more
    return max(more - 1, 0) if more < FAR else None


def _view(ctx: Context, node: Node, needed: Array, p: tuple[int, int], ends: tuple[int, int]) -> View:
    some = needed.any(1)
    if not some.any():
        ctx.ask.refuse(node, "no frame looks at any other: everything is masked", "check the mask")
    i = np.flatnonzero(some)
    first, last = needed[i].argmax(1), needed.shape[1] - 1 - needed[i, ::-1].argmax(1)
    # Row i must wait for pulse `wait`, which brings the last column it looks at.
    wait = -(-(last + 1 - ends[1]) // p[1])
    late = wait >= 1
    bounds = i[late] - (wait[late] - 1) * p[0]
    end = int(min(ends[0], bounds.min(initial=ends[0])))
    start = min(end - p[0], 0)
    # Row i is made at pulse n with n*p + start <= i < n*p + end (several pulses, if the window is wider than p).
    earliest = np.maximum(-(-(i + 1 - end) // p[0]), 0)
    latest = (i - start) // p[0]
    cols_start = int((first - latest * p[1]).min())
    cols_end = int((last + 1 - earliest * p[1]).max())
    offsets = (int((first - i).min()), int((last - i).max()))
    return View(Window(p[0], start, end), Window(p[1], cols_start, cols_end), offsets)
