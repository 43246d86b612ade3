"""Streams in a real browser, by the files of the export alone: the batch model to the last frame."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.asr.wav import write_wav
from pulsify.core.cache import user_cache
from pulsify.core.errors import InvalidArgument, NotSupported
from pulsify.demo.model import build
from pulsify.export.web import PARTS, RUNTIME, runtime_files
from tests import models
from tests.browser import chromium, hosted
from tests.models import Array, frames, run_batch
from tests.unit.export.running import ZOO, Run, converted, is_batch, zoo

RUN = """async ({given, fixed, sizes}) => {
  const ort = await import("./ort/ort.wasm.min.mjs");
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = new URL("./ort/", location.href).href;
  const {opened} = await import("./stream.js"), {cut, joined, zeros} = await import("./frames.js");
  const facts = await (await fetch("./stream.json")).json();
  window.session ??= await ort.InferenceSession.create("./stream.onnx");
  const tensor = (dtype, {data, shape}) => {
    const out = zeros(dtype, shape);
    data.forEach((x, k) => { out.data[k] = dtype === "int64" ? BigInt(x) : x; });
    return out;
  };
  const statics = {}, whole = {}, parts = [];
  for (const [n, s] of Object.entries(facts.statics)) statics[n] = tensor(s.dtype, fixed[n]);
  for (const i of facts.inputs) whole[i.name] = tensor(i.dtype, given[i.name]);
  const stream = opened(ort, window.session, facts, statics);
  let at = 0;
  for (const n of sizes) {
    const chunks = {};
    for (const i of facts.inputs) chunks[i.name] = cut(whole[i.name], i.axis, at * i.rate, (at + n) * i.rate);
    parts.push(await stream.push(chunks));
    at += n;
  }
  parts.push(await stream.flush());
  const out = {};
  for (const o of facts.outputs) {
    if (!parts.at(-1)[o.name]) continue;
    const t = o.axis === null ? parts.at(-1)[o.name] : joined(parts.map((p) => p[o.name]), o.axis);
    out[o.name] = {data: Array.from(t.data, Number), shape: t.shape};
  }
  return out;
}"""

MODELS = {
    "look_ahead": models.look_ahead("B"), "two_rates": models.two_rates(), "conditioned": models.conditioned("B"),
    "tokens": models.tokens(), "strided": models.strided(), "valid": models.valid(),
    "mirrored_lstm": models.mirrored_lstm("B"),
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    there = all((user_cache() / f"onnxruntime-web-{RUNTIME}" / name).is_file() for name in PARTS)
    if not there and shutil.which("npm") is None:
        pytest.skip("neither onnxruntime-web nor npm is here")
    with chromium(
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        "--autoplay-policy=no-user-gesture-required",
    ) as opened:
        yield opened


def runner(page: Any, stream: pulsify.Stream) -> Run:
    dtypes = {o.name: o.dtype for o in stream.outputs}
    rng = np.random.default_rng(0)

    def plain(arrays: Mapping[str, Array]) -> dict[str, Any]:
        return {n: {"data": a.ravel().tolist(), "shape": list(a.shape)} for n, a in arrays.items()}

    def run(inputs: Mapping[str, Array], statics: Mapping[str, Array]) -> dict[str, Array]:
        first = stream.inputs[0]
        units, sizes = int(inputs[first.name].shape[first.axis] / first.rate), list[int]()
        while sum(sizes) < units:
            sizes.append(min(int(rng.integers(0, 9)), units - sum(sizes)))
        made = page.evaluate(RUN, {"given": plain(inputs), "fixed": plain(statics), "sizes": sizes})
        return {n: np.array(o["data"], dtypes[n]).reshape(o["shape"]) for n, o in made.items()}

    return run


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_batch_model(name: str, browser: Any, tmp_path: Path) -> None:
    stream = converted(MODELS[name])
    stream.export(tmp_path / "web", "web")
    with hosted(tmp_path / "web") as url:
        page = browser.new_page()
        page.goto(url)
        is_batch(MODELS[name], stream, runner(page, stream))
        page.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ZOO))
def test_the_zoo_is_the_batch_model(name: str, browser: Any, tmp_path: Path) -> None:
    source = zoo(name)
    stream = converted(source)
    stream.export(tmp_path / "web", "web")
    with hosted(tmp_path / "web") as url:
        page = browser.new_page()
        page.goto(url)
        is_batch(source, stream, runner(page, stream))
        page.close()


def test_the_page_hears_a_file_and_the_microphone(browser: Any, tmp_path: Path) -> None:
    """Sound in by both ways; of a file all frames that come out are the batch model's."""
    stream = pulsify.stream(build(), pulse=160, sample_rate=16000, verify=False)
    stream.export(tmp_path / "web", "web")
    x = (frames(1, 1, 4000) * 0.1).astype(np.float32)
    write_wav(str(tmp_path / "a.wav"), x.reshape(-1), 16000)
    with hosted(tmp_path / "web") as url:
        page = browser.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.goto(url)
        page.wait_for_selector("body[data-state=ready]", timeout=60_000)
        page.uncheck("#realtime")
        page.set_input_files("#file", str(tmp_path / "a.wav"))
        page.wait_for_selector("body[data-state=done]", timeout=60_000)
        made = page.evaluate("window.results.clean")
        got, want = np.array(made["data"]).reshape(made["shape"]), run_batch(build(), x)["clean"]
        assert got.shape == want.shape and np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
        assert page.locator("audio").count() == 1
        page.click("#microphone")
        page.locator("#status", has_text=re.compile(r"[1-9][0-9]{3,} frames in")).wait_for(timeout=60_000)
        page.click("#stop")
        page.wait_for_selector("body[data-state=done]", timeout=60_000)
        assert len(page.evaluate("window.results.clean.data")) > 1000 and not faults
        page.close()


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
