"""Caches of fixed size that a model writes its frames into, as a decoder that is run step by step has them."""

from __future__ import annotations

from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.ops.registry import rule
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan


@rule("TensorScatter", says="written out where its places are constants; a stream is not written into a cache")
def cache(ctx: Context, node: Node) -> Plan:
    ctx.ask.refuse(
        node,
        "it writes frames into a cache of fixed size, at places that are not the same for every stream",
        "export the model without its cache: a stream keeps what attention looks back to",
        kind=Kind.DATA,
    )
