"""Counting frames: which ones a call of the model takes, which of those it gives are the stream's, and where it ends.

    frames in    | phase, pulse  | pulse  | pulse, padded |
    frames out   delay | frames of the stream ...    | end: what follows is none of its

This is the only place where it is worked out. Sessions, pools and the server use it as it is, exchanges the same rules
on arrays of counters; Python clients of exports contain this file; C and JavaScript are written from the rules
(`export/formulas.py`). It needs NumPy alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NEVER = (1 << 53) - 1  # the end of a stream that has not ended: a whole number in JavaScript, too


# ---- rules: whole numbers, + - * // >= min max, and nothing else


def computed(whole: int, first: int) -> int:
    """Pulses that have been computed once so many are there: the first call takes `first` of them."""
    return whole * (whole >= first)


def given(pulses: int, frames: int, delay: int, end: int) -> int:
    """Frames of an output that have come out after so many pulses; there are `end` in all."""
    return min(max(pulses * frames - delay, 0), end)


def place(frame: int, pulses: int, frames: int, delay: int, made: int) -> int:
    """Where a frame of the stream is among the `made` frames of the call after so many pulses; else the nearer end."""
    return min(max(frame + delay - pulses * frames, 0), made)


def until(end: int, frames: int, delay: int) -> int:
    """Pulses after which all frames up to the end have come out."""
    return (end + delay + frames - 1) // frames


def left(pulses: int, needed: int) -> int:
    """Pulses that are padded at the end, until all frames have come out: one at least."""
    return max(needed - pulses, 1)


def back(position: int, multiple: int) -> int:
    """By how much a counter is set back: to about half, and the model does not notice."""
    return position // 2 // multiple * multiple


# ---- a stream


@dataclass(frozen=True)
class Out:
    """An output: so many frames a pulse, so many late, and never more than `cap` of them."""

    frames: int
    delay: int
    cap: int = NEVER

    @property
    def settled(self) -> int:
        """Pulses after which all that a call gives is the stream's, while that goes on."""
        return until(0, self.frames, self.delay) if self.cap == NEVER else NEVER

    def given(self, pulses: int) -> int:
        """Frames that have come out after so many pulses."""
        return given(pulses, self.frames, self.delay, self.cap)

    def real(self, pulses: int, step: int, end: int) -> tuple[int, int]:
        """From where to where the frames of a call are the stream's, which has `end`; the call takes `step` pulses."""
        made = self.frames * step
        return place(0, pulses, self.frames, self.delay, made), place(end, pulses, self.frames, self.delay, made)

    def until(self, end: int) -> int:
        """Pulses after which all of so many frames have come out."""
        return until(end, self.frames, self.delay)


