"""A conversion at one pulse: what is planned for every wire, beside what can be asked about the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Demand, Layout, Window, Wire
from pulsify.analysis.questions import Questions
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.reach import POINTWISE, Reach
from pulsify.emit.buffer import Stored, check_growing
from pulsify.emit.builder import Builder
from pulsify.emit.clock import Clock
from pulsify.emit.emission import Counts, Emission
from pulsify.emit.state import State
from pulsify.frontend.model import Node
from pulsify.plan.audit import check_wire
from pulsify.plan.trail import Trail, look

Ahead = tuple[str, str, int, int, int]  # a node, a wire that it reads, and num, den and hi of the reach
Over = Callable[[int], bool]  # need it be waited for no longer, once so many pulses have come?


class Misaligned(Exception):
    """A wire would get a fraction of a frame per pulse; the pulse must be a multiple of `multiple`. node: makes it."""

    def __init__(self, multiple: int) -> None:
        self.multiple = multiple
        self.node: Node | None = None
        super().__init__(multiple)


class OutOfStep(Exception):
    """Attention takes chunks of so many frames of the stream, and the pulse is neither a part nor a multiple of it."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        super().__init__(chunk)


@dataclass(frozen=True)
class PlannedRead:
    """Frames of a wire that are read for one window. fill: what is read in place of frames outside the stream."""

    wire: str
    window: Window
    reach: Reach = POINTWISE
    fill: str = ""


@dataclass(frozen=True, eq=False)
class Step:
    """What is emitted for one node: its values, and the wires of which frames are stored. Steps are emitted in order.

    outputs: names of what it makes. reads: what is read of other wires. extra: what else is emitted then.
    """

    node: str
    window: Window
    values: tuple[Deferred, ...] = ()
    stored: tuple[Stored, ...] = ()
    outputs: tuple[str, ...] = ()
    reads: tuple[PlannedRead, ...] = ()
    exact: bool = False  # it carries a state
    extra: Callable[[], None] | None = None

    @property
    def demands(self) -> Iterable[Demand]:
        """Windows of stored wires that it is made of."""
        return (d for v in (*self.values, *(s.begun for s in self.stored)) if v is not None for d in v.reads)


