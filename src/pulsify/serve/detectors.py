"""Is somebody speaking? A model from sound to a probability a frame, streamed like any other.

The one that is built in listens to how far the sound of a few bands is above what it was at the quietest in the last
seconds. Silero's model, if its package is installed, knows speech from other sounds.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.core.errors import InvalidArgument, InvalidModel
from pulsify.serve.sources import Given, Meaning, ModelSource, Served, of_stream, open_source, parse_source

if TYPE_CHECKING:
    import onnx

NAME = "turn-detector"
AUTO, ENERGY, SILERO = "auto", "energy", "silero"
RATE, FRAME = 8000, 160  # of the one that is built in: frames of 20 ms
EDGES = (150, 400, 800, 1500, 2500, 3800)  # Hz: bands between them
TAPS, HOP = 128, 8
QUIETEST = 150  # frames of which the quietest is the noise
AT_START = 1e-4  # the power in a band that counts as noise until something quieter was heard
FLOOR = 1e-8  # power that counts as silence
ABOVE, SLOPE = 9.0, 1.5  # decibels above the noise at which speech is as likely as not, and for how many it is not sure
SILERO_RATE, SILERO_FRAME, SILERO_CONTEXT = 16000, 512, 64


def detector_source(which: str = ENERGY) -> ModelSource:
    """auto, energy, silero, or a model: PATH@RATE, one channel of sound to one number from 0 to 1 a frame."""
    if which == AUTO:
        which = SILERO if silero_file() is not None else ENERGY
    if which == ENERGY:
        return ModelSource(NAME, _energy)
    if which == SILERO:
        path = silero_file()
        if path is None:
            raise InvalidArgument("--detector silero: its package is not installed: pip install silero-vad")
        return ModelSource(NAME, partial(_silero, path))
    return ModelSource(NAME, partial(_own, parse_source(which)))


def silero_file() -> Path | None:
    """The sequence model in Silero's package, which is not imported: it would import torch."""
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "data" / "silero_vad_16k_sequence.onnx"
    return path if path.is_file() else None


def frame_samples(served: Served) -> int:
    """How many of the detector's samples a frame stands for."""
    return int(1 / served.streams[0].outputs[0].rate)


def _checked(served: Served) -> Served:
    outputs = served.streams[0].outputs
    size = [d for axis, d in enumerate(outputs[0].dims) if axis != outputs[0].axis and isinstance(d, int)]
    if not served.hears or len(outputs) != 1 or outputs[0].axis is None or any(d != 1 for d in size):
        raise InvalidModel(f"{NAME}: expected one channel of sound at a known rate to one number a frame")
    if (1 / outputs[0].rate).denominator != 1 or outputs[0].dtype != np.float32:
        raise InvalidModel(f"{NAME}: expected frames of whole samples, and float32")
    return served


def _own(given: Given) -> Served:
    if Path(given.path).name == "silero_vad_16k_sequence.onnx":
        return _silero(Path(given.path))
    return _checked(open_source(Given(given.path, NAME, given.rate), Meaning(options={"opening": False}), None))


def _energy() -> Served:
    from pulsify.api import stream

    return _checked(of_stream(NAME, stream(energy_model(), FRAME, opening=False, verify=False), RATE))


def _silero(path: Path) -> Served:
    from pulsify.api import stream

    return _checked(of_stream(NAME, stream(silero_model(path), SILERO_FRAME, opening=False, verify=False), SILERO_RATE))


def bands() -> np.ndarray[Any, Any]:
    """Filters that pass what is between two edges, [bands, 1, taps]."""
    t = np.arange(TAPS) - (TAPS - 1) / 2
    low = [2 * f / RATE * np.sinc(2 * f / RATE * t) for f in EDGES]
    return ((np.diff(low, axis=0)) * np.hanning(TAPS)).astype(np.float32)[:, None, :]


