"""The contestants: everyone who can stream a model, or stand in for a stream, ready to be timed on one thread."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import pulsify
from benchmarks import peer
from benchmarks.by_hand import Array, open_steps
from benchmarks.cases import Case
from benchmarks.turns import Run
from pulsify.backends.choosing import multiply_adds
from pulsify.core.runner import open_model
from pulsify.report.figures import length_figures
from pulsify.report.timing import fitting, looks
from pulsify.verify.distance import TOLERANCE, error

PULSIFY, STEP, OTHERWISE = "pulsify", "pulsify, step alone", "pulsify, written otherwise"
NATIVE, NATIVE_STEP = "pulsify, native", "native, step alone"
TRACT, TRACT_BARE = "tract", "tract, step alone"
BY_HAND, SLIDING, CLOSE, BATCH = "by hand", "sliding window", "shortest window", "batch"
BARS = {
    TRACT: 0.8,
    BY_HAND: 0.9,
    OTHERWISE: 1.15,
    SLIDING: 0.2,
    CLOSE: 0.2,
}  # pulsify's time per pulse, at most so many times theirs

CHUNKS = 16  # different ones, in turn
BATCH_PULSES = 64  # of the batch model's input
FAR = 1 << 13  # frames; what looks further back is taken to look back without end
TIMEOUT = 120.0  # seconds for tract's answer


@dataclasses.dataclass
class Field:
    """Who runs, what is to know of them, and why others do not."""

    runs: dict[str, Run] = dataclasses.field(default_factory=dict)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: dict[str, str] = dataclasses.field(default_factory=dict)


def line_up(case: Case, paths: Mapping[str, Path]) -> Field:
    """All contestants for one model."""
    field, path = Field(), paths[case.batch]
    start = time.perf_counter()
    stream = pulsify.stream(path, pulse=case.pulse)
    field.facts["convert_s"] = time.perf_counter() - start
    field.facts |= {
        "pulse": stream.pulse,
        "state_bytes": stream.state_bytes,
        "delay": stream.outputs[0].delay,
        "warm": stream.warm,
    }
    _add_pulsify(field, stream)
    _add_native(field, stream)
    if case.otherwise:
        _add_otherwise(field, pulsify.stream(paths[case.otherwise], pulse=case.pulse))
    runner = open_model(str(path))
    _add_tract(field, stream, runner, path)
    if case.by_hand:
        _add_by_hand(field, stream, runner, [paths[name] for name in case.by_hand])
    _add_batch(field, stream, runner)
    return field


def noise(stream: pulsify.Stream, frames: int, streams: int = 1) -> Array:
    """Frames for the only input."""
    (port,) = stream.inputs
    shape = [d if isinstance(d, int) else streams for d in port.dims]
    shape[port.axis] = frames
    return np.random.default_rng(0).standard_normal(shape).astype(port.dtype)


def endless(stream: pulsify.Stream, streams: int = 1) -> Callable[[], Array]:
    """Pulses of noise, one a call."""
    axis = stream.inputs[0].axis
    parts = np.split(noise(stream, CHUNKS * stream.pulse, streams), CHUNKS, axis)
    return itertools.cycle([np.ascontiguousarray(part) for part in parts]).__next__


def warmed(stream: pulsify.Stream, streams: int | None = None, backend: str = "ort") -> Any:
    """A session that runs its steady step."""
    session, chunk = stream.session(batch=streams, backend=backend), endless(stream, streams or 1)
    for _ in range(stream.warm // stream.pulse + CHUNKS):
        session.push(chunk())
    return session


def _add_pulsify(field: Field, stream: pulsify.Stream) -> None:
    _add_stream(field, stream, "ort", PULSIFY, STEP)


def _add_native(field: Field, stream: pulsify.Stream) -> None:
    """The step as C; how many multiply-adds it has says how near it is to what a core can do (`benchmarks.native`)."""
    field.facts["multiply_adds"] = multiply_adds(stream.model)
    start = time.perf_counter()
    try:
        stream.session(backend="native")
    except pulsify.PulsifyError as error:
        field.notes[NATIVE] = str(error).splitlines()[0]
        return
    field.facts["native_open_s"] = time.perf_counter() - start
    _add_stream(field, stream, "native", NATIVE, NATIVE_STEP)


def _add_stream(field: Field, stream: pulsify.Stream, backend: str, whole: str, bare: str) -> None:
    chunk, session = endless(stream), warmed(stream, backend=backend)
    field.runs[whole] = Run(lambda: session.push(chunk()))
    step, fresh = warmed(stream, backend=backend)._stepper, endless(stream)
    place = step.inputs[stream.inputs[0].name]

    def alone() -> None:
        place[...] = fresh()  # the same frames again and again would be quicker
        step.run()

    field.runs[bare] = Run(alone)


def _add_otherwise(field: Field, stream: pulsify.Stream) -> None:
    chunk, session = endless(stream), warmed(stream)
    field.runs[OTHERWISE] = Run(lambda: session.push(chunk()))


def _add_tract(field: Field, stream: pulsify.Stream, runner: ort.InferenceSession, path: Path) -> None:
    """If tract streams the model, and rightly: tried in another process, timed in this one."""
    if importlib.util.find_spec("tract") is None:
        field.notes[TRACT] = "not installed: pip install 'pulsify[bench]'"
        return
    (port,) = stream.inputs
    shape = tuple("S" if axis == port.axis else d for axis, d in enumerate(port.dims))
    length = 24 * stream.pulse
    x = noise(stream, length)
    (expected,) = runner.run(None, {port.name: x})
    axis = stream.outputs[0].axis
    assert axis is not None
    job = peer.Job(shape, port.axis, stream.pulse, [x], [expected.shape[axis]])
    try:
        streamed = peer.run_apart(path, job, TIMEOUT)
        status, detail = peer.compare(streamed.outputs[0], expected, axis)
        field.facts["tract_delay"] = streamed.delay
    except peer.PeerError as error:
        status, detail = "refused", str(error)
    if status != "exact":
        field.notes[TRACT] = f"{status}: {detail}"
    if status in ("wrong", "refused"):
        return
    import tract

    start = time.perf_counter()
    run = peer.open_stream(path, shape, stream.pulse)
    field.facts["tract_convert_s"] = time.perf_counter() - start
    chunk, bare = endless(stream), peer.open_stream(path, shape, stream.pulse)
    ready = itertools.cycle([tract.Tensor.from_numpy(chunk()) for _ in range(CHUNKS)])
    field.runs[TRACT] = Run(lambda: run(chunk()).to_numpy())
    field.runs[TRACT_BARE] = Run(lambda: bare(next(ready)))


def _add_by_hand(field: Field, stream: pulsify.Stream, runner: ort.InferenceSession, paths: Sequence[Path]) -> None:
    """It must be the batch model's stream as well; its last frames, after the last whole pulse, are not asked."""
    (port,), axis = stream.inputs, stream.outputs[0].axis
    assert axis is not None
    x = noise(stream, 24 * stream.pulse)
    (expected,) = runner.run(None, {port.name: x})
    push, state_bytes = open_steps(paths)
    got = np.concatenate([push(part) for part in np.split(x, 24, port.axis)], axis)
    status, detail = peer.compare(got, np.take(expected, range(got.shape[axis]), axis), axis)
    field.facts["by_hand_state_bytes"] = state_bytes
    if status != "exact":
        field.notes[BY_HAND] = f"{status}: {detail}"
    if status != "wrong":
        chunk = endless(stream)
        field.runs[BY_HAND] = Run(lambda: push(chunk()))


