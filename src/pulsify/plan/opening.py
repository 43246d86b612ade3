"""The opening: a first, longer pulse, after which nothing waits for what only the stream's first frames show.

    mirrored pad 2    x2 x1 | x0 x1 x2 x3 x4 ...      frame 0 shows x2: at pulse 1 all frames come two late, for ever
    opening           [ x0 x1 x2 )                    three pulses taken as one: what is shown is there
    then                         [ x3 ) [ x4 ) ...    nothing is late

Two plans are made. One holds at its one pulse, the opening's, all that the other holds in so many of its own: their
windows begin at the same frames and so does what they remember, which is looked at here, wire by wire.
"""

from __future__ import annotations

from collections.abc import Sequence

from pulsify.analysis.facts import Deferred
from pulsify.core.spec import Output
from pulsify.emit.buffer import history_of, others
from pulsify.plan.context import Context, Over

Outputs = Sequence[tuple[Output, Deferred]]
LONGEST = 1 << 16  # frames of an opening


def pulses(waited: Sequence[Over], pulse: int) -> int | None:
    """The fewest pulses after which all that is waited for is there; None if they would be too many."""
    low, high = 1, 2
    while not all(over(high) for over in waited):
        low, high = high, 2 * high
        if high * pulse > max(LONGEST, 2 * pulse):
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if all(over(middle) for over in waited) else (middle, high)
    return high


def leads_to(first: Context, then: Context) -> bool:
    """Can a stream go on from what the opening leaves? Both remember the same frames of the same wires."""
    return not first.waited and _kept(first) == _kept(then)


def _kept(ctx: Context) -> list[tuple[object, ...]]:
    """What is remembered: frames of the past before a window's start, running values."""
    buffers: list[tuple[object, ...]] = []
    for name, stored in ctx.stored.items():
        windows = others(stored, ctx.demands.get(name, ()))
        if windows:
            history, grows = max(history_of(stored, windows), 0), any(w.grows for w in windows)
            buffers.append((name, stored.window.start, history, grows, stored.known, stored.layout))
    return [*buffers, *((s.node, s.window.start) for s in ctx.steps if s.exact)]


def sooner(outputs: Outputs, than: Outputs) -> bool:
    """Does any output come out earlier, and none later?"""
    late = [(o.delay, t.delay) for (o, _), (t, _) in zip(outputs, than, strict=True) if o.axis is not None]
    return any(a < b for a, b in late) and all(a <= b for a, b in late)
