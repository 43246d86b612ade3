"""Streams in a real browser, by the files of the export alone: the batch model to the last frame."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.asr.wav import write_wav
from pulsify.core.errors import CompileFailed, InvalidArgument, NotSupported
from pulsify.demo.model import enhancer
from pulsify.export import wasm
from pulsify.export.web import runtime_files
from tests import models
from tests.browser import chromium, hosted
from tests.models import Array, frames, run_batch
from tests.unit.export.pages import FLAGS, exported, shown
from tests.unit.export.running import ZOO, Run, converted, is_batch, zoo

RUN = """async ({given, fixed, sizes}) => {
  const {engine} = await import("./engine.js"), {cut, joined, zeros} = await import("./frames.js");
  const facts = await (await fetch("./stream.json")).json();
  window.opened ??= await engine(facts);
  const tensor = (dtype, {data, shape}) => {
    const out = zeros(dtype, shape);
    data.forEach((x, k) => { out.data[k] = dtype === "int64" ? BigInt(x) : x; });
    return out;
  };
  const named = (ports, all) => Object.fromEntries(ports.map((p, k) => [p.name, tensor(p.dtype, all[k])]));
  const whole = named(facts.inputs, given), statics = named(facts.statics, fixed), parts = [];
  const stream = window.opened(statics);
  let at = 0;
  for (const n of sizes) {
    const chunk = (i) => [i.name, cut(whole[i.name], i.axis, at * i.rate, (at + n) * i.rate)];
    parts.push(await stream.push(Object.fromEntries(facts.inputs.map(chunk))));
    at += n;
  }
  parts.push(await stream.flush());
  return facts.outputs.map((o) => {
    if (!parts.at(-1)[o.name]) return null;
    const t = o.axis === null ? parts.at(-1)[o.name] : joined(parts.map((p) => p[o.name]), o.axis);
    return {data: Array.from(t.data, Number), shape: t.shape};
  });
}"""

MODELS = {
    "look_ahead": models.look_ahead("B"), "two_rates": models.two_rates(), "conditioned": models.conditioned("B"),
    "tokens": models.tokens(), "strided": models.strided(), "valid": models.valid(),
    "mirrored_lstm": models.mirrored_lstm("B"),
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium(*FLAGS) as opened:
        yield opened


def runner(page: Any, stream: pulsify.Stream) -> Run:
    """By the files of the export. Ports go by number: JavaScript's objects have names and an order of their own."""
    rng = np.random.default_rng(0)

    def plain(ports: Sequence[Any], arrays: Mapping[str, Array]) -> list[dict[str, Any]]:
        return [{"data": arrays[p.name].ravel().tolist(), "shape": list(arrays[p.name].shape)} for p in ports]

    def run(inputs: Mapping[str, Array], statics: Mapping[str, Array]) -> dict[str, Array]:
        first = stream.inputs[0]
        units, sizes = int(inputs[first.name].shape[first.axis] / first.rate), list[int]()
        while sum(sizes) < units:
            sizes.append(min(int(rng.integers(0, 9)), units - sum(sizes)))
        given, fixed = plain(stream.inputs, inputs), plain(stream.statics, statics)
        made = zip(stream.outputs, page.evaluate(RUN, {"given": given, "fixed": fixed, "sizes": sizes}), strict=True)
        return {o.name: np.array(t["data"], o.dtype).reshape(t["shape"]) for o, t in made if t}

    return run


@pytest.mark.parametrize("native", [False, True], ids=["ort", "native"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_batch_model(name: str, native: bool, browser: Any, tmp_path: Path) -> None:
    stream = converted(MODELS[name])
    exported(stream, tmp_path / "web", native)
    with hosted(tmp_path / "web") as url:
        page = browser.new_page()
        page.goto(url)
        is_batch(MODELS[name], stream, runner(page, stream))
        page.close()


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, True], ids=["ort", "native"])
@pytest.mark.parametrize("name", sorted(ZOO))
def test_the_zoo_is_the_batch_model(name: str, native: bool, browser: Any, tmp_path: Path) -> None:
    source = zoo(name)
    stream = converted(source)
    exported(stream, tmp_path / "web", native)
    with hosted(tmp_path / "web") as url:
        page = browser.new_page()
        page.goto(url)
        is_batch(source, stream, runner(page, stream))
        page.close()


