"""Streams with known results, by ONNX Runtime on the plain step: what an export is checked by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.backends.registry import backend
from pulsify.backends.seam import Array, Opening, Options, plain
from pulsify.core.errors import InvalidLength, NotSupported
from pulsify.core.progress import counted
from pulsify.core.spec import Spec, concrete
from pulsify.export.doubles import made_of_floats
from pulsify.runtime.framer import Framer, ports
from pulsify.runtime.session import Session

MOST = 1 << 18  # elements of an input
TOLERANCE = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-9}  # of an output's scale, as `verify` has it


@dataclass(frozen=True)
class Known:
    """A stream of `length` frames: what goes in, and all that comes out."""

    length: int
    statics: Mapping[str, Array]
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    computed: Mapping[str, str] = field(default_factory=dict)  # outputs whose type is wider than what computes them


def known_streams(
    model: ir.Model, spec: Spec, since: int = 2, opening: Opening | None = None, wide: int = 0, long: int = 0
) -> Iterator[Known]:
    """since: the pulse from which on the steady step runs; a stream that goes further is among them, if it fits.

    wide: also streams of whole numbers up to so much, as far as their types and the model go. long: also one of so
    many pulses.
    """
    rng = np.random.default_rng(7)
    statics = {s.name: _noise(rng, concrete(s.dims, 1), s.dtype) for s in spec.statics}
    opened = backend("ort").compile(plain(model, spec), spec, Options(fuse=False))
    first = None
    if opening is not None:
        begun = backend("ort").compile(plain(opening.model, opening.spec), opening.spec, Options(fuse=False))
        first = partial(begun.stepper, 1, statics)
    about, computed = ports(spec, 1), made_of_floats(model, spec)

    def run(length: int, fixed: Mapping[str, Array], given: Mapping[str, Array]) -> Known:
        session = Session(partial(opened.stepper, 1, fixed), Framer(about, 0.0, True), about, True, first)
        begin, end = _named(spec, session.push(dict(given))), _named(spec, session.flush())
        outputs = {}
        for o in spec.outputs:
            parts = [p[o.name] for p in (begin, end) if o.name in p]
            outputs[o.name] = parts[-1] if o.axis is None else np.concatenate(parts, o.axis)
        return Known(length, fixed, given, outputs, computed)

    def noise(length: int) -> dict[str, Array]:
        return {i.name: _noise(rng, _shape(i.dims, i.axis, int(length * i.rate)), i.dtype) for i in spec.inputs}

    lengths = _lengths(spec, since)
    for length in counted("computing stream", [*lengths, *_long(spec, long)]):
        try:
            yield run(length, statics, noise(length))
        except InvalidLength:
            continue
    for names, least in _whole_numbers(spec) if wide and opening is None and lengths else ():
        near, given = _constants(model), {**statics, **noise(lengths[-1])}
        given |= {n: _wide(rng, given[n].shape, given[n].dtype, least, wide, near) for n in names}
        try:
            yield run(lengths[-1], {n: given[n] for n in statics}, {i.name: given[i.name] for i in spec.inputs})
        except Exception:  # a runtime has no class of its own for it: they are no numbers the model takes, indices say
            continue


def departure(got: Array, wanted: Array) -> float:
    """The largest difference, relative to the output's scale; whole numbers are equal or not."""
    if got.shape != wanted.shape:
        return np.inf
    if wanted.dtype.kind != "f":
        return float(not np.array_equal(got, wanted))
    x, y = got.astype(np.float64), wanted.astype(np.float64)
    scale = float(np.abs(y[np.isfinite(y)]).max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore"):
        off = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y) / scale)
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0.0))


def hold(got: Mapping[str, Array], known: Known, target: str, hint: str = "") -> None:
    """NotSupported if what an export gives is not what the stream gives."""
    for name, wanted in known.outputs.items():
        off = departure(got[name], wanted)
        if off > TOLERANCE.get(known.computed.get(name, str(wanted.dtype)), 0.0):
            raise NotSupported(
                f"{target} computes otherwise: '{name}' of a stream of {known.length} frames is off by {off:.1e} "
                "(relative error), so nothing was written",
                target=target,
                hint=hint or "export to onnx or c, which are checked the same way",
            )


