"""The torch back end on a card: time per step, streams in real time, kernels, beside a step written by hand.

    python -m benchmarks.gpu                                    all of it
    python -m benchmarks.gpu --prepare --only encoder --keep FOLDER         only the streams: minutes, without a card
    python -m benchmarks.gpu --only encoder --size small --context 70,13 --dtype bfloat16 --batches 1 128 --compile

    encoder       the FastConformer (609 million parameters at full size), whole, with its subsampling, in steady state
    by hand       the same step in torch, compiled and recorded (benchmarks/gpu_by_hand.py), with the same weights
    denoiser      examples/gtcrn, a frame of 16 ms a step     } ever more streams, until a step
    recogniser    the one in the package, a chunk a step      } takes longer than its sound

A stream in --keep (stream-full-70-13.onnx) whose weights are not there gets others, drawn at random: it takes seconds
instead of minutes, and there is nothing to compare then.

A step takes frames that are on the card and leaves its results there; states stay there all the time. Streams in
real time are those of the batch, times the duration of a chunk, divided by the time of a step (the median).
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

import pulsify
from benchmarks.gpu_by_hand import ByHand, captured
from examples.fastconformer.export import export as export_encoder
from examples.fastconformer.model import SIZES, Encoder
from examples.fastconformer.model import build as build_encoder
from examples.gtcrn.export import export as export_denoiser
from examples.gtcrn.model import build as build_denoiser
from pulsify.backends.seam import Options
from pulsify.backends.torch.backend import BACKEND, Executable
from pulsify.backends.torch.step import full_precision
from pulsify.backends.torch.tensors import to_wire
from pulsify.core.spec import Spec, concrete
from pulsify.core.weights import SHARED, fingerprint

RECOGNISER = Path(pulsify.__file__).parent / "demo" / "recogniser" / "encoder.onnx"
KINDS = {  # of kernels, by words in their names, the first that fits
    "attention": r"fmha|flash|attention|sdpa",
    "products": r"gemm|gemv|nvjet|cutlass|xmma|cublas|_mm_|splitk",
    "convolutions": r"conv|cudnn|implicit|winograd",
    "norms": r"layer_norm|layernorm|native_layer_norm|softmax|rnn|lstm|gru",
    "copies": r"memcpy|memset|copy|catarray|cat_",
    "the rest": r"",
}
DTYPES = ["bfloat16", "float32", "float16"]
BLOCK = 1 << 26  # bytes written at once
CHECKED = 3  # steps in which both are compared
PROFILED = 5


@dataclasses.dataclass(frozen=True)
class Row:
    """Milliseconds of a step; bytes are those of one stream's states. error: against the step by hand."""

    part: str
    who: str
    dtype: str
    mode: str
    batch: int
    p50: float
    p99: float
    streams: int
    state_bytes: int
    kernels: float | None = None
    shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
    error: float | None = None
    prepared: float = 0.0  # seconds until it could run


# ---- measuring


def timed(call: Callable[[], Any], steps: int, device: str) -> list[float]:
    """Milliseconds of every call."""
    for _ in range(5):
        call()
    if device == "cpu":
        spans = []
        for _ in range(steps):
            began = time.perf_counter()
            call()
            spans.append((time.perf_counter() - began) * 1e3)
        return spans
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(events)]


def profiled(call: Callable[[], Any], device: str, top: int = 0) -> tuple[float | None, dict[str, float]]:
    """Kernels of a step, and the share of its time by kind. top: so many of the dearest are said by name."""
    if device == "cpu":
        return None, {}
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(PROFILED):
            call()
        torch.cuda.synchronize()
    spent, count = dict.fromkeys(KINDS, 0.0), 0
    for event in found.key_averages():
        if event.self_device_time_total > 0:
            count += event.count
            kind = next(k for k, words in KINDS.items() if re.search(words, event.key, re.IGNORECASE))
            spent[kind] += event.self_device_time_total
    total = sum(spent.values()) or 1.0
    dearest = sorted(found.key_averages(), key=lambda e: -e.self_device_time_total)[:top]
    for event in dearest:
        each = event.self_device_time_total / PROFILED / 1e3
        say(f"    {each:8.3f} ms {event.count / PROFILED:6.0f} x  {event.key[:150]}")
    return count / PROFILED, {k: round(v / total, 3) for k, v in spent.items() if v}


