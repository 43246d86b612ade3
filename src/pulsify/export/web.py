"""A folder for any static host: a page that streams sound or arrays through the model, in the visitor's browser.

index.html, style.css, app.js   the page: microphone and file in, plots and sound out
worker.js, stream.js, frames.js the stream, away from the page's own thread; flush included
capture.js                      what hears the microphone, in the audio thread
host.js, unhosted.js            files of the folder, and what to do where they are missing or the page has no host
stream.json                     ports, delays, states
stream.onnx, ort/               the step; onnxruntime-web, pinned: one thread, so it needs no cross-origin isolation
stream.wasm, worklet.js         native instead: the stream as C compiled to WebAssembly, in the audio thread for sound
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import onnx_ir as ir

from pulsify.core.cache import user_cache
from pulsify.core.checksum import seal
from pulsify.core.errors import InvalidArgument, NotSupported
from pulsify.core.progress import tell
from pulsify.core.spec import Input, Output, Spec
from pulsify.core.weights import WEIGHTS, weight_bytes
from pulsify.export import portable, wasm
from pulsify.export.c_frames import most_frames
from pulsify.export.formulas import js_rules
from pulsify.export.registry import Target

RUNTIME = "1.30.0"  # of onnxruntime-web: what the page was tested with
PARTS = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
MOST = 2_000_000_000  # bytes of weights: a protobuf ends at 2 GiB
BLOCK = 128  # samples that the audio thread takes at a time: a render quantum
TYPES = ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")


@dataclass(frozen=True)
class Web:
    """native: the stream as C compiled to WebAssembly, in the audio thread where it takes and gives sound.

    runtime: a folder with onnxruntime-web's `dist` files; else they are fetched with npm, once.
    """

    native: bool = False
    runtime: str = ""

    def write(self, model: ir.Model, spec: Spec, path: Path) -> None:
        if self.native and self.runtime:
            raise InvalidArgument("native and runtime: a native page does not use onnxruntime-web; give one of them")
        portable.refuse_growing(spec, "web")
        _refuse_types(spec)
        if not self.native:
            _refuse_names(spec)
        facts = {**web_facts(spec), **(live_facts(spec) if self.native else {})}
        files = {
            portable.FACTS: portable.as_json(facts, "web"),
            **_page(),
            **_page("native" if self.native else "onnx"),
        }
        if self.native:
            files["stream.wasm"] = wasm.module(model, spec)
        else:
            files |= {f"ort/{file.name}": file.read_bytes() for file in runtime_files(self.runtime)}
        with portable.folder(path, "web") as place:
            portable.put(place, files)
            if not self.native:
                with portable.told_the_length(model, spec):
                    write_model(model, place / "stream.onnx")


def write_model(model: ir.Model, path: Path) -> None:
    """One file with all weights: a browser opens no other beside it."""
    size = weight_bytes(model)
    if size > MOST:
        raise NotSupported(
            f"its weights are {size:,} bytes, and a file that a browser opens holds {MOST:,}", target="web",
            hint="take a smaller model, or serve it: docs/serve.md",
        )  # fmt: skip
    made = ir.external_data.load_to_model(model.clone())
    made.metadata_props.pop(WEIGHTS, None)
    ir.save(made, path)
    seal(path)


def web_facts(spec: Spec) -> dict[str, Any]:
    """What every client needs, and what else the page shows: states, times."""
    states = [
        {"name": s.name, "after": s.after, "shape": portable.one(s.shape), "dtype": str(s.dtype)} for s in spec.states
    ]
    # a list: JavaScript's objects have keys such as "10" in an order of their own
    statics = [{"name": s.name, "shape": portable.one(s.dims), "dtype": str(s.dtype)} for s in spec.statics]
    facts = portable.facts(spec)
    return {**facts, "statics": statics, "states": states, "sample_rate": spec.sample_rate, "live": False}


def live_facts(spec: Spec) -> dict[str, Any]:
    """For a model that can run in the audio thread: sound in, sound out, sample by sample as many.

    latency: samples from when one comes in to when its own is heard. Blocks of the browser's wait for a pulse to be
    whole: as long as it takes at the worst. Where a block begins in a pulse, at a phase, is the same but for `step`.
    """
    ports: list[Input | Output] = [*spec.inputs, *spec.outputs]
    if len(ports) != 2 or spec.statics or spec.sample_rate is None or not all(map(_sound, ports)):
        return {}
    (output,) = spec.outputs
    step = math.gcd(spec.pulse, BLOCK)
    latency = output.delay - spec.phase + spec.pulse - step + spec.phase % step
    return {"live": True, "latency": max(latency, 0), "room": max(most_frames(spec, output), output.frames)}


def _sound(port: Input | Output) -> bool:
    """One channel of samples, at the stream's own rate?"""
    plain = port.axis is not None and math.prod(portable.one(port.dims)) == port.frames
    return plain and port.rate == 1 and str(port.dtype) == "float32"


