"""Which steps compute with the number of streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pulsify.backends.counting import counts_streams
from tests.models import model, node

SIZE = [node("Shape", "x", "s"), node("Gather", "s zero", "n")]
GIVEN = {
    "zero": np.array(0),
    "one": np.array([1]),
    "three": np.array(3),
    "rest": np.array([2, -1]),
    "w": np.ones((1, 1)),
}
READS = {
    "a factor": [*SIZE, node("Cast", "n", "f", to=1), node("Mul", "x f", "y")],
    "a choice by a remainder": [*SIZE, node("Mod", "n three", "m"), node("Equal", "m zero", "c"), node("Where", "c x f", "y")],
    "a row of a table": [*SIZE, node("Gather", "table n", "f"), node("Add", "x f", "y")],
    "given out": [*SIZE, node("Neg", "n", "y")],
}  # fmt: skip
READS["a choice by a remainder"].insert(0, node("Abs", "x", "f"))
SIZES = {
    "a shape": [*SIZE, node("Reshape", "n one", "r"), node("Concat", "r rest", "t", axis=0), node("Reshape", "x t", "y")],
    "rows in their order": [*SIZE, node("Range", "zero n by", "r"), node("Gather", "x r", "y")],
    "weights for all": [*SIZE, node("Reshape", "n one", "r"), node("Concat", "r one", "t", axis=0), node("Expand", "w t", "e"), node("Concat", "e e", "y", axis=0)],
}  # fmt: skip


def counts(nodes: Sequence[onnx.NodeProto]) -> bool:
    given = {**GIVEN, "by": np.array(1), "table": np.ones(9, np.float32)}
    return counts_streams(ir.from_proto(model(nodes, {"x": ["B", 4]}, ["y"], given)))


@pytest.mark.parametrize("name", READS)
def test_a_number_that_meets_frames(name: str) -> None:
    assert counts(READS[name])


@pytest.mark.parametrize("name", SIZES)
def test_a_size(name: str) -> None:
    assert not counts(SIZES[name])
