"""Parts of signal processing, written as ONNX nodes: frames, spectra, overlap-add, rates.

    b = Sound("B", "T", opset=17)
    y = spectrum(b, "x", frame=16, hop=4)
    built = b.finish(y=(y, 4))

Signals are [B, T], frames [B, F, N] and spectra [B, F, K, 2] unless said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tests.attention.build import Array, Builder

FRAMINGS = ("gather", "gather_count", "slices", "blocks", "eye")
OVERLAPS = ("transpose", "col2im", "scatter_nd", "scatter_elements", "shifted")
WINDOWS = {"hann": (0.5, 0.5, 0.0), "hamming": (25 / 46, 21 / 46, 0.0), "blackman": (0.42, 0.5, 0.08)}
PADS = ("reflect", "constant", "edge")
Out = tuple[str, int]


@dataclass(frozen=True)
class Signal:
    """A model with one input `x`.

    reach: how many of its frames one result looks at; it sets the lengths tried, from `least` to `longest`.
    """

    model: onnx.ModelProto
    dims: tuple[int | str, ...]
    dtype: Any = np.float32
    reach: int = 16
    tolerance: float = 5e-6  # of the output's scale
    least: int = 1  # shorter, the model's indices turn negative and it computes something else
    longest: int = 1 << 20

    @property
    def streamed(self) -> Mapping[str, int]:
        return {"x": self.dims.index("T")}

    def feeds(self, length: int) -> dict[str, Array]:
        rng = np.random.default_rng(length)
        dims = [length if d == "T" else 2 if isinstance(d, str) else d for d in self.dims]
        if np.dtype(self.dtype).kind in "iu":
            limits = np.iinfo(self.dtype)
            return {"x": rng.integers(limits.min, limits.max, dims, self.dtype, endpoint=True)}
        return {"x": rng.standard_normal(dims).astype(self.dtype)}


class Sound(Builder):
    """A model of one input: `dims` with "T" for time, and perhaps "B" for the batch; it computes in `inner`."""

    def __init__(self, *dims: int | str, dtype: Any = np.float32, inner: Any = np.float32, opset: int = 18) -> None:
        super().__init__()
        self.dims, self.dtype, self.inner, self.opset = dims, dtype, inner, opset

    def finish(self, dtype: Any = np.float32, expect: Mapping[str, Any] | None = None, **outputs: Out) -> Signal:
        """Outputs by name: what they are and their rank. `expect`: fields of the Signal."""
        for name, (value, _) in outputs.items():
            self.op("Identity", value, called=name)
        ports = {n: (rank, dtype) for n, (_, rank) in outputs.items()}
        model = self.model({"x": (self.dims, self.dtype)}, ports, self.opset)
        return Signal(model, self.dims, self.dtype, **(expect or {}))

    def like(self, value: Any) -> str:
        """A constant of the type that is computed in."""
        return self.const(value, self.inner)

    def cut(self, x: str, axis: int, start: int, end: int | str = 2**31, step: int = 1) -> str:
        """x[start:end:step]; the end may be an int64 scalar of the graph."""
        return self.slice(x, axis, self.ints(start), self.vector(end) if isinstance(end, str) else self.ints(end), step)

    def padded(self, x: str, rank: int, axis: int, before: int, after: int, mode: str = "constant") -> str:
        amounts = [0] * (2 * rank)
        amounts[axis], amounts[rank + axis] = before, after
        return self.op("Pad", x, self.ints(*amounts), mode=mode)

    def squeeze(self, x: str, *axes: int) -> str:
        return self.op("Squeeze", x, self.ints(*axes))

    def total(self, x: str, axis: int, keep: bool = False) -> str:
        return self.op("ReduceSum", x, self.ints(axis), keepdims=int(keep))


# ---- tables


def window(size: int, kind: str = "hann") -> Array:
    """Periodic."""
    a, b, c = WINDOWS[kind]
    angle = 2 * np.pi * np.arange(size) / size
    return a - b * np.cos(angle) + c * np.cos(2 * angle)


def basis(size: int, shape: Array) -> Array:
    """[size, 2 * bins]: real parts, then imaginary parts, of a windowed transform."""
    angle = 2 * np.pi * np.outer(np.arange(size), np.arange(size // 2 + 1)) / size
    return np.concatenate([np.cos(angle), -np.sin(angle)], 1) * shape[:, None]


def inverse_basis(size: int, shape: Array) -> Array:
    """[2 * bins, size]: back from there."""
    bins = size // 2 + 1
    count = np.where((np.arange(bins) == 0) | (np.arange(bins) * 2 == size), 1, 2)
    angle = 2 * np.pi * np.outer(np.arange(bins), np.arange(size)) / size
    return np.concatenate([np.cos(angle), -np.sin(angle)]) * np.tile(count, 2)[:, None] / size * shape


def mel_filters(bins: int, bands: int) -> Array:
    """Triangles [bins, bands], evenly spaced; enough for arithmetic."""
    centres = np.linspace(0, bins - 1, bands + 2)
    up = (np.arange(bins)[:, None] - centres[:-2]) / np.diff(centres)[:-1]
    down = (centres[2:] - np.arange(bins)[:, None]) / np.diff(centres)[1:]
    return np.maximum(0, np.minimum(up, down))


def sinc_kernel(orig: int, new: int, width: int) -> tuple[Array, int]:
    """torchaudio's: [new, 1, 2 * reach + orig] and the reach."""
    base = min(orig, new) * 0.99
    reach = math.ceil(width * orig / base)
    places = np.arange(-reach, reach + orig)[None] / orig
    t = np.clip((np.arange(0, -new, -1)[:, None] / new + places) * base, -width, width)
    shape = np.cos(t * np.pi / width / 2) ** 2
    return (np.sinc(t) * shape * base / orig)[:, None], reach


