"""Streams run by OpenVINO: its own variables, its own client, and the batch model to the last frame."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import pulsify
from pulsify.core.spec import Spec
from tests import models
from tests.models import frames, model, node, run_batch, weights
from tests.unit.export.running import converted, is_batch, module, zoo, zoo_cases
from tests.unit.specs import a_stream
from tests.zoo.manifest import Exporter

ov = pytest.importorskip("openvino", reason="openvino is not installed")

from pulsify.export import openvino as target  # noqa: E402

MODELS = {
    "look_ahead": models.look_ahead("B"), "causal": models.causal("B"), "with_length": models.with_length("B"),
    "two_rates": models.two_rates(), "conditioned": models.conditioned("B"), "tokens": models.tokens(),
    "strided": models.strided(), "valid": models.valid(), "mirrored": models.mirrored(1),
    "mirrored_lstm": models.mirrored_lstm("B"),
}  # fmt: skip


def runner(folder: Path, chunk: int = 3) -> Any:
    """All of a stream, by the files of the export alone."""
    client, facts = module(folder / "client.py"), json.loads((folder / "stream.json").read_text())
    compiled = ov.Core().compile_model(folder / "stream.xml", "CPU", facts["compile"])
    return lambda inputs, statics: client.whole(client.opened(compiled, facts, statics), inputs, chunk)


@pytest.mark.parametrize("source", [pytest.param(m, id=n) for n, m in MODELS.items()])
def test_it_is_the_batch_model(source: onnx.ModelProto, tmp_path: Path) -> None:
    stream = converted(source)
    pulsify.export(stream, "openvino", tmp_path / "out")
    is_batch(source, stream, runner(tmp_path / "out"))


@pytest.mark.parametrize(("name", "exporter"), zoo_cases())
def test_the_zoo_is_the_batch_model(name: str, exporter: Exporter, tmp_path: Path) -> None:
    stream = converted(zoo(name, exporter))
    stream.export(tmp_path / "out", "openvino")
    is_batch(zoo(name, exporter), stream, runner(tmp_path / "out"))


def test_states_are_variables_of_the_model(tmp_path: Path) -> None:
    stream = converted(models.look_ahead("B"))
    stream.export(tmp_path / "out", "openvino")
    made = ov.Core().read_model(tmp_path / "out" / "stream.xml")
    assert {p.any_name for p in made.inputs} == {"x", "length"} and len(made.outputs) == 1
    assert {s.get_attributes()["variable_id"] for s in made.get_sinks()} == {s.name + s.after for s in stream.states}
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "stream.xml", "stream.bin", "stream.json", "frames.py", "client.py"
    }  # fmt: skip


def test_requests_of_one_compiled_model_are_streams_of_their_own(tmp_path: Path) -> None:
    source = models.look_ahead("B")
    converted(source).export(tmp_path / "out", "openvino")
    client, facts = module(tmp_path / "out" / "client.py"), json.loads((tmp_path / "out" / "stream.json").read_text())
    compiled = ov.Core().compile_model(tmp_path / "out" / "stream.xml", "CPU", facts["compile"])
    given = [frames(1, 2, 23, seed=s) for s in (1, 2)]
    both = [client.opened(compiled, facts, {}) for _ in given]
    parts: list[list[Any]] = [[], []]
    for at in range(0, 23, 5):
        for stream, x, out in zip(both, given, parts, strict=True):
            out.append(stream.push({"x": x[..., at : at + 5]})["y"])
    for stream, x, out in zip(both, given, parts, strict=True):
        y = np.concatenate([*out, stream.flush()["y"]], 2)
        np.testing.assert_allclose(y, run_batch(source, x)["y"], rtol=0, atol=1e-4 * np.abs(y).max())


def test_the_client_streams_a_file_without_pulsify(tmp_path: Path) -> None:
    folder, x = tmp_path / "out", frames(1, 2, 1234)
    converted(models.look_ahead("B")).export(folder, "openvino")
    np.save(tmp_path / "x.npy", x)
    assert "pulsify" not in "".join((folder / f).read_text() for f in ("client.py", "frames.py", "stream.json"))
    command = [sys.executable, "client.py", str(tmp_path / "x.npy"), str(tmp_path / "y.npz")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    wanted = run_batch(models.look_ahead("B"), x)["y"]
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


def test_the_client_turns_down_what_the_stream_turns_down(tmp_path: Path) -> None:
    converted(models.valid()).export(tmp_path / "out", "openvino")
    run = runner(tmp_path / "out")
    with pytest.raises(ValueError, match="3 frames are no length this model takes: at least 5"):
        run({"x": frames(1, 2, 3)}, {})
    with pytest.raises(ValueError, match="but for time, axis 2"):
        run({"x": frames(1, 3, 9)}, {})


def test_a_cache_that_grows_is_refused_by_name(tmp_path: Path) -> None:
    stream = converted(zoo("attn_full_causal"), unbounded="grow")
    with pytest.raises(pulsify.NotSupported, match=r"grows with the stream, and OpenVINO has states of one size") as no:
        stream.export(tmp_path / "out", "openvino")
    assert "unbounded=N" in no.value.hint and no.value.node and not (tmp_path / "out").exists()


def test_an_opening_is_refused_with_the_way_out(tmp_path: Path) -> None:
    stream = pulsify.stream(models.mirrored(1), pulse=2, verify=False)
    assert stream.opening is not None
    with pytest.raises(pulsify.InvalidArgument, match=r"'openvino' takes one graph.*opening=False"):
        stream.export(tmp_path / "out", "openvino")


def test_settings_are_those_it_was_found_right_with(tmp_path: Path) -> None:
    """OpenVINO 2026.4 fuses this attention wrongly: whatever it is compiled with, the result is the stream's."""
    stream = converted(zoo("attn_block_diag"))
    stream.export(tmp_path / "out", "openvino")
    assert json.loads((tmp_path / "out" / "stream.json").read_text())["compile"] in target.SETTINGS


