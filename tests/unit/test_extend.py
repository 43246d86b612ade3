"""Operators of other domains, made known from outside: names, bodies, and what comes of them when a model is read."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from pulsify.core import custom
from pulsify.core.errors import InvalidArgument
from pulsify.extend import define
from pulsify.frontend.load import load, runnable
from tests.models import close, frames, model, run_batch

BOOST = onnx.parser.parse_function(
    '<opset_import: ["" : 17], domain: "acme"> Boost (x) => (y) { h = Add (x, x) y = Neg (h) }'
)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = dict(custom.CUSTOM)
    yield
    custom.CUSTOM.clear()
    custom.CUSTOM.update(before)


def boosted() -> onnx.ModelProto:
    boost = helper.make_node("Boost", ["x"], ["y"], name="boost", domain="acme")
    return model([boost], {"x": [1, 2, "T"]}, ["y"], imports=[helper.make_opsetid("acme", 1)])


@pytest.mark.parametrize("name", ["Boost", "::Boost", "acme::", "acme:Boost"])
def test_an_operator_is_named_with_its_domain(name: str) -> None:
    with pytest.raises(InvalidArgument, match="named 'domain::Operator'"):
        define(name)


def test_a_body_of_another_name_is_told() -> None:
    with pytest.raises(InvalidArgument, match="its body is the function acme::Boost; give it the same name"):
        define("acme::Other", body=BOOST)


def test_an_operator_without_a_rule_is_its_body_from_the_start() -> None:
    define("acme::Boost", body=BOOST)
    assert [n.op for n in load(boosted()).nodes] == ["Add", "Neg"]


def test_a_model_runs_with_the_bodies_it_does_not_bring_itself() -> None:
    proto = boosted()
    assert runnable(proto) is proto
    define("acme::Boost", body=BOOST)
    whole = runnable(proto)
    assert isinstance(whole, ir.Model)
    x = frames(1, 2, 5)
    close(run_batch(ir.to_proto(whole), x)["y"], -2 * x)
