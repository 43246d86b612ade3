"""Lengths that the model computes for itself (a pad to the next multiple, a slice to a computed end)."""

from __future__ import annotations

from pulsify.analysis.length import Length, fit
from pulsify.emit.context import Context
from pulsify.frontend.model import Node
from pulsify.trace.evaluate import CannotRun


def length_from_model(ctx: Context, node: Node, name: str, axis: int) -> Length:
    """The length of a wire as a function of the stream's, read off many lengths of every residue."""
    tracer = ctx.traces.tracer

    def frames(s: int) -> int | None:
        if s % ctx.traces.step:
            return None
        try:
            return tracer.at(s)[name].dims[axis]
        except CannotRun:
            return None

    found = fit(frames, ctx.traces.lengths[0])
    if found is None:
        ctx.refuse(
            node,
            "the length of its output is no regular function of the stream's length",
            "cut or pad by a fixed amount, or to a multiple of a fixed number",
        )
    ctx.claim(node, f"the length of '{name}'", lambda run: run[name].dims[axis] == found.at(run.length))
    return found
