"""A repository for Triton: its config read by Triton's own protobuf, its sequences served by a model of the server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.export.clients.frames import Frames, whole
from tests import models
from tests.models import Array, close, frames, run_batch
from tests.test_pool import folded
from tests.unit.export.running import converted, is_batch, module, zoo, zoo_cases
from tests.zoo.manifest import Exporter

pytest.importorskip("grpc", reason="tritonclient[grpc] is not installed")
pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.unit.export.triton_server import Server, numpy_type, parsed

MODELS = {
    "look_ahead": models.look_ahead("B"), "causal": models.causal("B"), "with_length": models.with_length("B"),
    "conditioned": models.conditioned("B"), "mirrored_lstm": models.mirrored_lstm("B"), "one": models.look_ahead(1),
    "two_rates": models.two_rates(), "tokens": models.tokens(),
}  # fmt: skip
MODELS["table"] = models.model(
    [
        models.node("Shape", "x", "s"), models.node("Gather", "s two", "t"), models.node("Range", "zero t one", "r"),
        models.node("Gather", "table r", "p"), models.node("Transpose", "p", "q", perm=[1, 0]),
        models.node("Add", "x q", "a"), models.node("Conv", "a w", "y", pads=[2, 0]),
    ],
    {"x": ["B", 2, "T"]}, ["y"],
    {"two": np.array(2), "zero": np.array(0), "one": np.array(1), "table": models.weights(400, 2),
     "w": models.weights(3, 2, 3)},
)  # fmt: skip
BATCHED = {"table", "look_ahead", "causal", "with_length", "conditioned", "mirrored_lstm"}


def exported(source: onnx.ModelProto, folder: Path, **options: Any) -> tuple[pulsify.Stream, Path]:
    stream = converted(source)
    pulsify.export(stream, "triton", folder, name="net", **options)
    return stream, folder / "models" / "net"


def stepping(server: Server, facts: Mapping[str, Any], statics: Mapping[str, Array], sequence: int) -> Frames:
    """The client's own stream on the model of a server, one request at a time."""

    def step(inputs: dict[str, Array], total: int | None, last: bool) -> dict[str, Array]:
        asked = server.infer(wired(facts, {**statics, **inputs}, total), sequence, not stream.pulses, last)
        return outcome(facts, served(server, asked))

    stream = Frames(facts, step)
    return stream


def wired(facts: Any, given: Mapping[str, Array], total: int | None) -> dict[str, Array]:
    """As the client sends it."""
    ends = np.full((1, 1), facts["unknown_length"] if total is None else total, np.int32)
    named = {**given, **({facts["length"]: ends} if facts["length"] else {})}
    return {n: v.reshape(facts["wires"][n]) for n, v in named.items()}


def served(server: Server, asked: Any) -> Any:
    while asked.outputs is None:
        assert server.step()
    return asked.outputs


def outcome(facts: Any, made: Mapping[str, Array]) -> dict[str, Array]:
    return {o["name"]: made[o["name"]].reshape(o["shape"]) for o in facts["outputs"]}


@pytest.mark.parametrize("strategy", ["oldest", "direct"])
@pytest.mark.parametrize("name", MODELS)
def test_a_sequence_is_the_batch_model(name: str, strategy: str, tmp_path: Path) -> None:
    stream, folder = exported(MODELS[name], tmp_path, strategy=strategy)
    server, facts = Server(folder), json.loads((tmp_path / "stream.json").read_text())
    assert server.config.max_batch_size == (16 if name in BATCHED else 0)
    numbers = iter(range(1, 100))
    is_batch(
        MODELS[name], stream, lambda inputs, statics: whole(stepping(server, facts, statics, next(numbers)), inputs, 3)
    )


@pytest.mark.parametrize(("name", "exporter"), zoo_cases())
def test_the_zoo_is_the_batch_model(name: str, exporter: Exporter, tmp_path: Path) -> None:
    stream, folder = exported(zoo(name, exporter), tmp_path)
    server, facts = Server(folder), json.loads((tmp_path / "stream.json").read_text())
    source, numbers = zoo(name, exporter), iter(range(1, 100))
    is_batch(source, stream, lambda inputs, statics: whole(stepping(server, facts, statics, next(numbers)), inputs, 7))


