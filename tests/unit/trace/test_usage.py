"""What a model does with a number, or a mask, is read off the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.frontend.load import load
from pulsify.trace.lengths import choose
from pulsify.trace.roles import settle
from pulsify.trace.usage import Finding, Use, uses
from tests.models import model, node, weights

POSITIONS = [
    node("Shape", "x", "sizes"), node("Gather", "sizes two", "t"), node("Range", "zero t one", "places"),
]  # fmt: skip
KNOWN: dict[str, Any] = {
    "zero": np.array(0), "one": np.array(1), "two": np.array(2), "first": np.array([0]), "last": np.array([2]),
    "nothing": np.array(0, np.float32), "low": np.array(-1e4, np.float32), "float_one": np.array(1, np.float32),
    "w": weights(2, 2, 3), "table": weights(50, 2, 1), "memory_places": np.arange(7), "hidden": weights(1, 2, 7),
}  # fmt: skip
INSIDE = [*POSITIONS, node("Less", "places n", "inside")]
USES: dict[str, tuple[list[onnx.NodeProto], Use]] = {
    "masks": ([*INSIDE, node("Where", "inside x nothing", "y")], Use.LENGTH),
    "masks by product": ([*INSIDE, node("Cast", "inside", "m", to=1), node("Mul", "x m", "y")], Use.LENGTH),
    "masks by padding": (
        [*POSITIONS, node("GreaterOrEqual", "places n", "after"), node("Where", "after nothing x", "y")], Use.LENGTH,
    ),
    "masks scores": (
        [*INSIDE, node("Cast", "inside", "m", to=1), node("Sub", "float_one m", "after"),
         node("Mul", "after low", "bias"), node("Add", "x bias", "y")], Use.LENGTH,
    ),
    "masks by a difference": (
        [*POSITIONS, node("Sub", "places n", "offset"), node("Less", "offset zero", "inside"),
         node("Where", "inside x nothing", "y")], Use.LENGTH,
    ),
    "masks by a number minus a difference": (
        [*POSITIONS, node("Sub", "places n", "offset"), node("Add", "one offset", "next"),
         node("Sub", "one next", "left"), node("Greater", "left zero", "inside"),
         node("Where", "inside x nothing", "y")], Use.LENGTH,
    ),
    "looks up the last frame": (
        [node("Sub", "n one", "end"), node("Unsqueeze", "end first", "ends"), node("Gather", "x ends", "y", axis=2)],
        Use.LENGTH,
    ),
    "divides": (
        [node("ReduceSum", "x last", "sum"), node("Cast", "n", "f", to=1), node("Div", "sum f", "mean"),
         node("Add", "x mean", "y")], Use.LENGTH,
    ),
    "cuts": ([node("Unsqueeze", "n first", "end"), node("Slice", "x first end last", "y")], Use.LENGTH),
    "spreads": (
        [node("Range", "zero n one", "r"), node("Cast", "r", "f", to=1), node("Add", "x f", "y")], Use.SIZE,
    ),
    "scales": ([node("Cast", "n", "f", to=1), node("Mul", "x f", "y")], Use.PLAIN),
    "chooses": ([*INSIDE, node("Conv", "x w", "h", pads=[1, 1]), node("Where", "inside x h", "y")], Use.OTHER),
    "masks the prompt": ([*INSIDE, node("Where", "inside nothing x", "y")], Use.OTHER),
    "marks a place": (
        [*POSITIONS, node("Equal", "places n", "there"), node("Where", "there x nothing", "y")], Use.PLAIN,
    ),
    "chooses at a place": (
        [*POSITIONS, node("Equal", "places n", "there"), node("Neg", "x", "h"), node("Where", "there x h", "y")],
        Use.OTHER,
    ),
    "is an index": ([node("Gather", "table n", "row"), node("Add", "x row", "y")], Use.OTHER),
    "is a threshold": (
        [node("Cast", "n", "f", to=1), node("Greater", "x f", "big"), node("Where", "big x nothing", "y")], Use.OTHER,
    ),
    "masks a memory": (
        [node("Less", "memory_places n", "inside"), node("Where", "inside memory nothing", "kept"),
         node("ReduceSum", "kept last", "sum"), node("Add", "x sum", "y")], Use.OTHER,
    ),
}  # fmt: skip


def using(case: str, name: str = "n", dims: Sequence[Any] = ()) -> onnx.ModelProto:
    """x [1, 2, T] and a whole number that is used in some way."""
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in USES[case][0]]
    for n in nodes:
        n.input[:] = [name if i == "n" else i for i in n.input]
    read = {i for n in nodes for i in n.input}
    inputs: dict[str, Any] = {"x": [1, 2, "T"], name: list(dims)}
    inputs |= {"memory": [1, 2, 7]} if "memory" in read else {}
    return model(nodes, inputs, ["y"], {k: v for k, v in KNOWN.items() if k in read}, dtypes={name: np.int64})


def findings(case: str) -> set[Use]:
    tracer = settle(load(using(case)), bind={"n": "T"})
    return {f.use for f in uses(tracer.model, choose(tracer), "n")}


@pytest.mark.parametrize("case", USES)
def test_uses_are_told_apart(case: str) -> None:
    assert findings(case) == {USES[case][1]}


def attended(keys: str) -> onnx.ModelProto:
    """Attention-24, of which as many keys count as the last input says."""
    nodes = [node("Attention", f"x {keys} {keys} _ _ _ nonpad_kv_seqlen", "y", q_num_heads=1, kv_num_heads=1)]
    inputs: dict[str, Any] = {"x": [1, "T", 4], "nonpad_kv_seqlen": [1], "memory": [1, 7, 4]}
    inputs = {k: v for k, v in inputs.items() if k != "memory" or keys == "memory"}
    return model(nodes, inputs, ["y"], dtypes={"nonpad_kv_seqlen": np.int64}, opset=24)


@pytest.mark.parametrize(("keys", "is_length"), [("x", True), ("memory", False)])
def test_keys_that_count_are_those_of_the_stream_or_of_a_memory(keys: str, is_length: bool) -> None:
    tracer = settle(load(attended(keys)), bind={"nonpad_kv_seqlen": "T"})
    found = {f.use for f in uses(tracer.model, choose(tracer), "nonpad_kv_seqlen")}
    assert (Use.OTHER not in found) == is_length and (Use.LENGTH in found) == is_length


def test_a_table_of_positions_that_is_cut_to_the_stream_is_the_streams() -> None:
    """As exporters keep arange(5000): compared whole, and cut afterwards."""
    nodes = [
        node("Less", "long_table n", "all"), node("Shape", "x", "s"), node("Slice", "s last three", "t"),
        node("Slice", "all first t first", "inside"), node("Where", "inside x nothing", "y"),
    ]  # fmt: skip
    known = {"long_table": np.arange(5000), "first": np.array([0]), "last": np.array([2]), "three": np.array([3]),
             "nothing": np.array(0, np.float32)}  # fmt: skip
    proto = model(nodes, {"x": [1, 2, "T"], "n": []}, ["y"], known, dtypes={"n": np.int64})
    tracer = settle(load(proto), bind={"n": "T"})
    assert {f.use for f in uses(tracer.model, choose(tracer), "n")} == {Use.LENGTH}


def test_a_finding_names_its_node() -> None:
    assert str(Finding(Use.LENGTH, "w", "Where", "masks the frames of 'x'")) == "Where 'w' masks the frames of 'x'"
    assert str(Finding(Use.LENGTH, "", "", "it is counted in output 'n'")) == "it is counted in output 'n'"
