"""What can be asked about a model while it is converted: facts of its wires, known values, shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Fact, FirstFrames, Late, Layout, Outer, Static, Varying, Window, Wire
from pulsify.analysis.ledger import Ledger
from pulsify.analysis.options import DEFAULT, Options
from pulsify.analysis.rows.walk import Rows
from pulsify.analysis.values.follow import Follower
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.refusal import Kind, Remedies, Remedy, declare, fix_batch
from pulsify.frontend.model import Model, Node
from pulsify.trace.lengths import BATCHES, Traces
from pulsify.trace.traced import Array, Traced

JOINED = (
    "use the value of every frame (a running mean, a bounded window); or give it out, and do the rest in a second model"
)


class Undecided(NotStreamable):
    """Something is not certain at every length. It may be at all up to `change`."""

    change: int = 0  # the length at which a known value changes for good, if that is late
    far: bool = False  # where that is was too far to look
    otherwise: tuple[Remedy, ...] = ()  # what else helps than declaring how long streams are


class Unclear(Undecided):
    """What was seen at the traced lengths contradicts itself; at longer ones (`look`, if it is known) it may not."""

    look: int = 0


def _released(name: str) -> Fact:
    raise RuntimeError(f"'{name}' is asked for, and all facts were let go of")


@dataclass(eq=False)
class Questions:
    """One model at the traced lengths. Everything is answered from what was filed, or looked at when first asked."""

    model: Model
    traces: Traces
    find: Callable[[str], Fact]  # the fact of a value that no rule has filed
    as_value: Callable[[str], Static] | None = None  # makes a value of first frames that were filed as such
    options: Options = DEFAULT
    longest_look: bool = False  # the model takes nothing longer than what is traced
    scouting: bool = False  # windows are wanted to choose a pulse by; where attention has chunks, another is likely
    unproven: bool = False  # so what it claims was looked at in the traces only
    ledger: Ledger = field(default_factory=Ledger)
    facts: dict[str, Fact] = field(default_factory=dict)
    follower: Follower | None = None  # what every known value is, see proof/numbers
    rows: dict[int, Rows] = field(default_factory=dict)  # of known tables, by the longest stream, see proof/numbers
    batch_follower: Follower | None = None  # the same by the batch size, see proof/batches
    streams_named: set[str] = field(default_factory=set)  # known values that name each stream, see proof/batches
    known_values: dict[int, dict[str, Traced]] = field(default_factory=dict)  # by stream length, see proof/values
    large_values: tuple[int, dict[str, Traced]] = (0, {})  # of one stream length
    lengths_found: dict[Length, None] = field(default_factory=dict)  # that the model works out by itself
    horizons: dict[Window, Any] = field(default_factory=dict)  # growing windows of columns: what rows see of them
    cells: dict[Any, Any] = field(default_factory=dict)  # of fields, while a sum over them is looked at
    shifts: dict[Any, Any] = field(default_factory=dict)  # relative shifts that were followed, see fields/shift
    ends: dict[int, int | None] = field(default_factory=dict)  # of tables: a length behind that the model takes
    alike: dict[Any, int] = field(default_factory=dict)  # known values by how they are made, see fields/alike
    sights: dict[Any, str] = field(default_factory=dict)  # how far attention looks: what was proven, of which field
    templates: dict[Any, Any] = field(default_factory=dict)  # cut out of known fields, by what they are and windows
    same_cells: dict[str, bool] = field(default_factory=dict)  # known fields whose cells do not depend on the length

    def release(self) -> None:
        """Let go of all that is large: closures refer to each other in circles, which are collected late."""
        large = (self.cells, self.same_cells, self.known_values, self.facts, self.horizons, self.shifts, self.templates)
        for kept in (*large, self.alike, self.sights, self.rows):
            kept.clear()
        self.large_values, self.follower, self.batch_follower = (0, {}), None, None
        self.find, self.as_value = _released, None  # they refer to the context, which refers to this

    def left_open(self) -> bool:
        """Is it certain that another plan follows, which proves what this one claims? Then `unproven` says so."""
        left = self.scouting and bool(self.ledger.chunks)
        self.unproven |= left
        return left

    # ---- facts

    def fact(self, name: str) -> Fact:
        if name not in self.facts:
            self.facts[name] = self.find(name)
        return self.facts[name]

    def wire(self, name: str) -> Wire | None:
        """The wire behind an input, or None if it has no time axis."""
        fact = self.fact(name) if name else None
        return fact if isinstance(fact, Wire) else None

    def operand(self, node: Node, name: str) -> Deferred | None:
        """The streaming graph's value for an input without a time axis, to be emitted."""
        if not name:
            return None
        fact = self.fact(name)
        if isinstance(fact, FirstFrames) and self.as_value is not None:
            fact = self.as_value(name)
        if isinstance(fact, Static):
            if fact.late:
                self.refuse_joined(node, name, fact.last_seen_by)
            return fact.recipe
        if isinstance(fact, Late):
            self.refuse_late(node, fact)
        if isinstance(fact, Varying):
            self.refuse(
                node,
                f"'{fact.name}' depends on the length of the whole stream, which is not known before its end",
                "use a running value (a cumulative count) or a constant instead of the total length",
                kind=Kind.LENGTH,
            )
        if isinstance(fact, Wire):
            self.refuse(node, f"'{name}' varies over time where a fixed value is needed", "make it a constant")
        self.refuse(
            node,
            "the first frames of the stream are used as a value of their own",
            "feed them as a separate input without a time axis",
        )

    def refuse_joined(self, node: Node, name: str, fold: Node | None) -> NoReturn:
        """A value of the whole stream meets its frames."""
        made = f"comes from {fold.op} '{fold.name}', over the whole stream" if fold is not None else "is its length"
        self.refuse(
            node,
            f"'{name}' {made}: known only when the stream has ended, and joined with its frames",
            JOINED,
            kind=Kind.LENGTH if fold is None else Kind.WHOLE_STREAM,
        )

    def refuse_late(self, node: Node, late: Late) -> NoReturn:
        """The same, where no sum follows that could take the two apart."""
        if late.fold is None:
            reason = "what it makes depends on the length of the whole stream, which is not known before its end"
        elif late.node is late.fold:
            reason = "it normalises over the whole stream: known only when the stream has ended"
        else:
            reason = f"it joins frames with what comes from {late.fold.op} '{late.fold.name}', over the whole stream: "
            reason += "known only when the stream has ended"
        if node is not late.node:
            reason += f", and {node.op} '{node.name}' needs it before"
        self.refuse(late.node, reason, JOINED, Kind.LENGTH if late.fold is None else Kind.WHOLE_STREAM)

    # ---- known values, shapes

    def known(self, name: str) -> list[Array] | None:
        """The value at every traced length, or None if it depends on data."""
        values = [run[name] for run in self.traces.runs]
        return [v.array for v in values] if all(v.known for v in values) else None

    def dims(self, name: str, run: int = -1) -> tuple[int, ...]:
        return self.traces.runs[run][name].dims

    def dtype(self, name: str) -> ir.DataType:
        return self.traces.runs[0][name].dtype

    def time_axes(self, name: str) -> list[int]:
        """Axes whose size differs between the shortest and the longest trace."""
        short, long = self.dims(name, 0), self.dims(name, -1)
        return [i for i, (x, y) in enumerate(zip(short, long, strict=True)) if x != y]

    def layout(self, node: Node, name: str, outer: Outer = (1, 1)) -> Layout:
        """The layout of a value with exactly one time axis."""
        axes = self.time_axes(name)
        if len(axes) != 1:
            found = "no time axis" if not axes else f"{len(axes)} time axes"
            raise Unclear(
                f"its output '{name}' has {found}",
                node=node.name,
                op=node.op,
                hint="reduce over time only with a bounded window; attention needs a bounded mask",
                kind=Kind.AXES,
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

    # ---- refusals

    def refuse(self, node: Node, reason: str, hint: Remedies = (), kind: Kind = Kind.OPERATOR) -> NoReturn:
        raise NotStreamable(reason, node=node.name, op=node.op, hint=hint, kind=kind)

    def declare(self, lengths: str, why: str = "declare the lengths you use") -> Remedy:
        """The remedy to declare which lengths streams have, "8*n" for example."""
        return declare(self.traces.tracer.time.symbol, lengths, why)

    def fix_batch(self) -> Remedy:
        """The remedy to convert for one stream a call."""
        return fix_batch(self.traces.tracer.time.batch)