@dataclass(frozen=True)
class Framing:
    """inputs: frames a pulse. outputs: of none, if they come at the end alone. first: pulses of the first call.

    ahead: by so many frames the first pulse begins before the stream, input by input; they are filler.
    """

    inputs: tuple[int, ...]
    outputs: tuple[Out, ...]
    first: int = 1
    ahead: tuple[int, ...] = ()

    def pulses(self, received: Sequence[int]) -> int:
        """Pulses that have been computed once so many frames of each input have come."""
        ahead = self.ahead or (0,) * len(self.inputs)
        whole = min((n + more) // frames for n, more, frames in zip(received, ahead, self.inputs))
        return computed(whole, self.first)

    def needed(self, ends: Sequence[int]) -> int:
        """Pulses after which all frames of all outputs have come out."""
        return max((o.until(end) for o, end in zip(self.outputs, ends) if o.frames), default=0)


# ---- frames that wait


class Backlog:
    """Frames of one input that wait for a whole pulse, in the pieces they came in. `pulse`: frames of one."""

    __slots__ = ("_head", "axis", "frames", "nothing", "pieces", "pulse")

    def __init__(self, nothing: Array, axis: int, pulse: int) -> None:
        """nothing: a piece without a frame."""
        self.nothing, self.axis, self.pulse, self._head = nothing, axis, pulse, (slice(None),) * axis
        self.pieces: deque[Array] = deque()
        self.frames = 0

    def put(self, piece: Array, frames: int) -> None:
        """Frames that come next: so many, as whoever has them knows."""
        if frames:
            self.pieces.append(piece)
            self.frames += frames

    def own(self) -> None:
        """The last piece is the memory of whoever gave it: what is left of it becomes ours."""
        if self.pieces:
            self.pieces[-1] = self.pieces[-1].copy()

    def unput(self, piece: Array) -> None:
        """A pulse that was taken waits after all, as the first."""
        self.pieces.appendleft(piece)
        self.frames += self.pulse

    def clear(self) -> None:
        self.pieces.clear()
        self.frames = 0

    def load(self, into: Array, frames: int) -> int:
        """Move up to so many frames to the front of an array: how many."""
        pieces, axis, head, at = self.pieces, self.axis, self._head, 0
        while at < frames and pieces:
            piece = pieces[0]
            size = piece.shape[axis]
            if size <= frames - at:
                into[(*head, slice(at, at + size))] = piece
                pieces.popleft()
            else:
                size = frames - at
                into[(*head, slice(at, frames))] = piece[(*head, slice(0, size))]
                pieces[0] = piece[(*head, slice(size, None))]
            at += size
        self.frames -= at
        return at

    def take(self, frames: int) -> Array:
        """So many from the front, which are there: as they came, if they did in one piece."""
        if not frames:
            return self.nothing
        pieces, axis = self.pieces, self.axis
        self.frames -= frames
        size = pieces[0].shape[axis]
        if size == frames:
            return pieces.popleft()
        taken = []
        while size <= frames:
            taken.append(pieces.popleft())
            frames -= size
            if not frames:
                return np.concatenate(taken, axis)
            size = pieces[0].shape[axis]
        piece = pieces[0]
        rest = piece[(*self._head, slice(frames, None))]
        pieces[0] = rest.copy() if size < 2 * frames else rest  # or a large piece waits for its last few frames
        taken.append(piece[(*self._head, slice(0, frames))])
        return taken[0] if len(taken) == 1 else np.concatenate(taken, axis)

    def all(self) -> Array:
        """Everything in one piece of its own, left where it is."""
        return np.ascontiguousarray(np.concatenate([self.nothing, *self.pieces], self.axis))


def ready(backlogs: Iterable[Backlog], pulses: int) -> bool:
    """Are so many pulses of every input there?"""
    for b in backlogs:  # noqa: SIM110  a generator costs as much as all of it
        if b.frames < b.pulse * pulses:
            return False
    return True


def whole_pulses(backlogs: Iterable[Backlog]) -> int:
    """Pulses that are there of every input."""
    least = NEVER
    for b in backlogs:  # as above
        if (pulses := b.frames // b.pulse) < least:
            least = pulses
    return least


def filler_is_zero(dtype: np.dtype[Any]) -> bool:
    """Is what stands in front of a stream of such frames zero? Whole numbers begin as the first one: see `pad`."""
    return dtype.kind == "f"


def pad_front(array: Array, axis: int, at: int) -> None:
    """Whole numbers in front of an input's first frame, which is there: that one."""
    if at and not filler_is_zero(array.dtype):
        head = (slice(None),) * axis
        array[(*head, slice(0, at))] = array[(*head, slice(at, at + 1))]


def pad(array: Array, axis: int, at: int, padding: float) -> None:
    """Fill an input behind its last frame. Whole numbers go on as they were: they may be indices, or divisors."""
    head = (slice(None),) * axis
    if array.dtype.kind == "f":
        array[(*head, slice(at, None))] = padding
    elif at:  # a real frame once more; without one, older ones are still there
        array[(*head, slice(at, None))] = array[(*head, slice(at - 1, at))]
