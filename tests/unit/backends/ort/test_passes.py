"""Passes tuned for ONNX Runtime: a graph in, a graph out, and one to leave alone."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_ir.passes import PassError, PreconditionError

from pulsify.backends.ort.aliased import ExposeTails
from pulsify.backends.ort.attention import FuseAttention
from pulsify.backends.ort.rows import ForOneStream
from pulsify.backends.ort.squeeze import SqueezeTokens
from pulsify.backends.seam import Tail
from tests.models import node, weights
from tests.unit.graphs import becomes, graph, ops, stays

OUT = node("Identity", "y", "out")


def test_one_stream() -> None:
    before = graph([node("Relu", "x", "y")], {"x": ["B", 2, 4]}, "y", {})
    made = ForOneStream()(before).model
    assert list(made.graph.inputs[0].shape or ()) == [1, 2, 4]
    assert str(before.graph.inputs[0].shape) == "[B,2,4]"  # not in place
    assert ops(made) == ["Relu"]


def test_tokens_are_rows() -> None:
    product = [node("MatMul", "x w", "y"), OUT]
    before = graph(product, {"x": [1, 3, 4]}, "out", {"w": weights(4, 4)})
    becomes(SqueezeTokens(), before, "Reshape", "MatMul", "Reshape", "Identity")
    stays(SqueezeTokens(), graph(product, {"x": [2, 3, 4]}, "out", {"w": weights(4, 4)}))
    with pytest.raises((PreconditionError, PassError)):
        SqueezeTokens()(graph(product, {"x": ["B", 3, 4]}, "out", {"w": weights(4, 4)}))


def test_attention_is_one_node() -> None:
    def attention(perm: list[int]) -> list[str] | None:
        nodes = [
            node("Transpose", "q", "a", perm=[0, 2, 1, 3]), node("Transpose", "k", "b", perm=perm),
            node("MatMul", "a b", "c"), node("Softmax", "c", "d", axis=-1), node("MatMul", "d v", "e"),
            node("Transpose", "e", "y", perm=[0, 2, 1, 3]), OUT,
        ]  # fmt: skip
        before = graph(nodes, {"q": [1, 3, 2, 4], "k": [1, 2, 4, 4], "v": [1, 2, 4, 4]}, "out", {})
        made = FuseAttention()(before)
        return ops(made.model) if made.modified else None

    assert attention([0, 1, 3, 2]) == ["Reshape", "MultiHeadAttention", "Reshape", "Identity"]
    assert attention([0, 1, 2, 3]) is None


def test_a_state_that_is_the_end_of_something() -> None:
    nodes = [
        node("Concat", "s x", "full", axis=0),
        node("Slice", "full two six zero", "new_s"),
        node("Relu", "full", "y"),
    ]
    bounds = {"two": np.array([4]), "six": np.array([6]), "zero": np.array([0])}
    before = graph(nodes, {"s": [2, 3], "x": [4, 3]}, "y new_s", bounds)
    stays(ExposeTails({}), before)
    made = becomes(ExposeTails({"new_s": Tail("full_new_s", (6, 3), 0)}), before, "Concat", "Relu")
    assert [v.name for v in made.graph.outputs] == ["y", "full_new_s"]
    with pytest.raises(PreconditionError):
        ExposeTails({"y": Tail("full_y", (6, 3), 0)})(made)
