"""How fast a stream is: one thread, against the batch model on everything and on a sliding window, and by pulse."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.core.duration import milliseconds
from pulsify.core.errors import PulsifyError
from pulsify.core.runner import run_model
from pulsify.core.spec import latency
from pulsify.report.figures import Figures, length_figures, plain
from pulsify.verify.check import valid_length
from pulsify.verify.inputs import make_inputs

if TYPE_CHECKING:
    import onnxruntime as ort

    from pulsify.api import Stream

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
PULSES = 64  # length of the stream that is timed, in pulses
LONGEST = 1 << 17  # frames; a model that looks further than this is taken to look back without end
NEAR = 1 / 16  # of all frames at either end: a change that is felt there may be felt beyond
Convert = Callable[[int | None], "Stream"]


def bench_figures(
    runner: ort.InferenceSession,
    stream: Stream,
    *,
    sample_rate: float | None = None,
    seconds: float = 1.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Figures:
    """Times in microseconds. `seconds` is what each of the three measurements may take, more or less."""
    rng = np.random.default_rng(0)
    longest = length_figures(stream)["longest"] or LONGEST
    length = fitting(stream, PULSES * stream.pulse, longest)
    feeds = make_inputs(runner, stream, length, rng)
    progress("timing the stream")
    streamed = _summary(_stream_times(stream, feeds, length, seconds))
    native = _native_times(stream, feeds, length, seconds, progress)
    progress("timing the batch model on everything")
    whole = _summary(_times(lambda: runner.run(None, dict(feeds)), seconds))
    progress("finding how far the model looks")
    back, ahead = looks(runner, stream, min(longest, LONGEST))
    progress("timing the batch model on a sliding window")
    wished = length if back is None else back + ahead + stream.pulse
    window = fitting(stream, wished, longest)
    small = make_inputs(runner, stream, window, rng)
    sliding = _summary(_times(lambda: runner.run(None, dict(small)), seconds))
    return {
        "threads": 1,
        "pulse": stream.pulse,
        "pulse_ms": milliseconds(stream.spec, Fraction(stream.pulse), sample_rate),
        "stream": {**streamed, "per_frame_us": streamed["p50_us"] / stream.pulse},
        "native": native,
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


def fitting(stream: Stream, wished: int, longest: int) -> int:
    """A length the batch model takes, near the wished one."""
    found = valid_length(stream, min(wished, longest))
    if found is not None and found <= longest:
        return found
    return int(length_figures(stream)["shortest"])


def _native_times(
    stream: Stream, feeds: Feeds, length: int, seconds: float, progress: Callable[[str], None]
) -> Figures:
    """The same as C, or why there is none."""
    progress("compiling the step as C")
    try:
        stream.session(backend="native", statics={s.name: feeds[s.name] for s in stream.statics})
    except PulsifyError as error:
        return {"why_not": str(error).splitlines()[0]}
    progress("timing it as C")
    timed = _summary(_stream_times(stream, feeds, length, seconds, "native"))
    return {**timed, "per_frame_us": timed["p50_us"] / stream.pulse}


def _stream_times(stream: Stream, feeds: Feeds, length: int, seconds: float, backend: str = "ort") -> Iterable[float]:
    """Seconds of every push of one pulse, the session's own work included."""
    session = stream.session(statics={s.name: feeds[s.name] for s in stream.statics}, backend=backend)
    chunks = _chunks(stream, feeds, length)
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


def _chunks(stream: Stream, feeds: Feeds, length: int) -> list[dict[str, Array]]:
    """A whole input, pulse by pulse."""
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
    return chunks


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


def _summary(times: Iterable[float]) -> Figures:
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
    if stream.spec.exact_up_to is not None or any(s.grows for s in stream.states):
        return None, 0  # known, and to try it takes the square of ever longer inputs
    length = fitting(stream, 4 * max(stream.pulse, stream.granularity) + 64, longest)
    while True:
        grown = fitting(stream, 2 * length, longest)
        reached = _touched(runner, stream, length, NEAR if grown > length else 0)
        if reached is not None:
            return reached
        if grown <= length:
            return None, 0
        length = grown


def _touched(runner: ort.InferenceSession, stream: Stream, length: int, near: float) -> tuple[int, int] | None:
    """(back, ahead), or None if the change is felt up to either end, so that more could lie beyond.

    near: what part of all frames counts as an end. Dilated layers are not felt at every frame, the last one least.
    """
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
    before, after = run_model(runner, feeds), run_model(runner, other)
    back = ahead = 0
    for o in stream.outputs:
        if o.axis is None:
            continue
        differs = before[o.name] != after[o.name]
        frames = np.flatnonzero(differs.any(tuple(i for i in range(differs.ndim) if i != o.axis)))
        if not frames.size:
            continue
        end = int(near * differs.shape[o.axis])
        if frames[0] <= end or frames[-1] >= differs.shape[o.axis] - 1 - end:
            return None
        first, last = Fraction(int(frames[0])) / o.rate, Fraction(int(frames[-1]) + 1) / o.rate
        back = max(back, math.ceil(last / grain) * grain - grain - at)
        ahead = max(ahead, at - math.floor(first / grain) * grain)
    return back, ahead


