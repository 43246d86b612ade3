"""The forms of a streaming model that sessions run here: general and steady, with rings for long caches."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from pulsify.export.metadata import Spec
from pulsify.export.weights import weight_bytes
from pulsify.optimize.attention import fuse_attention
from pulsify.optimize.ring import Ring, ring_form
from pulsify.optimize.steady import steady_form

TWICE = 64 << 20  # bytes of weights up to which they are held twice; larger models have little to win from it


@dataclass(frozen=True)
class Forms:
    """general: for every pulse. steady: from pulse `since` on, while the end is unknown. Both keep states alike."""

    general: ir.Model
    rings: tuple[Ring, ...] = ()
    steady: ir.Model | None = None
    since: int = 0
    counts: bool = True


def forms(model: ir.Model, spec: Spec) -> Forms:
    general, rings = ring_form(model, spec)
    warm = steady_form(model, spec) if weight_bytes(model) <= TWICE else None
    if warm is None:
        return Forms(general, rings)
    steady, same = ring_form(warm.model, spec, like=rings)
    if same != rings:
        return Forms(general, rings)
    return Forms(general, rings, fuse_attention(steady), warm.since, warm.counts)
