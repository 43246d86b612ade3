"""Every pass that rewrites node by node: a graph in, a graph out, and one to leave alone."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes import PreconditionError

from pulsify.optimize.chain_products import ChainProducts, JoinSummands
from pulsify.optimize.constants import FoldConstants
from pulsify.optimize.cuts import CutOnce
from pulsify.optimize.heads import JoinHeads
from pulsify.optimize.overlap import ReadOverlap, SumBlocks
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
    TakeInSum,
)
from pulsify.optimize.unfold import FoldUnfold
from tests.models import Array, node, weights
from tests.unit.graphs import alike, becomes, graph, ops, parsed, run, stays

F = np.float32
X, Y = [1, 4, 6], [4, 6]  # sizes of x and of z
CONSTANTS: dict[str, Array] = {
    "one": np.ones(1, F), "two": np.full(1, 2, F), "w": weights(6, 6), "b": weights(6), "k": weights(4, 4, 2),
    "t": weights(4, 4, 2), "n": np.ones(4, F), "flat": np.array(Y), "full": np.array(X), "i0": np.array([0]),
    "i1": np.array([1]), "i2": np.array([2]), "i5": np.array([5]), "u": weights(3, 8, 1), "q": weights(6, 4),
    "places": np.arange(5)[None] + np.arange(2)[:, None], "side": np.array([1, 8, 5]), "v": weights(6, 6, seed=4),
    "odd": np.arange(5)[None] + np.zeros((2, 1), np.int64), "ones": np.ones(Y, F), "no": np.zeros(Y, bool),
    "yes": np.ones(1, bool), "some": np.arange(6) > 2, "none": np.zeros(1, F), "bytes": np.arange(6, dtype=np.uint8),
    "two1": np.array(2, F), "half": weights(4, 2, 2), "scalar": np.array(3, F), "merged": np.array([2, 12]),
    "back": np.array([-3]), "rows": weights(4, 1), "n4": np.abs(weights(4)) + 1, "m4": weights(4, seed=3),
    "b4": weights(4, seed=2), "t2": weights(4, 2, 2), "t6": weights(4, 6, 2), "w6": weights(2, 4),
    "i6": np.array([6]), "e6": weights(4, 6), "around": np.array([0, 0, 1, 0, 0, 1]),
    "eyes": np.concatenate([np.eye(3, dtype=F)] * 2), "eye0": np.concatenate([np.eye(3, dtype=F), np.zeros((3, 3), F)]),
    "twos": np.concatenate([np.eye(3, dtype=F)] * 2) * 2, "o6": weights(4, 2, 6), "o5": weights(4, 2, 5),
    "b2": weights(2, seed=5), "i3": np.array([3]), "i9": np.array([9]), "i12": np.array([12]),
    "wide": weights(2, 9, seed=6), "in2": weights(6, 2), "seven": np.arange(7)[None] + np.arange(2)[:, None],
    "side7": np.array([1, 8, 7]), "heads": np.array([1, 4, 3, 2]), "blocks": np.array([2, 2, 3, 2]),
}  # fmt: skip
R, Z = node("Reshape", "x flat", "r"), node("Relu", "z", "z1")
NORM, GEMM = node("BatchNormalization", "h n n n n", "y"), node("Gemm", "z w b", "h")
MIX = [node("Reshape", "g side", "s"), node("Conv", "s u", "y")]
PRODUCTS = [node("MatMul", "z w", "f"), node("MatMul", "z v", "g")]
HEADS = [
    node("Reshape", "f heads", "h1"),
    node("Transpose", "h1", "hq", perm=[0, 2, 1, 3]),
    node("Reshape", "g heads", "h2"),
]  # fmt: skip
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
        CutOnce(),
        parsed("Slice x i1 i5 i2 > h; Slice h i1 i3 i2 > a; Relu a > y"),
        ["Slice", "Relu"],
        parsed("Slice x i1 i5 i2 > h; Slice h i1 i3 i1 > a; Relu a > y"),
    ),
    (
        ReadOverlap(),
        [node("ConvTranspose", "x t", "h"), node("Slice", "h i1 i2 i2", "y")],
        ["Slice", "Conv"],
        [node("ConvTranspose", "x t", "h"), node("Slice", "h i1 i5 i2", "y")],
    ),
    (
        SumBlocks(fewest=3),
        [node("Gemm", "z eyes", "h"), node("Relu", "h", "y")],
        ["Reshape", "Gather", "ReduceSum", "Relu"],
        [node("Gemm", "z twos", "h"), node("Relu", "h", "y")],
    ),
    (
        ChainProducts(),
        [GEMM, node("Gemm", "h v b", "a", transB=1), node("Relu", "a", "y")],
        ["Gemm", "Relu"],
        [GEMM, node("Relu", "h", "a"), node("Gemm", "a v", "y")],
    ),
    (
        JoinSummands(),
        parsed("Relu z > a1; Tanh z > a2; Add a1 a2 > s1; Add s1 z > s2; Add a1 s2 > h; Gemm h w b > y"),
        ["Relu", "Tanh", "Concat", "Gemm"],
        parsed("Relu z > a1; Tanh z > a2; Add a1 a2 > s1; Add s1 z > h; Gemm h w b > y"),
    ),
    (
        JoinHeads(),
        [*PRODUCTS, *HEADS, node("Transpose", "h2", "hk", perm=[0, 2, 3, 1]), node("MatMul", "hq hk", "y")],
        ["MatMul", "Reshape", "Transpose", "Split", "Transpose", "MatMul"],
        [PRODUCTS[0], *HEADS[:2], node("Relu", "hq", "y")],
    ),
    (
        TakeInSum(),
        [node("Gemm", "z w", "h"), node("Tanh", "z", "a"), node("Add", "a h", "y")],
        ["Tanh", "Gemm"],
        [GEMM, node("Tanh", "z", "a"), node("Add", "a h", "y")],
    ),
    (
        FoldUnfold(),
        [node("Gather", "x places", "g", axis=2), *MIX],
        ["Conv"],
        [node("Gather", "x odd", "g", axis=2), *MIX],
    ),
]


FURTHER: list[tuple[str, NodeChange, str, str]] = [  # what holds, pass, graph in, operators out
    ("one in front is left out too", DropNeutral(), "Mul one z > h; Relu h > y", "Relu"),
    ("one that spreads its operand stays", DropNeutral(), "Mul row ones > y", "Mul"),
    ("one divided is no division by one", DropNeutral(), "Div one z > y", "Div"),
    ("a choice is its branch", DropNeutral(), "Where no row z > h; Relu h > y", "Relu"),
    ("a branch that is spread stays", DropNeutral(), "Where yes row z > y", "Where"),
    ("a choice that differs stays", DropNeutral(), "Where some z b > y", "Where"),
    ("who has the shape repeats by itself", DropNeutral(), "Expand row flat > e; Add e z > y", "Add"),
    ("who has the shape of the result too", DropNeutral(), "Expand scalar i6 > e; Add e z > y", "Add"),
    ("of two repeated one keeps the shape", DropNeutral(), "Expand row flat > e; Mul e e > y", "Expand Mul"),
    ("an operator as large as its first input", DropNeutral(), "Expand row flat > e; PRelu e z > y", "Expand PRelu"),
    ("one that takes the other's type only", DropNeutral(), "Expand row flat > e; CastLike e z > y", "Expand CastLike"),
    ("its slope may repeat", DropNeutral(), "Expand row flat > e; PRelu z e > y", "PRelu"),
    (
        "noise is not computed once",
        FoldConstants(),
        "RandomNormalLike b > h; Mul h none > n0; Add z n0 > y",
        "RandomNormalLike Mul Add",
    ),
    (
        "quantised constants stay",
        FoldConstants(),
        "DequantizeLinear bytes two1 > h; Mul z h > y",
        "DequantizeLinear Mul",
    ),
    ("a frame the stride reads stays cut", ReadUncut(), "Slice x i0 i5 i2 > h; Conv h k > y", "Slice Conv"),
    ("pads see the cut", ReadUncut(), "Slice x i0 i5 i2 > h; Conv h k > y pads=[0,1] strides=[3]", "Slice Conv"),
    ("cut channels stay cut", ReadUncut(), "Slice x i0 i2 i1 > h; Conv h half > y strides=[3]", "Slice Conv"),
    ("a transpose of nothing is a reshape", OneView(), "Transpose x > h perm=[1,0,2]; Relu h > y", "Reshape Relu"),
    ("an input shown as it is keeps a node", OneView(), "Reshape x full > y", "Reshape"),
    ("a view read twice stays", SinkViews(), "Reshape x flat > r; Mul r r > y", "Reshape Mul"),
    ("one number passes a view", SinkViews(), "Reshape x flat > r; Mul r scalar > y", "Mul Reshape"),
    ("channels do not", SinkViews(), "Reshape x flat > r; Mul r b > y", "Reshape Mul"),
    ("an axis the source has not", CutSources(), "Reshape x merged > r; Slice r i1 i5 i1 > y", "Reshape Slice"),
    (
        "places counted from the end",
        CutSources(),
        "Reshape x flat > r; Slice r back i5 i1 > h; Relu h > y",
        "Slice Reshape Relu",
    ),
    (
        "joined along an axis the source has not",
        JoinSources(),
        "Reshape x merged > r; Concat r r > y axis=1",
        "Reshape Concat",
    ),
    ("a bias by row is none", ProductsWithBias(), "MatMul z w > h; Add h rows > y", "MatMul Add"),
    (
        "a product read twice keeps its sum",
        ProductsWithBias(),
        "MatMul z w > h; Add h b > a; Mul a h > y",
        "MatMul Add Mul",
    ),
    ("one number is a bias of all", TakeInBias(), "Gemm z w > h alpha=0.5; Add scalar h > y", "Gemm"),
    ("rows are no bias", TakeInBias(), "Gemm z w > h; Add h rows > y", "Gemm Add"),
    (
        "a norm behind a cut of frames",
        FoldNorm(),
        "ConvTranspose x t b4 > c; Slice c i0 i5 i2 > h; BatchNormalization h n4 m4 m4 n4 > y",
        "ConvTranspose Slice",
    ),
    ("in groups", FoldNorm(), "ConvTranspose x t2 > h group=2; BatchNormalization h n4 m4 m4 n4 > y", "ConvTranspose"),
    (
        "a norm behind a cut of channels stays",
        FoldNorm(),
        "ConvTranspose x t6 > c; Slice c i1 i5 i1 > h; BatchNormalization h n4 m4 m4 n4 > y",
        "ConvTranspose Slice BatchNormalization",
    ),
    ("a divisor is a factor", FoldScale(), "MatMul w6 z > h; Div h two > y", "MatMul"),
    ("factors by channel stay", FoldScale(), "MatMul z w > h; Mul h b > y", "MatMul Mul"),
    ("a product read twice stays", FoldScale(), "MatMul z w > h; Mul h two > a; Add a h > y", "MatMul Mul Add"),
    (
        "a factor goes past what cuts and turns",
        SpreadScale(),
        "MatMul z w > f; MatMul z v > g; Transpose f > f0 perm=[0,1]; Slice g i0 i5 i1 > g1; "
        "Slice f0 i0 i5 i1 > f1; Add f1 g1 > h; Mul h two > y",
        "MatMul MatMul Mul Transpose Mul Slice Slice Add",
    ),
    (
        "a sum with something else is scaled as it is",
        SpreadScale(),
        "MatMul z w > f; Add f z > h; Mul h two > y",
        "MatMul Add Mul",
    ),
    (
        "turned in two ways",
        TurnOnce(),
        "Relu x > v0; Add v0 b > e; Add v0 b > f; Transpose e > g perm=[0,2,1]; "
        "Transpose f > h perm=[2,1,0]; MatMul g e6 > i; ReduceSum h > j; Mul i j > y",
        "Relu Add Add Transpose Transpose MatMul ReduceSum Mul",
    ),
    (
        "a bias that is computed is not forgotten",
        SplitProducts(),
        "Relu row > c; Gemm z w c > h; Split h > p q1 axis=1; Tanh p > f; Mul f q1 > y",
        "Relu Gemm Split Tanh Mul",
    ),
    (
        "without a bias, and turned",
        SplitProducts(),
        "Gemm z w > h transB=1; Split h > p q1 axis=1; Tanh p > f; Mul f q1 > y",
        "Gemm Gemm Tanh Mul",
    ),
    (
        "without an activation nothing is won",
        SplitProducts(),
        "Gemm z w b > h; Split h > p q1 axis=1; Mul p q1 > y",
        "Gemm Split Mul",
    ),
    (
        "pieces may overlap",
        SplitProducts(),
        "Gemm z w b > h; Slice h i0 i5 i1 > p; Slice h i1 i6 i1 > q1; Tanh p > f; Mul f q1 > y",
        "Gemm Gemm Tanh Mul",
    ),
    (
        "rows are no columns",
        SplitProducts(),
        "Gemm z w b > h; Split h > p q1 axis=0; Tanh p > f; Mul f q1 > y",
        "Gemm Split Tanh Mul",
    ),
    (
        "a part of what is joined",
        CutOnce(),
        "Relu z > r; Concat z r > h axis=1; Slice h i6 i9 i1 > a; Relu a > y",
        "Relu Slice Relu",
    ),
    ("all of a part", CutOnce(), "Relu z > r; Concat z r > h axis=1; Slice h i6 i12 i1 > a; Relu a > y", "Relu Relu"),
    (
        "across two parts",
        CutOnce(),
        "Relu z > r; Concat z r > h axis=1; Slice h i5 i9 i1 > a; Relu a > y",
        "Relu Concat Slice Relu",
    ),
    (
        "what is given out stays where it is",
        CutOnce(),
        "Relu z > r; Concat z r > h axis=1; Slice h i6 i9 i1 > y",
        "Relu Concat Slice",
    ),
    (
        "unless it is settled that it is in pieces",
        CutOnce(settled=True),
        "Relu z > r; Concat z r > h axis=1; Slice h i6 i9 i1 > y",
        "Relu Slice",
    ),
    (
        "or in one",
        CutOnce(settled=True),
        "Relu z > r; Concat z r > h axis=0; Slice h i5 i6 i0 > y",
        "Relu Concat Slice",
    ),
    (
        "whole strides behind the first that all frames reach, and a bias",
        ReadOverlap(),
        "ConvTranspose x o6 b2 > h strides=[3]; Slice h i3 i9 i2 > y",
        "Slice Conv Reshape Transpose Reshape",
    ),
    (
        "pads are cut off in front",
        ReadOverlap(),
        "ConvTranspose x o6 > h strides=[3] pads=[3,0]; Slice h i0 i3 i2 > y",
        "Slice Conv Reshape",
    ),
    (
        "half a stride stays",
        ReadOverlap(),
        "ConvTranspose x o6 > h strides=[3]; Slice h i3 i5 i2 > y",
        "ConvTranspose Slice",
    ),
    (
        "what some frames do not reach stays",
        ReadOverlap(),
        "ConvTranspose x o6 > h strides=[3]; Slice h i0 i3 i2 > y",
        "ConvTranspose Slice",
    ),
    (
        "kernels of other than whole strides stay",
        ReadOverlap(),
        "ConvTranspose x o5 > h strides=[3]; Slice h i3 i6 i2 > y",
        "ConvTranspose Slice",
    ),
    (
        "groups stay",
        ReadOverlap(),
        "ConvTranspose x t2 > h group=2; Slice h i1 i2 i2 > y",
        "ConvTranspose Slice",
    ),
    ("a block of nothing is not read", SumBlocks(fewest=3), "Gemm z eye0 > y", "Reshape Gather ReduceSum"),
    ("few columns are quick as they are", SumBlocks(), "Gemm z eyes > y", "Gemm"),
    (
        "heads in blocks are no heads in one piece",
        JoinHeads(),
        "MatMul z w > f; MatMul z v > g; Reshape f heads > h1; Transpose h1 > hq perm=[0,2,1,3]; "
        "Reshape g blocks > h2; Transpose h2 > hk perm=[0,2,1,3]; ReduceSum hk > s keepdims=0; Mul hq s > y",
        "MatMul MatMul Reshape Transpose Reshape Transpose ReduceSum Mul",
    ),
    ("a product added to itself stays", TakeInSum(), "Gemm z w > h; Add h h > y", "Gemm Add"),
    ("what is read elsewhere stays", TakeInSum(), "Gemm z w > h; Add h z > a; Mul a h > y", "Gemm Add Mul"),
    ("a row spreads by itself", TakeInSum(), "Gemm z w > h; Add h row > y", "Gemm Add"),
    ("a bias is not forgotten", ChainProducts(), "Gemm z w b > h; Gemm h in2 > y", "Gemm"),
    ("what is thin between stays so", ChainProducts(), "Gemm z in2 > h; Gemm h wide > y", "Gemm Gemm"),
    ("a product read twice stays one", ChainProducts(), "Gemm z w > h; Gemm h v > g; Mul g h > y", "Gemm Gemm Mul"),
    (
        "a scaled product stays",
        ChainProducts(),
        "Gemm z w > h alpha=0.5; Gemm h v > y",
        "Gemm Gemm",
    ),
    (
        "sums that others read stay",
        JoinSummands(),
        "Relu z > a1; Add a1 z > s1; Add s1 a1 > s2; Add s2 z > h; Gemm h w > g; Mul g s2 > y",
        "Relu Add Add Add Gemm Mul",
    ),
    (
        "summands that are spread stay",
        JoinSummands(),
        "Relu z > a1; Add a1 z > s1; Add s1 row > s2; Add s2 z > h; Gemm h w > y",
        "Relu Add Add Add Gemm",
    ),
    (
        "zeros around it are the convolution's",
        FoldUnfold(),
        "Pad x around > o; Gather o seven > g axis=2; Reshape g side7 > s; Conv s u > y",
        "Conv",
    ),
    (
        "threes around it are not",
        FoldUnfold(),
        "Pad x around scalar > o; Gather o seven > g axis=2; Reshape g side7 > s; Conv s u > y",
        "Pad Conv",
    ),
    (
        "a stride stays",
        FoldUnfold(),
        "Gather x places > g axis=2; Reshape g side > s; Conv s u > y strides=[2]",
        "Gather Reshape Conv",
    ),
]
NAMES = [type(c[0]).__name__ for c in CASES]


def small(nodes: Nodes, batch: int | str = 1, given_out: str = "") -> ir.Model:
    """`y` comes out through an Identity, or `given_out` as it is."""
    read = {name for n in nodes for name in n.input}
    constants = {name: array for name, array in CONSTANTS.items() if name in read}
    end = [] if given_out else [node("Identity", "y", "out")]
    inputs = {"x": [batch, *X[1:]], "z": Y, "row": [1, 6]}
    return graph([*nodes, *end], inputs, given_out or "out", constants)


@pytest.mark.parametrize(("change", "before", "after", "alone"), CASES, ids=NAMES)
def test_a_graph_in_a_graph_out(change: NodeChange, before: Nodes, after: list[str], alone: Nodes) -> None:
    stays(change, small(alone))
    becomes(change, small(before), *after, "Identity")


@pytest.mark.parametrize(("change", "before"), [c[:2] for c in CASES], ids=NAMES)
def test_every_value_may_be_an_output_as_it_is(change: NodeChange, before: Nodes) -> None:
    """Whatever of it is given out without a node of its own: by itself, and with the last one."""
    made = [str(o) for n in before for o in n.output]
    for given_out in ("y", *made, *(f"{name} y" for name in made if name != "y")):
        model = small(before, given_out=given_out)
        original = model.clone()
        result = change(model).model
        assert [v.name for v in result.graph.outputs] == given_out.split()
        alike(original, result)


@pytest.mark.parametrize(("change", "before", "after"), [c[1:] for c in FURTHER], ids=[c[0] for c in FURTHER])
def test_what_else_holds(change: NodeChange, before: str, after: str) -> None:
    model = small(parsed(before))
    original = model.clone()
    result = change(model)
    assert ops(result.model) == [*after.split(), "Identity"]
    assert result.modified == (ops(original) != ops(result.model)), "it says whether it has done anything"
    alike(original, result.model)


def test_a_free_batch_is_turned_down() -> None:
    with pytest.raises(PreconditionError):
        DropNeutral()(small([node("Relu", "x", "y")], batch="B"))


def test_sizes_that_are_known_are_constants() -> None:
    text = "Shape x > s start=1; Cast s > f to=1; Size x > n; Cast n > m to=1; Mul f m > h; Add v h > y"
    made = graph(text, {"x": [1, 4, 6], "v": [2]}, "y", {}, opset=18)
    feeds = {"x": weights(1, 4, 6), "v": weights(2)}
    want = run(made, feeds)["y"]
    folded = FoldConstants()(made).model
    assert ops(folded) == ["Add"]
    np.testing.assert_array_equal(run(folded, feeds)["y"], want)
