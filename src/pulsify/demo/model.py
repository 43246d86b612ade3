"""The built-in enhancer: a small batch model that removes noise from speech at 16 kHz.

    audio ─ spectrum ─ log power ─ convolutions ─ GRU ─ GRU ─ mask ─ x ─ overlap-add ─ clean
               └─────────────────────────────────────────────────────┘

A window of 20 ms makes one frame, every 10 ms; one convolution looks a frame ahead. `examples/enhancer` trains it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

SAMPLE_RATE = 16000
HOP = 160  # samples per frame
ENHANCER = Path(__file__).parent / "enhancer" / "enhancer.onnx"


def enhancer() -> onnx.ModelProto:
    """The batch model: audio [batch, 1, T] to clean [batch, 1, T rounded down to whole frames]."""
    import onnx

    return onnx.load(ENHANCER)
