"""New nodes and constants: where they stand, what they are called, and what is used again."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.optimize.builder import Builder
from tests.models import Array, node, weights
from tests.unit.graphs import graph, made_up, ops, run

FLOAT = ir.DataType.FLOAT


def small() -> ir.Model:
    return graph([node("Relu", "x", "r"), node("Neg", "r", "y")], {"x": [2, 3]}, "y", {})


def value(of: ir.Model, name: str) -> ir.Value:
    return next(v for n in of.graph for v in n.outputs if v.name == name)


def test_nodes_stand_in_front_of_the_place_given_or_at_the_end() -> None:
    model = small()
    x, b = model.graph.inputs[0], Builder(model.graph)
    b.before(model.graph[1]).op("Abs", [x], (2, 3), FLOAT)
    b.op("Exp", [x], (2, 3), FLOAT)
    assert ops(model) == ["Relu", "Abs", "Neg", "Exp"]


def test_an_output_has_the_name_of_its_node_its_size_and_its_type() -> None:
    model = small()
    made = Builder(model.graph).op("Abs", [model.graph.inputs[0]], (2, "B"), FLOAT, name="own")
    assert made.name == "own" and str(made.shape) == "[2,B]" and made.dtype == FLOAT
    several = Builder(model.graph).ops("Split", [model.graph.inputs[0]], [(1, 3), (1, 3)], FLOAT, name="cut", axis=0)
    assert [v.name for v in several] == ["cut/0", "cut/1"]


def test_names_made_up_differ() -> None:
    model = small()
    b = Builder(model.graph, model.graph[0])
    assert len({b.op("Abs", [model.graph.inputs[0]], None, None).name for _ in range(5)}) == 5


def test_a_node_like_the_one_it_stands_before_stays_in_its_domain() -> None:
    model = small()
    model.graph[1].domain = "own"
    b = Builder(model.graph, model.graph[1])
    x = model.graph.inputs[0]
    assert b.op("Neg", [x], None, None).producer().domain == "own"  # type: ignore[union-attr]
    assert b.op("Abs", [x], None, None).producer().domain == ""  # type: ignore[union-attr]
    assert b.op("Neg", [x], None, None, domain="").producer().domain == ""  # type: ignore[union-attr]


def test_a_value_that_has_the_shape_already_is_not_reshaped() -> None:
    model = small()
    b = Builder(model.graph, model.graph[0])
    x = model.graph.inputs[0]
    assert b.reshaped(x, (2, 3)) is x
    made = b.reshaped(x, (6,))
    assert made.producer().op_type == "Reshape" and list(made.shape or ()) == [6]  # type: ignore[union-attr]


@pytest.mark.parametrize("other", [np.array([1, 2]), np.array([1.0, 2.0]), np.array([[1, 3]])])
def test_a_constant_is_used_again_if_name_and_elements_are_alike_and_a_name_means_one_thing(other: Array) -> None:
    b = Builder(small().graph)
    first = b.constant("c", np.array([1, 3]))
    assert b.constant("c", np.array([1, 3])) is first
    with pytest.raises(ValueError, match="already registered"):
        b.constant("c", other)
    assert b.ints(2, 3) is b.ints(2, 3)


def test_nan_is_like_itself_and_zero_is_not_minus_zero() -> None:
    b = Builder(small().graph)
    assert b.constant("nan", np.array([np.nan])) is b.constant("nan", np.array([np.nan]))
    b.constant("zero", np.array([0.0]))
    with pytest.raises(ValueError, match="already registered"):
        b.constant("zero", np.array([-0.0]))


def test_a_constant_of_any_layout_is_stored_row_by_row() -> None:
    model = small()
    turned = weights(3, 2).T
    assert not turned.flags.c_contiguous
    b = Builder(model.graph)
    y = value(model, "y")
    b.replace(y, b.op("Add", [value(model, "r"), b.constant("c", turned)], (2, 3), FLOAT))
    feeds = made_up(model)
    np.testing.assert_array_equal(run(model, feeds)["y"], np.maximum(feeds["x"], 0) + turned)


# ---- one value in another's place


def test_an_inner_value_is_replaced_for_all_who_read_it() -> None:
    model = small()
    b = Builder(model.graph, model.graph[1])
    b.replace(value(model, "r"), b.op("Abs", [model.graph.inputs[0]], (2, 3), FLOAT))
    feeds = made_up(model)
    np.testing.assert_array_equal(run(model, feeds)["y"], -np.abs(feeds["x"]))


def test_what_replaces_an_output_takes_its_name_and_type() -> None:
    model = small()
    b = Builder(model.graph)
    y = value(model, "y")
    b.replace(y, b.op("Abs", [value(model, "r")], None, None))
    (out,) = model.graph.outputs
    assert out.name == "y" and out is not y and y.name != "y"
    assert list(out.shape or ()) == [2, 3] and out.dtype == FLOAT
    feeds = made_up(model)
    np.testing.assert_array_equal(run(model, feeds)["y"], np.maximum(feeds["x"], 0))


@pytest.mark.parametrize("by", ["input", "constant", "output"])
def test_what_has_a_name_of_its_own_to_keep_comes_out_through_an_identity(by: str) -> None:
    model = graph([node("Relu", "x", "r"), node("Neg", "r", "y")], {"x": [2, 3]}, "y r", {})
    b = Builder(model.graph)
    others = {"input": model.graph.inputs[0], "constant": b.constant("c", weights(2, 3)), "output": value(model, "r")}
    b.replace(value(model, "y"), others[by])
    assert [v.name for v in model.graph.outputs] == ["y", "r"]
    feeds = made_up(model)
    want = {"input": feeds["x"], "constant": weights(2, 3), "output": np.maximum(feeds["x"], 0)}
    np.testing.assert_array_equal(run(model, feeds)["y"], want[by])
