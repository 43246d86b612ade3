"""A saved stream that was changed in any way: `load` raises InvalidModel, or it is bit for bit what it was."""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from click.testing import CliRunner

import pulsify
from pulsify.cli.main import main
from pulsify.core import weights
from tests import models
from tests.models import Array, close, frames, run_batch
from tests.older import as_older, rewritten

LENGTH, PULSE = 21, 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Streams of every kind of file: embedded weights, external weights, an opening, both, and another opening."""
    folder = tmp_path_factory.mktemp("saved")
    pulsify.stream(models.look_ahead(), pulse=PULSE, verify=False).save(folder / "plain.onnx")
    pulsify.stream(models.mirrored(), pulse=PULSE, verify=False).save(folder / "opens.onnx")
    pulsify.stream(models.mirrored(), pulse=2, verify=False).save(folder / "other.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "IN_MEMORY", 0)
        for name, opening in (("apart", False), ("both", True)):
            wide = pulsify.stream(models.mirrored(channels=70), pulse=PULSE, verify=False, opening=opening)
            wide.save(folder / f"{name}.onnx")
    return folder


STREAMS = ("plain", "opens", "apart", "both")


def parts(folder: Path, name: str) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.name.startswith(f"{name}."))


def outcome(path: Path) -> list[Array]:
    """What the stream gives, and what it says of itself, after a load that reads everything."""
    stream = pulsify.load(path, check="full")
    got = stream.run(frames(1, 2, LENGTH), chunks=5, portable=True)
    values = list(got.values()) if isinstance(got, dict) else [got]
    return [*values, np.frombuffer(repr((stream.spec, stream.opening and stream.opening.spec)).encode(), np.uint8)]


# ---- single edits


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def insert(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data) + 1)
    data[place:place] = rng.randbytes(rng.randrange(1, 9))


def delete(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    del data[place : place + rng.randrange(1, 9)]


def swap(data: bytearray, rng: random.Random) -> None:
    a, b, size = rng.randrange(len(data)), rng.randrange(len(data)), rng.randrange(1, 17)
    one, other = data[a : a + size], data[b : b + size]
    data[a : a + size], data[b : b + size] = other, one


BYTES = (flip, cut, insert, delete, swap)


def edited_number(value: Any, rng: random.Random) -> Any:
    """JSON with one of its numbers, names or lists changed."""
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        return {**value, key: edited_number(value[key], rng)}
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        return [
            *value[:place],
            *([] if rng.random() < 0.2 else [edited_number(value[place], rng)]),
            *value[place + 1 :],
        ]
    if isinstance(value, bool) or value is None:
        return not value
    return value + rng.choice([-1, 1, 100]) if isinstance(value, (int, float)) else f"{value}x"


def edited_metadata(path: Path, rng: random.Random) -> None:
    def change(props: dict[str, str]) -> dict[str, str]:
        key, other = rng.choice(sorted(props)), rng.choice(sorted(props))
        match rng.randrange(5):
            case 0:
                del props[key]
            case 1:
                props[key], props[other] = props[other], props[key]
            case 2:
                props["pulsify.version"] = rng.choice("123459")
            case 3:
                props["pulsify.version"] = rng.choice("123")
                props.pop("pulsify.checksum", None)
            case _:
                try:
                    props[key] = json.dumps(edited_number(json.loads(props[key]), rng))
                except ValueError:
                    props[key] += "0"
        return props

    rewritten(path, change)


def edited_graph(path: Path, rng: random.Random) -> None:
    """A field of the protobuf message: a node, an attribute, a port or a weight."""
    proto = onnx.load(path, load_external_data=False)
    graph = proto.graph
    match rng.randrange(6):
        case 0:
            del graph.node[rng.randrange(len(graph.node))]
        case 1:
            node = rng.choice(list(graph.node))
            node.op_type = rng.choice(["Relu", "Add", "Sub", "Identity", "Nothing"])
        case 2:
            node = rng.choice([n for n in graph.node if n.input])
            node.input[rng.randrange(len(node.input))] = rng.choice(list(graph.input)).name
        case 3:
            tensor = rng.choice(list(graph.initializer))
            if tensor.raw_data:
                data = bytearray(tensor.raw_data)
                flip(data, rng)
                tensor.raw_data = bytes(data)
            elif tensor.external_data:
                tensor.external_data[rng.randrange(len(tensor.external_data))].value = rng.choice(["0", "4", "x"])
        case 4:
            del graph.initializer[rng.randrange(len(graph.initializer))]
        case _:
            port = rng.choice([*graph.input, *graph.output])
            port.type.tensor_type.shape.dim[-1].dim_value = rng.randrange(9)
    onnx.save(proto, path)


def mutate(folder: Path, name: str, rng: random.Random) -> None:
    """One change to one of the stream's files."""
    file = rng.choice(parts(folder, name))
    kind = rng.randrange(10)
    if kind == 0 and len(parts(folder, name)) > 1:
        a, b = rng.sample(parts(folder, name), 2)
        if rng.random() < 0.5 and b.name != f"{name}.onnx":  # in place of the stream it would be another good one
            shutil.copy(a, b)
        else:
            b.unlink()
    elif kind == 1 and (folder / f"{name}.opening.onnx").is_file():
        shutil.copy(folder / "other.opening.onnx", folder / f"{name}.opening.onnx")
    elif kind in (2, 3) and file.suffix == ".onnx":
        edited_metadata(file, rng)
    elif kind == 4 and file.suffix == ".onnx":
        edited_graph(file, rng)
    else:
        data = bytearray(file.read_bytes())
        rng.choice(BYTES)(data, rng)
        file.write_bytes(data)


