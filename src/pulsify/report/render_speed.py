"""Speed as tables and pictures."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from pulsify.core.errors import InvalidArgument
from pulsify.report.figures import Figures
from pulsify.report.render import count, rounded, sheet, size
from pulsify.report.sheet import Column, Sheet


def bench_table(bench: Figures) -> Sheet:
    table = sheet("", "runs on", ">p50 us", ">p99 us", ">us a frame", ">stream is")
    pulse, window, length = bench["pulse"], bench["sliding"]["window"], bench["batch"]["length"]
    native = bench.get("native", {})
    rows = [
        ("stream", count(pulse, "frame") + " (one pulse)", bench["stream"]),
        *([("stream, as C", count(pulse, "frame") + " (one pulse)", native)] if "p50_us" in native else []),
        ("batch, every pulse anew", f"{count(window, 'frame')} (window)", bench["sliding"]),
        ("batch, at the end", f"{count(length, 'frame')} (everything)", bench["batch"]),
    ]
    for label, what, t in rows:
        ratio = t["per_frame_us"] / bench["stream"]["per_frame_us"]
        times = [f"{t['p50_us']:,.1f}", f"{t['p99_us']:,.1f}", f"{t['per_frame_us']:.3f}"]
        table.add(label, what, *times, "" if t is bench["stream"] else ratio_text(ratio))
    return table


def ratio_text(ratio: float) -> str:
    return f"{ratio:.1f}x faster" if ratio >= 1 else f"{1 / ratio:.1f}x slower"


def looks_text(bench: Figures) -> str:
    back, ahead = bench["sliding"]["looks_back"], bench["sliding"]["looks_ahead"]
    if back is None:
        return "back without end: no sliding window gives the batch model's output, the one timed is a guess"
    return (
        f"{count(back, 'frame')} back, {ahead} ahead (measured to the last bit, which a recurrence remembers for long)"
    )


def sweep_table(facts: Figures) -> Sheet:
    """One line a pulse, frames being those of the first input; `load` is the work's share of real time."""
    timed, chosen = facts["sample_rate"] is not None, facts["choice"]["pulse"]
    late = [">ms", ">total ms", ">load"] if timed else [">frames/s"]
    table = sheet("", ">pulse", ">delay", ">latency", ">p50 us", ">p99 us", ">us a frame", *late, ">state")
    for p in facts["sweep"]:
        mark = Text(">", "green") if p["pulse"] == chosen else ""
        cells = [f"{p['pulse']:,}", f"{p['delay_frames']:,}", f"{p['latency_frames']:,}"]
        cells += [f"{p['p50_us']:,.1f}", f"{p['p99_us']:,.1f}", f"{p['per_frame_us']:.3g}"]
        if timed:
            cells += [rounded(p["latency_ms"]), rounded(p["total_ms"]), f"{p['real_time_factor']:.2%}"]
        else:
            cells.append(f"{p['frames_per_second']:,.0f}")
        table.add(mark, *cells, size(p["state_bytes"]))
    return table


def sweep_chart(facts: Figures, width: int = 40) -> Sheet:
    """Latency (# pulse, = delay, . work) and work per frame (*), a bar each, at the scale of the longest."""
    points, timed = facts["sweep"], facts["sample_rate"] is not None
    table = sheet(">pulse", "latency: # pulse, = delay" + ", . work" * timed, "work per frame")
    top = max(p["total_ms"] if timed else p["latency_frames"] for p in points)
    dear = max(p["per_frame_us"] for p in points)
    for p in points:
        whole = p["latency_ms"] if timed else p["latency_frames"]
        pulse = whole * (1 - p["delay_frames"] / p["latency_frames"])
        ends = [round(width * part / top) for part in (pulse, whole, p["total_ms"] if timed else whole)]
        bar = "#" * max(ends[0], 1) + "=" * (ends[1] - ends[0]) + "." * (ends[2] - ends[1])
        table.add(f"{p['pulse']:,}", bar, "*" * max(round(width * p["per_frame_us"] / dear / 2), 1))
    return table


def sweep_lines(facts: Figures) -> list[tuple[str, str]]:
    grain, choice = facts["granularity"], facts["choice"]
    lines = [("granularity", "any pulse works" if grain == 1 else f"pulses are multiples of {grain}")]
    if facts["sample_rate"]:
        lines.append(("sample rate", f"{facts['sample_rate']:g} frames a second"))
    for reason in dict.fromkeys(o["reason"] for o in facts["left_out"]):
        pulses = ", ".join(str(o["pulse"]) for o in facts["left_out"] if o["reason"] == reason)
        lines.append(("left out", f"{pulses}: {reason}"))
    return [*lines, ("choose", f"pulse {choice['pulse']}: {choice['why']}")]


def sweep_plot(facts: Figures, path: str) -> None:
    """Work per frame over latency, a point a pulse, as an image."""
    plots, points = pyplot(), facts["sweep"]
    timed = facts["sample_rate"] is not None
    figure, axes = plots.subplots(figsize=(7, 4.5), layout="constrained")
    late = [p["total_ms"] if timed else p["latency_frames"] for p in points]
    axes.plot(late, [p["per_frame_us"] for p in points], "o-", color="#1b6ca8")
    axes.vlines(late, [p["per_frame_us"] for p in points], [p["p99_us"] / p["pulse"] for p in points], color="#bbbbbb")
    for x, p in zip(late, points, strict=True):
        chosen = p["pulse"] == facts["choice"]["pulse"]
        axes.annotate(f" {p['pulse']}", (x, p["per_frame_us"]), weight="bold" if chosen else "normal")
    axes.set(xscale="log", yscale="log", ylabel="µs of work a frame: p50, and up to p99")
    axes.set_xlabel("total latency, ms (pulse + delay + work)" if timed else "latency, frames (pulse + delay)")
    axes.set_title(f"by pulse; chosen: {facts['choice']['pulse']}")
    axes.grid(which="both", alpha=0.2)
    figure.savefig(path, dpi=150)
    plots.close(figure)


def pyplot() -> Any:
    """matplotlib, without a screen; it is an extra."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise InvalidArgument("a plot needs matplotlib: pip install 'pulsify[bench]'") from None
    matplotlib.use("agg")
    return importlib.import_module("matplotlib.pyplot")


def picture(rows: Sequence[tuple[str, str, str]]) -> Sheet:
    """A timeline, as `timeline` drew it."""
    sheet = Sheet([Column("", "fixed", style) for style in ("bold", "", "dim")], headed=False, margin=1)
    for label, bar, note in rows:
        sheet.add(label, bar, note)
    return sheet
