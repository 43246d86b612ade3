"""Signal graphs drawn at random: frame, hop, window, transform, padding, way of writing, rates, pulse and lengths.

PULSIFY_EXAMPLES=2000 pytest -m slow tests/signal/test_property.py: many, from a random seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from tests.attention import test_property as attention
from tests.property.check import Batch
from tests.signal.build import (
    FRAMINGS,
    OVERLAPS,
    PADS,
    WINDOWS,
    Signal,
    Sound,
    centred,
    framed,
    log_mel,
    power,
    resampled,
    spectrum,
    synthesised,
    transformed,
    window,
)
from tests.signal.check import check

SPECTRA = ("stft", "conv", *(f"{kind} {f}" for kind in ("dft", "matmul") for f in FRAMINGS))


@dataclass(frozen=True)
class Analysis:
    """From samples to spectra and features."""

    frame: int
    hop: int
    how: str = "stft"
    shape: str = "hann"
    pad: str = ""
    opset: int = 18
    feature: str = ""

    def build(self) -> Signal:
        b = Sound("B", "T", opset=self.opset)
        x = centred(b, "x", self.frame, self.pad) if self.pad else "x"
        y = spectrum(b, x, self.frame, self.hop, window(self.frame, self.shape), self.how)
        rank = 4
        if self.feature:
            bins, rank = self.frame // 2 + 1, 3
            y = power(b, y) if self.feature == "power" else log_mel(b, y, bins, 4, 0.1)
        least = self.frame // 2 + 1 if self.pad else self.frame
        return b.finish(y=(y, rank), expect={"reach": self.frame, "least": least, "tolerance": 1e-5})


@dataclass(frozen=True)
class Transform:
    """Frames, windowed, transformed at another size."""

    frame: int
    hop: int
    size: int
    opset: int = 17
    onesided: int = 1
    framing: str = "gather"

    def build(self) -> Signal:
        b = Sound(1, "T", opset=self.opset)
        frames = b.op("Mul", framed(b, "x", self.frame, self.hop, self.framing), b.like(window(self.frame, "hamming")))
        y = transformed(b, b.unsqueeze(frames, 3), b.scalar(self.size), onesided=self.onesided)
        return b.finish(y=(y, 4), expect={"reach": self.frame, "least": self.frame})


@dataclass(frozen=True)
class RoundTrip:
    """Spectra, squeezed, and back; trimmed to the input's length, by half a frame at both ends, or not at all."""

    frame: int
    hop: int
    how: str = "conv"
    overlap: str = "transpose"
    inverse: str = "matmul"
    pad: str = "reflect"
    trim: str = "length"
    guard: bool = False

    def build(self) -> Signal:
        b = Sound(1, "T")
        half, shape = self.frame // 2, window(self.frame, "hamming")
        spectra = b.op("Tanh", spectrum(b, centred(b, "x", self.frame, self.pad), self.frame, self.hop, how=self.how))
        y = synthesised(b, spectra, shape, self.hop, self.overlap, self.inverse, self.guard)
        if self.trim == "half":
            y = b.cut(y, 1, half, -half)
        elif self.trim == "length":
            y = b.cut(y, 1, half, b.op("Add", b.size("x", 1), b.scalar(half)))
        return b.finish(y=(y, 2), expect={"reach": self.frame, "least": half + 1})


@dataclass(frozen=True)
class Rate:
    """One rate to another, and perhaps spectra behind."""

    orig: int
    new: int
    how: str = "polyphase"
    width: int = 3
    frame: int = 0
    hop: int = 1

    def build(self) -> Signal:
        b = Sound(1, "T")
        y, rank = resampled(b, "x", self.orig, self.new, self.how, self.width), 2
        reach = max(self.orig, 4)
        if self.frame:
            y, rank, reach = spectrum(b, y, self.frame, self.hop, how="conv"), 4, reach + self.frame * self.orig
        return b.finish(y=(y, rank), expect={"reach": reach})


Case = Analysis | Transform | RoundTrip | Rate
MANY = attention.MANY
# Without shrinking, which takes minutes here; the long run does that.
FEW = settings(attention.FEW, max_examples=12, phases=[Phase.generate], report_multiple_bugs=False)


