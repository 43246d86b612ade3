"""What there is to say about a stream, as plain data that JSON takes. Nothing here knows how it will look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pulsify.core.duration import milliseconds
from pulsify.optimize.attention import attentions, reasons
from pulsify.optimize.steady import steady_form
from pulsify.verify.check import valid_length

if TYPE_CHECKING:
    from pulsify.api import Stream
    from pulsify.core.report import NodeDeviation, NodeReport, Report
    from pulsify.core.spec import Binding, Condition, Output, Spec

Figures = dict[str, Any]
FAR = 1 << 40  # a stream longer than this is endless


def stream_figures(stream: Stream, sample_rate: float | None = None) -> Figures:
    """Pulse, ports, states and sizes of a stream; times in ms too if the input's sample rate is given, or known."""
    spec = stream.spec
    sample_rate = sample_rate or spec.sample_rate
    return {
        "pulse": spec.pulse,
        "pulse_ms": milliseconds(spec, Fraction(spec.pulse), sample_rate),
        "sample_rate": sample_rate,
        "granularity": spec.granularity,
        "latency_frames": stream.latency,
        "start_up_frames": spec.start_up,
        "start_up_ms": milliseconds(spec, Fraction(spec.start_up), sample_rate),
        "first_call_frames": spec.first_call,
        "opening_frames": spec.pulse * spec.opening,
        "opening_ms": milliseconds(spec, Fraction(spec.pulse * spec.opening), sample_rate),
        "natural": {"pulse": stream.natural_pulse, "latency_frames": stream.spec.natural_latency},
        "time": spec.time,
        "batch": spec.batch,
        "lengths": length_figures(stream),
        "proof": proof_figures(spec),
        "exact_up_to": spec.exact_up_to,
        "inputs": [
            {
                "name": i.name,
                "dtype": str(i.dtype),
                "shape": list(i.dims),
                "axis": i.axis,
                "rate": str(i.rate),
                "frames": i.frames,
            }
            for i in spec.inputs
        ],
        "statics": [{"name": s.name, "dtype": str(s.dtype), "shape": list(s.dims)} for s in spec.statics],
        "bindings": binding_figures(spec.bindings),
        "outputs": [output_figures(spec, o, sample_rate) for o in spec.outputs],
        "states": [
            {"name": s.name, "dtype": str(s.dtype), "shape": list(s.shape), "bytes": s.nbytes, "node": s.node}
            for s in spec.states
        ],
        "state_bytes": stream.state_bytes,
        "takes_length": spec.length,
        "nodes": sum(1 for _ in stream.model.graph),
        "attentions": _attentions(stream),
        "constant_bytes": _constant_bytes(stream),
    }


def binding_figures(bindings: Sequence[Binding]) -> list[Figures]:
    """Inputs of the batch model that the stream does not have, and whether somebody said so."""
    return [{"name": b.name, "value": b.value, "source": b.source, "reason": b.reason or None} for b in bindings]


def proof_figures(spec: Spec) -> Figures:
    """How certain it is at every length; `sampled` is empty if it is proven."""
    proof = spec.proof
    return {
        "proven": proof.complete,
        "horizon": proof.horizon,
        "period": proof.period,
        "limit": proof.limit,
        "sampled": list(proof.sampled),
        "assumed": list(proof.assumed),
    }


def output_figures(spec: Spec, o: Output, sample_rate: float | None) -> Figures:
    """`delay` counts frames of the output, `delay_input_frames` the same time in frames of the first input."""
    delay = spec.lateness(o)
    late = delay / o.rate if o.axis is not None and o.rate else None
    return {
        "name": o.name,
        "dtype": str(o.dtype),
        "shape": list(o.dims),
        "axis": o.axis,
        "rate": str(o.rate),
        "frames": o.frames,
        "delay_after_start": plain(
            delay if o.delay_after_start is None else spec.lateness(replace(o, delay=o.delay_after_start))
        ),
        "delay": plain(delay),
        "delay_input_frames": None if late is None else plain(late * spec.inputs[0].rate),
        "delay_ms": None if late is None else milliseconds(spec, late, sample_rate),
    }