# ---- analysis


def centred(b: Sound, x: str, frame: int, mode: str) -> str:
    """[B, T] with half a frame more on both sides."""
    return b.padded(x, 2, 1, frame // 2, frame // 2, mode)


def frame_count(b: Sound, x: str, frame: int, hop: int) -> str:
    return b.op("Add", b.op("Div", b.op("Sub", b.size(x, 1), b.scalar(frame)), b.scalar(hop)), b.scalar(1))


def framed(b: Sound, x: str, frame: int, hop: int, how: str = "gather") -> str:
    """[B, T] -> [B, F, frame]."""
    taps = b.ints(*range(frame))
    if how == "gather":  # torch's unfold
        limit = b.op("Sub", b.size(x, 1), b.scalar(frame - 1))
        starts = b.op("Range", b.scalar(0), limit, b.scalar(hop))
        return b.op("Gather", x, b.op("Add", b.unsqueeze(starts, 1), taps), axis=1)
    count = frame_count(b, x, frame, hop)
    if how == "gather_count":
        starts = b.op("Mul", b.range(count), b.scalar(hop))
        return b.op("Gather", x, b.op("Add", b.unsqueeze(starts, 1), taps), axis=1)
    if how == "slices":  # all first samples, all second samples, ...
        size = b.size(x, 1)
        ends = [b.op("Sub", size, b.scalar(frame - 1 - k)) for k in range(frame)]
        parts = [b.unsqueeze(b.cut(x, 1, k, ends[k], hop), 2) for k in range(frame)]
        return b.op("Concat", *parts, axis=2)
    if how == "blocks":  # hops side by side
        assert frame % hop == 0
        whole = b.op("Mul", b.op("Div", b.size(x, 1), b.scalar(hop)), b.scalar(hop))
        hops = b.reshape(b.cut(x, 1, 0, whole), 0, -1, hop)
        ends = [b.op("Add", count, b.scalar(k)) for k in range(frame // hop)]
        return b.op("Concat", *(b.cut(hops, 1, k, e) for k, e in enumerate(ends)), axis=2)
    if how == "eye":
        kernel = b.like(np.eye(frame)[:, None])
        return b.transpose(b.op("Conv", b.unsqueeze(x, 1), kernel, strides=[hop]), 0, 2, 1)
    assert how == "reshape" and frame == hop
    return b.reshape(b.cut(x, 1, 0, b.op("Mul", count, b.scalar(hop))), 0, -1, frame)


def transformed(b: Sound, x: str, size: str = "", **attributes: Any) -> str:
    """DFT over the last axis but one of [B, F, N, 1 or 2]."""
    if b.opset >= 20:
        return b.op("DFT", x, size, b.scalar(2), **attributes)
    return b.op("DFT", x, *([size] if size else []), axis=2, **attributes)


def spectrum(b: Sound, x: str, frame: int, hop: int, shape: Array | None = None, how: str = "stft") -> str:
    """[B, T] -> [B, F, K, 2], by operator, by frames and DFT, by frames and a product, or by convolution."""
    shape = window(frame) if shape is None else shape
    if how == "stft":
        signal = b.unsqueeze(x, 2)
        return b.op("STFT", signal, b.scalar(hop), b.like(shape), b.scalar(frame), onesided=1)
    if how == "conv":
        kernel = b.like(basis(frame, shape).T[:, None])
        parts = b.transpose(b.op("Conv", b.unsqueeze(x, 1), kernel, strides=[hop]), 0, 2, 1)
        return b.transpose(b.reshape(parts, 0, 0, 2, frame // 2 + 1), 0, 1, 3, 2)
    kind, _, framing = how.partition(" ")
    frames = framed(b, x, frame, hop, framing)
    if kind == "matmul":
        parts = b.op("MatMul", frames, b.like(basis(frame, shape)))
        return b.transpose(b.reshape(parts, 0, 0, 2, frame // 2 + 1), 0, 1, 3, 2)
    assert kind == "dft"
    return transformed(b, b.unsqueeze(b.op("Mul", frames, b.like(shape)), 3), onesided=1)


def power(b: Sound, spectra: str) -> str:
    """[B, F, K, 2] -> [B, F, K]."""
    return b.total(b.op("Mul", spectra, spectra), 3)


def log_mel(b: Sound, spectra: str, bins: int, bands: int, floor: float = 1e-6) -> str:
    bands_ = b.op("MatMul", power(b, spectra), b.like(mel_filters(bins, bands)), called="mel")
    return b.op("Log", b.op("Add", bands_, b.like(floor)), called="log_mel")


# ---- synthesis


def overlapped_size(b: Sound, count: str, frame: int, hop: int) -> str:
    return b.op("Add", b.op("Mul", b.op("Sub", count, b.scalar(1)), b.scalar(hop)), b.scalar(frame))


def overlap_added(b: Sound, frames: str, frame: int, hop: int, how: str = "transpose") -> str:
    """[B, F, frame] -> [B, (F - 1) * hop + frame]. Scattering is for a batch of one."""
    if how == "transpose":
        turned = b.transpose(frames, 0, 2, 1)
        return b.squeeze(b.op("ConvTranspose", turned, b.like(np.eye(frame)[:, None]), strides=[hop]), 1)
    if how == "shifted":  # hops, each where it belongs
        parts, most = b.reshape(frames, 0, 0, frame // hop, hop), frame // hop - 1
        assert frame % hop == 0
        hops = (b.op("Gather", parts, b.scalar(k), axis=2) for k in range(most + 1))
        placed = [b.padded(h, 3, 1, k, most - k) for k, h in enumerate(hops)]
        return b.reshape(placed[0] if len(placed) == 1 else b.op("Sum", *placed), 0, -1)
    count = b.size(frames, 1)
    size = overlapped_size(b, count, frame, hop)
    if how == "col2im":  # torch's fold
        turned = b.transpose(frames, 0, 2, 1)
        image = b.op("Col2Im", turned, b.shape(1, size), b.ints(1, frame), strides=[1, hop])
        return b.squeeze(image, 1, 2)
    starts = b.unsqueeze(b.op("Mul", b.range(count), b.scalar(hop)), 1)
    places = b.op("Add", starts, b.ints(*range(frame)))
    zero = onnx.numpy_helper.from_array(np.zeros(1, np.float32))
    if how == "scatter_nd":  # torch's index_put and unfold_backward
        silence = b.op("ConstantOfShape", b.shape(size, 1), value=zero)
        made = b.op("ScatterND", silence, b.reshape(places, -1, 1), b.reshape(frames, -1, 1), reduction="add")
        return b.transpose(made, 1, 0)
    assert how == "scatter_elements"
    silence = b.op("ConstantOfShape", b.shape(1, size), value=zero)
    index, values = b.reshape(places, 1, -1), b.reshape(frames, 1, -1)
    return b.op("ScatterElements", silence, index, values, axis=1, reduction="add")


def envelope(b: Sound, frames: str, shape: Array, hop: int, how: str = "transpose") -> str:
    """The sum of all squared windows, as long as the overlap-added frames."""
    squares = b.op("Expand", b.like(shape**2), b.op("Shape", frames))
    return overlap_added(b, squares, len(shape), hop, how)


def real_frames(b: Sound, spectra: str, frame: int, how: str = "idft") -> str:
    """[B, F, frame // 2 + 1, 2] -> [B, F, frame]."""
    if how == "matmul":
        parts = b.reshape(b.transpose(spectra, 0, 1, 3, 2), 0, 0, frame + 2)
        return b.op("MatMul", parts, b.like(inverse_basis(frame, np.ones(frame))))
    if b.opset >= 20:
        full = transformed(b, spectra, b.scalar(frame), inverse=1, onesided=1)
    else:  # the other half is the conjugate
        mirrored = b.op("Gather", spectra, b.ints(*range((frame - 1) // 2, 0, -1)), axis=2)
        both = b.op("Concat", spectra, b.op("Mul", mirrored, b.like([1, -1])), axis=2)
        full = transformed(b, both, inverse=1)
    return b.op("Gather", full, b.scalar(0), axis=3)


def synthesised(
    b: Sound, spectra: str, shape: Array, hop: int, how: str = "transpose", inverse: str = "idft", guard: bool = False
) -> str:
    """Spectra back to sound: window, overlap-add, divided by the envelope. Not trimmed."""
    frames = b.op("Mul", real_frames(b, spectra, len(shape), inverse), b.like(shape))
    sound = overlap_added(b, frames, len(shape), hop, how)
    weight = envelope(b, frames, shape, hop, how)
    if not guard:
        return b.op("Div", sound, b.op("Max", weight, b.like(1e-3)))
    enough = b.op("Greater", weight, b.like(1e-3))
    return b.op("Where", enough, b.op("Div", sound, b.op("Where", enough, weight, b.like(1.0))), sound)


# ---- rates


def resampled(b: Sound, x: str, orig: int, new: int, how: str = "polyphase", width: int = 3) -> str:
    """[B, T] -> [B, ceil(T * new / orig)]."""
    kernel, reach = sinc_kernel(orig, new, width)
    size = b.size(x, 1)
    wanted = b.op("Div", b.op("Add", b.op("Mul", size, b.scalar(new)), b.scalar(orig - 1)), b.scalar(orig))
    if how == "float":  # as torch.ceil of a quotient
        quotient = b.op("Div", b.cast(b.op("Mul", size, b.scalar(new)), np.float32), b.const(float(orig)))
        wanted = b.cast(b.op("Ceil", quotient), np.int64)
    if how in ("polyphase", "float"):  # torchaudio
        wide = b.padded(b.unsqueeze(x, 1), 3, 2, reach, reach + orig)
        phases = b.op("Conv", wide, b.like(kernel), strides=[orig])
        return b.cut(b.reshape(b.transpose(phases, 0, 2, 1), 0, -1), 1, 0, wanted)
    # one filter at the common rate: zeros in between, filter, every orig-th
    taps = 2 * width * max(orig, new) + 1
    low = np.sinc((np.arange(taps) - taps // 2) / max(orig, new)) * np.hanning(taps + 2)[1:-1]
    if how == "stuffed":
        zeros = b.padded(b.unsqueeze(x, 2), 3, 2, 0, new - 1)
        common = b.unsqueeze(b.reshape(zeros, 0, -1), 1)
    else:
        assert how == "transposed"
        one = b.like(np.eye(1, new)[None])
        common = b.op("ConvTranspose", b.unsqueeze(x, 1), one, strides=[new])
    made = b.op("Conv", common, b.like(low[None, None]), strides=[orig], pads=[taps // 2, taps // 2])
    return b.squeeze(made, 1)
