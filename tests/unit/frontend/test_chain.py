"""Batch models one behind the other: what feeds what, names, operators of two versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pulsify.core.errors import InvalidArgument
from pulsify.frontend.chain import chain
from tests.models import close, frames, model, run_batch, weights
from tests.unit.graphs import parsed

FRONT = model(parsed("Mul x g > h; Relu h > y"), {"x": [1, 2, "T"]}, ["y"], {"g": weights(2, 1)})
BACK = model(parsed("Mul x g > h; Neg h > y"), {"x": [1, 2, "T"]}, ["y"], {"g": weights(2, 1, seed=5)})


def after(*protos: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    return ir.to_proto(chain(*protos, **options))


def test_models_that_use_the_same_names_do_not_meet() -> None:
    x = frames(1, 2, 6)
    want = run_batch(BACK, run_batch(FRONT, x)["y"])["y"]
    joined = after(FRONT, BACK)
    assert [i.name for i in joined.graph.input] == ["x"] and [o.name for o in joined.graph.output] == ["y"]
    close(run_batch(joined, x)["y"], want)


def test_three_in_a_row() -> None:
    x = frames(1, 2, 6)
    want = x
    for proto in (FRONT, BACK, FRONT):
        want = run_batch(proto, want)["y"]
    close(run_batch(after(FRONT, BACK, FRONT), x)["y"], want)


def test_the_models_given_stay_as_they_were() -> None:
    before = FRONT.SerializeToString(), BACK.SerializeToString()
    chain(FRONT, BACK)
    assert (FRONT.SerializeToString(), BACK.SerializeToString()) == before


def test_outputs_feed_inputs_by_name_as_told_or_in_order_and_the_rest_stays() -> None:
    two = model(parsed("Relu x > a; Neg x > b"), {"x": [1, 2, "T"]}, ["a", "b"])
    takes = model(parsed("Sub b a > y; Identity c > z"), {"b": [1, 2, "T"], "a": [1, 2, "T"], "c": [3]}, ["y", "z"])
    x, c = frames(1, 2, 4), frames(3)
    by_name = after(two, takes)
    assert [i.name for i in by_name.graph.input] == ["x", "c"]
    close(run_batch(by_name, {"x": x, "c": c})["y"], -x - np.maximum(x, 0))
    other = model(parsed("Sub p q > y"), {"p": [1, 2, "T"], "q": [1, 2, "T"]}, ["y"])
    close(run_batch(after(two, other), x)["y"], np.maximum(x, 0) + x)
    close(run_batch(after(two, other, connect={"p": "b", "q": "a"}), x)["y"], -x - np.maximum(x, 0))


@pytest.mark.parametrize(
    ("dims", "dtype"), [([1, 3, "T"], np.float32), ([1, "T"], np.float32), ([1, 2, "T"], np.int64)]
)
def test_what_cannot_feed_is_told_with_both_shapes(dims: Any, dtype: Any) -> None:
    other = model(parsed("Neg z > w"), {"z": dims}, ["w"], dtypes={"z": dtype, "w": dtype})
    with pytest.raises(InvalidArgument, match=r"'y' \(float \[1, 2, 'T'\]\) cannot feed 'z' .* connect=\{\"z\""):
        chain(FRONT, other)


def test_one_model_is_no_chain_and_wires_that_are_none_are_told() -> None:
    with pytest.raises(InvalidArgument, match="at least two models"):
        chain(FRONT)
    with pytest.raises(InvalidArgument, match="no model of the chain has such inputs and outputs side by side"):
        chain(FRONT, BACK, connect={"x": "nothing"})


def test_the_older_model_is_lifted_to_the_newer_ones_operators() -> None:
    old = model(parsed("Mul x g > h; Relu h > y"), {"x": [1, 2, "T"]}, ["y"], {"g": weights(2, 1)}, opset=13)
    joined = chain(old, BACK)
    assert joined.opset_imports[""] == 17
    x = frames(1, 2, 6)
    close(run_batch(ir.to_proto(joined), x)["y"], run_batch(BACK, run_batch(FRONT, x)["y"])["y"])
