"""Passes tuned for ONNX Runtime: a graph in, a graph out, and one to leave alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import PassError, PreconditionError

from pulsify.backends.ort.aliased import ExposeTails, tails_of
from pulsify.backends.ort.attention import FuseAttention
from pulsify.backends.ort.rows import ForOneStream
from pulsify.backends.ort.squeeze import SqueezeTokens
from pulsify.backends.seam import Tail
from tests.models import Dims, node, weights
from tests.unit.graphs import alike, becomes, graph, ops, stays
from tests.unit.specs import a_state, a_stream

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


HEADS = "Transpose q > a perm=[0,2,1,3]; Transpose k > b perm=[0,1,3,2]; MatMul a b > c; "
VALUES = "Softmax s > d axis=-1; MatMul d v > e; Transpose e > y perm=[0,2,1,3]"
BIAS = weights(1, 2, 3, 4)


def heads(text: str, outputs: str = "out", width: int = 4) -> ir.Model:
    """Queries [1, 3, 2, width], keys and values [1, 2, 4, width]."""
    inputs: dict[str, Dims] = {"q": [1, 3, 2, width], "k": [1, 2, 4, width], "v": [1, 2, 4, width]}
    constants = {"half": np.array(0.5, np.float32), "row": weights(1, 1, 1, 4), "bias": BIAS, "hidden": BIAS > 0}
    end = "; Identity y > out" if outputs == "out" else ""
    return graph(text + end, inputs, outputs, {n: c for n, c in constants.items() if f" {n} " in text})


@pytest.mark.parametrize(
    "scores",
    [
        "",
        "Mul c half > s; ",
        "Div c half > s; ",
        "Add c bias > s; ",
        "Add bias c > s; ",
        "Mul c half > t; Add t bias > s; ",
    ],
)
def test_attention_is_one_node_with_its_scale_and_its_bias(scores: str) -> None:
    text = HEADS + scores + (VALUES if scores else VALUES.replace("Softmax s", "Softmax c"))
    becomes(FuseAttention(), heads(text), "Reshape", "MultiHeadAttention", "Reshape", "Identity")
    becomes(FuseAttention(), heads(text, "y"), "Reshape", "MultiHeadAttention", "Reshape")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("perm=[0,1,3,2]", "perm=[0,1,2,3]"),  # keys that are not turned
        ("Transpose q > a perm=[0,2,1,3]", "Reshape q wide > a"),  # heads that are not turned
        ("MatMul a b > c; ", "MatMul a b > c; Where hidden c half > s; "),  # hidden by selection
        ("MatMul a b > c; ", "MatMul a b > c; Add c row > s; "),  # a bias that broadcasts over the queries
        ("axis=-1", "axis=2"),
    ],
)
def test_what_the_runtimes_operator_does_otherwise_stays(old: str, new: str) -> None:
    text = HEADS + VALUES if "> s; " in new else HEADS + VALUES.replace("Softmax s", "Softmax c")
    text = text.replace(old, new)
    if "wide" in text:
        inputs: dict[str, Dims] = {"q": [1, 3, 2, 4], "k": [1, 2, 4, 4], "v": [1, 2, 4, 4]}
        model = graph(text + "; Identity y > out", inputs, "out", {"wide": np.array([1, 2, 3, 4])})
    else:
        model = heads(text)
    stays(FuseAttention(), model)


def test_scores_that_others_read_too_stay() -> None:
    text = HEADS + VALUES.replace("Softmax s", "Softmax c")
    stays(FuseAttention(), heads(text, "y d"))
    stays(FuseAttention(), heads(text, "y c"))


TOKENS: list[tuple[str, str]] = [  # graph in, operators out
    ("MatMul x w > h; Relu h > r; MatMul r w > y", "Reshape MatMul Relu MatMul Reshape"),
    ("MatMul x w > h; Add h b > y", "Reshape MatMul Add Reshape"),
    ("MatMul x w > h; Mul h table > y", "Reshape MatMul Mul Reshape"),
    ("MatMul x w > h; LayerNormalization h b b > y axis=-1", "Reshape MatMul LayerNormalization Reshape"),
    ("MatMul x w > h; Softmax h > y axis=2", "Reshape MatMul Softmax Reshape"),
    ("MatMul x w > h; Softmax h > y axis=1", "Reshape MatMul Reshape Softmax"),
    ("MatMul x w > h; Split h > p q axis=2; Concat q p > y axis=1", "Reshape MatMul Split Concat Reshape"),
    ("MatMul x w > h; Concat h h > y axis=0", "Reshape MatMul Reshape Concat"),
    ("MatMul x w > h; Concat h h > y axis=-1", "Reshape MatMul Concat Reshape"),
    ("MatMul x w > h; Transpose h > t perm=[0,2,1]; MatMul h t > y", "Reshape MatMul Reshape Transpose MatMul"),
]


@pytest.mark.parametrize(("text", "after"), TOKENS)
def test_what_does_not_care_for_the_stream_axis_works_on_rows(text: str, after: str) -> None:
    constants = {"w": weights(4, 4), "b": weights(4), "table": weights(1, 3, 4)}
    read = {n: c for n, c in constants.items() if f" {n} " in text}
    model = graph(text + "; Identity y > out", {"x": [1, 3, 4]}, "out", read)
    becomes(SqueezeTokens(), model, *after.split(), "Identity")
    bare = graph(text, {"x": [1, 3, 4]}, "y", read)
    original = bare.clone()
    made = SqueezeTokens()(bare).model
    assert [v.name for v in made.graph.outputs] == ["y"]
    alike(original, made)


def test_without_a_product_tokens_stay() -> None:
    stays(SqueezeTokens(), graph("Relu x > h; Identity h > y", {"x": [1, 3, 4]}, "y", {}))


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


def joined(text: str, outputs: str = "y new_s") -> ir.Model:
    """s [1, 2] and x [1, 4] in front of each other, or something else."""
    bounds = {"i": np.array([4]), "j": np.array([6]), "a": np.array([1]), "b": np.array([3])}
    read = {n: c for n, c in bounds.items() if f" {n} " in text}
    return graph(f"Concat s x > full axis=1; Relu full > y; {text}", {"s": [1, 2], "x": [1, 4]}, outputs, read)


TAIL = "Slice full i j a > cut; Identity cut > new_s"
ONE = a_stream(states=(a_state(shape=(1, 2)),))


def test_a_state_is_a_tail_if_it_is_one_in_all_forms_alike() -> None:
    assert tails_of([joined(TAIL)], ONE) == {"s": Tail("full_new_s", (1, 6), 1)}
    assert tails_of([joined(TAIL), joined(TAIL)], ONE).keys() == {"s"}
    other = joined("Slice full b j a > cut0; Slice cut0 a j a > cut; Identity cut > new_s")  # the end of the end
    assert tails_of([joined(TAIL), other], ONE) == {}


@pytest.mark.parametrize(
    "text",
    [
        "Slice full b i a > cut; Identity cut > new_s",  # not the end
        "Relu s > new_s",  # no cut
        "Slice x b i a > cut; Identity cut > new_s",  # the end of what comes from outside
    ],
)
def test_what_is_no_end_of_something_made_here_is_no_tail(text: str) -> None:
    assert tails_of([joined(text)], ONE) == {}


def test_no_two_states_are_the_end_of_the_same_value() -> None:
    both = joined(f"{TAIL}; Slice full i j a > cut2; Identity cut2 > new_t", "y new_s new_t")
    spec = a_stream(states=(a_state(shape=(1, 2)), a_state("t", shape=(1, 2))))
    assert tails_of([both], spec).keys() == {"s"}


def test_frames_that_do_not_lie_one_after_the_other_are_no_tail() -> None:
    bounds = {"i": np.array([4]), "j": np.array([6]), "a": np.array([1])}
    text = f"Concat s x > full axis=1; Relu full > y; {TAIL}"
    two = graph(text, {"s": [2, 2], "x": [2, 4]}, "y new_s", bounds)
    assert tails_of([two], a_stream(states=(a_state(shape=(2, 2)),))) == {}