@pytest.mark.parametrize("strategy", ["oldest", "direct"])
@pytest.mark.parametrize("name", ["look_ahead", "mirrored_lstm", "conditioned", "table"])
def test_sequences_beside_each_other_are_each_the_batch_model(name: str, strategy: str, tmp_path: Path) -> None:
    """More sequences than rows and than slots, of all lengths: some begin while others end, some rows are not ready."""
    stream, folder = exported(MODELS[name], tmp_path, strategy=strategy, batch=3, sequences=4)
    server, facts, rng = Server(folder), json.loads((tmp_path / "stream.json").read_text()), np.random.default_rng(0)
    given = [{"x": frames(1, 2, n, seed=n)} for n in (9, 33, 17, 12, 40, 8, 25)]
    fixed = [{s.name: frames(1, 3, 1, seed=i) for s in stream.statics} for i in range(len(given))]
    asked = [recorded(facts, x) for x in given]
    answers: list[list[Any]] = [[] for _ in given]
    while any(len(done) < len(calls) for done, calls in zip(answers, asked, strict=True)):
        for i, (calls, done) in enumerate(zip(asked, answers, strict=True)):
            ready = not done or done[-1].outputs is not None
            if len(done) < len(calls) and ready and rng.random() < 0.6:
                inputs, total, last = calls[len(done)]
                done.append(server.infer(wired(facts, {**fixed[i], **inputs}, total), i + 1, not done, last))
        server.step()
    while server.step():
        pass
    for inputs, statics, done in zip(given, fixed, answers, strict=True):
        replies = iter(done)
        got = whole(Frames(facts, lambda i, t, e, replies=replies: outcome(facts, next(replies).outputs)), inputs, 5)
        wanted = run_batch(MODELS[name], {**inputs, **statics})
        for output, y in got.items():
            close(y, wanted[output])
    assert max(server.sizes) == 3 and min(server.sizes) < 3


def recorded(facts: Any, inputs: Mapping[str, Array]) -> list[Any]:
    """What a client asks for, one after the other: no answer changes it."""
    asked: list[Any] = []

    def step(given: dict[str, Array], total: int | None, last: bool) -> dict[str, Array]:
        asked.append((given, total, last))
        return {o["name"]: np.zeros(o["shape"], o["dtype"]) for o in facts["outputs"]}

    whole(Frames(facts, step), inputs, 5)
    return asked


@pytest.mark.parametrize("name", ["table", "one"])
def test_rows_that_are_not_ready_count_from_zero(name: str, tmp_path: Path) -> None:
    """Their states are any bits, and a position that is none has no place in a table; one row alone is always ready."""
    stream, folder = exported(MODELS[name], tmp_path, strategy="direct")
    server = Server(folder)
    assert list(server.controls) == (["READY"] if name == "table" else [])
    if name == "table":
        junk = {**server._left_over(), "x": frames(1, 2, 4), "length": np.array([[8]], np.int32)}
        given = {n: v for n, v in junk.items() if n in {i.name for i in server.runner.get_inputs()}}
        assert server._run([given])[0][stream.states[-1].after].item() == 4
        assert stream.spec.position == stream.states[-1].name


def test_the_config_is_triton_s(tmp_path: Path) -> None:
    stream, folder = exported(MODELS["look_ahead"], tmp_path)
    config = parsed(folder / "config.pbtxt")
    assert (config.name, config.backend, config.max_batch_size) == ("net", "onnxruntime", 16)
    assert {i.name: list(i.dims) for i in config.input} == {"x": [2, 4], "length": [1]}
    assert {o.name: list(o.dims) for o in config.output} == {"y": [3, 4]}
    states = config.sequence_batching.state
    assert [(s.input_name, s.output_name) for s in states] == [(s.name, s.after) for s in stream.states]
    assert [numpy_type(s.data_type) for s in states] == [s.dtype for s in stream.states]
    assert config.sequence_batching.oldest.max_candidate_sequences == 256
    assert config.sequence_batching.max_sequence_idle_microseconds == 60_000_000
    assert {p.name for p in tmp_path.iterdir()} == {"models", "stream.json", "frames.py", "client.py"}
    onnx.checker.check_model(onnx.load(folder / "1" / "model.onnx"))


@pytest.mark.parametrize("inside", [False, True])
def test_streams_that_would_show_each_other_are_one_a_call(inside: bool, tmp_path: Path) -> None:
    """Streams folded into another axis: in front of it their rows can be told apart, inside they cannot."""
    source = folded(batch_inside=inside)
    stream, folder = exported(source, tmp_path)
    server, facts = Server(folder), json.loads((tmp_path / "stream.json").read_text())
    assert server.config.max_batch_size == (0 if inside else 16)
    assert [list(s.dims) for s in server.batching.state] == [[1, 2, 3, 2] if inside else [2, 3, 2]]
    assert ("beside each other would show" in (folder / "config.pbtxt").read_text()) is inside
    numbers = iter(range(1, 100))
    is_batch(source, stream, lambda inputs, statics: whole(stepping(server, facts, statics, next(numbers)), inputs, 3))


