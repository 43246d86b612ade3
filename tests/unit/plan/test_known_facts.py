"""Known values as wires: held, counting, ending with the stream; and what follows from the length alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from pulsify.analysis.facts import Static, Varying, Window
from pulsify.core.errors import NotStreamable
from pulsify.plan.known_facts import known_fact
from tests.models import Array, model, node
from tests.unit.convert.contexts import NEVER, Steps, opened, wire_of, written

NUMBERS: dict[str, Array] = {
    "time": np.array(2), "n0": np.array(0), "n1": np.array(1), "n2": np.array(2), "n3": np.array(3),
    "row": np.array([1]), "half": np.array([0.5], np.float32),
}  # fmt: skip
POSITIONS = [node("Shape", "x", "dims"), node("Gather", "dims time", "t", axis=0), node("Range", "n0 t n1", "p")]


def known(*nodes: onnx.NodeProto, batch: int | str = 1) -> onnx.ModelProto:
    """`v` is worked out from t and the positions p, and stands beside the stream."""
    made = [*POSITIONS, *nodes, node("Cast", "v", "f", to=1), node("Add", "x f", "y")]
    used = {n: v for n, v in NUMBERS.items() if any(n in k.input for k in made)}
    return model(made, {"x": [batch, 1, "T"]}, ["y"], used)


def test_a_constant_is_taken_as_it_is() -> None:
    ctx = opened(known(node("Mul", "p n2", "v")))
    fact = ctx.ask.fact("n2")
    assert isinstance(fact, Static) and fact.recipe.fixed
    written(ctx)
    assert fact.value.const_value is not None


def test_a_number_that_changes_with_the_length_is_varying() -> None:
    ctx = opened(known(node("Add", "t n1", "v")))
    assert ctx.ask.fact("v") == Varying("v")


def test_a_number_that_does_not_is_static() -> None:
    ctx = opened(known(node("Sub", "t t", "v")))
    fact = ctx.ask.fact("v")
    assert isinstance(fact, Static) and fact.recipe.fixed
    written(ctx)
    assert fact.value.const_value is not None
    assert int(np.asarray(fact.value.const_value.numpy())) == 0


def test_a_number_that_changes_far_out_is_varying_though_no_trace_shows_it() -> None:
    nodes = [node("Greater", "t far", "late"), node("Cast", "late", "v", to=7)]
    proto = known(*nodes)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(100_000), "far"))
    assert opened(proto).ask.fact("v") == Varying("v")


def test_equal_frames_are_kept_as_one() -> None:
    ctx = opened(known(node("Reshape", "t row", "dims1"), node("Expand", "half dims1", "v")))
    v = wire_of(ctx, "v")
    assert v.constant_frame is not None and v.end is None
    made = Steps(ctx, {"out": v.take(Window(4, -1, 2))}).step({})["out"]
    np.testing.assert_array_equal(made, [0.5, 0.5, 0.5])


def test_a_formula_of_the_position_is_made_by_its_operators() -> None:
    ctx = opened(known(node("Mul", "p n3", "h"), node("Mod", "h n2", "v")))
    v = wire_of(ctx, "v")
    steps = Steps(ctx, {"out": v.take(Window(4, 0, 4))})
    for n in range(2):
        np.testing.assert_array_equal(steps.step({})["out"], np.arange(4 * n, 4 * n + 4) * 3 % 2)


def test_positions_found_by_their_looks_are_the_clock() -> None:
    """NonZero of ones counts up; no rule makes it, so its looks do."""
    nodes = [node("Reshape", "t row", "dims1"), node("Expand", "half dims1", "ones"), node("NonZero", "ones", "two"),
             node("Squeeze", "two n_0", "v")]  # fmt: skip
    proto = known(*nodes)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "n_0"))
    ctx = opened(proto)
    steps = Steps(ctx, {"out": wire_of(ctx, "v").take(Window(4, 0, 3))})
    steps.step({})
    np.testing.assert_array_equal(steps.step({})["out"].reshape(-1), [4, 5, 6])


def test_a_mask_up_to_the_end_waits_for_it() -> None:
    """True for all but the last two frames."""
    ctx = opened(known(node("Sub", "t n2", "limit"), node("Less", "p limit", "v")))
    v = wire_of(ctx, "v")
    assert v.end == 2, "of a pulse of four the last two may be the last"
    window = Window(4, -2, 2)
    steps = Steps(ctx, {"out": v.take(window)})
    assert steps.step({}, NEVER)["out"].reshape(-1)[2:].tolist() == [True, True]
    assert steps.step({}, 5)["out"].reshape(-1).tolist() == [True, False, False, False]


def test_what_is_neither_regular_nor_a_formula_is_refused_by_name() -> None:
    """Counted from the end of the stream."""
    ctx = opened(known(node("Sub", "t p", "v")))
    with pytest.raises(NotStreamable) as caught:
        known_fact(ctx, "v")
    assert caught.value.op == "Sub" and caught.value.hint


def test_the_number_of_streams_is_worked_out_in_the_graph() -> None:
    proto = known(node("Gather", "dims n0", "b", axis=0), node("Mul", "b n3", "v"), batch="B")
    ctx = opened(proto)
    fact = ctx.ask.fact("v")
    assert isinstance(fact, Static)
    out = Steps(ctx, {"out": fact.recipe}).step({"x": np.zeros((5, 1, 4), np.float32)})["out"]
    assert fact.value.const_value is None and out.item() == 15