def mutated(files: Path, folder: Path, seeds: range) -> tuple[int, int]:
    """How many changed streams were rejected, and how many are bit for bit what they were; anything else fails."""
    wanted = {name: outcome(files / f"{name}.onnx") for name in STREAMS}
    rejected = same = 0
    for seed in seeds:
        rng = random.Random(seed)
        name = STREAMS[seed % len(STREAMS)]
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(files, folder)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            try:
                mutate(folder, name, rng)
            except Exception:  # nothing left to edit in a file that is damaged already
                continue
        try:
            got = outcome(folder / f"{name}.onnx")
        except pulsify.InvalidModel as error:
            rejected += name in str(error)
        else:
            assert len(got) == len(wanted[name]), seed
            for a, b in zip(got, wanted[name], strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}")
            same += 1
    return rejected, same


def test_hundreds_of_changed_files(files: Path, tmp_path: Path) -> None:
    rejected, same = mutated(files, tmp_path / "changed", range(400))
    assert rejected > 350 and rejected + same == 400


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_changed_files(files: Path, tmp_path: Path, part: int) -> None:
    rejected, _ = mutated(files, tmp_path / "changed", range(1000 + 1000 * part, 2000 + 1000 * part))
    assert rejected > 900


# ---- each kind of file


def test_every_byte_counts(files: Path, tmp_path: Path) -> None:
    """A bit of every byte of a file, its checksum among them."""
    data, path = (files / "plain.onnx").read_bytes(), tmp_path / "plain.onnx"
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with pytest.raises(pulsify.InvalidModel, match=r"'plain\.onnx'"):
            pulsify.load(path)


def test_a_weight_of_the_opening_counts(files: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(files, tmp_path / "changed")
    proto = onnx.load(folder / "opens.opening.onnx")
    weight = next(t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) + 1, weight.name))
    onnx.save(proto, folder / "opens.opening.onnx")
    with pytest.raises(pulsify.InvalidModel, match=r"'opens\.opening\.onnx' is not as pulsify wrote it"):
        pulsify.load(folder / "opens.onnx")


def test_an_opening_of_the_same_model_in_other_weights_is_another_one(tmp_path: Path) -> None:
    """Its ports, states and source fit: only the checksum tells."""
    stream = pulsify.stream(models.mirrored(), pulse=PULSE, verify=False)
    stream.save(tmp_path / "a.onnx")
    assert stream.opening is not None
    weights = stream.opening.model.graph.initializers.values()
    value = next(v for v in weights if v.dtype == ir.DataType.FLOAT and v.const_value is not None)
    assert value.const_value is not None
    value.const_value = ir.tensor(value.const_value.numpy() + 1, name=value.name)
    stream.save(tmp_path / "b.onnx")
    pulsify.load(tmp_path / "b.onnx")
    shutil.copy(tmp_path / "b.opening.onnx", tmp_path / "a.opening.onnx")
    with pytest.raises(pulsify.InvalidModel, match=r"'a\.opening\.onnx' is not the opening of 'a\.onnx'"):
        pulsify.load(tmp_path / "a.onnx")


