"""How far the batch model's own result is from what it stands for: nobody is held to more than that.

Measured against the model in float64, where ONNX Runtime has that; else by how far an output moves if its inputs do in
their last digit. Two ways to compute such an output may differ by a few times as much. Only what is off in most frames
of a channel counts: what jumps in a few places (a rounded number) does not, nor does noise beside what is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pulsify.core.arrays import Array, Arrays
from pulsify.core.runner import open_model, run_model
from pulsify.verify.distance import Run, error, limit
from pulsify.verify.double import Double, outputs_in_double

ROUNDINGS = 16  # times what batch is off by: what two ways of computing an output may differ by
NOISE = "{}: nothing but rounding, by which batch and stream may differ{}"
OFF = "{}: the batch model itself is off by {:.2g} of its scale in most frames of length {}, against float64"
AMPLIFIED = (
    "{}: rounding is amplified (the angle of a number near zero, a long sum): the result moves by {:.2g} of its scale "
    "with the last digit of the inputs or of its sums, so the stream was compared with the module's export"
)
ALLOWED = f": rounding, of which a stream is allowed {ROUNDINGS} times as much"


@dataclass(frozen=True)
class Roomy:
    """Runs with the room their outputs have, and what to say of it."""

    runs: list[Run]
    notes: tuple[str, ...]


def by_export(judge: Any, double: Double, runs: Sequence[Run], seed: int) -> Roomy:
    """Runs of a torch module with the results of its export, if rounding explains every difference between them.

    The angle of a number near zero, for example: it moves by any amount if the inputs do in their last digit, and two
    ways to compute it differ as much. So do long sums, which torch adds up in float64. No runs, if the export is
    further off than that. double: the export in float64.
    """
    rng, exported = np.random.default_rng(seed), open_model(judge.model)
    names = {i.name for i in exported.get_inputs()}
    rows, notes = list[Run](), dict[str, None]()
    for run in runs:
        made = run_model(exported, {n: a for n, a in run.feeds.items() if n in names})
        moved = [_moved(judge, run.feeds, rng) for _ in range(3)]
        exact = outputs_in_double(double, run.feeds, made)
        moved.append(dict(zip(run.outputs, judge.in_double(run.feeds), strict=False)))
        for name, want in run.outputs.items():
            if made[name].shape != want.shape:
                return Roomy([], ())
            off = error(made[name], want).max(initial=0.0)
            others = (
                [want, *(m[name] for m in moved if name in m)],
                [made[name], *([exact[name]] if name in exact else [])],
            )
            own = max(error(o, side[0]).max(initial=0.0) for side in others for o in side if o.shape == want.shape)
            if off > max(limit(want, None), ROUNDINGS * own):
                return Roomy([], ())
            if off > limit(want, None):
                notes[AMPLIFIED.format(name, own)] = None
        rows.append(replace(run, outputs=made))
    return Roomy(rows, tuple(notes))


def with_doubles(double: Double, runs: Sequence[Run]) -> list[Run]:
    """Runs with their outputs in float64."""
    return [r if r.double else replace(r, double=outputs_in_double(double, r.feeds, r.outputs)) for r in runs]


def with_room(batch: Any, double: Double, axes: Mapping[str, int | None], runs: Sequence[Run], seed: int) -> Roomy:
    """batch: the model opened. axes: of time, by output. A long run is looked at apart from the short ones."""
    rng = np.random.default_rng(seed)
    wide = with_doubles(double, runs)
    rooms, notes = list[Run](), dict[str, None]()
    for group in ([r for r in wide if not r.long], [r for r in wide if r.long]):
        others = list[Arrays]()
        for name, axis in axes.items():
            if not group or group[0].outputs[name].dtype.kind != "f":
                continue
            in_double = all(name in r.double for r in group)
            if not others and (double.single or not in_double):
                others = [_moved(batch, r.feeds, rng) for r in group]
            against = [[made[name] for made in others]] if others else []
            if in_double:
                against.append([r.double[name] for r in group])
            room, off = _room([r.outputs[name] for r in group], against, axis)
            if room:
                group = [replace(r, room={**r.room, name: each}) for r, each in zip(group, room, strict=True)]
                longest = max(r.length for r in group)
                own = max((own_error(r, name, axis) for r in group), default=0.0)
                noted = in_double and own * ROUNDINGS > limit(group[0].outputs[name], None)
                notes[
                    off_text(double, name, off, longest) + ALLOWED if noted else NOISE.format(name, _without(double))
                ] = None
        rooms += group
    return Roomy(rooms, tuple(notes))


def off_text(double: Double, name: str, off: float, length: int) -> str:
    """What is said of an output that batch itself does not compute well."""
    alike = f" ({', '.join(double.single)} in float32 there as well)" if double.single else ""
    return OFF.format(name, off, length) + alike


def _without(double: Double) -> str:
    return f" (no float64 reference is available: {double.why})" if double.why else ""


def own_error(run: Run, name: str, axis: int | None) -> float:
    """How far batch is from float64 in most frames, of the worst channel; 0 where that cannot be known."""
    if name not in run.double:
        return 0.0
    return float(np.max(_typical([run.outputs[name]], [run.double[name]], axis), initial=0.0))


def _moved(batch: Any, feeds: Arrays, rng: np.random.Generator) -> Arrays:
    return run_model(batch, {n: _last_digit(a, rng) for n, a in feeds.items()})


def _last_digit(array: Array, rng: np.random.Generator) -> Array:
    """The same but for its last digit."""
    if array.dtype.kind != "f":
        return array
    by = rng.choice([-1, 1], array.shape) * np.finfo(array.dtype).eps
    made: Array = (array * (1 + by)).astype(array.dtype)
    return made


def _typical(wants: Sequence[Array], others: Sequence[Array], axis: int | None) -> Array:
    """The error of most frames, by channel, over runs with the same channels: time has one entry."""
    pairs = zip(wants, others, strict=True)
    offs = [error(w, o) if o.shape == w.shape else np.full(w.shape, np.inf) for w, o in pairs]
    if axis is None:
        return np.maximum.reduce(offs)
    whole = np.concatenate(offs, axis)
    made: Array = np.median(whole, axis, keepdims=True) if whole.size else np.zeros([1] * whole.ndim)
    return made


def _room(wants: Sequence[Array], against: Sequence[Sequence[Array]], axis: int | None) -> tuple[list[Array], float]:
    """What the channels of every run may be off by, and what they typically are; none if all by what is allowed.

    against: the same runs computed otherwise, in one way or in two: what is further off counts.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    for i, want in enumerate(wants):
        others_than_time = [size for a, size in enumerate(want.shape) if a != axis]
        alike.setdefault(tuple(others_than_time), []).append(i)
    allowed, most = limit(wants[0], None), 0.0
    room = [np.full([1] * want.ndim, allowed) for want in wants]
    for indices in alike.values():
        typical = np.maximum.reduce(
            [_typical([wants[i] for i in indices], [others[i] for i in indices], axis) for others in against]
        )
        noisy = np.isfinite(typical) & (typical * ROUNDINGS > allowed)
        if noisy.any():
            off = float(typical[noisy].max())
            most = max(most, off)
            for i in indices:
                room[i] = np.where(noisy, off * ROUNDINGS, allowed)
    return (room, most) if most else ([], 0.0)
