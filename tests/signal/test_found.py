"""Faults that were found once, each as small as it gets."""

from __future__ import annotations

import numpy as np
import pytest

import pulsify
from tests.signal.build import Sound, centred, spectrum, window
from tests.signal.check import check


def test_a_long_period_hides_no_length() -> None:
    """Stride 512, nine frames dropped, stride 16: only one of 16 * 512 lengths reads past the end."""
    b = Sound(1, 1, "T")
    slow = b.op("Conv", "x", b.like(np.random.default_rng(0).standard_normal((2, 1, 512)) / 20), strides=[512])
    later = b.cut(slow, 2, 9)
    y = b.op("Conv", later, b.like(np.random.default_rng(1).standard_normal((2, 2, 3))), strides=[16], pads=[1, 1])
    check(b.finish(y=(y, 3)), 1, [512 * (9 + 16 * q + 1) + 100 for q in (1, 2)])


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_an_envelope_of_ones_beside_many_streams(op: str) -> None:
    """Known, the same for all streams, and ending with them."""
    b = Sound("B", 1, "T")
    kernel = b.like(window(8)[None, None])
    sound = b.op(op, "x", kernel, strides=[2])
    ones = b.op("Expand", b.like(np.ones((1, 1, 1))), b.shape(1, 1, b.size("x", 2)))
    y = b.op("Div", sound, b.op("Add", b.op(op, ones, kernel, strides=[2]), b.like(0.5)))
    check(b.finish(y=(y, 3)), 2, [8, 9, 21, 40])


@pytest.mark.parametrize(("frame", "hop"), [(2048, 480), (3000, 700), (16, 4)])
def test_frames_a_little_longer_than_the_signal(frame: int, hop: int) -> None:
    b = Sound(1, "T")
    y = b.op("STFT", b.unsqueeze("x", 2), b.scalar(hop), b.like(window(frame)))  # one-sided, by default
    stream = check(b.finish(y=(y, 4), expect={"tolerance": 1e-5, "reach": frame}), 1, [frame, frame + 3 * hop + 7])
    assert stream.outputs[0].dims[2] == frame // 2 + 1


@pytest.mark.parametrize(("orig", "new"), [(6, 5), (25, 24), (160, 147), (5, 6)])
def test_factors_that_round_down(orig: int, new: int) -> None:
    b = Sound(1, 1, "T")
    scales = b.const(np.array([1, 1, new / orig], np.float32))
    y = b.op("Resize", "x", "", scales, mode="linear", coordinate_transformation_mode="asymmetric")
    least = orig if new > orig else 1  # of fewer there are no more, and the runtime leaves them as they are
    stream = check(b.finish(y=(y, 3), expect={"tolerance": 1e-4, "longest": 700, "least": least}), 1)
    assert stream.spec.shortest == least


def test_mirrored_up_to_a_multiple() -> None:
    """Four frames have no four others to show: five is the shortest stream, not eight."""
    b = Sound(1, "T")
    size = b.size("x", 1)
    rest = b.op("Mod", b.op("Sub", b.scalar(0), size), b.scalar(8))
    pads = b.shape(0, 0, 0, rest)
    built = b.finish(y=(b.op("Pad", "x", pads, mode="reflect"), 2))
    stream = check(built, 8, [5, 6, 7, 8, 13, 29])
    assert stream.spec.conditions and not all(c.met(4) for c in stream.spec.conditions)
    assert all(c.met(5) for c in stream.spec.conditions)


@pytest.mark.parametrize("batch", [1, "B"])
def test_the_published_front_end(batch: int | str) -> None:
    """The first sample by itself, the others less what was before; one frame more than counts, which is hidden."""
    b = Sound(batch, "T")
    first = b.unsqueeze(b.op("Gather", "x", b.scalar(0), axis=1), 1)
    rest = b.op("Sub", b.cut("x", 1, 1), b.op("Mul", b.cut("x", 1, 0, -1), b.like(0.97)))
    sharper = b.op("Concat", first, rest, axis=1)
    spectra = b.op("Tanh", spectrum(b, centred(b, sharper, 16, "constant"), 16, 4, window(16), "conv"))
    count = b.op("Div", b.size("x", 1), b.scalar(4))
    shown = b.unsqueeze(b.op("Less", b.range(b.size(spectra, 1)), count), 0, 2, 3)
    y = b.op("Where", shown, spectra, b.like(0.0))
    stream = check(b.finish(y=(y, 4), expect={"tolerance": 1e-5}), 1, [4, 7, 8, 9, 30, 43])
    assert stream.outputs[0].delay == 1  # a frame ends eight samples after its place


def test_shapes_that_cannot_be() -> None:
    """At short lengths the model's own arithmetic asks for a negative size: those are no lengths for it."""
    b = Sound(1, 1, "T")
    count = b.op("Sub", b.size("x", 2), b.scalar(5))
    ones = b.op("Expand", b.like(np.ones((1, 1, 1))), b.shape(1, 1, count))
    y = b.op("Add", b.cut("x", 2, 5), ones)
    assert isinstance(check(b.finish(y=(y, 3)), 3, [6, 7, 20]), pulsify.Stream)


def test_a_mask_that_hides_a_frame_at_some_lengths_only() -> None:
    """One frame more than counts, and every other one taken: the last is hidden or not, by the length."""
    b = Sound(1, "T")
    spectra = b.op("Tanh", spectrum(b, centred(b, "x", 256, "constant"), 256, 64, window(256), "conv"))
    slow = b.cut(spectra, 1, 1, step=2)
    count = b.op("Div", b.op("Div", b.size("x", 1), b.scalar(64)), b.scalar(2))
    shown = b.unsqueeze(b.op("Less", b.range(b.size(slow, 1)), count), 0, 2, 3)
    y = b.op("Where", shown, slow, b.like(-7.0))
    check(b.finish(y=(y, 4), expect={"tolerance": 1e-5}), 1, [64 * n + 5 for n in range(2, 9)])
