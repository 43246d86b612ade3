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
LIKE = [*SIZE, node("Reshape", "n one", "r")]
FACTOR = node("Cast", "n", "f", to=1)
GIVEN = {
    "zero": np.array(0),
    "by": np.array(1),
    "one": np.array([1]),
    "three": np.array(3),
    "rest": np.array([2, -1]),
    "w": np.ones((1, 4), np.float32),
    "table": np.ones(9, np.float32),
}
CHOICE = [node("Mod", "n three", "m"), node("Equal", "m zero", "c"), node("Where", "c x w", "y")]
READS = {
    "a factor": [*SIZE, FACTOR, node("Mul", "x f", "y")],
    "a choice by a remainder": [*SIZE, *CHOICE],
    "an entry of a table": [*SIZE, node("Gather", "table n", "f"), node("Add", "x f", "y")],
    "given out": [*SIZE, node("Neg", "n", "y")],
}
SIZES = {
    "a shape": [*LIKE, node("Concat", "r rest", "t", axis=0), node("Reshape", "x t", "y")],
    "rows in their order": [*SIZE, node("Range", "zero n by", "r"), node("Gather", "x r", "y")],
    "weights for all": [
        *LIKE,
        node("Concat", "r one", "t", axis=0),
        node("Expand", "w t", "e"),
        node("Add", "x e", "y"),
    ],
}


def counts(nodes: Sequence[onnx.NodeProto]) -> bool:
    return counts_streams(ir.from_proto(model(nodes, {"x": ["B", 4]}, ["y"], GIVEN)))


@pytest.mark.parametrize("name", READS)
def test_a_number_that_meets_frames(name: str) -> None:
    assert counts(READS[name])


@pytest.mark.parametrize("name", SIZES)
def test_a_size(name: str) -> None:
    assert not counts(SIZES[name])
