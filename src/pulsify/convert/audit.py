"""Checks between the stages: what the rules say must agree with what the traces saw and with itself."""

from __future__ import annotations

import onnx_ir as ir

from pulsify.analysis.facts import Layout
from pulsify.convert.primitives.state import State
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


def check_states(graph: ir.Graph, states: list[State]) -> None:
    """Every state is an input and an output of the same type and shape, batch first, at least two axes."""
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    for state in states:
        assert state.before in inputs and state.after in outputs, state.node
        assert state.before.dtype == state.after.dtype == state.dtype, state.node
        assert state.before.shape == state.after.shape, state.node
        assert len(state.shape) >= 2, state.node
        assert f"new_{state.before.name}" == state.after.name, state.node
