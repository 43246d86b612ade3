"""Memory for what lies between nodes: a buffer lives from the call that first writes it to the last that reads it."""

from __future__ import annotations

from collections.abc import Sequence

from pulsify.backends.native.scope import Call
from pulsify.backends.native.views import Buffer

GRAIN = 8  # elements


def plan(calls: Sequence[Call]) -> dict[str, int]:
    """Places buffers by lifetime, the largest first; elements that are needed, by type."""
    lives: dict[Buffer, tuple[int, int]] = {}
    for at, call in enumerate(calls):
        for view in call.args:
            if view.buffer.kind == "work":
                first, _ = lives.get(view.buffer, (at, at))
                lives[view.buffer] = first, at
    placed: dict[str, list[Buffer]] = {}
    tops: dict[str, int] = {}
    for buffer in sorted(lives, key=lambda b: (-b.size, lives[b])):
        begin, end = lives[buffer]
        near = sorted(
            (b for b in placed.get(buffer.ctype, ()) if lives[b][0] <= end and begin <= lives[b][1]),
            key=lambda b: b.offset,
        )
        at = 0
        for other in near:
            if at + buffer.size <= other.offset:
                break
            at = max(at, -(-(other.offset + other.size) // GRAIN) * GRAIN)
        buffer.offset = at
        placed.setdefault(buffer.ctype, []).append(buffer)
        tops[buffer.ctype] = max(tops.get(buffer.ctype, 0), at + buffer.size)
    return tops


def widest(calls: Sequence[Call], width: dict[str, int]) -> int:
    """Bytes that are alive at once at the most: no plan needs less."""
    lives: dict[Buffer, tuple[int, int]] = {}
    for at, call in enumerate(calls):
        for view in call.args:
            if view.buffer.kind == "work":
                lives[view.buffer] = lives.get(view.buffer, (at, at))[0], at
    return max(
        (sum(b.size * width[b.ctype] for b, (i, j) in lives.items() if i <= at <= j) for at in range(len(calls))),
        default=0,
    )
