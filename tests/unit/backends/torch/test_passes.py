"""Passes for this back end: products of one value are one, and what has no effect is gone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from pulsify.backends.torch.passes import Joined, JoinProducts, quicker
from tests.models import weights
from tests.unit.graphs import alike, becomes, graph, ops, stays

QKV = {"q": weights(4, 6), "k": weights(4, 6, seed=2), "v": weights(4, 3, seed=3)}


def attention(batch: int = 2) -> ir.Model:
    return graph(
        "MatMul x q > a; MatMul x k > b; MatMul x v > c; Relu a > y; Relu b > z; Relu c > w",
        {"x": [batch, 5, 4]}, "y z w", QKV,
    )  # fmt: skip


def test_products_that_share_an_input() -> None:
    made = becomes(JoinProducts(), attention(), "MatMul", "Split", "Relu", "Relu", "Relu")
    (product,) = (n for n in made.graph if n.op_type == "MatMul")
    assert product.inputs[1] is not None and product.inputs[1].shape == ir.Shape([4, 15])


def test_a_product_that_is_an_output_keeps_its_name() -> None:
    model = graph("MatMul x q > y; MatMul x k > z", {"x": [2, 5, 4]}, "y z", QKV)
    becomes(JoinProducts(), model, "MatMul", "Split")


def test_what_shares_nothing_stays() -> None:
    stays(JoinProducts(), graph("MatMul x q > y; MatMul u k > z", {"x": [2, 5, 4], "u": [2, 5, 4]}, "y z", QKV))
    stays(JoinProducts(), graph("MatMul x u > y; MatMul x q > z", {"x": [5, 4], "u": [4, 3]}, "y z", QKV))
    stays(JoinProducts(), graph("MatMul q x > y; MatMul k x > z", {"x": [6, 4]}, "y z", QKV))


def test_sizes_of_a_split_were_an_attribute_once() -> None:
    stays(JoinProducts(), graph("MatMul x q > y; MatMul x k > z", {"x": [2, 5, 4]}, "y z", QKV, opset=12))


def test_other_forms_of_a_step_share_the_joined_matrix() -> None:
    joined, model = Joined(), attention()
    again = model.clone()
    made = [JoinProducts(joined)(m).model for m in (model, again)]
    first, second = (next(n for n in m.graph if n.op_type == "MatMul").inputs[1] for m in made)
    assert first is not None and second is not None and first.const_value is second.const_value
    assert first.const_value is not None
    np.testing.assert_array_equal(first.const_value.numpy(), np.concatenate(list(QKV.values()), 1))


def test_all_of_them() -> None:
    model = graph(
        "Mul x one > m; Where yes m zero > n; MatMul n q > a; MatMul n k > b; Mul a half > c; Add b c > y",
        {"x": [2, 5, 4]}, "y",
        {**QKV, "one": np.ones((2, 5, 4), np.float32), "yes": np.ones((2, 5, 4), bool),
         "zero": np.zeros(1, np.float32), "half": np.array(0.5, np.float32)},
    )  # fmt: skip
    before = model.clone()
    after = quicker(Joined())(model).model
    assert ops(after) == ["MatMul", "Split", "Add"]
    alike(before, after)
