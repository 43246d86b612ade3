"""The lengths at which a model is looked at: near each other, far apart, and only those it takes."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from pulsify.convert.convert import convert
from pulsify.core.errors import NotStreamable
from pulsify.trace.lengths import BATCHES, MOST_NODES, SCALES, Traces, choose
from tests.models import look_ahead, model, weights
from tests.unit.build import traced
from tests.unit.graphs import parsed


def reshaped(multiple: int, rest: int = 0) -> onnx.ModelProto:
    """Takes lengths that are `rest` more than a multiple."""
    text = "Slice x i j a > c; Reshape c s > r; Relu r > y" if rest else "Reshape x s > r; Relu r > y"
    constants = {
        "s": np.array([1, 2, -1, multiple]),
        "i": np.array([rest]),
        "j": np.array([1 << 40]),
        "a": np.array([2]),
    }
    read = {n: c for n, c in constants.items() if f" {n} " in text}
    return model(parsed(text), {"x": [1, 2, "T"]}, ["y"], read)


def fits(found: Traces, step: int) -> None:
    near, next_one, far = found.lengths
    assert next_one - near == step and far > 2 * near and (far - near) % step == 0
    assert [run.length for run in found.runs] == [near, next_one, far] and found.longest is found.runs[-1]


def test_any_length_will_do_two_neighbours_and_one_more_than_twice_as_long() -> None:
    found = choose(traced(look_ahead()))
    fits(found, 1)
    assert found.step == 1 and found.lengths[0] == SCALES[0] + 3


@pytest.mark.parametrize(("multiple", "rest"), [(4, 0), (6, 0), (4, 1), (7, 3)])
def test_a_model_that_takes_some_lengths_only_is_looked_at_those(multiple: int, rest: int) -> None:
    found = choose(traced(reshaped(multiple, rest)))
    fits(found, multiple)
    assert all(n % multiple == rest for n in found.lengths) and found.step == multiple


def test_multiples_that_were_declared_are_kept_to() -> None:
    found = choose(traced(look_ahead(), set={"T": "12*n"}))
    fits(found, 12)
    assert all(n % 12 == 0 for n in found.lengths)


def test_longer_ones_if_asked_for() -> None:
    assert choose(traced(look_ahead()), at_least=1000).lengths[0] >= 1000
    assert choose(traced(look_ahead()), at_least=SCALES[-1]).lengths[0] >= SCALES[-1]


def test_shorter_ones_where_a_table_ends() -> None:
    text = "Shape x > d; Slice d two three > t; Slice table zero t > p; Add x p > y"
    constants = {"table": weights(40), "two": np.array([2]), "three": np.array([3]), "zero": np.array([0])}
    found = choose(traced(model(parsed(text), {"x": [1, 2, "T"]}, ["y"], constants)))
    fits(found, 1)
    assert found.lengths[-1] <= 40


def test_a_free_batch_is_looked_at_in_two_sizes() -> None:
    found = choose(traced(look_ahead("B")))
    assert found.other_batch is not None
    assert found.runs[0]["y"].dims[0] == BATCHES[0] and found.other_batch["y"].dims[0] == BATCHES[1]
    assert choose(traced(look_ahead())).other_batch is None


def test_a_model_that_runs_at_no_length_says_which_node_objects() -> None:
    proto = model(parsed("Concat x c > y axis=1"), {"x": [1, 2, "T"]}, ["y"], {"c": weights(3, 2, 4)})
    with pytest.raises(NotStreamable, match="runs at none of") as refused:
        choose(traced(proto))
    assert refused.value.node == "y" and "at several lengths" in refused.value.hint


def test_traces_are_kept_until_they_are_let_go() -> None:
    tracer = traced(look_ahead())
    first = tracer.at(70)
    assert tracer.at(70) is first
    tracer.forget()
    assert tracer.at(70) is not first and tracer.at(70)["y"].dims == first["y"].dims


def test_whether_a_length_works_is_asked_without_an_error() -> None:
    tracer = traced(reshaped(4))
    assert [n for n in range(1, 13) if tracer.works(n)] == [4, 8, 12]


def test_inputs_have_the_sizes_of_a_length_and_those_bound_to_it_its_value() -> None:
    proto = model(
        parsed("Relu x > y; Identity n > m"), {"x": ["B", 2, "4*T"], "n": ["B"]}, ["y", "m"],
        dtypes={"n": np.int64, "m": np.int64},
    )  # fmt: skip
    given = traced(proto, bind={"n": "T"}).inputs(10, 3)
    assert given["x"].dims == (3, 2, 40) and not given["x"].known
    np.testing.assert_array_equal(given["n"].array, [10, 10, 10])


def deep(multiple: int, rest: int, nodes: int = 200) -> onnx.ModelProto:
    """Takes lengths that are `rest` more than a multiple, and says so behind many nodes."""
    names = ["c", *(f"c{i}" for i in range(nodes))]
    relus = "; ".join(f"Relu {a} > {b}" for a, b in itertools.pairwise(names))
    text = f"Slice x i j a > c; {relus}; Reshape {names[-1]} s > r; Relu r > y"
    constants = {"s": [1, 2, -1, multiple], "i": [rest], "j": [1 << 40], "a": [2]}
    return model(parsed(text), {"x": [1, 2, "T"]}, ["y"], {n: np.array(c) for n, c in constants.items()})


@pytest.mark.parametrize(("multiple", "rest"), [(320, 0), (320, 79), (6, 5), (1000, 1)])
def test_what_fails_says_which_lengths_are_likely(multiple: int, rest: int) -> None:
    """All lengths one by one would be some hundreds of thousands of nodes."""
    tracer = traced(deep(multiple, rest))
    found = choose(tracer)
    fits(found, multiple)
    assert found.lengths[0] % multiple == rest and tracer.nodes < 10_000


def test_a_search_in_vain_ends_after_so_many_nodes_and_says_what_was_tried() -> None:
    text = "Shape x > d; Slice d two three > t; Mul t t > q; Mod q m > r; Sub r k > z; Expand o z > e; Add x e > y"
    constants = {"two": [2], "three": [3], "m": [1], "k": [1]}
    held: dict[str, npt.NDArray[np.generic]] = {n: np.array(c) for n, c in constants.items()}
    tracer = traced(model(parsed(text), {"x": [1, 2, "T"]}, ["y"], {**held, "o": np.ones(1, np.float32)}))
    with pytest.raises(NotStreamable, match=r"runs at none of \d+ lengths tried, from \d+ to \d+ frames"):
        choose(tracer)
    assert tracer.nodes < MOST_NODES + 1000


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_mask_as_large_as_the_example_is_named_even_if_one_frame_is_broadcast(size: int) -> None:
    text = "Transpose x > k perm=[0,2,1]; MatMul k x > s; Add s mask > w; ReduceSum w a > z keepdims=1; Mul z one > y"
    held = {"mask": np.tril(np.ones((size, size), np.float32)), "a": np.array([1, 2]), "one": np.ones(1, np.float32)}
    tracer = traced(model(parsed(text), {"x": [1, 2, "T"]}, ["y"], held))
    with pytest.raises(NotStreamable, match=f"exported for one length: it runs at {size} frames") as refused:
        choose(tracer)
    assert refused.value.op == "Add" and tracer.nodes < 100


def test_a_chain_of_nodes_that_a_loop_in_python_wrote_is_refused_by_name() -> None:
    """Not a RecursionError."""
    names = ["t", *(f"t{i}" for i in range(5000))]
    adds = "; ".join(f"Add {a} one > {b}" for a, b in itertools.pairwise(names))
    text = f"Shape x > d; Gather d two > t; {adds}; Greater {names[-1]} one > g; Where g x z > y"
    held: dict[str, npt.NDArray[np.generic]] = {
        "one": np.array([1]),
        "two": np.array([2]),
        "z": np.zeros(1, np.float32),
    }
    with pytest.raises(NotStreamable, match="a loop in Python was written out") as refused:
        convert(traced(model(parsed(text), {"x": [1, 2, "T"]}, ["y"], held)), 4)
    assert refused.value.node and refused.value.op in ("Add", "Greater", "Where")
