"""The file: plain ONNX that says all about itself, the same bytes every time, at home on any runtime."""

# The code shown in the README has no annotations.
# mypy: disable-error-code="no-untyped-call, no-untyped-def, var-annotated"

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import pulsify
from tests import models
from tests.models import close, frames, model, node, run_batch, run_stream, weights
from tests.older import as_older
from tests.zoo import manifest

BUILDERS: dict[str, Any] = {
    "look_ahead": models.look_ahead,
    "look_ahead_free_batch": lambda: models.look_ahead(batch="B"),
    "causal": models.causal,
    "strided": models.strided,
    "two_rates": models.two_rates,
    "conditioned": lambda: models.conditioned(batch="B"),
    "tokens": models.tokens,
    "with_length": lambda: models.with_length(batch="B"),
}
ZOO = ["conv_same_stride", "conv2d_subsample", "conv_causal", "wavenet_causal", "conv_valid"]


@pytest.fixture(params=BUILDERS)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    stream, path = pulsify.stream(BUILDERS[request.param](), pulse=8), tmp_path / "stream.onnx"
    stream.save(path)
    return stream, path


# ---- without pulsify: the lines between the markers are shown in the README


# fmt: off
# README: begin
def stream_with_onnx_runtime(path, x):  # x is the whole input here; live, chunks come one by one
    ort.set_default_logger_severity(3)  # it warns of inputs that have a default, as the length has
    model = ort.InferenceSession(path)
    meta = model.get_modelmeta().custom_metadata_map
    (i,), (o,), states, time = (json.loads(meta[f"pulsify.{k}"]) for k in ("inputs", "outputs", "states", "time"))
    state = {s["name"]: np.zeros(s["start"], s["numpy"]) for s in states}
    opening = json.loads(meta.get("pulsify.opening", '{"pulses": 1}'))  # the first pulses may be a call of their own
    ahead = time.get("phase", 0) * int(i["rate"])  # so many frames of the first pulse stand in front of the stream
    first = ort.InferenceSession(Path(path).with_name(opening["file"])) if "file" in opening else model
    axis, pulse, total = i["axis"], i["dims"][i["axis"]], x.shape[i["axis"]] // int(i["rate"])

    def count(e):  # ["floor_divide", ["add", "S", 3], 4]: how many frames come of a stream of S
        known = not isinstance(e, list) or not isinstance(e[0], str)
        return total if e == "S" else e if known else getattr(np, e[0])(*map(count, e[1:]))

    frames = int(count(o["count"]))
    x = np.pad(x, [(ahead if a == axis else 0, 0) for a in range(x.ndim)])
    pulses = max(-(-(o["delay"] + frames) // max(o["frames"], 1)), -(-x.shape[axis] // pulse))  # until all are out
    pulses = max(pulses, opening["pulses"])
    x = np.pad(x, [(0, pulses * pulse - x.shape[axis] if a == axis else 0) for a in range(x.ndim)])
    end, parts = {time["length"]: np.array([[total]], "i4")} if time["length"] else {}, []
    for n, chunk in enumerate(np.split(x, range(opening["pulses"] * pulse, pulses * pulse, pulse), axis)):
        y, *new = (model if n else first).run(None, {i["name"]: chunk, **state, **end})
        state, parts = dict(zip(state, new)), [*parts, y]
    if o["axis"] is None:  # no frames: known at the end only
        return y
    return np.concatenate(parts, o["axis"]).take(range(o["delay"], o["delay"] + frames), o["axis"])
# README: end
# fmt: on


@pytest.mark.parametrize("total", [1, 7, 8, 40, 41])
@pytest.mark.parametrize("name", ["look_ahead", "look_ahead_free_batch", "causal", "strided"])
def test_plain_onnx_runtime(name: str, total: int, tmp_path: Path) -> None:
    proto, path = BUILDERS[name](), tmp_path / "stream.onnx"
    pulsify.stream(proto, pulse=8).save(path)
    x = frames(1, 2, total)
    close(stream_with_onnx_runtime(path, x), run_batch(proto, x)["y"])


@pytest.mark.parametrize("entry", [e for e in manifest.load() if e.name in ZOO], ids=lambda e: e.name)
def test_plain_onnx_runtime_on_the_zoo(entry: manifest.Entry, tmp_path: Path) -> None:
    source, path = str(entry.fixture("legacy")), tmp_path / "stream.onnx"
    pulsify.stream(source, pulse=16).save(path)
    x = entry.inputs(entry.length - 3)["x"]
    close(stream_with_onnx_runtime(path, x), run_batch(onnx.load(source), x)["y"])


def test_the_end_is_optional(tmp_path: Path) -> None:
    """A steady stream needs no `length`: it has a default."""
    path = tmp_path / "stream.onnx"
    pulsify.stream(models.look_ahead(), pulse=8).save(path)
    session = ort.InferenceSession(path)
    needed = {i.name for i in session.get_inputs()}
    assert "length" not in needed
    assert "length" in {i.name for i in session.get_overridable_initializers()}


# ---- the graph


def test_checker_and_shape_inference(saved: tuple[Any, Path]) -> None:
    onnx.checker.check_model(saved[1], full_check=True)
    onnx.shape_inference.infer_shapes(onnx.load(saved[1]), strict_mode=True, check_type=True, data_prop=True)


def test_states_are_named_and_paired(saved: tuple[Any, Path]) -> None:
    stream, path = saved
    graph = onnx.load(path).graph
    streams, statics = [i.name for i in stream.inputs], [s.name for s in stream.statics]
    states = [i.name for i in graph.input if i.name.startswith("state_")]
    assert [i.name for i in graph.input if i.name != "length"] == [*streams, *statics, *states]
    assert [o.name for o in graph.output] == [*(o.name for o in stream.outputs), *(f"new_{s}" for s in states)]
    for n, (name, state) in enumerate(zip(states, stream.states, strict=True)):
        assert re.fullmatch(rf"state_{n:03d}_\w+", name)
        assert name == state.name
    assert sorted(states) == states


def test_states_have_batch_first(saved: tuple[Any, Path]) -> None:
    stream, path = saved
    graph = onnx.load(path).graph
    batch = stream.spec.batch or 1
    for port in [*graph.input, *graph.output]:
        if "state_" not in port.name:
            continue
        dims = [d.dim_param or d.dim_value for d in port.type.tensor_type.shape.dim]
        assert len(dims) >= 2, port.name
        assert dims[0] == batch, port.name
        assert port.type.tensor_type.elem_type != onnx.TensorProto.INT64, port.name
        if port.name.endswith("position"):
            assert (port.type.tensor_type.elem_type, dims) == (onnx.TensorProto.INT32, [batch, 1])


def test_batch_in_the_middle_comes_first_in_states() -> None:
    """Time first, batch second: the state is transposed."""
    proto = model(
        [
            node("Transpose", "x", "t", perm=[1, 2, 0]),
            node("Conv", "t w", "h", pads=[1, 1]),
            node("Transpose", "h", "y", perm=[2, 0, 1]),
        ],
        {"x": ["T", "B", 2]},
        ["y"],
        {"w": weights(3, 2, 3)},
    )
    stream = pulsify.stream(proto, pulse=4, time="T")
    assert all(s.shape[0] == "B" for s in stream.states)
    x = frames(11, 3, 2)
    session = stream.session(batch=3)
    close(np.concatenate([session.push(x[:5]), session.push(x[5:]), session.flush()]), run_batch(proto, x)["y"])


def test_no_batch_at_all() -> None:
    """A wire of rank 1 gets a state of rank 2."""
    proto = model(
        [node("Unsqueeze", "x a", "u"), node("Conv", "u w", "h", pads=[2, 0]), node("Squeeze", "h a", "y")],
        {"x": ["T"]},
        ["y"],
        {"a": np.array([0, 1]), "w": weights(1, 1, 3)},
    )
    stream = pulsify.stream(proto, pulse=4)
    assert [s.shape for s in stream.states] == [(1, *s.shape[1:]) for s in stream.states if len(s.shape) >= 2]
    x = frames(11)
    close(run_stream(stream.session(), x, [5]), run_batch(proto, x)["y"])


# ---- metadata


def test_metadata(saved: tuple[Any, Path]) -> None:
    stream, path = saved
    props = {p.key: p.value for p in onnx.load(path).metadata_props}
    assert all(k.startswith("pulsify.") for k in props)
    assert props["pulsify.version"] == "4" and len(props["pulsify.checksum"]) == 64
    assert int(props["pulsify.pulse"]) == stream.pulse == 8
    assert int(props["pulsify.granularity"]) == stream.granularity
    inputs, outputs, states = (json.loads(props[f"pulsify.{k}"]) for k in ("inputs", "outputs", "states"))
    assert [(i["name"], i["axis"], i["rate"]) for i in inputs] == [(i.name, i.axis, str(i.rate)) for i in stream.inputs]
    assert [(o["name"], o["axis"], o["delay"]) for o in outputs] == [(o.name, o.axis, o.delay) for o in stream.outputs]
    assert [(s["name"], s["node"], s["nbytes"]) for s in states] == [(s.name, s.node, s.nbytes) for s in stream.states]
    assert json.loads(props["pulsify.time"])["symbol"] == "T"


def test_source_hash(tmp_path: Path) -> None:
    """Of the file's bytes, however it was handed over."""
    data, path = models.causal().SerializeToString(deterministic=True), tmp_path / "model.onnx"
    path.write_bytes(data)
    want = hashlib.sha256(data).hexdigest()
    for source in (path, str(path), data, models.causal()):
        assert pulsify.stream(source, pulse=4).spec.source == want


def test_no_machine_paths(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(models.look_ahead().SerializeToString())
    pulsify.stream(tmp_path / "model.onnx", pulse=8).save(tmp_path / "stream.onnx")
    data = (tmp_path / "stream.onnx").read_bytes()
    for trace in (str(tmp_path), str(Path.home()), os.getcwd(), "site-packages"):
        assert trace.encode() not in data


# ---- saving and loading


def test_loaded_stream_runs_alike(saved: tuple[Any, Path]) -> None:
    stream, path = saved
    again = pulsify.load(path)
    assert again.spec == stream.spec
    assert (again.pulse, again.inputs, again.outputs) == (stream.pulse, stream.inputs, stream.outputs)
    assert (again.states, again.statics) == (stream.states, stream.statics)
    rng = np.random.default_rng(0)
    statics = {s.name: weights(*(d if isinstance(d, int) else 1 for d in s.dims)) for s in stream.statics}
    chunk = {}
    for i in stream.inputs:
        dims = [d if isinstance(d, int) else 1 for d in i.dims]
        dims[i.axis] = 3 * i.frames
        chunk[i.name] = rng.integers(0, 7, dims) if i.dtype.kind == "i" else weights(*dims)
    one, two = stream.session(statics=statics), again.session(statics=statics)
    for a, b in ((one.push(chunk), two.push(chunk)), (one.flush(), two.flush())):
        pairs = [(a[n], b[n]) for n in a] if isinstance(a, dict) else [(a, b)]
        for x, y in pairs:
            np.testing.assert_array_equal(x, y)


def test_what_is_written_for_others_is_not_needed_to_load(saved: tuple[Any, Path]) -> None:
    """Files from before it was written are read too."""
    stream, path = saved

    def without(props: dict[str, str]) -> None:
        for key in ("pulsify.outputs", "pulsify.states"):
            facts = json.loads(props[key])
            props[key] = json.dumps([{k: f[k] for k in f if k not in ("count", "start", "numpy")} for f in facts])
        time = json.loads(props["pulsify.time"])
        props["pulsify.time"] = json.dumps({k: v for k, v in time.items() if k != "exact_up_to"})

    as_older(path, "2", without)
    with pytest.warns(UserWarning, match="has no checksum"):
        assert pulsify.load(path).spec == stream.spec


def test_loaded_stream_saves_alike(saved: tuple[Any, Path], tmp_path: Path) -> None:
    again = pulsify.load(saved[1])
    again.save(tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == saved[1].read_bytes()
    again.save(saved[1])  # onto itself
    assert (tmp_path / "again.onnx").read_bytes() == saved[1].read_bytes()


def test_one_file_only(saved: tuple[Any, Path]) -> None:
    assert [p.name for p in saved[1].parent.iterdir()] == ["stream.onnx"]


CONVERT = """
import sys, pulsify
from tests import models
from tests.test_artefact import BUILDERS
for name, build in BUILDERS.items():
    pulsify.stream(build(), pulse=8, verify=False).save(f"{sys.argv[1]}/{name}.onnx")
"""


def test_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    processes = []
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", CONVERT, str(tmp_path / seed)]
        processes.append(subprocess.Popen(command, cwd=root, env=environment))
    assert [p.wait() for p in processes] == [0, 0]
    for name in BUILDERS:
        assert (tmp_path / "1" / f"{name}.onnx").read_bytes() == (tmp_path / "2" / f"{name}.onnx").read_bytes(), name


# ---- weights outside the model


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """look_ahead, its weights in a file beside it."""
    path = tmp_path / "in" / "model.onnx"
    path.parent.mkdir()
    proto = models.look_ahead()
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_external_weights(external: Path, tmp_path: Path) -> None:
    stream, x = pulsify.stream(external, pulse=8), frames(1, 2, 37)
    want = run_batch(models.look_ahead(), x)["y"]
    close(run_stream(stream.session(), x, [5]), want)
    target = tmp_path / "out" / "stream.onnx"
    target.parent.mkdir()
    stream.save(target)
    assert {p.name for p in target.parent.iterdir()} == {"stream.onnx", "stream.onnx.data"}
    onnx.checker.check_model(target, full_check=True)
    for p in external.parent.iterdir():
        p.unlink()  # the stream stands on its own
    close(run_stream(pulsify.load(target).session(), x, [5]), want)
    close(stream_with_onnx_runtime(target, x), want)


def test_external_weights_are_shared_beside_the_batch_model(external: Path) -> None:
    folder, x = external.parent, frames(1, 2, 37)
    before = (folder / "weights.bin").read_bytes()
    target = folder / "stream.onnx"
    pulsify.stream(external, pulse=8).save(target)
    assert {p.name for p in folder.iterdir()} == {"model.onnx", "weights.bin", "stream.onnx"}
    assert (folder / "weights.bin").read_bytes() == before
    want = run_batch(models.look_ahead(), x)["y"]
    close(run_stream(pulsify.load(target).session(), x, [5]), want)
    close(stream_with_onnx_runtime(target, x), want)
    pulsify.load(target).save(folder / "own.onnx", share=False)
    assert {p.name for p in folder.iterdir()} == {
        "model.onnx",
        "weights.bin",
        "stream.onnx",
        "own.onnx",
        "own.onnx.data",
    }
    (folder / "weights.bin").unlink()
    close(run_stream(pulsify.load(folder / "own.onnx").session(), x, [5]), want)
    with pytest.raises(pulsify.InvalidModel, match=r"shares with its batch model are gone: put back 'weights\.bin'"):
        pulsify.load(target)


def test_shared_weights_that_have_changed(external: Path) -> None:
    """Another export over the same file is no longer what the stream was checked with."""
    target, weights = external.parent / "stream.onnx", external.parent / "weights.bin"
    pulsify.stream(external, pulse=8).save(target)
    weights.write_bytes(bytes(b ^ 1 for b in weights.read_bytes()))
    with pytest.raises(pulsify.InvalidModel, match=r"has changed since.*convert the model again"):
        pulsify.load(target)


def test_external_weights_from_two_folders(external: Path, tmp_path: Path) -> None:
    """What lies below the stream's folder is shared, the rest is written beside it."""
    far = tmp_path / "far" / "model.onnx"
    far.parent.mkdir()
    conv = node("Conv", "y v", "z", pads=[2, 0])
    second = model([conv], {"y": [1, 3, "T"]}, ["z"], {"v": weights(8, 3, 3)})
    onnx.save(
        onnx.ModelProto.FromString(second.SerializeToString()),
        far,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    x, target = frames(1, 2, 37), external.parent / "stream.onnx"
    pulsify.stream(pulsify.chain(external, far), pulse=8).save(target)
    far.with_name("weights.bin").unlink()
    assert {p.name for p in target.parent.iterdir()} == {"model.onnx", "weights.bin", "stream.onnx", "stream.onnx.data"}
    assert target.with_name("stream.onnx.data").stat().st_size == weights(8, 3, 3).nbytes
    want = run_batch(second, run_batch(models.look_ahead(), x)["y"])["z"]
    close(run_stream(pulsify.load(target).session(), x, [5]), want)
    close(stream_with_onnx_runtime(target, x), want)


def test_external_weights_are_not_read_to_convert(external: Path) -> None:
    """Their values do not matter to the conversion: without them, only verifying fails."""
    (external.parent / "weights.bin").unlink()
    stream = pulsify.stream(external, pulse=8, verify=False)
    kept = [v.const_value for v in stream.model.graph.initializers.values()]
    assert sum(isinstance(t, ir.ExternalTensor) for t in kept) == 2


def test_loaded_external_stream_saves_onto_itself(external: Path, tmp_path: Path) -> None:
    target, x = tmp_path / "stream.onnx", frames(1, 2, 37)
    pulsify.stream(external, pulse=8).save(target)
    pulsify.load(target).save(target)
    close(run_stream(pulsify.load(target).session(), x, [5]), run_batch(models.look_ahead(), x)["y"])


# ---- what is no stream


def test_load_refuses_what_is_no_stream(tmp_path: Path) -> None:
    batch = tmp_path / "batch.onnx"
    onnx.save(models.causal(), batch)
    with pytest.raises(pulsify.InvalidModel, match=r"not a streaming model.*pulsify stream"):
        pulsify.load(batch)
    with pytest.raises(pulsify.InvalidModel, match="no such file"):
        pulsify.load(tmp_path / "nothing.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"not a model at all")
    with pytest.raises(pulsify.InvalidModel, match="not a readable"):
        pulsify.load(tmp_path / "broken.onnx")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("version", "99", "format 99.*convert the model again"),
        ("inputs", "[{}]", "damaged"),
        ("states", "{", "damaged"),
        ("time", "null", "damaged"),
        ("pulse", "many", "damaged"),
    ],
)
def test_load_refuses_damaged_metadata(tmp_path: Path, key: str, value: str, says: str) -> None:
    path = tmp_path / "stream.onnx"
    pulsify.stream(models.causal(), pulse=8, verify=False).save(path)
    version = value if key == "version" else "1"
    as_older(path, version, lambda props: {**props, f"pulsify.{key}": value})
    with pytest.raises(pulsify.InvalidModel, match=f"'stream.onnx'.*{says}"):
        pulsify.load(path)
