"""Inputs of every kind that `depthwise` takes, each from a seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pulsify.kernels.registry import Case


def inputs(
    batch: int = 2, channels: int = 24, frames: int = 15, taps: int = 9, biased: bool = True, rows: bool = True,
    **options: int,
) -> dict[str, Any]:  # fmt: skip
    """rows: channels lie side by side."""
    rng = np.random.default_rng(7)
    x = (
        rng.standard_normal((batch, frames, channels)).swapaxes(1, 2)
        if rows
        else rng.standard_normal((batch, channels, frames))
    )
    made: dict[str, Any] = {"x": x, "weights": rng.standard_normal((channels, taps)), **options}
    return made | ({"bias": rng.standard_normal(channels)} if biased else {})


def poisoned(number: float) -> dict[str, Any]:
    made = inputs()
    made["x"][1, 3, 4] = number
    return made


CASES = (
    Case("rows", "channels side by side", inputs),
    Case("columns", "any order in memory", lambda: inputs(rows=False)),
    Case("plain", "without a bias", lambda: inputs(biased=False)),
    Case("one-tap", "a product by channel", lambda: inputs(taps=1)),
    Case("one-window", "as many frames as taps", lambda: inputs(frames=9)),
    Case("strided", "every third window", lambda: inputs(frames=40, stride=3)),
    Case("dilated", "taps apart", lambda: inputs(frames=40, dilation=4)),
    Case("both", "strided and dilated", lambda: inputs(frames=53, stride=2, dilation=5, taps=4)),
    Case("odd", "sizes that are no power of two", lambda: inputs(3, 37, 23, 5)),
    Case("one", "one stream, one channel", lambda: inputs(1, 1, 12, 3)),
    Case("flagship", "1,024 channels, 8 + 14 frames", lambda: inputs(2, 1024, 22, 9, biased=False)),
    Case("long", "many taps", lambda: inputs(1, 16, 70, 31)),
    Case("nan", "NaN reaches the windows that hold it, in its channel", lambda: poisoned(math.nan)),
    Case("inf", "and so do infinities", lambda: poisoned(math.inf)),
)
