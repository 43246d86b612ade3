"""Frames as time."""

from __future__ import annotations

from fractions import Fraction

from pulsify.core.spec import Spec


def milliseconds(spec: Spec, units: Fraction, sample_rate: float | None) -> float | None:
    """How long so many units of the stream's length last. The sample rate counts frames of the first input."""
    return None if not sample_rate else float(units * spec.inputs[0].rate * 1000) / sample_rate
