"""Fields told by what they are made of: layers alike are proven once, and nothing else is taken for the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from pulsify.analysis.facts import Field
from pulsify.analysis.fields.alike import field_alike
from pulsify.convert.analyse import analyse
from tests.attention.build import Builder
from tests.attention.graphs import Case, build
from tests.attention.masks import Mask
from tests.attention.test_found import band, finish, heads
from tests.unit.build import converting, traced
from tests.unit.convert.contexts import refused

Masked = Callable[[Builder, str, str], str]  # builder, scores, what known values show -> weights


def softmax(b: Builder, scores: str, shown: str) -> str:
    return b.op("Softmax", b.op("Where", shown, scores, b.const(-np.inf)), axis=-1)


def scaled(by: float) -> Masked:
    return lambda b, scores, shown: softmax(b, b.op("Mul", scores, b.const(by)), shown)


def own_band(low: int) -> Masked:
    """A mask that is written anew."""
    return lambda b, scores, _: softmax(b, scores, band(b, b.size("x", 1), b.size("x", 1), low, 0))


def hidden(again: bool) -> Masked:
    """Data hide some scores, and set weights to zero: the same data, or others made the same way."""

    def weights(b: Builder, scores: str, shown: str) -> str:
        q, k = heads(b, "x"), heads(b, "x")
        high, other = (
            b.op("Greater", s, b.const(0.0)) for s in (scores, b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2)))
        )
        low = b.op("Where", high, b.op("Where", shown, scores, b.const(-1e9)), b.const(-1e9))
        near = b.op("Where", shown, b.op("Softmax", low, axis=-1), b.const(0.0))
        return b.op("Where", high if again else other, near, b.const(0.0))

    return weights


def layers(*masked: Masked) -> onnx.ModelProto:
    b = Builder(1)
    shown = band(b, b.size("x", 1), b.size("x", 1), -5, 0)
    out = []
    for weights in masked:
        q, k, v = (heads(b, "x") for _ in range(3))
        scores = b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2))
        out.append(b.op("MatMul", weights(b, scores, shown), v))
    return finish(b, b.op("Concat", *out, axis=-1))


def same(proto: onnx.ModelProto) -> bool:
    ctx = converting(proto)
    sums = (n.inputs[0] for n in ctx.ask.model.nodes if n.op == "MatMul")
    first, second = (field_alike(ctx.ask, name) for name in sums if isinstance(ctx.ask.facts.get(name), Field))
    return first == second


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (softmax, softmax, True),
        (scaled(0.5), scaled(0.5), True),
        (scaled(0.5), scaled(0.25), False),
        (softmax, scaled(0.5), False),
        (own_band(-5), own_band(-5), True),
        (own_band(-5), own_band(-4), False),
        (hidden(True), hidden(True), True),
    ],
)
def test_fields_are_alike_that_are_made_alike_of_the_same(one: Masked, other: Masked, alike: bool) -> None:
    assert same(layers(one, other)) == alike


def test_it_matters_which_data_set_weights_to_zero() -> None:
    problem = refused(layers(hidden(True), hidden(False)))
    assert "the data hide every key" in problem.reason, "though the other data are made alike"


@pytest.mark.parametrize("mask", [Mask("chunk", 4, left=1), Mask("token", left=5, right=4)])
def test_layers_under_one_mask_are_proven_once(mask: Mask) -> None:
    one, three = (analyse(traced(build(Case(mask=mask, layers=n)).model), 4)[0].ask for n in (1, 3))
    assert len(three.sights) == len(one.sights) == 1
    assert len(three.templates) == len(one.templates) == 1


def test_every_layer_says_what_its_mask_assumes() -> None:
    found = converting(build(Case(mask=Mask("chunk", 4, left=1), applied="where_1e4", layers=3)).model)
    assert len(found.ask.ledger.assumed) == 3 and len(found.ask.sights) == 1


def test_layers_of_masks_of_their_own_are_proven_each() -> None:
    case = Case(mask=(Mask("token", left=5, right=0), Mask("token", left=4, right=0)))
    assert len(converting(build(case).model).ask.sights) == 2