def test_what_computes_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, right = converted(models.causal("B")), target.stateful

    def other(model: ir.Model, spec: Spec) -> Any:
        weight = model.graph.initializers["w"]
        kept = weight.const_value
        assert kept is not None
        weight.const_value = ir.tensor(kept.numpy() * 1.01)
        try:
            return right(model, spec)
        finally:
            weight.const_value = kept

    monkeypatch.setattr(target, "stateful", other)
    with pytest.raises(pulsify.NotSupported, match=r"'y' of a stream of .* is off by 1.0e-02 .* nothing was written"):
        stream.export(tmp_path / "out", "openvino")
    assert not (tmp_path / "out").exists()


# ---- numbers that OpenVINO has not exactly


def padded() -> onnx.ModelProto:
    """Both ends matter, and the position in between does not."""
    nodes = [node("Conv", "x v", "h", pads=[1, 1]), node("Tanh", "h", "t"), node("Conv", "t w", "y", pads=[2, 2])]
    return model(nodes, {"x": [1, 1, "T"]}, ["y"], {"v": weights(1, 1, 3), "w": weights(1, 1, 5)})


@pytest.mark.parametrize("length", [63, 64, 65, 500, 501, 502, 503])
def test_positions_are_set_back_before_float32_mistakes_them(length: int, tmp_path: Path) -> None:
    """From 2^24 on it would take a frame for its neighbour; here as if from 64 on."""
    converted(padded()).export(tmp_path / "out", "openvino")
    facts = json.loads((tmp_path / "out" / "stream.json").read_text())
    assert facts["counter"]["from"] == 1 << 22 and facts["most"] == (1 << 29) - 4
    facts["counter"]["from"] = 64
    client, x = module(tmp_path / "out" / "client.py"), frames(1, 1, length)
    compiled = ov.Core().compile_model(tmp_path / "out" / "stream.xml", "CPU", facts["compile"])
    y = client.whole(client.opened(compiled, facts, {}), {"x": x}, chunk=7)["y"]
    np.testing.assert_allclose(y, run_batch(padded(), x)["y"], rtol=0, atol=1e-5)


def test_a_position_that_must_not_be_set_back_ends_the_stream() -> None:
    absolute = a_stream(pulse=4, position="p", rebase=0)
    assert (
        target.limited({"inputs": [], "outputs": [], "statics": {}, "most": 1 << 29}, absolute)["most"] <= (1 << 24) - 4
    )
    free = a_stream(pulse=4, position=None, length=None)
    assert target.limited({"inputs": [], "outputs": [], "statics": {}, "most": 1 << 29}, free)["most"] == 1 << 29


@pytest.mark.slow
def test_a_stream_beyond_what_float32_counts_is_the_batch_model(tmp_path: Path) -> None:
    converted(padded(), 4096).export(tmp_path / "out", "openvino")
    x = frames(1, 1, (1 << 24) + 5)
    y = runner(tmp_path / "out", 4096)({"x": x}, {})["y"]
    np.testing.assert_allclose(y, run_batch(padded(), x)["y"], rtol=0, atol=1e-5)


