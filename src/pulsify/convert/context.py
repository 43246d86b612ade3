"""A conversion at one pulse: the streaming graph being built, beside what can be asked about the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import onnx_ir as ir

from pulsify.analysis.facts import Layout, Window, Wire
from pulsify.analysis.questions import Questions
from pulsify.convert.audit import check_wire
from pulsify.convert.primitives.buffer import Buffer
from pulsify.convert.primitives.builder import Builder
from pulsify.convert.primitives.clock import Clock
from pulsify.convert.primitives.state import State
from pulsify.convert.trail import Trail, look
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.frontend.model import Node

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


@dataclass(eq=False)
class Context:
    """ask: what is known and claimed; builder and clock: the graph; the rest: what was filed of it."""

    ask: Questions
    pulse: int
    builder: Builder
    clock: Clock
    node_rule: Callable[[Context, Node], None]  # runs the rule of a node and files the facts of its outputs
    carries: list[State] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)  # by wire
    windows: dict[str, Window] = field(default_factory=dict)
    bounded: dict[str, Wire] = field(default_factory=dict)  # wires with zeros outside the stream
    grown: dict[str, Wire] = field(default_factory=dict)  # wires of which all frames are kept
    started: bool = False  # what the start waits for does not count
    waited: list[Over] = field(default_factory=list)  # something did wait for what the start shows
    then: Mapping[str, Window] = field(default_factory=dict)  # of an opening: windows of the pulses that come after it
    zeroed: set[str] = field(default_factory=set)  # wires whose frames before the first are read as zeros
    trails: dict[str, Trail] = field(default_factory=dict)  # where wires come from in time, for who wants to know
    counts: dict[tuple[Length, Window], ir.Value] = field(default_factory=dict)  # of frames seen, see primitives/fold

    def release(self) -> None:
        self.bounded.clear()
        self.ask.release()

    def frames(self, rate: Fraction) -> int:
        """Frames per pulse of a wire of this rate."""
        self.ask.ledger.denominators.add(rate.denominator)
        p = rate * self.pulse
        if p.denominator != 1:
            raise Misaligned(rate.denominator)
        return int(p)

    def ends_by(self, end: int, p: int, names: Iterable[str]) -> int:
        """The end of wires of which p frames come; those of an opening hold no more than the pulses they stand for."""
        return min([end, *(self.then[n].end + p - self.then[n].p for n in names if n in self.then)])

    def emitted(
        self,
        name: str,
        node: str,
        value: ir.Value,
        layout: Layout,
        length: Length,
        window: Window,
        known: int = 0,
        begun: ir.Value | None = None,
    ) -> Wire:
        """File a wire made by an operator; everyone who reads it shares one buffer.

        known: so many of its first frames are the same in every stream. begun: those from there to the window's start,
        at pulse 0.
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
        buffer = Buffer(self.builder, node, value, self.ask.dtype(name), layout, window, name, known, begun)
        self.buffers[name] = buffer
        self.windows[name] = window
        clean = window.start >= 0
        wire = Wire(name, layout, self.ask.dtype(name), length, window.end, buffer.take, clean, known=known)
        self.ask.facts[name] = wire
        return wire

    def filed(
        self,
        name: str,
        like: Wire,
        value: ir.Value,
        window: Window,
        clean: bool = False,
        offset: int = 0,
        begun: ir.Value | None = None,
    ) -> Wire:
        """File a variant of a wire (from its frame `offset` on) under a name of its own, with its own buffer."""
        assert like.length is not None
        buffer = Buffer(
            self.builder, like.name, value, like.dtype, like.layout, window, like.name, like.known, begun, offset
        )
        self.buffers[name] = buffer
        self.trails[name] = Trail(window.p, window.end, (look(like.name),), like.name)
        if clean:  # its frames before the first count as zeros
            self.zeroed.add(name)
        clean = clean or window.start >= 0
        return Wire(name, like.layout, like.dtype, like.length, window.end, buffer.take, clean, known=like.known)


def broadcast_axis(layout: Layout, rank: int) -> int:
    """The time axis after broadcasting to a higher rank."""
    return layout.axis + rank - layout.rank
