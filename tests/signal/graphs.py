"""The written set: signal graphs, one idea each, by name. GRAPHS[name]() builds one.

Frames of 16 samples every 4 unless said otherwise; a hop of 6 and a frame of 20 divide nothing evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx

from tests.signal import modules
from tests.signal.build import (
    FRAMINGS,
    OVERLAPS,
    PADS,
    WINDOWS,
    Signal,
    Sound,
    basis,
    centred,
    framed,
    inverse_basis,
    log_mel,
    overlap_added,
    power,
    real_frames,
    resampled,
    spectrum,
    synthesised,
    transformed,
    window,
)
from tests.signal.modules import exported

N, HOP, BINS = 16, 4, 9
Make = Callable[[], Signal]

# ---- analysis: spectra


def stft(
    *dims: int | str, frame: int = N, hop: int = HOP, shape: bool = True, size: bool = True, onesided: int = 1,
    dtype: Any = np.float32,
) -> Signal:  # fmt: skip
    """The operator alone, with and without its optional inputs."""
    b = Sound(*dims, dtype=dtype, inner=dtype, opset=17)
    inputs = [b.like(window(frame)) if shape else "", b.scalar(frame) if size else ""]
    y = b.op("STFT", "x", b.scalar(hop), *inputs, onesided=onesided)
    return b.finish(y=(y, 4), dtype=dtype, expect={"reach": frame})


def stft_centred(mode: str, frame: int = N, hop: int = HOP, how: str = "stft") -> Signal:
    b = Sound("B", "T")
    y = spectrum(b, centred(b, "x", frame, mode), frame, hop, how=how)
    return b.finish(y=(y, 4), expect={"reach": frame})


def stft_window(kind: str, periodic: int) -> Signal:
    """The window made by its operator."""
    b = Sound(1, "T")
    shape = b.op(f"{kind.capitalize()}Window", b.scalar(N), periodic=periodic)
    y = b.op("STFT", b.unsqueeze("x", 2), b.scalar(HOP), shape, onesided=1)
    return b.finish(y=(y, 4))


def stft_window_product(size: int) -> Signal:
    """Frames times a computed window, padded to a longer transform."""
    b = Sound(1, "T", opset=20)
    shape = b.op("HannWindow", b.scalar(N))
    frames = b.unsqueeze(b.op("Mul", framed(b, "x", N, HOP), shape), 3)
    return b.finish(y=(transformed(b, frames, b.scalar(size), onesided=1), 4))


def by(how: str, frame: int = N, hop: int = HOP, opset: int = 18) -> Signal:
    """A spectrum written in one of the other ways."""
    b = Sound(1, "T", opset=opset)
    return b.finish(y=(spectrum(b, "x", frame, hop, how=how), 4), expect={"reach": frame, "least": frame})


def dft(
    opset: int, *dims: int | str, axis: int = 2, size: int = 0, dtype: Any = np.float32, **attributes: Any
) -> Signal:
    """Of frames that are there already, over any axis but time."""
    b = Sound(*dims, opset=opset, dtype=dtype)
    length = b.scalar(size) if size else ""
    if opset >= 20:
        y = b.op("DFT", "x", length, b.scalar(axis), **attributes)
    else:
        y = b.op("DFT", "x", *([length] if length else []), axis=axis, **attributes)
    return b.finish(y=(y, 4), dtype=dtype, expect={"reach": 3})


def dft_default_axis() -> Signal:
    b = Sound("T", 8, 1, opset=20)
    return b.finish(y=(b.op("DFT", "x"), 3), expect={"reach": 3})


def frames_only(how: str, frame: int, hop: int) -> Signal:
    b = Sound("B", "T")
    return b.finish(y=(framed(b, "x", frame, hop, how), 3), expect={"reach": frame, "least": frame})


def frames_reshaped_exactly() -> Signal:
    """Whole frames only, or the model itself does not run."""
    b = Sound(1, "T")
    frames = b.reshape("x", 1, -1, N)
    return b.finish(y=(b.op("MatMul", frames, b.like(basis(N, window(N)))), 3))


# ---- analysis: features


def mel_operator() -> Signal:
    b = Sound(1, "T")
    filters = b.op("MelWeightMatrix", b.scalar(6), b.scalar(N), b.scalar(16000), b.const(100.0), b.const(7600.0))
    bands = b.op("MatMul", power(b, spectrum(b, "x", N, HOP)), filters)
    return b.finish(y=(b.op("Log", b.op("Add", bands, b.like(1e-3))), 3))


def decibels() -> Signal:
    """10 log10(max(p, amin) / reference), never below a fixed floor."""
    b = Sound(1, "T")
    p = b.op("Max", power(b, spectrum(b, "x", N, HOP, how="conv")), b.like(1e-5))
    scaled = b.op("Mul", b.op("Log", p), b.like(10 / np.log(10)))
    return b.finish(y=(b.op("Max", b.op("Sub", scaled, b.like(7.0)), b.like(-40.0)), 3), expect={"tolerance": 1e-5})


def magnitude_compressed() -> Signal:
    b = Sound(1, "T")
    size = b.op("Sqrt", b.op("Add", power(b, spectrum(b, "x", N, HOP, how="dft gather")), b.like(1e-3)))
    return b.finish(y=(b.op("Pow", size, b.like(0.3)), 3))


def cepstrum() -> Signal:
    """Log mel bands, cosine transform, lifter, and the energy in front."""
    b = Sound(1, "T")
    frames = framed(b, "x", N, HOP)
    energy = b.op("Log", b.total(b.op("Mul", frames, frames), 2, keep=True))
    bands = log_mel(b, spectrum(b, "x", N, HOP), BINS, 6, 1e-2)
    dct = np.cos(np.pi / 6 * (np.arange(6)[:, None] + 0.5) * np.arange(5))
    return b.finish(y=(b.op("Concat", energy, b.op("MatMul", bands, b.like(dct)), axis=2), 3))


def kaldi_frames() -> Signal:
    """Per frame: the mean taken off, emphasised with the first sample repeated, windowed, transformed."""
    b = Sound(1, "T", opset=17)
    frames = framed(b, "x", N, HOP)
    frames = b.op("Sub", frames, b.op("Div", b.total(frames, 2, keep=True), b.like(float(N))))
    before = b.cut(b.padded(frames, 3, 2, 1, 0, "edge"), 2, 0, -1)
    frames = b.op("Mul", b.op("Sub", frames, b.op("Mul", before, b.like(0.97))), b.like(window(N, "hamming")))
    return b.finish(y=(power(b, transformed(b, b.unsqueeze(frames, 3), b.scalar(32), onesided=1)), 3))


def preemphasis(how: str) -> Signal:
    b = Sound(1, "T")
    if how == "concat":
        rest = b.op("Sub", b.cut("x", 1, 1), b.op("Mul", b.cut("x", 1, 0, -1), b.like(0.97)))
        y = b.op("Concat", b.cut("x", 1, 0, 1), rest, axis=1)
    elif how == "conv":
        wide = b.padded(b.unsqueeze("x", 1), 3, 2, 1, 0)
        y = b.squeeze(b.op("Conv", wide, b.like([[[-0.97, 1.0]]])), 1)
    else:
        before = b.cut(b.padded("x", 2, 1, 1, 0, how), 1, 0, -1)
        y = b.op("Sub", "x", b.op("Mul", before, b.like(0.97)))
    return b.finish(y=(y, 2), expect={"reach": 2})


def features(make: Callable[[Sound], str], reach: int = 5) -> Signal:
    """Of frames with six features, [B, T, 6]."""
    b = Sound("B", "T", 6)
    return b.finish(y=(make(b), 3), expect={"reach": reach})


def stacked(b: Sound) -> str:
    """Three frames in one; a rest is dropped."""
    whole = b.op("Mul", b.op("Div", b.size("x", 1), b.scalar(3)), b.scalar(3))
    return b.reshape(b.cut("x", 1, 0, whole), 0, -1, 18)


def shifted(b: Sound, reach: int) -> list[str]:
    """The frames around, the first and the last repeated."""
    wide = b.padded("x", 3, 1, reach, reach, "edge")
    size = b.size("x", 1)
    return [b.cut(wide, 1, k, b.op("Add", size, b.scalar(k))) for k in range(2 * reach + 1)]


def spliced(b: Sound) -> str:
    return b.op("Concat", *shifted(b, 2), axis=2)


def spliced_table(b: Sound) -> str:
    """By a table of clamped places."""
    size = b.size("x", 1)
    places = b.op("Add", b.unsqueeze(b.range(size), 1), b.ints(*range(-2, 3)))
    inside = b.op("Min", b.op("Max", places, b.scalar(0)), b.op("Sub", size, b.scalar(1)))
    return b.reshape(b.op("Gather", "x", inside, axis=1), 0, -1, 30)


def low_rate(b: Sound) -> str:
    """Seven frames every six, the first repeated three times in front and the last behind (FunASR)."""
    size = b.size("x", 1)
    count = b.op("Div", b.op("Add", size, b.scalar(5)), b.scalar(6))
    starts = b.unsqueeze(b.op("Mul", b.range(count), b.scalar(6)), 1)
    places = b.op("Add", starts, b.ints(*range(-3, 4)))
    inside = b.op("Min", b.op("Max", places, b.scalar(0)), b.op("Sub", size, b.scalar(1)))
    return b.reshape(b.op("Gather", "x", inside, axis=1), 0, -1, 42)


def strided(b: Sound) -> str:
    return b.cut("x", 1, 0, step=3)


def strided_later(b: Sound) -> str:
    return b.cut("x", 1, 2, step=4)


def deltas(b: Sound, x: str = "x") -> str:
    """Regression over two frames on both sides, as a convolution per feature."""
    wide = b.padded(b.transpose(x, 0, 2, 1), 3, 2, 2, 2, "edge")
    kernel = b.like(np.tile(np.arange(-2, 3) / 10, (6, 1, 1)))
    return b.transpose(b.op("Conv", wide, kernel, group=6), 0, 2, 1)


def deltas_shifted(b: Sound) -> str:
    far, near, _, near_next, far_next = shifted(b, 2)
    two = b.op("Mul", b.op("Sub", far_next, far), b.like(2.0))
    return b.op("Div", b.op("Add", b.op("Sub", near_next, near), two), b.like(10.0))


def deltas_twice(b: Sound) -> str:
    once = deltas(b)
    return b.op("Concat", "x", once, deltas(b, once), axis=2)


# ---- synthesis


def spectra_in(opset: int = 18) -> Sound:
    return Sound(1, "T", BINS, 2, opset=opset)


def overlap(how: str, frame: int = N, hop: int = HOP) -> Signal:
    b = Sound(1, "T", frame)
    return b.finish(
        y=(overlap_added(b, b.op("Mul", "x", b.like(window(frame))), frame, hop, how), 2), expect={"reach": 5}
    )


def overlap_basis() -> Signal:
    """The inverse transform and the overlap in one transposed convolution."""
    b = Sound(1, 2 * BINS, "T")
    kernel = b.like(inverse_basis(N, window(N))[:, None])
    return b.finish(y=(b.op("ConvTranspose", "x", kernel, strides=[HOP]), 3), expect={"reach": 5})


def inverse(opset: int, how: str) -> Signal:
    b = spectra_in(opset)
    return b.finish(y=(real_frames(b, "x", N, how), 3), expect={"reach": 2})


def there_and_back(opset: int) -> Signal:
    """A transform of frames and its inverse."""
    b = Sound(1, "T", opset=opset)
    spectra = spectrum(b, "x", N, HOP, how="dft gather")
    return b.finish(y=(real_frames(b, spectra, N), 3))


def normalised(how: str, guard: bool = False) -> Signal:
    """Divided by the envelope, which is smaller at both ends."""
    b = spectra_in()
    return b.finish(y=(synthesised(b, "x", window(N, "hamming"), HOP, how, "matmul", guard), 2), expect={"reach": 5})


def normalised_by_ones() -> Signal:
    """The envelope as a transposed convolution of ones."""
    b = Sound(1, N, "T")
    count = b.size("x", 2)
    one = onnx.numpy_helper.from_array(np.ones(1, np.float32))
    ones = b.op("ConstantOfShape", b.shape(1, 1, count), value=one)
    kernel = np.eye(N)[:, None] * window(N, "hamming")
    sound = b.op("ConvTranspose", "x", b.like(kernel), strides=[HOP])
    weight = b.op("ConvTranspose", ones, b.like(window(N, "hamming")[None, None] ** 2), strides=[HOP])
    return b.finish(y=(b.op("Div", sound, weight), 3), expect={"reach": 5})


def trimmed(how: str, end: str) -> Signal:
    """Without the centre padding: at the end by a negative or by a computed number."""
    b = spectra_in()
    sound = synthesised(b, "x", window(N), HOP, how, "matmul")
    size = b.op("Mul", b.op("Sub", b.size("x", 1), b.scalar(1)), b.scalar(HOP))
    last: Any = -N // 2 if end == "negative" else b.op("Add", size, b.scalar(N // 2))
    return b.finish(y=(b.cut(sound, 1, N // 2, last), 2), expect={"reach": 5})


def round_trip(
    how: str, length: bool, analysis: str = "conv", inverse: str = "matmul", mode: str = "reflect"
) -> Signal:
    """Sound to spectra and back; `length` cuts to what came in."""
    b = Sound(1, "T")
    spectra = spectrum(b, centred(b, "x", N, mode), N, HOP, how=analysis)
    sound = synthesised(b, spectra, window(N), HOP, how, inverse)
    last: Any = b.op("Add", b.size("x", 1), b.scalar(N // 2)) if length else -N // 2
    return b.finish(y=(b.cut(sound, 1, N // 2, last), 2))


# ---- rates


def resample(orig: int, new: int, how: str = "polyphase") -> Signal:
    b = Sound(1, "T")
    return b.finish(y=(resampled(b, "x", orig, new, how), 2), expect={"reach": max(orig, 8)})


def resize(scale: float, mode: str, place: str = "half_pixel", **expect: Any) -> Signal:
    b = Sound(1, 1, "T")
    y = b.op("Resize", "x", "", b.const([1.0, 1.0, scale]), mode=mode, coordinate_transformation_mode=place)
    return b.finish(y=(y, 3), expect={"reach": 8, **expect})


def resize_by_size() -> Signal:
    """To twice the samples, said as a size."""
    b = Sound(1, 1, "T")
    size = b.op("Mul", b.size("x", 2), b.scalar(2))
    y = b.op("Resize", "x", "", "", b.shape(1, 1, size), mode="linear")
    return b.finish(y=(y, 3), expect={"reach": 8})


def resampled_spectrum(orig: int, new: int, how: str = "stft", frame: int = N, hop: int = HOP) -> Signal:
    b = Sound(1, "T")
    y = spectrum(b, resampled(b, "x", orig, new), frame, hop, how=how)
    return b.finish(y=(y, 4), expect={"reach": frame * orig // new + orig})


def gain_per_frame() -> Signal:
    """A gain from every frame, held for its hop, on the sound itself."""
    b = Sound(1, "T")
    frames = framed(b, "x", HOP, HOP, "reshape")
    loud = b.op("Sqrt", b.op("Add", b.total(b.op("Mul", frames, frames), 2, keep=True), b.like(1.0)))
    held = b.op("Resize", b.transpose(loud, 0, 2, 1), "", b.const([1.0, 1.0, HOP]), mode="nearest",
                coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    gain = b.squeeze(held, 1)
    return b.finish(y=(b.op("Div", b.cut("x", 1, 0, b.size(gain, 1)), gain), 2))


def two_rates(how: str) -> Signal:
    """Log mel bands and the sound they were made of, cleaned."""
    b = Sound(1, "T")
    spectra = spectrum(b, centred(b, "x", N, "reflect"), N, HOP, how=how)
    mel = log_mel(b, spectra, BINS, 6, 1e-2)
    quiet = b.op("Less", b.unsqueeze(power(b, spectra), 3), b.like(2.0))
    kept = b.op("Mul", spectra, b.op("Where", quiet, b.like(0.1), b.like(1.0)))
    sound = synthesised(b, kept, window(N), HOP, inverse="matmul")
    last = b.op("Add", b.size("x", 1), b.scalar(N // 2))
    return b.finish(mel=(mel, 3), sound=(b.cut(sound, 1, N // 2, last), 2), expect={"tolerance": 1e-5})


def three_rates() -> Signal:
    """The sound, its spectra, and every third of these stacked."""
    b = Sound(1, "T")
    sound = b.op("Tanh", "x")
    bands = power(b, spectrum(b, sound, N, HOP, how="conv"))
    whole = b.op("Mul", b.op("Div", b.size(bands, 1), b.scalar(3)), b.scalar(3))
    stack = b.reshape(b.cut(bands, 1, 0, whole), 0, -1, 3 * BINS)
    return b.finish(sound=(sound, 2), bands=(bands, 3), stack=(stack, 3), expect={"reach": 3 * N})


# ---- normalisation


def fixed_statistics(b: Sound) -> str:
    mean, spread = b.like(np.linspace(-1, 1, 6)), b.like(np.linspace(1, 2, 6))
    return b.op("Div", b.op("Sub", "x", mean), spread)


def batch_norm(b: Sound) -> str:
    one, values = b.like(np.linspace(1, 2, 6)), b.like(np.linspace(-1, 1, 6))
    return b.op("BatchNormalization", b.transpose("x", 0, 2, 1), one, values, values, one)


def counted(b: Sound) -> str:
    """1, 2, 3, ... as [T, 1]."""
    return b.unsqueeze(b.cast(b.op("Add", b.range(b.size("x", 1)), b.scalar(1)), np.float32), 1)


def running_mean(b: Sound) -> str:
    return b.op("Sub", "x", b.op("Div", b.op("CumSum", "x", b.scalar(1)), counted(b)))


def running_variance(b: Sound) -> str:
    """E[x^2] - E[x]^2 of all frames so far."""
    count = counted(b)
    mean = b.op("Div", b.op("CumSum", "x", b.scalar(1)), count)
    square = b.op("Div", b.op("CumSum", b.op("Mul", "x", "x"), b.scalar(1)), count)
    spread = b.op("Sub", square, b.op("Mul", mean, mean))
    return b.op("Div", b.op("Sub", "x", mean), b.op("Sqrt", b.op("Add", spread, b.like(0.1))))


def running_mean_of_ones(b: Sound) -> str:
    """The count as a running sum of ones."""
    ones = b.op("Add", b.op("Mul", b.cut("x", 2, 0, 1), b.like(0.0)), b.like(1.0))
    return b.op("Sub", "x", b.op("Div", b.op("CumSum", "x", b.scalar(1)), b.op("CumSum", ones, b.scalar(1))))


def sliding_mean(b: Sound) -> str:
    """Over the last ten frames; fewer at the start."""
    turned = b.transpose("x", 0, 2, 1)
    mean = b.op("AveragePool", turned, kernel_shape=[10], pads=[9, 0], strides=[1], count_include_pad=0)
    return b.transpose(b.op("Sub", turned, mean), 0, 2, 1)


# ---- types


def pcm(dtype: Any, scale: float) -> Signal:
    """Whole numbers in, scaled to one."""
    b = Sound(1, "T", dtype=dtype)
    sound = b.op("Mul", b.cast("x", np.float32), b.const(scale))
    return b.finish(y=(power(b, spectrum(b, sound, N, HOP)), 3))


def pcm_back() -> Signal:
    """To int16 again: halved, rounded, clipped; all of it exact."""
    b = Sound(1, "T", dtype=np.int16)
    half = b.op("Mul", b.cast("x", np.float32), b.const(0.5))
    limited = b.op("Clip", b.op("Floor", half), b.const(-12000.0), b.const(12000.0))
    return b.finish(y=(b.cast(limited, np.int16), 2), dtype=np.int16)


def mu_law() -> Signal:
    """Eight bits, by table."""
    b = Sound(1, "T", dtype=np.uint8)
    code = np.arange(256) / 127.5 - 1
    table = np.sign(code) * (256 ** np.abs(code) - 1) / 255
    return b.finish(y=(spectrum(b, b.op("Gather", b.const(table), b.cast("x", np.int64)), N, HOP), 4))


def doubles(how: str) -> Signal:
    """float64 all the way; ONNX Runtime has no convolutions of doubles."""
    b = Sound(1, "T", dtype=np.float64, inner=np.float64)
    spectra = spectrum(b, centred(b, "x", N, "reflect"), N, HOP, how=how)
    return b.finish(y=(power(b, spectra), 3), dtype=np.float64, expect={"tolerance": 1e-11})


def doubles_in() -> Signal:
    b = Sound(1, "T", dtype=np.float64)
    spectra = spectrum(b, b.cast("x", np.float32), N, HOP, how="conv")
    return b.finish(y=(power(b, spectra), 3))


def uneven(how: str, **options: Any) -> Make:
    return partial(by, how, 20, 6, **options)


ANALYSIS: dict[str, Make] = {
    "stft": partial(stft, 1, "T"),
    "stft_rank3": partial(stft, 1, "T", 1),
    "stft_batch": partial(stft, "B", "T", 1),
    "stft_no_window": partial(stft, 1, "T", 1, shape=False),
    "stft_no_window_rank2": partial(stft, 1, "T", shape=False),
    "stft_no_frame_length": partial(stft, 1, "T", 1, size=False),
    "stft_two_sided": partial(stft, 1, "T", 1, onesided=0),
    "stft_complex": partial(stft, 1, "T", 2, onesided=0),
    "stft_uneven": partial(stft, 1, "T", 1, frame=20, hop=6),
    "stft_gaps": partial(stft, 1, "T", 1, hop=21),
    "stft_every_sample": partial(stft, 1, "T", 1, hop=1),
    "stft_double": partial(stft, 1, "T", 1, dtype=np.float64),
    **{f"stft_centre_{m}": partial(stft_centred, m) for m in PADS},
    "stft_centre_uneven": partial(stft_centred, "reflect", 20, 6),
    **{f"stft_{k}_window": partial(stft_window, k, p) for k, p in zip(WINDOWS, (1, 0, 1), strict=True)},
    "dft_hann_window": partial(stft_window_product, 32),
    "conv": partial(by, "conv"),
    "conv_uneven": uneven("conv"),
    **{f"conv_centre_{m}": partial(stft_centred, m, how="conv") for m in PADS},
    **{f"dft_{f}": partial(by, f"dft {f}", opset=17) for f in FRAMINGS},
    **{f"matmul_{f}": partial(by, f"matmul {f}") for f in FRAMINGS},
    "dft_gather_uneven": uneven("dft gather", opset=20),
    "dft_slices_uneven": partial(by, "dft slices", 12, 5, opset=20),
    "dft_reshape": partial(by, "dft reshape", 16, 16, opset=20),
    "dft_gather_centre": partial(stft_centred, "reflect", how="dft gather"),
    "frames_gather": partial(frames_only, "gather", 16, 4),
    "frames_slices": partial(frames_only, "slices", 8, 3),
    "frames_blocks": partial(frames_only, "blocks", 12, 4),
    "frames_reshape": partial(frames_only, "reshape", 8, 8),
    "frames_reshape_exactly": frames_reshaped_exactly,
    **{f"frames_{f}_long": partial(frames_only, f, 320, 160) for f in ("gather", "gather_count", "blocks")},
    "frames_reshape_long": partial(frames_only, "reshape", 240, 240),
    "matmul_gather_long": partial(stft_centred, "reflect", 400, 160, "matmul gather"),
    "dft17_real": partial(dft, 17, 1, "T", 16, 1),
    "dft17_onesided": partial(dft, 17, 1, "T", 16, 1, onesided=1),
    "dft17_complex": partial(dft, 17, 1, "T", 12, 2),
    "dft17_inverse": partial(dft, 17, 1, "T", 16, 2, inverse=1),
    "dft17_longer": partial(dft, 17, 1, "T", 12, 1, size=16, onesided=1),
    "dft17_shorter": partial(dft, 17, 1, "T", 16, 1, size=10, onesided=1),
    "dft17_other_axis": partial(dft, 17, 1, 8, "T", 1, axis=1),
    "dft20_real": partial(dft, 20, 1, "T", 16, 1),
    "dft20_onesided": partial(dft, 20, "B", "T", 15, 1, axis=-2, onesided=1),
    "dft20_inverse": partial(dft, 20, 1, "T", 16, 2, inverse=1),
    "dft20_inverse_onesided": partial(dft, 20, 1, "T", 9, 2, size=16, inverse=1, onesided=1),
    "dft20_longer": partial(dft, 20, 1, "T", 12, 2, size=16),
    "dft20_other_axis": partial(dft, 20, 1, 8, "T", 2, axis=1),
    "dft20_double": partial(dft, 20, 1, "T", 16, 1, dtype=np.float64),
    "dft20_default_axis": dft_default_axis,
}  # fmt: skip

FEATURES: dict[str, Make] = {
    "mel_operator": mel_operator,
    "decibels": decibels,
    "magnitude_compressed": magnitude_compressed,
    "cepstrum": cepstrum,
    "kaldi_frames": kaldi_frames,
    **{f"preemphasis_{h}": partial(preemphasis, h) for h in ("concat", "conv", "constant", "edge")},
    "stacked": partial(features, stacked),
    "spliced": partial(features, spliced),
    "spliced_table": partial(features, spliced_table),
    "low_rate": partial(features, low_rate, 7),
    "strided": partial(features, strided),
    "strided_later": partial(features, strided_later),
    "deltas": partial(features, deltas),
    "deltas_shifted": partial(features, deltas_shifted),
    "deltas_twice": partial(features, deltas_twice, 9),
}

SYNTHESIS: dict[str, Make] = {
    **{f"overlap_{h}": partial(overlap, h) for h in OVERLAPS},
    **{f"overlap_{h}_uneven": partial(overlap, h, 20, 6) for h in OVERLAPS if h != "shifted"},
    "overlap_scatter_nd_apart": partial(overlap, "scatter_nd", 8, 8),
    "overlap_col2im_gaps": partial(overlap, "col2im", 6, 8),
    "overlap_basis": overlap_basis,
    "inverse_idft17": partial(inverse, 17, "idft"),
    "inverse_idft20": partial(inverse, 20, "idft"),
    "inverse_matmul": partial(inverse, 18, "matmul"),
    "there_and_back_17": partial(there_and_back, 17),
    "there_and_back_20": partial(there_and_back, 20),
    **{f"normalised_{h}": partial(normalised, h) for h in OVERLAPS},
    "normalised_guarded": partial(normalised, "transpose", True),
    "normalised_by_ones": normalised_by_ones,
    "trimmed": partial(trimmed, "transpose", "negative"),
    "trimmed_computed": partial(trimmed, "transpose", "computed"),
    "trimmed_shifted": partial(trimmed, "shifted", "negative"),
    "round_trip": partial(round_trip, "transpose", False),
    "round_trip_length": partial(round_trip, "transpose", True),
    "round_trip_operators": partial(round_trip, "transpose", True, "stft", "idft"),
    "round_trip_constant": partial(round_trip, "transpose", True, "dft gather", "idft", "constant"),
    **{f"round_trip_{h}": partial(round_trip, h, True) for h in OVERLAPS if h != "transpose"},
}

RATES: dict[str, Make] = {
    "resample_48k_16k": partial(resample, 3, 1),
    "resample_44k_16k": partial(resample, 441, 160),
    "resample_8k_16k": partial(resample, 1, 2),
    "resample_24k_16k": partial(resample, 3, 2),
    "resample_float_ceil": partial(resample, 3, 2, "float"),
    "stuffed_48k_32k": partial(resample, 3, 2, "stuffed"),
    "stuffed_8k_16k": partial(resample, 1, 2, "stuffed"),
    "stuffed_transposed": partial(resample, 5, 3, "transposed"),
    "resize_48k_16k": partial(resize, 1 / 3, "linear"),
    "resize_8k_16k": partial(resize, 2.0, "linear", "asymmetric"),
    "resize_44k_16k": partial(resize, 160 / 441, "linear", reach=441, longest=1000, tolerance=1e-4),
    "resize_nearest": partial(resize, 1 / 3, "nearest", "asymmetric"),
    "resize_by_size": resize_by_size,
    "resampled_spectrum": partial(resampled_spectrum, 3, 1),
    "resampled_spectrum_uneven": partial(resampled_spectrum, 3, 2),
    "resampled_conv": partial(resampled_spectrum, 3, 2, "conv"),
    "resampled_conv_coarse": partial(resampled_spectrum, 5, 1, "conv", 24, 5),
    "gain_per_frame": gain_per_frame,
    "two_rates": partial(two_rates, "stft"),
    "two_rates_conv": partial(two_rates, "conv"),
    "three_rates": three_rates,
}

NORMALISED: dict[str, Make] = {
    "fixed_statistics": partial(features, fixed_statistics),
    "batch_norm": partial(features, batch_norm),
    "running_mean": partial(features, running_mean),
    "running_variance": partial(features, running_variance),
    "running_mean_of_ones": partial(features, running_mean_of_ones),
    "sliding_mean": partial(features, sliding_mean, 10),
}

TYPES: dict[str, Make] = {
    "int16": partial(pcm, np.int16, 1 / 32768),
    "int32": partial(pcm, np.int32, 2.0**-31),
    "int16_back": pcm_back,
    "mu_law": mu_law,
    "double_stft": partial(doubles, "stft"),
    "double_dft": partial(doubles, "dft gather"),
    "double_matmul": partial(doubles, "matmul gather"),
    "double_in": doubles_in,
}

# What the older exporter does not take with a dynamic length: Tensor.unfold, as_strided, fold, istft, complex stft.
TORCH: dict[str, Make] = {
    "torch_stft_legacy": partial(exported, modules.stft(False), "legacy", 1, "T"),
    "torch_stft_dynamo": partial(exported, modules.stft(False), "dynamo", 1, "T"),
    "torch_stft_centre_legacy": partial(exported, modules.stft(True), "legacy", 1, "T"),
    "torch_stft_centre_dynamo": partial(exported, modules.stft(True), "dynamo", 1, "T"),
    "torch_stft_constant_legacy": partial(exported, modules.stft(True, "constant"), "legacy", 1, "T"),
    "torch_stft_two_sided_legacy": partial(exported, modules.stft(False, onesided=False), "legacy", 1, "T"),
    "torch_magnitude_dynamo": partial(exported, modules.magnitude, "dynamo", 1, "T"),
    "torch_istft_dynamo": partial(exported, modules.istft, "dynamo", 1, BINS, "T", 2, repair=True),
    "torch_round_trip_dynamo": partial(exported, modules.round_trip, "dynamo", 1, "T", repair=True),
    "torch_unfold_rfft_dynamo": partial(exported, modules.unfold_rfft, "dynamo", 1, "T"),
    "torch_unfold2d_legacy": partial(exported, modules.unfold2d, "legacy", 1, "T"),
    "torch_unfold2d_dynamo": partial(exported, modules.unfold2d, "dynamo", 1, "T"),
    "torch_as_strided_dynamo": partial(exported, modules.strided, "dynamo", 1, "T"),
    "torch_fold_dynamo": partial(exported, modules.fold, "dynamo", 1, N, "T"),
    "torch_fold_normalised_dynamo": partial(exported, modules.fold_normalised, "dynamo", 1, N, "T"),
    "torch_preemphasis_legacy": partial(exported, modules.preemphasis, "legacy", 1, "T"),
    "torch_preemphasis_dynamo": partial(exported, modules.preemphasis, "dynamo", 1, "T"),
    "torch_resample_legacy": partial(exported, modules.resample(3, 2), "legacy", 1, "T"),
    "torch_resample_dynamo": partial(exported, modules.resample(3, 2), "dynamo", 1, "T"),
    "torch_deltas_legacy": partial(exported, modules.deltas, "legacy", 1, 6, "T"),
    "torch_deltas_dynamo": partial(exported, modules.deltas, "dynamo", 1, 6, "T"),
}

GRAPHS = ANALYSIS | FEATURES | SYNTHESIS | RATES | NORMALISED | TYPES | TORCH