def arithmetic(op: str, dtype: Any, constant: int) -> onnx.ModelProto:
    kinds = {"x": dtype, "y": np.bool_ if op in ("Equal", "Less") else dtype}
    return model([node(op, "x k", "y")], {"x": [1, "T"]}, ["y"], {"k": np.array([constant], dtype)}, dtypes=kinds)


@pytest.mark.parametrize(
    ("op", "dtype", "constant"),
    [
        ("Mul", np.int64, 3), ("Mod", np.int64, 7), ("Div", np.int64, 7), ("Equal", np.int64, (1 << 25) + 1),
        ("Less", np.int64, (1 << 25) + 1), ("Add", np.uint8, 200), ("Sub", np.int8, 100),
    ],
)  # fmt: skip
def test_whole_numbers_that_it_computes_narrower_are_refused(
    op: str, dtype: Any, constant: int, tmp_path: Path
) -> None:
    with pytest.raises(pulsify.NotSupported, match="OpenVINO computes otherwise: 'y'"):
        converted(arithmetic(op, dtype, constant)).export(tmp_path / "out", "openvino")
    assert not (tmp_path / "out").exists()


def test_sums_of_whole_numbers_are_refused_where_32_bits_do_not_hold_them(tmp_path: Path) -> None:
    axis = {"a": np.array(1)}
    for dtype, refused in ((np.int64, True), (np.int32, False)):  # 32 bits run over the same way everywhere
        nodes = [node("CumSum", "x a", "c"), node("Identity", "c", "y")]
        stream = converted(model(nodes, {"x": [1, "T"]}, ["y"], axis, dtypes={"x": dtype, "y": dtype}))
        if refused:
            with pytest.raises(pulsify.NotSupported, match="OpenVINO computes otherwise"):
                stream.export(tmp_path / "out", "openvino")
        else:
            stream.export(tmp_path / "out", "openvino")


def test_the_client_turns_down_whole_numbers_that_are_cut(tmp_path: Path) -> None:
    source = arithmetic("Add", np.int64, 5)
    converted(source).export(tmp_path / "out", "openvino")
    run, most = runner(tmp_path / "out"), 1 << 30
    x = np.array([[most, -most, 3, 2, 1]])
    np.testing.assert_array_equal(run({"x": x}, {})["y"], run_batch(source, {"x": x})["y"])
    with pytest.raises(ValueError, match=f"x has a whole number beyond {most}: this model takes -{most} to {most}"):
        run({"x": np.array([[most + 1]])}, {})


def test_the_client_turns_down_what_has_come_to_a_number_that_is_cut(tmp_path: Path) -> None:
    cast = node("Cast", "x", "y", to=onnx.TensorProto.INT64)
    source = model([cast], {"x": [1, "T"]}, ["y"], dtypes={"y": np.int64})
    converted(source).export(tmp_path / "out", "openvino")
    run, x = runner(tmp_path / "out"), np.array([[1.5, -7e8, 2e9]], np.float32)
    np.testing.assert_array_equal(run({"x": x}, {})["y"], run_batch(source, x)["y"])
    for sign in (1, -1):
        with pytest.raises(ValueError, match="y has come to a whole number beyond 2147483646"):
            run({"x": sign * np.array([[1.0, 3e9]], np.float32)}, {})


def test_indices_are_still_taken(tmp_path: Path) -> None:
    """Numbers that are no place in the table fail in the model itself: it is tried with such that are."""
    converted(models.tokens()).export(tmp_path / "out", "openvino")
    assert (tmp_path / "out" / "stream.xml").exists()


def test_doubles_are_held_to_what_computes_them(tmp_path: Path) -> None:
    """Float32 that is handed on as double is as exact as float32; what double computes is more exact than that."""
    double = {"y": np.float64}
    handed = [node("Conv", "x w", "c", pads=[1, 1]), node("Cast", "c", "y", to=onnx.TensorProto.DOUBLE)]
    converted(model(handed, {"x": [1, 2, "T"]}, ["y"], {"w": weights(3, 2, 3)}, dtypes=double)).export(
        tmp_path / "out", "openvino"
    )
    nodes = [node("Mul", "x third", "y")]
    source = model(nodes, {"x": [1, "T"]}, ["y"], {"third": np.array([1 / 3])}, dtypes={"x": np.float64, **double})
    with pytest.raises(pulsify.NotSupported, match="OpenVINO computes otherwise"):
        converted(source).export(tmp_path / "other", "openvino")