# ---- the client, on the wire


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    """The part of the protocol that a client of a sequence uses."""

    def __init__(self, server: Server) -> None:
        self.server, self.seen = server, list[tuple[bool, bool]]()

    def ModelInfer(self, asked: Any, context: Any) -> Any:
        kinds = {t.name: numpy_type(t.data_type) for t in self.server.config.input}
        raws = zip(asked.inputs, asked.raw_input_contents, strict=True)
        inputs = {t.name: np.frombuffer(raw, kinds[t.name]).reshape(list(t.shape)) for t, raw in raws}
        flags = [asked.parameters[f"sequence_{f}"].bool_param for f in ("start", "end")]
        self.seen.append((flags[0], flags[1]))
        made = served(self.server, self.server.infer(inputs, asked.parameters["sequence_id"].int64_param, *flags))
        reply = service_pb2.ModelInferResponse(model_name=asked.model_name)
        for tensor in self.server.config.output:
            kind = service_pb2.model__config__pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
            value = np.ascontiguousarray(made[tensor.name])
            reply.outputs.add(name=tensor.name, datatype=kind, shape=value.shape)
            reply.raw_output_contents.append(value.tobytes())
        return reply


@contextmanager
def listening(server: Server) -> Iterator[tuple[str, Service]]:
    service, own = Service(server), grpc.server(futures.ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, own)
    port = own.add_insecure_port("127.0.0.1:0")
    own.start()
    try:
        yield f"127.0.0.1:{port}", service
    finally:
        own.stop(None)


