"""What rules say must agree with what the traces saw."""

from __future__ import annotations

from pulsify.analysis.facts import Layout
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.refusal import Kind
from pulsify.trace.lengths import Traces


def check_wire(traces: Traces, name: str, node: str, layout: Layout, length: Length) -> None:
    """A wire has as many frames as its length says, at every traced length."""
    for run in traces.runs:
        want = layout.outer[0] * length.at(run.length)
        got = run[name].dims[layout.axis]
        if want != got:
            raise NotStreamable(
                f"its output '{name}' has {got} frames at length {run.length} where {want} were expected",
                node=node,
                hint="this is a fault of pulsify's rule for the operator: please report the model",
                kind=Kind.BUG,
            )
