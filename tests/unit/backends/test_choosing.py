"""C where it pays and refuses what ONNX Runtime does; ONNX Runtime elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.backends.choosing import multiply_adds, never_asks_in_vain, small_enough
from pulsify.backends.native import library
from pulsify.core.errors import CompileFailed
from tests import models
from tests.models import model, node, weights

needs_c = pytest.mark.skipif(not library.available(), reason="no C compiler")


def words() -> onnx.ModelProto:
    """Rows of a table, as the input says."""
    nodes, table = [node("Gather", "table x", "y")], weights(7, 3)
    return model(nodes, {"x": ["B", "T"]}, ["y"], {"table": table}, dtypes={"x": np.int64})


def worked_out() -> onnx.ModelProto:
    """As numbers made of the input say."""
    nodes = [node("Cast", "x", "i", to=7), node("Gather", "table i", "y")]
    return model(nodes, {"x": ["B", "T"]}, ["y"], {"table": weights(7, 3)})


def places() -> onnx.ModelProto:
    """As the clock says."""
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s one", "t"), node("Range", "zero t one", "p"),
        node("Mod", "p seven", "m"), node("Gather", "table m", "e"), node("Add", "x e", "y"),
    ]  # fmt: skip
    numbers = {"zero": np.array(0), "one": np.array(1), "seven": np.array(7)}
    return model(nodes, {"x": ["B", "T"]}, ["y"], {**numbers, "table": weights(7)})


def stream(build: Any) -> pulsify.Stream:
    return pulsify.stream(build(), pulse=4, verify=False)


@pytest.mark.parametrize(("build", "never"), [(words, False), (worked_out, False), (places, True)])
def test_who_may_ask_for_a_row_that_is_not_there(build: Any, never: bool) -> None:
    made = stream(build)
    assert never_asks_in_vain(made.model, made.spec) == never


def test_small_by_its_products() -> None:
    made = stream(lambda: models.causal("B"))
    assert 0 < multiply_adds(made.model) < 1000 and small_enough(made.model, made.spec)


@needs_c
def test_a_row_that_is_not_there_is_an_error_where_nobody_said_what_computes() -> None:
    made, bad = stream(words), np.array([[0, 9, 1, 2]])
    pool = pulsify.Pool(made, 2, backend=None)
    lane = pool.open()
    lane.push(bad)
    with pytest.raises(pulsify.InvalidChunk, match="failed on a chunk"):
        pool.run()
    with pytest.raises(pulsify.InvalidChunk, match="failed on this chunk"):
        made.session(backend=None).push(bad)


@needs_c
def test_an_opening_that_is_none_as_c_leaves_the_stream_to_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pulsify.stream(models.mirrored_lstm("B"), pulse=2, verify=False)
    assert made.opening is not None
    assert made.quickest() == made.quickest(pooled=True) == "native"

    def refused(*_: Any) -> None:
        raise CompileFailed("no")

    monkeypatch.setattr(made.opening, "_opened", refused)
    assert made.quickest() == made.quickest(pooled=True) == "ort"


@needs_c
def test_several_threads_are_for_onnx_runtime() -> None:
    made = stream(lambda: models.causal("B"))
    assert [pulsify.Pool(made, 2, backend=None, threads=n).backend for n in (1, 2)] == ["native", "ort"]
