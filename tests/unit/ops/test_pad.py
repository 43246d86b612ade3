"""Pad: frames in front of and behind the stream, cuts, and amounts that the model works out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.analysis.facts import Wire
from pulsify.core.reach import shift
from pulsify.core.spec import Condition
from tests.models import model, node
from tests.unit.convert.contexts import asked_rule, check_plan, frames_made, planned, refused

NUMBERS = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "three": np.array([3]),
           "four": np.array([4])}  # fmt: skip
SIZE = [node("Shape", "x", "dims"), node("Slice", "dims two three", "t")]


def pad(before: int, after: int, mode: str = "constant") -> onnx.ModelProto:
    amounts = {"pads": np.array([0, 0, before, 0, 0, after])}
    return model([node("Pad", "x pads", "y", mode=mode)], {"x": [1, 2, "T"]}, ["y"], amounts)


def computed(nodes: list[onnx.NodeProto], pads: str, mode: str = "constant") -> onnx.ModelProto:
    """pads: in front and behind, worked out from the length t."""
    joined = node("Concat", f"zero zero {pads.split()[0]} zero zero {pads.split()[1]}", "pads", axis=0)
    nodes = [*SIZE, *nodes, joined, node("Pad", "x pads", "y", mode=mode)]
    return model(nodes, {"x": [1, 2, "T"]}, ["y"], NUMBERS)


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 3), (2, 1), (-2, 0), (0, -1), (-1, 4), (3, -3)])
def test_constant_frames_are_a_shift_that_is_filled_in(before: int, after: int) -> None:
    proto = pad(before, after)
    _, plan = planned(proto)
    assert plan.reads[0].reach == shift(-before)
    assert plan.reads[0].fill is not None
    check_plan(proto, plan)


@pytest.mark.parametrize(("mode", "shortest"), [("edge", 1), ("reflect", 4)])
def test_frames_shown_again_are_made_for_whoever_reads_them(mode: str, shortest: int) -> None:
    ctx, plan = asked_rule(pad(3, 2, mode))
    fact = ctx.ask.facts["y"]
    assert plan is None and isinstance(fact, Wire) and fact.mirror is not None
    assert (fact.mirror.before, fact.mirror.after, fact.mirror.mode) == (3, 2, mode)
    assert fact.length is not None and fact.length.at(9) == 14
    (condition,) = ctx.ask.ledger.conditions
    assert condition.at_least == shortest and condition.node == "y"


def test_more_cannot_be_cut_off_than_there_is() -> None:
    ctx, plan = planned(pad(-2, -3))
    (condition,) = ctx.ask.ledger.conditions
    assert isinstance(condition, Condition) and condition.at_least == 5
    assert plan.length is not None and plan.length.at(5) == 0


def test_padding_to_a_multiple_is_followed_at_every_length() -> None:
    nodes = [node("Neg", "t", "back"), node("Mod", "back four", "rest")]
    proto = computed(nodes, "zero rest")
    _, plan = planned(proto)
    assert plan.length is not None
    for length in range(5, 14):
        assert plan.length.at(length) == frames_made(proto, length) == -(-length // 4) * 4


@pytest.mark.parametrize(
    ("nodes", "pads", "mode", "reason"),
    [
        ([node("Mod", "t four", "some")], "some zero", "constant", "pads in front depends on the total length"),
        ([node("Add", "t zero", "some")], "zero some", "constant", "grows with the stream"),
        ([node("Sub", "t one", "some")], "zero some", "reflect", "grows with the stream"),
    ],
)
def test_amounts_that_follow_the_length_otherwise_are_refused(
    nodes: list[onnx.NodeProto], pads: str, mode: str, reason: str
) -> None:
    problem = refused(computed(nodes, pads, mode))
    assert (problem.op, problem.node) == ("Pad", "y")
    assert reason in problem.reason


def test_the_other_end_of_the_stream_is_refused() -> None:
    amounts = {"pads": np.array([0, 0, 1, 0, 0, 1])}
    proto = model([node("Pad", "x pads", "y", mode="wrap")], {"x": [1, 2, "T"]}, ["y"], amounts, opset=19)
    assert "mode 'wrap' shows the other end" in refused(proto).reason


def test_an_amount_that_is_data_is_refused() -> None:
    inputs: dict[str, Any] = {"x": [1, 2, "T"], "pads": [6]}
    problem = refused(model([node("Pad", "x pads", "y")], inputs, ["y"], dtypes={"pads": np.int64}))
    assert (problem.op, problem.node) == ("Pad", "y")
    assert "depends on the data" in problem.reason
