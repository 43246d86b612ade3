"""A small batch model to try things on: a speech enhancer in the shape of those in use.

    audio ─ strided conv ─ + positions ─ dilated residual blocks ─ mask ─ x ─ transposed conv ─ clean
                 └──────────────────────────────────────────────────────┘

Sixteen samples make one frame. Most blocks look back only, two look ahead as well. The weights are random but
fixed: what it does to a sound is of no interest, that its stream does exactly the same is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    import onnx

SAMPLE_RATE = 16000
HOP, KERNEL, CHANNELS = 16, 32, 128
# (dilation, frames ahead): a kernel of three taps; what it does not look ahead it looks back
BLOCKS = ((1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (32, 0), (64, 0), (1, 1), (2, 2))


def build() -> onnx.ModelProto:
    """The batch model: audio [batch, 1, T] to clean [batch, 1, T rounded down to whole frames]."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def constant(name: str, array: Any) -> str:
        weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(name: str, *dims: int) -> str:
        fan_in = int(np.prod(dims[1:]))
        return constant(name, (rng.standard_normal(dims) / np.sqrt(fan_in)).astype(np.float32))

    def op(kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    pads = [(KERNEL - HOP) // 2] * 2
    kernel = weight("encoder.weight", CHANNELS, 1, KERNEL)
    x = op("Conv", "encoder/conv", "audio", kernel, strides=[HOP], pads=pads)
    encoded = op("Relu", "encoder/relu", x)

    # The position of every frame, from the length: in batch a Range over all frames, in a stream a counter.
    shape = op("Shape", "position/shape", encoded, start=2, end=3)
    frames = op("Squeeze", "position/frames", shape)
    zero, one = constant("position.zero", np.int64(0)), constant("position.one", np.int64(1))
    index = op("Cast", "position/index", op("Range", "position/range", zero, frames, one), to=TensorProto.FLOAT)
    rates = constant("position.rates", (2 * np.pi / np.geomspace(4, 400, CHANNELS)).astype(np.float32)[None, :, None])
    wave = op("Sin", "position/sin", op("Mul", "position/mul", index, rates))
    scaled = op("Mul", "position/scale", wave, constant("position.scale", np.float32(0.1)))
    x = op("Add", "position/add", encoded, scaled)

    for i, (dilation, ahead) in enumerate(BLOCKS):
        name = f"block{i}"
        y = op("Conv", f"{name}/in", x, weight(f"{name}.in", CHANNELS, CHANNELS, 1))
        y = op("Relu", f"{name}/relu1", y)
        depthwise = weight(f"{name}.depthwise", CHANNELS, 1, 3)
        sides = [2 * dilation - ahead, ahead]
        y = op("Conv", f"{name}/depthwise", y, depthwise, group=CHANNELS, dilations=[dilation], pads=sides)
        y = op("Relu", f"{name}/relu2", y)
        y = op("Conv", f"{name}/out", y, weight(f"{name}.out", CHANNELS, CHANNELS, 1))
        x = op("Add", f"{name}/residual", x, y)

    mask = op("Sigmoid", "mask/sigmoid", op("Conv", "mask/conv", x, weight("mask.weight", CHANNELS, CHANNELS, 1)))
    masked = op("Mul", "mask/mul", encoded, mask)
    op("ConvTranspose", "clean", masked, weight("decoder.weight", CHANNELS, 1, KERNEL), strides=[HOP], pads=pads)

    graph = helper.make_graph(
        nodes,
        "enhancer",
        [helper.make_tensor_value_info("audio", TensorProto.FLOAT, ["batch", 1, "T"])],
        [helper.make_tensor_value_info("clean", TensorProto.FLOAT, ["batch", 1, "T_out"])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name="pulsify")
