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
    """

    error: float = 0.0
    tolerance: float = 0.0
    frame: int | None = None
    length: int | None = None
    chunks: str = ""
    largest: float = 0.0
    mean: float = 0.0

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
            lines.append(f"  {name}: largest error {d.error:.2g} of scale, {told}{where}")
        if self.departs:
            lines.append(f"  the first wire that departs from batch is '{self.departs}'")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def exact_text(frames: int) -> str:
    """What a stream says of itself that was told to forget (unbounded=N)."""
    return f"exact up to {frames} frames: a longer stream forgets what the batch model still sees"


def low_text(low: str) -> str:
    """What a report says of a stream that was computed in a lower type."""
    return f"computed in {low}: the error against the float32 batch model is told, not judged (a tolerance judges it)"
