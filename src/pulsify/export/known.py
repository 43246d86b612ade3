"""Streams with known results, by ONNX Runtime on the plain step: what an export is checked by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.backends.registry import backend
from pulsify.backends.seam import Array, Opening, Options, plain
from pulsify.core.errors import InvalidLength, NotSupported
from pulsify.core.progress import counted
from pulsify.core.spec import Spec, concrete
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


def known_streams(model: ir.Model, spec: Spec, since: int = 2, opening: Opening | None = None) -> Iterator[Known]:
    """since: the pulse from which on the steady step runs; a stream that goes further is among them, if it fits."""
    rng = np.random.default_rng(7)
    statics = {s.name: _noise(rng, concrete(s.dims, 1), s.dtype) for s in spec.statics}
    opened = backend("ort").compile(plain(model, spec), spec, Options(fuse=False))
    first = None
    if opening is not None:
        begun = backend("ort").compile(plain(opening.model, opening.spec), opening.spec, Options(fuse=False))
        first = partial(begun.stepper, 1, statics)
    about = ports(spec, 1)
    for length in counted("computing stream", _lengths(spec, since)):
        given = {i.name: _noise(rng, _shape(i.dims, i.axis, int(length * i.rate)), i.dtype) for i in spec.inputs}
        session = Session(partial(opened.stepper, 1, statics), Framer(about, 0.0, True), about, True, first)
        try:
            begin = _named(spec, session.push(given))
            end = _named(spec, session.flush())
        except InvalidLength:
            continue
        outputs = {}
        for o in spec.outputs:
            parts = [p[o.name] for p in (begin, end) if o.name in p]
            outputs[o.name] = parts[-1] if o.axis is None else np.concatenate(parts, o.axis)
        yield Known(length, statics, given, outputs)


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
        if off > TOLERANCE.get(str(wanted.dtype), 0.0):
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
    if spec.opening:
        wanted += [spec.opening * p + n for n in (-1, 0, 1, p + 1)]
    found = []
    for length in wanted:
        length = max(-(-length // step) * step, spec.shortest, 1)
        if length <= most and length not in found and all(c.met(length) for c in spec.conditions):
            found.append(length)
    return sorted(found)
