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
from tests.models import frames, run_batch
from tests.unit.export.running import converted, is_batch, module, zoo, zoo_cases
from tests.zoo.manifest import Exporter

ov = pytest.importorskip("openvino", reason="openvino is not installed")

from pulsify.export import openvino as target  # noqa: E402

MODELS = {
    "look_ahead": models.look_ahead("B"), "causal": models.causal("B"), "with_length": models.with_length("B"),
    "two_rates": models.two_rates(), "conditioned": models.conditioned("B"), "tokens": models.tokens(),
    "strided": models.strided(), "valid": models.valid(), "mirrored": models.mirrored(1),
    "mirrored_lstm": models.mirrored_lstm("B"),
}  # fmt: skip


def runner(folder: Path) -> Any:
    """All of a stream, by the files of the export alone."""
    client, facts = module(folder / "client.py"), json.loads((folder / "stream.json").read_text())
    compiled = ov.Core().compile_model(folder / "stream.xml", "CPU", facts["compile"])
    return lambda inputs, statics: client.whole(client.opened(compiled, facts, statics), inputs, chunk=3)


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