def of_a_file(page: Any, path: Path, output: str) -> Array:
    page.set_input_files("#file", str(path))
    page.wait_for_selector("body[data-state=done]", timeout=60_000)
    made = page.evaluate(f"window.results.{output}")
    page.evaluate("document.body.dataset.state = 'seen'")
    return np.array(made["data"], np.float32).reshape(made["shape"])


@pytest.mark.parametrize("native", [False, True], ids=["ort", "native"])
def test_the_page_hears_a_file_and_the_microphone(native: bool, browser: Any, tmp_path: Path) -> None:
    """Sound in by both ways; of a file all frames that come out are the batch model's."""
    stream = pulsify.stream(enhancer(), pulse=160, sample_rate=16000, verify=False)
    exported(stream, tmp_path / "web", native)
    x = (frames(1, 1, 4000) * 0.1).astype(np.float32)
    want = run_batch(enhancer(), x)["clean"]
    write_wav(str(tmp_path / "a.wav"), x.reshape(-1), 16000)
    with shown(browser, tmp_path / "web") as page:
        for realtime in (False, True):  # native: in the worker, then in the audio thread
            page.set_checked("#realtime", realtime)
            got = of_a_file(page, tmp_path / "a.wav", "clean")
            assert got.shape == want.shape and np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
            assert page.locator("audio").count() == 1
        page.click("#microphone")
        page.locator("#status", has_text=re.compile(r"^[1-9][0-9]{3,} frames in, held")).wait_for(timeout=60_000)
        page.click("#stop")
        page.wait_for_selector("body[data-state=done]", timeout=60_000)
        assert len(page.evaluate("window.results.clean.data")) > 1000


HEARD = """async (samples) => {
  const facts = await (await fetch("./stream.json")).json(), bytes = await (await fetch("./stream.wasm")).arrayBuffer();
  const context = new OfflineAudioContext(1, samples.length + facts.latency + 512, facts.sample_rate);
  await context.audioWorklet.addModule("./worklet.js");
  const options = {outputChannelCount: [1], processorOptions: {bytes, facts, live: false}};
  const node = new AudioWorkletNode(context, "stream", options), made = [];
  const over = new Promise((done) => {
    node.port.onmessage = ({data}) => { made.push(...data.made); if (data.over) done(); };
  });
  node.port.postMessage({sound: Float32Array.from(samples), end: true});
  node.connect(context.destination);
  await new Promise((go) => setTimeout(go, 100));  // what is rendered begins with the sound there
  const heard = (await context.startRendering()).getChannelData(0);
  await over;
  return {latency: facts.latency, made, heard: Array.from(heard)};
}"""


