"""Is the stream of a graph its batch model, first frame to last? ONNX Runtime on the whole input says what is right."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx

import pulsify
from pulsify.core.chunks import chunkings
from tests import side
from tests.property.graph import Array, Graph, Tensor

TOLERANCE = {"float32": 1e-6, "float16": 4e-3, "float64": 1e-12}
LONGEST = 1 << 9


class Batch:
    """The batch model. Quantised ones as they are written: optimised, they round otherwise."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._side = side.Batch(model, optimize=not any(n.op_type == "QuantizeLinear" for n in model.graph.node))
        self.names = self._side.names

    def run(self, x: Array) -> dict[str, Array] | None:
        """The outputs, or None where the model does not take this input (or makes nothing of it)."""
        return self._side.attempt({"x": x})


def data(graph: Graph, length: int, batch: int) -> Array:
    """Small whole numbers: sums of them are exact in any order."""
    rng = np.random.default_rng(length)
    return rng.integers(-4, 5, (batch, graph.channels, length)).astype(graph.dtype)


def runs(graph: Graph, outputs: Sequence[Tensor | str], length: int = 48) -> bool:
    """Does the model load and run at a long length, of a multiple that suits most strides?"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            batch = Batch(graph.model(outputs))
        except Exception:  # as above
            return False
    out = batch.run(data(graph, length * 5, 1))
    return out is not None and all(o.size and np.isfinite(o).all() for o in out.values())


def convert(model: onnx.ModelProto, factor: int | None, time: Mapping[str, int] | None = None) -> pulsify.Stream:
    """At so many granules a pulse."""
    if factor is None:
        return pulsify.stream(model, time=time, verify=False)
    try:
        return pulsify.stream(model, pulse=factor, time=time, verify=False)
    except pulsify.InvalidPulse as error:
        return pulsify.stream(model, pulse=factor * error.granularity, time=time, verify=False)


def check(
    graph: Graph, outputs: Sequence[Tensor | str], factor: int | None, seed: int = 0, strict: bool = True
) -> pulsify.Stream | None:
    """Compare stream and batch at many lengths and chunkings. None: refused where that is right.

    strict: the stream takes the very lengths that the batch model takes.
    """
    model = graph.model(outputs)
    try:
        stream = convert(model, factor)
    except pulsify.NotStreamable as error:
        if graph.may_refuse:
            return None
        raise AssertionError(f"refused: {error}\n{graph!r}") from error
    except Exception as error:
        raise AssertionError(f"conversion failed: {error!r}\n{graph!r}") from error
    batch, size = Batch(model), 1 if graph.batch == 1 else 2
    rng = np.random.default_rng(seed)
    if strict and not graph.loose:
        check_shortest(graph, stream, batch, size)
    compared = 0
    for length in lengths(stream, rng, graph.least):
        x = data(graph, length, size)
        expected = batch.run(x)
        where = f"pulse {stream.pulse} length {length}"
        if expected is None:
            assert not strict, f"{where}: the stream takes a length the batch model does not\n{graph!r}"
            continue
        compared += 1
        for cuts in chunkings(length, stream.pulse, rng):
            compare(graph, stream, x, expected, cuts, f"{where} cuts {cuts}")
    assert compared, f"no length fits {stream.spec.conditions}\n{graph!r}"
    return stream


def check_shortest(graph: Graph, stream: pulsify.Stream, batch: Batch, size: int) -> None:
    """No length the batch model makes frames of may be turned down."""
    for length in range(graph.least, min(stream.spec.shortest + 8, 40)):
        if broadcast_by_accident(stream, length):
            continue
        out = batch.run(data(graph, length, size))
        if out is not None and all(o.size for o in out.values()):
            assert valid(stream, length), f"length {length} is turned down, batch takes it\n{graph!r}"


def valid(stream: pulsify.Stream, length: int) -> bool:
    spec = stream.spec
    return length >= spec.shortest and length % spec.step == 0 and all(c.met(length) for c in spec.conditions)


def broadcast_by_accident(stream: pulsify.Stream, length: int) -> bool:
    """A single frame is broadcast against any number, so batch takes joins of unlike lengths there."""
    joins = [(c.length.at(length), c.equals.at(length)) for c in stream.spec.conditions if c.equals is not None]
    return any(a != b and 1 in (a, b) for a, b in joins)


def lengths(stream: pulsify.Stream, rng: np.random.Generator, least: int = 1) -> list[int]:
    """The shortest, its neighbours, shorter than a pulse, ragged, a few pulses."""
    pulse, shortest = stream.pulse, max(stream.spec.shortest, least)
    wanted = [shortest, shortest + 1, shortest + 2, pulse - 1, pulse, 2 * pulse + 1]
    wanted += [3 * pulse + int(rng.integers(0, pulse + 5)), shortest + 2 * pulse + int(rng.integers(0, 9))]
    found = (next((n for n in range(max(w, least), w + least + LONGEST) if valid(stream, n)), None) for w in wanted)
    return sorted({n for n in found if n is not None})


def compare(
    graph: Graph, stream: pulsify.Stream, x: Array, expected: dict[str, Array], cuts: list[int], where: str
) -> None:
    try:
        got = run_stream(stream, x, cuts)
    except Exception as error:
        raise AssertionError(f"{where}: {error!r}\n{graph!r}") from error
    for out in stream.outputs:
        have, want = got[out.name], expected[out.name]
        problem = difference(have, want, out.axis, TOLERANCE[graph.dtype.name] * graph.rounds)
        assert not problem, f"{where}: {out.name} {problem}\n{graph!r}"


def run_stream(stream: pulsify.Stream, x: Array, cuts: list[int]) -> dict[str, Array]:
    """As saved, or as sessions run it."""
    return side.streamed(stream, x, cuts, portable=len(cuts) == 1, fuse_quantised=False)


def collect(parts: dict[str, list[Array]], ready: Any) -> None:
    named = ready if isinstance(ready, dict) else {next(iter(parts)): ready}
    for name, value in named.items():
        parts[name].append(value)


def difference(have: Array, want: Array, axis: int | None, tolerance: float) -> str:
    """What is wrong, in words, or nothing."""
    if have.size == want.size == 0 != want.ndim and have.dtype == want.dtype:
        return ""  # ONNX Runtime's ReduceL2 of nothing keeps the axes that it reduces
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"is {have.dtype} {have.shape}, not {want.dtype} {want.shape}"
    if not want.size:
        return ""
    a, b = have.astype(np.float64), want.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    scale = max(np.abs(b).max(initial=0, where=np.isfinite(b)), 1.0)
    with np.errstate(invalid="ignore"):
        errors = np.where(same, 0, np.nan_to_num(np.abs(a - b) / scale, nan=math.inf))
    if errors.max() <= tolerance:
        return ""
    others = tuple(i for i in range(errors.ndim) if i != axis)
    bad = np.flatnonzero(errors.max(others) > tolerance)
    return f"error {errors.max():.2g} at frames {bad[:8].tolist()} of {want.shape[axis or 0]}"


def smallest_latency(
    needed: list[int], pulse: int, frames: int, pulses: int, opening: int = 0, start_up: int = 0
) -> Fraction:
    """Input frames from one that goes in to its output, at the most, wherever in the stream pulses begin."""
    rate = Fraction(frames, pulse)
    late = (smallest_delay(needed, pulse, frames, pulses, opening, n) / rate - n for n in range(pulse))
    return pulse + max(min(late) - start_up, Fraction(0))


def smallest_delay(needed: list[int], pulse: int, frames: int, pulses: int, opening: int = 0, phase: int = 0) -> int:
    """Pulse n gives out frames below (n + 1) * frames - delay, having seen (n + 1) * pulse - phase input frames.

    opening: so many pulses are one call, so that nothing is due before all of them have come.
    """
    delay = 0
    while True:
        due = (
            (n, k)
            for n in range(max(opening - 1, 0), pulses)
            for k in range(min((n + 1) * frames - delay, len(needed)))
        )
        if all(needed[k] <= (n + 1) * pulse - phase for n, k in due):
            return delay
        delay += 1
