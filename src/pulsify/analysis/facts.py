"""What is known of a wire of the batch model, and where it can be had in the streaming graph.

At pulse n the streaming graph holds frames [n*p + start, n*p + end) of a wire:

    frames   ... | . . . . | . . . . | . . . . | ...       p = 4
    pulse n                [ - - - - )                     start 0, end 4: no delay
    pulse n            [ - - - - )                         start -2, end 2: delay 2
    pulse n              [ - - - - - - )                   start -1, end 5: a window wider than the pulse
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

import onnx_ir as ir

from pulsify.analysis.mask_cells import Cells
from pulsify.core.length import Length
from pulsify.frontend.model import Node
from pulsify.trace.evaluate import Trace

BEHIND = -1
Outer = tuple[int, ...]  # what is folded with time, at the two traced batch sizes; BEHIND third: in batch behind time
ALL = -(1 << 40)  # a window that starts here holds everything since the stream began: it grows


@dataclass(frozen=True)
class Window:
    """Frames [n*p + start, n*p + end) at pulse n.

    first: in front of them so many first frames of the stream, while these lie before n*p + start.
    """

    p: int
    start: int
    end: int
    first: int = 0

    @property
    def frames(self) -> int:
        """Frames in the window; -1 (which a Reshape works out) if it grows."""
        return -1 if self.grows else self.first + self.end - self.start

    @property
    def moving(self) -> Window:
        """Without the first frames of the stream."""
        return replace(self, first=0) if self.first else self

    @property
    def grows(self) -> bool:
        return self.start == ALL


@dataclass(frozen=True)
class Layout:
    """Where time sits in a tensor.

    sizes: one entry an axis; -k stands for k times the batch, the time axis holds 0.
    outer: what is folded in front of time on the same axis, at the two traced batch sizes: [B, T, C] reshaped to
    [B*T, C] has time on axis 0 behind an outer B. (1, 1) nearly always. What batch folds behind time ([T, B, C] to
    [T*B, C]) is folded in front of it here, in another order than batch has it: nothing may look along that axis.
    """

    sizes: tuple[int, ...]
    axis: int
    outer: Outer = (1, 1)

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def folded(self) -> bool:
        return self.outer != (1, 1)

    @property
    def behind(self) -> bool:
        """Is the order along the time axis another one than in batch?"""
        return self.outer[2:] == (BEHIND,)

    @property
    def batch(self) -> int | None:
        """The axis that grows with the batch alone."""
        return next((i for i, s in enumerate(self.sizes) if s < 0), None)

    def shape(self, frames: int) -> list[int]:
        """A Reshape target for a window of so many frames."""
        out = [max(s, -1) for s in self.sizes]
        out[self.axis] = -1 if self.outer[0] != self.outer[1] else self.outer[0] * frames
        return out


Demand = tuple[str, Window]  # of a stored wire, by name: a window that is read


@dataclass(frozen=True, eq=False)
class Deferred:
    """A value of the step graph as a recipe: planning passes it on, `value` emits it, once.

    reads: the windows of stored wires that it is made of. fixed: it follows from constants and the position alone.
    """

    make: Callable[[], ir.Value]
    reads: tuple[Demand, ...] = ()
    fixed: bool = True

    @cached_property
    def value(self) -> ir.Value:
        return self.make()


def deferred(make: Callable[[], ir.Value], *parts: Deferred | None, fixed: bool = True) -> Deferred:
    """A value made of others."""
    return Deferred(make, *_made_of(parts, fixed))


def deferred_all(
    make: Callable[[], Sequence[ir.Value | None]], count: int, *parts: Deferred | None, fixed: bool = True
) -> tuple[Deferred, ...]:
    """Several values that are emitted together."""
    together, (reads, fixed) = _Together(make), _made_of(parts, fixed)
    return tuple(Deferred(together.maker(i), reads, fixed) for i in range(count))


def never() -> Deferred:
    """A value of a plan that is only looked at."""

    def make() -> ir.Value:
        raise RuntimeError("a plan that was only looked at is never emitted")

    return Deferred(make, fixed=False)


def emitted(part: Deferred | None) -> ir.Value | None:
    return None if part is None else part.value


def _made_of(parts: Iterable[Deferred | None], fixed: bool) -> tuple[tuple[Demand, ...], bool]:
    given = [p for p in parts if p is not None]
    return tuple(dict.fromkeys(d for p in given for d in p.reads)), fixed and all(p.fixed for p in given)


@dataclass(frozen=True, eq=False)
class _Together:
    make: Callable[[], Sequence[ir.Value | None]]

    @cached_property
    def values(self) -> Sequence[ir.Value | None]:
        return self.make()

    def maker(self, index: int) -> Callable[[], ir.Value]:
        def make() -> ir.Value:
            value = self.values[index]
            assert value is not None
            return value

        return make


@dataclass(frozen=True, eq=False)
class Mirror:
    """Frames in front of and behind `source` that show frames of it again, as plan/boundary.py has it."""

    source: Wire
    before: int
    after: int
    mode: str


@dataclass(frozen=True, eq=False)
class Wire:
    """A value with a time axis. `take(window)` is the tensor that holds those frames.

    end: the wire's frames below n*p + end are there at pulse n; None if any window can be had (positions, constants).
    length: None: unknown or unused (it is then that of what the wire is combined with).
    clean: frames before 0 read as zero (they come from the zero initial state, never from an operator).
    constant_frame: the value of every frame, with one frame, if they are all alike.
    rows: the wire comes out of a table that ends there.
    copies: it repeats what another wire holds; windows are made from that one's buffer, not kept again.
    mirror: its first frames show later frames of another wire, which must be there when somebody reads them.
    known: so many of its first frames are the same in every stream (see plan/constant_prefix.py).
    waits: every frame of it is made of first frames of other wires too, which must be there before it is read.
    """

    name: str
    layout: Layout
    dtype: ir.DataType
    length: Length | None
    end: int | None
    take: Callable[[Window], Deferred]
    clean: bool = False
    constant_frame: Deferred | None = None
    table_rows: int | None = None
    copies: bool = False
    mirror: Mirror | None = None
    known: int = 0
    waits: tuple[Awaited, ...] = ()

    @property
    def rate(self) -> Fraction:
        assert self.length is not None
        return self.length.rate


@dataclass(frozen=True)
class Awaited:
    """Frames of a wire that a value is made of: it is right once the last of them has come, and may be anything before.

        frames     0 1 2 | 3 4 5 | 6 7 8 | 9
        x[:, :5]                 right             early: so many, however long the stream is
        x.max(1)                              right        as many as the wire has

    length: how many. window: in which frames they come; None: of no wire, but of how long the stream is.
    by: the node that sees the last of them.
    """

    length: Length
    window: Window | None
    by: Node | None = field(default=None, compare=False)

    @property
    def early(self) -> bool:
        """Are they first frames of the stream?"""
        return self.length.rate == 0

    @property
    def pulse(self) -> int:
        """Of first frames: the number of the pulse from which on they are there."""
        window = self._frames
        return max(-((window.end - self.length.at(0)) // window.p), 0)

    def over(self, pulses: int) -> bool:
        """Of first frames: are they there in so many pulses taken as one?"""
        window = self._frames
        return self.length.at(0) <= window.end + (pulses - 1) * window.p

    @property
    def _frames(self) -> Window:
        assert self.early and self.window is not None
        return self.window


@dataclass(frozen=True, eq=False)
class Static:
    """A value without a time axis: the same at every pulse, or right as soon as what it waits for has come.

    first frames, reductions, final states and what is made of them: all are carried from pulse to pulse (emit/fold.py).
    """

    recipe: Deferred
    waits: tuple[Awaited, ...] = ()

    @property
    def value(self) -> ir.Value:
        """In the step graph, while that is emitted."""
        return self.recipe.value

    @property
    def early(self) -> tuple[Awaited, ...]:
        """The first frames that it is made of."""
        return tuple(w for w in self.waits if w.early)

    @property
    def late(self) -> tuple[Awaited, ...]:
        """What comes with the end of the stream only."""
        return tuple(w for w in self.waits if not w.early)

    @property
    def last_seen_by(self) -> Node | None:
        """The first node that has to see the stream's last frame; None: it follows from the length, or from no end."""
        return next((w.by for w in self.late if w.by is not None), None)