def test_the_client_streams_a_file(tmp_path: Path) -> None:
    _, folder = exported(MODELS["look_ahead"], tmp_path / "out")
    x, wanted = frames(1, 2, 61), run_batch(MODELS["look_ahead"], frames(1, 2, 61))["y"]
    np.save(tmp_path / "x.npy", x)
    assert "pulsify" not in (tmp_path / "out" / "client.py").read_text()
    with listening(Server(folder)) as (url, service):
        command = [sys.executable, "client.py", str(tmp_path / "x.npy"), str(tmp_path / "y.npz"), url]
        done = subprocess.run(command, cwd=tmp_path / "out", capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    close(np.load(tmp_path / "y.npz")["y"], wanted)
    assert [s for s, _ in service.seen].count(True) == 1 and service.seen[0][0]
    assert [e for _, e in service.seen].count(True) == 1 and service.seen[-1][1]


def test_two_clients_are_two_sequences(tmp_path: Path) -> None:
    import tritonclient.grpc as triton

    _, folder = exported(MODELS["conditioned"], tmp_path)
    client, facts = module(tmp_path / "client.py"), json.loads((tmp_path / "stream.json").read_text())
    given = [(frames(1, 2, 30, seed=s), frames(1, 3, 1, seed=s + 5)) for s in (1, 2)]
    with listening(Server(folder)) as (url, _):
        server = triton.InferenceServerClient(url)
        streams = [client.opened(server, facts, {"scale": scale}) for _, scale in given]
        parts: list[list[Array]] = [[], []]
        for at in range(0, 30, 7):
            for stream, (x, _), out in zip(streams, given, parts, strict=True):
                out.append(stream.push({"x": x[..., at : at + 7]})["y"])
        for stream, (x, scale), out in zip(streams, given, parts, strict=True):
            y = np.concatenate([*out, stream.flush()["y"]], 2)
            close(y, run_batch(MODELS["conditioned"], {"x": x, "scale": scale})["y"])
        server.close()


# ---- refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"strategy": "newest"}, "strategy='newest': there are oldest, direct"),
        ({"batch": 0}, "batch=0: expected a whole number from 1 on"),
        ({"batch": "8"}, "batch='8': the target 'triton' takes a whole number there"),
        ({"name": "a/b"}, "name='a/b' is no name for a model"),
        ({"colour": "red"}, r"unknown \['colour'\]: the target 'triton' takes name, strategy, batch, sequences"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(pulsify.InvalidArgument, match=says):
        converted(models.causal()).export(tmp_path / "out", "triton", **options)


def test_what_triton_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pulsify.NotSupported, match="grows with the stream, and Triton has states of one size"):
        converted(zoo("attn_full_causal"), unbounded="grow").export(tmp_path / "out", "triton")
    opening = pulsify.stream(models.mirrored(1), pulse=2, verify=False)
    with pytest.raises(pulsify.InvalidArgument, match=r"'triton' takes one graph.*opening=False"):
        opening.export(tmp_path / "out", "triton")
    assert not (tmp_path / "out").exists()


# ---- ports that are not like others


def through(folder: Path, source: onnx.ModelProto, given: dict[str, Array], strategy: str) -> dict[str, Array]:
    exported(source, folder, strategy=strategy)
    facts = json.loads((folder / "stream.json").read_text())
    return whole(stepping(Server(folder / "models" / "net"), facts, {}, 1), given, 3)


@pytest.mark.parametrize("strategy", ["oldest", "direct"])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint32, np.int64, np.uint64])
def test_states_of_every_type_are_kept(dtype: Any, strategy: str, tmp_path: Path) -> None:
    """A delay of six frames, over all the type has."""
    nodes = [models.node("Pad", "x p", "q"), models.node("Slice", "q s0 s1 s2", "y")]
    fixed = {"p": np.array([0, 6, 0, 0]), "s0": np.array([0]), "s1": np.array([-6]), "s2": np.array([1])}
    source = models.model(nodes, {"x": ["B", "T"]}, ["y"], fixed, dtypes={"x": dtype, "y": dtype})
    rng, bits = np.random.default_rng(0), np.dtype(dtype).itemsize * 8
    x = rng.integers(0, 2, (1, 37)).astype(dtype) if dtype is np.bool_ else rng.bytes(37 * bits // 8)
    x = np.frombuffer(x, dtype).reshape(1, 37) if isinstance(x, bytes) else x
    got = through(tmp_path, source, {"x": x}, strategy)["y"]
    assert got.dtype == x.dtype and np.array_equal(got, run_batch(source, {"x": x})["y"])


@pytest.mark.parametrize("strategy", ["oldest", "direct"])
@pytest.mark.parametrize(
    ("given", "made"), [("READY", "y"), ("x", "READY"), ('a"b', "y\\"), ("x", "y\n2"), ("x", 'y" dims: [3] #')]
)
def test_any_name_is_a_name(given: str, made: str, strategy: str, tmp_path: Path) -> None:
    conv = onnx.helper.make_node("Conv", [given, "w"], [made], name="conv", pads=[2, 2])
    source = models.model([conv], {given: ["B", 1, "T"]}, [made], {"w": models.weights(1, 1, 5)})
    x = {given: frames(1, 1, 21)}
    close(through(tmp_path, source, x, strategy)[made], run_batch(source, x)[made])


def test_a_scalar_has_one_element_and_an_axis(tmp_path: Path) -> None:
    source = models.model([models.node("ReduceSum", "x", "y", keepdims=0)], {"x": [1, 1, "T"]}, ["y"])
    x = {"x": frames(1, 1, 21)}
    got = through(tmp_path, source, x, "oldest")["y"]
    assert got.shape == () and np.allclose(got, run_batch(source, x)["y"], rtol=1e-6)
    assert "dims: []" not in (tmp_path / "models" / "net" / "config.pbtxt").read_text()


def test_what_onnx_runtime_does_not_open_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsify.export import triton as target

    monkeypatch.setattr(target, "write", lambda files, share: [p.write_bytes(b"no model") for p in files])
    with pytest.raises(pulsify.NotSupported, match="ONNX Runtime does not open the step"):
        exported(models.causal("B"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("strategy", ["oldest", "direct"])
def test_a_static_input_that_is_one_for_all_streams_is_one_a_call(strategy: str, tmp_path: Path) -> None:
    """Requests of several sequences each have their own: they cannot be one call."""
    nodes = [models.node("Mul", "x scale", "m"), models.node("Conv", "m w", "y", pads=[1, 1])]
    source = models.model(nodes, {"x": ["B", 2, "T"], "scale": [1, 2, 1]}, ["y"], {"w": models.weights(3, 2, 3)})
    stream, folder = exported(source, tmp_path, strategy=strategy)
    server, facts = Server(folder), json.loads((tmp_path / "stream.json").read_text())
    assert stream.spec.batch == "B" and server.config.max_batch_size == 0
    numbers = iter(range(1, 100))
    is_batch(source, stream, lambda inputs, statics: whole(stepping(server, facts, statics, next(numbers)), inputs, 3))