@st.composite
def sizes(draw: st.DrawFn, apart: bool = True, whole: bool = False) -> tuple[int, int]:
    """A frame and a hop: even frames; `apart`: gaps between frames too; `whole`: the hop divides the frame."""
    if whole:
        hop = draw(st.integers(1, 6))
        return hop * draw(st.sampled_from((2, 4))), hop
    frame = 2 * draw(st.integers(2, 12))
    return frame, draw(st.integers(1, frame + 4 if apart else frame // 2))


@st.composite
def analyses(draw: st.DrawFn) -> Analysis:
    how = draw(st.sampled_from(SPECTRA))
    frame, hop = draw(sizes(whole=how.endswith("blocks")))
    return Analysis(
        frame,
        hop,
        how,
        shape=draw(st.sampled_from(tuple(WINDOWS))),
        pad=draw(st.sampled_from(("", *PADS))),
        opset=draw(st.sampled_from((17, 18, 20))),
        feature=draw(st.sampled_from(("", "power", "mel"))),
    )


@st.composite
def transforms(draw: st.DrawFn) -> Transform:
    framing = draw(st.sampled_from(FRAMINGS))
    frame, hop = draw(sizes(whole=framing == "blocks"))
    size = draw(st.integers(max(frame - 5, 2), frame + 17))
    return Transform(frame, hop, size, draw(st.sampled_from((17, 20))), draw(st.integers(0, 1)), framing)


@st.composite
def round_trips(draw: st.DrawFn) -> RoundTrip:
    overlap = draw(st.sampled_from(OVERLAPS))
    how = draw(st.sampled_from(("conv", "stft", "dft gather")))
    frame, hop = draw(sizes(apart=False, whole=overlap == "shifted"))
    return RoundTrip(
        frame,
        hop,
        how,
        overlap,
        inverse=draw(st.sampled_from(("matmul", "idft") if frame > 2 else ("matmul",))),  # of two bins none is mirrored
        pad=draw(st.sampled_from(PADS)),
        trim=draw(st.sampled_from(("length", "half", "none"))),
        guard=draw(st.booleans()),
    )


@st.composite
def rates(draw: st.DrawFn) -> Rate:
    orig, new = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    shared = gcd(orig, new)
    how = draw(st.sampled_from(("polyphase", "float", "stuffed", "transposed")))
    frame, hop = draw(sizes()) if draw(st.booleans()) else (0, 1)
    return Rate(orig // shared, new // shared, how, draw(st.integers(2, 4)), frame, hop)


def run(case: Case, data: st.DataObject) -> None:
    built = case.build()
    factor = data.draw(st.sampled_from((1, 2, 3, 5)), label="factor")
    extra = data.draw(st.lists(st.integers(1, 90), min_size=3, max_size=3), label="extra")
    at = [built.least, *(built.least + built.reach * (i > 0) + e for i, e in enumerate(extra))]
    note(f"check({case!r}.build(), {factor}, {at})")
    check(built, factor, at)


FAMILIES: dict[str, st.SearchStrategy[Case]] = {
    "analysis": analyses(),
    "transform": transforms(),
    "round_trip": round_trips(),
    "rate": rates(),
}


@pytest.mark.parametrize("family", FAMILIES)
@FEW
@given(data=st.data())
def test_drawn(family: str, data: st.DataObject) -> None:
    run(data.draw(FAMILIES[family]), data)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@MANY
@given(data=st.data())
def test_drawn_many(family: str, data: st.DataObject) -> None:
    run(data.draw(FAMILIES[family]), data)


def test_windows_are_those_of_onnx() -> None:
    """The tables and the operators mean the same."""
    b = Sound(1, "T")
    parts = [b.op(f"{k.capitalize()}Window", b.scalar(8)) for k in WINDOWS]
    built = b.finish(y=(b.op("Concat", *parts, axis=0), 1))
    out = Batch(built.model).run(built.feeds(3)["x"])
    assert out is not None
    np.testing.assert_allclose(out["y"], np.concatenate([window(8, k) for k in WINDOWS]), atol=1e-6)
