"""Where nodes run: islands that hang together, that wait for nobody who waits for them, and what crosses."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.backends.seam import Placement
from pulsify.backends.torch.placement import FORCE, Plan, check_allowed, forced_parts, placements
from pulsify.core.errors import InvalidArgument
from tests.models import weights
from tests.unit.backends.torch.both import by_torch, fed, same, small, written
from tests.unit.graphs import run

NODES = (
    "MatMul x w > a; Relu a > b; Sigmoid a > c; Mul b c > d; Softmax d > e; Add e x > f; Tanh f > g; "
    "Concat g a > h axis=1; Slice h i j k > l; Sub l x > y"
)


def attention() -> ir.Model:
    bounds = {"i": np.array([2]), "j": np.array([6]), "k": np.array([1])}
    return small(NODES, {"x": [3, 4]}, {"w": weights(4, 4), **bounds})


def named(plan: Plan) -> list[list[str]]:
    return [[str(n.name) for n in part.nodes] for part in plan.islands]


@pytest.mark.parametrize(
    ("force", "islands"),
    [
        (["nothing of the kind"], []),
        (["Softmax"], [["e"]]),
        (["MatMul"], [["a"]]),  # at the start
        (["Sub"], [["y"]]),  # at the end
        (["Relu", "Sigmoid"], [["b"], ["c"]]),  # side by side
        (["Relu", "Sigmoid", "Mul"], [["b", "c", "d"]]),
        (["Mul", "Softmax", "Add"], [["d", "e", "f"]]),
        (["MatMul", "Concat"], [["a"], ["h"]]),  # what lies between is on the device
        (["Relu", "Softmax"], [["b"], ["e"]]),
    ],
)
def test_neighbours_are_one_island(force: list[str], islands: list[list[str]]) -> None:
    model, feeds = attention(), fed(attention())
    made = written(model, force=force)
    assert named(made.plan) == islands
    same(by_torch(model, feeds, force=force)["y"], run(model, feeds)["y"])


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from("abcdefghly")), st.integers(0, 99))
def test_any_nodes_forced_to_the_cpu_change_nothing(chosen: set[str], seed: int) -> None:
    model = attention()
    feeds = fed(model, seed)
    nodes = {str(n.name): n for n in model.graph}
    for name in chosen:
        nodes[name].name = f"forced {name}"
    made = written(model, force=["forced"])
    assert sorted(n for part in named(made.plan) for n in part) == sorted(f"forced {n}" for n in chosen)
    same(by_torch(model, feeds, force=["forced"])["y"], run(model, feeds)["y"])


def test_all_of_it_is_one_island() -> None:
    plan = written(attention(), force=list("abcdefghly")).plan
    assert len(plan.islands) == 1 and not plan.codes
    assert [v.name for v in plan.islands[0].takes] == ["x"] and [v.name for v in plan.islands[0].gives] == ["y"]


def test_what_only_an_island_reads_is_computed_in_it() -> None:
    """`a` could be alone, before `b`; only `d` reads it, which waits for `c`."""
    model = small("Exp x > b; Neg b > c; Exp x > a; Add a c > d; Relu d > y", {"x": [3]})
    nodes = {str(n.name): n for n in model.graph}
    for name in "bad":
        nodes[name].name = f"forced {name}"
    assert named(written(model, force=["forced"]).plan) == [["forced b"], ["forced a", "forced d"]]


def test_bytes_cross_once() -> None:
    made = written(attention(), force=["Relu", "Sigmoid", "Mul"])
    found = {p.node: p for p in placements(made.plan, "general", "cuda")}
    assert [found[n].nbytes for n in "bcd"] == [48, 0, 48]  # a goes in with b and is there for c, d comes out
    assert found["b"] == Placement("b", "Relu", "cpu", "asked for", 48, "general")
    assert found["a"] == Placement("a", "MatMul", "cuda", "", 0, "general")
    assert [found[n].device for n in "abcde"] == ["cuda", "cpu", "cpu", "cpu", "cuda"]


def test_what_may_be_on_the_cpu() -> None:
    made = written(attention(), force=["Relu", "Softmax"])
    found = list(placements(made.plan, "general", "cpu"))
    check_allowed(found, None)
    check_allowed(found, ["Softmax", "b"])
    with pytest.raises(InvalidArgument, match=r"'e' \(asked for\)") as error:
        check_allowed(found, ["Relu"])
    assert "'b'" not in str(error.value)
    with pytest.raises(InvalidArgument, match=r"'b' .*'e'"):
        check_allowed(found, [])


def test_the_environment_moves_nodes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forced_parts(["a"]) == ("a",)
    monkeypatch.setenv(FORCE, "Softmax, Relu,")
    assert forced_parts(["a"]) == ("a", "Softmax", "Relu")


def test_types_that_torch_has_not_pass_between_islands() -> None:
    """uint32 goes from one island to another that waits for the device."""
    text = "Cast x > u to=12; Cast u > f to=1; Relu f > r; Cast r > v to=12; Add u v > s; Cast s > y to=1"
    model = small(text, {"x": [3]})
    assert named(written(model).plan) == [["u", "f"], ["v", "s", "y"]]
    feeds = {"x": np.array([1, 2, 3], np.float32)}
    same(by_torch(model, feeds)["y"], run(model, feeds)["y"])
