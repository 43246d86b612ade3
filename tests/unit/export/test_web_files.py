"""What the folder of a page holds, without a browser."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.runner import open_model
from pulsify.export import web
from tests import models
from tests.unit.export.running import converted


@pytest.fixture
def runtime(tmp_path: Path) -> str:
    """Files of the names that onnxruntime-web has."""
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in web.PARTS:
        (folder / name).write_text("")
    return str(folder)


def test_weights_that_lay_beside_the_model_are_inside_of_the_page_s(tmp_path: Path, runtime: str) -> None:
    source = models.model(
        [models.node("Conv", "x w", "y", pads=[1, 1])], {"x": ["B", 1, "T"]}, ["y"], {"w": models.weights(64, 1, 3)}
    )
    (tmp_path / "own").mkdir()
    file = tmp_path / "own" / "m.onnx"
    onnx.save(source, str(file), save_as_external_data=True, location="m.data", size_threshold=0)
    pulsify.stream(str(file), pulse=4, verify=False).save(tmp_path / "own" / "s.onnx")
    pulsify.load(tmp_path / "own" / "s.onnx").export(tmp_path / "site", "web", runtime=runtime)
    (tmp_path / "own" / "m.data").unlink()
    written = onnx.load(tmp_path / "site" / "stream.onnx", load_external_data=False)
    assert not any(t.data_location == onnx.TensorProto.EXTERNAL for t in written.graph.initializer)
    assert {i.name for i in open_model(str(tmp_path / "site" / "stream.onnx")).get_inputs()} >= {"x"}


def test_weights_that_no_file_holds_are_refused(tmp_path: Path, runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MOST", 10)
    with pytest.raises(
        pulsify.NotSupported, match=r"its weights are .* bytes, and a file that a browser opens holds 10"
    ):
        converted(models.causal(1)).export(tmp_path / "site", "web", runtime=runtime)
    assert not (tmp_path / "site").exists()


def test_a_type_that_the_page_does_not_have_is_refused(tmp_path: Path, runtime: str) -> None:
    kinds = {"x": np.uint32, "y": np.uint32}
    source = models.model([models.node("Identity", "x", "y")], {"x": [1, "T"]}, ["y"], dtypes=kinds)
    with pytest.raises(pulsify.NotSupported, match="is of type uint32, which the page has no arrays for"):
        converted(source).export(tmp_path / "site", "web", runtime=runtime)


@pytest.mark.parametrize(
    ("own", "given", "rate"), [(4000.0, {}, 16000), (None, {"sample_rate": 8000}, 8000), (None, {}, None)]
)
def test_a_front_end_has_the_rate_of_its_samples(
    own: float | None, given: dict[str, int], rate: int | None, tmp_path: Path, runtime: str
) -> None:
    """Four samples are a frame of the stream's."""
    nodes = [models.node("Conv", "audio k", "a", pads=[3, 3], strides=[4]), models.node("Abs", "a", "f")]
    front = models.model(nodes, {"audio": [1, 1, "S"]}, ["f"], {"k": models.weights(2, 1, 8)})
    onnx.save(front, tmp_path / "f.onnx")
    onnx.save(models.look_ahead(1), tmp_path / "e.onnx")
    stream = pulsify.stream(tmp_path / "e.onnx", pulse=4, sample_rate=own, verify=False)
    files = {"merge_front_end": str(tmp_path / "f.onnx"), "model": str(tmp_path / "e.onnx")}
    stream.export(tmp_path / "site", "web", runtime=runtime, **files, **given)
    assert json.loads((tmp_path / "site" / "stream.json").read_text())["sample_rate"] == rate
