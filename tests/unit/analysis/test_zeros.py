"""Zeros at the ends of constants: how many, what stands for zero, and how little is looked at."""

from __future__ import annotations

import numpy as np
import pytest

from pulsify.analysis.zeros import zero_ends


def kernel(*taps: float) -> np.ndarray:
    """[2, 3, K]: every channel another multiple."""
    return np.arange(1, 7).reshape(2, 3, 1) * np.array(taps)


@pytest.mark.parametrize(
    ("taps", "ends"),
    [
        ((1, 2, 3), (0, 0)),
        ((0, 2, 3), (1, 0)),
        ((1, 2, 0), (0, 1)),
        ((0, 0, 1, 0, 2, 0), (2, 1)),  # a zero between others stays
        ((0, 0, 0), (0, 2)),  # one is left, and it reads the earliest frame
        ((0,), (0, 0)),
        ((-0.0, 1), (1, 0)),
    ],
)
def test_taps_at_both_ends(taps: tuple[float, ...], ends: tuple[int, int]) -> None:
    assert zero_ends(kernel(*taps), 2) == ends


def test_a_tap_counts_if_any_channel_has_it() -> None:
    weights = kernel(0, 1, 0)
    weights[1, 2, 2] = 1
    assert zero_ends(weights, 2) == (1, 0)


def test_quantised_weights_have_a_zero_of_their_own() -> None:
    weights = np.array([[[3, 5, 3]], [[7, 1, 7]]], np.uint8)
    assert zero_ends(weights, 2, np.array([3, 7], np.uint8).reshape(2, 1, 1)) == (1, 1)
    assert zero_ends(weights, 2, 3) == (0, 0)


def test_large_weights_are_not_read() -> None:
    """4 TiB of ones: a comparison of a whole tap would need as much memory."""
    assert zero_ends(np.broadcast_to(np.float32(1), (1 << 18, 1 << 18, 16)), 2) == (0, 0)
