"""What is served in the benchmark: a denoiser, the built-in recogniser, and something the size of a VAD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import pulsify
from benchmarks.cases import prepare
from pulsify.serve.sources import BUILT_IN, Served, of_recogniser, of_stream


@dataclass(frozen=True)
class Bench:
    """A model, and how clients send to it: a message every so many seconds. path: one that is made of it."""

    name: str
    what: str
    pulse_seconds: float
    make: Callable[[], Served]
    opening: str = '{"type": "open"}'

    def served(self) -> Served:
        return self.make()

    @property
    def served_pulse_seconds(self) -> float:
        """Of the first stage."""
        lasts = self.make().pulses_seconds
        assert lasts is not None
        return lasts[0]


@lru_cache(1)
def denoiser() -> Served:
    path = prepare(["gtcrn_many"])["gtcrn_many"]
    return of_stream("denoiser", pulsify.stream(path, 1, verify=False), 62.5)


@lru_cache(1)
def recogniser() -> Served:
    from pulsify.asr.recogniser import Recogniser

    return of_recogniser("recogniser", Recogniser.open(BUILT_IN, verify=False))


@lru_cache(1)
def vad() -> Served:
    """A filter bank, two strided convolutions and a GRU: a probability every 32 ms, 100,000 weights."""
    rng = np.random.default_rng(0)

    def weight(*dims: int) -> Any:
        return (rng.standard_normal(dims) / np.sqrt(np.prod(dims[1:]))).astype(np.float32)

    held = {
        "bank": weight(64, 1, 256), "c1": weight(64, 64, 3), "c2": weight(64, 64, 3), "w": weight(1, 192, 64),
        "r": weight(1, 192, 64), "out": weight(64, 1), "one": np.array([1]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Unsqueeze", ["sound", "one"], ["row"]),
        helper.make_node("Conv", ["row", "bank"], ["f0"], strides=[128], pads=[128, 0]),
        helper.make_node("Relu", ["f0"], ["f1"]),
        helper.make_node("Conv", ["f1", "c1"], ["f2"], strides=[2], pads=[1, 0]),
        helper.make_node("Relu", ["f2"], ["f3"]),
        helper.make_node("Conv", ["f3", "c2"], ["f4"], strides=[2], pads=[1, 0]),
        helper.make_node("Relu", ["f4"], ["f5"]),
        helper.make_node("Transpose", ["f5"], ["f6"], perm=[2, 0, 1]),
        helper.make_node("GRU", ["f6", "w", "r"], ["g"], hidden_size=64),
        helper.make_node("Squeeze", ["g", "one"], ["h"]),
        helper.make_node("MatMul", ["h", "out"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["p"]),
        helper.make_node("Transpose", ["p"], ["speech"], perm=[1, 0, 2]),
    ]
    for node in nodes:
        node.name = node.output[0]
    graph = helper.make_graph(
        nodes,
        "vad",
        [helper.make_tensor_value_info("sound", onnx.TensorProto.FLOAT, ["B", "T"])],
        [helper.make_tensor_value_info("speech", onnx.TensorProto.FLOAT, ["B", "U", 1])],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return of_stream("vad", pulsify.stream(model, 512, verify=False), 16000)


MODELS = {
    b.name: b
    for b in (
        Bench("vad", "the size of a VAD, 16 kHz", 0.032, vad),
        Bench("denoiser", "denoiser of GTCRN's shape, a spectrum every 16 ms", 0.016, denoiser),
        Bench("recogniser", "built-in FastConformer, 16 kHz, 80 ms a message", 0.08, recogniser,
              '{"type": "open", "format": "pcm16"}'),
    )
}  # fmt: skip
