"""Checks between the stages: what the rules say must agree with what the traces saw and with itself."""

from __future__ import annotations

import onnx_ir as ir

from pulsify.emit.state import State


def check_states(graph: ir.Graph, states: list[State]) -> None:
    """Every state is an input and an output of the same type and shape, batch first, at least two axes."""
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    for state in states:
        assert state.before in inputs and state.after in outputs, state.node
        assert state.before.dtype == state.after.dtype == state.dtype, state.node
        assert state.before.shape == state.after.shape, state.node
        assert len(state.shape) >= 2, state.node
        assert f"new_{state.before.name}" == state.after.name, state.node
