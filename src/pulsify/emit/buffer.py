"""The Buffer: one per wire, with the longest history anyone asks for; consumers slice it.

state    [ - - - )                    history: the last frames of earlier pulses
new              [ - - - - )          what the wire's operator made at this pulse
full     [ - - - - - - - - )
next           p -> [ - - - )         the state after this pulse
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Layout, Window
from pulsify.core.errors import NotStreamable
from pulsify.core.refusal import Kind
from pulsify.core.spec import PAST
from pulsify.emit.builder import Builder
from pulsify.emit.state import State, from_state, state_shape, to_state
from pulsify.trace.lengths import BATCHES

Begin = Callable[[ir.Value, int], ir.Value | None]


@dataclass(frozen=True, eq=False)
class Stored:
    """A wire that a node makes in one window at every pulse, to be read in others too.

    name: in the plan. wire: of the batch model, whose frames these are, from frame `offset` on. known: so many of the
    first frames are the same in every stream. begun: those from there to the window's start, at pulse 0.
    """

    name: str
    node: str
    value: Deferred
    dtype: ir.DataType
    layout: Layout
    window: Window
    wire: str
    known: int = 0
    begun: Deferred | None = None
    offset: int = 0


def others(stored: Stored, demands: Iterable[Window]) -> tuple[Window, ...]:
    """Windows that are read, but for the wire's own."""
    return tuple(w for w in demands if w != stored.window)


def history_of(stored: Stored, demands: Iterable[Window]) -> int:
    """How far back, beyond the wire's own window, anyone reads."""
    return max((stored.window.start - w.start for w in others(stored, demands) if not w.grows), default=0)


def known_part(stored: Stored, history: int) -> tuple[int, int]:
    """The known frames among those that the state holds at pulse 0."""
    start = stored.window.start
    return max(start - max(history, 0), 0), min(stored.known, start)


@dataclass(eq=False)
class Buffer:
    """The frames of a stored wire in the step graph. `windows` are all that are read; `take` hands out those."""

    builder: Builder
    stored: Stored
    value: ir.Value
    windows: tuple[Window, ...] = ()
    batch: str | None = None
    state: State | None = None  # if any window reaches further back than the wire's own
    cache: State | None = None  # of all frames so far, if anyone reads those
    _full: tuple[Layout, ir.Value] | None = field(default=None, repr=False)  # past frames and new ones
    _all: ir.Value | None = None

    @property
    def node(self) -> str:
        return self.stored.node

    @property
    def layout(self) -> Layout:
        return self.stored.layout

    @property
    def window(self) -> Window:
        return self.stored.window

    @property
    def history(self) -> int:
        return max(history_of(self.stored, self.windows), 0)

    def take(self, window: Window) -> ir.Value:
        own = self.window
        if window == own:
            return self.value
        assert window in self.windows, f"{window} of '{self.node}' is not planned"
        if window.grows:
            assert self._all is not None
            return self._all
        assert self._full is not None
        past = self.history if window.start < own.start else 0
        layout, frames = self._full if past else self._unfolded()
        first = window.start - own.start + past
        piece = self._cut(frames, layout, first, first + window.frames, past + own.frames)
        return self._folded(piece, window.frames)

    def fill(self, zero: bool, begin: Begin = lambda past, history: None) -> None:
        """Emit what is kept from pulse to pulse.

        begin: what the state's value is replaced by where a stream begins with known frames.
        """
        if not self.windows:
            return
        b, own, batch, dtype = self.builder, self.window, self.batch, self.stored.dtype
        layout, value = self._unfolded()
        history, full = self.history, value
        if history > 0:
            sizes = _with_time(layout, history)
            own_axis = layout.axis != 0  # a time axis in front is no batch of one
            shape = state_shape(sizes, batch, own_axis)
            before = ir.val(b.unique("state"), dtype, ir.Shape(shape))
            past = from_state(b, before, sizes, own_axis)
            begun = begin(past, history)
            past, zero = (begun, False) if begun is not None else (past, zero or own.start > 0)
            full = b.op("Concat", past, value, axis=layout.axis, name=f"{self.node}/full")
            kept = self._cut(full, layout, own.p, own.p + history, history + own.frames)
            after = to_state(b, kept, sizes, own_axis)
            self.state = State(self.node, "buffer", dtype, shape, before, after, zero, _axis(layout, shape), history)
        self._full = layout, full
        if (growing := next((w for w in self.windows if w.grows), None)) is not None:
            self._grow(growing)

    def _grow(self, window: Window) -> None:
        """A cache of all frames so far: its time axis starts empty and grows by p a pulse."""
        own, axis, batch = self.window, self.layout.axis, self.batch
        assert not self.layout.folded and own.start == own.end - own.p == window.end - own.p, self.node
        sizes = _with_time(self.layout, 1)
        shape: list[int | str] = list(state_shape(sizes, batch, axis != 0))
        assert len(shape) == len(sizes) and self.layout.batch in (None, 0), self.node
        shape[axis] = PAST
        before = ir.val(self.builder.unique("state"), self.stored.dtype, ir.Shape(shape))
        self._all = self.builder.op("Concat", before, self.value, axis=axis, name=f"{self.node}/all")
        self.cache = State(self.node, "cache", self.stored.dtype, tuple(shape), before, self._all, True, axis)

    def _cut(self, x: ir.Value, layout: Layout, start: int, stop: int, size: int) -> ir.Value:
        return x if (start, stop) == (0, size) else self.builder.slice(x, layout.axis, start, stop)

    def _unfolded(self) -> tuple[Layout, ir.Value]:
        """Time on an axis of its own: [B*T, C] becomes [B, T, C]."""
        old = self.layout
        if not old.folded:
            return old, self.value
        first, second = old.outer[:2]
        outer = first if first == second else -(first // BATCHES[0])
        sizes = (*old.sizes[: old.axis], outer, 0, *old.sizes[old.axis + 1 :])
        new = Layout(sizes, old.axis + 1)
        return new, self.builder.reshape(self.value, new.shape(self.window.frames))

    def _folded(self, x: ir.Value, frames: int) -> ir.Value:
        return self.builder.reshape(x, self.layout.shape(frames)) if self.layout.folded else x


def check_growing(stored: Stored, window: Window) -> None:
    """Refuse to keep all frames of a wire that is not laid out for it."""
    own, layout = stored.window, stored.layout
    plain = not layout.folded and layout.batch in (None, 0) and layout.axis != 0 and min(layout.sizes) >= -1
    if (
        not plain
        or own.start > 0
        or own.start != own.end - own.p
        or own.end != window.end
        or (layout.batch is None and layout.sizes[0] != 1)
    ):
        raise NotStreamable(
            "all of its frames would have to be kept, and it is not laid out for that (batch first, no overlaps)",
            node=stored.node,
            hint="bound the look-back in the mask, or put the batch first",
            kind=Kind.LOOK_BACK,
        )


def _axis(layout: Layout, shape: tuple[int | str, ...]) -> int:
    """The time axis of the state that holds such a value: its batch has come to the front."""
    kept = [i for i in range(layout.rank) if i != layout.batch]
    return len(shape) - len(kept) + kept.index(layout.axis)


def _with_time(layout: Layout, frames: int) -> tuple[int, ...]:
    return tuple(frames if i == layout.axis else s for i, s in enumerate(layout.sizes))
