"""Plain nodes: what they read, what they are called, and the same in terms of other values."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from pulsify.frontend.load import load
from pulsify.frontend.model import Body, make_node, renamed
from tests.models import look_ahead


def test_a_node_is_named_after_its_output_and_its_proto_says_the_same() -> None:
    made = make_node("Concat", ["a", "b"], "c", 17, axis=1)
    assert (made.name, made.op, made.domain, made.version) == ("c/Concat", "Concat", "", 17)
    assert made.attr("axis") == 1 and made.attr("nothing", 7) == 7
    assert list(made.proto.input) == ["a", "b"] and list(made.proto.output) == ["c"] and made.proto.name == made.name


def test_an_input_left_out_or_never_there_is_the_empty_name() -> None:
    made = make_node("Clip", ["x", "", "high"], "y", 17)
    assert [made.input(i) for i in range(4)] == ["x", "", "high", ""]


def test_a_node_in_other_names_is_another_node_and_the_first_stays() -> None:
    first = make_node("Sub", ["a", "b"], "c", 17)
    other = renamed(first, {"a": "x", "c": "z"}, "other")
    assert (other.name, other.inputs, other.outputs) == ("other", ("x", "b"), ("z",))
    assert list(other.proto.input) == ["x", "b"] and list(other.proto.output) == ["z"] and other.proto.name == "other"
    assert first.inputs == ("a", "b") and list(first.proto.input) == ["a", "b"]


def test_what_a_body_captures_is_read_too() -> None:
    body = Body(("s",), ("s2",), (make_node("Mul", ["s", "outer"], "s2", 17),), ("outer",))
    scan = replace(make_node("Scan", ["x"], "y", 17), body=body)
    assert scan.reads == ("x", "outer") and make_node("Relu", ["x"], "y", 17).reads == ("x",)
    assert not body.nested
    inner = replace(make_node("If", ["c"], "b", 17), attrs={"then_branch": ir.Graph([], [], nodes=[])})
    assert Body(("c",), ("b",), (inner,), ()).nested


def test_a_model_knows_what_makes_each_value() -> None:
    model = load(look_ahead())
    assert {name: n.op for name, n in model.producers.items()} == {"h": "Conv", "r": "Relu", "y": "Conv"}
    fewer = replace(model, nodes=model.nodes[:1], producers={})
    assert list(fewer.producers) == ["h"] and len(model.producers) == 3
