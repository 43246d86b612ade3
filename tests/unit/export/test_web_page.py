"""The exported page and its streams, used otherwise than meant: calls wait, what does not fit is named."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import pulsify
from pulsify.asr.wav import write_wav
from pulsify.core.errors import NotSupported
from tests import models
from tests.browser import chromium, hosted
from tests.models import Array, frames, run_batch
from tests.unit.export.pages import FLAGS, exported, shown
from tests.unit.export.running import converted

BOTH = pytest.mark.parametrize("native", [False, True], ids=["ort", "native"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium(*FLAGS) as opened:
        yield opened


def saved(path: Path, array: Array) -> Path:
    np.save(path, array)
    return path


def told(page: Any, path: Path) -> str:
    """What the page says of a file in the end."""
    page.evaluate("document.body.dataset.state = 'seen'")
    page.set_input_files("#file", path)
    page.wait_for_selector("body[data-state=done], body[data-state=failed]", timeout=60_000)
    return str(page.inner_text("#status"))


def named(x: str, scale: str, shift: str, y: str) -> onnx.ModelProto:
    """A convolution with a delay, times one static input, plus another."""
    nodes = [helper.make_node("Conv", [x, "k"], ["a"], "a", pads=[2, 2])]
    nodes += [helper.make_node("Mul", ["a", scale], ["b"], "b"), helper.make_node("Add", ["b", shift], [y], "c")]
    inputs: dict[str, models.Dims] = {x: [1, 1, "T"], scale: [1, 1, 1], shift: [1, 1, 1]}
    return models.model(nodes, inputs, [y], {"k": models.weights(1, 1, 5)})


STREAMS = """async ({sounds, fixed}) => {
  const {engine} = await import("./engine.js"), {Frames, joined} = await import("./frames.js");
  const facts = await (await fetch("./stream.json")).json(), open = await engine(facts);
  const [input] = facts.inputs, [output] = facts.outputs;
  const fixing = (data, k) => [facts.statics[k].name, {data, shape: [1, 1, data.length]}];
  const statics = (...all) => Object.fromEntries(all.map(fixing));
  const right = statics(...fixed.map((x) => Float32Array.of(x)));
  const words = async (call) => { try { await call(); return "taken"; } catch (error) { return error.message; } };
  const chunk = (data, more = {}) => ({[input.name]: {data, shape: [1, 1, data.length], ...more}});
  const opened = await Promise.all([
    () => open(), () => open(statics(new Float32Array(1), new Float32Array(2))),
    () => open(statics(new Float32Array(1), new Float64Array(1))), () => open({...right, other: 1}),
  ].map(words));
  async function run(sound) {  // in pieces of 1, 2, 3, ... that nobody waits for, from one buffer; others are refused
    const stream = open(right), calls = [], said = [], buffer = new Float32Array(sound.length);
    for (let at = 0, n = 1; at < sound.length; at += n++) {
      const piece = sound.slice(at, at + n);
      buffer.set(piece);
      calls.push(stream.push(chunk(buffer.subarray(0, piece.length))));
      said.push(words(() => stream.push(chunk(buffer, {shape: [1, 2, 1]}))), words(() => stream.push({other: 1})));
    }
    calls.push(stream.flush());
    said.push(words(() => stream.push(chunk(buffer))), words(() => stream.flush()));
    const parts = (await Promise.all(calls)).map((made) => made[output.name]);
    return {data: Array.from(joined(parts, 2).data), said: [...new Set(await Promise.all(said))]};
  }
  const stuck = new Frames(facts, async () => { throw new Error("no memory"); }), long = new Float32Array(8);
  const broken = await Promise.all([1, 2].map(() => words(() => stuck.push(chunk(long)))));
  return {opened, broken, made: await Promise.all(sounds.map(run))};
}"""


@BOTH
def test_calls_wait_for_each_other_and_names_may_be_any(native: bool, browser: Any, tmp_path: Path) -> None:
    """Two streams at once, no call awaited, refused ones between: every frame is right, whatever ports are called."""
    x, y = ("toString", "__proto__") if native else ("__proto__", "constructor")
    proto = named(x, "10", "9", y)
    stream = converted(proto)
    exported(stream, tmp_path / "web", native)
    statics = {n: np.full((1, 1, 1), v, np.float32) for n, v in (("10", 2), ("9", 7))}
    sounds = [frames(1, 1, n, seed=n) for n in (103, 58)]
    fixed = [float(statics[s.name].item()) for s in stream.statics]
    with shown(browser, tmp_path / "web") as page:
        found = page.evaluate(STREAMS, {"sounds": [x.ravel().tolist() for x in sounds], "fixed": fixed})
        fields = page.locator("#statics input")
        for k, s in enumerate(stream.statics):
            fields.nth(k).set_input_files(saved(tmp_path / f"{s.name}.npy", statics[s.name]))
        assert told(page, saved(tmp_path / "x.npy", sounds[0])).startswith("done: 103 frames in")
        ((name, shown_there),) = page.evaluate("Object.entries(window.results)")
    found["made"].append({**found["made"][0], "data": shown_there["data"]})
    for sound, made in zip([*sounds, sounds[0]], found["made"], strict=True):
        want = run_batch(proto, {x: sound, **statics})[y].ravel()
        np.testing.assert_allclose(made["data"], want, atol=1e-5 * np.abs(want).max())
        assert made["said"] == [
            f"'{x}' takes float32 [1, 1, time], got [1, 2, 1]", "no input is called 'other'",
            "this stream has been flushed: open another one",
        ]  # fmt: skip
    missing, size, kind, unknown = found["opened"]
    assert "missing: '10' takes float32 [1, 1, 1]; '9' takes float32 [1, 1, 1]. Open the stream with them" in missing
    assert size == "'9' takes float32 [1, 1, 1], got [1, 1, 2]" and "got a Float64Array" in kind
    assert name == y and unknown == "no static input is called 'other'"
    assert found["broken"] == ["no memory", "this stream broke off (no memory): open another one"]


KEPT = "async () => [...new Uint8Array(await (await fetch(document.querySelector('#out a').href)).arrayBuffer())]"


def test_an_output_that_onnxruntime_web_would_lose_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match=r"(?s)lost in onnxruntime-web.*rename it in the model, or give --native"):
        converted(named("x", "s", "t", "__proto__")).export(tmp_path / "web", "web")


@BOTH
def test_files_and_static_inputs_are_taken_or_named(native: bool, browser: Any, tmp_path: Path) -> None:
    """Whatever does not fit is refused in words that say what does; the next file runs."""
    nodes = [models.node("Cast", "x", "f", to=1), models.node("Mul", "f s", "g"), models.node("Cast", "g", "y", to=4)]
    dtypes = {"x": np.uint16, "y": np.uint16}
    stream = converted(models.model(nodes, {"x": [1, 1, "T"], "s": [2, 1, 1]}, ["y"], dtypes=dtypes))
    exported(stream, tmp_path / "web", native)
    x = np.arange(100, dtype=np.uint16) + 30_000
    good = saved(tmp_path / "a.npy", x)
    takes = "'x' takes uint16 [1, 1, time]"
    with shown(browser, tmp_path / "web") as page:
        assert "a static input is missing: 's' takes float32 [2, 1, 1], give a .npy file" in told(page, good)
        field = page.locator("#statics input")
        field.set_input_files(saved(tmp_path / "s.npy", np.ones((3, 1, 1), np.float32)))
        assert told(page, good) == "'s' takes float32 [2, 1, 1], the file holds [3, 1, 1]: save it with .reshape"
        field.set_input_files(saved(tmp_path / "s.npy", np.array([[[1.0]], [[2.0]]], np.float32)))
        saved(tmp_path / "s.npy", np.array([[[1.0]], [[2.0]]], np.float32))
        assert told(page, good) == "s.npy cannot be read; if it was written again since you chose it, choose it again"
        field.set_input_files(tmp_path / "s.npy")
        for shape in ([1, 100], [1, 1, 100, 1], [1, 2, 50], []):
            wrong = saved(tmp_path / "b.npy", x[:1].reshape(shape) if not shape else x.reshape(shape))
            assert told(page, wrong) == f"{takes}, the file holds [{', '.join(map(str, shape))}]: save it with .reshape"
        assert f"{takes} (<u2), the file holds <i2" in told(page, saved(tmp_path / "b.npy", x.astype(np.int16)))
        (tmp_path / "b.npy").write_bytes(good.read_bytes()[:-60])
        assert told(page, tmp_path / "b.npy") == "the file is cut short: [100] of uint16 is 200 bytes, it has 140"
        for junk in (b"", b"abc", good.read_bytes()[:30]):
            (tmp_path / "b.npy").write_bytes(junk)
            assert told(page, tmp_path / "b.npy") == "this is no .npy file"
        for given in (x, x.reshape(1, 1, 100)):
            assert told(page, saved(tmp_path / "b.npy", given)).startswith("done: 100 frames in")
            made = np.load(io.BytesIO(bytes(page.evaluate(KEPT))))
            want = x.astype(np.float32) * np.array([[[1.0]], [[2.0]]], np.float32)
            assert made.dtype == np.uint16 and np.array_equal(made, want.astype(np.uint16))


def test_sound_that_cannot_be_taken_is_refused_with_a_way_out(browser: Any, tmp_path: Path) -> None:
    nodes = [models.node("Add", "x z", "y")]
    two = converted(models.model(nodes, {"x": [1, 1, "T"], "z": [1, 1, "T"]}, ["y"]), sample_rate=16000)
    write_wav(str(tmp_path / "a.wav"), frames(100) * 0.1, 16000)
    exported(two, tmp_path / "two", native=False)
    with shown(browser, tmp_path / "two") as page:
        assert "several inputs ('x' takes float32 [1, 1, time]; 'z' takes" in told(page, tmp_path / "a.wav")
        page.set_checked("#realtime", False)
        page.click("#noise")
        page.wait_for_selector("body[data-state=done]", timeout=60_000)
        assert len(page.evaluate("window.results.y.data")) == 16000
    exported(converted(models.look_ahead(1)), tmp_path / "many", native=False)
    with shown(browser, tmp_path / "many") as page:
        assert "'x' takes float32 [1, 2, time], which is no sound: give a .npy" in told(page, tmp_path / "a.wav")
    one = converted(models.model([models.node("Tanh", "x", "y")], {"x": [1, 1, "T"]}, ["y"]))
    exported(one, tmp_path / "one", native=False)
    with shown(browser, tmp_path / "one") as page:
        assert "convert it with --sample-rate" in told(page, tmp_path / "a.wav")


TRACKS = """() => {
  window.tracks = [];
  const asked = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  navigator.mediaDevices.getUserMedia = async (what) => {
    const heard = await asked(what);
    window.tracks.push(...heard.getTracks());
    return heard;
  };
}"""


@BOTH
def test_a_source_ends_before_the_next_begins(native: bool, browser: Any, tmp_path: Path) -> None:
    """A second file, the microphone, a file again, each while the one before it runs: results are the last one's."""
    nodes = [models.node("Conv", "x k", "y", pads=[2, 2])]
    proto = models.model(nodes, {"x": [1, 1, "T"]}, ["y"], {"k": models.weights(1, 1, 5)})
    exported(pulsify.stream(proto, pulse=128, sample_rate=16000, verify=False, opening=False), tmp_path / "web", native)
    sounds = {n: frames(1, 1, n, seed=n) * np.float32(0.1) for n in (9_000, 16_000, 30_000, 160_000)}
    for n, sound in sounds.items():
        write_wav(str(tmp_path / f"{n}.wav"), sound.ravel(), 16000)
    batch = {n: run_batch(proto, sound)["y"].ravel() for n, sound in sounds.items()}
    running = "body[data-state=running] #stop:not([disabled])"

    def start(page: Any, n: int) -> None:
        page.set_input_files("#file", tmp_path / f"{n}.wav")

    def ends_as(page: Any, n: int) -> None:
        page.wait_for_selector(running, timeout=60_000)
        page.wait_for_selector("body[data-state=done]", timeout=60_000)
        made, want = page.evaluate("window.results.y.data"), batch[n]
        assert len(made) == want.size and np.abs(made - want).max() <= 1e-3 * np.abs(want).max()
        assert page.locator("#out a").count() == 1 and page.is_disabled("#stop")

    def heard(page: Any) -> None:
        page.locator("#status", has_text="frames in, held").wait_for(timeout=60_000)

    with shown(browser, tmp_path / "web") as page:
        page.evaluate(TRACKS)
        start(page, 16_000)
        heard(page)
        start(page, 30_000)  # would be over after the first
        ends_as(page, 30_000)
        page.click("#microphone")
        heard(page)
        start(page, 160_000)
        page.click("#noise")  # three at once: the last one counts
        start(page, 9_000)
        ends_as(page, 9_000)
        start(page, 160_000)
        page.wait_for_selector(running)
        heard(page)
        page.click("#stop")
        page.wait_for_selector("body[data-state=done]", timeout=60_000)
        made, want = page.evaluate("window.results.y.data"), batch[160_000]
        assert 0 < len(made) < 160_000 and np.abs(made[:-2] - want[: len(made) - 2]).max() <= 1e-3 * np.abs(want).max()
        page.click("#microphone")
        heard(page)
        page.click("#stop")
        page.wait_for_selector("body[data-state=done]", timeout=60_000)
        assert page.evaluate("window.tracks.map((t) => t.readyState)") == ["ended", "ended"]
        page.evaluate("() => { navigator.mediaDevices.getUserMedia = () => new Promise(() => {}); }")  # nobody answers
        page.click("#microphone")
        start(page, 9_000)
        ends_as(page, 9_000)