@pytest.mark.parametrize("pulse", [1, 48, 128, 160, 256, 333])
def test_what_is_heard_is_the_batch_model_so_much_later(pulse: int, browser: Any, tmp_path: Path) -> None:
    """In the audio thread, block by block: the latency that is told, no sample missing, to the last one."""
    nodes = [models.node("Conv", "x k", "a", pads=[3, 5]), models.node("Tanh", "a", "b")]
    nodes += [models.node("Conv", "b m", "y", pads=[40, 0], dilations=[20])]
    proto = models.model(nodes, {"x": [1, 1, "T"]}, ["y"], {"k": models.weights(4, 1, 9), "m": models.weights(1, 4, 3)})
    stream = pulsify.stream(proto, pulse=pulse, sample_rate=16000, verify=False)
    exported(stream, tmp_path / "web", native=True)
    with shown(browser, tmp_path / "web") as page:
        for length in (1, 127, 1000, 2048):
            x = (frames(1, 1, length) * 0.1).astype(np.float32)
            want = run_batch(proto, x)["y"].reshape(-1)
            found = page.evaluate(HEARD, x.reshape(-1).tolist())
            late = found["latency"]
            assert late == 5 + pulse - math.gcd(pulse, 128)
            np.testing.assert_allclose(found["made"], want, atol=1e-5 * np.abs(want).max())
            heard = np.array(found["heard"])
            begin = int(np.argmax(heard != 0)) - late  # the sound may come some blocks after the start
            assert begin % 128 == 0 and not heard[: begin + late].any() and not heard[begin + late + length :].any()
            np.testing.assert_allclose(heard[begin + late :][:length], want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("realtime", [False, True])
def test_a_native_page_says_which_lengths_there_are(realtime: bool, browser: Any, tmp_path: Path) -> None:
    """In the worker and in the audio thread alike; then the next file runs."""
    proto = models.model([models.node("Conv", "x k", "y")], {"x": [1, 1, "T"]}, ["y"], {"k": models.weights(1, 1, 9)})
    exported(pulsify.stream(proto, pulse=4, sample_rate=16000, verify=False), tmp_path / "web", native=True)
    x = (frames(1, 1, 500) * 0.1).astype(np.float32)
    for name, samples in (("short", x[..., :5]), ("long", x)):
        write_wav(str(tmp_path / f"{name}.wav"), samples.reshape(-1), 16000)
    with shown(browser, tmp_path / "web") as page:
        page.set_checked("#realtime", realtime)
        page.set_input_files("#file", str(tmp_path / "short.wav"))
        page.wait_for_selector("body[data-state=failed]", timeout=60_000)
        assert "5 frames are no length this model takes: at least 9" in page.inner_text("#status")
        want = run_batch(proto, x)["y"]
        np.testing.assert_allclose(of_a_file(page, tmp_path / "long.wav", "y"), want, atol=1e-4 * np.abs(want).max())


def test_a_native_page_is_refused_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = converted(MODELS["look_ahead"])
    with pytest.raises(InvalidArgument, match="does not use onnxruntime-web"):
        stream.export(tmp_path / "web", "web", native=True, runtime="dist")
    with monkeypatch.context() as patched:
        patched.setattr(wasm.importlib.util, "find_spec", lambda name: None)
        patched.setattr(shutil, "which", lambda name: None)
        with pytest.raises(InvalidArgument, match=r"pip install 'pulsify\[native\]'.*leave --native out"):
            stream.export(tmp_path / "web", "web", native=True)
    monkeypatch.setattr(wasm, "compiler", lambda: ("false",))
    with pytest.raises(CompileFailed, match=r"does not compile the step.*leave --native out"):
        stream.export(tmp_path / "web", "web", native=True)
    monkeypatch.undo()
    nodes = [models.node("Cast", "x", "d", to=11), models.node("MatMul", "d w", "e")]
    nodes += [models.node("Cast", "e", "y", to=1)]
    weights = {"w": models.weights(3, 3).astype(np.float64)}
    wide = pulsify.stream(models.model(nodes, {"x": [1, "T", 3]}, ["y"], weights), pulse=2, verify=False)
    with pytest.raises(NotSupported, match=r"(?s)MatMul node .*cannot be written as C.*leave --native out") as refused:
        wide.export(tmp_path / "web", "web", native=True)
    assert refused.value.op == "MatMul" and not (tmp_path / "web").exists()


def test_what_it_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown = pulsify.stream(zoo("attn_full_causal"), unbounded="grow", verify=False)
    with pytest.raises(NotSupported, match="grows with the stream"):
        grown.export(tmp_path / "web", "web")
    with pytest.raises(InvalidArgument, match=r"no \['ort\.wasm\.min\.mjs'.*folder dist of the npm package"):
        runtime_files(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InvalidArgument, match="install npm, or unpack"):
        runtime_files()
    assert not (tmp_path / "web").exists()