@pytest.mark.parametrize("name", ["plain", "both"])
def test_files_that_moved_or_were_written_alike_are_the_same(files: Path, tmp_path: Path, name: str) -> None:
    wanted = outcome(files / f"{name}.onnx")
    for file in parts(files, name):
        if file.suffix == ".onnx":
            onnx.save(onnx.load(file, load_external_data=False), tmp_path / file.name)
        else:
            shutil.copy(file, tmp_path / file.name)
    for a, b in zip(outcome(tmp_path / f"{name}.onnx"), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    (tmp_path / f"{name}.onnx").rename(tmp_path / "renamed.onnx")
    pulsify.load(tmp_path / "renamed.onnx", check="full")


# ---- other tools


def optimised(path: Path, level: Any = ort.GraphOptimizationLevel.ORT_ENABLE_ALL) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = os.fspath(path)
    options.log_severity_level = 4
    ort.InferenceSession(os.fspath(path), options)


def stamped(path: Path) -> None:
    proto = onnx.load(path)
    proto.metadata_props.add(key="author", value="somebody")
    onnx.save(proto, path)


def stripped(path: Path) -> None:
    rewritten(path, lambda props: {k: v for k, v in props.items() if k != "pulsify.checksum"})


@pytest.mark.parametrize("tool", [optimised, stamped, stripped])
def test_a_file_that_another_tool_wrote_is_rejected_with_what_to_do(
    files: Path, tmp_path: Path, tool: Callable[[Path], None]
) -> None:
    path = tmp_path / "plain.onnx"
    shutil.copy(files / "plain.onnx", path)
    tool(path)
    with pytest.raises(pulsify.InvalidModel, match=r"changed by another tool.*batch model and convert that.*fp16=True"):
        pulsify.load(path)
    ort.InferenceSession(path)  # it still runs elsewhere


def test_what_the_error_recommends_works(tmp_path: Path) -> None:
    """Half precision, and a tool applied to the batch model."""
    stream = pulsify.stream(models.look_ahead(), pulse=PULSE)
    stream.export(tmp_path / "half.onnx", fp16=True)
    x = frames(1, 2, LENGTH)
    want = run_batch(models.look_ahead(), x)["y"]
    assert np.allclose(pulsify.load(tmp_path / "half.onnx").run(x), want, atol=2e-2)
    onnx.save(models.look_ahead(), tmp_path / "batch.onnx")
    optimised(tmp_path / "batch.onnx", ort.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    pulsify.stream(tmp_path / "batch.onnx", pulse=PULSE).save(tmp_path / "s.onnx")
    close(pulsify.load(tmp_path / "s.onnx").run(x), want)


# ---- weights of their own


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stream whose weights are too large to be read by default."""
    monkeypatch.setattr(weights, "READ", 0)
    monkeypatch.setattr(weights, "SAMPLE", 16)
    pulsify.stream(models.mirrored(channels=40_000), pulse=2, verify=False).save(tmp_path / "s.onnx")
    return tmp_path / "s.onnx"


def test_large_weights_are_sampled_or_read(large: Path) -> None:
    file = large.with_name("s.onnx.data")
    data = bytearray(file.read_bytes())
    pulsify.load(large, check="full")
    middle = (len(data) - 16) // 63 * 31 + 1000  # between two samples
    file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    pulsify.load(large)
    with pytest.raises(
        pulsify.InvalidModel, match=r"'s\.onnx\.data', the weights of 's(\.opening)?\.onnx', has changed"
    ):
        pulsify.load(large, check="full")
    file.write_bytes(data[:-4])
    with pytest.raises(pulsify.InvalidModel, match="has changed"):
        pulsify.load(large)
    file.unlink()
    with pytest.raises(pulsify.InvalidModel, match=r"weights of this stream are gone: put back 's\.onnx\.data'"):
        pulsify.load(large)


def test_weights_that_change_after_the_load_are_noticed(files: Path, tmp_path: Path) -> None:
    for name in ("plain", "apart"):
        folder = shutil.copytree(files, tmp_path / name)
        stream = pulsify.load(folder / f"{name}.onnx")
        for file in parts(folder, name):
            file.write_bytes(b"x" * 10)
        if name == "plain":  # all of it is in memory
            assert np.array_equal(stream.run(frames(1, 2, LENGTH), portable=True), outcome(files / "plain.onnx")[0])
        else:
            with pytest.raises(pulsify.InvalidModel, match=r"'apart\.onnx\.data'.*changed since the stream was loaded"):
                stream.session()


def test_an_unknown_check_is_said_to_be(files: Path) -> None:
    with pytest.raises(pulsify.InvalidArgument, match="'quick' or 'full'"):
        pulsify.load(files / "plain.onnx", check="none")


# ---- files of earlier versions


@pytest.mark.parametrize("name", STREAMS)
def test_files_of_earlier_versions_load_with_a_warning(files: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(files, tmp_path / "older")
    for file in parts(folder, name):
        if file.suffix == ".onnx":
            as_older(file, change=lambda props: {**props, "pulsify.weights": "{}"})
    with pytest.warns(UserWarning, match=r"earlier version of pulsify and has no checksum") as seen:
        stream = pulsify.load(folder / f"{name}.onnx")
    assert seen[0].filename == __file__
    x = frames(1, 2, LENGTH)
    assert np.array_equal(stream.run(x), pulsify.load(files / f"{name}.onnx").run(x))


def edits() -> dict[str, Callable[[dict[str, str]], None]]:
    def changed(key: str, change: Callable[[Any], Any]) -> Callable[[dict[str, str]], None]:
        def edit(props: dict[str, str]) -> None:
            value = json.loads(props[f"pulsify.{key}"])
            props[f"pulsify.{key}"] = json.dumps(change(value))

        return edit

    return {
        "no outputs": changed("outputs", lambda _: []),
        "another output": changed("outputs", lambda o: [{**o[0], "name": "z"}]),
        "delay below 0": changed("outputs", lambda o: [{**o[0], "delay": -1}]),
        "other frames": changed("outputs", lambda o: [{**o[0], "frames": 3}]),
        "other axis": changed("inputs", lambda i: [{**i[0], "axis": 7}]),
        "other sizes": changed("inputs", lambda i: [{**i[0], "dims": [1, 3, 4]}]),
        "other type": changed("states", lambda s: [{**s[0], "dtype": "DOUBLE"}, *s[1:]]),
        "other state": changed("states", lambda s: [{**s[0], "name": "s"}, *s[1:]]),
        "fewer states": changed("states", lambda s: s[1:]),
        "text for a number": changed("time", lambda t: {**t, "step": "many"}),
        "no pulse": lambda props: props.update({"pulsify.pulse": "0"}),
        "no list": changed("outputs", lambda _: 7),
    }


@pytest.mark.parametrize("edit", edits())
def test_metadata_of_an_earlier_version_that_contradict_the_graph(files: Path, tmp_path: Path, edit: str) -> None:
    path = tmp_path / "plain.onnx"
    shutil.copy(files / "plain.onnx", path)
    as_older(path, change=edits()[edit])
    with pytest.raises(pulsify.InvalidModel, match=r"'plain\.onnx'"):
        pulsify.load(path)


def test_a_graph_of_an_earlier_version_that_cannot_run(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "plain.onnx"
    shutil.copy(files / "plain.onnx", path)
    as_older(path)
    proto = onnx.load(path)
    proto.graph.node[0].op_type = "Nothing"
    onnx.save(proto, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stream = pulsify.load(path)
    with pytest.raises(pulsify.InvalidModel, match=r"'plain\.onnx' cannot be run, it may be damaged"):
        stream.session(portable=True)


# ---- on the command line


@pytest.mark.parametrize("command", ["run", "verify", "inspect", "export"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "no version", "no opening"])
def test_commands_end_with_a_message(files: Path, tmp_path: Path, command: str, damage: str) -> None:
    folder = shutil.copytree(files, tmp_path / "changed")
    path = folder / "opens.onnx"
    data = path.read_bytes()
    if damage == "flipped":
        path.write_bytes(data[:400] + bytes([data[400] ^ 1]) + data[401:])
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "no version":
        rewritten(path, lambda props: {k: v for k, v in props.items() if k != "pulsify.version"})
    else:
        (folder / "opens.opening.onnx").unlink()
    onnx.save(models.mirrored(), folder / "batch.onnx")
    np.save(folder / "x.npy", frames(1, 2, LENGTH))
    arguments = {
        "run": ["run", str(path), str(folder / "x.npy")],
        "verify": ["verify", str(folder / "batch.onnx"), str(path)],
        "inspect": ["inspect", str(path)],
        "export": ["export", str(path), "--to", "c", "-o", str(folder / "c")],
    }[command]
    done = CliRunner().invoke(main, [*arguments, "--json"])
    assert done.exit_code == 5, done.output
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "InvalidModel" and "opens" in error["reason"]
    assert "Traceback" not in done.stderr
