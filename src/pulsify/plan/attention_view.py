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

from pulsify.analysis.facts import ALL, Offsets, Window
from pulsify.analysis.proof.claims import Claim, critical_lengths
from pulsify.analysis.proof.numbers import Looked, uncertain
from pulsify.analysis.questions import Unclear
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.refusal import KEEP_PAST, Kind, Remedies
from pulsify.frontend.model import Node
from pulsify.lengths.series import Unsure
from pulsify.plan.context import Context, OutOfStep
from pulsify.plan.spans import Spans
from pulsify.plan.trail import Span
from pulsify.trace.evaluate import Trace
from pulsify.trace.traced import CannotRun

FAR = 1 << 40  # frames: no stream is as long
MOST_FIRST = 1 << 8  # frames at the start of the stream that are kept for rows further on
MOST_LOOKED = 1 << 14  # frames of streams that are looked at for how far rows see
Seen = Callable[[Trace], Spans]


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
    seen: Seen,
    p: tuple[int, int],
    ends: tuple[int, int],
    length: Length,
) -> View:
    """The view that holds at every traced length; Unclear if they disagree (look-back or look-ahead grows).

    seen: what rows look at, at a length. What two lengths disagree about is without bound if both are so long that
    nothing new can show; otherwise longer ones are looked at. length: how many rows there are.
    """
    looked = [seen(run) for run in ctx.ask.traces.runs[1:]]
    views = [_view(ctx, node, found, p, ends) for found in looked]
    if not _agree(*views):
        need = enough(ctx, node, seen)
        if need > ctx.ask.traces.lengths[0] and not ctx.ask.longest_look:
            further = _further(ctx, seen, need)
            if further is None:
                raise _without_bound(node, _ahead(*views), need)
            looked, views = further, [_view(ctx, node, found, p, ends) for found in further]
    if not _agree(*views) and not _ahead(*views) and (first := _first(looked[-1])):
        kept = [_view(ctx, node, found, p, ends, first) for found in looked]
        views = kept if _agree(*kept) else views
    before, longest = views
    chunk = math.ceil(_chunk(looked[-1], p) / length.rate)
    ctx.ask.ledger.chunks.update([chunk] if chunk else [])
    if _agree(before, longest):
        return longest
    ahead = _ahead(before, longest)
    if not ahead and ctx.ask.options.unbounded != "refuse":
        early = (min(ends[0], p[0]), min(ends[1], p[1]))  # all of them are kept: no more than come with a pulse
        return _unbounded(ctx, longest if early == ends else _view(ctx, node, looked[-1], p, early), length)
    if chunk and chunk % ctx.pulse and ctx.pulse % chunk:  # what differs is where chunks lie in a pulse
        raise OutOfStep(chunk)
    raise _without_bound(node, ahead, 0)


def _first(looked: Spans) -> int:
    """How many first frames of the stream the last row looks at, if it does not look at all that come after them."""
    apart = bool(len(looked.rows)) and looked.rest[-1] < looked.shape[1]
    return int(looked.front[-1]) if apart and looked.front[-1] <= MOST_FIRST else 0


def _agree(before: View, longest: View) -> bool:
    return longest.rows == before.rows and longest.cols == before.cols


def _ahead(before: View, longest: View) -> bool:
    """Is what they differ in how far rows look ahead?"""
    return longest.rows != before.rows or longest.cols.end != before.cols.end