# ---- which pulse


POINTS = 8  # pulses that are timed
STEPS = (1, 2, 4, 8, 16, 32, 64, 14, 7, 3, 6, 12, 24, 28, 48, 56, 5, 10, 20, 40, 9, 11, 13, 15)  # tried, in granules
DOUBLING = 1.5  # twice the latency must buy so many times the throughput
TURN = 0.01  # seconds, more or less: pulses are timed in turns, so that all share the noise
CONVERTING = 15.0  # seconds after which no further pulse is tried
BEYOND, LATE = 0.25, 1.0  # seconds: pulses of up to so long are tried beyond 64 granules; later ones are not timed


def sweep_figures(
    runner: ort.InferenceSession,
    convert: Convert,
    *,
    sample_rate: float | None = None,
    seconds: float = 1.0,
    converting: float = CONVERTING,
    also: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Figures, Stream]:
    """What each pulse costs and how late it is, and the stream to choose (see `choose`).

    `convert` makes the stream of a pulse; an error of pulsify leaves the pulse out. Tried are multiples of the
    granularity, and of the natural pulse: with attention in chunks that is a whole chunk, where the delay falls to
    none. A pulse is left out if a longer one is no later: it would work more. After `converting` seconds no further
    pulse is tried. also: a pulse that is not left out.
    """
    progress("trying pulses")
    streams, left_out = _tried(convert, sample_rate, converting, also)
    kept = _thinned(_in_time(_front(streams, left_out, also), sample_rate, left_out, also), left_out, also)
    progress("timing " + ", ".join(str(s.pulse) for s in kept))
    times = _in_turns([_pusher(runner, s) for s in kept], seconds)
    points = [_point(s, _summary(t), sample_rate) for s, t in zip(kept, times, strict=True)]
    choice = choose(points)
    facts: Figures = {
        "threads": 1,
        "sample_rate": sample_rate,
        "granularity": kept[0].granularity,
        "sweep": points,
        "left_out": sorted(left_out, key=lambda o: int(o["pulse"])),
        "choice": choice,
    }
    return facts, next(s for s in kept if s.pulse == choice["pulse"])


def choose(points: Sequence[Figures]) -> Figures:
    """The pulse to use, and why.

    With a sample rate: the smallest total latency (pulse, delay and work) of those whose slowest pulses (p99) leave
    half of the time free; if none does, the one with the least work per frame. Without: the knee, where doubling the
    latency no longer buys 1.5 times the throughput, that is the smallest work per frame x latency ^ log2(1.5).
    """
    if points[0]["total_ms"] is None:
        best = min(points, key=lambda p: p["per_frame_us"] * p["latency_frames"] ** math.log2(DOUBLING))
        why = f"the knee: from here on, twice the latency buys less than {DOUBLING} times the throughput"
        if best is points[-1]:
            why = f"the longest tried: up to here, twice the latency buys at least {DOUBLING} times the throughput"
    elif steady := [p for p in points if p["p99_us"] <= p["pulse_ms"] * 500]:
        best = min(steady, key=lambda p: p["total_ms"])
        why = "the smallest total latency of those whose slowest pulses leave half of the time free"
    else:
        best = min(points, key=lambda p: p["per_frame_us"])
        why = "the least work per frame; none leaves half of the time free"
    return {"pulse": best["pulse"], "why": why}


def _tried(
    convert: Convert, sample_rate: float | None, seconds: float, also: int | None
) -> tuple[list[Stream], list[Figures]]:
    """Streams by pulse, in ascending order, and the pulses refused. The smallest one's refusal is everyone's."""
    first = convert(None)
    grain, made, refused = first.granularity, {first.pulse: first}, list[Figures]()
    if also is not None and also not in made:
        made[also] = convert(also)
    whole = first.natural_pulse or grain
    wished = [whole, 2 * whole, 4 * whole, *(grain * n for n in STEPS)]
    if sample_rate:  # of samples, even 64 are no time at all
        second = sample_rate / float(first.inputs[0].rate)
        wished += [grain << n for n in range(7, 20) if grain << n <= BEYOND * second]
    end = time.monotonic() + seconds
    for pulse in dict.fromkeys(wished):
        if pulse in made or time.monotonic() > end:
            continue
        try:
            made[pulse] = convert(pulse)
        except PulsifyError as error:
            refused.append({"pulse": pulse, "reason": str(error).splitlines()[0]})
    return [made[p] for p in sorted(made)], refused


