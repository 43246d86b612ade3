"""Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.backends.torch.both import alike, small


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", [True, False])
def test_stft(onesided: int, window: bool) -> None:
    constants: dict[str, Any] = {"hop": np.array(4), "n": np.array(16), "w": np.hanning(16).astype(np.float32)}
    text = f"STFT x hop {'w' if window else '_'} n > y onesided={onesided}"
    alike(small(text, {"x": [2, 60, 1]}, constants), tolerance=5e-6)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("text", ["onesided=1", "inverse=0", "inverse=1"])
@pytest.mark.parametrize("last", [1, 2])
def test_dft(opset: int, text: str, last: int) -> None:
    if (last == 2) == (text == "onesided=1"):
        pytest.skip("half of a spectrum is of real numbers")
    where = "_ a" if opset >= 20 else "_"
    more = "" if opset >= 20 else "axis=1"
    constants: dict[str, Any] = {"a": np.array(1)}
    alike(small(f"DFT x {where} > y {text} {more}", {"x": [2, 10, 3, last]}, constants, opset=opset), tolerance=5e-6)


def test_dft_of_another_length() -> None:
    alike(small("DFT x n > y axis=1", {"x": [2, 10, 1]}, {"n": np.array(16)}), tolerance=5e-6)
