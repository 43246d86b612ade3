"""How far apart two results are, and by how much they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pulsify.core.arrays import Array, Arrays
from pulsify.core.report import Deviation, Report
from pulsify.core.spec import Output

TOLERANCE = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-9}  # relative to the output's scale; others are equal


def error(got: Array, reference: Array) -> Array:
    """The error of every cell, relative to the reference's scale. Where both are NaN or equal, none."""
    if reference.dtype.kind not in "fc":
        return (got != reference).astype(np.float64)
    x, y = got.astype(np.float64), reference.astype(np.float64)
    finite = y[np.isfinite(y)]
    scale = float(np.abs(finite).max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore"):
        off = np.asarray(np.abs(x - y) / scale)  # of an output without axes, too
    off[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
    off[np.isnan(off)] = np.inf
    return off


def limit(reference: Array, tolerance: float | None) -> float:
    return tolerance if tolerance is not None else TOLERANCE.get(str(reference.dtype), 0.0)


def apart(got: Array, want: Array, off: Array) -> float:
    """The largest difference itself, of those that count."""
    with np.errstate(invalid="ignore"):
        differences = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return float(np.where(off > 0, differences, 0.0).max(initial=0.0))


@dataclass(frozen=True, eq=False)
class Run:
    """The batch model at one length.

    double: its outputs computed in float64, if they were. room: what an output's channels may be off by instead of
    what its type allows, if batch itself rounds by more.
    """

    length: int
    feeds: Arrays
    outputs: Arrays
    long: bool = False
    double: Arrays = field(default_factory=dict)
    room: Mapping[str, Array] = field(default_factory=dict)


@dataclass
class Seen:
    """What has been compared so far. sums: of the errors of all elements, and how many these are."""

    lengths: tuple[int, ...]
    low: str | None = None
    tolerance: float | None = None
    runs: int = 0
    outputs: dict[str, Deviation] = field(default_factory=dict)
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    doubles: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def report(self) -> Report:
        outputs = {}
        for name, d in self.outputs.items():
            total, cells = self.sums.get(name, (d.error, 1))
            own, batch = self.doubles.get(name, (None, None))
            outputs[name] = replace(d, mean=total / max(cells, 1), from_double=own, batch_from_double=batch)
        return Report(self.lengths, self.runs, outputs, low=self.low)

    def compare(self, outputs: Sequence[Output], got: Mapping[str, Array], run: Run, how: str) -> None:
        """Look at all outputs of one stream."""
        self.runs += 1
        for o in outputs:
            want, have = run.outputs[o.name], got[o.name]
            allowed: Any = run.room.get(o.name, limit(want, self.tolerance))
            if self.low and self.tolerance is None:
                allowed = np.inf
            worst = self.outputs.setdefault(o.name, Deviation(tolerance=float(np.min(allowed))))
            if have.size == want.size == 0 != want.ndim:  # the runtime's ReduceL2 of nothing keeps the axes it reduces
                continue
            if have.shape != want.shape:
                shapes = f"shape {have.shape} for {want.shape}"
                self.outputs[o.name] = Deviation(float("inf"), worst.tolerance, None, run.length, shapes)
                continue
            off = error(have, want)
            total, cells = self.sums.get(o.name, (0.0, 0))
            self.sums[o.name] = total + float(off.sum()), cells + off.size
            if off.size and (found := _worst(off, allowed, worst)) is not None:
                frame, largest = _frame(off, allowed, o.axis), apart(have, want, off)
                self.outputs[o.name] = replace(found, frame=frame, length=run.length, chunks=how, largest=largest)
            if off.size and o.name in run.double:
                self.doubles[o.name] = _larger(self.doubles.get(o.name), have, want, run.double[o.name])


def _worst(off: Array, allowed: Any, before: Deviation) -> Deviation | None:
    """The cell that is nearest to what it is allowed, or furthest beyond it, if that is nearer than what was before."""
    room = np.broadcast_to(np.asarray(allowed, np.float64), off.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(off > 0, off / room, 0.0)
    share[~np.isfinite(off)] = np.inf
    place = int((off if np.isinf(room).all() else np.where(share == share.max(), off, -1.0)).argmax())
    found = Deviation(float(off.flat[place]), float(room.flat[place]))
    return found if (found.share, found.error) > (before.share, before.error) else None


def _frame(off: Array, allowed: Any, axis: int | None) -> int:
    """The first that is beyond what it is allowed, or else the worst."""
    if not off.ndim:
        return 0
    others = tuple(i for i in range(off.ndim) if i != (axis or 0))
    beyond = np.flatnonzero((off > allowed).any(others))
    return int(beyond[0]) if beyond.size else int(off.max(others).argmax())


def _larger(before: tuple[float, float] | None, have: Array, want: Array, double: Array) -> tuple[float, float]:
    own, batch = float(error(have, double).max()), float(error(want, double).max())
    return (own, batch) if before is None else (max(own, before[0]), max(batch, before[1]))
