"""Models of every make come in, and the time dimension is found or asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import pulsify
from tests import models
from tests.models import close, frames, model, node, port, run_batch, run_stream, weights

NEWEST_OPSET = 26  # that ONNX Runtime takes


def check(proto: onnx.ModelProto, x: Any = None, pulse: int = 4, **options: Any) -> Any:
    """The stream of a model with one input and one output; its frames are the batch model's."""
    stream = pulsify.stream(proto, pulse=pulse, **options)
    x = frames(1, 2, 23) if x is None else x
    (y,) = run_batch(proto, x).values()
    axis, out = stream.inputs[0].axis, stream.outputs[0].axis
    session = stream.session()
    parts = [session.push(c) for c in np.split(x, [5, 6], axis)]
    close(np.concatenate([*parts, session.flush()], out), y)
    return stream


# ---- sources

SOURCES: dict[str, Callable[[Path], Any]] = {
    "path": lambda p: p,
    "name": str,
    "bytes": Path.read_bytes,
    "ModelProto": onnx.load,
    "onnx_ir": ir.load,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source(kind: str, tmp_path: Path) -> None:
    path, x = tmp_path / "model.onnx", frames(1, 2, 23)
    path.write_bytes(models.look_ahead().SerializeToString(deterministic=True))
    source = SOURCES[kind](path)
    stream = pulsify.stream(source, pulse=4)
    close(run_stream(stream.session(), x, [5]), run_batch(models.look_ahead(), x)["y"])
    assert pulsify.verify(source, stream).runs
    reference = pulsify.stream(models.look_ahead(), pulse=4)
    reference.model.metadata_props["pulsify.source"] = stream.spec.source  # onnx_ir writes a model its own way
    assert ir.to_proto(stream.model) == ir.to_proto(reference.model)


@pytest.mark.parametrize("kind", ["ModelProto", "onnx_ir"])
def test_the_source_is_not_changed(kind: str) -> None:
    proto = branching(np.array(True))
    source = proto if kind == "ModelProto" else ir.from_proto(proto)
    before = ir.to_proto(ir.from_proto(proto)).SerializeToString(deterministic=True)
    pulsify.stream(source, pulse=4)
    after = ir.from_proto(source) if kind == "ModelProto" else source
    assert ir.to_proto(after).SerializeToString(deterministic=True) == before


# ---- operator sets


def versioned(opset: int) -> onnx.ModelProto:
    """Operators whose axes, pads and amounts are attributes in some versions and inputs in others."""
    constants = {
        "pads": np.array([0, 0, 2, 0, 0, 1]),
        "starts": np.array([1]),
        "ends": np.array([2**62]),
        "axis": np.array([2]),
        "w": weights(4, 2, 3),
        "one": np.array([1]),
    }
    mean = node("ReduceMean", "h one", "m", keepdims=1) if opset >= 18 else node("ReduceMean", "h", "m", axes=[1])
    nodes = [
        node("Pad", "x pads", "p"),
        node("Slice", "p starts ends axis", "s"),
        node("Conv", "s w", "h"),
        mean,
        node("Sub", "h m", "y"),
    ]
    used = {n: a for n, a in constants.items() if opset >= 18 or n != "one"}
    return model(nodes, {"x": [1, 2, "T"]}, ["y"], used, opset=opset)


@pytest.mark.parametrize("opset", range(13, NEWEST_OPSET + 1))
def test_opsets(opset: int) -> None:
    stream = check(versioned(opset))
    assert stream.model.opset_imports[""] == opset


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_older_opsets_are_converted(opset: int) -> None:
    stream = check(models.look_ahead(opset=opset))
    assert stream.model.opset_imports[""] == 13


# ---- graphs that need settling


def test_local_functions_are_inlined() -> None:
    """A function that calls a function, with an attribute handed on."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    leaky = onnx.helper.make_node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    inner = helper.make_function("own", "Act", ["a"], ["b"], [leaky], imports, ["slope"])
    outer = helper.make_function(
        "own",
        "Block",
        ["a", "w"],
        ["c"],
        [
            helper.make_node("Conv", ["a", "w"], ["h"], pads=[1, 1]),
            helper.make_node("Act", ["h"], ["c"], domain="own", slope=0.2),
        ],
        imports,
    )
    proto = model(
        [
            helper.make_node("Block", ["x", "w1"], ["h"], domain="own"),
            helper.make_node("Block", ["h", "w2"], ["y"], domain="own"),
        ],
        {"x": [1, 2, "T"]},
        ["y"],
        {"w1": weights(4, 2, 3), "w2": weights(3, 4, 3)},
        imports=[imports[1]],
        functions=[inner, outer],
    )
    stream = check(proto)
    assert not stream.model.functions
    assert {n.domain for n in stream.model.graph} == {""}


def branching(condition: Any = None, extra: list[onnx.NodeProto] | None = None) -> onnx.ModelProto:
    """If `condition`: a convolution; else: the negative input. Branches use values and weights from outside."""
    yes = helper.make_graph([node("Conv", "x w", "yes", pads=[1, 1])], "then", [], [port("yes", None)])
    no = helper.make_graph([node("Neg", "x", "no")], "else", [], [port("no", None)])
    constants = {"w": weights(2, 2, 3), "seven": np.array(7), "zero": np.array(0), "two": np.array(2)}
    if condition is not None:
        constants["condition"] = condition
    nodes = [*(extra or []), node("If", "condition", "h", then_branch=yes, else_branch=no), node("Relu", "h", "y")]
    return model(nodes, {"x": [1, 2, "T"]}, ["y"], constants)


@pytest.mark.parametrize("value", [True, False])
def test_constant_branch(value: bool) -> None:
    stream = check(branching(np.array(value)))
    assert "If" not in {n.op_type for n in stream.model.graph}


@pytest.mark.parametrize(("index", "equal"), [("zero", "no"), ("two", "no")])
def test_branch_on_a_shape(index: str, equal: str) -> None:
    """Rank and sizes are known, however they are computed: size of an axis == 7 never holds for long streams."""
    extra = [
        node("Shape", "x", "shape"),
        node("Gather", f"shape {index}", "size"),
        node("Equal", "size seven", "condition"),
    ]
    check(branching(extra=extra))


def test_branch_on_the_data() -> None:
    extra = [
        node("ReduceMax", "x", "largest", keepdims=0),
        node("Cast", "largest", "whole", to=onnx.TensorProto.INT64),
        node("Greater", "whole zero", "condition"),
    ]
    with pytest.raises(pulsify.NotStreamable) as refused:
        pulsify.stream(branching(extra=extra), pulse=4)
    assert refused.value.node
    assert refused.value.hint


def test_noise() -> None:
    """Constants as nodes, identities, dropout, casts to the same type: none of it is left."""
    proto = model(
        [
            node("Identity", "x", "i"),
            node("Constant", "", "w", value=numpy_helper.from_array(weights(3, 2, 3))),
            node("Dropout", "i", "d"),
            node("Identity", "w", "v"),
            node("Conv", "d v", "h", pads=[2, 0]),
            node("Identity", "h", "y"),
            node("Relu", "x", "unused"),
        ],
        {"x": [1, 2, "T"]},
        ["y"],
    )
    stream = check(proto)
    ops = [n.op_type for n in stream.model.graph]
    assert "Dropout" not in ops
    assert "Relu" not in ops
    assert "Constant" not in ops


def test_dropout_with_a_mask_output() -> None:
    check(model([node("Dropout", "x", "d mask"), node("Neg", "d", "y")], {"x": [1, 2, "T"]}, ["y"]))


def test_initializers_listed_as_inputs() -> None:
    proto = models.causal()
    proto.graph.input.append(port("w", [3, 2, 3]))
    stream = check(proto)
    assert [i.name for i in stream.inputs] == ["x"]
    assert not stream.statics


def test_nodes_without_names() -> None:
    proto = models.look_ahead()
    for n in proto.graph.node:
        n.name = ""
    stream = check(proto)
    assert all(s.node for s in stream.states)


def test_nodes_that_share_a_name() -> None:
    """ONNX Runtime does not open such a model; the stream has names of its own."""
    proto, x = models.look_ahead(), frames(1, 2, 23)
    want = run_batch(proto, x)["y"]
    for n in proto.graph.node:
        n.name = "node"
    stream = pulsify.stream(proto, pulse=4, verify=False)
    assert len({s.name for s in stream.states}) == len(stream.states)
    close(run_stream(stream.session(), x, [5]), want)


def test_old_file_format() -> None:
    """Before version 4 of the format defaults were constants; the stream has a default that is none."""
    proto = models.look_ahead()
    proto.ir_version = 3
    for weight in proto.graph.initializer:
        proto.graph.input.append(port(weight.name, list(weight.dims)))
    check(proto)


def test_an_input_called_like_ours() -> None:
    """The model's own names win."""
    proto = model(
        [node("Conv", "length w", "state_000_x", pads=[1, 1])],
        {"length": [1, 2, "T"]},
        ["state_000_x"],
        {"w": weights(3, 2, 3)},
    )
    stream = check(proto)
    assert [i.name for i in stream.inputs] == ["length"]
    assert [o.name for o in stream.outputs] == ["state_000_x"]


def test_output_is_the_input() -> None:
    check(model([node("Identity", "x", "y")], {"x": [1, 2, "T"]}, ["y"]))


def test_one_wire_given_out_twice() -> None:
    proto = model([node("Neg", "x", "a"), node("Identity", "a", "b")], {"x": [1, 2, "T"]}, ["a", "b"])
    stream = pulsify.stream(proto, pulse=4)
    x = frames(1, 2, 4)
    assert {n: v.tolist() for n, v in stream.session().push(x).items()} == {"a": (-x).tolist(), "b": (-x).tolist()}


# ---- which dimension is time


def shaped(*dims: int | str | None, op: str = "Neg") -> onnx.ModelProto:
    return model([node(op, "x", "y")], {"x": dims}, ["y"])


@pytest.mark.parametrize(
    ("dims", "axis"),
    [
        ((1, 2, "T"), 2),
        (("samples",), 0),
        ((1, "anything", 2), 1),
        ((1, None, 2), 1),
        (("B", 2, "T"), 2),
        (("batch_size", "time", 2), 1),
        (("T", "batch", 2), 0),
        (("N", 2, "frames"), 2),
        (("s0", "s1", 2), 1),  # names that say nothing: the batch comes first
        ((None, None, 2), 1),
    ],
    ids=str,
)
def test_time_is_found(dims: Any, axis: int) -> None:
    stream = pulsify.stream(shaped(*dims), pulse=4)
    assert stream.inputs[0].axis == axis


BASELINE = model([node("Relu", "x", "y")], {"x": ["unk__749", 40, 1]}, ["y"])


def test_a_lone_first_axis_whose_entries_never_meet_is_not_time() -> None:
    """basic-pitch streams windows of fixed size, and was taken for a stream of windows."""
    with pytest.raises(pulsify.InvalidArgument, match="looks like the batch") as asked:
        pulsify.stream(BASELINE, pulse=4)
    assert "'unk__749' (axis 0 of 'x')" in str(asked.value)
    remedy = str(asked.value).rpartition("pass ")[2]
    assert remedy == "time='unk__749'"
    assert pulsify.stream(BASELINE, pulse=4, time="unk__749").inputs[0].axis == 0


@pytest.mark.parametrize("dims", [("s0", 6, 8), ("s0", 40)], ids=str)
def test_entries_that_are_split_up_do_not_meet_either(dims: tuple[Any, ...]) -> None:
    """A batch of windows whose frames become rows: several a window, each of that window alone."""
    nodes = [node("Reshape", "x rows", "h"), node("MatMul", "h w", "y")]
    proto = model(nodes, {"x": dims}, ["y"], {"rows": np.array([-1, 8]), "w": weights(8, 5)})
    with pytest.raises(pulsify.InvalidArgument, match="looks like the batch"):
        pulsify.stream(proto, pulse=4)
    assert pulsify.stream(proto, pulse=4, time="s0").outputs[0].rate > 1


@pytest.mark.parametrize("op", ["CumSum", "Conv", "ReduceMean", "Reshape"])
def test_a_lone_first_axis_whose_frames_meet_is_time(op: str) -> None:
    nodes = {
        "CumSum": [node("CumSum", "x zero", "y")],
        "Conv": [node("Transpose", "x", "t", perm=[1, 0]), node("Unsqueeze", "t first", "u"), node("Conv", "u w", "y")],
        "ReduceMean": [node("ReduceMean", "x first", "y", keepdims=0)],
        "Reshape": [node("Reshape", "x pairs", "y")],
    }[op]
    known = {"zero": np.array(0), "first": np.array([0]), "w": weights(3, 2, 3), "pairs": np.array([-1, 4])}
    read = {i for n in nodes for i in n.input}
    proto = model(nodes, {"x": ["s0", 2]}, ["y"], {k: v for k, v in known.items() if k in read}, opset=18)
    assert pulsify.stream(proto, pulse=4).inputs[0].axis == 0


def recurrent(*dims: int | str | None) -> onnx.ModelProto:
    """As PyTorch has recurrent layers: time comes first, the batch second."""
    nodes = [node("RNN", "x w r", "all", hidden_size=3), node("Squeeze", "all one", "y")]
    known = {"w": weights(1, 3, 4), "r": weights(1, 3, 3), "one": np.array([1])}
    return model(nodes, {"x": [*dims, 4]}, ["y"], known)


@pytest.mark.parametrize("dims", [(16, "batch_size"), (16, "N"), (1, "B"), (16, "s0"), (16, None)], ids=str)
def test_a_lone_batch_is_not_time_wherever_it_is(dims: tuple[Any, ...]) -> None:
    """It was streamed, entry by entry, with the recurrence over a fixed number of frames inside each."""
    with pytest.raises(pulsify.InvalidArgument, match="looks like the batch") as asked:
        pulsify.stream(recurrent(*dims), pulse=4)
    assert "(axis 1 of 'x')" in str(asked.value)
    symbol = str(asked.value).rpartition("pass time=")[2].strip("'")
    assert pulsify.stream(recurrent(*dims), pulse=4, time=symbol).inputs[0].axis == 1


@pytest.mark.parametrize("dims", [("time", "s0"), ("T", "streams"), ("s1", "s0"), ("B", "N"), (None, None)], ids=str)
def test_the_later_of_two_dimensions_is_not_time_if_only_the_other_ones_entries_meet(dims: tuple[Any, ...]) -> None:
    with pytest.raises(pulsify.InvalidArgument, match="depends on another, and along") as asked:
        pulsify.stream(recurrent(*dims), pulse=4)
    first, second = ((f"x.dim{a}" if d is None else d) for a, d in enumerate(dims))
    assert f"pass time='{first}' and set={{'{second}': 1}}" in str(asked.value)
    stream = pulsify.stream(recurrent(*dims), pulse=4, time=first, set={second: 1})
    assert stream.inputs[0].axis == 0 and stream.states
    assert pulsify.stream(recurrent(*dims), pulse=4, time=second).inputs[0].axis == 1


@pytest.mark.parametrize("dims", [("B", "H", "W"), ("p", "q", "r"), (1, "H", "W"), (None, None, None)], ids=str)
def test_time_is_asked_for(dims: Any) -> None:
    with pytest.raises(pulsify.InvalidArgument) as asked:
        pulsify.stream(shaped(*dims), pulse=4)
    message = str(asked.value)
    assert "time=" in message
    for axis, dim in enumerate(dims):
        if isinstance(dim, str):
            assert f"'{dim}' (axis {axis} of x)" in message


def test_no_dimension_is_free() -> None:
    with pytest.raises(pulsify.InvalidArgument, match=r"no input has a symbolic dimension.*time=..x.: 2"):
        pulsify.stream(shaped(1, 2, 100), pulse=4)


@pytest.mark.parametrize("time", ["W", {"x": 2}, {"x": -1}], ids=str)
def test_time_by_name_or_axis(time: Any) -> None:
    proto = shaped("B", "H", "W")
    stream = check(proto, frames(1, 3, 23), time=time, set={"H": 3})
    assert stream.inputs[0].axis == 2
    assert stream.spec.time == "W"
    assert stream.spec.batch == "B"
    other = pulsify.stream(proto, pulse=4, time="H", set={"W": 5})
    assert other.inputs[0].axis == 1


def test_other_dimensions_must_be_fixed() -> None:
    with pytest.raises(pulsify.InvalidArgument, match=r"set=\{'H': 1\}"):
        pulsify.stream(shaped("B", "H", "W"), pulse=4, time="W")


def test_fixed_batch() -> None:
    stream = pulsify.stream(models.look_ahead(batch="B"), pulse=4, set={"B": 2})
    assert stream.spec.batch is None
    x = frames(2, 2, 23)
    close(run_stream(stream.session(), x, [5]), run_batch(models.look_ahead(batch="B"), x)["y"])


def test_time_of_a_fixed_axis_can_be_named() -> None:
    """The length is written in the file, but nothing in the graph depends on it."""
    proto = models.look_ahead()
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 100
    stream = pulsify.stream(proto, pulse=4, time={"x": 2}, verify=False)
    x = frames(1, 2, 23)
    close(run_stream(stream.session(), x, [5]), run_batch(models.look_ahead(), x)["y"])


def test_lengths_declared_as_multiples() -> None:
    stream = pulsify.stream(models.look_ahead(), set={"T": "8*n"})
    assert stream.spec.step == 8
    assert all(n % 8 == 0 for n in pulsify.verify(models.look_ahead(), stream).lengths)


def test_inputs_of_two_lengths_are_told_apart() -> None:
    """T and U are not known to be the same."""
    proto = model([node("Neg", "a", "y"), node("Neg", "b", "z")], {"a": [1, "T"], "b": [1, "U"]}, ["y", "z"])
    with pytest.raises(pulsify.InvalidArgument, match=r"'T' \(axis 1 of a\), 'U' \(axis 1 of b\)"):
        pulsify.stream(proto, pulse=4)
    stream = pulsify.stream(proto, pulse=4, time={"a": 1, "b": 1})
    assert {i.name: i.axis for i in stream.inputs} == {"a": 1, "b": 1}


@pytest.mark.parametrize("dim", ["4*T", "4 * T", "T*4"])
def test_rates_are_read_off_the_names(dim: str) -> None:
    proto = models.two_rates()
    proto.graph.input[1].type.tensor_type.shape.dim[2].dim_param = dim
    stream = pulsify.stream(proto, pulse=4)
    assert {i.name: str(i.rate) for i in stream.inputs} == {"slow": "1", "fast": "4"}


# ---- lengths as inputs


@pytest.mark.parametrize("name", ["length", "x_lens", "processed_signal_length", "Length"])
def test_length_input_is_found(name: str) -> None:
    stream = pulsify.stream(models.with_length(name=name), pulse=4)
    assert [i.name for i in stream.inputs] == ["x"]
    assert not stream.statics
    assert stream.outputs[1].axis is None


def test_length_input_is_bound_by_name() -> None:
    proto, total = models.with_length(name="n"), 23
    stream = pulsify.stream(proto, pulse=4, bind={"n": "T"})
    x, session = frames(1, 2, total), stream.session()
    first, last = session.push(x), session.flush()
    want = run_batch(proto, {"x": x, "n": np.array([total])})
    close(np.concatenate([first["y"], last["y"]], 2), want["y"])
    assert last["encoded_lengths"].tolist() == want["encoded_lengths"].tolist() == [12]


def test_unbound_integers_are_static() -> None:
    """Not called a length, not bound: an input of the session."""
    proto, x = models.with_length(name="n"), frames(1, 2, 23)
    stream = pulsify.stream(proto, pulse=4)
    assert [s.name for s in stream.statics] == ["n"]
    session = stream.session(n=np.array([5]))
    session.push(x)
    assert session.flush()["encoded_lengths"].tolist() == [3]


def test_a_length_that_is_none() -> None:
    """bind={...: None} says that an input only sounds like the length; some do not even sound like it."""
    proto = models.with_length(name="max_len")
    bind: Any = {"max_len": None}
    assert [s.name for s in pulsify.stream(proto, pulse=4, bind=bind).statics] == ["max_len"]
    assert [s.name for s in pulsify.stream(models.with_length(name="silence"), pulse=4).statics] == ["silence"]


def test_a_float_called_length_is_no_length() -> None:
    proto = model([node("Mul", "x length_scale", "y")], {"x": [1, 2, "T"], "length_scale": [1, 2, 1]}, ["y"])
    stream = pulsify.stream(proto, pulse=4)
    assert [s.name for s in stream.statics] == ["length_scale"]
