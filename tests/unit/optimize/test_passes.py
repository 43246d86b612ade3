"""Every pass that rewrites node by node: a graph in, a graph out, and one to leave alone."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes import PreconditionError

from pulsify.optimize.constants import FoldConstants
from pulsify.optimize.rewriting import NodeChange
from pulsify.optimize.scale import FoldScale, SpreadScale, TurnOnce
from pulsify.optimize.split_products import SplitProducts
from pulsify.optimize.tidy import (
    CutSources,
    DropNeutral,
    FoldNorm,
    JoinSources,
    OneView,
    ProductsWithBias,
    ReadUncut,
    SinkViews,
    TakeInBias,
)
from pulsify.optimize.unfold import FoldUnfold
from tests.models import Array, node, weights
from tests.unit.graphs import becomes, graph, stays

F = np.float32
X, Y = [1, 4, 6], [4, 6]  # sizes of x and of z
CONSTANTS: dict[str, Array] = {
    "one": np.ones(1, F), "two": np.full(1, 2, F), "w": weights(6, 6), "b": weights(6), "k": weights(4, 4, 2),
    "t": weights(4, 4, 2), "n": np.ones(4, F), "flat": np.array(Y), "full": np.array(X), "i0": np.array([0]),
    "i1": np.array([1]), "i2": np.array([2]), "i5": np.array([5]), "u": weights(3, 8, 1), "q": weights(6, 4),
    "places": np.arange(5)[None] + np.arange(2)[:, None], "side": np.array([1, 8, 5]), "v": weights(6, 6, seed=4),
    "odd": np.arange(5)[None] + np.zeros((2, 1), np.int64),
}  # fmt: skip
R, Z = node("Reshape", "x flat", "r"), node("Relu", "z", "z1")
NORM, GEMM = node("BatchNormalization", "h n n n n", "y"), node("Gemm", "z w b", "h")
MIX = [node("Reshape", "g side", "s"), node("Conv", "s u", "y")]
PRODUCTS = [node("MatMul", "z w", "f"), node("MatMul", "z v", "g")]
TURN = node("Transpose", "h", "y", perm=[1, 0])
Nodes = list[onnx.NodeProto]
CASES: list[tuple[NodeChange, Nodes, list[str], Nodes]] = [  # pass, graph in, operators out, graph to leave alone
    (FoldConstants(), [node("Add", "one two", "h"), node("Mul", "z h", "y")], ["Mul"], [node("Mul", "z two", "y")]),
    (
        DropNeutral(),
        [node("Mul", "z one", "h"), node("Relu", "h", "y")],
        ["Relu"],
        [node("Mul", "z two", "h"), node("Relu", "h", "y")],
    ),
    (
        ReadUncut(),
        [node("Slice", "x i0 i5 i2", "h"), node("Conv", "h k", "y", strides=[3])],
        ["Conv"],
        [node("Slice", "x i1 i5 i2", "h"), node("Conv", "h k", "y", strides=[3])],
    ),
    (OneView(), [R, node("Reshape", "r full", "h"), node("Relu", "h", "y")], ["Relu"], [R, node("Relu", "r", "y")]),
    (SinkViews(), [R, node("Relu", "r", "y")], ["Relu", "Reshape"], [Z, node("Relu", "z1", "y")]),
    (
        CutSources(),
        [R, node("Slice", "r i1 i2 i1", "h"), node("Relu", "h", "y")],
        ["Slice", "Reshape", "Relu"],
        [node("Slice", "x i1 i2 i1", "h"), node("Relu", "h", "y")],
    ),
    (
        JoinSources(),
        [R, node("Concat", "r r", "h", axis=1), node("Relu", "h", "y")],
        ["Concat", "Reshape", "Relu"],
        [node("Concat", "z z", "h", axis=1), node("Relu", "h", "y")],
    ),
    (
        ProductsWithBias(),
        [node("MatMul", "x w", "h"), node("Add", "h b", "a"), node("Relu", "a", "y")],
        ["Reshape", "Gemm", "Reshape", "Relu"],
        [node("MatMul", "x w", "h"), node("Relu", "h", "y")],
    ),
    (
        TakeInBias(),
        [node("Gemm", "z w", "h"), node("Add", "h b", "a"), node("Relu", "a", "y")],
        ["Gemm", "Relu"],
        [GEMM, node("Add", "h b", "a"), node("Relu", "a", "y")],
    ),
    (FoldNorm(), [node("ConvTranspose", "x t", "h"), NORM], ["ConvTranspose"], [node("Conv", "x k", "h"), NORM]),
    (
        FoldScale(),
        [node("MatMul", "z w", "h"), node("Mul", "h two", "a"), node("Relu", "a", "y")],
        ["MatMul", "Relu"],
        [node("Relu", "z", "h"), node("Mul", "h two", "y")],
    ),
    (
        SpreadScale(),
        [*PRODUCTS, node("Add", "f g", "h"), node("Mul", "h two", "a"), node("Relu", "a", "y")],
        ["MatMul", "MatMul", "Mul", "Mul", "Add", "Relu"],
        [node("Add", "z z", "h"), node("Mul", "h two", "y")],
    ),
    (
        TurnOnce(),
        [
            Z,
            node("Add", "z1 b", "e"),
            node("Add", "z1 b", "f"),
            node("Transpose", "e", "g", perm=[1, 0]),
            node("Transpose", "f", "h", perm=[1, 0]),
            node("Mul", "g h", "y"),
        ],
        ["Relu", "Transpose", "Add", "Add", "Mul"],
        [Z, node("Add", "z1 b", "h"), TURN],
    ),
    (
        SplitProducts(),
        [GEMM, node("Split", "h", "p q1", axis=1), node("Tanh", "p", "f"), node("Mul", "f q1", "y")],
        ["Gemm", "Gemm", "Tanh", "Mul"],
        [GEMM, node("Tanh", "h", "y")],
    ),
    (
        FoldUnfold(),
        [node("Gather", "x places", "g", axis=2), *MIX],
        ["Conv"],
        [node("Gather", "x odd", "g", axis=2), *MIX],
    ),
]


def small(nodes: Nodes, batch: int | str = 1) -> ir.Model:
    read = {name for n in nodes for name in n.input}
    constants = {name: array for name, array in CONSTANTS.items() if name in read}
    return graph([*nodes, node("Identity", "y", "out")], {"x": [batch, *X[1:]], "z": Y}, "out", constants)


@pytest.mark.parametrize(("change", "before", "after", "alone"), CASES, ids=[type(c[0]).__name__ for c in CASES])
def test_a_graph_in_a_graph_out(change: NodeChange, before: Nodes, after: list[str], alone: Nodes) -> None:
    stays(change, small(alone))
    becomes(change, small(before), *after, "Identity")


def test_a_free_batch_is_turned_down() -> None:
    with pytest.raises(PreconditionError):
        DropNeutral()(small([node("Relu", "x", "y")], batch="B"))
