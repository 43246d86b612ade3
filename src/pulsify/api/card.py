"""What a notebook shows of a stream: ports, delays, states, the result of the check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from html import escape

from pulsify.core.duration import milliseconds
from pulsify.core.report import Report, exact_text
from pulsify.core.spec import Dims, Output, Spec

MOST_STATES = 20  # rows; a large encoder has hundreds of states
PORTS = ("", "name", "type", "shape", "rate", "delay")
STATES = ("name", "kind", "type", "shape", "bytes", "for")


def card(spec: Spec, verification: Report | None, hint: str = "") -> str:
    """HTML without scripts or styles of its own, so that any notebook shows it. hint: what else can be asked."""
    parts = [f"<p><b>pulsify.Stream</b>: {escape(_timing(spec))}</p>", _table(PORTS, _port_rows(spec)), _states(spec)]
    parts += [f"<p>{escape(line)}</p>" for line in _checked(spec, verification)]
    parts += [f"<p>Everything about it: <code>{escape(hint)}</code></p>"] * bool(hint)
    return "\n".join(parts)


def _timing(spec: Spec) -> str:
    pulse = _with_ms(spec, spec.pulse, Fraction(spec.pulse))
    latency = _with_ms(spec, spec.latency, Fraction(spec.latency))
    opening = f", the first {spec.opening} pulses in one call" if spec.opening else ""
    first = f", the first call takes {spec.first_call:,}" if spec.phase else ""
    start = f", start-up {_with_ms(spec, spec.start_up, Fraction(spec.start_up))}" if spec.start_up else ""
    return f"pulses of {pulse}, latency {latency}{start}{opening}{first}"


def _with_ms(spec: Spec, frames: Fraction | int, units: Fraction) -> str:
    ms = milliseconds(spec, units, spec.sample_rate)
    count = f"{int(frames) if frames.denominator == 1 else round(float(frames), 2):,} frame{'s' * (frames != 1)}"
    return count if ms is None else f"{count} ({ms:,.4g} ms)"


def _port_rows(spec: Spec) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = [("in", i.name, i.dtype, _shape(i.dims), i.rate, "") for i in spec.inputs]
    rows += [("static", s.name, s.dtype, _shape(s.dims), "", "") for s in spec.statics]
    return rows + [("out", o.name, o.dtype, _shape(o.dims), *_pace(spec, o)) for o in spec.outputs]


def _pace(spec: Spec, output: Output) -> tuple[object, str]:
    if output.axis is None:
        return "", "at the end (flush)"
    delay = spec.lateness(output)
    return output.rate, _with_ms(spec, delay, delay / output.rate if output.rate else delay)


def _states(spec: Spec) -> str:
    rows = [(s.name, s.kind, s.dtype, _shape(s.shape), f"{s.nbytes:,}", s.node) for s in spec.states]
    title = f"{len(rows)} states, {sum(s.nbytes for s in spec.states):,} bytes a stream"
    if not rows:
        return "<p>no state</p>"
    more = f"<p>... and {len(rows) - MOST_STATES} more: <code>stream.states</code></p>" * (len(rows) > MOST_STATES)
    return f"<details><summary>{title}</summary>{_table(STATES, rows[:MOST_STATES])}{more}</details>"


def _checked(spec: Spec, verification: Report | None) -> list[str]:
    lines = [exact_text(spec.exact_up_to)] if spec.exact_up_to is not None else []
    if verification is None:
        return [*lines, "not checked against the batch model"]
    said = f"checked against the batch model: largest relative error {verification.error:.2g}"
    return [*lines, f"{said}, limit {verification.tolerance:g}, {verification.runs} streams"]


def _shape(dims: Dims) -> str:
    return " x ".join(map(str, dims)) or "scalar"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def row(tag: str, cells: Sequence[object]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + "".join([row("th", head), *(row("td", cells) for cells in rows)]) + "</table>"
