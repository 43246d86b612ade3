"""A table of positions made by one operator each holds what ONNX Runtime makes of it, or the model is refused.

Many of these onnx's own evaluator does not have, or has otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.models import Array, model, node, weights
from tests.side import Batch, streamed
from tests.unit.graphs import parsed

TABLE = weights(1, 4, 60, seed=3)
F32 = np.float32
# operators on the table t [1, 4, 60], giving [1, 4, 60] or what is broadcast to it; with opset and constants
OPERATORS: dict[str, tuple[str, int, dict[str, Array]]] = {
    "GroupNormalization": (
        "GroupNormalization t s b > p num_groups=2", 21, {"s": weights(4, seed=1), "b": weights(4, seed=2)},
    ),
    "Gelu": ("Gelu t > p", 20, {}),
    "Gelu tanh": ("Gelu t > p approximate='tanh'", 20, {}),
    "GlobalLpPool": ("GlobalLpPool t > p p=3", 17, {}),
    "GlobalMaxPool": ("GlobalMaxPool t > p", 17, {}),
    "LpPool": ("LpPool t > p kernel_shape=[1] p=2", 17, {}),
    "CumSum of one axis": ("CumSum t a > p", 17, {"a": np.array([2])}),
    "CumSum backwards": ("CumSum t a > p reverse=1 exclusive=1", 14, {"a": np.array([-1])}),
    "Scatter": ("ScatterElements t i u > p axis=-1", 17, {"i": np.array([[[3, -1]]]), "u": np.ones((1, 1, 2), F32)}),
    "Scatter add": ("ScatterND t i u > p reduction='add'", 18, {"i": np.array([[0, 3]]), "u": weights(1, 60)}),
    "Resize": ("Resize t _ _ n > p mode='linear'", 19, {"n": np.array([1, 4, 60])}),
    "Resize up and cut": (
        "Resize t _ s > r mode='linear'; Slice r i j k > p", 17,
        {"s": np.array([1, 1, 1.5], F32), "i": np.array([5]), "j": np.array([65]), "k": np.array([2])},
    ),
    "LayerNormalization": ("LayerNormalization t s > p axis=-1", 17, {"s": weights(60)}),
    "InstanceNormalization": ("InstanceNormalization t s b > p", 17, {"s": weights(4), "b": weights(4)}),
    "MeanVarianceNormalization": ("MeanVarianceNormalization t > p axes=[1]", 17, {}),
    "LpNormalization": ("LpNormalization t > p axis=-2 p=1", 17, {}),
    "LRN": ("Unsqueeze t z > a; LRN a > b size=3; Squeeze b z > p", 17, {"z": np.array([3])}),
    "Softmax": ("Softmax t > p axis=-2", 17, {}),
    "LogSoftmax": ("LogSoftmax t > p axis=1", 17, {}),
    "Hardmax": ("Hardmax t > p axis=1", 17, {}),
    "TopK": ("TopK t k > p q axis=1", 17, {"k": np.array([4])}),
    "ArgMax": ("ArgMax t > a axis=1 select_last_index=1; Cast a > p to=1", 17, {}),
    "ReduceLogSumExp": ("ReduceLogSumExp t > p axes=[-2]", 17, {}),
    "ReduceL2": ("ReduceL2 t a > p", 18, {"a": np.array([1])}),
    "ReduceProd": ("ReduceProd t > p axes=[1]", 17, {}),
    "Conv": ("Conv t w > p pads=[1,1]", 17, {"w": weights(4, 4, 3)}),
    "ConvTranspose": ("ConvTranspose t w > p pads=[1,1]", 17, {"w": weights(4, 4, 3)}),
    "Softplus": ("Mul t h > a; Softplus a > p", 17, {"h": np.array(60, F32)}),
    "HardSwish": ("HardSwish t > p", 17, {}),
    "Mish": ("Mish t > p", 18, {}),
    "Celu": ("Celu t > p alpha=0.5", 17, {}),
    "Clip of one side": ("Clip t _ m > p", 17, {"m": np.array(0.2, F32)}),
    "EyeLike": ("EyeLike c > f; MatMul f t > p", 17, {"c": np.zeros((4, 4), F32)}),
    "QuantizeLinear": (
        "QuantizeLinear t s z > q axis=1; DequantizeLinear q s z > p axis=1", 17,
        {"s": np.full(4, 0.05, F32), "z": np.array([0, 3, 5, 9], np.uint8)},
    ),
    "DynamicQuantizeLinear": ("DynamicQuantizeLinear t > q s z; DequantizeLinear q s z > p", 13, {}),
    "half precision": ("Cast t > a to=10; Abs a > b; Cast b > p to=1", 17, {"t": np.round(TABLE * 64) / 64}),
    "bfloat16": ("Cast t > a to=16; Cast a > p to=1", 17, {}),
    "Mod of floats": ("Mod t m > p fmod=1", 17, {"m": np.array(0.3, F32)}),
    "DFT": ("DFT d _ > c axis=2; Slice c i j k > f; Squeeze f k > p", 17,
            {"d": weights(1, 4, 60, 1), "i": np.array([0]), "j": np.array([1]), "k": np.array([3])}),
    "Col2Im": ("Col2Im c s k > h; Reshape h w > p", 18,
               {"c": weights(1, 4, 60), "s": np.array([1, 60]), "k": np.array([1, 1]), "w": np.array([1, 4, 60])}),
    "GRU": ("Transpose t > a perm=[2,0,1]; GRU a w r > g _ hidden_size=4; Transpose g > h perm=[2,1,3,0]; "
            "Reshape h s > p", 17,
            {"w": weights(1, 12, 4), "r": weights(1, 12, 4, seed=1), "s": np.array([1, 4, 60])}),
}  # fmt: skip
NUMBERS = {"one": np.array([1]), "zero": np.array([0]), "two": np.array([2])}


def added(text: str, opset: int, constants: dict[str, Array], table: Array = TABLE) -> onnx.ModelProto:
    """x [1, 4, T] plus the first T columns of what the operator makes of the table, or all of it if it has one."""
    nodes = parsed(f"{text}; Shape x > dims start=2; Expand p full > e; Slice e zero dims two > row; Add x row > y")
    if opset < 15:
        nodes = parsed(
            f"{text}; Shape x > d; Gather d two > dims; Expand p full > e; Slice e zero dims two > row; Add x row > y"
        )
    full = {"full": np.array([1, 4, 60])}
    return model(nodes, {"x": [1, 4, "T"]}, ["y"], {"t": table, **NUMBERS, **full, **constants}, opset=opset)


def compare(proto: onnx.ModelProto, options: dict[str, Any] | None = None) -> None:
    stream, batch = pulsify.stream(proto, pulse=2), Batch(proto, optimize=False)
    for length in (1, 2, 7, 12):
        x = weights(1, 4, length, seed=length)
        got = streamed(stream, x, [3] * (length // 3) + [length % 3], **(options or {}))["y"]
        np.testing.assert_allclose(got, batch.run({"x": x})["y"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_table_made_by_it(name: str) -> None:
    compare(added(*OPERATORS[name]))


@pytest.mark.parametrize("opset", [13, 17, 18, 19, 21])
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8", "QUInt16"])
def test_statically_quantised_tables(opset: int, kind: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    source = added("Relu t > p", opset, {})
    source.graph.node.append(node("Conv", "y w", "z", pads=[2, 0]))
    source.graph.initializer.append(onnx.numpy_helper.from_array(weights(4, 4, 3), "w"))
    source.graph.output[0].name = "z"
    onnx.save(source, tmp_path / "source.onnx")

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.left = iter([{"x": weights(1, 4, 30, seed=n)} for n in range(3)])

        def get_next(self) -> Any:
            return next(self.left, None)

    quantization.quantize_static(
        tmp_path / "source.onnx", tmp_path / "quantised.onnx", Reader(),
        quant_format=quantization.QuantFormat.QDQ, activation_type=quantization.QuantType[kind],
        weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    proto = onnx.load(tmp_path / "quantised.onnx")
    stream, batch = pulsify.stream(proto, pulse=2), Batch(proto, optimize=False)
    for length in (1, 2, 7, 12):
        x = weights(1, 4, length, seed=length)
        got = streamed(stream, x, [3] * (length // 3) + [length % 3], fuse_quantised=False)["z"]
        np.testing.assert_array_equal(got, batch.run({"x": x})["z"])


@pytest.mark.parametrize(
    ("text", "constants"),
    [
        ("Add b b > c; Cast c > p to=1", {"b": onnx.numpy_helper.from_array(TABLE)}),
        ("Cast t > b to=16; Sin b > c; Cast c > p to=1", {}),
        ("Cast t > b to=5; Where q b b > c; Cast c > p to=1", {"q": np.array(True)}),
    ],
)
def test_types_without_a_kernel_are_refused_at_once(text: str, constants: dict[str, Any]) -> None:
    if "b" in constants:
        text, constants = f"Cast t > b to=16; {text}", {}
    with pytest.raises(pulsify.PulsifyError, match="the batch model itself does not run: ONNX Runtime") as refused:
        pulsify.stream(added(text, 17, constants), pulse=2)
    assert isinstance(refused.value, pulsify.NotStreamable) and refused.value.node == "c"
