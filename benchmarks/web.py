"""The export to the web in Chromium, onnxruntime-web beside the stream's own WebAssembly: bytes, microseconds a pulse.

python -m benchmarks.web [--only NAME ...] [--rounds 20]

A push of one pulse, by the page's own files, states and all; the quickest of some rounds of 100.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import pulsify
from benchmarks.cases import CASES, prepare
from tests.browser import chromium, hosted

NAMES = ("gtcrn", "lstm_64", "wavenet_6x24", "amp_layers_64", "logmel_stft", "fastconformer_32", "dtln")
TIMED = """async (rounds) => {
  const {engine} = await import("./engine.js"), {zeros} = await import("./frames.js");
  const facts = await (await fetch("./stream.json")).json(), stream = (await engine(facts))({});
  const chunk = {}, times = [];
  for (const i of facts.inputs) chunk[i.name] = zeros(i.dtype, i.shape);
  for (const i of facts.inputs) chunk[i.name].data.forEach((x, k, all) => { all[k] = Math.sin(k * k); });
  for (let n = 0; n < rounds; n++) {  // by hundreds: the browser's clock is coarse
    const start = performance.now();
    for (let k = 0; k < 100; k++) await stream.push(chunk);
    times.push((performance.now() - start) * 10);
  }
  return Math.min(...times);
}"""


def measured(browser: Any, stream: pulsify.Stream, rounds: int) -> dict[str, tuple[int, float]]:
    """Bytes that a page loads for the model and what runs it, and microseconds a pulse, by kind."""
    found: dict[str, tuple[int, float]] = {}
    for native in (False, True):
        with tempfile.TemporaryDirectory() as place:
            stream.export(place, "web", native=native)
            files = [f for f in Path(place).rglob("*") if f.suffix in (".onnx", ".wasm", ".mjs")]
            with hosted(Path(place)) as url:
                page = browser.new_page()
                page.goto(url)
                least = min(page.evaluate(TIMED, rounds) for _ in range(3))
                page.close()
            found["native" if native else "ort"] = sum(f.stat().st_size for f in files), least
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    cases = {c.name: c for c in CASES if c.name in given.only}
    paths = prepare([c.batch for c in cases.values()])
    print(f"{'model':20s} {'ort: KB':>10s} {'us':>10s} {'native: KB':>10s} {'us':>10s}")
    with chromium() as browser:
        for name, case in cases.items():
            stream = pulsify.stream(str(paths[case.batch]), pulse=case.pulse, verify=False, opening=False)
            both = measured(browser, stream, given.rounds)
            cells = " ".join(f"{size / 1000:10,.0f} {least:10.1f}" for size, least in (both["ort"], both["native"]))
            print(f"{name:20s} {cells}", flush=True)


if __name__ == "__main__":
    main()
