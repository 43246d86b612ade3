"""Relative shifts whose sizes, amounts or tables change with the length, at lengths that nobody sees by chance."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import pytest

import pulsify
from tests.attention.build import Builder
from tests.attention.check import Batch, difference, run_stream
from tests.attention.graphs import Case, build
from tests.attention.masks import Mask
from tests.attention.test_found import WIDTH, band, finish, heads

Change = Callable[[Builder, str], str]
DIM = WIDTH // 2


def once(at: int, otherwise: str = "Equal") -> Change:
    """1 where the length is (or is past) some number, else 0."""
    return lambda b, size: b.cast(b.op(otherwise, size, b.scalar(at)), np.int64)


def every(turn: int, at: int) -> Change:
    return lambda b, size: b.cast(b.op("Equal", b.op("Mod", size, b.scalar(turn)), b.scalar(at)), np.int64)


def never(b: Builder, size: str) -> str:
    return b.scalar(0)


def table(b: Builder, size: str, scaled: Change, by_row: int) -> str:
    low = b.op("Sub", b.scalar(1), size)
    offset = b.cast(b.op("Range", low, size, b.scalar(1)), np.float32)
    w = b.const(np.exp(-math.log(100.0) * np.arange(0, DIM, 2) / DIM))
    angle = b.op("Mul", b.unsqueeze(offset, 1), w)
    rows = b.op("Concat", b.op("Sin", angle), b.op("Cos", angle), axis=1)
    if by_row:
        place = b.range(b.op("Sub", b.op("Mul", size, b.scalar(2)), b.scalar(1)))
        far = b.cast(b.op("Greater", place, b.scalar(by_row)), np.float32)
        rows = b.op("Mul", rows, b.unsqueeze(b.op("Add", far, b.const(1.0)), 1))
    return b.op("Mul", rows, b.cast(b.op("Add", scaled(b, size), b.scalar(1)), np.float32))


def model(cut: Change = never, scaled: Change = never, by_row: int = 0) -> onnx.ModelProto:
    """`cut`: further columns that the shift leaves out; `scaled`: the table, by length; `by_row`: from some row on."""
    b = Builder(3)
    size = b.size("x", 1)
    q, k, v = (heads(b, "x") for _ in range(3))
    rows = table(b, size, scaled, by_row)
    raw = b.op("MatMul", q, b.transpose(rows, 1, 0))
    x = b.op("Pad", raw, b.const(np.array([0, 0, 0, 1, 0, 0, 0, 0])))
    x = b.reshape(x, 1, 2, -1, size)
    x = b.slice(x, 2, b.ints(1), b.ints(2**31))
    x = b.reshape(x, 1, 2, size, b.op("Sub", b.op("Mul", size, b.scalar(2)), b.scalar(1)))
    start = cut(b, size)
    x = b.slice(x, 3, b.vector(start), b.vector(b.op("Add", start, size)))
    scores = b.op("Add", b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2)), x)
    scores = b.op("Where", band(b, size, size, -5, 0), scores, b.const(-math.inf))
    return finish(b, b.op("MatMul", b.op("Softmax", scores, axis=-1), v))


CHANGES: dict[str, dict[str, Change]] = {
    "cut_once": {"cut": once(100)},
    "cut_from": {"cut": once(700, "Greater")},
    "cut_mod": {"cut": every(53, 20)},
    "scaled_once": {"scaled": once(100)},
    "scaled_from": {"scaled": once(900, "Greater")},
    "scaled_mod": {"scaled": every(53, 20)},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_with_the_length_is_refused(name: str) -> None:
    with pytest.raises(pulsify.NotStreamable) as caught:
        pulsify.stream(model(**CHANGES[name]), pulse=8, verify=False)
    assert caught.value.node
    assert caught.value.hint


def test_rows_that_change_with_their_place_are_refused() -> None:
    with pytest.raises(pulsify.NotStreamable, match="depend on the length"):
        pulsify.stream(model(by_row=200), pulse=8, verify=False)


def test_what_stays_streams() -> None:
    _compare(pulsify.stream(model(), pulse=4, verify=False), model(), (1, 2, 3, 5, 8, 30, 131))


def test_streams_end_where_batch_looks_up_something_else() -> None:
    """Behind the table's end batch goes on for two frames, with a slice that is cut short."""
    built = build(Case(Mask("chunk", 2, 1), scheme="xl_espnet_slice", longest=40))
    stream = pulsify.stream(built.model, pulse=4, verify=False)
    for n in (1, 7, 39, 40):
        feeds = built.feeds(n)
        assert not difference(run_stream(stream, built, feeds, [n])["y"], Batch(built.model).run(feeds)["y"])
    with pytest.raises(pulsify.InvalidLength, match="42 frames"):
        run_stream(stream, built, built.feeds(42), [42])


def _compare(stream: pulsify.Stream, given: onnx.ModelProto, lengths: tuple[int, ...]) -> None:
    batch = Batch(given)
    for n in lengths:
        x = np.random.default_rng(n).standard_normal((1, n, WIDTH)).astype(np.float32)
        session = stream.session()
        made = np.concatenate([session.push(x[:, : n // 2]), session.push(x[:, n // 2 :]), session.flush()], 1)
        assert not difference(made, batch.run({"x": x})["y"])
