"""Products, convolutions, pools, norms, reductions, and quantised numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.models import node, weights
from tests.unit.backends.torch.both import alike, reason, small

I = np.int64


@pytest.mark.parametrize(
    "text",
    [
        "ReduceSum x a > y", "ReduceMean x a > y keepdims=0", "ReduceMax x a > y", "ReduceMin x > y",
        "ReduceProd x a > y",
        "ReduceL1 x a > y", "ReduceL2 x a > y", "ReduceSumSquare x a > y", "ReduceLogSumExp x a > y keepdims=0",
        "Abs x > z; ReduceLogSum z a > y", "ReduceSum x e > y noop_with_empty_axes=1", "ReduceSum x > y keepdims=0",
        "Softmax x > y", "Hardmax x > y", "Hardmax x > y axis=1", "Softmax x > y axis=1",
        "LogSoftmax x > y axis=-2", "LpNormalization x > y p=1 axis=1",
        "LayerNormalization x g b > y", "LayerNormalization x g > y epsilon=1e-3",
        "LayerNormalization x h b > y axis=1",
        "BatchNormalization x c c c v > y", "InstanceNormalization x c c > y", "GlobalAveragePool x > y",
        "GlobalMaxPool x > y", "MatMul x w > y", "MatMul w3 x > y",
    ],
)  # fmt: skip
def test_sums_and_norms(text: str) -> None:
    constants = {
        "a": np.array([0, -1], I), "e": np.array([], I), "g": weights(5), "b": weights(5, seed=2), "h": weights(4, 5),
        "c": weights(4), "v": np.abs(weights(4)) + 1, "w": weights(5, 3), "w3": weights(2, 3, 4),
    }  # fmt: skip
    alike(small(text, {"x": [2, 4, 5]}, constants, opset=18), tolerance=3e-6)


def test_what_is_added_to_a_variance_is_a_float32_in_double_too() -> None:
    """1e-5 as a double is another number: seen where the variance is small."""
    x = weights(3, 4).astype(np.float64) * 1e-3
    text = "LayerNormalization x g > y"
    types = {"x": np.float64, "y": np.float64}
    alike(small(text, {"x": [3, 4]}, {"g": np.ones(4)}, opset=18, dtypes=types), {"x": x}, tolerance=1e-11)


def test_sums_of_products() -> None:
    alike(small([node("Einsum", "x x", "y", equation="bct,bdt->bcd")], {"x": [2, 4, 5]}))


@pytest.mark.parametrize("opset", [18, 21])
def test_norms_of_groups(opset: int) -> None:
    size = 2 if opset < 21 else 4
    model = small("GroupNormalization x g g > y num_groups=2", {"x": [2, 4, 5]}, {"g": weights(size)}, opset=opset)
    alike(model)


@pytest.mark.parametrize("opset", [23])
def test_norm_by_power(opset: int) -> None:
    alike(small("RMSNormalization x g > y", {"x": [2, 4, 5]}, {"g": weights(5)}, opset=opset))


@pytest.mark.parametrize(
    "text",
    [
        "Gemm x w c > y",
        "Gemm x w > y transB=1 alpha=0.5",
        "Gemm x w c > y transB=1",
        "Gemm x w r > y transA=1 beta=2.0",
    ],
)
def test_gemm(text: str) -> None:
    alike(small(text, {"x": [4, 4]}, {"w": weights(4, 4), "c": weights(4), "r": weights(4, 1)}))


CONVS = [
    "Conv x w > y", "Conv x w b > y pads=[1,1]", "Conv x w > y pads=[2,0]", "Conv x w b > y strides=[2] dilations=[2]",
    "Conv x g > y group=4", "Conv x w > y auto_pad='SAME_UPPER' strides=[2]", "Conv x w > y auto_pad='SAME_LOWER'",
    "Conv x w > y auto_pad='VALID'", "ConvTranspose x t > y", "ConvTranspose x t b > y strides=[3] pads=[1,0]",
    "ConvTranspose x t > y strides=[2] output_padding=[1]", "ConvTranspose x t > y dilations=[2] pads=[1,1]",
    "ConvTranspose x t > y strides=[2] output_shape=[19]", "ConvTranspose x t > y strides=[2] auto_pad='SAME_UPPER'",
    "ConvTranspose x gt > y group=2", "AveragePool x > y kernel_shape=[3]",
    "MaxPool x > y kernel_shape=[3] strides=[2]",
    "AveragePool x > y kernel_shape=[3] pads=[1,1]",
    "AveragePool x > y kernel_shape=[3] pads=[2,0] count_include_pad=1",
    "AveragePool x > y kernel_shape=[3] strides=[2] ceil_mode=1", "MaxPool x > y kernel_shape=[3] pads=[0,2]",
    "MaxPool x > y kernel_shape=[2] dilations=[3] strides=[2] ceil_mode=1", "LpPool x > y kernel_shape=[3] p=2",
    "MaxPool x > y kernel_shape=[3] auto_pad='SAME_UPPER' strides=[2]",
]  # fmt: skip


@pytest.mark.parametrize("text", CONVS)
def test_along_one_axis(text: str) -> None:
    constants = {
        "w": weights(3, 4, 3),
        "b": weights(3),
        "g": weights(8, 1, 3),
        "t": weights(4, 3, 3),
        "gt": weights(4, 2, 3),
    }
    alike(small(text, {"x": [2, 4, 10]}, constants, opset=18), tolerance=3e-6)


@pytest.mark.parametrize(
    "text",
    [
        "Conv x w b > y pads=[1,2,1,0] strides=[2,1]", "ConvTranspose x t > y strides=[1,2] pads=[0,1,0,1]",
        "AveragePool x > y kernel_shape=[2,3] pads=[1,1,0,1]", "MaxPool x > y kernel_shape=[2,3] pads=[1,1,0,1]",
        "Conv x g > y group=4 dilations=[2,1]",
    ],
)  # fmt: skip
def test_over_two_axes(text: str) -> None:
    constants = {"w": weights(3, 4, 2, 3), "b": weights(3), "g": weights(4, 1, 2, 3), "t": weights(4, 3, 2, 3)}
    alike(small(text, {"x": [1, 4, 6, 7]}, constants), tolerance=3e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("how", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
@pytest.mark.parametrize("scale", [2.0, 1.5, 0.5, 1.1])
def test_resize(mode: str, how: str, scale: float) -> None:
    text = f"Resize x _ s > y mode='{mode}' coordinate_transformation_mode='{how}'"
    for rounding in ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil") if mode == "nearest" else ("floor",):
        scales = np.array([1, 1, scale], np.float32)
        alike(small(f"{text} nearest_mode='{rounding}'", {"x": [1, 2, 8]}, {"s": scales}, opset=18))


def test_resize_to_sizes() -> None:
    alike(small("Resize x _ _ s > y mode='linear'", {"x": [1, 2, 8]}, {"s": np.array([1, 2, 13], I)}, opset=18))


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("by_channel", [False, True])
def test_quantised(kind: type, by_channel: bool) -> None:
    scale = np.array([0.02, 0.05, 0.1], np.float32) if by_channel else np.array(0.03, np.float32)
    zero = np.array([3, 0, 7] if by_channel else 5, kind)
    text = "QuantizeLinear x s z > y axis=1; DequantizeLinear y s z > back axis=1"
    alike(small(text, {"x": [2, 3, 4]}, {"s": scale, "z": zero}, "y back", dtypes={"y": kind}))


def test_products_of_integers() -> None:
    kinds: dict[str, Any] = {"x": np.uint8, "w": np.uint8, "y": np.int32}
    zero = {"a": np.array(3, np.uint8), "b": np.array(1, np.uint8)}
    alike(small("MatMulInteger x w a b > y", {"x": [2, 3], "w": [3, 4]}, zero, dtypes=kinds))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("MaxPool x > y i kernel_shape=[3]", "output 1"),
        ("Resize x _ s > y mode='cubic'", "mode cubic"),
        ("AveragePool x > y kernel_shape=[2] dilations=[2]", "gaps"),
    ],
)
def test_what_is_not_covered_says_why(text: str, why: str) -> None:
    outputs = "y i" if " i " in text else "y"
    dims: list[int | str | None] = [1, 1, 4, 4] if "cubic" in text else [1, 2, 8]
    constants = {"s": np.array([1, 1, 2, 2], np.float32)}
    assert why in reason(small(text, {"x": dims}, constants, outputs, opset=19, dtypes={"i": I}))
