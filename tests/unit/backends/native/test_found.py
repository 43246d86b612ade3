"""Small graphs that C once computed otherwise than the runtime, or fell over."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.backends.native.both import alike, by_c, reason, same, small
from tests.unit.graphs import run

WILD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -1.5, 1e-30], np.float32)


@pytest.mark.parametrize("mode", ["wrap", "reflect", "edge"])
@pytest.mark.parametrize("pads", [[-1, 2], [3, -2], [-1, -1]])
def test_what_is_cut_and_shown_again(mode: str, pads: list[int]) -> None:
    held = {"p": np.array([0, 0, pads[0], 0, 0, pads[1]])}
    alike(small(f"Pad x p > y mode='{mode}'", {"x": [2, 4, 6]}, held, opset=19))


@pytest.mark.parametrize(
    "text", ["Sign x > y", "Clip x > y", "Clip x l > y", "QuantizeLinear x s z > q; DequantizeLinear q s z > y"]
)
def test_numbers_that_are_none(text: str) -> None:
    held = {"l": np.float32(-2), "s": np.float32(0.5), "z": np.int8(3)}
    made = small(text, {"x": [8]}, {n: np.array(v) for n, v in held.items() if n in text.split()})
    same(by_c(made, {"x": WILD})["y"], run(made, {"x": WILD})["y"])


def test_spectra_cut_short_are_refused() -> None:
    held = {"n": np.array(5), "a": np.array(1)}
    assert "bins" in reason(small("DFT x n a > y inverse=1 onesided=1", {"x": [2, 6, 2]}, held, opset=20))


def test_numbers_beyond_the_sign_s_32_bits_become_unsigned() -> None:
    made = small("Cast x > h to=12; Cast h > y to=1", {"x": [6]}, {})
    x = np.array([2147483648.0, 2158940416.0, 4294967040.0, 3.7, 0.0, -3.0], np.float32)
    same(by_c(made, {"x": x})["y"], run(made, {"x": x})["y"])


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_the_largest_of_negative_bytes(op: str, kind: str) -> None:
    """And the smallest of large ones: what it begins with is an end of the type, not of another."""
    to = {"int8": 3, "uint8": 2}[kind]
    made = small(f"Cast x > h to={to}; {op} h > m axes=[1] keepdims=1; Cast m > y to=1", {"x": [3, 4]}, {}, opset=17)
    for least in (-100, 1) if kind == "int8" else (1, 200):
        x = np.random.default_rng(0).integers(least, least + 50, (3, 4)).astype(np.float32)
        same(by_c(made, {"x": x})["y"], run(made, {"x": x})["y"])
