"""Operators of other domains, made known from outside: `acme::Boost` with its rule and its shapes, end to end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import pulsify
from pulsify.core.custom import CUSTOM, WHOLE
from pulsify.core.reach import Reach
from pulsify.extend import Context, Fill, Node, Plan, Read, Shaped, define, pointwise, rule
from pulsify.ops.registry import RULES
from tests.models import close, frames, model, node, run_batch, weights


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What a test makes known is forgotten."""
    rules, custom, whole = dict(RULES), dict(CUSTOM), set(WHOLE)
    yield
    for now, before in ((RULES, rules), (CUSTOM, custom)):
        now.clear()
        now.update(before)  # type: ignore[arg-type]
    WHOLE.clear()
    WHOLE.update(whole)


def boost() -> onnx.FunctionProto:
    """The gain is an attribute."""
    return onnx.parser.parse_function("""
        <opset_import: ["" : 17], domain: "acme"> Boost <gain> (x) => (y) {
            g = Constant <value_float: float = @gain> ()
            m = Mul (x, g)
            y = Tanh (m)
        }""")


def boosted(own: bool = False) -> onnx.ModelProto:
    """Between two convolutions. own: the model brings the function."""
    proto = model(
        [
            node("Conv", "x w", "h", pads=[2, 2]),
            helper.make_node("Boost", ["h"], ["b"], name="boost", domain="acme", gain=2.0),
            node("Conv", "b v", "y", pads=[1, 1]),
        ],
        {"x": ["B", 2, "T"]},
        ["y"],
        {"w": weights(4, 2, 5), "v": weights(3, 4, 3)},
        imports=[helper.make_opsetid("acme", 1)],
    )
    if own:
        proto.functions.append(boost())
    return proto


def same(attributes: Mapping[str, Any], inputs: Sequence[Shaped | None]) -> list[Shaped]:
    assert attributes["gain"] == 2.0
    assert inputs[0] is not None
    return [inputs[0]]


def counted() -> list[str]:
    """Registers the rule; the names of the nodes it was asked about."""
    seen: list[str] = []

    @rule("acme::Boost", says="frame by frame")
    def boost_rule(ctx: Context, node: Node) -> Plan | None:
        seen.append(node.name)
        return pointwise(ctx, node)

    return seen


@pytest.mark.parametrize("shapes", [same, None])
@pytest.mark.parametrize("own", [True, False])
def test_end_to_end(own: bool, shapes: Any, tmp_path: Path) -> None:
    define("acme::Boost", shapes=shapes, body=None if own else boost())
    seen = counted()
    stream, x = pulsify.stream(boosted(own), pulse=4), frames(2, 2, 29)
    assert "boost" in seen
    assert stream.verification is not None and stream.verification.ok
    stream.save(tmp_path / "stream.onnx")
    want = run_batch(boosted(own=True), x)["y"]
    close(np.asarray(pulsify.load(tmp_path / "stream.onnx").run(x, 3)), want)
    saved = onnx.load(tmp_path / "stream.onnx")
    assert {n.domain for n in saved.graph.node} == {""}
    assert not saved.functions
    ort.InferenceSession(str(tmp_path / "stream.onnx"))  # plain ONNX: nobody else has to know acme


def test_a_body_alone_is_written_out_from_the_start() -> None:
    define("acme::Boost", body=boost())
    assert pulsify.verify(boosted(), pulsify.stream(boosted(), pulse=4)).ok


def test_shapes_and_a_rule_alone_convert() -> None:
    """Nobody here can run it: the stream has the node, for a runtime that can."""
    define("acme::Boost", shapes=same)
    counted()
    stream = pulsify.stream(boosted(), pulse=4, verify=False)
    assert [n.name for n in stream.model.graph if n.domain == "acme"] == ["boost"]
    with pytest.raises(pulsify.InvalidModel, match="acme"):
        pulsify.stream(boosted(), pulse=4)


