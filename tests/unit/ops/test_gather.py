"""Gather: embeddings, channels, frames by an index table, rows by position."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from pulsify.analysis.facts import FirstFrames, Static
from pulsify.core.reach import Reach
from pulsify.plan.plan import execute
from tests.models import Array, frames, model, node, run_batch, weights
from tests.unit.build import converting
from tests.unit.convert.contexts import (
    asked_rule,
    check_plan,
    made_by,
    opened,
    planned,
    refused,
    run_window,
    wire_of,
)

POSITIONS = [node("Shape", "x", "dims"), node("Gather", "dims time", "t", axis=0), node("Range", "n0 t n1", "p")]
NUMBERS: dict[str, Array] = {"time": np.array(2), "n0": np.array(0), "n1": np.array(1), "n2": np.array(2),
                             "n3": np.array(3)}  # fmt: skip


def by_table(nodes: list[onnx.NodeProto], **numbers: Array) -> onnx.ModelProto:
    """x[:, :, index], the index being worked out from the positions p."""
    used = {n for k in nodes for n in k.input}
    given = {n: v for n, v in {**NUMBERS, **numbers}.items() if n in used or n in ("time", "n0", "n1")}
    made = [*POSITIONS, *nodes, node("Gather", "x index", "y", axis=2)]
    return model(made, {"x": [1, 2, "T"]}, ["y"], given)


REPEATED = [
    node("Mul", "t n2", "t2"), node("Range", "n0 t2 n1", "q"), node("Div", "q n2", "index"),
]  # fmt: skip
THINNED = [node("Range", "n0 t n3", "index")]
DELAYED = [node("Sub", "p n2", "back"), node("Max", "back n0", "index")]
AHEAD = [node("Add", "p n2", "on"), node("Sub", "t n1", "last"), node("Min", "on last", "index")]


@pytest.mark.parametrize(
    ("nodes", "reach"),
    [
        (REPEATED, Reach(1, 2, 0, 0)),
        (THINNED, Reach(3, 1, 0, 0)),
        (DELAYED, Reach(1, 1, -2, 0)),  # the first frame is shown for the first three
        (AHEAD, Reach(1, 1, 0, 2)),  # the last one for the last three
    ],
)
def test_an_index_table_that_moves_on_with_time_is_a_reach(nodes: list[onnx.NodeProto], reach: Reach) -> None:
    proto = by_table(nodes)
    ctx, plan = planned(proto, pulse=6)
    assert plan.reads[0].reach.ratio == reach.ratio
    for k in range(4, 9):
        assert (plan.reads[0].reach.first(k), plan.reads[0].reach.last(k)) == (reach.first(k), reach.last(k))
    check_plan(proto, plan, tight=False)
    execute(ctx, made_by(ctx, "y"), plan)
    x = frames(1, 2, 9)
    wanted = run_batch(proto, x)["y"]
    window = ctx.windows["y"]
    out = run_window(ctx, wire_of(ctx, "y").take(window), window, x, wanted.shape[-1])
    np.testing.assert_array_equal(out, wanted)


def test_frames_are_cut_out_by_a_table_of_windows() -> None:
    """x[:, :, k * 2 + (0 1 2)]: three frames for every second one."""
    nodes = [
        node("Sub", "t n1", "t1"), node("Div", "t1 n2", "count"), node("Range", "n0 count n1", "q"),
        node("Mul", "q n2", "starts"), node("Unsqueeze", "starts n_1", "rows"), node("Add", "rows offsets", "index"),
    ]  # fmt: skip
    proto = by_table(nodes, n_1=np.array([1]), offsets=np.arange(3))
    _, plan = planned(proto)
    assert plan.reads[0].reach == Reach(2, 1, 0, 2)
    assert plan.layouts[0] is not None and plan.layouts[0].sizes == (1, 2, 0, 3)
    check_plan(proto, plan, axes=(2, 2))


def test_frames_found_from_the_end_are_refused() -> None:
    problem = refused(by_table([node("Sub", "t n1", "last"), node("Sub", "last p", "index")]))  # backwards
    assert (problem.op, problem.node) == ("Gather", "y")
    assert "depends on the total length" in problem.reason


@pytest.mark.parametrize(
    ("nodes", "frames"),
    [
        ([node("Add", "n2 n3", "index")], 6),
        ([node("Sub", "n0 n3", "index")], -3),
        ([node("Sub", "t n2", "index")], -2),
    ],
)
def test_single_frames_from_either_end_are_values(nodes: list[onnx.NodeProto], frames: int) -> None:
    ctx = converting(by_table(nodes))
    fact = ctx.ask.facts["y"]
    assert isinstance(fact, Static) and (not fact.late) == (frames > 0)
    assert [w.length.at(0) for w in fact.early] == ([frames] if frames > 0 else [])
    assert [c.at_least for c in ctx.ask.ledger.conditions][-1] == abs(frames)


def test_frames_chosen_by_data_are_refused() -> None:
    proto = model([node("Gather", "x i", "y", axis=2)], {"x": [1, 2, "T"], "i": ["T"]}, ["y"], dtypes={"i": np.int64})
    assert "depends on the data" in refused(proto).reason


def test_the_first_frame_is_a_value_of_its_own() -> None:
    proto = model([node("Gather", "x n0", "y", axis=2)], {"x": [1, 2, "T"]}, ["y"], {"n0": np.array(0)})
    ctx, plan = asked_rule(proto)
    fact = ctx.ask.facts["y"]
    assert plan is None and isinstance(fact, FirstFrames) and fact.bare and fact.count == 1


def test_an_embedding_is_looked_up_frame_by_frame() -> None:
    proto = model([node("Gather", "table x", "y", axis=0)], {"x": [1, "T"]}, ["y"], {"table": weights(7, 3)},
                  dtypes={"x": np.int64})  # fmt: skip
    _, plan = planned(proto)
    assert plan.reads[0].reach.pointwise
    assert plan.layouts[0] is not None and (plan.layouts[0].axis, plan.layouts[0].sizes) == (1, (1, 0, 3))


def test_rows_by_position_end_with_their_table() -> None:
    nodes = [*POSITIONS, node("Gather", "table p", "rows", axis=0), node("Transpose", "rows", "turned", perm=[1, 0])]
    proto = model(
        [*nodes, node("Add", "x turned", "y")], {"x": [1, 2, "T"]}, ["y"],
        {"time": np.array(2), "n0": np.array(0), "n1": np.array(1), "table": weights(900, 2)},
    )  # fmt: skip
    ctx = opened(proto)
    rows = wire_of(ctx, "rows")
    assert (rows.end, rows.table_rows) == (None, 900)
    _, plan = planned(proto)
    ctx, plan = planned(proto)
    execute(ctx, made_by(ctx, "y"), plan)
    assert [c.at_most for c in ctx.ask.ledger.conditions] == [900]


def test_a_stream_is_not_looked_up_with_another() -> None:
    proto = model([node("Gather", "x i", "y", axis=1)], {"x": [1, 4, "T"], "i": [1, "T"]}, ["y"],
                  dtypes={"i": np.int64})  # fmt: skip
    assert refused(proto).op == "Gather"


def test_elements_are_gathered_along_any_axis_but_time() -> None:
    types = {"i": np.int64}
    for axis, fine in ((1, True), (2, False)):
        proto = model(
            [node("GatherElements", "x i", "y", axis=axis)], {"x": [1, 4, "T"], "i": [1, 4, "T"]}, ["y"], dtypes=types
        )
        if fine:
            assert all(r.reach.pointwise for r in planned(proto)[1].reads)
        else:
            assert "picks frames over the whole stream" in refused(proto).reason