@dataclass(eq=False)
class Context:
    """ask: what is known and claimed; emission: the graph, once it is emitted; the rest: what is planned.

    builder, clock: of the emission. Planning has none.
    phase: the first pulse begins so many frames before the stream; it has fewer of its frames by that.
    """

    ask: Questions
    pulse: int
    batch: str | None  # the name of the batch size, if that is open
    node_rule: Callable[[Context, Node], None]  # runs the rule of a node and files the facts of its outputs
    phase: int = 0
    emission: Emission | None = None
    ports: dict[str, tuple[ir.DataType, tuple[int | str, ...]]] = field(default_factory=dict)  # inputs, with their dims
    steps: list[Step] = field(default_factory=list)
    formulas: dict[str, tuple[PlannedRead, ...]] = field(default_factory=dict)  # wires made anew for every window
    stored: dict[str, Stored] = field(default_factory=dict)  # wires of which frames are stored
    demands: dict[str, dict[Window, None]] = field(default_factory=dict)  # windows of them that are read
    windows: dict[str, Window] = field(default_factory=dict)
    bounded: dict[str, Wire] = field(default_factory=dict)  # wires with zeros outside the stream
    grown: dict[str, Wire] = field(default_factory=dict)  # wires of which all frames are kept
    started: bool = False  # what the start waits for does not count
    waited: list[Over] = field(default_factory=list)  # something did wait for what the start shows
    then: Mapping[str, Window] = field(default_factory=dict)  # of an opening: windows of the pulses that come after it
    zeroed: set[str] = field(default_factory=set)  # wires whose frames before the first are read as zeros
    spared: dict[Ahead, Reach | None] = field(default_factory=dict)  # what nodes could do with, at another phase
    trails: dict[str, Trail] = field(default_factory=dict)  # where wires come from in time, for diagnostics

    @property
    def builder(self) -> Builder:
        return self._emission.builder

    @property
    def clock(self) -> Clock:
        return self._emission.clock

    @property
    def carries(self) -> list[State]:
        return self._emission.carries

    @property
    def counts(self) -> Counts:
        return self._emission.counts

    @property
    def opset(self) -> int:
        return self.ask.model.opset_imports.get("", 0)

    @property
    def _emission(self) -> Emission:
        if self.emission is None:
            raise RuntimeError("a rule plans only: its `emit` function writes nodes, once the pulse is chosen")
        return self.emission

    def read(self, parts: Iterable[Demand]) -> None:
        """Windows of stored wires that are read: what is kept of the past follows from all of them."""
        for name, window in parts:
            self.demands.setdefault(name, {})[window] = None

    def add(self, step: Step) -> None:
        """Next in the order of emission."""
        self.steps.append(step)
        self.read(step.demands)
        self.stored.update((s.name, s) for s in step.stored)

    def release(self) -> None:
        """Let go of the plan and of its graph: recipes refer to the context, and would be collected late."""
        for kept in (self.bounded, self.grown, self.steps, self.stored, self.waited):
            kept.clear()
        self.emission = None
        self.ask.release()

    def frames(self, rate: Fraction) -> int:
        """Frames per pulse of a wire of this rate."""
        self.ask.ledger.denominators.add(rate.denominator)
        p = rate * self.pulse
        if p.denominator != 1:
            raise Misaligned(rate.denominator)
        return int(p)

    def spare(self, node: Node, wire: Wire, reach: Reach, less: Reach | None) -> None:
        """Note that a node could do with less of a wire, or without it, which brings frames sooner at another phase."""
        self.spared[node.name, wire.name, reach.num, reach.den, reach.hi] = less

    def latest_end(self, length: Length) -> int:
        """The end of the frames of such a wire that exist however long the stream is, relative to a pulse."""
        return length.latest_end(self.pulse, self.phase)

    def ends_by(self, end: int, p: int, names: Iterable[str]) -> int:
        """The end of wires of which p frames come; those of an opening hold no more than the pulses they stand for."""
        return min([end, *(self.then[n].end + p - self.then[n].p for n in names if n in self.then)])

    def file_wire(
        self,
        name: str,
        node: str,
        value: Deferred,
        layout: Layout,
        length: Length,
        window: Window,
        known: int = 0,
        begun: Deferred | None = None,
        clean: bool = False,
    ) -> Stored:
        """File a wire made by an operator; everyone who reads it shares one buffer, which a step is to store.

        known: so many of its first frames are the same in every stream. begun: those from there to the window's start,
        at pulse 0. clean: frames before the first are zeros in its own window too.
        """
        check_wire(self.ask.traces, name, node, layout, length)
        if self.ask.dtype(name) == ir.DataType.STRING:
            made = self.ask.model.producers.get(name)
            raise NotStreamable(
                f"'{name}' is a stream of strings, which ONNX Runtime cannot keep from one pulse to the next",
                node=node,
                op=made.op if made else "Input",
                hint="stream whole numbers (indices of a vocabulary), and look strings up outside the model",
            )
        self.windows[name] = window
        clean, dtype = clean or window.start >= 0, self.ask.dtype(name)
        stored = Stored(name, node, value, dtype, layout, window, name, known, begun)
        self.ask.facts[name] = Wire(
            name, layout, dtype, length, window.end, partial(self._taken, stored), clean, known=known
        )
        return stored

    def _taken(self, stored: Stored, window: Window) -> Deferred:
        """A window of a wire, once it is stored."""
        assert window.p == stored.window.p and window.end <= stored.window.end, (stored.node, window, stored.window)
        if window.grows:
            check_growing(stored, window)
        return Deferred(lambda: self._emission.buffers[stored.name].take(window), ((stored.name, window),), fixed=False)

    def file_variant(
        self,
        name: str,
        like: Wire,
        value: Deferred,
        window: Window,
        clean: bool = False,
        offset: int = 0,
        begun: Deferred | None = None,
    ) -> Wire:
        """File a variant of a wire (from its frame `offset` on) under a name of its own, with its own buffer."""
        assert like.length is not None
        stored = Stored(name, like.name, value, like.dtype, like.layout, window, like.name, like.known, begun, offset)
        self.add(Step(like.name, window, (value,), (stored,), (name,), (PlannedRead(like.name, window),)))
        self.trails[name] = Trail(window.p, window.end, (look(like.name),), like.name)
        if clean:  # its frames before the first count as zeros
            self.zeroed.add(name)
        clean = clean or window.start >= 0
        take = partial(self._taken, stored)
        return Wire(name, like.layout, like.dtype, like.length, window.end, take, clean, known=like.known)


def broadcast_axis(layout: Layout, rank: int) -> int:
    """The time axis after broadcasting to a higher rank."""
    return layout.axis + rank - layout.rank


def counted(ctx: Context, sizes: tuple[int, ...]) -> ir.Value:
    """Sizes as numbers of the streaming graph; those that go with the batch are worked out."""
    b = ctx.builder
    parts = [
        b.op("Mul", streams_in_step(ctx), b.ints(-s)) if s < -1 else streams_in_step(ctx) if s < 0 else b.ints(s)
        for s in sizes
    ]
    return parts[0] if len(parts) == 1 else b.op("Concat", *parts, axis=0)


def streams_in_step(ctx: Context) -> ir.Value:
    """How many streams go in step, int64 [1]."""
    other = ctx.ask.traces.other_batch
    assert other is not None
    for name, value in ctx.builder.inputs.items():
        for i, (x, y) in enumerate(zip(ctx.ask.dims(name, 0), other[name].dims, strict=True)):
            if x != y:
                return ctx.builder.size(value, i)
    raise AssertionError("a batch that no input has")
