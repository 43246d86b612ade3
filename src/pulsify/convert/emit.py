"""From a plan to the nodes of the step graph: once, in the order of planning, with every window known."""

from __future__ import annotations

from pulsify.emit.beginning import beginning
from pulsify.emit.buffer import Buffer, others
from pulsify.emit.builder import Builder
from pulsify.emit.clock import Clock
from pulsify.emit.emission import Emission
from pulsify.emit.state import State
from pulsify.plan.constant_prefix import frames_of, wishes
from pulsify.plan.context import Context


def begin(ctx: Context) -> Emission:
    """An empty step graph with the inputs of the plan."""
    builder = Builder()
    builder.reserve(ctx.ask.model.outputs)
    for name, (dtype, dims) in ctx.ports.items():
        builder.input(name, dtype, dims)
    ctx.emission = Emission(builder, Clock(builder, ctx.pulse, ctx.batch))
    return ctx.emission


def emit(ctx: Context) -> Emission:
    """All steps of a plan."""
    emission, known = begin(ctx), frames_of(ctx, wishes(ctx))
    for step in ctx.steps:
        if step.extra is not None:
            step.extra()
        values = [v.value for v in step.values]
        for stored, value in zip(step.stored, values, strict=False):
            windows = others(stored, ctx.demands.get(stored.name, ()))
            buffer = Buffer(emission.builder, stored, value, windows, ctx.batch)
            buffer.fill(stored.name in ctx.zeroed, beginning(ctx, buffer, known.get(stored.wire)))
            emission.buffers[stored.name] = buffer
    return emission


def states_of(emission: Emission) -> list[State]:
    """What is carried from pulse to pulse: past frames, caches that grow, running values."""
    buffers = emission.buffers.values()
    kept = [b.state for b in buffers if b.state is not None]
    return [*kept, *(b.cache for b in buffers if b.cache is not None), *emission.carries]
