"""Sound as clients write it, and at any rate: the resampler is a small convolution, streamed by pulsify itself.

Of M samples in come L out (48000 to 16000 Hz: 3 and 1). A convolution with stride M and a channel for each of the L
is a bank of one windowed sinc, seen at L places between the samples; its channels side by side are sound again.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.serve.protocol import Refused

if TYPE_CHECKING:
    import onnx

    from pulsify.api import Stream

Array = np.ndarray[Any, Any]
CROSSINGS = 16  # of the sinc, each side: how steep the filter is
ROLL_OFF = 0.945  # of the lower band that is kept whole
LARGEST = 1 << 20  # numbers in a bank of filters
USUAL = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 88200, 96000, 192000)
COPIES = 8  # of a bank, as measured
WIDTH = {"pcm16": 2, "float32": 4, "g711_ulaw": 1, "g711_alaw": 1}


def read(data: bytes | memoryview, form: str) -> Array:
    """Samples from -1 to 1, float32."""
    if len(data) % WIDTH[form]:
        raise Refused("bad_frames", f"{len(data)} bytes are no whole number of {form} samples")
    if form == "float32":
        return np.frombuffer(data, "<f4")
    if form == "pcm16":
        return np.frombuffer(data, "<i2").astype(np.float32) * np.float32(1 / 32768)
    return telephone(form)[np.frombuffer(data, np.uint8)]


@lru_cache
def telephone(form: str) -> Array:
    """What each of the 256 bytes of G.711 stands for, float32: 14 bits (u-law) or 13 (A-law), scaled as 16 are."""
    code = np.arange(256)
    if form == "g711_ulaw":
        code = ~code & 255
        size = (((code & 15) << 3) + 132 << ((code & 112) >> 4)) - 132
        negative = code & 128 != 0
    else:
        code = code ^ 85
        step, chord = ((code & 15) << 4) + 8, (code & 112) >> 4
        size = np.where(chord == 0, step, step + 256 << np.maximum(chord - 1, 0))
        negative = code & 128 == 0
    return (np.where(negative, -size, size) / 32768).astype(np.float32)


def write(samples: Array, form: str) -> bytes:
    """The same the other way; what does not fit into 16 bits is cut off."""
    flat = np.asarray(samples, np.float32).reshape(-1)
    if form == "float32":
        return flat.astype("<f4", copy=False).tobytes()
    return np.clip(np.rint(flat * 32768), -32768, 32767).astype("<i2").tobytes()


def ratio(rate: int, to: int) -> tuple[int, int]:
    """So many samples in are so many out."""
    common = math.gcd(rate, to)
    return rate // common, to // common


def usual(rate: int, to: int) -> bool:
    """Rates that sound cards and telephones have. There are few, so what they take has an end."""
    return rate in USUAL and to in USUAL


def numbers(rate: int, to: int) -> int:
    """In the bank of filters."""
    m, l = ratio(rate, to)
    return l * (m + 2 * _cutoff(rate, to)[1])


def _cutoff(rate: int, to: int) -> tuple[float, int]:
    """The share of its band that a filter keeps, and the samples that it sees on each side."""
    cutoff = ROLL_OFF * min(1.0, to / rate)  # of what the input can hold
    return cutoff, math.ceil(CROSSINGS / cutoff)


def check(rate: int, to: int) -> None:
    """Refused if there is no resampler from one to the other."""
    if numbers(rate, to) > LARGEST:
        raise Refused("unsupported", f"{rate} Hz and {to} Hz have too little in common; send {to} Hz, or 48000")


def filters(rate: int, to: int) -> tuple[Array, int]:
    """The bank, [L, 1, taps], and how many samples before its block a filter begins."""
    check(rate, to)
    m, l = ratio(rate, to)
    cutoff, half = _cutoff(rate, to)
    taps = m + 2 * half
    # output sample i of a block lies at i * M / L, tap j at j - half
    t = np.arange(taps)[None, :] - half - np.arange(l)[:, None] * (m / l)
    window = np.where(np.abs(t) < half, np.cos(np.pi * t / (2 * half)) ** 2, 0.0)
    bank = cutoff * np.sinc(cutoff * t) * window
    return (bank / bank.sum(1, keepdims=True)).astype(np.float32)[:, None, :], half


def resampler(rate: int, to: int) -> onnx.ModelProto:
    """The batch model: sound [B, T] to sound [B, L * ceil(T / M)]; beyond both ends is silence."""
    from onnx import TensorProto, helper, numpy_helper

    bank, half = filters(rate, to)
    m = ratio(rate, to)[0]
    taps = bank.shape[2]
    nodes = [
        helper.make_node("Unsqueeze", ["sound", "one"], ["row"], name="row"),
        helper.make_node("Conv", ["row", "bank"], ["phases"], name="phases", strides=[m], pads=[half, taps - 1 - half]),
        helper.make_node("Transpose", ["phases"], ["blocks"], name="blocks", perm=[0, 2, 1]),
        helper.make_node("Reshape", ["blocks", "flat"], ["resampled"], name="resampled"),
    ]
    weights = {"bank": bank, "one": np.array([1]), "flat": np.array([0, -1])}
    graph = helper.make_graph(
        nodes,
        "resampler",
        [helper.make_tensor_value_info("sound", TensorProto.FLOAT, ["B", "T"])],
        [helper.make_tensor_value_info("resampled", TensorProto.FLOAT, ["B", "U"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name="pulsify")


def memory(rate: int, to: int) -> int:
    """Bytes that its stages take, about: the bank several times over, in the stream, its two steps and the runtime."""
    return (1 << 20) + COPIES * 4 * numbers(rate, to)


def resampling(rate: int, to: int, pulse: int) -> Stream:
    """Its stream. pulse: about so many samples come out at a time."""
    from pulsify.api import stream

    m, l = ratio(rate, to)
    return stream(resampler(rate, to), m * max(1, round(pulse / l)), verify=False)