def test_a_page_without_a_host_or_with_files_missing_says_so(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "web"
    exported(converted(models.look_ahead(1)), folder, native=False)

    def says(url: str) -> str:
        page = browser.new_page()
        page.goto(url)
        page.wait_for_selector("body[data-state=failed]", timeout=60_000)
        said = str(page.inner_text("#about"))
        page.close()
        return said

    assert "opened as a file. In this folder: python -m http.server; then" in says((folder / "index.html").as_uri())
    with hosted(folder) as url:
        for gone, words in (
            ("stream.json", "stream.json is not there (404 of the host): host the whole folder"),
            ("stream.onnx", "stream.onnx or what runs it (ort/) does not load; if files are missing, host"),
            ("ort/ort-wasm-simd-threaded.wasm", "does not load; if files are missing, host the whole folder"),
            ("worker.js", "worker.js, or a file that it needs, does not load: host the whole folder"),
            ("engine.js", "worker.js, or a file that it needs, does not load: host the whole folder"),
            ("plots.js", "A file of this page (.js) is missing"),
        ):
            kept = (folder / gone).read_bytes()
            (folder / gone).unlink()
            assert words in says(url), gone
            (folder / gone).write_bytes(kept)


def test_a_run_that_fails_leaves_the_microphone(browser: Any, tmp_path: Path) -> None:
    stream = converted(models.model([models.node("Tanh", "x", "y")], {"x": [1, 1, "T"]}, ["y"]), sample_rate=16000)
    exported(stream, tmp_path / "web", native=False)
    facts = json.loads((tmp_path / "web" / "stream.json").read_text())
    (tmp_path / "web" / "stream.json").write_text(json.dumps({**facts, "most": 2000}))
    with shown(browser, tmp_path / "web") as page:
        page.evaluate(TRACKS)
        page.click("#microphone")
        page.wait_for_selector("body[data-state=failed]", timeout=60_000)
        assert page.inner_text("#status").startswith("no stream may be longer than 2000 frames")
        assert page.is_disabled("#stop")
        assert page.evaluate("window.tracks.map((t) => t.readyState)") == ["ended"]
        assert told(page, saved(tmp_path / "a.npy", frames(100))).startswith("done: 100 frames in")
