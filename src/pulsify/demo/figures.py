"""Everything `pulsify demo` shows, as plain data: what it converted, how exact, how fast."""

from __future__ import annotations

from collections.abc import Callable

from pulsify.api import stream as convert
from pulsify.api import verify
from pulsify.core.runner import open_model
from pulsify.demo.model import HOP, SAMPLE_RATE, enhancer
from pulsify.report.figures import Figures, finite, stream_figures
from pulsify.report.timeline import timeline
from pulsify.report.timing import bench_figures


def demo_figures(pulse: int, seconds: float, say: Callable[[str], None]) -> Figures:
    """Converts the model, checks it at ragged lengths and times it."""
    model = enhancer()
    say("converting the model")
    made = convert(model, pulse, verify=False)
    exact = []
    for length in sorted({HOP, HOP + 1, pulse, pulse + 1, 10 * pulse - 7, 16000}):
        say(f"comparing with the batch model: {length} samples")
        report = verify(model, made, lengths=[length])
        exact.append(
            {"length": report.lengths[0], "runs": report.runs, "error": finite(report.error), "limit": report.tolerance}
        )
    bench = bench_figures(open_model(model), made, sample_rate=SAMPLE_RATE, seconds=seconds, progress=say)
    drawn = 4 * pulse + pulse // 2 + 3  # a last chunk that is no whole pulse
    return {
        "stream": stream_figures(made, SAMPLE_RATE),
        "batch_nodes": len(model.graph.node),
        "exact": exact,
        "bench": bench,
        "timeline": {"length": drawn, "rows": [list(row) for row in timeline(made.spec, drawn)]},
    }
