"""What need not be carried: values that nobody reads, and first states of zeros."""

from __future__ import annotations

from pulsify.analysis.proof.claims import always_zero
from pulsify.plan.context import Context


def zero(ctx: Context, name: str) -> bool:
    """Is a first state zero, at every length?"""
    arrays = ctx.ask.known(name)
    return (
        arrays is not None
        and not any(a.any() for a in arrays)
        and always_zero(ctx.ask, ctx.ask.model.producers.get(name), name)
    )


def wanted_by_anyone(ctx: Context, name: str) -> bool:
    """Is a value an output, or read by a node?"""
    return name in ctx.ask.model.outputs or any(name in n.reads for n in ctx.ask.model.nodes)