def test_a_rule_that_reaches() -> None:
    """y[k] = x[k + 2] - x[k]: two frames fewer, and a buffer."""
    body = onnx.parser.parse_function("""
        <opset_import: ["" : 17], domain: "acme"> Delta (x) => (y) {
            zero = Constant <value_ints: ints = [0]> ()
            two = Constant <value_ints: ints = [2]> ()
            back = Constant <value_ints: ints = [-2]> ()
            far = Constant <value_ints: ints = [1000000000]> ()
            new = Slice (x, two, far, two)
            old = Slice (x, zero, back, two)
            y = Sub (new, old)
        }""")

    def shorter(attributes: Mapping[str, Any], inputs: Sequence[Shaped | None]) -> list[Shaped]:
        x = inputs[0]
        assert x is not None
        return [Shaped(x.dtype, (*x.dims[:2], x.dims[2] - 2))]

    define("acme::Delta", shapes=shorter, body=body)

    @rule("acme::Delta", says="along time")
    def delta(ctx: Context, node: Node) -> Plan | None:
        wire = ctx.ask.wire(node.inputs[0])
        assert wire is not None and wire.length is not None

        def emit(values: list[Any], window: Any) -> Any:
            return ctx.builder.ops(node.op, values, node.attrs, domain=node.domain, name=node.name)

        return Plan(
            (Read(wire, Reach(hi=2)),), (ctx.ask.layout(node, node.outputs[0]),), wire.length.then(add=-2), emit
        )

    proto = model(
        [helper.make_node("Delta", ["x"], ["y"], name="delta", domain="acme")],
        {"x": [1, 2, "T"]}, ["y"], imports=[helper.make_opsetid("acme", 1)],
    )  # fmt: skip
    stream, x = pulsify.stream(proto, pulse=4), frames(1, 2, 23)
    np.testing.assert_array_equal(stream.run(x, 5), x[..., 2:] - x[..., :-2])


def test_what_nobody_knows_says_where_to_make_it_known() -> None:
    with pytest.raises(pulsify.NotStreamable, match=r"acme::Boost is not known(.|\n)*pulsify.extend"):
        pulsify.stream(boosted(), pulse=4)


def test_wrong_registrations() -> None:
    with pytest.raises(pulsify.InvalidArgument, match="domain::Operator"):
        define("Boost")
    with pytest.raises(pulsify.InvalidArgument, match="acme::Boost; give it the same name"):
        define("acme::Other", body=boost())
    with pytest.raises(pulsify.InvalidArgument, match=r"Conv has an answer already for 'stream': in pulsify\.ops"):
        rule("Conv")(lambda ctx, node: None)


def test_what_lies_beyond_the_ends_is_said_from_outside_too() -> None:
    """Both neighbours of a frame, twos beyond the ends."""
    body = onnx.parser.parse_function("""
        <opset_import: ["" : 17], domain: "acme"> Beside (x) => (y) {
            pads = Constant <value_ints: ints = [0, 0, 1, 0, 0, 1]> ()
            two = Constant <value_float: float = 2.0> ()
            time = Constant <value_ints: ints = [2]> ()
            start = Constant <value_ints: ints = [0]> ()
            end = Constant <value_ints: ints = [-2]> ()
            far = Constant <value_ints: ints = [1000000000]> ()
            wide = Pad (x, pads, two)
            old = Slice (wide, start, end, time)
            new = Slice (wide, time, far, time)
            y = Add (old, new)
        }""")
    define("acme::Beside", shapes=lambda attributes, inputs: [inputs[0]], body=body)  # type: ignore[list-item]

    @rule("acme::Beside", says="along time")
    def beside(ctx: Context, node: Node) -> Plan | None:
        wire = ctx.ask.wire(node.inputs[0])
        assert wire is not None

        def emit(values: list[Any], window: Any) -> list[Any]:
            b = ctx.builder
            old, new = b.slice(values[0], 2, 0, window.frames), b.slice(values[0], 2, 2, window.frames + 2)
            return [b.op("Add", old, new)]

        read = Read(wire, Reach(lo=-1, hi=1), Fill(value=2))
        return Plan((read,), (wire.layout,), wire.length, emit)

    proto = model(
        [node("Cos", "x", "h"), helper.make_node("Beside", ["h"], ["y"], name="beside", domain="acme")],
        {"x": [1, 2, "T"]},
        ["y"],
        {},
        imports=[helper.make_opsetid("acme", 1)],
    )
    stream = pulsify.stream(proto, pulse=4)
    assert stream.outputs[0].delay == 1
    assert pulsify.verify(proto, stream).ok
