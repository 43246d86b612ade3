"""Which elements a Pad shows that repeats what it pads, as ONNX Runtime has it."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from pulsify.backends.seam import Array


def shown(size: int, before: int, after: int, mode: str) -> Array:
    """Places of `edge`, `reflect` or `wrap`; negative amounts cut. What is cut is mirrored all the same, not wrapped.

    size 4, before 2, after -1      reflect   2 1 0 1 2       wrap   1 2 0 1 2
    """
    kept, more = np.arange(size), (max(before, 0), max(after, 0))
    low, high = max(-before, 0), max(-after, 0)
    if mode == "wrap":
        return np.pad(kept[low : size - high], more, mode="wrap")
    places = np.pad(kept, more, mode=cast(Any, mode))
    return places[low : len(places) - high]
