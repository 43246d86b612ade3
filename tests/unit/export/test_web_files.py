"""What the folder of a page holds, and numbers that are of all their type's bits in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.runner import open_model
from pulsify.export import web
from tests import models
from tests.browser import chromium, hosted
from tests.unit.export.running import converted
from tests.unit.export.test_web import exported


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
    kinds = {"x": np.float16, "y": np.float16}
    source = models.model([models.node("Identity", "x", "y")], {"x": [1, "T"]}, ["y"], dtypes=kinds)
    with pytest.raises(pulsify.NotSupported, match="is of type float16, which the page has no arrays for"):
        converted(source).export(tmp_path / "site", "web", runtime=runtime)


BITS = """async ({bits, shape}) => {
  const {engine} = await import("./engine.js"), {ARRAYS} = await import("./frames.js");
  const facts = await (await fetch("./stream.json")).json(), [i] = facts.inputs, stream = (await engine(facts))();
  const parts = [await stream.push({x: {data: new ARRAYS[i.dtype](Uint8Array.from(bits).buffer), shape}})];
  parts.push(await stream.flush());
  return parts.flatMap(({y}) => [...new Uint8Array(y.data.buffer, y.data.byteOffset, y.data.byteLength)]);
}"""


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64, np.int64])
def test_whole_numbers_come_through_with_all_their_bits(dtype: type[np.integer[Any]], tmp_path: Path) -> None:
    """Six frames later, by a state."""
    nodes = [models.node("Pad", "x p", "q"), models.node("Slice", "q s0 s1 s2", "y")]
    fixed = {"p": np.array([0, 6, 0, 0]), "s0": np.array([0]), "s1": np.array([-6]), "s2": np.array([1])}
    source = models.model(nodes, {"x": [1, "T"]}, ["y"], fixed, dtypes={"x": dtype, "y": dtype})
    exported(converted(source), tmp_path / "site", native=False)
    x = np.frombuffer(np.random.default_rng(0).bytes(37 * np.dtype(dtype).itemsize), dtype).reshape(1, 37)
    with chromium() as browser, hosted(tmp_path / "site") as url:
        page = browser.new_page()
        page.goto(url)
        bits = page.evaluate(BITS, {"bits": list(x.tobytes()), "shape": [1, 37]})
    assert np.array_equal(np.frombuffer(bytes(bits), dtype), models.run_batch(source, {"x": x})["y"][0])


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
