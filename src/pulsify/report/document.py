"""Everything `pulsify report` tells, as plain data: the page is drawn from this and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify import __version__
from pulsify.api import stream as convert
from pulsify.api import verify
from pulsify.core.errors import Mismatch, NotStreamable, PulsifyError
from pulsify.core.runner import open_model
from pulsify.core.status_line import short_name
from pulsify.core.weights import weight_bytes
from pulsify.report.cost import cost_figures
from pulsify.report.delays import delay_figures
from pulsify.report.figures import Figures, finite, limited, stream_figures, verified_figures
from pulsify.report.reading import reading_figures
from pulsify.report.refusal import refusal_figures
from pulsify.report.stages import open_batch, time_figures
from pulsify.report.timing import sweep_figures
from pulsify.verify.check import quick, valid_length
from pulsify.verify.divergence import departures

if TYPE_CHECKING:
    from pulsify.api import Stream

CHECKING = 10.0  # seconds after which no further length is compared
CONVERTING = 6.0  # seconds after which no further pulse is tried
LARGE = 256 << 20  # bytes of weights from which on wires are not compared: all of them would be held at once


@dataclass(frozen=True)
class Asked:
    """What a report is about: a model, a pulse (or the natural one), what the model means.

    stream: made of it already.
    """

    model: Any
    pulse: int | None = None
    meaning: Mapping[str, Any] = field(default_factory=dict)
    sample_rate: float | None = None
    seconds: float = 0.2  # for each measurement
    progress: Callable[[str], None] = lambda text: None
    stream: Stream | None = None


def report_figures(asked: Asked) -> Figures:
    """All sections; `left_out` says of those that are missing why. A refused model has `refusal`, and no stream."""
    facts: Figures = {"kind": "report", "model": short_name(asked.model), "pulsify": __version__, "left_out": {}}
    asked.progress("finding time")
    tracer = None
    try:
        tracer = open_batch(asked.model, *(asked.meaning.get(k) for k in ("time", "bind", "set")))
        facts["time"] = time_figures(tracer)
        asked.progress("converting")
        made = asked.stream or convert(asked.model, asked.pulse, **asked.meaning, verify=False)
    except NotStreamable as error:
        facts["refusal"] = refusal_figures(error, asked.model, tracer, _checked(asked), progress=asked.progress)
        return facts
    rate = asked.sample_rate or getattr(made, "sample_rate", None)
    facts |= {"refusal": None, "stream": stream_figures(made, rate), "opening": made.spec.opening}
    sections: dict[str, Callable[[], Any]] = {
        "plan": lambda: _plan_figures(made, rate),
        "pulses": lambda: _pulses(asked, made, rate),
        "cost": lambda: _cost(asked, made),
        "check": lambda: check_figures(asked, made),
    }
    for name, section in sections.items():
        try:
            facts[name] = section()
        except PulsifyError as error:
            facts[name], facts["left_out"][name] = None, str(error).splitlines()[0]
    return facts


def _checked(asked: Asked) -> Callable[[Any, Mapping[str, Any]], Stream]:
    """Converts with other options, and compares with batch."""

    def attempt(source: Any, options: Mapping[str, Any]) -> Stream:
        both = {**(asked.meaning.get("set") or {}), **(options.get("set") or {})}
        made = convert(source, asked.pulse, **{**asked.meaning, **options, "set": both}, verify=False)
        made.verification = quick(source, made)
        return made

    return attempt


def _plan_figures(made: Stream, rate: float | None) -> Figures:
    """Delays and what is read, at the stream's own pulse."""
    assert made.course is not None, "it was just converted"
    return {"delays": delay_figures(made.course, rate), "reading": reading_figures(made.course)}


def _pulses(asked: Asked, made: Stream, rate: float | None) -> Figures:
    def at(pulse: int | None) -> Stream:
        same = pulse in (None, made.pulse)
        return made if same else convert(asked.model, pulse, **asked.meaning, verify=False)

    found, _ = sweep_figures(
        open_model(asked.model), at, sample_rate=rate, seconds=asked.seconds, converting=CONVERTING,
        also=made.pulse, progress=asked.progress,
    )  # fmt: skip
    return found


def _cost(asked: Asked, made: Stream) -> Figures:
    asked.progress("timing every node")
    return cost_figures(made, 2 * asked.seconds)


def check_figures(asked: Asked, made: Stream) -> Figures:
    """Batch and stream side by side: by length, and wire by wire at one of them."""
    end = time.monotonic() + CHECKING
    lengths, worst = list[Figures](), None
    wished = _lengths(made)
    for length in [*wished[-1:], *wished[:-1]]:  # the longest shows most
        if lengths and time.monotonic() > end:
            break
        asked.progress(f"comparing with the batch model: {length} frames")
        try:
            report = verify(asked.model, made, lengths=[length], chunkings=("pulses", "random"))
        except Mismatch as error:
            if error.report is None or not error.report.runs:
                raise
            report = error.report
        lengths.append(
            {"length": length, "runs": report.runs, "error": finite(report.error), "limit": limited(report.tolerance)}
        )
        if worst is None or report.worst.share >= worst.worst.share:
            worst = report
    return {
        "lengths": sorted(lengths, key=lambda row: int(row["length"])),
        "worst": None if worst is None else verified_figures(worst),
        "wires": _by_wire(asked, made, wished[-1]) if wished else [],
    }


def _by_wire(asked: Asked, made: Stream, length: int) -> list[Figures]:
    if weight_bytes(made.model) > LARGE:
        return []
    asked.progress("comparing every value inside the model")
    try:
        seen = list(departures(asked.model, made, length, np.random.default_rng(0)))
    except Exception:  # a courtesy: the runtime may not give out every wire
        return []
    return [{"wire": s.wire, "error": finite(s.error), "limit": s.limit} for s in seen]


def _lengths(made: Stream) -> list[int]:
    """From one frame to well past where the first frames are out: around pulses, where ends lie."""
    p, late = made.pulse, made.latency + made.spec.start_up
    wished = (1, p - 1, p, p + 1, 2 * p - 1, 3 * p + 1, late + 4 * p + p // 2 + 1, 2 * late + 9 * p + 1)
    found = dict.fromkeys(valid_length(made, max(w, 1)) for w in wished)
    most = made.spec.exact_up_to
    return sorted(n for n in found if n is not None and (most is None or n <= most))
