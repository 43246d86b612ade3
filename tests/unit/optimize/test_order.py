"""Frames in another order along an axis: how far that is followed, and where it shows."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pulsify.optimize.order import Following, Stuck, follow, permutation, regrouped, size_at, transposed
from tests.models import Array, Dims, node, weights
from tests.unit.graphs import graph, made_up, run

SIZE = 5  # frames of the keys
KEYS: Dims = [1, 2, SIZE, 3]  # streams, heads, frames, channels


def followed(nodes: list[onnx.NodeProto], inputs: dict[str, Dims], constants: dict[str, Array] | None = None) -> tuple[
    ir.Model, Following
]:  # fmt: skip
    """From the input `k` on, of which axis -2 is in another order."""
    model = graph([*nodes, node("Identity", "y", "out")], {"k": KEYS, **inputs}, "out", constants or {})
    starts = {v: -2 for v in model.graph.inputs if v.name == "k"}
    return model, follow(model.graph, starts, SIZE, set())


SCORES = [
    node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
    node("MatMul", "q kt", "s"),
    node("Add", "s mask", "m"),
    node("Softmax", "m", "p", axis=-1),
]
ATTENTION: dict[str, Dims] = {"q": [1, 2, 4, 3], "v": KEYS, "mask": [1, 1, 4, SIZE]}


def test_attention_takes_keys_in_any_order_if_masks_and_values_are_turned_alike() -> None:
    model, found = followed([*SCORES, node("MatMul", "p v", "y")], ATTENTION)
    assert [(n.op_type, i, axis) for n, i, axis in found.turns] == [("Add", 1, -1), ("MatMul", 1, -2)]
    assert {str(v.name): a for v, a in found.axis.items()} == {"k": -2, "kt": -1, "s": -1, "m": -1, "p": -1}
    feeds = made_up(model)
    turn = np.roll(np.arange(SIZE), 2)
    moved = {**feeds, "k": feeds["k"][:, :, turn], "v": feeds["v"][:, :, turn], "mask": feeds["mask"][..., turn]}
    np.testing.assert_allclose(run(model, moved)["out"], run(model, feeds)["out"], atol=1e-6)


def test_a_mask_that_is_the_same_for_all_frames_need_not_be_turned() -> None:
    _, found = followed([*SCORES, node("MatMul", "p v", "y")], {**ATTENTION, "mask": [1, 1, 4, 1]})
    assert [(n.op_type, i) for n, i, _ in found.turns] == [("MatMul", 1)]


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Relu", "k", "y")],  # given out in that order
        [node("Slice", "k i j a", "h"), node("ReduceSum", "h", "y")],  # frames are picked by their place
        [node("Concat", "k k", "h", axis=2), node("ReduceSum", "h", "y")],
        [node("MatMul", "o k", "h"), node("Add", "h k", "y")],  # summed up, and met as it was
    ],
)
def test_where_the_order_shows_the_sources_are_named(nodes: list[onnx.NodeProto]) -> None:
    constants: dict[str, Array] = {"i": np.array([0]), "j": np.array([2]), "a": np.array([2])}
    constants["o"] = weights(SIZE, SIZE)
    read = {name for n in nodes for name in n.input}
    with pytest.raises(Stuck) as stuck:
        followed(nodes, {}, {n: c for n, c in constants.items() if n in read})
    assert [v.name for v in stuck.value.sources] == ["k"]


def test_two_orders_along_different_axes_of_one_node_show() -> None:
    nodes = [node("Transpose", "k", "t", perm=[0, 1, 3, 2]), node("Add", "k t", "h"), node("ReduceSum", "h", "y")]
    model = graph(nodes, {"k": [1, 2, 5, 5]}, "y", {})
    with pytest.raises(Stuck):
        follow(model.graph, {model.graph.inputs[0]: -2}, 5, set())


def test_nodes_to_skip_do_not_look() -> None:
    nodes = [node("Slice", "k i j a", "y")]
    bounds = {"i": np.array([0]), "j": np.array([2]), "a": np.array([2])}
    model = graph(nodes, {"k": KEYS}, "y", bounds)
    found = follow(model.graph, {model.graph.inputs[0]: -2}, SIZE, {model.graph[0]})
    assert len(found.axis) == 1 and not found.turns


@pytest.mark.parametrize(
    ("before", "after", "axis", "wanted"),
    [
        ((1, 2, 5, 3), (1, 2, 5, 3), -2, -2),
        ((1, 2, 5, 3), (2, 5, 3), -2, -2),
        ((1, 2, 5, 3), (1, 2, 5, 3, 1), -2, -3),
        ((1, 2, 5, 6), (1, 2, 5, 2, 3), -2, -3),  # what is behind it may be split
        ((1, 2, 5, 3), (1, 10, 3), -2, None),  # merged with what is in front
        ((1, 2, 5, 3), (1, 2, 15), -2, None),  # merged with what is behind
        ((1, 2, 5), (1, 5, 2), -1, None),  # another five
    ],
)
def test_an_axis_that_a_reshape_leaves_whole_is_found_behind_it(
    before: tuple[int, ...], after: tuple[int, ...], axis: int, wanted: int | None
) -> None:
    shaped = [ir.val(name, ir.DataType.FLOAT, ir.Shape(dims)) for name, dims in (("a", before), ("b", after))]
    assert regrouped(*shaped, axis) == wanted


def test_of_unknown_sizes_nothing_is_said() -> None:
    free, known = (ir.val("v", ir.DataType.FLOAT, ir.Shape(dims)) for dims in (("B", 5, "C"), (5, 3)))
    assert regrouped(free, known, -2) is None
    assert regrouped(ir.val("v"), known, -2) is None
    assert size_at(free, -2) == 5 and size_at(free, -1) is None and size_at(ir.val("v"), -1) is None
    assert size_at(known, -3) == 1, "an axis that is not there broadcasts"


def test_a_transpose_without_its_attribute_turns_the_axes_round() -> None:
    made = graph([node("Transpose", "x", "y")], {"x": [1, 2, 3]}, "y", {}).graph[0]
    assert permutation(made) == [2, 1, 0] and transposed(made, -1) == -3
    made.inputs[0].shape = None  # type: ignore[union-attr]
    assert permutation(made) == [] and transposed(made, -1) is None