@dataclass(frozen=True, eq=False)
class FirstFrames:
    """The first `count` frames of a wire, not used as a value yet; as one they are a `Static` that waits for them.

    bare: the first frame without its time axis.
    """

    wire: Wire
    count: int
    bare: bool = False


@dataclass(frozen=True, eq=False)
class Late:
    """A stream joined with values of the whole stream, in a way that a sum over time can take apart:

        scales * factors * softmax(logits) * (value - centre) ** power

    Scores are normalised over all of time, or their weights are exp(logits - shift). centre, scales and shift are known
    only at the end.
    log: the value less its log-sum-exp over all of time, its log-softmax, and not less a centre.
    node: where the two were joined; fold: the node that has to see the last frame first; None: it is the length.
    """

    node: Node
    fold: Node | None
    value: Wire | None = None
    centre: Static | None = None
    log: bool = False
    power: int = 1
    logits: Wire | None = None
    shift: Static | None = None
    factors: tuple[Wire, ...] = ()
    scales: tuple[tuple[str, Static], ...] = ()  # Mul or Div by each


@dataclass(frozen=True)
class Varying:
    """A known value without a time axis that differs with the length of the stream."""

    name: str


@dataclass(frozen=True)
class Side:
    """One of the two time axes of a field; `length` and `end` as of a wire.

    wire: one that runs along it. wires: all that it is made of, by name.
    """

    axis: int
    length: Length | None
    end: int | None
    wire: Wire | None = None
    wires: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of fields, at a length: places of the first of their two time axes, or of the second."""

    run: Trace
    rows: slice
    second: bool = False

    @property
    def whole(self) -> bool:
        return self.rows == slice(None)

    @property
    def turned(self) -> Part:
        """The same rows of a field whose axes stand in the other order."""
        return replace(self, second=not self.second)


@dataclass(frozen=True, eq=False)
class Field:
    """A value with two time axes, where every frame meets every other (attention scores).

    Nothing of it is planned before a sum over one of its axes asks for a window of rows and a window of cols:
    `take(windows, offsets)` then plans just that. `cells(part)` says which cells are data and which constant;
    offsets are the smallest and largest (second axis - first axis) that the sum will look at.
    """

    name: str
    sizes: tuple[int, ...]  # as in Layout; both time axes hold 0
    sides: tuple[Side, Side]  # in the order of their axes
    dtype: ir.DataType
    cells: Callable[[Part], Cells]
    take: Callable[[Windows, Offsets], Deferred]
    bounded: frozenset[int] = frozenset()  # axes along which cells outside [0, L) are already zero
    origin: Field | None = None  # moved about since (relative shift): the field it was, and the nodes that moved it
    moves: tuple[tuple[Node, int], ...] = ()  # each with the input that is moved
    product: tuple[Node, int] | None = None  # made by multiplying data with the table that is this input of the node
    raw: Callable[[Tabled], Deferred] | None = None  # the same of another table

    def side(self, axis: int) -> Side:
        return next(s for s in self.sides if s.axis == axis)

    @property
    def lengths(self) -> dict[int, Length] | None:
        """The lengths of both time axes, by axis; None if one of them is unknown."""
        found = {s.axis: s.length for s in self.sides if s.length is not None}
        return found if len(found) == len(self.sides) else None


@dataclass(frozen=True, eq=False)
class Tabled:
    """A table in place of the one that a product was made with: for a window of rows, so many columns."""

    table: Deferred
    rows: Window
    count: int


Windows = tuple[Window, Window]
Offsets = tuple[int, int]
Fact = Wire | Static | FirstFrames | Late | Varying | Field