def test_sums_in_double_are_tried_for_long_and_no_longer(tmp_path: Path) -> None:
    to, back = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT
    nodes = [node("Cast", "x", "d", to=to), node("CumSum", "d a", "c")]
    nodes += [node("Sin", "c", "s"), node("Cast", "s", "y", to=back)]
    with pytest.raises(pulsify.NotSupported, match=r"'y' of a stream of 32768 frames"):
        converted(model(nodes, {"x": [1, "T"]}, ["y"], {"a": np.array(1)})).export(tmp_path / "out", "openvino")
    mean = model([node("ReduceMean", "x", "y", axes=[2], keepdims=0)], {"x": [1, 2, "T"]}, ["y"])
    converted(mean).export(tmp_path / "out", "openvino")
    assert json.loads((tmp_path / "out" / "stream.json").read_text())["most"] == target.LONG * 4


def test_an_output_with_other_axes_is_refused(tmp_path: Path) -> None:
    source = model([node("ReduceLogSumExp", "x", "y", axes=[2], keepdims=0)], {"x": [1, "T", 3]}, ["y"])
    with pytest.raises(pulsify.NotSupported, match=r"OpenVINO gives 'y' as .*, where the stream gives \[1, 4\]"):
        converted(source).export(tmp_path / "out", "openvino")


# ---- the command


def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    converted(models.look_ahead("B")).export(folder, "openvino")
    np.save(tmp_path / "flat.npy", frames(7))
    np.savez(tmp_path / "named.npz", z=frames(1, 2, 9))
    (tmp_path / "sound.wav").write_bytes(b"RIFF....WAVE")
    says = {
        "flat.npy": "error: x is [1, 2, 4] but for time, axis 2; got [7]", "named.npz": "['x'] is missing",
        "sound.wav": "is no .npy or .npz file", "none.npy": "No such file",
        "": "usage: python client.py IN.npy OUT.npz",
    }  # fmt: skip
    for name, wanted in says.items():
        given = [str(tmp_path / name), str(tmp_path / "y.npz")] if name else []
        done = subprocess.run(
            [sys.executable, "client.py", *given], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 1 and wanted in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceLogSum", "ReduceLogSumExp"])
def test_axes_that_openvino_does_not_read_are_refused(op: str, tmp_path: Path) -> None:
    """It sums over all axes where they are an attribute of these, and gives one frame instead of a pulse's."""
    source = models.model(
        [models.node("Exp", "x", "e"), models.node(op, "e", "y", axes=[1])], {"x": [1, 2, "T"]}, ["y"], {}
    )
    with pytest.raises(pulsify.NotSupported, match=r"gives 'y' as \[1,1,1\], where the stream gives \[1, 1, 4\]"):
        pulsify.export(converted(source), "openvino", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_remainders_of_floats_are_refused(tmp_path: Path) -> None:
    """A phase that adds up and is wrapped: right for as long as it is small, which a check's streams are."""
    nodes = [models.node("CumSum", "x axis", "sum"), models.node("Mod", "sum turn", "y", fmod=1)]
    source = models.model(
        nodes, {"x": [1, 2, "T"]}, ["y"], {"axis": np.array(2), "turn": np.array(6.2831855, np.float32)}
    )
    with pytest.raises(pulsify.NotSupported, match=r"remainder of floats") as refused:
        pulsify.export(converted(source), "openvino", tmp_path / "out")
    assert refused.value.op == "Mod" and refused.value.node


def test_the_ends_of_small_types_are_tried(tmp_path: Path) -> None:
    """OpenVINO's bytes end at 127, the runtime's come round."""
    source = models.model(
        [models.node("Neg", "x", "y")], {"x": [1, 2, "T"]}, ["y"], {}, dtypes=dict.fromkeys("xy", np.int8)
    )
    with pytest.raises(pulsify.NotSupported, match="computes otherwise"):
        pulsify.export(converted(source), "openvino", tmp_path / "out")


def test_the_least_number_of_32_bits_is_turned_down(tmp_path: Path) -> None:
    """As a truth value it is none in OpenVINO."""
    nodes = [models.node("Cast", "x", "y", to=9)]
    source = models.model(nodes, {"x": [1, 2, "T"]}, ["y"], {}, dtypes={"x": np.int32, "y": np.bool_})
    pulsify.export(converted(source), "openvino", tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "stream.json").read_text())
    compiled = ov.Core().compile_model(tmp_path / "out" / "stream.xml", "CPU", facts["compile"])
    opened = module(tmp_path / "out" / "client.py").opened
    x = np.full((1, 2, 4), 1 - (1 << 31), np.int32)
    assert opened(compiled, facts, {}).push({"x": x})["y"].all()
    with pytest.raises(ValueError, match="beyond 2147483647"):
        opened(compiled, facts, {}).push({"x": x - 1})
