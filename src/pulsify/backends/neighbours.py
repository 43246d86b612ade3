"""Is each stream of a batch what it would be alone? Tried: it must not matter what lies beside it, nor where that is,
nor how many there are.

A model may fold its streams inside another axis ([B, 2, T] -> [2, B, T] -> [2B, T]), a library may read one row with
weight zero for another (a linear Resize of rank 3 in ONNX Runtime), so that what is not finite gets across, what
follows from the position may be worked out once for all, and a model may read how many streams there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pulsify.backends.seam import Array, stream_axis
from pulsify.core.spec import Dims, Spec, concrete

COUNT = 5  # streams of a trial: the second and the fourth are looked at
OWN = (1, 3)
FEW = 0.1  # of all numbers may differ by rounding
Place = tuple[int, int]  # position and length
Run = Callable[[dict[str, Array]], Mapping[str, Array]]  # one pulse of COUNT streams, ports by name


@dataclass(frozen=True)
class Scene:
    """Where the two streams are, and where all others: beside numbers, NaN, what is infinite."""

    own: Place
    beside: tuple[Place, Place, Place]


def same_place(position: int, length: int) -> Scene:
    at = position, length
    return Scene(at, (at, at, at))


def mixed_places(spec: Spec, warm: int) -> list[Scene]:
    """Starts, middles and ends: each among its like, then beside streams that are older or younger, ended or not."""
    ages, pulse = _ages(spec, warm), spec.pulse
    middles = [(age, spec.unknown_length) for age in ages]
    ends = list(dict.fromkeys((age, max(1, age + more)) for more in (1, -pulse) for age in ages))
    return [*_scenes(middles, ends), *_scenes(ends, middles)]


def warm_places(spec: Spec, warm: int) -> list[Scene]:
    """Streams of any age whose ends are out of sight."""
    places = [(age, spec.unknown_length) for age in _ages(spec, warm) if age >= warm]
    return _scenes(places, places)


def _ages(spec: Spec, warm: int) -> list[int]:
    """Positions that a finite table goes so far for."""
    ages = sorted({0, spec.pulse} | {warm + k * spec.pulse for k in (0, 3, 1000)})
    tables = [c for c in spec.conditions if c.at_most is not None]
    return [a for a in ages if all(c.length.at(a + spec.pulse) <= (c.at_most or 0) for c in tables)]


def _scenes(places: Sequence[Place], others: Sequence[Place]) -> list[Scene]:
    """Beside each one of the same kind and one of the others, both somewhere else."""
    half, most = len(places) // 2 or 1, len(others)
    return [
        Scene(place, (place, places[(i + half) % len(places)], others[(i + most // 2 + 1) % most]))
        for i, place in enumerate(places)
    ]


def kept_apart(run: Run, spec: Spec, scenes: Sequence[Scene], last: bool = False, fewer: Run | None = None) -> bool:
    """last: also of what comes out at the end only. fewer: one pulse of the two streams alone."""
    kept = [s for s in spec.states if s.name != spec.position]
    ports: dict[str, tuple[Dims, np.dtype[Any]]] = {i.name: (i.dims, i.dtype) for i in spec.inputs}
    ports |= {s.name: (s.shape, s.dtype) for s in kept}
    made = {s.after: s.shape for s in kept} | {o.name: o.dims for o in spec.outputs if last or o.axis is not None}
    shapes = made | {name: dims for name, (dims, _) in ports.items()}
    axes = {name: axis for name, dims in shapes.items() if (axis := stream_axis(dims)) is not None}
    if len(axes) < len(shapes):
        return False
    outputs = {n: axes[n] for n in made}
    places = dict.fromkeys(scene.own for scene in scenes)
    alone = fewer is None or all(_tried_alone(run, fewer, spec, place, ports, outputs, axes) for place in places)
    return alone and all(_tried(run, spec, scene, ports, outputs, axes) for scene in scenes)


def combined(run: Run, spec: Spec, places: Sequence[Place]) -> bool:
    """Is a stream beside others another one than alone? What has no axis of streams has to be the same."""
    ports: dict[str, tuple[Dims, np.dtype[Any]]] = {i.name: (i.dims, i.dtype) for i in spec.inputs}
    ports |= {s.name: (s.dims, s.dtype) for s in spec.statics}
    kept = [s for s in spec.states if s.name != spec.position]
    ports |= {s.name: (s.shape, s.dtype) for s in kept}
    made = {s.after: s.shape for s in kept} | {o.name: o.dims for o in spec.outputs}
    shapes = made | {name: dims for name, (dims, _) in ports.items()}
    axes = {name: axis for name, dims in shapes.items() if (axis := stream_axis(dims)) is not None}
    outputs = {n: axes.get(n) for n in made}
    alike = [_tried_alone(run, run, spec, place, ports, outputs, axes) for place in places]
    return False in alike or not any(alike)


def _tried_alone(
    run: Run,
    fewer: Run,
    spec: Spec,
    place: Place,
    ports: Mapping[str, tuple[Dims, np.dtype[Any]]],
    made: Mapping[str, int | None],
    axes: Mapping[str, int],
) -> bool | None:
    """Two streams among five, and alone: alike but for rounding, which may differ by the size of a batch.

    None: the step does not run there.
    """
    rng = np.random.default_rng(0)
    five = dict(_clock(spec, place, place))
    for name, (dims, dtype) in ports.items():
        rows = [_numbers(concrete(dims, 1), dtype, rng, -1.0) for _ in range(COUNT if name in axes else 1)]
        five[name] = np.concatenate(rows, axes[name]) if name in axes else rows[0]
    clock = (spec.position, spec.length)
    two = {n: _own(rows, axes.get(n, 0)) if n in axes or n in clock else rows for n, rows in five.items()}
    try:
        all_of_them, alone = run(five), fewer(two)
    except Exception:  # runtimes have no common class for them
        return None
    there = [(all_of_them[n], alone[n], axis) for n, axis in made.items() if n in all_of_them]
    return all(_near(x if axis is None else _own(x, axis), y) for x, y, axis in there)


def _own(rows: Array, axis: int) -> Array:
    """Those of the two streams."""
    each = np.split(rows, COUNT, axis)
    return np.concatenate([each[i] for i in OWN], axis)


def _near(x: Array, y: Array) -> bool:
    """Alike but for rounding, which grows in deep networks; what follows from a count differs nearly everywhere."""
    if x.shape != y.shape:
        return False
    with np.errstate(all="ignore"):
        a, b = (np.nan_to_num(v.astype(np.float64)) for v in (x, y))
        far = np.abs(a - b) > 1e-3 * np.abs(a).max(initial=0.0)
    return not far.size or bool(far.mean() < FEW)


def _tried(
    run: Run,
    spec: Spec,
    scene: Scene,
    ports: Mapping[str, tuple[Dims, np.dtype[Any]]],
    made: Mapping[str, int],
    axes: Mapping[str, int],
) -> bool:
    rng = np.random.default_rng(0)
    own = {n: [_numbers(concrete(d, 1), t, rng, low) for low in (-1.0, 0.1)] for n, (d, t) in ports.items()}
    runs: list[list[Array]] = []
    for value, place in zip((None, np.nan, np.inf), scene.beside, strict=True):
        feeds = dict(_clock(spec, scene.own, place))
        for name, (dims, dtype) in ports.items():
            beside = [_numbers(concrete(dims, 1), dtype, rng, -1.0, value) for _ in range(COUNT - len(OWN))]
            five = [beside[0], own[name][0], beside[1], own[name][1], beside[2]]
            feeds[name] = np.concatenate(five, axes[name])
        try:
            out = run(feeds)
        except Exception:  # runtimes have no common class for them
            if value is None or place != scene.own:
                return False  # nothing is known
            continue  # a batch that fails is computed stream by stream
        rows = {name: np.split(out[name], COUNT, axis) for name, axis in made.items() if name in out}
        runs.append([parts[i].copy() for parts in rows.values() for i in OWN])
    over = scene.own[1] < scene.own[0]  # behind the end there may be no number at all
    seen = over or all(_finite(x) or _finite(y) for x, y in zip(runs[0][::2], runs[0][1::2], strict=True))
    return seen and all(_same(x, y) for other in runs[1:] for x, y in zip(runs[0], other, strict=True))


def _clock(spec: Spec, own: Place, beside: Place) -> Iterator[tuple[str, Array]]:
    """Positions and lengths of the five."""
    five = [beside, own, beside, own, beside]
    for name, which in ((spec.position, 0), (spec.length, 1)):
        if name is not None:
            yield name, np.array([[place[which]] for place in five], np.int32)


def _numbers(
    dims: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, low: float, value: float | None = None
) -> Array:
    """From `low` to one (most of what is computed of small positive numbers is finite), or all this value."""
    if dtype.kind != "f":
        return rng.integers(0, 2, dims).astype(dtype)  # an index, perhaps
    if value is None:
        return rng.uniform(low, 0.9, dims).astype(dtype)
    return (rng.choice([-1.0, 1.0], dims) * value).astype(dtype)


def _finite(x: Array) -> bool:
    """Has it a number that would change if another stream's got here?"""
    return x.dtype.kind != "f" or not x.size or bool(np.isfinite(x).any())


def _same(x: Array, y: Array) -> bool:
    return np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
