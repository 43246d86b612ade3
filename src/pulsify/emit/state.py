"""States: what the caller carries from pulse to pulse. The batch stands first, and there are at least two axes."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from pulsify.core.spec import Kind
from pulsify.core.spec import State as Described
from pulsify.emit.builder import Builder

Sizes = tuple[int, ...]  # one entry an axis; -k stands for k times the batch


@dataclass(frozen=True)
class State:
    """A pair of graph input and output that the caller carries from pulse to pulse. It starts at zero.

    zero: something counts on that (padding with zeros for free); any other start would do otherwise.
    axis, frames: where time stands in a buffer, and how much of the past it holds.
    start: of a running value, which is of the frames before n*p + start when pulse n begins.
    """

    node: str
    kind: Kind
    dtype: ir.DataType
    shape: tuple[int | str, ...]
    before: ir.Value
    after: ir.Value
    zero: bool = True
    axis: int | None = None
    frames: int = 0
    start: int = 0

    @property
    def described(self) -> Described:
        """As the file has it."""
        names = str(self.before.name), str(self.after.name)
        return Described(
            names[0], self.shape, self.dtype.numpy(), self.node, self.zero, self.kind, self.axis, self.frames, names[1]
        )


def batch_axis(sizes: Sizes) -> int | None:
    return next((i for i, s in enumerate(sizes) if s < 0), None)


def _unbatched(sizes: Sizes, fixed_first: bool) -> bool:
    return len(sizes) < 2 or sizes[0] != 1 or not fixed_first


def state_shape(sizes: Sizes, batch: str | None, fixed_first: bool = True) -> tuple[int | str, ...]:
    """The shape of the state that holds a value of these sizes. fixed_first: axis 0 may serve as a batch of one."""
    at = batch_axis(sizes)
    if at is None:
        return (1, *sizes) if _unbatched(sizes, fixed_first) else sizes
    rest = [s for i, s in enumerate(sizes) if i != at]
    per = -sizes[at]
    return (batch or 1, per, *rest) if per > 1 else (batch or 1, *rest)


def from_state(b: Builder, state: ir.Value, sizes: Sizes, fixed_first: bool = True) -> ir.Value:
    """The value that a state holds."""
    at = batch_axis(sizes)
    if at is None:
        return b.op("Squeeze", state, b.ints(0)) if _unbatched(sizes, fixed_first) else state
    if sizes[at] < -1:
        state = b.reshape(state, [-1, *(s for i, s in enumerate(sizes) if i != at)])
    if at:
        state = b.op("Transpose", state, perm=[*range(1, at + 1), 0, *range(at + 1, len(sizes))])
    return state


def to_state(b: Builder, x: ir.Value, sizes: Sizes, fixed_first: bool = True) -> ir.Value:
    """The other way round."""
    at = batch_axis(sizes)
    if at is None:
        return b.op("Unsqueeze", x, b.ints(0)) if _unbatched(sizes, fixed_first) else x
    if at:
        x = b.op("Transpose", x, perm=[at, *(i for i in range(len(sizes)) if i != at)])
    if sizes[at] < -1:
        x = b.reshape(x, [-1, -sizes[at], *(s for i, s in enumerate(sizes) if i != at)])
    return x
