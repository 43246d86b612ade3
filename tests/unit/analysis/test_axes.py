"""Where axes go: the answers for each kind of operator, held against what changes in the output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulsify.analysis.axes import AXES, axis_maps
from pulsify.core.facet import load_operators
from pulsify.core.runner import open_model, run_model
from pulsify.core.traits import TRAITS
from tests.models import Array, Dims, model, node
from tests.unit.convert.contexts import opened

SIZE = 16  # frames
CASES: dict[str, tuple[dict[str, Any], dict[str, Array], Dims]] = {  # attributes, other inputs, size of x
    "Add": ({}, {"c": np.ones((5, 3), np.float32)}, ("T", 5, 3)),
    "Transpose": ({"perm": [1, 0, 2]}, {}, ("T", 5, 3)),
    "Softmax": ({"axis": 1}, {}, ("T", 5, 3)),
    "MatMul": ({}, {"c": np.ones((3, 4), np.float32)}, ("T", 5, 3)),
    "Einsum": ({"equation": "tab,bc->act"}, {"c": np.ones((3, 4), np.float32)}, ("T", 5, 3)),
    "Concat": ({"axis": 2}, {}, ("T", 5, 3)),
    "Reshape": ({}, {"c": np.array([-1, 15])}, ("T", 5, 3)),
    "ReduceSum": ({"keepdims": 0}, {"c": np.array([0])}, (5, "T", 3)),
    "ArgMax": ({"axis": 0, "keepdims": 0}, {}, (5, "T", 3)),
    "TopK": ({"axis": 2}, {"c": np.array([2])}, ("T", 5, 3)),
    "Slice": ({}, {"s": np.array([1]), "e": np.array([3]), "a": np.array([0])}, (5, "T", 3)),
    "Gather": ({"axis": 0}, {"c": np.array([[1, 2], [0, 3]])}, (5, "T", 3)),
    "GatherND": ({}, {"c": np.array([[1], [2]])}, (5, "T", 3)),
    "Expand": ({}, {"c": np.array([2, 1, 1, 1])}, ("T", 5, 3)),
    "Tile": ({}, {"c": np.array([1, 2, 1])}, ("T", 5, 3)),
}


@pytest.mark.parametrize("op", sorted(CASES))
def test_a_frame_of_the_input_shows_in_that_frame_of_the_output_alone(op: str) -> None:
    attributes, others, dims = CASES[op]
    outputs = "y places" if op == "TopK" else "y"
    nodes = [node(op, " ".join(["x", *others]), outputs, **attributes)]
    dtypes = {"y": np.int64} if op == "ArgMax" else {}
    proto = model(nodes, {"x": dims}, ["y"], others, dtypes=dtypes)
    ask = opened(proto).ask
    maps = axis_maps(ask, ask.model.producers["y"])
    assert maps is not None
    time = dims.index("T")
    session, rng = open_model(proto), np.random.default_rng(1)
    x = rng.standard_normal([SIZE if d == "T" else d for d in dims]).astype(np.float32)
    before = run_model(session, {"x": x})["y"]
    other = x.copy()
    np.moveaxis(other, time, 0)[7] = rng.permuted(np.moveaxis(x, time, 0)[7], axis=0) * 2 - 1
    changed = np.argwhere(run_model(session, {"x": other})["y"] != before)
    assert set(changed[:, maps[0][time]]) == {7}


def test_every_kind_of_axes_has_an_answer() -> None:
    load_operators()
    assert all(AXES.named(op) is not None for op, t in TRAITS.items() if t.axes)


@pytest.mark.parametrize(
    ("op", "attributes", "others", "dims"),
    [
        ("Concat", {"axis": 0}, {"c": np.ones((2, 3), np.float32)}, ("T", 3)),
        ("Slice", {}, {"s": np.array([1]), "e": np.array([3]), "a": np.array([0])}, ("T", 3)),
        ("Gather", {"axis": 0}, {"c": np.array([0, 1])}, ("T", 3)),
        ("GatherND", {}, {"c": np.array([[0, 1]])}, ("T", 3)),
    ],
)
def test_time_that_is_cut_or_joined_is_not_kept_apart(
    op: str, attributes: dict[str, Any], others: dict[str, Array], dims: Dims
) -> None:
    proto = model([node(op, " ".join(["x", *others]), "y", **attributes)], {"x": dims}, ["y"], others)
    ask = opened(proto).ask
    assert axis_maps(ask, ask.model.producers["y"]) is None
