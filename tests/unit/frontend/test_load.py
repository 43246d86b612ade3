"""Any ONNX in, plain nodes out: what is left of a model when it has been settled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from pulsify.core.errors import InvalidModel
from pulsify.frontend.load import load, read
from tests.models import close, frames, look_ahead, model, node, run_batch, weights
from tests.unit.build import written


def function(name: str, body: str, inputs: str = "x") -> onnx.FunctionProto:
    return onnx.parser.parse_function(
        f'<opset_import: ["" : 17, "own" : 1], domain: "own"> {name} ({inputs}) => (y) {{ {body} }}'
    )


def test_functions_are_inlined_even_inside_each_other() -> None:
    proto = model(
        [helper.make_node("Twice", ["x"], ["y"], name="twice", domain="own")],
        {"x": [1, 2, "T"]},
        ["y"],
        imports=[helper.make_opsetid("own", 1)],
    )
    proto.functions.append(function("Halve", "h = Constant <value_float = 0.5> () y = Mul (x, h)"))
    proto.functions.append(function("Twice", "a = own.Halve (x) b = Neg (a) y = own.Halve (b)"))
    settled = load(proto)
    assert sorted(n.op for n in settled.nodes) == ["Mul", "Mul", "Neg"]
    assert all(n.domain == "" for n in settled.nodes)
    assert [float(t.numpy()) for t in settled.constants.values()] == [0.5, 0.5]
    assert len({n.name for n in settled.nodes}) == 3, "every call has names of its own"
    x = frames(1, 2, 5)
    close(run_batch(written(settled), x)["y"], -x / 4)


@pytest.mark.parametrize(
    ("attributes", "want"),
    [
        ({"value": numpy_helper.from_array(np.array([[1.5]], np.float32))}, np.array([[1.5]], np.float32)),
        ({"value_float": 2.5}, np.array(2.5, np.float32)),
        ({"value_floats": [1.0, 2.0]}, np.array([1.0, 2.0], np.float32)),
    ],
)
def test_constants_become_the_models(attributes: dict[str, Any], want: Any) -> None:
    proto = model([node("Constant", "", "c", **attributes), node("Add", "x c", "y")], {"x": [1, 2, "T"]}, ["y"])
    settled = load(proto)
    assert [n.op for n in settled.nodes] == ["Add"]
    (found,) = settled.constants.values()
    assert found.numpy().dtype == want.dtype and found.numpy().shape == want.shape
    np.testing.assert_array_equal(found.numpy(), want)


def test_identities_and_dropouts_go_and_outputs_keep_their_names() -> None:
    proto = model(
        [
            node("Identity", "x", "same"),
            node("Relu", "same", "r"),
            node("Dropout", "r", "d"),
            node("Identity", "d", "y"),
        ],
        {"x": [1, 2, "T"]},
        ["y"],
    )
    settled = load(proto)
    assert [(n.op, n.inputs, n.outputs) for n in settled.nodes] == [("Relu", ("x",), ("y",))]
    assert settled.outputs == ("y",)


def test_an_identity_stays_where_it_gives_an_input_or_a_wire_out_twice() -> None:
    proto = model(
        [node("Identity", "x", "copy"), node("Relu", "x", "y"), node("Identity", "y", "z")],
        {"x": [1, 2, "T"]},
        ["copy", "y", "z"],
    )
    settled = load(proto)
    assert sorted(n.op for n in settled.nodes) == ["Identity", "Identity", "Relu"]
    assert settled.outputs == ("copy", "y", "z")


def test_a_dropout_that_is_told_to_train_stays() -> None:
    proto = model(
        [node("Dropout", "x ratio training", "y")],
        {"x": [1, 2, "T"]},
        ["y"],
        {"ratio": np.array(0.5, np.float32), "training": np.array(True)},
    )
    assert [n.op for n in load(proto).nodes] == ["Dropout"]


def test_what_no_output_needs_is_left_out() -> None:
    proto = model([node("Relu", "x", "y"), node("Exp", "x", "unused")], {"x": [1, 2, "T"]}, ["y"])
    assert [n.op for n in load(proto).nodes] == ["Relu"]


def test_optional_inputs_left_out_are_empty_names() -> None:
    proto = model([node("Clip", "x _ high", "y")], {"x": [1, 2, "T"]}, ["y"], {"high": np.array(1, np.float32)})
    (clip,) = load(proto).nodes
    assert clip.inputs == ("x", "", "high") and clip.input(1) == clip.input(7) == ""


def test_ports_keep_their_declared_dimensions() -> None:
    proto = model([node("Relu", "x", "y")], {"x": [None, 2, "4*T"]}, ["y"])
    (port,) = load(proto).inputs
    assert port.dims == (None, 2, "4*T") and port.dtype == ir.DataType.FLOAT


def test_the_producers_are_known_by_output() -> None:
    settled = load(look_ahead())
    assert {name: n.op for name, n in settled.producers.items()} == {"h": "Conv", "r": "Relu", "y": "Conv"}


def test_a_scan_has_its_body_in_names_of_its_own_and_says_what_it_captures() -> None:
    body = helper.make_graph(
        [node("Mul", "s scale", "m"), node("Add", "m f", "s2"), node("Identity", "s2", "o")],
        "body",
        [helper.make_tensor_value_info(n, 1, [1, 2]) for n in ("s", "f")],
        [helper.make_tensor_value_info(n, 1, [1, 2]) for n in ("s2", "o")],
    )
    scan = helper.make_node(
        "Scan", ["start", "x"], ["end", "y"], name="scan", body=body, num_scan_inputs=1,
        scan_input_axes=[1], scan_output_axes=[1],
    )  # fmt: skip
    constants = {"start": np.zeros((1, 2), np.float32), "scale": np.array(0.5, np.float32)}
    settled = load(model([scan], {"x": [1, "T", 2]}, ["y"], constants))
    (found,) = settled.nodes
    assert found.body is not None
    assert found.body.captured == ("scale",) and "scale" in found.reads
    own = {v for n in found.body.nodes for v in n.outputs} | set(found.body.inputs)
    assert not own & {"s", "f", "s2", "x", "y"}, "no name of the body is the model's"


@pytest.mark.parametrize("broken", ["empty", "no output", "dangling", "no maker", "opset", "untyped"])
def test_what_is_no_model_is_said_to_be(broken: str) -> None:
    proto = look_ahead()
    if broken == "empty":
        del proto.graph.node[:]
    elif broken == "no output":
        del proto.graph.output[:]
    elif broken == "dangling":
        proto.graph.node[0].input[0] = "nothing"
    elif broken == "no maker":
        proto.graph.output[0].name = "nothing"
    elif broken == "opset":
        del proto.opset_import[:]
        proto.opset_import.append(helper.make_opsetid("own", 1))
    else:
        proto.graph.input[0].ClearField("type")
    with pytest.raises(InvalidModel):
        load(proto)


def test_a_stream_is_not_converted_again() -> None:
    proto = look_ahead()
    proto.metadata_props.add(key="pulsify.version", value="1")
    with pytest.raises(InvalidModel, match="a stream already"):
        load(proto)


def test_read_gives_a_model_that_may_be_changed() -> None:
    source = ir.from_proto(look_ahead())
    copy = read(source)
    next(iter(copy.graph)).name = "changed"
    assert next(iter(source.graph)).name == "h"


def test_older_opsets_are_lifted_and_newer_ones_kept() -> None:
    old = model(
        [node("Squeeze", "x", "s", axes=[0]), node("Unsqueeze", "s", "y", axes=[0])],
        {"x": [1, 2, "T"]},
        ["y"],
        opset=11,
    )
    settled = load(old)
    assert settled.opset_imports[""] == 13
    assert all(len(n.inputs) == 2 for n in settled.nodes), "axes have become inputs"
    assert load(look_ahead(opset=18)).opset_imports[""] == 18


def test_weights_are_shared_with_the_source_not_renamed_in_it() -> None:
    proto = model([node("Conv", "x w", "y")], {"x": [1, 2, "T"]}, ["y"], {"w": weights(3, 2, 5)})
    before = proto.SerializeToString(deterministic=True)
    load(proto)
    assert proto.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("reads", "says"), [("nothing", "reads 'nothing', which no node"), ("", "no node makes output")]
)
def test_a_body_reads_what_there_is_and_gives_out_what_it_makes_itself(reads: str, says: str) -> None:
    def branch(out: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(nodes, out, [], [helper.make_tensor_value_info(out, 1, None)])

    then = branch("a", [node("Relu", reads, "a")]) if reads else branch("x", [])
    made = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=branch("b", [node("Relu", "x", "b")]))
    proto = model([made], {"x": [1, 2, "T"]}, ["y"], {"c": np.array(True)})
    with pytest.raises(InvalidModel, match=says):
        load(proto)
