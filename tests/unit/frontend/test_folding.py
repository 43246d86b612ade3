"""Nodes that read constants only are computed once; others stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from pulsify.core.runner import open_model
from pulsify.frontend.folding import fold_constants
from tests.models import model, node


def built() -> ir.Model:
    nodes = [
        node("Add", "a b", "c"), node("Mul", "c c", "d"), node("Add", "x d", "y"), node("Shape", "x", "s"),
        node("Cast", "s", "z", to=1), node("RandomNormal", "", "r", shape=[1]), node("Add", "d r", "q"),
    ]  # fmt: skip
    values = {"a": np.array([1.0], np.float32), "b": np.array([2.0], np.float32)}
    return ir.from_proto(model(nodes, {"x": ["T"]}, ["y", "z", "q"], values))


def test_what_reads_constants_is_one() -> None:
    graph = built()
    x = np.arange(3, dtype=np.float32)
    before = open_model(graph).run(["y", "z"], {"x": x})
    fold_constants(graph)
    assert [n.op_type for n in graph.graph] == ["Add", "Shape", "Cast", "RandomNormal", "Add"]
    for got, want in zip(open_model(graph).run(["y", "z"], {"x": x}), before, strict=True):
        np.testing.assert_array_equal(got, want)
    assert sorted(float(v.const_value.numpy()[0]) for v in graph.graph.initializers.values() if v.const_value)[-1] == 9
