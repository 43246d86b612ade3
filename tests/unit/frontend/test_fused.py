"""Fused operators and the plain nodes they stand for compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from pulsify.core.errors import NotStreamable
from pulsify.frontend.fused import stands_for_others
from pulsify.frontend.load import load
from tests.models import Array, close, model, node, run_batch, weights
from tests.unit.build import traced, written

MICROSOFT = helper.make_opsetid("com.microsoft", 1)


def agrees(proto: onnx.ModelProto, inputs: dict[str, Array]) -> list[str]:
    """The parts' operators, once their results have been compared."""
    settled = traced(proto).model
    got, want = run_batch(written(settled), inputs), run_batch(proto, inputs)
    for name, value in want.items():
        close(got[name], value)
    return [n.op for n in settled.nodes]


def microsoft(op: str, inputs: str, **attributes: Any) -> onnx.NodeProto:
    names = ["" if n == "_" else n for n in inputs.split()]
    return helper.make_node(op, names, ["y"], name="y", domain="com.microsoft", **attributes)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [{}, {"scale": 0.3}])
def test_attention_of_many_heads(bias: bool, scale: dict[str, float]) -> None:
    proto = model(
        [microsoft("MultiHeadAttention", "q k v b" if bias else "q k v", num_heads=2, **scale)],
        {key: ["B", "T", 8] for key in "qkv"},
        ["y"],
        {"b": weights(24)} if bias else {},
        imports=[MICROSOFT],
    )
    inputs = {n: weights(2, 5, 8, seed=i) for i, n in enumerate("qkv")}
    assert "MultiHeadAttention" not in agrees(proto, inputs)


def test_attention_with_a_padding_mask_is_refused_by_name() -> None:
    proto = model(
        [microsoft("MultiHeadAttention", "q k v _ mask", num_heads=2)],
        {**{key: ["B", "T", 8] for key in "qkv"}, "mask": ["B"]},
        ["y"],
        dtypes={"mask": np.int32},
        imports=[MICROSOFT],
    )
    with pytest.raises(NotStreamable, match="without past or padding mask") as refused:
        traced(proto)
    assert refused.value.node == "y" and refused.value.op == "MultiHeadAttention"


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding_of_the_runtime(interleaved: int) -> None:
    angles = np.arange(32)[:, None] / 10.0 ** np.arange(2)
    proto = model(
        [microsoft("RotaryEmbedding", "x places cos sin", interleaved=interleaved)],
        {"x": [1, 2, "T", 4], "places": [1, "T"]},
        ["y"],
        {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)},
        dtypes={"places": np.int64},
        imports=[MICROSOFT],
        opset=23,
    )
    ops = agrees(proto, {"x": weights(1, 2, 6, 4), "places": np.arange(6)[None] + 3})
    assert "RotaryEmbedding" not in ops


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [2, 0]},
        {"dilations": [2], "pads": [1, 3]},
        {"group": 2},
    ],
)
def test_a_transposed_convolution_without_a_stride_is_a_convolution_backwards(attributes: dict[str, Any]) -> None:
    groups = attributes.get("group", 1)
    proto = model(
        [node("ConvTranspose", "x w b", "y", kernel_shape=[3], **attributes)],
        {"x": [1, 4, "T"]},
        ["y"],
        {"w": weights(4, 6 // groups, 3), "b": weights(6)},
    )
    ops = agrees(proto, {"x": weights(1, 4, 9, seed=3)})
    assert "Conv" in ops and "ConvTranspose" not in ops


@pytest.mark.parametrize("attributes", [{"strides": [2]}, {"pads": [3, 0]}, {"output_shape": [9]}])
def test_one_that_spreads_frames_stays(attributes: dict[str, Any]) -> None:
    nodes = [node("ConvTranspose", "x w", "y", kernel_shape=[3], **attributes)]
    loaded = load(model(nodes, {"x": [1, 4, "T"]}, ["y"], {"w": weights(4, 6, 3)}))
    assert not stands_for_others(loaded.nodes[0])


def test_a_cast_to_the_type_of_another_reads_its_type_alone() -> None:
    proto = model(
        [node("CastLike", "x like", "y")], {"x": [1, "T"], "like": [2]}, ["y"], dtypes={"like": np.int64, "y": np.int64}
    )
    assert agrees(proto, {"x": np.array([[1.7, -1.7]], np.float32), "like": np.array([1, 2])}) == ["Cast"]


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_a_recurrence_with_the_batch_in_front_is_turned(op: str) -> None:
    """No runtime takes layout 1, so it is held against the same weights with layout 0."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    constants = {"w": weights(1, gates * 3, 2), "r": weights(1, gates * 3, 3, seed=1)}

    def with_layout(layout: int) -> onnx.ModelProto:
        dims = ["B", "T", 2] if layout else ["T", "B", 2]
        return model([node(op, "x w r", "y last", hidden_size=3, layout=layout)], {"x": dims}, ["y", "last"], constants)

    x = weights(2, 5, 2, seed=2)
    settled = traced(with_layout(1)).model
    assert [n.op for n in settled.nodes].count(op) == 1 and not stands_for_others(
        next(n for n in settled.nodes if n.op == op)
    )
    got, want = run_batch(written(settled), x), run_batch(with_layout(0), x.transpose(1, 0, 2))
    close(got["y"], want["y"].transpose(2, 0, 1, 3))
    close(got["last"], want["last"].transpose(1, 0, 2))


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("diagonal", [None, -2, 1])
def test_a_triangle_of_data_is_chosen_by_place(upper: int, diagonal: int | None) -> None:
    given = {} if diagonal is None else {"k": np.array(diagonal)}
    proto = model([node("Trilu", "x k" if given else "x", "y", upper=upper)], {"x": [2, "T", "T"]}, ["y"], given)
    made = agrees(proto, {"x": weights(2, 6, 6)})
    assert "Trilu" not in made and "Where" in made


def test_a_triangle_that_is_known_stays() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("ConstantOfShape", "s", "o"),
        node("Trilu", "o", "t"),
        node("Add", "x t", "y"),
    ]
    settled = traced(model(nodes, {"x": ["T", 5]}, ["y"])).model
    assert "Trilu" in [n.op for n in settled.nodes]
