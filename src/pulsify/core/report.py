"""What a comparison of stream and batch model saw, output by output."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Deviation:
    """How far one output was from the batch model's at its worst, relative to the output's scale, and where.

    tolerance: what is allowed, by the output's own type: a double has less room than a half; infinite where the error
    is told and not judged. largest: the difference itself. mean: of all elements, relative to the scale.
    from_double, batch_from_double: how far stream and batch are from the batch model computed in float64, relative to
    its scale, where that was looked at: on long streams, and where batch itself rounds by more than is allowed.
    """

    error: float = 0.0
    tolerance: float = 0.0
    frame: int | None = None
    length: int | None = None
    chunks: str = ""
    largest: float = 0.0
    mean: float = 0.0
    from_double: float | None = None
    batch_from_double: float | None = None

    @property
    def ok(self) -> bool:
        """Within the tolerance; another shape, or a number that is none, is within no tolerance."""
        return self.error <= self.tolerance and math.isfinite(self.error)

    @property
    def share(self) -> float:
        """Of what is allowed; above 1 it is wrong."""
        if self.tolerance and math.isfinite(self.error):
            return self.error / self.tolerance
        return math.inf if self.error else 0.0


@dataclass(frozen=True)
class Report:
    """What `verify` saw. `exact_up_to`: longer streams were not compared, nor are they the batch model's result.

    fed: what bound inputs of the batch model were given ("length = number of frames").
    low: the type that stood for float32, if one did. The stream is near the batch model then, and how near is what the
    report tells; it is judged only if a tolerance was given.
    """

    lengths: tuple[int, ...] = ()
    runs: int = 0
    outputs: Mapping[str, Deviation] = field(default_factory=dict)
    departs: str | None = None  # the first wire whose stream is not the batch model's
    notes: tuple[str, ...] = ()  # what else there is to know about the comparison
    exact_up_to: int | None = None
    low: str | None = None
    fed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Something was compared, and every output was within its own tolerance (if `judged`)."""
        return self.runs > 0 and not self.wrong

    @property
    def judged(self) -> bool:
        """Is there a tolerance?"""
        return all(math.isfinite(d.tolerance) for d in self.outputs.values())

    @property
    def worst(self) -> Deviation:
        """Of the output that is nearest to its tolerance, or furthest beyond it."""
        return max(self.outputs.values(), key=lambda d: (d.share, d.error), default=Deviation())

    @property
    def error(self) -> float:
        """Of the worst output."""
        return self.worst.error

    @property
    def tolerance(self) -> float:
        """Of the worst output: `error <= tolerance` says that all are right."""
        return self.worst.tolerance

    @property
    def wrong(self) -> tuple[Deviation, ...]:
        """Of the outputs that depart."""
        return tuple(d for d in self.outputs.values() if not d.ok)

    def __str__(self) -> str:
        lines = [f"{self.runs} streams at lengths {list(self.lengths)}"]
        for name, d in self.outputs.items():
            where = f" at frame {d.frame} of length {d.length} ({d.chunks})" if d.error and d.frame is not None else ""
            told = f"limit {d.tolerance:g}" if math.isfinite(d.tolerance) else f"mean {d.mean:.2g}"
            double = ""
            if d.from_double is not None and d.batch_from_double is not None:
                double = f"; from float64: stream {d.from_double:.2g}, batch {d.batch_from_double:.2g}"
            lines.append(f"  {name}: largest relative error {d.error:.2g}, {told}{where}{double}")
        if self.departs:
            lines.append(f"  the first value inside the model that departs from batch is '{self.departs}'")
        lines += [f"  fed {', '.join(self.fed)}"] * bool(self.fed)
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class NodeDeviation:
    """How far a node's wires were from ONNX Runtime's at their worst, relative to the wire's scale over all pulses.

    step: the form it was seen in. reason: why it is not on the device. inputs: the wires it reads. wire, pulse: where
    it was worst. largest: the difference itself. outside: the least and the largest it gave, if that leaves the range
    of its operator, as sigmoid's [0, 1].
    """

    node: str
    op: str
    step: str
    device: str
    reason: str
    inputs: tuple[str, ...]
    wire: str
    error: float
    largest: float
    tolerance: float
    pulse: int
    outside: tuple[float, float] | None = None

    @property
    def departs(self) -> bool:
        return not self.error <= self.tolerance

    @property
    def ok(self) -> bool:
        return not self.departs and self.outside is None

    def __str__(self) -> str:
        where = f"{self.op} '{self.node}' of {', '.join(map(repr, self.inputs))} ({self.step} step, on {self.device})"
        said = f"{where}: relative error {self.error:.2g} at pulse {self.pulse}, limit {self.tolerance:g}"
        return said if self.outside is None else f"{said}; from {self.outside[0]!r} to {self.outside[1]!r}"


@dataclass(frozen=True)
class NodeReport:
    """What `compare_nodes` saw, node by node, in the order of the graph: the general step, then the steady one.

    Both sides start every pulse from the same states: differences add up along the graph, not from pulse to pulse.
    pulses: how many each step ran. low: the type that stood for float32, if one did.
    """

    backend: str
    length: int
    pulses: Mapping[str, int]
    nodes: tuple[NodeDeviation, ...]
    low: str | None = None

    @property
    def ok(self) -> bool:
        return bool(self.nodes) and all(n.ok for n in self.nodes)

    @property
    def first(self) -> NodeDeviation | None:
        """The first that departs."""
        return next((n for n in self.nodes if n.departs), None)

    @property
    def outside(self) -> tuple[NodeDeviation, ...]:
        """Those that leave the range of their operator."""
        return tuple(n for n in self.nodes if n.outside is not None)

    @property
    def worst(self) -> tuple[NodeDeviation, ...]:
        """All of them, the largest difference first."""
        return tuple(sorted(self.nodes, key=lambda n: -n.error))

    def __str__(self) -> str:
        steps = ", ".join(f"{count} pulses of the {step} step" for step, count in self.pulses.items())
        lines = [f"{len(self.nodes)} nodes over {steps}", *(f"  {n}" for n in self.worst[:10])]
        lines += [f"  first to depart: {self.first}"] * (self.first is not None)
        return "\n".join([*lines, *(f"  out of range: {n}" for n in self.outside)])


def exact_text(frames: int) -> str:
    """What a stream says of itself that was told to forget (unbounded=N)."""
    return f"exact up to {frames} frames: a longer stream forgets what the batch model still sees"


def low_text(low: str) -> str:
    """What a report says of a stream that was computed in a lower type."""
    return f"computed in {low}: the error against the float32 batch model is told, not judged (a tolerance judges it)"
