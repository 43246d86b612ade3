"""Signal graphs, one idea each, exact from the first frame to the last at any length in any chunks.

Outputs agree to 5e-6 of their scale; 5e-7 is what is seen, as ONNX Runtime's products and convolutions of another size
add up in another order. 1e-5 where a logarithm near its floor magnifies the last bit. Resize by 160/441 allows 1e-4:
the batch model computes places in float32, and is 4e-5 off after 500 samples, 4e-4 after 5000. int16 must be equal.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.attention.build import Array
from tests.property.check import Batch
from tests.selection import rotated
from tests.signal.build import OVERLAPS, Signal, Sound, overlap_added, real_frames, spectrum
from tests.signal.check import check
from tests.signal.graphs import BINS, GRAPHS, HOP, TORCH, N, round_trip

WAYS = ("conv", "dft gather", "dft gather_count", "dft slices", "matmul blocks", "matmul eye")


@pytest.mark.parametrize("name", rotated(GRAPHS))
def test_exact(name: str) -> None:
    """At pulses of one granule and of three."""
    built = GRAPHS[name]()
    for factor in (3,) if name in TORCH else (1, 3):
        check(built, factor)


def test_enough() -> None:
    assert len(GRAPHS) - len(TORCH) >= 60


# ---- the delay is the smallest there is: a frame is out with the pulse that brings its last sample


@pytest.mark.parametrize(
    ("name", "factor", "delay"),
    [
        ("stft", 1, 3),
        ("stft", 4, 3),
        ("stft_every_sample", 1, 15),
        ("stft_gaps", 1, 0),
        ("dft_gather", 1, 3),
        ("conv_centre_constant", 1, 1),
        ("conv_centre_reflect", 1, 1),  # the first frame mirrors the ninth sample, and is waited for in the opening
        ("conv_centre_reflect", 3, 1),
        ("stft_centre_constant", 1, 1),
        ("stft_centre_reflect", 1, 1),
        ("dft17_onesided", 1, 0),
        ("inverse_idft17", 1, 0),
        ("overlap_transpose", 1, 0),
        ("overlap_col2im", 1, 0),
        ("overlap_scatter_nd", 1, 0),
        ("overlap_shifted", 1, 0),
        ("normalised_transpose", 1, 0),  # no window that comes later reaches back
        ("round_trip_length", 3, 11),  # the window begins with a zero
        ("preemphasis_concat", 1, 0),
        ("deltas", 1, 2),
        ("running_variance", 1, 0),
    ],
)
def test_delay(name: str, factor: int, delay: int) -> None:
    built = GRAPHS[name]()
    stream = check(built, factor, at=(4 * N + 3,))
    assert stream.outputs[0].delay == delay


@pytest.mark.parametrize(("name", "granule"), [("resample_24k_16k", 3), ("stft_uneven", 6)])
def test_granularity(name: str, granule: int) -> None:
    built = GRAPHS[name]()
    assert check(built, 1, at=(2 * granule + built.reach,)).spec.granularity == granule


# ---- the graphs compute what they say


def outcome(built: Signal, length: int) -> Array:
    out = Batch(built.model).run(built.feeds(length)["x"])
    assert out is not None
    return out["y"]


@pytest.mark.parametrize("how", WAYS)
def test_ways_to_write_a_spectrum(how: str) -> None:
    def made(way: str) -> Array:
        b = Sound(1, "T", opset=17)
        return outcome(b.finish(y=(spectrum(b, "x", N, HOP, how=way), 4)), 50)

    np.testing.assert_allclose(made(how), made("stft"), atol=2e-5)


@pytest.mark.parametrize("how", OVERLAPS)
def test_ways_to_overlap(how: str) -> None:
    def made(way: str) -> Array:
        b = Sound(1, "T", N)
        return outcome(b.finish(y=(overlap_added(b, "x", N, HOP, way), 2)), 9)

    np.testing.assert_allclose(made(how), made("transpose"), atol=1e-6)


@pytest.mark.parametrize("opset", [17, 20])
def test_ways_to_invert(opset: int) -> None:
    """Of spectra whose first and last bin, which must be real, are zero."""

    def made(way: str) -> Array:
        b = Sound(1, "T", BINS, 2, opset=opset)
        spectra = b.op("Mul", "x", b.like(np.pad(np.ones((BINS - 2, 2)), ((1, 1), (0, 0)))))
        return outcome(b.finish(y=(real_frames(b, spectra, N, way), 3)), 9)

    np.testing.assert_allclose(made("idft"), made("matmul"), atol=1e-5)


@pytest.mark.parametrize("how", OVERLAPS)
def test_there_and_back(how: str) -> None:
    """What went in comes out."""
    built = round_trip(how, True)
    np.testing.assert_allclose(outcome(built, 47), built.feeds(47)["x"], atol=1e-5)
