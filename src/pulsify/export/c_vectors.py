"""Streams with known results, for whoever builds the C: inputs, and what the step gives in ONNX Runtime.

int32 streams; of each: int32 length, static inputs, inputs, and of each output int32 elements and these. Little endian.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.backends.registry import backend
from pulsify.backends.seam import Array, Opening, Options, plain
from pulsify.core.errors import InvalidLength
from pulsify.core.spec import Spec, concrete
from pulsify.runtime.framer import Framer, ports
from pulsify.runtime.session import Session

MOST = 1 << 18  # elements of an input


@dataclass(frozen=True)
class Vectors:
    """The file, and how many elements its largest input and output have, port by port."""

    data: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def vectors(model: ir.Model, spec: Spec, since: int, opening: Opening | None = None) -> Vectors:
    """since: the pulse from which on the steady step runs; a stream that goes further is among them, if it fits."""
    rng = np.random.default_rng(7)
    statics = {s.name: _noise(rng, concrete(s.dims, 1), s.dtype) for s in spec.statics}
    opened = backend("ort").compile(plain(model, spec), spec, Options(fuse=False))
    first = None
    if opening is not None:
        begun = backend("ort").compile(plain(opening.model, opening.spec), opening.spec, Options(fuse=False))
        first = partial(begun.stepper, 1, statics)
    known = ports(spec, 1)
    words: list[bytes] = []
    ins, outs, count = [1] * len(spec.inputs), [1] * len(spec.outputs), 0
    for length in _lengths(spec, since):
        given = {i.name: _noise(rng, _shape(i.dims, i.axis, int(length * i.rate)), i.dtype) for i in spec.inputs}
        session = Session(partial(opened.stepper, 1, statics), Framer(known, 0.0, True), known, True, first)
        try:
            begin = _named(spec, session.push(given))
            end = _named(spec, session.flush())
        except InvalidLength:
            continue
        count += 1
        words.append(np.int32(length).tobytes())
        words += [np.ascontiguousarray(a).tobytes() for a in (*statics.values(), *given.values())]
        for k, i in enumerate(spec.inputs):
            ins[k] = max(ins[k], given[i.name].size)
        for k, o in enumerate(spec.outputs):
            parts = [p[o.name] for p in (begin, end) if o.name in p]
            whole = parts[-1] if o.axis is None else np.concatenate(parts, o.axis)
            outs[k] = max(outs[k], whole.size)
            words += [np.int32(whole.size).tobytes(), np.ascontiguousarray(whole, o.dtype).tobytes()]
    return Vectors(np.int32(count).tobytes() + b"".join(words), tuple(ins), tuple(outs))


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