def energy_model() -> onnx.ModelProto:
    """The batch model: sound [B, T] at 8000 Hz to probability [B, T / 160]. It looks back only."""
    from onnx import TensorProto, helper, numpy_helper

    weights: dict[str, Any] = {
        "bands": bands(), "one": np.array([1]), "floor": np.float32(FLOOR),
        "noise": np.array(-10 * np.log10(AT_START), np.float32), "tens": np.float32(10 / np.log(10)),
        "above": np.float32(ABOVE), "slope": np.float32(1 / SLOPE), "least": np.float32(0), "most": np.float32(30),
        "before": np.array([0, 0, QUIETEST - 1, 0, 0, 0]),
    }  # fmt: skip
    lines = f"""
        row = Unsqueeze (sound, one)
        filtered = Conv <strides = [{HOP}], pads = [{TAPS - HOP}, 0]> (row, bands)
        squared = Mul (filtered, filtered)
        power = AveragePool <kernel_shape = [{FRAME // HOP}], strides = [{FRAME // HOP}]> (squared)
        audible = Add (power, floor)
        natural = Log (audible)
        level = Mul (natural, tens)
        smooth = AveragePool <kernel_shape = [5], pads = [4, 0]> (level)
        quiet = Neg (smooth)
        begun = Pad (quiet, before, noise)
        quietest = MaxPool <kernel_shape = [{QUIETEST}]> (begun)
        over = Add (level, quietest)
        heard = Clip (over, least, most)
        near = AveragePool <kernel_shape = [3], pads = [2, 0]> (heard)
        mean = ReduceMean <axes = [1], keepdims = 0> (near)
        more = Sub (mean, above)
        scaled = Mul (more, slope)
        probability = Sigmoid (scaled)
    """
    from onnx import parser

    graph = parser.parse_graph(f"detector (float[B, T] sound) => (float[B, U] probability) {{ {lines} }}")
    del graph.output[:], graph.input[:]
    graph.input.append(helper.make_tensor_value_info("sound", TensorProto.FLOAT, ["B", "T"]))
    graph.output.append(helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["B", "U"]))
    graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name="pulsify")


def silero_model(path: Path) -> onnx.ModelProto:
    """Silero's model of frames [T, 576] as one of sound [B, S] at 16000 Hz to probability [B, S / 512]."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    proto = onnx.load(path)
    graph = proto.graph
    names = [each.name for each in graph.input]
    if names != ["input", "h", "c"] or sum(node.op_type == "LSTM" for node in graph.node) != 1:
        raise InvalidModel(f"{path.name}: not Silero's sequence model; it has the inputs {names}")
    lstm = next(node for node in graph.node if node.op_type == "LSTM")
    encoded, output = lstm.input[0], lstm.output[0]
    at = list(graph.node).index(lstm)
    kept = list(graph.node)[:at]
    after = {node.op_type: node for node in list(graph.node)[at:]}
    weights: dict[str, Any] = {
        "p.frames": np.array([0, -1, SILERO_FRAME]), "p.before": np.array([0, 1, 0, 0, 0, 0]),
        "p.tail": np.array([SILERO_FRAME - SILERO_CONTEXT]), "p.end": np.array([SILERO_FRAME]), "p.axis": np.array([2]),
        "p.flat": np.array([-1, SILERO_CONTEXT + SILERO_FRAME]), "p.last": np.array([-1]), "p.one": np.array([1]),
        "p.first": np.array([0]),
    }  # fmt: skip
    node = helper.make_node
    front = [
        node("Reshape", ["sound", "p.frames"], ["p.cut"]),
        node("Slice", ["p.cut", "p.tail", "p.end", "p.axis"], ["p.tails"]),
        node("Pad", ["p.tails", "p.before"], ["p.later"]),
        node("Slice", ["p.later", "p.first", "p.last", "p.one"], ["p.context"]),
        node("Concat", ["p.context", "p.cut"], ["p.both"], axis=2),
        node("Reshape", ["p.both", "p.flat"], ["input"]),
    ]
    shape = [node("Shape", ["p.cut"], ["p.shape"], start=0, end=2)]
    shape.append(node("Concat", ["p.shape", "p.size"], ["p.batched"], axis=0))
    weights["p.size"] = np.array([128])
    back = [
        node("Reshape", [encoded, "p.batched"], ["p.encoded"]),
        node("Transpose", ["p.encoded"], ["p.in"], perm=[1, 0, 2]),
        node("LSTM", ["p.in", *lstm.input[1:4]], [output], hidden_size=128),
        node("Squeeze", [output, "p.one"], ["p.out"]),
        node("Relu", ["p.out"], ["p.relu"]),
        node("Transpose", ["p.relu"], ["p.rows"], perm=[1, 2, 0]),
        node("Conv", ["p.rows", *after["Conv"].input[1:]], ["p.score"]),
        node("Sigmoid", ["p.score"], ["p.likely"]),
        node("Squeeze", ["p.likely", "p.one"], ["probability"]),
    ]
    made = helper.make_graph(
        [*front, *shape, *kept, *back],
        "silero",
        [helper.make_tensor_value_info("sound", TensorProto.FLOAT, ["B", "T"])],
        [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["B", "U"])],
        [*graph.initializer, *(numpy_helper.from_array(array, name) for name, array in weights.items())],
    )
    return helper.make_model(made, opset_imports=list(proto.opset_import), ir_version=9, producer_name="pulsify")
