"""What needs the whole recording is refused: the right node, why, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import pulsify
from tests.signal.build import Signal, Sound, framed, log_mel, power, spectrum
from tests.signal.graphs import BINS, HOP, N, features

Make = Callable[[Sound], str]


def mean(b: Sound) -> str:
    return b.op("Sub", "x", b.op("ReduceMean", "x", b.ints(1), called="mean"))


def mean_by_sum(b: Sound) -> str:
    count = b.cast(b.size("x", 1), b.inner)
    return b.op("Sub", "x", b.op("Div", b.op("ReduceSum", "x", b.ints(1), called="sum"), count))


def mean_by_product(b: Sound) -> str:
    turned = b.transpose("x", 0, 2, 1)
    ones = b.op("Expand", b.like(1.0), b.shape(b.size("x", 1), 1))
    return b.op("Add", turned, b.op("MatMul", turned, ones, called="product"))


def variance(b: Sound) -> str:
    """Of features whose mean is fixed."""
    spread = b.op("ReduceMean", b.op("Mul", "x", "x"), b.ints(1), called="variance")
    return b.op("Div", "x", b.op("Sqrt", b.op("Add", spread, b.like(1e-3))))


def instance_norm(b: Sound) -> str:
    one = b.like([1.0] * 6)
    return b.op("InstanceNormalization", b.transpose("x", 0, 2, 1), one, one, called="norm")


def lp_norm(b: Sound) -> str:
    return b.op("LpNormalization", "x", axis=1, p=2, called="norm")


def mean_variance_norm(b: Sound) -> str:
    return b.op("MeanVarianceNormalization", "x", axes=[1], called="norm")


def global_pool(b: Sound) -> str:
    turned = b.transpose("x", 0, 2, 1)
    return b.op("Sub", turned, b.op("GlobalAveragePool", turned, called="pool"))


def peak(b: Sound) -> str:
    loudest = b.op("ReduceMax", b.op("Abs", "x"), b.ints(1), called="peak")
    return b.op("Div", "x", loudest)


def last_level(b: Sound) -> str:
    """The total at the end, under every frame."""
    return b.op("Div", "x", b.op("Gather", b.op("CumSum", "x", b.scalar(1)), b.ints(-1), axis=1, called="last"))


def reversed_sum(b: Sound) -> str:
    return b.op("CumSum", "x", b.scalar(1), reverse=1, called="backwards")


def reversed_frames(b: Sound) -> str:
    ends = b.op("Expand", b.size("x", 1), b.shape(b.size("x", 0)))
    return b.op("ReverseSequence", "x", ends, time_axis=1, batch_axis=0, called="backwards")


def whisper() -> Signal:
    """No more than 8 below the loudest band of all."""
    b = Sound(1, "T")
    mel = log_mel(b, spectrum(b, "x", N, HOP, how="conv"), BINS, 6)
    floor = b.op("Sub", b.op("ReduceMax", mel, b.ints(1, 2), called="loudest"), b.like(8.0))
    return b.finish(y=(b.op("Max", mel, floor), 3))


def top_decibels() -> Signal:
    """The same over everything, without axes."""
    b = Sound(1, "T")
    p = b.op("Log", b.op("Add", power(b, spectrum(b, "x", N, HOP, how="matmul gather")), b.like(1e-3)))
    return b.finish(y=(b.op("Max", p, b.op("Sub", b.op("ReduceMax", p, called="loudest"), b.like(80.0))), 3))


def utterance_mean_of_mel() -> Signal:
    """NeMo and Kaldi: the mean of every band over the utterance."""
    b = Sound(1, "T")
    mel = log_mel(b, spectrum(b, "x", N, HOP), BINS, 6)
    return b.finish(y=(b.op("Sub", mel, b.op("ReduceMean", mel, b.ints(1), called="mean")), 3))


def peak_of_samples() -> Signal:
    b = Sound(1, "T")
    loud = b.op("Div", "x", b.op("ReduceMax", b.op("Abs", "x"), called="peak"))
    return b.finish(y=(framed(b, loud, N, HOP), 3))


REFUSED: dict[str, tuple[Make, str, str]] = {
    "mean": (mean, "mean", "ReduceMean"),
    "mean_by_sum": (mean_by_sum, "sum", "ReduceSum"),
    "mean_by_product": (mean_by_product, "product", "MatMul"),
    "variance": (variance, "variance", "ReduceMean"),
    "instance_norm": (instance_norm, "norm", "InstanceNormalization"),
    "lp_norm": (lp_norm, "norm", "LpNormalization"),
    "mean_variance_norm": (mean_variance_norm, "norm", "MeanVarianceNormalization"),
    "global_pool": (global_pool, "pool", "GlobalAveragePool"),
    "peak": (peak, "peak", "ReduceMax"),
    "last_level": (last_level, "last", "Gather"),
    "reversed_sum": (reversed_sum, "backwards", "CumSum"),
    "reversed_frames": (reversed_frames, "backwards", "ReverseSequence"),
}
WHOLE = {
    "whisper": (whisper, "loudest", "ReduceMax"),
    "top_decibels": (top_decibels, "loudest", "ReduceMax"),
    "utterance_mean_of_mel": (utterance_mean_of_mel, "mean", "ReduceMean"),
    "peak_of_samples": (peak_of_samples, "peak", "ReduceMax"),
}
NORMALISING = ("mean", "mean_by_sum", "variance", "instance_norm", "mean_variance_norm", "peak", *WHOLE)


def refusal(built: Signal) -> pulsify.NotStreamable:
    with pytest.raises(pulsify.NotStreamable) as caught:
        pulsify.stream(built.model, pulse=12, verify=False)
    return caught.value


def built(name: str) -> tuple[Signal, str, str]:
    if name in WHOLE:
        made, node, op = WHOLE[name]
        return made(), node, op
    make, node, op = REFUSED[name]
    return features(make), node, op


@pytest.mark.parametrize("name", [*REFUSED, *WHOLE])
def test_refused(name: str) -> None:
    signal, node, op = built(name)
    error = refusal(signal)
    if op.startswith(("Reduce", "Global", "MatMul", "Gather")):  # a fold, which only must not meet the frames again
        assert f"{op} '{node}'" in error.reason and error.op in ("Sub", "Div", "Add", "Max")
    else:
        assert (error.node, error.op) == (node, op)
    assert error.reason and error.hint


@pytest.mark.parametrize("name", NORMALISING)
def test_says_how_to_normalise(name: str) -> None:
    """It mixes all of time, and statistics that are fixed or run along would not."""
    signal, _, _ = built(name)
    error = refusal(signal)
    assert "over the whole stream" in error.reason
    assert any(word in error.hint for word in ("running", "cumulative", "fixed", "window"))


@pytest.mark.parametrize("opset", [17, 20])
def test_transform_of_the_whole_recording(opset: int) -> None:
    b = Sound(1, "T", 1, opset=opset)
    y = b.op("DFT", "x", axis=1, called="dft") if opset < 20 else b.op("DFT", "x", "", b.scalar(1), called="dft")
    error = refusal(b.finish(y=(y, 3)))
    assert (error.node, error.op) == ("dft", "DFT")
    assert "over the whole stream" in error.reason
    assert "STFT" in error.hint or "frame" in error.hint


def test_frame_as_long_as_the_recording() -> None:
    """One frame only, whatever the length."""
    b = Sound(1, "T", 1, opset=17)
    y = b.op("STFT", "x", b.scalar(HOP), "", b.size("x", 1), onesided=1, called="stft")
    error = refusal(b.finish(y=(y, 4)))
    assert (error.node, error.op) == ("stft", "STFT")
    assert error.reason and error.hint


@pytest.mark.parametrize("how", ["data", "backwards"])
def test_scattered_anywhere(how: str) -> None:
    """Places that follow from the data, or run from the end to the start."""
    b = Sound(1, "T", N)
    size = b.op("Mul", b.size("x", 1), b.scalar(N))
    if how == "data":
        places = b.cast(b.op("Abs", b.reshape("x", -1)), "int64")
    else:
        places = b.op("Sub", b.op("Sub", size, b.scalar(1)), b.range(size))
    silence = b.op("Expand", b.like(0.0), b.shape(size))
    y = b.op("ScatterElements", silence, places, b.reshape("x", -1), axis=0, reduction="add", called="scatter")
    error = refusal(b.finish(y=(y, 1)))
    assert (error.node, error.op) == ("scatter", "ScatterElements")
    assert error.reason and error.hint
