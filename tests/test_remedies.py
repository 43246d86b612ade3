"""What a refusal offers works: arguments are followed here, one model of each kind after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.convert.remedies import LIMIT, LONG, joined, offer_what_works
from pulsify.core.refusal import KEEP_PAST, SAMPLED, Remedy, declare, fix_batch
from tests.models import model, node, weights


def looking_back(batch: str | int = 1) -> onnx.ModelProto:
    """Causal attention without a left bound."""
    nodes = [
        node("Shape", "x", "t", start=1, end=2), node("Squeeze", "t", "n"), node("Range", "zero n one", "i"),
        node("Unsqueeze", "i last", "rows"), node("LessOrEqual", "i rows", "seen"),
        node("Transpose", "x", "k", perm=[0, 2, 1]), node("MatMul", "x k", "s"), node("Where", "seen s low", "m"),
        node("Softmax", "m", "p", axis=-1), node("MatMul", "p x", "y"),
    ]  # fmt: skip
    values = {"zero": np.array(0), "one": np.array(1), "last": np.array([1]), "low": np.float32(-np.inf)}
    return model(nodes, {"x": [batch, "s27", 4]}, ["y"], values)


def one_stream() -> onnx.ModelProto:
    """The batch axis is squeezed away, which only one stream has."""
    nodes = [node("Squeeze", "x", "a"), node("CumSum", "a axis", "y")]
    return model(nodes, {"x": ["N", "frames", 4]}, ["y"], {"axis": np.array(0)})


def padded_to_stride() -> onnx.ModelProto:
    """auto_pad: how much it pads depends on what is left of the length."""
    conv = node("Conv", "x w", "y", auto_pad="SAME_UPPER", strides=[4], kernel_shape=[5])
    return model([conv], {"x": [1, 2, "samples"]}, ["y"], {"w": weights(3, 2, 5)})


def squared() -> onnx.ModelProto:
    """The first n*n % 7 frames: no linear function of the length."""
    nodes = [
        node("Shape", "x", "t", start=2, end=3), node("Mul", "t t", "q"), node("Mod", "q seven", "m"),
        node("Slice", "x m all two", "y"),
    ]  # fmt: skip
    values = {"seven": np.array([7]), "all": np.array([1 << 40]), "two": np.array([2])}
    return model(nodes, {"x": [1, 2, "s0"]}, ["y"], values)


def length_like() -> onnx.ModelProto:
    """A whole number called length, added to every frame: if it is a value of its own, it streams."""
    nodes = [node("Cast", "length", "f", to=1), node("Conv", "x w", "h", pads=[1, 1]), node("Add", "h f", "y")]
    inputs = {"x": [1, 2, "T"], "length": [1]}
    return model(nodes, inputs, ["y"], {"w": weights(2, 2, 3)}, dtypes={"length": np.int64})


def window_of_two() -> onnx.ModelProto:
    return model([node("Mul", "x mask", "y")], {"x": [1, 60, 8], "mask": [1, 60, 1]}, ["y"])


REFUSED: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any]]] = {
    "attention": (looking_back, {}),
    "attention of a batch": (lambda: looking_back("N"), {}),
    "one stream": (one_stream, {}),
    "a stride": (padded_to_stride, {}),
    "a length": (length_like, {}),
    "a window": (window_of_two, {"time": {"x": 1}}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_argument_that_is_offered_works(name: str) -> None:
    make, given = REFUSED[name]
    proto = make()
    with pytest.raises(pulsify.NotStreamable) as refused:
        pulsify.stream(proto, **given)
    error = refused.value
    offered = [r for r in error.remedies if r.options]
    assert offered and "not tried" not in error.hint and error.node and error.reason
    for remedy in offered:
        stream = pulsify.stream(proto, **{**given, **remedy.options})  # which is checked against the batch model
        assert stream.verification is not None and not stream.verification.wrong
        for option in remedy.options:
            assert f"{option}=" in remedy.text


def test_hints_use_the_names_of_the_model() -> None:
    with pytest.raises(pulsify.NotStreamable) as refused:
        pulsify.stream(one_stream())
    assert 'set={"N": 1}' in refused.value.hint


def test_arguments_that_do_not_help_are_not_offered() -> None:
    """Neither up to 3,000 frames nor at multiples of 8 is it a line, and a sample does not repeat."""
    with pytest.raises(pulsify.NotStreamable, match="no linear function") as refused:
        pulsify.stream(squared())
    assert refused.value.hint and not any(r.options for r in refused.value.remedies)


def first_of(op: str, *nodes: onnx.NodeProto, **values: Any) -> tuple[str, onnx.ModelProto]:
    arrays = {name: np.array(v) for name, v in values.items()}
    return op, model(list(nodes), {"x": [1, "T", 4]}, ["y"], arrays)


TEXTS = {  # what is refused, part of the hint, and the same model changed as it says
    "a sort": (
        first_of("TopK", node("Shape", "x", "k", start=1, end=2), node("TopK", "x k", "y i", axis=1)),
        "a fixed number",
        first_of("", node("TopK", "x k", "y i", axis=1), k=[3]),
    ),
    "halves side by side": (
        first_of("Reshape", node("Reshape", "x s", "a"), node("ReduceSum", "a ax", "y", keepdims=0),
                 s=[1, 2, -1, 4], ax=[1]),
        "not to [n, T/n, C]",
        first_of("", node("Reshape", "x s", "a"), node("ReduceSum", "a ax", "y", keepdims=0), s=[1, -1, 2, 4], ax=[2]),
    ),
    "another size": (
        first_of("Resize", node("Resize", "x _ _ sizes", "y", mode="nearest"), sizes=[1, 50, 4]),
        "a fixed factor",
        first_of("", node("Resize", "x _ scales", "y", mode="nearest"), scales=np.float32([1, 2, 1])),
    ),
    "the loudest of all streams": (
        first_of("ReduceMax", node("ReduceMax", "x", "m", keepdims=1), node("Div", "x m", "y")),
        "give it out",
        first_of("", node("ReduceMax", "x", "y", keepdims=1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_model_that_is_changed_as_the_hint_says_streams(name: str) -> None:
    (op, refused), says, (_, changed) = TEXTS[name]
    with pytest.raises(pulsify.NotStreamable) as error:
        pulsify.stream(refused)
    if name != "the loudest of all streams":
        assert error.value.op == op
    assert says in error.value.hint
    stream = pulsify.stream(changed)
    assert stream.verification is not None and not stream.verification.wrong


def refusal(*remedies: str | Remedy) -> pulsify.NotStreamable:
    return pulsify.NotStreamable("it goes wrong", node="n", op="Add", hint=remedies)


def works_with(needed: dict[str, Any], after: pulsify.NotStreamable) -> Callable[[Any], None]:
    def convert(options: Any) -> None:
        if any(options.get(k) != v for k, v in needed.items()):
            raise after

    return convert


def test_what_does_not_help_is_left_out() -> None:
    error = refusal("change it", KEEP_PAST, SAMPLED)
    offer_what_works(error, works_with({"proof": "sampled"}, refusal()), 0)
    assert error.remedies == (Remedy("change it"), SAMPLED) and error.remedies[1].tried


def test_two_that_are_needed_are_offered_together() -> None:
    error = refusal(fix_batch("N"), declare("T", "8*n"))
    offer_what_works(error, works_with({"set": {"N": 1}, "unbounded": "grow"}, refusal(KEEP_PAST)), 0)
    (both,) = error.remedies
    assert dict(both.options) == {"set": {"N": 1}, "unbounded": "grow"} and ", and pass unbounded" in both.text


def test_what_would_take_too_long_says_that_it_was_not_tried() -> None:
    error = refusal(KEEP_PAST)
    offer_what_works(error, works_with({"unbounded": "never"}, refusal()), LONG + 1)
    assert error.hint == f"{KEEP_PAST.text} (not tried)" and LIMIT < 5


def test_arguments_are_joined_if_they_agree() -> None:
    assert joined({"set": {"T": "8*n"}}, {"set": {"N": 1}}) == {"set": {"T": "8*n", "N": 1}}
    assert joined({"set": {"T": "8*n"}}, {"set": {"T": "<=9"}}) is None
    assert joined({"proof": "sampled"}, {"unbounded": "grow"}) == {"proof": "sampled", "unbounded": "grow"}
    assert joined({"unbounded": 9}, {"unbounded": "grow"}) is None


def test_a_remedy_that_ends_in_a_bug_hides_no_refusal() -> None:
    broken, useful = Remedy("declare", {"set": {"T": "<=9"}}), Remedy("sample", {"proof": "sampled"})
    refusal = pulsify.NotStreamable("why", hint=(broken, useful))

    def convert(options: Any) -> None:
        assert "proof" in options

    offer_what_works(refusal, convert, 0.0)
    assert [r.options for r in refusal.remedies] == [useful.options]
