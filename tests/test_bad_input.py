"""Whatever is wrong, the answer is one of pulsify's own errors, and it says what to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pulsify
from tests import models
from tests.models import frames, model, node, weights

GOOD = models.look_ahead().SerializeToString(deterministic=True)


def refused(kind: type[Exception], says: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The error of a call; it is pulsify's own, of that kind, and gives away nothing of the machine."""
    with pytest.raises(pulsify.PulsifyError, match=says) as caught:
        call(*args, **options)
    assert isinstance(caught.value, kind), type(caught.value)
    for trace in (str(Path.home()), "site-packages", "onnxruntime_src"):
        assert trace not in str(caught.value)
    return caught.value


# ---- no model at all

UNREADABLE = {
    "empty": b"",
    "text": b"this is not a model",
    "zeros": bytes(1000),
    "noise": np.random.default_rng(0).integers(0, 256, 1000, np.uint8).tobytes(),
    "begin": GOOD[:10],
    "half": GOOD[: len(GOOD) // 2],
    "almost": GOOD[:-3],
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_corrupt_models(case: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(UNREADABLE[case])
    for source in (path, UNREADABLE[case]):
        refused(pulsify.InvalidModel, "checker|export it again", pulsify.stream, source)


@pytest.mark.parametrize("source", [None, 3, 1.5, [], {}, object(), models.causal().graph, np.zeros(3)], ids=type)
def test_what_is_no_model(source: Any) -> None:
    refused(pulsify.InvalidModel, r"expected a path, bytes.*example=", pulsify.stream, source)


def test_no_such_file(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.onnx", tmp_path, ""):
        refused(pulsify.InvalidModel, "no such model file", pulsify.stream, path)


# ---- models that are none


def damaged(change: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
    proto = models.look_ahead()
    change(proto)
    return proto


def in_a_circle(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input[0] = "y"


def out_of_order(proto: onnx.ModelProto) -> None:
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))


def set_type(proto: onnx.ModelProto, kind: int) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = kind


def set_channels(proto: onnx.ModelProto, size: int) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = size


def rename(message: Any, field: str, value: Any) -> None:
    setattr(message, field, value)


DAMAGED: dict[str, tuple[Callable[[onnx.ModelProto], Any], str]] = {
    "no nodes": (lambda p: p.graph.ClearField("node"), "no nodes"),
    "no outputs": (lambda p: p.graph.ClearField("output"), "no outputs"),
    "no inputs": (lambda p: p.graph.ClearField("input"), "reads 'x'.*checker"),
    "no opset": (lambda p: p.ClearField("opset_import"), "version of ONNX's operators"),
    "unknown opset": (lambda p: rename(p.opset_import[0], "version", 99), "Opset 99.*verify=False"),
    "unknown value": (lambda p: p.graph.node[1].input.__setitem__(0, "nowhere"), "'r' reads 'nowhere'.*checker"),
    "unknown output": (lambda p: rename(p.graph.output[0], "name", "z"), "no node makes output 'z'.*checker"),
    "made twice": (lambda p: p.graph.node[0].output.__setitem__(0, "r"), "checker"),
    "circle": (in_a_circle, "'h' reads 'y'.*checker"),
    "order": (out_of_order, "'y' reads 'r'.*checker"),
    "no shape": (lambda p: p.graph.input[0].type.tensor_type.ClearField("shape"), "'x' has no declared.*export"),
    "no type": (lambda p: p.graph.input[0].ClearField("type"), "'x' has no declared.*export"),
    "weights": (lambda p: p.graph.initializer[0].dims.__setitem__(1, 7), "cannot run at any length.*weights are for 7"),
    "channels": (lambda p: set_channels(p, 9), "cannot run at any length.*input has 9 channels"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_models(case: str) -> None:
    change, says = DAMAGED[case]
    refused(pulsify.InvalidModel, says, pulsify.stream, damaged(change), pulse=4)


UNKNOWN: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "operator": lambda p: rename(p.graph.node[1], "op_type", "Frobnicate"),
    "domain": lambda p: rename(p.graph.node[1], "domain", "com.mine"),
    "integers": lambda p: set_type(p, TensorProto.INT64),
    "strings": lambda p: set_type(p, TensorProto.STRING),
    "complex": lambda p: set_type(p, TensorProto.COMPLEX64),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_no_rule_is_known_for(case: str) -> None:
    error = refused(pulsify.NotStreamable, "hint", pulsify.stream, damaged(UNKNOWN[case]), pulse=4)
    assert error.node == ("r" if case in ("operator", "domain") else "h")
    assert error.op
    assert error.reason
    assert error.hint


def test_external_weights_that_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(models.look_ahead(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    refused(pulsify.InvalidModel, "weights.bin", pulsify.stream, path, pulse=4)


@pytest.mark.parametrize("backend", ["ort", "native", "torch", "reference"])
def test_external_weights_of_a_model_in_memory_that_are_missing(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(models.look_ahead(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    stream = pulsify.stream(onnx.load(path, load_external_data=False), pulse=4, verify=False)
    refused(pulsify.FileFailed, "No such file", stream.session, backend=backend)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("place", ["above", "absolute", "link"])
def test_external_weights_outside_the_models_folder(place: str, verify: bool, tmp_path: Path) -> None:
    """Said at once, not when the stream is saved."""
    path = tmp_path / "in" / "model.onnx"
    path.parent.mkdir()
    onnx.save(models.look_ahead(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    path.with_name("weights.bin").rename(tmp_path / "weights.bin")
    proto = onnx.load(path, load_external_data=False)
    named = {"above": "../weights.bin", "absolute": str(tmp_path / "weights.bin"), "link": "link.bin"}[place]
    path.with_name("link.bin").symlink_to(tmp_path / "weights.bin")
    for entry in (e for t in proto.graph.initializer for e in t.external_data if e.key == "location"):
        entry.value = named
    onnx.save(proto, path)
    error = refused(
        pulsify.InvalidModel, "'w1' lie outside the model's folder", pulsify.stream, path, pulse=4, verify=verify
    )
    assert str(tmp_path) not in str(error)


# ---- nodes that shape inference lets pass


def test_a_constant_node_that_holds_none() -> None:
    """Seed 24 of the damaged fixtures: an operator was renamed."""
    proto = model([helper.make_node("Constant", [], ["c"], axis=1), node("Add", "x c", "y")], {"x": (1, 2, "T")}, ["y"])
    refused(pulsify.InvalidModel, "Constant|checker", pulsify.stream, proto)


def test_batch_dims_beyond_the_axes() -> None:
    """Seed 26 of the damaged fixtures."""
    path = Path(__file__).parent / "zoo" / "fixtures" / "dynamo" / "frames_mirrored.onnx"
    proto = onnx.load(path)
    gather = next(n for n in proto.graph.node if n.op_type == "GatherND")
    gather.attribute.append(helper.make_attribute("batch_dims", 1000000))
    for old in [a for a in gather.attribute if a.name == "batch_dims"][:-1]:
        gather.attribute.remove(old)
    refused(pulsify.NotStreamable, "batch_dims=1000000", pulsify.stream, proto, verify=False)


@pytest.mark.parametrize(("size", "hop", "says"), [(0, 4, "frame length is 0"), (8, 0, "hop is 0")])
def test_transforms_of_no_samples(size: int, hop: int, says: str) -> None:
    """ONNX Runtime divides by them, which ends the process: they are found before it runs."""
    stft = helper.make_node("STFT", ["x", "hop", "", "size"], ["y"])
    consts = {"hop": np.array(hop, np.int64), "size": np.array(size, np.int64)}
    refused(pulsify.NotStreamable, says, pulsify.stream, model([stft], {"x": (1, "T")}, ["y"], consts))


# ---- arguments


@pytest.mark.parametrize("pulse", [0, -1, 1.5, "8", True, [8], float("nan")], ids=repr)
def test_wrong_pulses(pulse: Any) -> None:
    error = refused(pulsify.InvalidArgument, "pulse=.*whole number", pulsify.stream, models.causal(), pulse=pulse)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(("pulse", "near"), [(1, 4), (6, 8), (9, 12)])
def test_pulses_that_do_not_fit(pulse: int, near: int) -> None:
    error = refused(pulsify.InvalidPulse, f"multiple of 4; try pulse={near}", pulsify.stream, models.strided(), pulse)
    assert error.granularity == 4
    assert error.pulse == pulse
    assert isinstance(error, ValueError)


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "unbounded": ({"unbounded": "forever"}, "'refuse', 'grow' or a number"),
    "unbounded zero": ({"unbounded": 0}, "'refuse', 'grow' or a number"),
    "time unknown": ({"time": "Z"}, r"no input has that dimension.*'T' \(axis 2 of x\)"),
    "time empty": ({"time": ""}, "no input has that dimension"),
    "time number": ({"time": 2}, r'name of a dimension.*\{"x": 2\}'),
    "time list": ({"time": ["x"]}, "name of a dimension"),
    "time no axis": ({"time": {"x": 3}}, "'x' has 3 axes"),
    "time no integer": ({"time": {"x": "T"}}, "there is no axis 'T'"),
    "time no input": ({"time": {"z": 2}}, r"no input 'z'; its inputs are \['x'\]"),
    "time nothing": ({"time": {}}, "names no input"),
    "set unknown": ({"set": {"Z": 1}}, r"no input has a dimension 'Z'.*\['T'\]"),
    "set time": ({"set": {"T": 5}}, "so its length is fixed"),
    "set zero": ({"set": {"T": 0}}, r"positive number, a multiple such as '8\*n'"),
    "set no multiple": ({"set": {"T": "0*n"}}, "positive number"),
    "set no product": ({"set": {"T": "n"}}, "positive number"),
    "set half": ({"set": {"T": 0.5}}, "positive number"),
    "set list": ({"set": ["T"]}, "expected a dict"),
    "bind unknown": ({"bind": {"n": "T"}}, r"no input 'n'; its inputs are \['x', 'length'\]"),
    "bind data": ({"bind": {"x": "T"}}, "'x' is FLOAT, a length is an integer"),
    "bind other": ({"bind": {"length": "Z"}}, "a length is bound to time, T"),
    "bind list": ({"bind": ["length"]}, "expected a dict"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_wrong_arguments(case: str) -> None:
    options, says = ARGUMENTS[case]
    error = refused(pulsify.InvalidArgument, says, pulsify.stream, models.with_length(), pulse=4, **options)
    assert isinstance(error, ValueError)


def test_verify_arguments() -> None:
    proto = models.causal()
    stream = pulsify.stream(proto, pulse=4)
    refused(pulsify.InvalidArgument, "pulsify.stream or pulsify.load", pulsify.verify, proto, proto)
    refused(pulsify.InvalidModel, "expected a path", pulsify.verify, None, stream)
    refused(pulsify.InvalidModel, "no such model file", pulsify.verify, "nothing.onnx", stream)
    refused(pulsify.InvalidArgument, "at least 1", pulsify.verify, proto, stream, lengths=[0])
    refused(pulsify.InvalidArgument, r"no \['slowly'\]", pulsify.verify, proto, stream, chunkings=("slowly",))


# ---- models that have no exact stream


def test_reduction_over_time() -> None:
    nodes = [node("ReduceMean", "x", "mean", axes=[2]), node("Sub", "x mean", "y")]
    proto = model(nodes, {"x": [1, 2, "T"]}, ["y"])
    error = refused(pulsify.NotStreamable, "whole stream", pulsify.stream, proto, pulse=4)
    assert (error.node, error.op) == ("y", "Sub")
    assert "ReduceMean 'mean'" in error.reason and error.hint


def test_noise_from_the_model_itself() -> None:
    proto = model([node("RandomNormalLike", "x", "n"), node("Add", "x n", "y")], {"x": [1, 2, "T"]}, ["y"])
    assert refused(pulsify.NotStreamable, "hint", pulsify.stream, proto, pulse=4).op == "RandomNormalLike"


def test_dropout_that_trains() -> None:
    """Random as well, though two runs may draw the same."""
    constants = {"ratio": np.array(0.5, np.float32), "training": np.array(True)}
    proto = model([node("Dropout", "x ratio training", "y")], {"x": [1, 2, "T"]}, ["y"], constants)
    for _ in range(3):
        assert refused(pulsify.NotStreamable, "at random", pulsify.stream, proto, pulse=4).op == "Dropout"


@pytest.mark.parametrize("known", [False, True])
def test_an_output_with_two_time_axes(known: bool) -> None:
    """Raw attention scores; and a mask that follows from the length alone."""
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "t x", "scores"), node("Relu", "x", "y")]
    mask = [
        node("Shape", "x", "shape"),
        node("Gather", "shape two", "frames"),
        node("Range", "zero frames one", "n"),
        node("Unsqueeze", "n axis", "column"),
        node("Less", "n column", "scores"),
        node("Relu", "x", "y"),
    ]
    whole = {n: np.array(v) for n, v in (("zero", 0), ("one", 1), ("two", 2), ("axis", [1]))}
    proto = model(
        mask if known else nodes, {"x": [1, 2, "T"]}, ["y", "scores"], whole if known else {},
        dtypes={"scores": np.bool_ if known else np.float32},
    )  # fmt: skip
    axes = "0, 1" if known else "1, 2"
    error = refused(pulsify.NotStreamable, f"output 'scores' has 2 time axes .{axes}.", pulsify.stream, proto, pulse=4)
    assert "first frames" not in str(error)
    assert isinstance(error, pulsify.NotStreamable) and error.node == "scores"


def test_time_on_two_axes() -> None:
    proto = model([node("Neg", "x", "y")], {"x": ["T", "T"]}, ["y"])
    refused(pulsify.PulsifyError, ".", pulsify.stream, proto, pulse=4)


# ---- known to be wrong: remove the mark when it is right


def test_a_short_table_of_positions() -> None:
    proto = model(
        [
            node("Shape", "x", "shape"),
            node("Gather", "shape two", "length"),
            node("Range", "zero length one", "positions"),
            node("Gather", "table positions", "rows", axis=0),
            node("Transpose", "rows", "columns", perm=[1, 0]),
            node("Add", "x columns", "y"),
        ],
        {"x": [1, 2, "T"]},
        ["y"],
        {"table": weights(20, 2), "two": np.array(2), "zero": np.array(0), "one": np.array(1)},
    )
    x = frames(1, 2, 20)
    session = pulsify.stream(proto, pulse=4).session()
    session.push(x)
    refused(pulsify.InvalidLength, "20 rows", session.push, x[..., :1])


def test_a_constant_output() -> None:
    constant = node("Constant", "", "z", value=helper.make_tensor("", TensorProto.FLOAT, [1], [3.0]))
    stream = pulsify.stream(model([node("Neg", "x", "y"), constant], {"x": [1, 2, "T"]}, ["y", "z"]), pulse=4)
    session = stream.session()
    session.push(frames(1, 2, 5))
    assert session.flush()["z"].tolist() == [3.0]


def test_an_output_that_is_an_input() -> None:
    proto = model([node("Neg", "x", "y")], {"x": [1, 2, "T"]}, ["y"])
    proto.graph.output.append(proto.graph.input[0])
    with contextlib.suppress(pulsify.PulsifyError):  # a refusal that says so will do
        pulsify.stream(proto, pulse=4)


@pytest.mark.parametrize("path", [None, 3, b"abc", []], ids=repr)
def test_load_takes_a_path(path: Any) -> None:
    refused(pulsify.InvalidModel, "path", pulsify.load, path)


def test_a_pulse_beyond_all_memory() -> None:
    refused(pulsify.InvalidArgument, "pulse=", pulsify.stream, models.look_ahead(), pulse=1 << 40)


def test_a_pulse_from_numpy() -> None:
    pulse: Any = np.int64(4)
    assert pulsify.stream(models.causal(), pulse=pulse).pulse == 4


def test_unbounded_is_no_flag() -> None:
    refused(pulsify.InvalidArgument, "unbounded=", pulsify.stream, models.causal(), pulse=4, unbounded=True)


# ---- arguments that are no iterable, no mapping, no array


@pytest.mark.parametrize("chunks", [7, None, 3.5, np.array(5), np.float32(2)], ids=repr)
def test_chunks_that_are_no_iterable(chunks: Any) -> None:
    stream = pulsify.stream(models.look_ahead(), pulse=4, verify=False)
    refused(pulsify.InvalidArgument, "iterable of chunks", lambda: list(stream.session().iterate(chunks)))

    async def all_of() -> None:
        async for _ in stream.session().aiterate(chunks):
            pass

    refused(pulsify.InvalidArgument, "iterable of chunks", lambda: asyncio.run(all_of()))


def test_an_iterable_of_chunks_that_fails_itself() -> None:
    class Failing:
        def __iter__(self) -> Any:
            raise TypeError("my own")

    session = pulsify.stream(models.look_ahead(), pulse=4, verify=False).session()
    with pytest.raises(TypeError, match="my own"):
        list(session.iterate(Failing()))  # type: ignore[arg-type]


def test_a_number_of_frames_as_an_array() -> None:
    stream, x = pulsify.stream(models.look_ahead(), pulse=4, verify=False), frames(1, 2, 11)
    np.testing.assert_array_equal(stream.run(x, chunks=np.array(3)), stream.run(x))  # type: ignore[arg-type]
    refused(pulsify.InvalidArgument, "number of frames", stream.run, x, chunks=np.array(2.5))


@pytest.mark.parametrize("value", [7, "x", 3.5, np.array(5), np.array([]), [frames(1, 2, 3)]], ids=type)
def test_functions_that_show_their_progress_look_at_their_types(value: Any) -> None:
    """What is wrapped to show its progress is annotated in a module of its own."""
    batch = models.look_ahead()
    stream = pulsify.stream(batch, pulse=4, verify=False)
    refused(pulsify.InvalidArgument, r"(?s)statics=.*Mapping", stream.run, frames(1, 2, 9), statics=value)
    refused(pulsify.InvalidArgument, "options", pulsify.verify, batch, stream, options=value)
    refused(pulsify.InvalidArgument, "bind", pulsify.stream, batch, bind={"y": value})


@pytest.mark.parametrize("kind", ["sparse", "meta", "quantised", "nested", "gradient"])
def test_tensors_that_are_no_arrays(kind: str) -> None:
    torch = pytest.importorskip("torch")
    plain = torch.zeros(1, 2, 4)
    tensor = {
        "sparse": plain.to_sparse,
        "meta": lambda: plain.to("meta"),
        "quantised": lambda: torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
        "nested": lambda: torch.nested.nested_tensor([plain[0]]),
        "gradient": plain.requires_grad_,
    }[kind]()
    stream = pulsify.stream(models.look_ahead("B"), pulse=4, verify=False)
    pool = pulsify.Pool(stream, 2)
    lane = pool.open()
    refused(pulsify.InvalidChunk, "takes an array", lane.push, tensor)
    if kind != "gradient":
        refused(pulsify.InvalidChunk, "dense tensor", stream.session().push, tensor)
        refused(pulsify.InvalidChunk, "dense tensor", pool.exchange, [lane], tensor)
        module = torch.nn.Conv1d(2, 2, 3)
        refused(pulsify.InvalidArgument, "dense tensors", pulsify.stream, module, example=tensor)


# ---- models that no runtime opens


def spoiled(change: str) -> onnx.ModelProto:
    """Two convolutions, of which the first is no convolution any more."""
    proto = models.look_ahead()
    first = proto.graph.node[0]
    if change == "an input is missing":
        first.input.pop()
    elif change == "a kernel of another rank":
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(models.weights(4, 2, 3, 1), "w1"))
    elif change == "an axis more":
        proto.graph.input[0].type.tensor_type.shape.dim.add().dim_value = 1
    return proto


@pytest.mark.parametrize("change", ["an input is missing", "a kernel of another rank", "an axis more"])
@pytest.mark.parametrize("as_file", [False, True])
def test_a_model_that_no_runtime_opens_is_no_bug(change: str, as_file: bool, tmp_path: Path) -> None:
    """It was reported as a bug in pulsify."""
    proto = spoiled(change)
    if as_file:
        onnx.save(proto, tmp_path / "spoiled.onnx")
    says = "ONNX Runtime does not open the model|runs at none of"
    with pytest.raises((pulsify.InvalidModel, pulsify.NotStreamable), match=says):
        pulsify.stream(tmp_path / "spoiled.onnx" if as_file else proto, pulse=4)


def test_an_axis_that_a_table_does_not_have_is_no_bug() -> None:
    nodes = [models.node("Gather", "x first", "a", axis=2), models.node("Neg", "a", "y")]
    proto = models.model(nodes, {"x": [1, "T"]}, ["y"], {"first": np.array(0)})
    with pytest.raises((pulsify.InvalidModel, pulsify.NotStreamable)):
        pulsify.stream(proto, pulse=4)


def test_a_dimension_with_an_empty_name_has_none() -> None:
    proto = models.look_ahead()
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = ""
    stream = pulsify.stream(proto, pulse=4)
    assert stream.inputs[0].axis == 2 and stream.spec.time == "x.dim2"