def length_figures(stream: Stream) -> Figures:
    """The total lengths the batch model takes: `first` few of them, `every` so many if they are evenly spaced."""
    first: list[int] = []
    while len(first) < 4 and (found := valid_length(stream, first[-1] + 1 if first else 1)) is not None:
        first.append(found)
    gaps = {b - a for a, b in pairwise(first)}
    return {
        "shortest": first[0] if first else stream.spec.shortest,
        "every": gaps.pop() if len(gaps) == 1 else None,
        "first": first,
        "longest": min((n for c in stream.spec.conditions if (n := _longest(c)) is not None), default=None),
    }


def _longest(condition: Condition) -> int | None:
    """The longest stream a finite table allows (lengths never fall as the stream grows)."""
    if condition.at_most is None or condition.length.at(FAR) <= condition.at_most:
        return None
    low, high = 0, FAR
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if condition.length.at(middle) <= condition.at_most else (low, middle)
    return low


def verified_figures(report: Report) -> Figures:
    """A verifier's report. Errors are relative to the output's scale."""
    return {
        "ok": report.ok,
        "runs": report.runs,
        "lengths": list(report.lengths),
        "error": finite(report.error),
        "tolerance": limited(report.tolerance),
        "computed_in": report.low,
        "judged": report.judged,
        "outputs": [
            {
                "name": name,
                "ok": d.ok,
                "error": finite(d.error),
                "largest": finite(d.largest),
                "mean": finite(d.mean),
                "from_double": None if d.from_double is None else finite(d.from_double),
                "batch_from_double": None if d.batch_from_double is None else finite(d.batch_from_double),
                "tolerance": limited(d.tolerance),
                "frame": d.frame,
                "length": d.length,
                "chunks": d.chunks,
            }
            for name, d in report.outputs.items()
        ],
        "exact_up_to": report.exact_up_to,
        "departs": report.departs,
        "fed": list(report.fed),
        "notes": list(report.notes),
    }


def _attentions(stream: Stream) -> list[Figures]:
    """Those of the step that runs all the time. as_written: why one is not a single kernel on a card."""
    if not any(attentions(stream.model)):
        return []
    warm = steady_form(stream.model, stream.spec)
    found = reasons(stream.model if warm is None else warm.model)
    return [{"node": node, "as_written": why or None} for node, why in found.items()]


def _constant_bytes(stream: Stream) -> int:
    tensors = (v.const_value for v in stream.model.graph.initializers.values())
    return sum(t.nbytes for t in tensors if t is not None)


def node_figures(report: NodeReport) -> Figures:
    """A comparison node by node, the largest difference first."""
    return {
        "ok": report.ok,
        "backend": report.backend,
        "computed_in": report.low,
        "length": report.length,
        "pulses": dict(report.pulses),
        "first": None if report.first is None else _node(report.first),
        "outside": [_node(n) for n in report.outside],
        "nodes": [_node(n) for n in report.worst],
    }


def _node(n: NodeDeviation) -> Figures:
    facts = {**vars(n), "error": finite(n.error), "largest": finite(n.largest), "inputs": list(n.inputs), "ok": n.ok}
    return facts | {"outside": None if n.outside is None else [finite(v) for v in n.outside]}


def limited(tolerance: float) -> float | None:
    """None: the error is told, and not judged."""
    return tolerance if math.isfinite(tolerance) else None


def finite(value: float) -> float | str:
    """JSON has no infinity: it becomes a string, which no tool takes for a small number."""
    return float(value) if math.isfinite(value) else str(float(value))


def plain(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def shape_text(dims: Sequence[int | str]) -> str:
    return "[" + ", ".join(str(d) for d in dims) + "]"