def _named(spec: Spec, result: object) -> Mapping[str, Array]:
    if isinstance(result, dict):
        return result
    return {} if result is None else {spec.outputs[0].name: np.asarray(result)}


def _noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _wide(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], least: int, most: int, near: tuple[int, ...]
) -> Array:
    """All that a small type has, its ends for certain; of a larger one around those, and around what float32 and the
    model's own constants end at. Of int32 all but the least number, of which there is no opposite.
    """
    types = np.iinfo(dtype)
    most = int(types.max) if dtype == np.int32 else min(most, int(types.max))
    low, high = max(least, int(types.min), -most - (dtype.itemsize < 4)), most
    if dtype.itemsize < 4:
        made = rng.integers(low, high, shape, endpoint=True)
    else:
        bases = [n for n in (0, 1 << 24, 1 << 25, -(1 << 25), high, low, *near) if low <= n <= high]
        made = np.clip(rng.choice(np.array(bases), shape) + rng.integers(-3, 4, shape), low, high)
    made.flat[:: max(made.size - 1, 1)] = [low, high][: min(made.size, 2)]
    return made.astype(dtype)


def _whole_numbers(spec: Spec) -> list[tuple[list[str], int]]:
    """Ports of whole numbers, and from which on: all together, then each by itself, since others may be indices.

    Numbers of both signs make up for each other in a sum; some models take no negative ones.
    """
    types = {i.name: i.dtype for i in spec.inputs} | {s.name: s.dtype for s in spec.statics}
    found = [name for name, dtype in types.items() if dtype.kind in "iu"]
    ways = [found, *([n] for n in found)] if len(found) > 1 else [found] * bool(found)
    return [(names, least) for names in ways for least in (-(1 << 31), 0)]


def _constants(model: ir.Model) -> tuple[int, ...]:
    """Whole numbers of the model that float32 does not tell from their neighbours."""
    whole = (ir.DataType.INT32, ir.DataType.INT64)
    kept = (v.const_value for v in model.graph.initializers.values() if v.dtype in whole)
    found = (int(n) for t in kept if t is not None and t.size <= 64 for n in t.numpy().ravel())
    return tuple(sorted({n for n in found if abs(n) >= 1 << 24}))[:64]


def _long(spec: Spec, pulses: int) -> list[int]:
    length = pulses * spec.pulse
    longest = [c.at_most for c in spec.conditions if c.at_most is not None]
    return [length] if length and not longest and length % spec.step == 0 else []


def _shape(dims: tuple[int | str, ...], axis: int, frames: int) -> tuple[int, ...]:
    shape = list(concrete(dims, 1))
    shape[axis] = frames
    return tuple(shape)


def _lengths(spec: Spec, since: int) -> list[int]:
    """Short, ragged, of whole pulses, and far enough for the steady step; the model takes them all."""
    p, step = spec.pulse, max(spec.step, *(c.multiple for c in spec.conditions), 1) if spec.conditions else spec.step
    per = max(math.prod(concrete(i.dims, 1)) // p for i in spec.inputs)
    most = max(MOST // max(per, 1), (spec.opening + 4) * p)
    wanted = [spec.shortest, p - 1, p, p + 1, 3 * p + max(p // 2, 1), (since + 3) * p, (since + 4) * p + max(p // 3, 1)]
    if spec.opening or spec.phase:
        wanted += [spec.first_call + n for n in (-1, 0, 1, p + 1)]
    found = []
    for length in wanted:
        length = max(-(-length // step) * step, spec.shortest, 1)
        if length <= most and length not in found and all(c.met(length) for c in spec.conditions):
            found.append(length)
    return sorted(found)
