"""Slice and Split: cuts at either end, every n-th frame, first frames, rows of a table."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from pulsify.analysis.facts import FirstFrames, Static, Wire
from pulsify.convert.emit import emit
from pulsify.core.reach import Reach, shift
from tests.models import model, node, weights
from tests.unit.build import converting
from tests.unit.convert.contexts import asked_rule, check_plan, planned, refused, wire_of

FAR = 1 << 40


def cut(start: int, stop: int, axis: int = 2, step: int = 1) -> onnx.ModelProto:
    numbers = {"a": np.array([start]), "b": np.array([stop]), "c": np.array([axis]), "d": np.array([step])}
    return model([node("Slice", "x a b c d", "y")], {"x": [1, 4, "T"]}, ["y"], numbers)


@pytest.mark.parametrize(
    ("start", "stop", "step", "reach"),
    [
        (2, FAR, 1, shift(2)),
        (0, -3, 1, shift(0)),
        (1, -1, 1, shift(1)),
        (0, FAR, 3, Reach(3, 1, 0, 0)),
        (1, FAR, 2, Reach(2, 1, 1, 1)),
        (1, -2, 2, Reach(2, 1, 1, 1)),
    ],
)
def test_a_cut_is_a_shift_and_a_shorter_stream(start: int, stop: int, step: int, reach: Reach) -> None:
    proto = cut(start, stop, step=step)
    _, plan = planned(proto, pulse=6)
    assert plan.reads[0].reach == reach
    check_plan(proto, plan)


def test_frames_cut_off_at_the_end_are_not_given_out_before_more_have_come() -> None:
    _, plan = planned(cut(0, -3))
    assert plan.length is not None and plan.length.latest_end(4) == 1


def test_fewer_than_no_frames_are_none() -> None:
    _, plan = planned(cut(5, -2))
    assert plan.length is not None and [plan.length.at(s) for s in (0, 5, 7, 8)] == [0, 0, 0, 1]


def test_a_cut_that_ends_somewhere_is_capped() -> None:
    """At the traced lengths all of it is there."""
    ctx, plan = planned(cut(0, 300_000))
    assert plan.length is not None and plan.length.cap == 300_000
    assert plan.length.at(299_999) == 299_999 and plan.length.at(400_000) == 300_000
    assert ctx.ask.ledger.horizon >= 300_000


def test_the_first_frames_are_a_value_of_their_own() -> None:
    ctx, plan = asked_rule(cut(0, 3))
    fact = ctx.ask.facts["y"]
    assert plan is None and isinstance(fact, FirstFrames)
    assert (fact.count, fact.wire.name) == (3, "x")


@pytest.mark.parametrize(
    ("start", "stop", "step", "frames"), [(2, 5, 1, 5), (0, 8, 2, 7), (-3, FAR, 1, 3), (-6, -2, 1, 6), (-4, FAR, 2, 4)]
)
def test_a_few_frames_from_either_end_are_values(start: int, stop: int, step: int, frames: int) -> None:
    ctx = converting(cut(start, stop, step=step))
    fact = ctx.ask.facts["y"]
    assert isinstance(fact, Static) and (not fact.late) == (start >= 0)
    assert [w.length.at(0) for w in fact.early] == ([frames] if start >= 0 else [])
    assert [c.at_least for c in ctx.ask.ledger.conditions][-1] == frames, "shorter streams have fewer"
    assert [c.kind for c in emit(ctx).carries] == ["latch" if start >= 0 else "fold"]


def test_a_stream_is_not_turned_round() -> None:
    problem = refused(cut(-1, -FAR, step=-1))
    assert (problem.op, problem.node) == ("Slice", "y")
    assert "runs backwards" in problem.reason


def test_a_cut_at_a_place_that_is_data_is_refused() -> None:
    types = {"a": np.int64, "b": np.int64}
    problem = refused(model([node("Slice", "x a b", "y")], {"x": [1, 4, "T"], "a": [3], "b": [3]}, ["y"], dtypes=types))
    assert (problem.op, problem.node) == ("Slice", "y")
    assert "depends on the data" in problem.reason


HALF = [
    node("Shape", "x", "dims"), node("Slice", "dims two three", "t"), node("Div", "t two", "half"),
    node("Slice", "x zero half two", "y"),
]  # fmt: skip
NUMBERS = {"zero": np.array([0]), "two": np.array([2]), "three": np.array([3])}


def test_the_first_half_of_a_stream_is_refused() -> None:
    problem = refused(model(HALF, {"x": [1, 4, "T"]}, ["y"], NUMBERS))
    assert "waits longer and longer" in problem.reason and problem.node == "y"


def test_rows_of_a_table_are_looked_up_by_the_clock() -> None:
    proto = model(
        [
            node("Shape", "x", "dims"), node("Slice", "dims two three", "t"),
            node("Slice", "table zero t zero", "rows"),
            node("Transpose", "rows", "turned", perm=[1, 0]), node("Add", "x turned", "y"),
        ],
        {"x": [1, 4, "T"]}, ["y"], {**NUMBERS, "table": weights(5000, 4)},
    )  # fmt: skip
    ctx, _ = planned(proto)
    rows = wire_of(ctx, "rows")
    assert isinstance(rows, Wire) and rows.end is None, "they can be had at any time"
    assert rows.table_rows == 5000 and rows.layout.axis == 0


def split(sizes: list[int] | None, outputs: str = "y z", axis: int = 2, **attrs: int) -> onnx.ModelProto:
    given = {} if sizes is None else {"sizes": np.array(sizes)}
    nodes = [node("Split", "x sizes" if given else "x", outputs, axis=axis, **attrs)]
    return model(nodes, {"x": [1, 4, "T"]}, outputs.split(), given, opset=18)


def test_a_split_in_equal_parts_of_the_stream_is_refused() -> None:
    problem = refused(split(None, num_outputs=2))
    assert (problem.op, problem.node) == ("Split", "y")
    assert "waits longer and longer" in problem.reason


def test_a_split_takes_a_first_part_and_the_rest() -> None:
    nodes = [
        node("Shape", "x", "dims"), node("Slice", "dims two three", "t"), node("Sub", "t two", "rest"),
        node("Concat", "two rest", "sizes", axis=0), node("Split", "x sizes", "first z", axis=2),
    ]  # fmt: skip
    proto = model(nodes, {"x": [1, 4, "T"]}, ["z"], NUMBERS, opset=18)
    ctx, plan = asked_rule(proto, "z")
    assert plan is None, "every part is filed by itself"
    z = wire_of(ctx, "z")
    assert z.length is not None and [z.length.at(s) for s in (2, 3, 10)] == [0, 1, 8]
    assert isinstance(ctx.ask.facts["first"], FirstFrames)