def _further(ctx: Context, seen: Seen, need: int) -> list[Spans] | None:
    """What is seen at two lengths that show all there is; None if the model does not take them, or they are too far."""
    step, base = ctx.ask.traces.step, ctx.ask.traces.lengths[0]
    lengths = [base + -(-(need - base) // step) * step + n * step * max(ctx.pulse, 8) for n in (0, 1)]
    try:
        return [seen(Looked(ctx.ask, s)) for s in lengths] if need <= MOST_LOOKED else None
    except CannotRun:
        return None


def _chunk(looked: Spans, p: tuple[int, int]) -> int:
    """Rows that wait for the same column, chunk by chunk; 0 if each waits for one of its own.

    row      0 1 2 3 4 5 6 7
    waits    3 3 3 3 7 7 7 7      4
    """
    rows, last = looked.rows, looked.last
    rows = rows[last < last.max(initial=0)]  # the others wait for the end of the stream
    ahead = (last[: len(rows)] * p[0] - rows * p[1])[len(rows) // 3 :]  # past the start
    for count in range(1, len(ahead) // 2 + 1):
        if (ahead[count:] == ahead[:-count]).all():
            return count if count > 1 else 0
    return 0


def reaches(looked: Spans, p: tuple[int, int]) -> tuple[tuple[Span, ...], int]:
    """The first and last column of every row of a chunk, and by how many columns the next chunk's lie further on.

    A row near an end of the stream sees less than its like, never more.
    """
    rows, first, last = looked.rows, looked.first, looked.last
    inner = slice(len(rows) // 3, -(len(rows) // 3) or None)
    moved = np.stack([first, last])[:, inner] * p[0] - rows[inner] * p[1]
    repeats = (n for n in range(1, moved.shape[1] // 2 + 1) if (moved[:, n:] == moved[:, :-n]).all())
    count = math.lcm(next(repeats, _chunk(looked, p) or 1), p[0] // math.gcd(*p))
    step = count * p[1] // p[0]
    back = rows // count * step
    every = (int((first - back).min()), int((last - back).max()))
    own = [rows % count == i for i in range(count)]
    return tuple((int((first - back)[m].min()), int((last - back)[m].max())) if m.any() else every for m in own), step


def enough(ctx: Context, node: Node, looked: Seen) -> int:
    """A length at which all there is to see of a mask is seen."""
    what = "how far attention looks"
    claim = Claim(node, what, lambda run: looked(run) is not None, hidden=True)
    try:
        return critical_lengths(ctx.ask, claim)[0][-1] + 2 * ctx.pulse
    except Unsure as problem:
        if isinstance(ctx.ask.options.unbounded, int):
            return 0  # so many frames are kept, whatever the mask says
        if ctx.ask.options.proof != "sampled":
            uncertain(ctx.ask, node, problem.value or what, problem)
        ctx.ask.ledger.sampled[what] = str(problem)
        return 0


def _without_bound(node: Node, ahead: bool, look: int) -> NotStreamable:
    if ahead:
        reason, kind = "every frame looks ahead without bound, to the end of the stream", Kind.LOOK_AHEAD
        hint: Remedies = "train or export the model with an attention mask that bounds how far it looks ahead"
    else:
        reason, kind = "unbounded look-back: every frame looks back to the start of the stream", Kind.LOOK_BACK
        hint = ("bound the look-back in the mask", KEEP_PAST)
    if not look:
        return NotStreamable(reason, node=node.name, op=node.op, hint=hint, kind=kind)
    reason += f" (one would have to look at streams of {look} frames to be sure)"
    problem = Unclear(reason, node=node.name, op=node.op, hint=hint, kind=kind)
    problem.look = look
    return problem


def _unbounded(ctx: Context, view: View, length: Length) -> View:
    """Everything so far, or (no longer exact) the last N columns before those of the pulse."""
    rows, cols = view.rows, view.cols
    if not isinstance(ctx.ask.options.unbounded, int):
        return replace(view, cols=Window(cols.p, ALL, cols.end))
    start = rows.start * cols.p // rows.p - ctx.ask.options.unbounded
    pulses = -start // cols.p + 1  # until the first column falls out of the window
    exact = _longest(length, pulses * rows.p + rows.start)
    if exact is not None:
        ctx.ask.ledger.kept = exact if ctx.ask.ledger.kept is None else min(ctx.ask.ledger.kept, exact)
    return replace(view, cols=Window(cols.p, start, cols.end), whole=False)


def _longest(length: Length, frames: int) -> int | None:
    """The longest stream with no more frames than this on a wire; None if the wire never has more."""
    more = bisect_right(range(FAR), frames, key=length.at)  # the shortest that has more
    return max(more - 1, 0) if more < FAR else None


def _view(ctx: Context, node: Node, looked: Spans, p: tuple[int, int], ends: tuple[int, int], kept: int = 0) -> View:
    """kept: so many first frames of the stream."""
    i, first, last = looked.rows, looked.behind(kept).first, looked.last
    if not len(i):
        ctx.ask.refuse(node, "no frame looks at any other: everything is masked", "check the mask", kind=Kind.ATTENTION)
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
    return View(Window(p[0], start, end), Window(p[1], cols_start, cols_end, kept), offsets)
