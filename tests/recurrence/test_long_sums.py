"""Running sums far along: the bits of batch, since every addition rounds as it does there.

Difference of running sums (a moving mean), and of a mean of squares and a squared mean (a running variance), show the
rounding of sums that are much larger than what is given out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.errors import NotStreamable
from tests.models import Array, model, node, run_batch, run_stream

NAN = float("nan")
FAR = 100_000
BACKENDS = ("ort", "native", "torch", "reference")
WINDOW = 25


def moving_mean(batch: int | str = 1) -> onnx.ModelProto:
    """Sum up to here less the sum up to `WINDOW` frames before."""
    nodes = [
        node("CumSum", "x axis", "sums"), node("Pad", "sums front", "late"),
        node("Slice", "late zero end two", "before"), node("Sub", "sums before", "window"),
        node("Mul", "window share", "y"),
    ]  # fmt: skip
    values = {
        "axis": np.array(2), "two": np.array([2]), "front": np.array([0, 0, WINDOW, 0, 0, 0]),
        "zero": np.array([0]), "end": np.array([-WINDOW]), "share": np.float32(1 / WINDOW),
    }  # fmt: skip
    return model(nodes, {"x": [batch, 2, "T"]}, ["y"], values)


def running_variance(batch: int | str = 1) -> onnx.ModelProto:
    """E[x^2] - E[x]^2 of all frames up to here; what is counted is a running sum of ones."""
    nodes = [
        node("Sub", "x x", "none"), node("Exp", "none", "ones"), node("CumSum", "ones two", "count"),
        node("CumSum", "x two", "sums"), node("Div", "sums count", "mean"), node("Mul", "mean mean", "mean2"),
        node("Mul", "x x", "square"), node("CumSum", "square two", "squares"), node("Div", "squares count", "power"),
        node("Sub", "power mean2", "y"),
    ]  # fmt: skip
    return model(nodes, {"x": [batch, 2, "T"]}, ["y"], {"two": np.array(2)})


def sums(dims: list[Any], axis: int = 2, dtype: type = np.float32, **attributes: int) -> onnx.ModelProto:
    nodes = [node("CumSum", "x axis", "y", **attributes)]
    return model(nodes, {"x": dims}, ["y"], {"axis": np.array(axis)}, dtypes={"x": dtype, "y": dtype})


def offset(*dims: int, dtype: type = np.float32, seed: int = 0) -> Array:
    made: Array = (np.random.default_rng(seed).standard_normal(dims) * 3 + 10).astype(dtype)
    return made


def cuts(frames: int, size: int, seed: int = 0) -> list[int]:
    """Where a stream is cut into chunks of about this size."""
    sizes = np.random.default_rng(seed).integers(0, 2 * size, frames // size)
    places = np.cumsum(sizes)
    return [int(s) for s in np.diff(places[places < frames], prepend=0)]


def streamed(
    stream: pulsify.Stream, x: Array, size: int, backend: str = "ort", axis: int = -1, **options: Any
) -> Array:
    padding = {"padding": NAN} if x.dtype.kind == "f" else {}
    return run_stream(stream.session(backend=backend, **padding, **options), x, cuts(x.shape[axis], size), axis)


def same_bits(got: Array, want: Array) -> None:
    """Also of the sign of zero."""
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize(("pulse", "size"), [(1000, 1000), (1000, 7001), (640, 333)])
@pytest.mark.parametrize(("graph", "frames"), [(moving_mean, FAR), (running_variance, 2 * FAR)])
@pytest.mark.parametrize("backend", ["ort", "native", "torch"])
def test_far_along_a_stream_has_the_bits_of_batch(graph: Any, frames: int, pulse: int, size: int, backend: str) -> None:
    proto, x = graph(), offset(1, 2, frames)
    stream = pulsify.stream(proto, pulse, verify=False)
    same_bits(streamed(stream, x, size, backend), run_batch(proto, x)["y"])


@pytest.mark.parametrize("graph", [moving_mean, running_variance])
def test_far_along_on_onnx_s_own_evaluator(graph: Any) -> None:
    proto, x = graph(), offset(1, 2, 20_000)
    stream = pulsify.stream(proto, 1000, verify=False)
    same_bits(streamed(stream, x, 3000, "reference"), run_batch(proto, x)["y"])


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("graph", [moving_mean, running_variance])
def test_frame_by_frame_and_as_saved(graph: Any, portable: bool) -> None:
    proto, x = graph(), offset(1, 2, 3000)
    for pulse in (1, 7):
        stream = pulsify.stream(proto, pulse, verify=False)
        same_bits(streamed(stream, x, 50, portable=portable), run_batch(proto, x)["y"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_every_type_inclusive_and_exclusive_from_minus_zero_on(dtype: type, exclusive: int, backend: str) -> None:
    proto, x = sums([1, 2, "T"], dtype=dtype, exclusive=exclusive), offset(1, 2, 700, dtype=dtype)
    x[..., :5] = -0.0
    want = run_batch(proto, x)["y"]
    for pulse in (1, 3, 16):
        same_bits(streamed(pulsify.stream(proto, pulse, verify=False), x, 40, backend), want)


@pytest.mark.parametrize("backend", ["ort", "native", "torch"])
@pytest.mark.parametrize(("dims", "time"), [(["T", 3, 2], 0), ([2, "T", 3], 1), ([2, 3, "T"], -1), (["B", "T"], 1)])
def test_time_on_any_axis(dims: list[Any], time: int, backend: str) -> None:
    proto = sums(dims, time)
    sizes = [2000 if d == "T" else 2 if d == "B" else d for d in dims]
    x, batch = offset(*sizes), {"batch": 2} if "B" in dims else {}
    stream = pulsify.stream(proto, 16, verify=False)
    axis = time % len(dims)
    same_bits(streamed(stream, x, 170, backend, axis, **batch), run_batch(proto, x)["y"])


@pytest.mark.parametrize("backend", ["ort", "native", "torch"])
@pytest.mark.parametrize("attributes", [{}, {"reverse": 1}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}])
def test_sums_along_another_axis_are_frame_by_frame(attributes: dict[str, int], backend: str) -> None:
    proto, x = sums([1, 9, "T"], 1, **attributes), offset(1, 9, 500)
    x[:, :, :9] = -0.0
    same_bits(streamed(pulsify.stream(proto, 16, verify=False), x, 60, backend), run_batch(proto, x)["y"])


def test_a_sum_from_the_end_is_refused() -> None:
    with pytest.raises(NotStreamable) as caught:
        pulsify.stream(sums([1, 2, "T"], reverse=1), 16)
    assert caught.value.op == "CumSum" and "from the end" in caught.value.reason


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("ahead", [1, 5, 40])
def test_a_look_ahead_puts_frame_0_anywhere_in_a_pulse(ahead: int, exclusive: int) -> None:
    """The frame `ahead` before and after are added first, exactly: small integers."""
    nodes = [
        node("Conv", "x w", "h", pads=[ahead, ahead], dilations=[ahead]),
        node("CumSum", "h two", "y", exclusive=exclusive),
    ]
    proto = model(nodes, {"x": ["B", 2, "T"]}, ["y"], {"w": np.ones((2, 2, 3), np.float32), "two": np.array(2)})
    x = np.random.default_rng(1).integers(1, 9, (3, 2, 5000)).astype(np.float32) + np.float32(2**14)
    want = run_batch(proto, x)["y"]
    for pulse in (1, 3, 16):
        stream = pulsify.stream(proto, pulse, verify=False)
        length = 5000 if pulse > 1 else 400
        got = streamed(stream, x[..., :length], 90, batch=3)
        np.testing.assert_array_equal(got[..., : length - ahead], want[..., : length - ahead])


@pytest.mark.parametrize("backend", ["ort", "native"])
def test_streams_of_a_pool_each_have_the_bits_of_batch(backend: str) -> None:
    proto = moving_mean("B")
    stream = pulsify.stream(proto, 100, verify=False)
    given = [offset(1, 2, frames, seed=frames) for frames in (20_000, 15_050, 9_999)]
    pool = pulsify.Pool(stream, 4, backend=backend)
    lanes = [pool.open() for _ in given]
    parts: list[list[Array]] = [[] for _ in given]
    for first in range(0, 20_000, 1000):
        for lane, x in zip(lanes, given, strict=True):
            if first < x.shape[-1]:
                lane.push(x[..., first : first + 1000])
                if first + 1000 >= x.shape[-1]:
                    lane.flush()
        for lane, result in pool.run().items():
            parts[lanes.index(lane)].append(result)
    for x, part in zip(given, parts, strict=True):
        same_bits(np.concatenate(part, -1), run_batch(proto, x)["y"])


def test_products_are_carried_likewise() -> None:
    nodes = [node("CumProd", "x two", "y")]
    proto = model(nodes, {"x": [1, 2, "T"]}, ["y"], {"two": np.array(2)}, opset=26)
    x = np.exp(np.random.default_rng(0).standard_normal((1, 2, 20_000)) / 100).astype(np.float32)
    want = run_batch(proto, x)["y"]
    for backend in ("ort", "native", "torch"):
        same_bits(streamed(pulsify.stream(proto, 250, verify=False), x, 999, backend), want)


@pytest.mark.parametrize("pulse", [1, 16])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("backend", ["ort", "torch", "reference"])
def test_half_precision_is_added_up_in_single_as_the_runtime_does(backend: str, exclusive: int, pulse: int) -> None:
    """2048 + 1 is 2048 in half precision: a sum that is kept in it stays there."""
    proto = sums([1, 2, "T"], dtype=np.float16, exclusive=exclusive)
    x = np.ones((1, 2, 3000), np.float16)
    got = streamed(pulsify.stream(proto, pulse), x, 250, backend)
    same_bits(got, run_batch(proto, x)["y"])
    assert got.max() > 2900


CELLS_IN_HALF: dict[str, tuple[int, dict[str, Any]]] = {
    "RNN": (1, {"activations": ["Relu"]}), "GRU": (3, {}), "LSTM": (4, {}),
}  # fmt: skip


@pytest.mark.parametrize("pulse", [1, 16])
@pytest.mark.parametrize("op", CELLS_IN_HALF)
def test_cells_in_half_precision_keep_their_state_in_single_as_the_runtime_does(op: str, pulse: int) -> None:
    """The first adds up what comes in; each begins with a state that is given, and gives out its last as well."""
    gates, options = CELLS_IN_HALF[op]
    rng = np.random.default_rng(0)
    values = {
        "w": np.concatenate([np.eye(2)] * gates)[None].astype(np.float16),
        "r": (np.eye(2)[None] if gates == 1 else rng.standard_normal((1, 2 * gates, 2)) * 0.4).astype(np.float16),
        "first": np.full((1, 1, 2), 0.25, np.float16), "one": np.array([1]),
    }  # fmt: skip
    nodes = [
        node(op, "x w r _ _ first", "all last", hidden_size=2, **options),
        node("Squeeze", "all one", "y"),
    ]  # fmt: skip
    types = dict.fromkeys(("x", "y", "last"), np.float16)
    proto = model(nodes, {"x": ["T", 1, 2]}, ["y", "last"], values, dtypes=types)
    x = (np.full((3000, 1, 2), 0.01) if gates == 1 else rng.standard_normal((500, 1, 2))).astype(np.float16)
    stream, want = pulsify.stream(proto, pulse), run_batch(proto, x)
    got = stream.run(x, 250)
    assert {k: v.dtype for k, v in got.items()} == dict.fromkeys(want, np.float16)
    for name in want:
        same_bits(got[name], want[name])
