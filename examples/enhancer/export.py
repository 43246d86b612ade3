"""Writes the trained enhancer as a batch ONNX model, and a noisy recording to try it on.

python -m examples.enhancer.export weights.pt src/pulsify/demo/enhancer
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from examples.enhancer.model import BINS, FLOOR, HOP, LAYERS, SCALE, SHIFT, WIDTH, Enhancer
from examples.enhancer.noises import fan
from examples.recogniser.speech import RATE, Utterance, speak
from pulsify.asr.wav import write_wav

NOISY = Utterance("open left, start music, go back", "en-us+m5", 150, 45, 100, 4, 1.0)  # a voice never trained on


class Graph:
    """Nodes and weights, written one after the other."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, array: Any) -> str:
        array = array.detach().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def op(self, kind: str, name: str, *inputs: str, outputs: tuple[str, ...] = (), **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), list(outputs) or [name], name=name, **attributes))
        return name

    def conv(self, name: str, x: str, layer: torch.nn.Conv1d, **attributes: Any) -> str:
        weight, bias = self.weight(f"{name}.weight", layer.weight), self.weight(f"{name}.bias", layer.bias)
        return self.op("Conv", name, x, weight, bias, **attributes)

    def gru(self, name: str, x: str, layer: torch.nn.GRU) -> str:
        """x: [frames, B, WIDTH]. ONNX wants its gates in the order update, reset, new; PyTorch has reset first."""

        def gates(array: torch.Tensor) -> torch.Tensor:
            reset, update, new = array.chunk(3)
            return torch.cat([update, reset, new])

        w, r = (self.weight(f"{name}.{n}", gates(getattr(layer, f"weight_{n}_l0"))[None]) for n in ("ih", "hh"))
        bias = torch.cat([gates(layer.bias_ih_l0), gates(layer.bias_hh_l0)])
        b = self.weight(f"{name}.bias", bias[None])
        self.op("GRU", name, x, w, r, b, outputs=(f"{name}/all",), hidden_size=WIDTH, linear_before_reset=1)
        return self.op("Squeeze", f"{name}/out", f"{name}/all", "one")


def onnx_model(model: Enhancer) -> onnx.ModelProto:
    """audio [batch, 1, T] to clean [batch, 1, T rounded down to whole frames]."""
    g = Graph()
    for name, value in (("floor", FLOOR), ("shift", SHIFT), ("scale", SCALE)):
        g.weight(name, np.float32(value))
    g.weight("one", np.array([1]))
    g.weight("halves", np.array([BINS, BINS]))
    basis = g.weight("basis", model.basis)
    spectrum = g.op("Conv", "spectrum", "audio", basis, strides=[HOP], pads=[HOP, HOP])
    g.op("Split", "spectrum/split", spectrum, "halves", outputs=("real", "imaginary"), axis=1)
    squares = [g.op("Mul", f"{part}/square", part, part) for part in ("real", "imaginary")]
    power = g.op("Add", "power/floor", g.op("Add", "power", *squares), "floor")
    x = g.op("Div", "features", g.op("Add", "features/shift", g.op("Log", "features/log", power), "shift"), "scale")
    x = g.op("Relu", "conv/relu", g.conv("conv", x, model.conv))
    near = g.op("Relu", "near/relu", g.conv("near", x, model.near, pads=[1, 1]))
    x = g.op("Transpose", "frames", g.op("Add", "near/residual", x, near), perm=[2, 0, 1])
    for index in range(LAYERS):
        layer = model.gru[index]
        assert isinstance(layer, torch.nn.GRU)
        x = g.op("Add", f"gru{index}/residual", x, g.gru(f"gru{index}", x, layer))
    x = g.op("Transpose", "channels", x, perm=[1, 2, 0])
    mask = g.op("Tanh", "mask/tanh", g.conv("mask", x, model.mask))
    g.op("Split", "mask/split", mask, "halves", outputs=("one_mask", "two_mask"), axis=1)
    products = [
        g.op("Mul", f"{part}_{which}", part, f"{which}_mask")
        for part in ("real", "imaginary")
        for which in ("one", "two")
    ]
    real = g.op("Sub", "masked/real", products[0], products[3])
    imaginary = g.op("Add", "masked/imaginary", products[1], products[2])
    masked = g.op("Concat", "masked", real, imaginary, axis=1)
    g.op("ConvTranspose", "clean", masked, basis, strides=[HOP], pads=[HOP, HOP])
    graph = helper.make_graph(
        g.nodes,
        "enhancer",
        [helper.make_tensor_value_info("audio", TensorProto.FLOAT, ["batch", 1, "T"])],
        [helper.make_tensor_value_info("clean", TensorProto.FLOAT, ["batch", 1, "T_out"])],
        g.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name="pulsify")


def recording(path: Path, snr: float = 5.0) -> None:
    """Speech in a fan's noise."""
    rng = np.random.default_rng(7)
    spoken = np.pad(speak(NOISY) / 32768 * 0.5, (RATE * 6 // 10, RATE * 6 // 10))
    level = np.sqrt(np.mean(np.square(spoken)))
    noisy = spoken + fan(rng, len(spoken)) * level * 10 ** (-snr / 20)
    write_wav(path, np.clip(np.rint(noisy * 32768), -32768, 32767).astype(np.int16), RATE)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path, metavar="DIR")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    model = Enhancer()
    model.load_state_dict(torch.load(args.weights, map_location="cpu"))
    proto = onnx_model(model)
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, args.out / "enhancer.onnx")
    recording(args.out / "noisy.wav")


if __name__ == "__main__":
    main()
