"""Questions about values whose sizes are known: what is a view, a cut, a norm, a constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.optimize.views import (
    WORTH_COPYING,
    constant,
    cut_of,
    is_view,
    only_reader,
    scale_and_shift,
    sizes,
    small_weights,
    source,
)
from tests.models import Array, Dims, node, weights
from tests.unit.graphs import graph, made_up, run

X: Dims = [1, 4, 6]


def one(op: str, inputs: str, constants: dict[str, Array] | None = None, x: Dims = X, **attributes: Any) -> ir.Node:
    """The one node of a graph that reads x."""
    return graph([node(op, inputs, "y", **attributes)], {"x": x}, "y", constants or {}).graph[0]


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (one("Reshape", "x s", {"s": np.array([6, 4])}), True),
        (one("Squeeze", "x a", {"a": np.array([0])}), True),
        (one("Flatten", "x"), True),
        (one("Transpose", "x", perm=[1, 0, 2]), True),  # only an axis of one moves
        (one("Transpose", "x", perm=[0, 2, 1]), False),
        (one("Transpose", "x", x=[1, 4, 1]), True),  # turned round
        (one("Transpose", "x", x=[1, 4, 2]), False),
        (one("Gather", "x p", {"p": np.arange(4)}, axis=1), True),
        (one("Gather", "x p", {"p": np.array([-4, -3, 2, -1])}, axis=1), True),  # counted from the end
        (one("Gather", "x p", {"p": np.arange(4)[::-1].copy()}, axis=1), False),
        (one("Gather", "x p", {"p": np.arange(3)}, axis=1), False),
        (one("Slice", "x i j k", {"i": np.array([0]), "j": np.array([99]), "k": np.array([1])}), True),
        (one("Slice", "x i j k", {"i": np.array([1]), "j": np.array([99]), "k": np.array([1])}), False),
        (
            one("Slice", "x i j k l", {"i": np.array([-1]), "j": np.array([-99]), "k": np.array([1]), "l": -np.ones(1, int)}),  # noqa: E501
            False,
        ),  # all of it, backwards
        (one("Relu", "x"), False),
        (one("Reshape", "x s", {"s": np.array([-1, 4])}, x=["B", 4, 6]), False),  # nobody knows how large
    ],
)  # fmt: skip
def test_a_view_has_the_elements_of_its_input_in_the_same_order(made: ir.Node, wanted: bool) -> None:
    assert is_view(made) is wanted


def test_a_view_of_another_domain_is_none_and_neither_is_nothing() -> None:
    made = one("Flatten", "x")
    made.domain = "own"
    assert not is_view(made)
    assert not is_view(None)


def test_the_source_is_behind_all_views() -> None:
    nodes = [node("Relu", "x", "r"), node("Reshape", "r s", "a"), node("Flatten", "a", "b"), node("Neg", "b", "y")]
    model = graph(nodes, {"x": X}, "y", {"s": np.array([6, 4])})
    r, b, y = (v for n in model.graph for v in n.outputs if v.name in ["r", "b", "y"])
    assert source(b) is r and source(r) is r and source(y) is y


@pytest.mark.parametrize(
    ("start", "stop", "axis", "wanted"),
    [
        (1, 3, 1, (1, 1, 3)),
        (1, 99, 1, (1, 1, 4)),
        (-2, 99, -1, (2, 4, 6)),
        (-99, 2, 1, (1, 0, 2)),
        (0, -1, 1, (1, 0, 3)),
    ],
)
def test_a_cut_counts_from_the_start_whatever_it_is_written_as(
    start: int, stop: int, axis: int, wanted: tuple[int, int, int]
) -> None:
    bounds = {"i": np.array([start]), "j": np.array([stop]), "k": np.array([axis])}
    model = graph([node("Slice", "x i j k", "y")], {"x": X}, "y", bounds)
    assert cut_of(model.graph[0]) == wanted
    feeds = made_up(model)
    kept = feeds["x"][(slice(None),) * wanted[0] + (slice(*wanted[1:]),)]
    np.testing.assert_array_equal(run(model, feeds)["y"], kept)


def test_no_cut_along_one_axis_is_none() -> None:
    two = {"i": np.array([0, 1]), "j": np.array([1, 2]), "k": np.array([0, 1])}
    assert cut_of(one("Slice", "x i j k", two)) is None
    stepped = {"i": np.array([0]), "j": np.array([4]), "k": np.array([1]), "l": np.array([2])}
    assert cut_of(one("Slice", "x i j k l", stepped)) is None
    assert cut_of(one("Slice", "x i j", {"i": np.array([0]), "j": np.array([1])})) is None  # axes left out
    assert cut_of(one("Relu", "x")) is None


def test_a_norm_of_fixed_statistics_is_a_scale_and_a_shift() -> None:
    constants = {"g": weights(4), "b": weights(4, seed=2), "m": weights(4, seed=3), "v": np.abs(weights(4, seed=4))}
    model = graph([node("BatchNormalization", "x g b m v", "y", epsilon=0.25)], {"x": X}, "y", constants)
    found = scale_and_shift(model.graph[0])
    assert found is not None
    feeds = made_up(model)
    want = feeds["x"] * found[0][:, None] + found[1][:, None]
    np.testing.assert_allclose(run(model, feeds)["y"], want, atol=1e-5)
    model.graph[0].replace_input_with(1, model.graph.inputs[0])  # not fixed
    assert scale_and_shift(model.graph[0]) is None


def test_an_input_with_a_default_is_no_constant() -> None:
    model = graph([node("Add", "x c", "y")], {"x": X, "c": [6]}, "y", {"c": weights(6)})
    assert constant(model.graph.inputs[1]) is None and not small_weights(model.graph.inputs[1])
    inner = graph([node("Add", "x c", "y")], {"x": X}, "y", {"c": weights(6)}).graph[0].inputs[1]
    found = constant(inner)
    assert found is not None and found.shape == (6,) and small_weights(inner)
    assert constant(None) is None and not small_weights(None)


def test_weights_worth_another_copy_are_small_and_float32() -> None:
    def read(array: Array) -> ir.Value | None:
        dtypes = {"x": array.dtype, "y": array.dtype}
        return graph([node("Add", "x c", "y")], {"x": [1]}, "y", {"c": array}, dtypes=dtypes).graph[0].inputs[1]

    assert small_weights(read(np.zeros(WORTH_COPYING // 4, np.float32)))
    assert not small_weights(read(np.zeros(WORTH_COPYING // 4 + 1, np.float32)))
    assert not small_weights(read(np.zeros(1, np.float64)))


def test_sizes_are_all_known_or_none_is() -> None:
    model = graph([node("Relu", "x", "y")], {"x": ["B", 4]}, "y", {})
    assert sizes(model.graph.inputs[0]) is None and sizes(None) is None
    model.graph.inputs[0].shape = ir.Shape([2, 4])
    assert sizes(model.graph.inputs[0]) == (2, 4)


def test_the_only_reader_is_one_node_that_reads_once_and_nobody_outside() -> None:
    nodes = [node("Relu", "x", "r"), node("Neg", "r", "n"), node("Mul", "n n", "m"), node("Exp", "m", "y")]
    made = {str(v.name): v for n in graph(nodes, {"x": X}, "m y", {}).graph for v in n.outputs}
    assert {name: only_reader(v) for name, v in made.items()} == {"r": True, "n": False, "m": False, "y": False}
