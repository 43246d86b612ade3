"""How fast a stream is: one thread, against the batch model on everything and on a sliding window."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.report.facts import Facts, length_facts, milliseconds
from pulsify.verify.check import make_inputs, valid_length

if TYPE_CHECKING:
    import onnxruntime as ort

    from pulsify.api import Stream

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
PULSES = 64  # length of the stream that is timed, in pulses
LONGEST = 1 << 17  # frames; a model that looks further than this is taken to look back without end


def bench_facts(
    runner: ort.InferenceSession,
    stream: Stream,
    *,
    sample_rate: float | None = None,
    seconds: float = 1.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Facts:
    """Times in microseconds. `seconds` is what each of the three measurements may take, more or less."""
    rng = np.random.default_rng(0)
    longest = length_facts(stream)["longest"] or LONGEST
    length = _fitting(stream, PULSES * stream.pulse, longest)
    feeds = make_inputs(runner, stream, length, rng)
    progress("timing the stream")
    streamed = _summary(_stream_times(stream, feeds, length, seconds))
    progress("timing the batch model on everything")
    whole = _summary(_times(lambda: runner.run(None, dict(feeds)), seconds))
    progress("finding how far the model looks")
    back, ahead = looks(runner, stream, min(longest, LONGEST))
    progress("timing the batch model on a sliding window")
    wished = length if back is None else back + ahead + stream.pulse
    window = _fitting(stream, wished, longest)
    small = make_inputs(runner, stream, window, rng)
    sliding = _summary(_times(lambda: runner.run(None, dict(small)), seconds))
    return {
        "threads": 1,
        "pulse": stream.pulse,
        "pulse_ms": milliseconds(stream.spec, Fraction(stream.pulse), sample_rate),
        "stream": {**streamed, "per_frame_us": streamed["p50_us"] / stream.pulse},
        "batch": {**whole, "length": length, "per_frame_us": whole["p50_us"] / length},
        "sliding": {
            **sliding,
            "window": window,
            "looks_back": back,
            "looks_ahead": None if back is None else ahead,
            "per_frame_us": sliding["p50_us"] / stream.pulse,
        },
        "speedup": sliding["p50_us"] / streamed["p50_us"],
    }


def _fitting(stream: Stream, wished: int, longest: int) -> int:
    """A length the batch model takes, near the wished one."""
    found = valid_length(stream, min(wished, longest))
    if found is not None and found <= longest:
        return found
    return int(length_facts(stream)["shortest"])


def _stream_times(stream: Stream, feeds: Feeds, length: int, seconds: float) -> Iterable[float]:
    """Seconds of every push of one pulse, the session's own work included."""
    session = stream.session(statics={s.name: feeds[s.name] for s in stream.statics})
    pulses = max(length // stream.pulse, 1)
    chunks = []
    for n in range(pulses):
        cut = {i.name: (i.axis, n * i.frames, (n + 1) * i.frames) for i in stream.inputs}
        chunk = {k: np.ascontiguousarray(feeds[k][(slice(None),) * a + (slice(x, y),)]) for k, (a, x, y) in cut.items()}
        if all(c.shape[cut[k][0]] == cut[k][2] - cut[k][1] for k, c in chunk.items()):
            chunks.append(chunk)
    if not chunks:  # the only lengths are shorter than a pulse: any frames will do
        shapes = {i.name: [d if isinstance(d, int) else 1 for d in i.dims] for i in stream.inputs}
        chunks = [{i.name: np.zeros(shapes[i.name], i.dtype) for i in stream.inputs}]
    for chunk in chunks[:8]:
        session.push(chunk)
    end = time.perf_counter() + seconds
    count = 0
    while count < 32 or (time.perf_counter() < end and count < 20000):
        session.reset()
        for chunk in chunks:
            start = time.perf_counter()
            session.push(chunk)
            yield time.perf_counter() - start
        count += len(chunks)


def _times(run: Callable[[], Any], seconds: float) -> Iterable[float]:
    run()
    run()
    end = time.perf_counter() + seconds
    count = 0
    while count < 5 or (time.perf_counter() < end and count < 2000):
        start = time.perf_counter()
        run()
        yield time.perf_counter() - start
        count += 1


def _summary(times: Iterable[float]) -> Facts:
    micro = np.array(list(times)) * 1e6
    return {
        "p50_us": float(np.percentile(micro, 50)),
        "p99_us": float(np.percentile(micro, 99)),
        "count": len(micro),
    }


# ---- how far a model looks


def looks(runner: ort.InferenceSession, stream: Stream, longest: int) -> tuple[int | None, int]:
    """How many frames back and ahead an output reads; (None, 0) if there is no end to it.

    Found by trying: change a few frames in the middle and see which outputs change.
    """
    length = _fitting(stream, 4 * max(stream.pulse, stream.granularity) + 64, longest)
    while True:
        reached = _touched(runner, stream, length)
        if reached is not None:
            return reached
        grown = valid_length(stream, 4 * length)
        if grown is None or grown > longest:
            return None, 0
        length = grown


def _touched(runner: ort.InferenceSession, stream: Stream, length: int) -> tuple[int, int] | None:
    """(back, ahead), or None if the change is felt up to either end, so that more could lie beyond."""
    rng = np.random.default_rng(1)
    grain = stream.granularity
    at = length // 2 // grain * grain
    feeds = make_inputs(runner, stream, length, rng)
    other = dict(feeds)
    fresh = make_inputs(runner, stream, length, rng)
    for i in stream.inputs:
        changed = feeds[i.name].copy()
        where = (slice(None),) * i.axis + (slice(int(at * i.rate), int((at + grain) * i.rate)),)
        changed[where] = fresh[i.name][where]
        other[i.name] = changed
    names = [o.name for o in runner.get_outputs()]
    before = dict(zip(names, runner.run(None, feeds), strict=True))
    after = dict(zip(names, runner.run(None, other), strict=True))
    back = ahead = 0
    for o in stream.outputs:
        if o.axis is None:
            continue
        differs = before[o.name] != after[o.name]
        frames = np.flatnonzero(differs.any(tuple(i for i in range(differs.ndim) if i != o.axis)))
        if not frames.size:
            continue
        if frames[0] == 0 or frames[-1] == differs.shape[o.axis] - 1:
            return None
        first, last = Fraction(int(frames[0])) / o.rate, Fraction(int(frames[-1]) + 1) / o.rate
        back = max(back, math.ceil(last / grain) * grain - grain - at)
        ahead = max(ahead, at - math.floor(first / grain) * grain)
    return back, ahead