def _refuse_types(spec: Spec) -> None:
    ports: list[Any] = [*spec.inputs, *spec.statics, *spec.outputs, *spec.states]
    for port in ports:
        if str(port.dtype) not in TYPES:
            raise NotSupported(
                f"'{port.name}' is of type {port.dtype}, which the page has no arrays for", node=port.name, op="port",
                target="web", hint="cast it to float32 in the model",
            )  # fmt: skip


def _refuse_names(spec: Spec) -> None:
    """onnxruntime-web puts what a model gives into a plain object, where this one name is not kept."""
    if "__proto__" in {o.name for o in spec.outputs} | {s.after for s in spec.states}:
        raise NotSupported(
            "an output called '__proto__' is lost in onnxruntime-web", node="__proto__", op="port", target="web",
            hint="rename it in the model, or give --native",
        )  # fmt: skip


def _page(*under: str) -> dict[str, str | bytes]:
    """The page's files; with a folder's name those of it."""
    place = resources.files("pulsify.export").joinpath("web_page", *under)
    files = [file for file in place.iterdir() if file.name.endswith((".html", ".css", ".js"))]
    return {file.name: _alone(file.read_text()) for file in sorted(files, key=lambda f: f.name)}


def _alone(text: str) -> str:
    """With the rules it takes from `core/framing.py`."""
    wanted = r'^import \{ (.*) \} from "./framing.js";$'
    return re.sub(wanted, lambda found: js_rules(found[1].split(", ")), text, flags=re.MULTILINE)


# ---- onnxruntime-web


def runtime_files(given: str = "") -> list[Path]:
    """Its files, from a folder that was given, or from the one npm's package was unpacked into."""
    folder = Path(given) if given else user_cache() / f"onnxruntime-web-{RUNTIME}"
    if not given and not all((folder / name).is_file() for name in PARTS):
        _fetch(folder)
    if missing := [name for name in PARTS if not (folder / name).is_file()]:
        raise InvalidArgument(
            f"runtime={given!r}: no {missing} there; it is the folder dist of the npm package onnxruntime-web"
        )
    return [folder / name for name in PARTS]


def _fetch(folder: Path) -> None:
    """By npm, into the cache: all of it, or nothing."""
    npm = shutil.which("npm")
    other = "or unpack the npm package onnxruntime-web yourself and name its folder dist: --runtime FOLDER"
    if npm is None:
        raise InvalidArgument(f"the target web needs onnxruntime-web {RUNTIME}: install npm, {other}")
    tell(f"fetching onnxruntime-web {RUNTIME} with npm")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        command = [npm, "pack", "--silent", f"onnxruntime-web@{RUNTIME}"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=600, check=False)
        packed = next(Path(place).glob("*.tgz"), None)
        if done.returncode or packed is None:
            raise InvalidArgument(
                f"npm could not fetch onnxruntime-web {RUNTIME} ({done.stderr.strip()[:200]}); {other}"
            )
        own = Path(place, "dist")
        own.mkdir()
        with tarfile.open(packed) as archive:
            for name in PARTS:
                part = archive.extractfile(f"package/dist/{name}")
                assert part is not None, name
                (own / name).write_bytes(part.read())
        shutil.rmtree(folder, ignore_errors=True)
        own.rename(folder)


TARGET: Target = Web()