def _add_batch(field: Field, stream: pulsify.Stream, runner: ort.InferenceSession) -> None:
    """The batch model: at every pulse on all frames that the new ones need, and once on a long input.

    What a frame needs is measured twice. Bit for bit, a recurrence needs frames for as long as rounding remembers
    them, which says little; so there is also the shortest window that is as close to batch as a stream must be.
    """
    name = stream.inputs[0].name
    longest = min(length_figures(stream)["longest"] or FAR, FAR)
    back, ahead = looks(runner, stream, longest)
    window = fitting(stream, BATCH_PULSES * stream.pulse if back is None else back + ahead + stream.pulse, longest)
    length = fitting(stream, max(BATCH_PULSES * stream.pulse, 2 * window), longest)
    some, everything = {name: noise(stream, window)}, {name: noise(stream, length)}
    field.runs[SLIDING] = Run(lambda: runner.run(None, some))
    field.runs[BATCH] = Run(lambda: runner.run(None, everything), length / stream.pulse)
    field.facts |= {"window": window, "batch_length": length}
    if back is None:
        field.notes[SLIDING] = f"looks back without end: {window} frames are a guess"
    tries = [
        n // stream.pulse for n in (length, min(8 * length, longest))
    ]  # long inputs only if short ones say nothing
    shortest = next((w for n in tries if (w := _shortest_window(stream, runner, n)) is not None), None)
    if shortest is None:
        field.notes[CLOSE] = f"none: not even {tries[-1] // 2 * stream.pulse} frames are enough"
    else:
        few = {name: noise(stream, shortest)}
        field.runs[CLOSE] = Run(lambda: runner.run(None, few))
        field.facts["shortest_window"] = shortest


def _shortest_window(stream: pulsify.Stream, runner: ort.InferenceSession, most: int) -> int | None:
    """Frames, in whole pulses, of which batch makes the last pulse's output as it does of `most` pulses."""
    (port,), (output,) = stream.inputs, stream.outputs
    x = noise(stream, most * stream.pulse)

    def last(pulses: int) -> Array:
        frames = x.shape[port.axis] - pulses * stream.pulse
        part = np.ascontiguousarray(np.take(x, range(frames, x.shape[port.axis]), port.axis))
        (y,) = runner.run(None, {port.name: part})
        return np.take(y, range(y.shape[output.axis] - output.frames, y.shape[output.axis]), output.axis)

    def close(pulses: int) -> bool:
        try:
            return bool(error(last(pulses), expected).max() <= TOLERANCE[str(expected.dtype)])
        except Exception:  # too short for the model; ONNX Runtime has no common class for them
            return False

    expected = last(most)
    low, high = 0, 1  # a window that is enough stays enough when it grows
    while not close(high):
        low, high = high, 2 * high
        if high > most // 2:  # compared with too little
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if close(middle) else (middle, high)
    return high * stream.pulse