def row(
    settings: argparse.Namespace, part: str, who: str, dtype: str, mode: str, batch: int, seconds: float,
    state_bytes: int, call: Callable[[], Any], prepared: float, error: float | None = None,
) -> Row:  # fmt: skip
    """seconds: of sound in a step."""
    spans = timed(call, settings.steps, settings.device)
    kernels, shares = profiled(call, settings.device, settings.top)
    p50, p99 = statistics.median(spans), float(np.percentile(spans, 99))
    streams = int(batch * seconds * 1e3 / p50)
    return Row(part, who, dtype, mode, batch, p50, p99, streams, state_bytes, kernels, shares, error, prepared)


# ---- the steps


class Ours:
    """A step of pulsify: the steady one if there is one. Frames and states are on the device."""

    def __init__(self, executable: Executable, spec: Spec, batch: int) -> None:
        self.spec, self.batch, rng = spec, batch, np.random.default_rng(0)
        self.kinds = executable.forms(batch).general.source.kinds
        self.stepper: Any = executable.stepper(batch, {})
        self.given = {
            i.name: to_wire(
                rng.standard_normal(concrete(i.dims, batch), np.float32).astype(i.dtype),
                str(torch.from_numpy(np.zeros(1, i.dtype)).dtype).removeprefix("torch."),
                executable.weights.device,
            )
            for i in spec.inputs
        }
        begin = executable.program.since * spec.pulse if executable.program.steady is not None else 0
        self.stepper.restore({s.name: np.zeros(concrete(s.shape, batch), s.dtype) for s in spec.states}, begin)

    def __call__(self) -> dict[str, Any]:
        made: dict[str, Any] = self.stepper.run(None, fed=self.given)
        return made

    @property
    def state_bytes(self) -> int:
        """Of one stream."""
        return sum(
            int(np.prod(concrete(s.shape, 1))) * getattr(torch, self.kinds.get(s.name) or "float32").itemsize
            for s in self.spec.states
        )


def opened(stream: pulsify.Stream, device: str, dtype: str, mode: str) -> Executable:
    own = {"device": device, "dtype": dtype, "mode": mode}
    made = BACKEND.compile(BACKEND.lower(stream.model, stream.spec, 2), stream.spec, Options(own=own))
    assert isinstance(made, Executable)
    return made


def emptied() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# ---- the encoder


def encoder_rows(s: argparse.Namespace, folder: Path) -> Iterator[Row]:
    for context in s.context:
        left, right = (int(n) for n in context.split(","))
        encoder = build_encoder(dataclasses.replace(SIZES[s.size], context=(left, right)))
        stream, same = _encoder_stream(encoder, folder / f"{s.size}-{left}-{right}.onnx")
        if s.prepare:
            continue
        part, seconds = f"encoder {s.size} [{context}]", 0.08 * (right + 1)
        for dtype in s.dtype:
            yield from _guarded(s, part, partial(_encoder_of, s, encoder, stream, same, part, seconds, dtype))
            emptied()


