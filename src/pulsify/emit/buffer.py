"""The Buffer: one per wire, with the longest history anyone asks for; consumers slice it.

state    [ - - - )                    history: the last frames of earlier pulses
new              [ - - - - )          what the wire's operator made at this pulse
full     [ - - - - - - - - )
next           p -> [ - - - )         the state after this pulse
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from pulsify.analysis.facts import Layout, Window
from pulsify.emit.graph import Builder
from pulsify.export.metadata import PAST
from pulsify.trace.lengths import BATCHES


@dataclass(frozen=True)
class State:
    """A pair of graph input and output that the caller carries from pulse to pulse. It starts at zero.

    zero: something counts on that (padding with zeros for free); any other start would do otherwise.
    """

    node: str
    dtype: ir.DataType
    shape: tuple[int | str, ...]
    before: ir.Value
    after: ir.Value
    zero: bool = True


@dataclass(eq=False)
class Buffer:
    """Hands out windows of one emitted wire as placeholders; `settle` makes them once all wishes are known."""

    builder: Builder
    node: str
    value: ir.Value
    dtype: ir.DataType
    layout: Layout
    window: Window
    wishes: dict[Window, ir.Value] = field(default_factory=dict)

    def take(self, window: Window) -> ir.Value:
        assert window.p == self.window.p and window.end <= self.window.end, (self.node, window, self.window)
        if window == self.window:
            return self.value
        if window not in self.wishes:
            self.wishes[window] = ir.Value(name=f"{self.node}[{window.start}:{window.end}]")
        return self.wishes[window]

    def settle(self, batch: str | None, zero: bool) -> State | None:
        """Emit the slices, and the state if any window reaches further back than the wire's own."""
        b, own = self.builder, self.window
        layout, value = self._unfolded() if self.wishes else (self.layout, self.value)
        history = max((own.start - w.start for w in self.wishes if not w.grows), default=0)
        full, state = value, None
        if history > 0:
            before, past = self._state_input(layout, history, batch)
            full = b.op("Concat", past, value, axis=layout.axis, name=f"{self.node}/full")
            kept = self._cut(full, layout, own.p, own.p + history, history + own.frames)
            after = self._to_state(kept, layout, history)
            state = State(self.node, self.dtype, self._state_shape(layout, history, batch), before, after, zero)
        for wish, placeholder in self.wishes.items():
            if wish.grows:
                continue
            if wish.start >= own.start:
                piece = self._cut(value, layout, wish.start - own.start, wish.end - own.start, own.frames)
            else:
                begin = wish.start - own.start + max(history, 0)
                piece = self._cut(full, layout, begin, begin + wish.frames, history + own.frames)
            b.alias(placeholder, self._folded(piece, wish.frames))
        return state

    def settle_growing(self, batch: str | None) -> State | None:
        """A cache of all frames so far, if anyone wants that: its time axis starts empty and grows by p a pulse."""
        wish = next((w for w in self.wishes if w.grows), None)
        if wish is None:
            return None
        own, axis = self.window, self.layout.axis
        assert not self.layout.folded and own.start == own.end - own.p == wish.end - own.p, self.node
        order = [] if self.layout.batch in (None, 0) else [self.layout.batch]
        assert not order and not _unbatched(self.layout), self.node
        shape = list(self._state_shape(self.layout, 0, batch))
        shape[axis] = PAST
        before = ir.val(self.builder.unique("state"), self.dtype, ir.Shape(shape))
        full = self.builder.op("Concat", before, self.value, axis=axis, name=f"{self.node}/all")
        self.builder.alias(self.wishes[wish], full)
        return State(self.node, self.dtype, tuple(shape), before, full, True)

    def _cut(self, x: ir.Value, layout: Layout, start: int, stop: int, size: int) -> ir.Value:
        return x if (start, stop) == (0, size) else self.builder.slice(x, layout.axis, start, stop)

    def _unfolded(self) -> tuple[Layout, ir.Value]:
        """Time on an axis of its own: [B*T, C] becomes [B, T, C]."""
        old = self.layout
        if not old.folded:
            return old, self.value
        first, second = old.outer
        outer = first if first == second else -(first // BATCHES[0])
        sizes = (*old.sizes[: old.axis], outer, 0, *old.sizes[old.axis + 1 :])
        new = Layout(sizes, old.axis + 1)
        return new, self.builder.reshape(self.value, new.shape(self.window.frames))

    def _folded(self, x: ir.Value, frames: int) -> ir.Value:
        return self.builder.reshape(x, self.layout.shape(frames)) if self.layout.folded else x

    # States have the batch on axis 0 and at least two axes, whatever the wire looks like.

    def _state_shape(self, layout: Layout, history: int, batch: str | None) -> tuple[int | str, ...]:
        dims = list(layout.sizes)
        dims[layout.axis] = history
        at = layout.batch
        if at is None:
            return (1, *dims) if _unbatched(layout) else tuple(dims)
        per = -dims.pop(at)
        return (batch or 1, per, *dims) if per > 1 else (batch or 1, *dims)

    def _state_input(self, layout: Layout, history: int, batch: str | None) -> tuple[ir.Value, ir.Value]:
        shape = self._state_shape(layout, history, batch)
        before = ir.val(self.builder.unique("state"), self.dtype, ir.Shape(shape))
        at, x = layout.batch, before
        if at is None:
            return before, self.builder.op("Squeeze", x, self.builder.ints(0)) if _unbatched(layout) else x
        if len(shape) > layout.rank:
            x = self.builder.reshape(x, [-1, *(d for d in shape[2:] if isinstance(d, int))])
        if at:
            x = self.builder.op("Transpose", x, perm=[*range(1, at + 1), 0, *range(at + 1, layout.rank)])
        return before, x

    def _to_state(self, x: ir.Value, layout: Layout, history: int) -> ir.Value:
        shape = self._state_shape(layout, history, None)
        at = layout.batch
        if at is None:
            return self.builder.op("Unsqueeze", x, self.builder.ints(0)) if _unbatched(layout) else x
        if at:
            x = self.builder.op("Transpose", x, perm=[at, *(i for i in range(layout.rank) if i != at)])
        if len(shape) > layout.rank:
            x = self.builder.reshape(x, [-1, *(d for d in shape[1:] if isinstance(d, int))])
        return x


def _unbatched(layout: Layout) -> bool:
    return layout.rank < 2 or layout.axis == 0 or layout.sizes[0] != 1
