"""Small graphs that torch once computed otherwise than the runtime, without an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pulsify
from tests.models import model, node, run_batch, weights
from tests.unit.backends.torch.both import alike, reason, small

pytest.importorskip("torch")
I = np.int64
WILD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -1.5, 1e-30], np.float32)


@pytest.mark.parametrize("pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("include", [0, 1])
def test_pads_that_follow_from_sizes_count(pad: str, size: int, include: int) -> None:
    text = f"AveragePool x > y kernel_shape=[3] strides=[2] auto_pad='{pad}' count_include_pad={include}"
    alike(small(text, {"x": [2, 4, size]}))


@pytest.mark.parametrize("pad", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("size", [12, 13])
def test_a_transposed_convolution_cut_to_a_size(pad: str, size: int) -> None:
    text = f"ConvTranspose x w > y strides=[2] auto_pad='{pad}' output_shape=[{size}]"
    alike(small(text, {"x": [2, 4, 6]}, {"w": weights(4, 3, 4)}))


@pytest.mark.parametrize("mode", ["wrap", "reflect", "edge"])
@pytest.mark.parametrize("pads", [[-1, 2], [3, -2], [-1, -1]])
def test_what_is_cut_and_shown_again(mode: str, pads: list[int]) -> None:
    held = {"p": np.array([0, 0, pads[0], 0, 0, pads[1]], I)}
    alike(small(f"Pad x p > y mode='{mode}'", {"x": [2, 4, 6]}, held, opset=19))


def test_spectra_taken_back() -> None:
    alike(small("DFT x n a > y inverse=1", {"x": [2, 8, 1]}, {"n": np.array(8), "a": np.array(1)}, opset=20))
    short = small(
        "DFT x n a > y inverse=1 onesided=1", {"x": [2, 6, 2]}, {"n": np.array(5), "a": np.array(1)}, opset=20
    )
    assert "bins" in reason(short)


@pytest.mark.parametrize(
    "text", ["Sign x > y", "Clip x > y", "Clip x l > y", "QuantizeLinear x s z > q; DequantizeLinear q s z > y"]
)
def test_numbers_that_are_none(text: str) -> None:
    held = {"l": np.float32(-2), "s": np.float32(0.5), "z": np.int8(3)}
    used = {name: np.array(value) for name, value in held.items() if name in text.split()}
    alike(small(text, {"x": [8]}, used), {"x": WILD})


def low(nodes: list[Any], held: dict[str, Any], dtype: str, frames: int) -> tuple[Any, Any]:
    proto = model(nodes, {"x": [1, "T", 6]}, ["y"], held)
    x = weights(1, frames, 6)
    session = pulsify.stream(proto, 8, verify=False).session(backend="torch", device="cpu", dtype=dtype, check=False)
    return np.concatenate([session.push(x), session.flush()], 1), run_batch(proto, x)["y"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", [1, 7])
def test_what_is_counted_in_data_stays_exact(dtype: str, kind: int) -> None:
    """Position ids as people make them: a running sum of a mask, as integers or as floats."""
    nodes = [
        node("Greater", "x low", "shown"), node("Cast", "shown", "ones", to=kind), node("CumSum", "ones one", "count"),
        node("Cast", "count", "place", to=1), node("Sin", "place", "y"),
    ]  # fmt: skip
    got, want = low(nodes, {"low": np.float32(-9), "one": np.array(1)}, dtype, 2100)
    assert np.abs(got - want).max() < 1e-2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("most", [1e9, 3.4028234663852886e38])
@pytest.mark.parametrize(
    "nodes",
    [
        [node("Clip", "x most", "y")],
        [node("Max", "x most", "y")],
        [node("Where", "shown x most", "z"), node("Softmax", "z", "y", axis=-1)],
        [node("Mul", "hidden most", "h"), node("Add", "x h", "z"), node("Softmax", "z", "y", axis=-1)],
        [node("Clip", "x tiny", "z"), node("Log", "z", "y")],
    ],
)
def test_numbers_beyond_a_lower_type_stay_finite(nodes: list[Any], most: float, dtype: str) -> None:
    first = [
        node("Greater", "x edge", "shown"), node("Not", "shown", "other"), node("Cast", "other", "hidden", to=1),
    ]  # fmt: skip
    held = {"most": np.float32(-most), "tiny": np.float32(1e-10), "edge": np.float32(0.5)}
    text = " ".join(" ".join(n.input) for n in nodes)
    used = {k: v for k, v in held.items() if k in text or k == "edge"}
    got, want = low([*(first if "shown" in text or "hidden" in text else []), *nodes], used, dtype, 100)
    assert np.isfinite(want).all() and np.isfinite(got).all()
