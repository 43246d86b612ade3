"""What a rule can ask: facts of its inputs, known values, shapes, and the streaming graph being built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir

from pulsify.convert.audit import check_wire
from pulsify.convert.facts import Fact, Layout, Static, Varying, Window, Wire
from pulsify.convert.known.follow import Follower
from pulsify.convert.primitives.buffer import Buffer
from pulsify.convert.primitives.builder import Builder
from pulsify.convert.primitives.clock import Clock
from pulsify.convert.primitives.state import State
from pulsify.convert.proof.claims import Claim, fixed, holds_everywhere
from pulsify.convert.proof.numbers import Ledger
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.spec import Condition
from pulsify.frontend.model import Model, Node
from pulsify.trace.evaluate import Array, Traced
from pulsify.trace.lengths import BATCHES, Traces


class Misaligned(Exception):
    """A wire would get a fraction of a frame per pulse; the pulse must be a multiple of `multiple`."""

    def __init__(self, multiple: int) -> None:
        self.multiple = multiple
        super().__init__(multiple)


class Unclear(NotStreamable):
    """What was seen at the traced lengths contradicts itself; at longer ones (`look`, if it is known) it may not."""

    look: int = 0


@dataclass(eq=False)
class Context:
    """One conversion at one pulse."""

    model: Model
    traces: Traces
    pulse: int
    builder: Builder
    clock: Clock
    node_rule: Callable[[Context, Node], None]  # runs the rule of a node and files the facts of its outputs
    unbounded: str | int = "refuse"  # what to do with attention that looks back without bound
    longest_look: bool = False  # the model takes nothing longer than what is traced
    proof: str = "proven"  # or "sampled": what is not certain is taken as a sample of lengths shows it
    ledger: Ledger = field(default_factory=Ledger)
    follower: Follower | None = None  # what every known value is, see convert/proof/numbers
    batch_follower: Follower | None = None  # the same by the batch size, see convert/proof/batches
    horizons: dict[Window, Any] = field(default_factory=dict)  # growing windows of columns: what rows see of them
    kept: int | None = None  # the longest stream, in frames of the stream, for which what is kept is enough
    facts: dict[str, Fact] = field(default_factory=dict)
    carries: list[State] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)  # by wire
    conditions: dict[Condition, None] = field(default_factory=dict)  # on the stream's length
    denominators: set[int] = field(default_factory=set)
    windows: dict[str, Window] = field(default_factory=dict)
    bounded: dict[str, Wire] = field(default_factory=dict)  # wires with zeros outside the stream
    known_values: dict[int, dict[str, Traced]] = field(
        default_factory=dict
    )  # by stream length, see convert/proof/values
    large_values: tuple[int, dict[str, Traced]] = (0, {})  # of one stream length
    lengths_found: dict[Length, None] = field(default_factory=dict)  # that the model works out by itself
    cells: dict[tuple[str, int], Any] = field(default_factory=dict)  # of fields, while a sum over them is looked at
    same_cells: dict[str, bool] = field(default_factory=dict)  # known fields whose cells do not depend on the length
    shifts: dict[Any, Any] = field(default_factory=dict)  # relative shifts that were followed, see rules/shift
    zeroed: set[str] = field(default_factory=set)  # wires whose frames before the first are read as zeros

    def release(self) -> None:
        """Let go of all that is large: closures refer to the context in circles, which are collected late."""
        for kept in (self.cells, self.same_cells, self.known_values, self.facts, self.bounded, self.horizons):
            kept.clear()
        self.large_values, self.follower, self.batch_follower = (0, {}), None, None

    # ---- facts

    def fact(self, name: str) -> Fact:
        if name not in self.facts:
            from pulsify.convert.known_facts import coordinate_fact

            self.facts[name] = coordinate_fact(self, name)
        return self.facts[name]

    def wire(self, name: str) -> Wire | None:
        """The wire behind an input, or None if it has no time axis."""
        fact = self.fact(name) if name else None
        return fact if isinstance(fact, Wire) else None

    def operand(self, node: Node, name: str) -> ir.Value | None:
        """The streaming graph's value for an input without a time axis."""
        if not name:
            return None
        fact = self.fact(name)
        if isinstance(fact, Static):
            if fact.final is not None:
                self.refuse(
                    node,
                    f"'{name}' is a final state, known only when the stream has ended",
                    "use the output of every frame instead of the last one",
                )
            return fact.value
        if isinstance(fact, Varying):
            self.refuse(
                node,
                f"'{fact.name}' depends on the length of the whole stream, which is not known before its end",
                "use a running value (a cumulative count) or a constant instead of the total length",
            )
        if isinstance(fact, Wire):
            self.refuse(node, f"'{name}' varies over time where a fixed value is needed", "make it a constant")
        self.refuse(
            node,
            "the first frames of the stream are used as a value of their own",
            "feed them as a separate input without a time axis",
        )

    # ---- known values

    def known(self, name: str) -> list[Array] | None:
        """The value at every traced length, or None if it depends on data."""
        values = [run[name] for run in self.traces.runs]
        return [v.array for v in values] if all(v.known for v in values) else None

    def constant(self, node: Node, name: str, what: str) -> Array:
        """A value that is known and the same at every length."""
        arrays = self.known(name)
        if arrays is None or not all(np.array_equal(a, arrays[0]) for a in arrays) or not fixed(self, node, name):
            why = "depends on the data" if arrays is None else "changes with the length of the stream"
            self.refuse(node, f"its {what} {why}", "export the model with a constant there")
        return arrays[0]

    def dims(self, name: str, run: int = -1) -> tuple[int, ...]:
        return self.traces.runs[run][name].dims

    def dtype(self, name: str) -> ir.DataType:
        return self.traces.runs[0][name].dtype

    def time_axes(self, name: str) -> list[int]:
        """Axes whose size differs between the shortest and the longest trace."""
        short, long = self.dims(name, 0), self.dims(name, -1)
        return [i for i, (x, y) in enumerate(zip(short, long, strict=True)) if x != y]

    def layout(self, node: Node, name: str, outer: tuple[int, int] = (1, 1)) -> Layout:
        """The layout of a value with exactly one time axis."""
        axes = self.time_axes(name)
        if len(axes) != 1:
            found = "no time axis" if not axes else f"{len(axes)} time axes"
            raise Unclear(
                f"its output '{name}' has {found}",
                node=node.name,
                op=node.op,
                hint="reduce over time only with a bounded window; attention needs a bounded mask",
            )
        return Layout(self.sizes(name, axes[0]), axes[0], outer)

    def sizes(self, name: str, time_axis: int) -> tuple[int, ...]:
        """Sizes by axis: -k for k times the batch, 0 for time."""
        dims = list(self.sizes_static(name))
        dims[time_axis] = 0
        return tuple(dims)

    def sizes_static(self, name: str) -> tuple[int, ...]:
        """As `sizes`, of a value without a time axis."""
        dims = list(self.dims(name, 0))
        other = self.traces.other_batch
        if other is not None:
            for i, (x, y) in enumerate(zip(dims, other[name].dims, strict=True)):
                if x != y:
                    dims[i] = -(x // BATCHES[0])
        return tuple(dims)

    # ---- time

    def frames(self, rate: Fraction) -> int:
        """Frames per pulse of a wire of this rate."""
        self.denominators.add(rate.denominator)
        p = rate * self.pulse
        if p.denominator != 1:
            raise Misaligned(rate.denominator)
        return int(p)

    def emitted(self, name: str, node: str, value: ir.Value, layout: Layout, length: Length, window: Window) -> Wire:
        """File a wire made by an operator; everyone who reads it shares one buffer."""
        check_wire(self.traces, name, node, layout, length)
        if self.dtype(name) == ir.DataType.STRING:
            made = self.model.producers.get(name)
            raise NotStreamable(
                f"'{name}' is a stream of strings, which ONNX Runtime cannot keep from one pulse to the next",
                node=node,
                op=made.op if made else "Input",
                hint="stream whole numbers (indices of a vocabulary), and look strings up outside the model",
            )
        buffer = Buffer(self.builder, node, value, self.dtype(name), layout, window)
        self.buffers[name] = buffer
        self.windows[name] = window
        wire = Wire(name, layout, self.dtype(name), length, window.end, buffer.take, clean=window.start >= 0)
        self.facts[name] = wire
        return wire

    def filed(self, name: str, like: Wire, value: ir.Value, window: Window, clean: bool = False) -> Wire:
        """File a variant of a wire under a name of its own, with its own buffer."""
        assert like.length is not None
        buffer = Buffer(self.builder, like.name, value, like.dtype, like.layout, window)
        self.buffers[name] = buffer
        if clean:  # its frames before the first count as zeros
            self.zeroed.add(name)
        return Wire(name, like.layout, like.dtype, like.length, window.end, buffer.take, clean or window.start >= 0)

    def require(self, node: str, length: Length, **what: Any) -> None:
        """A wire of this length must have so many frames (what: see `Condition`), or the stream is turned down."""
        self.conditions[Condition(node, length, **what)] = None

    def claim(self, node: Node | None, what: str, holds: Callable[[Any], bool], **about: Any) -> None:
        """Something read off the traces that must hold at every length (about: see `Claim`): proven, or refused."""
        claim = Claim(node, what, holds, **about)
        if not all(holds(run) for run in self.traces.runs) or not holds_everywhere(self, claim):
            raise Unclear(
                f"{what} does not hold at every length",
                node=node.name if node else "",
                op=node.op if node else "",
                hint="make it a constant, or a value that follows from the position alone",
            )

    def refuse(self, node: Node, reason: str, hint: str = "") -> NoReturn:
        raise NotStreamable(reason, node=node.name, op=node.op, hint=hint)


def broadcast_axis(layout: Layout, rank: int) -> int:
    """The time axis after broadcasting to a higher rank."""
    return layout.axis + rank - layout.rank
