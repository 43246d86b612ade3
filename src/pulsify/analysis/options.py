"""What a person chooses about a conversion, beside the pulse."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Options of `pulsify.stream` that every stage of a conversion shares.

    Attributes:
        unbounded: Attention that looks back to the start: "refuse", "grow", or how many frames to keep.
        proof: What is not certain at every length: "proven" rejects it, "sampled" accepts what a sample shows.
        opening: Whether the first pulses may be a longer call of their own.
        phase: Whether the first pulse may be shorter than the others, where that makes the latency smaller.
    """

    unbounded: str | int = "refuse"
    proof: str = "proven"
    opening: bool = True
    phase: bool = True


DEFAULT = Options()
