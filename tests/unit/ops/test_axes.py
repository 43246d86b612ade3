"""Operators that mix some axes: fine across time, refused along it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.analysis.facts import Static
from pulsify.convert.emit import emit
from tests.models import model, node, weights
from tests.unit.build import converting
from tests.unit.convert.contexts import made_by, planned, refused

F = np.float32
Case = tuple[onnx.NodeProto, str, dict[str, Any]]


def one(made: onnx.NodeProto, given: dict[str, Any], types: dict[str, Any], opset: int = 18) -> onnx.ModelProto:
    return model([made], {"x": [1, 4, "T"]}, ["y"], given, dtypes=types, opset=opset)


def along(op: str, axis: int) -> tuple[onnx.NodeProto, dict[str, Any], dict[str, Any]]:
    if op.startswith("Reduce"):
        return node(op, "x axes", "y"), {"axes": np.array([axis])}, {}
    if op == "TopK":
        return node(op, "x k", "y places", axis=axis), {"k": np.array([2])}, {}
    return node(op, "x", "y", axis=axis), {}, {"y": np.int64} if op.startswith("Arg") else {}


OPS = {
    "Softmax": "normalises", "LogSoftmax": "normalises", "LpNormalization": "normalises", "ArgMax": "searches",
    "TopK": "sorts", "ReduceSum": "reduces", "ReduceMean": "reduces", "ReduceMax": "reduces",
}  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_across_time_it_is_frame_by_frame(op: str) -> None:
    _, plan = planned(one(*along(op, 1)))
    assert all(r.reach.pointwise for r in plan.reads)
    assert plan.layouts[0] is not None and plan.layouts[0].axis == 2


FOLDS = {op for op in OPS if op.startswith(("Reduce", "Arg", "TopK"))}


@pytest.mark.parametrize("op", sorted(FOLDS))
@pytest.mark.parametrize("axis", [2, -1])
def test_along_time_it_is_a_fold(op: str, axis: int) -> None:
    ctx = converting(one(*along(op, axis)))
    fact = ctx.ask.facts["y"]
    assert isinstance(fact, Static) and fact.late and fact.last_seen_by is made_by(ctx, "y")
    assert {c.kind for c in emit(ctx).carries} == {"fold"}


@pytest.mark.parametrize("op", sorted({*OPS} - FOLDS))
@pytest.mark.parametrize("axis", [2, -1])
def test_along_time_it_is_refused(op: str, axis: int) -> None:
    problem = refused(one(*along(op, axis)))
    assert (problem.op, problem.node) == (op, "y")
    assert f"it {OPS[op]} over the whole stream" in problem.reason


def test_reducing_over_all_axes_reduces_over_time() -> None:
    fact = converting(one(node("ReduceSum", "x", "y"), {}, {})).ask.facts["y"]
    assert isinstance(fact, Static) and fact.late
    _, plan = planned(one(node("ReduceSum", "x", "y", noop_with_empty_axes=1), {}, {}))
    assert plan.reads[0].reach.pointwise, "unless it says that none are named"


def test_an_axis_that_goes_moves_time() -> None:
    _, plan = planned(one(node("ReduceMean", "x axes", "y", keepdims=0), {"axes": np.array([1])}, {}))
    assert plan.layouts[0] is not None and (plan.layouts[0].axis, plan.layouts[0].sizes) == (1, (1, 0))


SCALE, SHIFT = np.ones(4, F), np.zeros(4, F)


@pytest.mark.parametrize(
    ("made", "given", "reason"),
    [
        (node("LayerNormalization", "x s", "y", axis=1), {"s": np.ones(1, F)}, "normalises over the whole stream"),
        (node("InstanceNormalization", "x s b", "y"), {"s": SCALE, "b": SHIFT}, "normalises over the whole stream"),
        (node("GlobalLpPool", "x", "y", p=3), {}, "pools over the whole stream"),
        (node("MeanVarianceNormalization", "x", "y", axes=[0, 2]), {}, "normalises over the whole stream"),
    ],
)
def test_norms_over_time_are_refused(made: onnx.NodeProto, given: dict[str, Any], reason: str) -> None:
    problem = refused(one(made, given, {}))
    assert problem.node == "y" and reason in problem.reason


def test_batch_norm_goes_by_channels_and_not_in_training() -> None:
    given = {"s": SCALE, "b": SHIFT, "m": SHIFT, "v": SCALE}
    made = node("BatchNormalization", "x s b m v", "y")
    assert planned(one(made, given, {}))[1].reads[0].reach.pointwise
    training = node("BatchNormalization", "x s b m v", "y mean var", training_mode=1)
    assert "training mode" in refused(one(training, given, {})).reason


def test_a_norm_behind_time_is_frame_by_frame() -> None:
    proto = model([node("LayerNormalization", "x s", "y")], {"x": [1, "T", 4]}, ["y"], {"s": SCALE})
    assert planned(proto)[1].reads[0].reach.pointwise


@pytest.mark.parametrize(
    ("made", "dims", "reason"),
    [
        (node("MatMul", "x w", "y"), [1, "T", 4], ""),
        (node("MatMul", "v x", "y"), [1, 4, "T"], ""),
        (node("Gemm", "x w", "y"), ["T", 4], ""),
        (node("Gemm", "x w", "y", transA=1), [4, "T"], ""),
        (node("Einsum", "x w", "y", equation="btc,cd->btd"), [1, "T", 4], ""),
        (node("Einsum", "x w", "y", equation="btc,cd"), [1, "T", 4], ""),
        (node("Einsum", "x w", "y", equation="...c,cd->...d"), [1, "T", 4], ""),
    ],
)
def test_products_keep_time_or_are_refused(made: onnx.NodeProto, dims: list[int | str], reason: str) -> None:
    given = {n: v for n, v in {"w": weights(4, 3), "v": weights(3, 4)}.items() if n in made.input}
    turn = [node("Transpose", "x", "x2", perm=[0, 2, 1])] if "x2" in made.input else []
    proto = model([*turn, made], {"x": dims}, ["y"], given)
    if reason:
        assert reason in refused(proto).reason
    else:
        assert planned(proto)[1].reads[0].reach.pointwise


@pytest.mark.parametrize(
    "made",
    [
        node("Einsum", "x w", "y", equation="btc,cd->bd"),
        node("Einsum", "x w", "y", equation="b...c,cd->bd"),
        node("Einsum", "x x", "y", equation="btc,btd->bcd"),
        node("MatMul", "turned x", "y"),
    ],
)
def test_products_that_sum_over_time_are_folds(made: onnx.NodeProto) -> None:
    given = {"w": weights(4, 3)} if "w" in made.input else {}
    turn = [node("Transpose", "x", "turned", perm=[0, 2, 1])] if "turned" in made.input else []
    fact = converting(model([*turn, made], {"x": [1, "T", 4]}, ["y"], given)).ask.facts["y"]
    assert isinstance(fact, Static) and fact.late
