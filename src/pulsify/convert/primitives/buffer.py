"""The Buffer: one per wire, with the longest history anyone asks for; consumers slice it.

state    [ - - - )                    history: the last frames of earlier pulses
new              [ - - - - )          what the wire's operator made at this pulse
full     [ - - - - - - - - )
next           p -> [ - - - )         the state after this pulse
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import onnx_ir as ir

from pulsify.analysis.facts import Layout, Window
from pulsify.convert.primitives.builder import Builder
from pulsify.convert.primitives.state import State, from_state, state_shape, to_state
from pulsify.core.errors import NotStreamable
from pulsify.core.refusal import Kind
from pulsify.core.spec import PAST
from pulsify.trace.lengths import BATCHES

Begin = Callable[[ir.Value, int], ir.Value | None]


@dataclass(eq=False)
class Buffer:
    """Hands out windows of one emitted wire as placeholders; `settle` makes them once all wishes are known."""

    builder: Builder
    node: str
    value: ir.Value
    dtype: ir.DataType
    layout: Layout
    window: Window
    wire: str  # of the batch model, whose frames these are, from frame `offset` on
    known: int = 0  # so many of the first frames are the same in every stream
    begun: ir.Value | None = None  # those from there to the window's start, at pulse 0
    offset: int = 0
    wishes: dict[Window, ir.Value] = field(default_factory=dict)

    def take(self, window: Window) -> ir.Value:
        assert window.p == self.window.p and window.end <= self.window.end, (self.node, window, self.window)
        if window == self.window:
            return self.value
        if window.grows:
            self._check_growing(window)
        if window not in self.wishes:
            self.wishes[window] = ir.Value(name=f"{self.node}[{window.start}:{window.end}]")
        return self.wishes[window]

    @property
    def history(self) -> int:
        """How far back, beyond the wire's own window, anyone asks."""
        return max((self.window.start - w.start for w in self.wishes if not w.grows), default=0)

    def finish(self, batch: str | None, zero: bool, begin: Begin = lambda past, history: None) -> State | None:
        """Emit the slices, and the state if any window reaches further back than the wire's own.

        begin: what the state's value is replaced by where a stream begins with known frames.
        """
        b, own = self.builder, self.window
        layout, value = self._unfolded() if self.wishes else (self.layout, self.value)
        history = self.history
        full, state = value, None
        if history > 0:
            sizes = _with_time(layout, history)
            own_axis = layout.axis != 0  # a time axis in front is no batch of one
            shape = state_shape(sizes, batch, own_axis)
            before = ir.val(b.unique("state"), self.dtype, ir.Shape(shape))
            past = from_state(b, before, sizes, own_axis)
            begun = begin(past, history)
            past, zero = (begun, False) if begun is not None else (past, zero or own.start > 0)
            full = b.op("Concat", past, value, axis=layout.axis, name=f"{self.node}/full")
            kept = self._cut(full, layout, own.p, own.p + history, history + own.frames)
            after = to_state(b, kept, sizes, own_axis)
            state = State(self.node, "buffer", self.dtype, shape, before, after, zero, _axis(layout, shape), history)
        for wish, placeholder in self.wishes.items():
            if wish.grows:
                continue
            if wish.start >= own.start:
                piece = self._cut(value, layout, wish.start - own.start, wish.end - own.start, own.frames)
            else:
                first = wish.start - own.start + max(history, 0)
                piece = self._cut(full, layout, first, first + wish.frames, history + own.frames)
            b.alias(placeholder, self._folded(piece, wish.frames))
        return state

    def _check_growing(self, window: Window) -> None:
        own, layout = self.window, self.layout
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
                node=self.node,
                hint="bound the look-back in the mask, or put the batch first",
                kind=Kind.LOOK_BACK,
            )

    def finish_growing(self, batch: str | None) -> State | None:
        """A cache of all frames so far, if anyone wants that: its time axis starts empty and grows by p a pulse."""
        wish = next((w for w in self.wishes if w.grows), None)
        if wish is None:
            return None
        own, axis = self.window, self.layout.axis
        assert not self.layout.folded and own.start == own.end - own.p == wish.end - own.p, self.node
        sizes = _with_time(self.layout, 1)
        shape: list[int | str] = list(state_shape(sizes, batch, axis != 0))
        assert len(shape) == len(sizes) and self.layout.batch in (None, 0), self.node
        shape[axis] = PAST
        before = ir.val(self.builder.unique("state"), self.dtype, ir.Shape(shape))
        full = self.builder.op("Concat", before, self.value, axis=axis, name=f"{self.node}/all")
        self.builder.alias(self.wishes[wish], full)
        return State(self.node, "cache", self.dtype, tuple(shape), before, full, True, axis)

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


def _axis(layout: Layout, shape: tuple[int | str, ...]) -> int:
    """The time axis of the state that holds such a value: its batch has come to the front."""
    kept = [i for i in range(layout.rank) if i != layout.batch]
    return len(shape) - len(kept) + kept.index(layout.axis)


def _with_time(layout: Layout, frames: int) -> tuple[int, ...]:
    return tuple(frames if i == layout.axis else s for i, s in enumerate(layout.sizes))
