"""Whole front and back ends at their real sizes: 16 kHz, frames of 25 ms every 10 ms, pushed 5 ms at a time.

Sums of hundreds of numbers and logarithms of them agree to 1.3e-6 of their scale; 1e-5 is allowed.
"""

from __future__ import annotations

import numpy as np
import pytest

import pulsify
from tests.property.check import Batch
from tests.signal.build import (
    Signal,
    Sound,
    centred,
    log_mel,
    power,
    resampled,
    spectrum,
    synthesised,
    window,
)
from tests.signal.check import check

FRAME, HOP, BANDS = 400, 160, 80
PUSH = (80,)  # 5 ms
LENGTHS = (201, 399, 400, 401, 560, 1999, 5000, 8037)


def mel_front_end(how: str, centre: bool, pcm: bool = False) -> Signal:
    """Samples to 80 log mel bands; `pcm`: of int16, emphasised."""
    b = Sound(1, "T", dtype=np.int16 if pcm else np.float32)
    x = b.op("Mul", b.cast("x", np.float32), b.const(1 / 32768)) if pcm else "x"
    if pcm:
        rest = b.op("Sub", b.cut(x, 1, 1), b.op("Mul", b.cut(x, 1, 0, -1), b.like(0.97)))
        x = b.op("Concat", b.cut(x, 1, 0, 1), rest, axis=1)
    x = centred(b, x, FRAME, "reflect") if centre else x
    mel = log_mel(b, spectrum(b, x, FRAME, HOP, how=how), FRAME // 2 + 1, BANDS)
    return b.finish(
        y=(mel, 3), expect={"reach": FRAME, "tolerance": 1e-5, "least": FRAME // 2 + 1 if centre else FRAME}
    )


def padded_transform() -> Signal:
    """torch.stft's win_length: 25 ms in the middle of 512 samples."""
    b = Sound(1, "T")
    shape = np.pad(window(FRAME), (512 - FRAME) // 2)
    spectra = spectrum(b, centred(b, "x", 512, "reflect"), 512, HOP, shape)
    return b.finish(y=(log_mel(b, spectra, 257, BANDS), 3), expect={"tolerance": 1e-5})


def denoiser(how: str, inverse: str, overlap: str) -> Signal:
    """Spectra, a mask from a small causal convolution over their logarithms, and back to as many samples."""
    b = Sound(1, "T")
    frame, hop = 320, 160
    bins = frame // 2 + 1
    shape = np.sqrt(window(frame))
    spectra = spectrum(b, centred(b, "x", frame, "reflect"), frame, hop, shape, how)
    logs = b.op("Log", b.op("Add", power(b, spectra), b.like(1e-3)))
    past = b.padded(b.transpose(logs, 0, 2, 1), 3, 2, 2, 0)
    hidden = b.op("Relu", b.op("Conv", past, b.weight(16, bins, 3, scale=0.05)))
    mask = b.op("Sigmoid", b.op("Conv", hidden, b.weight(bins, 16, 1, scale=0.5)))
    kept = b.op("Mul", spectra, b.unsqueeze(b.transpose(mask, 0, 2, 1), 3))
    sound = synthesised(b, kept, shape, hop, overlap, inverse, guard=True)
    last = b.op("Add", b.size("x", 1), b.scalar(frame // 2))
    return b.finish(y=(b.cut(sound, 1, frame // 2, last), 2), expect={"reach": frame, "tolerance": 1e-5})


def resampled_front_end(how: str) -> Signal:
    """44.1 kHz to 16 kHz, then mel bands."""
    b = Sound(1, "T")
    sound = resampled(b, "x", 441, 160, width=6)
    mel = log_mel(b, spectrum(b, sound, FRAME, HOP, how=how), FRAME // 2 + 1, BANDS)
    return b.finish(y=(mel, 3), expect={"reach": 1103, "tolerance": 1e-5, "least": 1103})


@pytest.mark.parametrize("centre", [False, True], ids=["plain", "centre"])
@pytest.mark.parametrize(
    ("how", "pcm"), [("stft", False), ("stft", True), ("conv", False), ("dft gather", False), ("matmul gather", True)]
)
def test_mel_front_end(how: str, pcm: bool, centre: bool) -> None:
    stream = check(mel_front_end(how, centre, pcm), 1, LENGTHS, PUSH)
    assert stream.pulse == HOP
    # frame k ends at sample 160 k + 400, or 160 k + 200, and comes out with the pulse that brings it
    assert stream.outputs[0].delay == (1 if centre else 2)


def test_mel_front_end_padded_transform() -> None:
    check(padded_transform(), 1, (257, 300, 512, 3333), PUSH)


def test_mel_front_end_long_pulse() -> None:
    check(mel_front_end("stft", True), 10, (201, 1599, 1600, 1601, 6789), PUSH)


@pytest.mark.parametrize(
    ("how", "inverse", "overlap"),
    [
        ("conv", "matmul", "transpose"),
        ("conv", "matmul", "shifted"),
        ("stft", "idft", "transpose"),
        ("stft", "idft", "scatter_nd"),
        ("dft gather", "idft", "col2im"),
    ],
)
def test_denoiser(how: str, inverse: str, overlap: str) -> None:
    stream = check(denoiser(how, inverse, overlap), 1, (161, 319, 320, 480, 1999, 3201), PUSH)
    # Samples wait for the frame that ends 160 later. Its window begins with a zero, seen if one operator adds the
    # frames up. The first frame mirrors sample 160: all wait for that once, in the opening.
    delay = 159 if overlap in ("transpose", "col2im") else 160
    assert stream.outputs[0].delay == delay and stream.spec.opening == 2
    waiting = pulsify.stream(denoiser(how, inverse, overlap).model, pulse=160, opening=False)
    assert waiting.outputs[0].delay == 160 + delay


@pytest.mark.parametrize("how", ["conv", "stft"])
def test_resampled_front_end(how: str) -> None:
    """5 ms are 220.5 samples."""
    stream = check(resampled_front_end(how), 1, (1103, 2000, 4411, 9001), (220, 221))
    assert stream.pulse == 441


def test_denoiser_without_a_mask_gives_back_what_it_took() -> None:
    """Exact near both ends, the envelope included."""
    b = Sound(1, "T")
    spectra = spectrum(b, centred(b, "x", 320, "reflect"), 320, 160, np.sqrt(window(320)), "conv")
    sound = synthesised(b, spectra, np.sqrt(window(320)), 160, inverse="matmul", guard=True)
    built = b.finish(y=(b.cut(sound, 1, 160, b.op("Add", b.size("x", 1), b.scalar(160))), 2))
    x = built.feeds(2345)["x"]
    out = Batch(built.model).run(x)
    assert out is not None
    np.testing.assert_allclose(out["y"], x, atol=2e-4)
    session = pulsify.stream(built.model, pulse=160, verify=False).session()
    parts = [session.push(x[:, i : i + 80]) for i in range(0, 2345, 80)]
    np.testing.assert_allclose(np.concatenate([*parts, session.flush()], 1), x, atol=2e-4)