def _latency(stream: Stream) -> Fraction:
    return latency(stream.pulse, stream.outputs, stream.spec.phase)


def _front(streams: Sequence[Stream], left_out: list[Figures], also: int | None = None) -> list[Stream]:
    """Those that no longer pulse makes pointless. also: one that stays."""
    kept: list[Stream] = []
    best: Stream | None = None
    for stream in reversed(streams):
        pointless = best is not None and _latency(stream) >= _latency(best)
        if pointless and best is not None and stream.pulse != also:
            reason = f"no earlier than a pulse of {best.pulse}, and more work"
            left_out.append({"pulse": stream.pulse, "reason": reason})
            continue
        kept.append(stream)
        best = best if pointless else stream
    return kept[::-1]


def _in_time(
    streams: Sequence[Stream], sample_rate: float | None, left_out: list[Figures], also: int | None = None
) -> list[Stream]:
    """Those that are not a second late, unless the model itself is."""
    if not sample_rate:
        return list(streams)
    most = max(2 * _latency(streams[0]), Fraction(LATE * sample_rate) / streams[0].inputs[0].rate)
    reason = f"more than {LATE:g} s late"
    late = [s for s in streams if _latency(s) > most and s.pulse != also]
    left_out += [{"pulse": s.pulse, "reason": reason} for s in late]
    return [s for s in streams if s not in late]


def _thinned(streams: Sequence[Stream], left_out: list[Figures], also: int | None = None) -> list[Stream]:
    """At most so many, evenly spread; the first, the last and `also` stay."""
    kept = list(streams)
    while len(kept) > POINTS:
        inner = [i for i in range(1, len(kept) - 1) if kept[i].pulse != also]
        gone = kept.pop(min(inner, key=lambda i: kept[i + 1].pulse / kept[i - 1].pulse))
        left_out.append({"pulse": gone.pulse, "reason": "between two others that are timed"})
    return kept


def _pusher(runner: ort.InferenceSession, stream: Stream) -> Callable[[], None]:
    """Pushes the next pulse, for ever: where the model's positions end, from the start."""
    longest = length_figures(stream)["longest"]
    length = fitting(stream, 16 * stream.pulse, longest or LONGEST)
    feeds = make_inputs(runner, stream, length, np.random.default_rng(0))
    session = stream.session(statics={s.name: feeds[s.name] for s in stream.statics})
    chunks = itertools.cycle(_chunks(stream, feeds, length))
    most = max(longest // stream.pulse, 1) if longest else 0
    count = 0

    def push() -> None:
        nonlocal count
        if most and count and count % most == 0:
            session.reset()
        count += 1
        session.push(next(chunks))

    warm = max(stream.warm // stream.pulse, stream.spec.opening)
    for _ in range(min(warm, 4096) + 4):
        push()
    return push


def _in_turns(pushers: Sequence[Callable[[], None]], seconds: float) -> list[list[float]]:
    """Seconds of every call but the first of each turn."""
    taken: list[list[float]] = [[] for _ in pushers]
    end = time.perf_counter() + seconds * len(pushers)
    rounds = 0
    while rounds < 8 or time.perf_counter() < end:
        for push, times in zip(pushers, taken, strict=True):
            push()
            turn = time.perf_counter() + TURN
            while True:
                start = time.perf_counter()
                push()
                times.append(time.perf_counter() - start)
                if start + times[-1] >= turn:
                    break
        rounds += 1
    return taken


def _point(stream: Stream, times: Figures, sample_rate: float | None) -> Figures:
    """Frames are those of the first input."""
    per, latency = stream.inputs[0].rate, _latency(stream)
    frames, pulse_ms = stream.pulse * per, milliseconds(stream.spec, Fraction(stream.pulse), sample_rate)
    latency_ms = milliseconds(stream.spec, latency, sample_rate)
    return {
        "pulse": stream.pulse,
        "pulse_ms": pulse_ms,
        "delay_frames": plain((latency - stream.pulse) * per),
        "latency_frames": plain(latency * per),
        "latency_ms": latency_ms,
        **times,
        "per_frame_us": times["p50_us"] / float(frames),
        "frames_per_second": float(frames) / times["p50_us"] * 1e6,
        "real_time_factor": None if pulse_ms is None else times["p50_us"] / 1000 / pulse_ms,
        "total_ms": None if latency_ms is None else latency_ms + times["p50_us"] / 1000,
        "state_bytes": stream.state_bytes,
    }
