"""Branches by the one taken, loops by their turns, fused operators by their parts; and what was decided is kept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pulsify.core.errors import NotStreamable
from pulsify.frontend.load import load
from pulsify.frontend.model import Model
from pulsify.frontend.time import find_time
from pulsify.trace.resolve import resolve
from tests.models import Array, close, frames, look_ahead, model, run_batch, weights
from tests.unit.build import written
from tests.unit.frontend.test_unroll import scan
from tests.unit.graphs import parsed

CONSTANTS: dict[str, Array] = {
    "two": np.array(2), "zero": np.array(0), "hundred": np.array(100), "half": np.array(0.5, np.float32),
    "yes": np.array(True), "four": np.array(4), "first": np.array(1),
}  # fmt: skip


def settled(proto: onnx.ModelProto) -> Model:
    loaded = load(proto)
    return resolve(loaded, find_time(loaded))


def branch(text: str, out: str, dtype: int = TensorProto.FLOAT) -> onnx.GraphProto:
    nodes = parsed(text) if text else []
    return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(out, dtype, None)])


def choosing(condition: str, then: onnx.GraphProto, otherwise: onnx.GraphProto) -> onnx.ModelProto:
    """condition makes c; x is [1, 2, T]."""
    made = helper.make_node("If", ["c"], ["h"], name="if", then_branch=then, else_branch=otherwise)
    nodes = [*parsed(condition), made, *parsed("Neg h > y")]
    read = set((condition + " half").replace(";", " ").split())
    return model(nodes, {"x": [1, 2, "T"]}, ["y"], {n: c for n, c in CONSTANTS.items() if n in read})


LONG = "Shape x > d; Gather d two > t axis=0; Greater t zero > c"
THEN, OTHERWISE = branch("Mul x half > a; Exp a > b", "b"), branch("Relu x > b2", "b2")


def test_a_model_of_plain_nodes_is_left_as_it_is() -> None:
    loaded = load(look_ahead())
    assert resolve(loaded, find_time(loaded)) is loaded


@pytest.mark.parametrize(("condition", "ops"), [(LONG, ["Mul", "Exp"]), (LONG.replace("Greater", "Less"), ["Relu"])])
def test_the_branch_that_the_length_takes_is_written_out(condition: str, ops: list[str]) -> None:
    proto = choosing(condition, THEN, OTHERWISE)
    made = settled(proto)
    assert [n.op for n in made.nodes if n.op not in ("Shape", "Gather", "Greater", "Less")] == [*ops, "Neg"]
    x = frames(1, 2, 6)
    close(run_batch(written(made), x)["y"], run_batch(proto, x)["y"])


def test_what_was_decided_is_kept_for_the_proof() -> None:
    (decision,) = settled(choosing(LONG, THEN, OTHERWISE)).decisions
    assert (decision.node, decision.op, decision.name, decision.axis, decision.taken) == ("if", "If", "c", None, 1)


def test_a_branch_may_hand_out_a_constant_of_its_own() -> None:
    then = branch("", "own")
    then.initializer.append(onnx.numpy_helper.from_array(weights(1, 2, 1), "own"))
    proto = choosing(LONG, then, OTHERWISE)
    close(run_batch(written(settled(proto)), frames(1, 2, 6))["y"], -weights(1, 2, 1))


def test_a_branch_inside_a_branch_is_settled_too() -> None:
    inner = helper.make_node("If", ["c"], ["b"], name="inner", then_branch=THEN, else_branch=OTHERWISE)
    outer = helper.make_graph([inner], "outer", [], [helper.make_tensor_value_info("b", 1, None)])
    proto = choosing(LONG, outer, OTHERWISE)
    made = settled(proto)
    assert [(d.op, d.taken) for d in made.decisions] == [("If", 1), ("If", 1)]
    assert not any(n.op == "If" for n in made.nodes)
    x = frames(1, 2, 6)
    close(run_batch(written(made), x)["y"], -np.exp(x / 2))


def test_names_inside_a_branch_do_not_meet_those_outside() -> None:
    then = branch("Relu x > t2; Exp t2 > d2; Mul d2 half > b", "b")
    proto = choosing(LONG, then, OTHERWISE)
    made = settled(proto)
    names = [o for n in made.nodes for o in n.outputs]
    assert len(names) == len(set(names))


def test_a_condition_on_the_data_is_refused() -> None:
    proto = choosing("ReduceMax x > m keepdims=0; Cast m > c to=9", THEN, OTHERWISE)
    with pytest.raises(NotStreamable, match="the condition depends on the data") as refused:
        settled(proto)
    assert refused.value.node == "if" and refused.value.op == "If"


def test_a_model_that_runs_at_no_length_says_why() -> None:
    made = helper.make_node("If", ["yes"], ["h"], name="if", then_branch=THEN, else_branch=OTHERWISE)
    constants = {"yes": CONSTANTS["yes"], "half": CONSTANTS["half"], "five": weights(5, 1)}
    proto = model([*parsed("Add x five > a0"), made, *parsed("Add h a0 > y")], {"x": [1, 2, "T"]}, ["y"], constants)
    with pytest.raises(NotStreamable, match="cannot run at any length: sizes 2 and 5 meet") as refused:
        settled(proto)
    assert refused.value.node == "a0"


def test_a_scan_over_something_else_than_time_is_written_out_and_one_over_time_stays() -> None:
    over_channels = settled(scan())
    assert all(n.body is None for n in over_channels.nodes)
    (decision,) = over_channels.decisions
    assert (decision.op, decision.name, decision.axis, decision.taken) == ("Scan", "x", 1, 3)
    proto = scan(scan_input_axes=[2])
    for node in proto.graph.node:  # one frame a turn: the state has as many channels
        if node.op_type == "Concat":
            node.input[1] = "channels"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3]), "channels"))
    over_time = settled(proto)
    assert [n.op for n in over_time.nodes if n.body is not None] == ["Scan"] and not over_time.decisions


def test_a_fused_operator_is_replaced_by_its_parts() -> None:
    proto = model(parsed("HardSwish x > h; Neg h > y"), {"x": [1, 2, "T"]}, ["y"])
    assert [n.op for n in settled(proto).nodes] == ["HardSwish", "Neg"], "it has a rule of its own"
    like = model(
        parsed("CastLike x like > h; Neg h > y"), {"x": [1, 2, "T"], "like": [1]}, ["y"],
        dtypes={"like": np.float64, "y": np.float64},
    )  # fmt: skip
    assert [n.op for n in settled(like).nodes] == ["Cast", "Neg"]