def _encoder_stream(encoder: Encoder, path: Path) -> tuple[pulsify.Stream, bool]:
    """The stream, and whether it has the encoder's weights."""
    saved, began = path.with_name(f"stream-{path.name}"), time.monotonic()
    if saved.exists():
        same = not _made_up(saved)
        say(f"{saved.name}: opened, {'with its weights' if same else 'weights are made up'}")
        return pulsify.load(saved), same
    export_encoder(encoder, path)
    say(f"{path.name}: exported in {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    pulsify.stream(path, pulse=8 * encoder.config.chunk, verify=False).save(saved)
    say(f"{path.name}: converted in {time.monotonic() - began:.0f} s")
    return pulsify.load(saved), True


def _made_up(saved: Path) -> bool:
    """Weights that did not come along with a stream are drawn, all of one scale: as good for times, not for numbers."""
    model = onnx.load(saved, load_external_data=False)
    ends: dict[str, int] = {}
    for tensor in model.graph.initializer:
        at = {e.key: e.value for e in tensor.external_data}
        if at:
            ends[at["location"]] = max(ends.get(at["location"], 0), int(at["offset"]) + int(at["length"]))
    lacking = [name for name in ends if not (saved.parent / name).exists()]
    for name in lacking:
        with open(saved.parent / name, "wb") as file:
            for start in range(0, ends[name], BLOCK):
                count = -(-min(BLOCK, ends[name] - start) // 4)
                file.write((torch.randn(count) * 0.02).numpy().tobytes())
    if lacking:
        kept = {p.key: p for p in model.metadata_props}
        kept[SHARED].value = json.dumps({name: fingerprint(saved.parent / name) for name in ends})
        onnx.save(model, saved)
        (saved.parent / f"{saved.name}.made-up").touch()
    return (saved.parent / f"{saved.name}.made-up").exists()


def _encoder_of(
    s: argparse.Namespace, encoder: Encoder, stream: pulsify.Stream, same: bool, part: str, seconds: float, dtype: str
) -> Iterator[Row]:
    """same: the step by hand has the same weights."""
    hand = ByHand(encoder, s.device, getattr(torch, dtype)) if s.hand else None
    for mode in s.modes:
        executable = opened(stream, s.device, dtype, mode)
        for batch in s.batches:
            call = partial(_one, s, part, stream, executable, dtype, mode, batch, seconds, hand if same else None)
            yield from _guarded(s, part, call)
            del call
            emptied()
        del executable
        emptied()
    if hand is not None:
        for batch in s.batches:
            yield from _guarded(s, part, partial(_by_hand, s, part, hand, dtype, batch, seconds))
            emptied()


def _one(
    s: argparse.Namespace, part: str, stream: pulsify.Stream, executable: Executable, dtype: str, mode: str, batch: int,
    seconds: float, hand: ByHand | None = None,
) -> Iterator[Row]:  # fmt: skip
    began = time.monotonic()
    ours = Ours(executable, stream.spec, batch)
    error = None if hand is None or batch > 16 else _apart(ours, hand)
    ours()
    if s.device != "cpu":
        torch.cuda.synchronize()
    prepared = time.monotonic() - began
    yield row(s, part, "pulsify", dtype, mode, batch, seconds, ours.state_bytes, ours, prepared, error)
    executable.release(batch)


def _apart(ours: Ours, hand: ByHand) -> float:
    """The largest difference in the first steps from empty states, in parts of the scale."""
    caches, worst = hand.caches(ours.batch), 0.0
    x = ours.given["audio_signal"]
    for _ in range(CHECKED):
        with torch.inference_mode(), full_precision():
            want = hand.step(x.to(hand.dtype), caches).transpose(1, 2).float()
        got = ours()["outputs"].float()
        worst = max(worst, float((got - want).abs().max() / want.abs().max()))
    return worst


def _by_hand(s: argparse.Namespace, part: str, hand: ByHand, dtype: str, batch: int, seconds: float) -> Iterator[Row]:
    began = time.monotonic()
    c = hand.c
    x = torch.randn(batch, c.mels, 8 * c.chunk, device=s.device, dtype=hand.dtype)
    caches = hand.caches(batch)
    with torch.inference_mode(), full_precision():
        if s.device == "cpu":
            call: Callable[[], Any] = lambda: hand.step(x, caches)  # noqa: E731
        else:
            call, _ = captured(hand, x, caches, s.compile or s.compile_hand)
        call()
        how = "eager" if s.device == "cpu" else "compile" if s.compile or s.compile_hand else "graph"
        size = sum(t.numel() * t.element_size() for t in caches) // batch
        yield row(s, part, "by hand", dtype, how, batch, seconds, size, call, time.monotonic() - began)


# ---- small models, ever more streams


def denoiser_rows(s: argparse.Namespace, folder: Path) -> Iterator[Row]:
    path = export_denoiser(build_denoiser(), folder / "denoiser.onnx", "legacy")
    yield from _more_and_more(s, "denoiser", pulsify.stream(path, pulse=1, verify=False), 0.016)


def recogniser_rows(s: argparse.Namespace, folder: Path) -> Iterator[Row]:
    stream = pulsify.stream(RECOGNISER, pulse=32, verify=False)
    yield from _more_and_more(s, "recogniser", stream, 0.32)


def _more_and_more(s: argparse.Namespace, part: str, stream: pulsify.Stream, seconds: float) -> Iterator[Row]:
    """Until a step takes longer than its sound, or memory ends."""
    for dtype in s.dtype:
        for mode in s.modes:
            executable = opened(stream, s.device, dtype, mode)
            batch = s.from_
            while batch <= s.most:
                call = partial(_one, s, part, stream, executable, dtype, mode, batch, seconds)
                made = list(_guarded(s, part, call))
                del call
                yield from made
                emptied()
                if not made or made[-1].p99 > seconds * 1e3:
                    break
                batch *= 4
            del executable
            emptied()


# ---- saying it


PARTS = {"encoder": encoder_rows, "denoiser": denoiser_rows, "recogniser": recogniser_rows}
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.0f} s  {text}", flush=True)


def _guarded(s: argparse.Namespace, part: str, rows: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """What goes wrong in one part is said, and the others go on; so is what there is no time for."""
    if time.monotonic() - BEGAN > s.limit:
        say(f"{part}: left out, {s.limit:.0f} s are over")
        return
    try:
        yield from rows()
    except Exception as error:  # whatever a card or a compiler says
        say(f"{part}: FAILED, {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        if s.trace:
            traceback.print_exc()


HEAD = (
    f"{'':26s}{'':8s} {'type':9s}{'mode':8s}{'batch':>6s}{'p50 ms':>9s}{'p99 ms':>9s}{'streams':>9s}{'MB':>7s}"
    f"{'kernels':>8s}{'error':>9s}  shares"
)


def line(r: Row) -> str:
    shares = ", ".join(f"{k} {v:.0%}" for k, v in sorted(r.shares.items(), key=lambda kv: -kv[1]))
    kernels, error = ("-" if r.kernels is None else f"{r.kernels:.0f}"), ("-" if r.error is None else f"{r.error:.1e}")
    return (
        f"{r.part:26s}{r.who:8s} {r.dtype:9s}{r.mode:8s}{r.batch:6d}{r.p50:9.3f}{r.p99:9.3f}{r.streams:9d}"
        f"{r.state_bytes / 1e6:7.2f}{kernels:>8s}{error:>9s}  {shares}"
    )


def settings(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--context", nargs="+", default=["70,13", "70,0"], metavar="LEFT,RIGHT")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES[:2])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 128, 512])
    parser.add_argument("--modes", nargs="+", choices=["eager", "graph", "compile"], default=["graph"])
    parser.add_argument("--compile", action="store_true", help="the mode compile too, and the step by hand compiled")
    parser.add_argument("--compile-hand", action="store_true", help="only the step by hand compiled")
    parser.add_argument("--no-hand", dest="hand", action="store_false", help="without the step by hand")
    parser.add_argument("--from", dest="from_", type=int, default=256, help="streams the small models begin with")
    parser.add_argument("--most", type=int, default=1 << 16, help="streams the small models end with")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--limit", type=float, default=480.0, help="seconds after which nothing new is begun")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--keep", type=Path, help="folder for the models, which are used again")
    parser.add_argument("--prepare", action="store_true", help="only write the encoder's streams, to --keep")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--top", type=int, default=0, help="name so many of the dearest kernels")
    parser.add_argument("--trace", action="store_true", help="where something failed")
    made = parser.parse_args(argv)
    made.modes = list(dict.fromkeys([*made.modes, *(["compile"] if made.compile else [])]))
    if made.device == "cpu":  # to try it out: nothing is recorded there
        made.modes = [m for m in made.modes if m != "graph"] or ["eager"]
    return made


def main(argv: Sequence[str] | None = None) -> None:
    s = settings(argv)
    about = {
        "device": torch.cuda.get_device_name() if s.device != "cpu" else "cpu", "torch": torch.__version__,
        "pulsify": pulsify.__version__, "size": s.size, "steps": s.steps,
    }  # fmt: skip
    say(", ".join(f"{k} {v}" for k, v in about.items()))
    say(HEAD)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = s.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for part in s.only:
            for found in _guarded(s, part, partial(PARTS[part], s, folder)):
                rows.append(found)
                say(line(found))
                if s.json:
                    kept = {"about": about, "rows": [dataclasses.asdict(r) for r in rows]}
                    s.json.write_text(json.dumps(kept, indent=1))
    if not rows and not s.prepare:
        sys.exit("nothing was measured")


if __name__ == "__main__":
    main()
