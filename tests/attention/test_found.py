"""Faults that were found once, each as small as it gets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.attention.build import Array, Builder
from tests.attention.check import Batch, difference
from tests.attention.graphs import Case, build
from tests.attention.masks import Mask, Writing

WIDTH = 8
INPUTS: Any = {"x": ([1, "T", WIDTH], np.float32)}


def heads(b: Builder, x: str, count: int = 2) -> str:
    product = b.op("MatMul", x, b.weight(WIDTH, WIDTH, scale=0.5))
    return b.transpose(b.reshape(product, 0, 0, count, WIDTH // count), 0, 2, 1, 3)


def band(b: Builder, rows: str, cols: str, low: int, high: int) -> str:
    """low <= j - i <= high."""
    apart = b.op("Sub", b.unsqueeze(b.range(cols), 0), b.unsqueeze(b.range(rows), 1))
    return b.op("And", b.op("GreaterOrEqual", apart, b.scalar(low)), b.op("LessOrEqual", apart, b.scalar(high)))


def finish(b: Builder, seen: str) -> onnx.ModelProto:
    b.op("Identity", b.reshape(b.transpose(seen, 0, 2, 1, 3), 0, 0, -1), called="y")
    return b.model(INPUTS, {"y": (3, np.float32)})


def attention(low: int, high: int, fill: float = -math.inf, zeroed: bool = False) -> onnx.ModelProto:
    b = Builder(1)
    q, k, v = (heads(b, "x") for _ in range(3))
    shown = band(b, b.size("x", 1), b.size("x", 1), low, high)
    scores = b.op("Where", shown, b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2)), b.const(fill))
    weights = b.op("Softmax", scores, axis=-1)
    return finish(b, b.op("MatMul", b.op("Where", shown, weights, b.const(0.0)) if zeroed else weights, v))


def frames(count: int) -> Array:
    return np.random.default_rng(count).standard_normal((1, count, WIDTH)).astype(np.float32)


def check(model: onnx.ModelProto, pulse: int, lengths: tuple[int, ...], **options: Any) -> None:
    stream = pulsify.stream(model, pulse=pulse, verify=False, **options)
    batch = Batch(model)
    for length in lengths:
        x = frames(length)
        for portable in (True, False):
            session = stream.session(padding=math.nan, portable=portable)
            got = np.concatenate([session.push(x), session.flush()], 1)
            problem = difference(got, batch.run({"x": x})["y"])
            assert not problem, f"length {length} portable {portable}: {problem}"


@pytest.mark.parametrize("pulse", [1, 3, 4])
@pytest.mark.parametrize("fill", [-math.inf, -1e4])
@pytest.mark.parametrize(("low", "high"), [(-5, -1), (1, 3), (-9, -5)])
def test_rows_without_keys_are_zero_where_batch_says_so(low: int, high: int, fill: float, pulse: int) -> None:
    check(attention(low, high, fill, zeroed=True), pulse, (1, 2, 5, 12, 33))


def test_keys_that_come_several_times() -> None:
    """In front of the stream there are more keys than rows: their wire is wider than the pulse."""
    b = Builder(1)
    more = b.op("Pad", "x", b.ints(0, 3, 0, 0, 0, 0))
    q, k, v = heads(b, "x"), heads(b, more), heads(b, more)
    shown = band(b, b.size("x", 1), b.size(more, 1), -6, 3)
    scores = b.op("Where", shown, b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2)), b.const(-np.inf))
    check(finish(b, b.op("MatMul", b.op("Softmax", scores, axis=-1), v)), 2, (1, 7, 40))


def test_more_heads_in_the_bias_than_in_the_scores() -> None:
    b = Builder(1)
    q, k, v = (heads(b, "x", 1) for _ in range(3))
    size = b.size("x", 1)
    hidden = b.op("Where", band(b, size, size, -6, 0), b.const(0.0), b.const(-np.inf))
    scores = b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2))
    added = b.op("Add", scores, b.op("Add", hidden, b.const(np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1))))
    check(finish(b, b.op("MatMul", b.op("Softmax", added, axis=-1), v)), 1, (1, 40))


def test_a_transpose_without_permutation() -> None:
    b = Builder(1)
    q, k, v = (heads(b, "x") for _ in range(3))
    size = b.size("x", 1)
    scores = b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2))
    hidden = b.op("Where", band(b, size, size, -6, 0), scores, b.const(-np.inf))
    seen = b.op("Transpose", b.op("MatMul", b.op("Softmax", hidden, axis=-1), v))  # [d, T, H, 1]
    check(finish(b, b.transpose(seen, 3, 2, 1, 0)), 1, (1, 40))


def test_a_long_look_back_is_seen_to_its_bound() -> None:
    check(attention(-1500, 0), 16, (2, 1600))


def test_a_bound_too_far_to_see_is_no_unbounded_look_back() -> None:
    """Whether the past is unbounded cannot be told, so it is not kept whole either."""
    for options in ({}, {"unbounded": "grow"}):
        with pytest.raises(pulsify.NotStreamable, match="look at streams of 2000") as caught:
            pulsify.stream(attention(-20000, 0), pulse=16, **options)
        assert caught.value.op == "MatMul"


def test_masks_of_data_alone_are_named() -> None:
    b = Builder(1)
    q, k, v = (heads(b, "x") for _ in range(3))
    scores = b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2))
    loud = b.op("Greater", scores, b.const(0.1))
    hidden = b.op("Where", loud, scores, b.const(-np.inf), called="hidden")
    model = finish(b, b.op("MatMul", b.op("Softmax", hidden, axis=-1), v))
    with pytest.raises(pulsify.NotStreamable, match="depends on the data") as caught:
        pulsify.stream(model, pulse=4)
    assert caught.value.op == "Where"
    assert "positions" in caught.value.hint


def test_pulses_that_are_no_multiple_of_the_chunk_run_for_ever() -> None:
    """Templates by phase do not keep the counter from being set back."""
    stream = pulsify.stream(build(Case(Mask("chunk", 4, 2))).model, pulse=3)
    assert stream.spec.rebase > 0
    assert stream.spec.rebase % 12 == 0


@pytest.mark.parametrize("chunk", [Mask("chunk", 1, 0), Mask("chunk", 4, 1), Mask("chunk", 3, 2, 1)])
def test_a_table_of_masks_that_ends_is_looked_at_to_its_end(chunk: Mask) -> None:
    """Behind a stride its last row is that of two lengths."""
    check(build(Case(chunk, writing=Writing("buffer"), subsample=True)).model, 2, (1, 7, 40))


@pytest.mark.parametrize("backend", ["ort", "torch"])
def test_a_slope_over_a_growing_past_is_the_same_for_all_streams(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distances of several streams met the slopes of several heads on one axis."""
    options: dict[str, Any] = {"backend": backend}
    if backend == "torch":
        pytest.importorskip("torch")
        monkeypatch.setattr("pulsify.backends.torch.backend.attention_by", lambda device, low: "torch")
        options["device"] = "cpu"
    built = build(Case(Mask("causal"), batch="B", scheme="alibi"))
    stream = pulsify.stream(built.model, pulse=4, unbounded="grow", verify=False)
    session, feeds = stream.session(batch=3, **options), built.feeds(21)
    made = [session.push(feeds["x"][:, n : n + 5]) for n in range(0, 21, 5)]
    got = np.concatenate([*made, session.flush()], 1)
    np.testing.assert_allclose(got, Batch(built.model).run(feeds)["y"], atol=1e-5)
