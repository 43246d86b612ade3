"""The FastConformer encoder, chunk by chunk: pulsify beside every other way to stream it.

    python -m benchmarks.fastconformer --size tiny|small|full --context 70,13 [--threads N] [--profile] [--json OUT]

    pulsify          the batch export, converted: `session.push`
    by hand          the step of examples/fastconformer/by_hand.py, its caches bound in place
    toolkit          NeMo's own streaming export with the same weights, if given (--toolkit, see benchmarks/toolkit.py);
                     it has no step for the first chunk, which takes some hundred tokens to wear off
    sliding window   the batch export once more over the last 70 + C tokens' frames at every chunk: not the same numbers
    batch            the batch export on a long recording, divided by its chunks

Every call takes a chunk of frames and gives its tokens, as arrays. One process, in turns: what slows the machine down
slows all of them. Ratios are the median over the rounds of that round's ratio. Models of more than a gigabyte are not
all held at the same time: pulsify and by hand take turns, the others come after them.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import gc
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

import pulsify
from examples.fastconformer.by_hand import Runner
from examples.fastconformer.model import SIZES, Config
from pulsify.core import runner

Array = npt.NDArray[Any]
Push = Callable[[Array], Any]  # a chunk's frames in, its tokens out
REPOSITORY = Path(__file__).parent.parent
STRIDE = 8  # mel frames a token
FRAME_MS = 10.0
CHECKED, BATCH = 112, 280  # tokens: of the comparison with batch, of the long recording
FEW = 8  # chunks
TURN = 20e6  # nanoseconds, more or less
TOGETHER = 1 << 30  # bytes of weights: larger ones are not all opened at the same time


def make(module: str, out: Path, *arguments: str) -> Path:
    """One export a process: its memory is free again afterwards."""
    command = [sys.executable, "-m", module, *arguments, str(out)]
    subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    return out


# ---- the contestants


class Contestants:
    """By name: something that takes chunks. Each is opened when it is asked for."""

    def __init__(self, c: Config, batch: Path, by_hand: Path, toolkit: Path | None, threads: int) -> None:
        self.c, self.frames, self.threads = c, STRIDE * c.chunk, threads
        self.batch, self.by_hand, self.toolkit = batch, by_hand, toolkit
        self.opened = itertools.count()

    def options(self, profile: Path | None = None) -> ort.SessionOptions:
        """profile: the folder where the runtime writes one when the model is closed."""
        out = ort.SessionOptions()
        out.intra_op_num_threads, out.inter_op_num_threads, out.log_severity_level = self.threads, 1, 4
        if profile:
            out.enable_profiling, out.profile_file_prefix = True, str(profile / str(next(self.opened)))
        return out

    def open(self, name: str) -> Push:
        return {
            "pulsify": self._pulsify,
            "by hand": lambda: Runner(self.by_hand, self.options()).push,
            "toolkit": self._toolkit,
            "sliding window": self._sliding,
            "batch": self.whole,
        }[name]()

    def _pulsify(self) -> Push:
        session = self.session()
        return lambda chunk: session.push(chunk)["outputs"]

    def session(self, profile: Path | None = None) -> pulsify.Session:
        """`pulsify.stream(...).session()` on so many threads, for which there is no argument."""
        with mock.patch.object(runner, "options", side_effect=lambda *_: self.options(profile)):
            return pulsify.stream(self.batch, pulse=self.frames, set={"B": 1}, verify=False).session()

    def _runtime(self, path: Path) -> ort.InferenceSession:
        return ort.InferenceSession(str(path), self.options(), providers=["CPUExecutionProvider"])

    def whole(self) -> Push:
        """The batch model on a recording."""
        model = self._runtime(self.batch)
        return lambda x: model.run(None, {"audio_signal": x, "length": np.array([x.shape[2]])})[0]

    def _sliding(self) -> Push:
        left = self.c.left_chunks * self.c.chunk
        run, window = self.whole(), np.zeros((1, self.c.mels, STRIDE * (left + self.c.chunk)), np.float32)

        def push(chunk: Array) -> Array:
            window[..., : -self.frames] = window[..., self.frames :]
            window[..., -self.frames :] = chunk
            return run(window)[..., left : left + self.c.chunk]

        return push

    def _toolkit(self) -> Push:
        """Its window: two tokens' frames that it drops again, the chunk's up to the last token's own."""
        assert self.toolkit is not None
        model, c, dropped = self._runtime(self.toolkit), self.c, 2 * STRIDE
        window = np.zeros((1, c.mels, dropped + self.frames), np.float32)
        length = np.array([window.shape[2] - STRIDE + 1])
        names = ("cache_last_channel", "cache_last_time", "cache_last_channel_len")
        shapes = (1, c.layers, c.context[0], c.width), (1, c.layers, c.width, c.kernel - 1)
        caches = [*(np.zeros(s, np.float32) for s in shapes), np.zeros(1, np.int64)]

        def push(chunk: Array) -> Array:
            window[..., :dropped] = window[..., -dropped:]
            window[..., dropped:] = chunk
            tokens, _, *caches[:] = model.run(
                None, {"audio_signal": window[..., : length[0]], "length": length, **dict(zip(names, caches))}
            )
            return tokens

        return push


# ---- measuring


def measure(pushes: Mapping[str, tuple[Push, Array, int]], seconds: float, rounds: int) -> dict[str, list[list[float]]]:
    """Milliseconds per chunk, by name and round; each has the frames of a call, and how many chunks they are."""
    turns = {name: int(np.clip(TURN / _guess(push, x), 1, 50)) for name, (push, x, _) in pushes.items()}
    taken: dict[str, list[list[float]]] = {name: [] for name in pushes}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(next(iter(taken.values()))) < rounds:
        for name, (push, x, chunks) in pushes.items():
            times = []
            for _ in range(turns[name] + 1):
                start = time.perf_counter_ns()
                push(x)
                times.append((time.perf_counter_ns() - start) / 1e6 / chunks)
            taken[name].append(times[1:] if turns[name] > 1 else times[-1:])  # the first finds another one's caches
    return taken


def _guess(push: Push, x: Array) -> float:
    """Nanoseconds of a call, the better of two."""
    spans = []
    for _ in range(2):
        start = time.perf_counter_ns()
        push(x)
        spans.append(time.perf_counter_ns() - start)
    return min(spans)


def error(push: Push, x: Array, want: Array, frames: int) -> float:
    """The largest difference to the batch model's tokens from the start of a stream, in parts of their scale."""
    got = np.concatenate([np.asarray(push(x[..., i : i + frames])) for i in range(0, x.shape[2], frames)], 2)
    return float(np.abs(got - want[..., : got.shape[2]]).max() / np.abs(want).max())


@dataclasses.dataclass(frozen=True)
class Figures:
    """Milliseconds per chunk. error: None where there is nothing to compare."""

    p50: float
    p99: float
    best: float  # the 10th percentile: what a quiet machine would show
    error: float | None
    rounds: list[float]  # the median of each


def run(field: Contestants, groups: Sequence[Sequence[str]], seconds: float, rounds: int) -> dict[str, Figures]:
    """Every group by itself, in turns inside it."""
    c, rng = field.c, np.random.default_rng(0)
    heard = rng.standard_normal((1, c.mels, STRIDE * CHECKED), np.float32)
    long = rng.standard_normal((1, c.mels, STRIDE * BATCH), np.float32)
    want = np.asarray(field.whole()(heard))
    gc.collect()
    figures = {}
    for group in groups:
        pushes, errors = {}, dict[str, float | None]()
        for name in group:
            push = field.open(name)
            if name == "batch":
                pushes[name], errors[name] = (push, long, BATCH // c.chunk), None
            else:  # this also fills the caches; a window has none, and is slow
                part = heard[..., : FEW * field.frames] if name == "sliding window" else heard
                errors[name] = error(push, part, want, field.frames)
                pushes[name] = push, heard[..., : field.frames].copy(), 1
        for name, times in measure(pushes, seconds * len(group), rounds).items():
            p50, p99, best = np.percentile(np.concatenate(times), [50, 99, 10])
            medians = [float(np.median(t)) for t in times]
            figures[name] = Figures(float(p50), float(p99), float(best), errors[name], medians)
        del pushes, push
        gc.collect()
    return figures


def ratio(ours: Figures, theirs: Figures) -> float:
    """Round by round where they took turns."""
    if len(ours.rounds) == len(theirs.rounds):
        return float(np.median(np.array(ours.rounds) / np.array(theirs.rounds)))
    return ours.p50 / theirs.p50


# ---- by operator


def profile(field: Contestants, folder: Path, chunks: int = 60) -> dict[str, dict[str, tuple[int, float]]]:
    """Nodes and microseconds a chunk (the median), by operator. Timing costs time: compare, do not add up."""
    x = np.random.default_rng(0).standard_normal((1, field.c.mels, field.frames), np.float32)
    places = {name: folder / name for name in ("pulsify", "by hand")}
    for place in places.values():
        place.mkdir()
    pushes = [field.session(places["pulsify"]).push, Runner(field.by_hand, field.options(places["by hand"])).push]
    for _ in range(2 * CHECKED // field.c.chunk + chunks):
        for push in pushes:
            push(x)
    del pushes, push
    gc.collect()
    # What a session runs at the start has files of its own, shorter ones.
    longest = {name: max(place.iterdir(), key=lambda p: p.stat().st_size) for name, place in places.items()}
    return {
        name: _by_operator(json.loads(path.read_text())) for name, path in longest.items()
    }  # not those of the start


def _by_operator(events: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, float]]:
    taken = collections.defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            taken[event["args"]["op_name"], event["name"]].append(event["dur"])
    spent: dict[str, tuple[int, float]] = {}
    for (op, _), times in taken.items():
        nodes, total = spent.get(op, (0, 0.0))
        spent[op] = nodes + 1, total + float(np.median(times))
    return spent


# ---- saying it


def about(size: str, c: Config, threads: int) -> dict[str, Any]:
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    return {
        "size": size, "context": list(c.context), "frames": STRIDE * c.chunk, "threads": threads,
        "cpu": cpu or platform.machine(), "cores": os.cpu_count(),
        "versions": {"pulsify": pulsify.__version__, "onnxruntime": ort.__version__, "numpy": np.__version__},
    }  # fmt: skip


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def figure_lines(figures: Mapping[str, Figures], chunk_ms: float) -> Iterator[str]:
    yield f"{'ms per chunk':16s}{'p50':>10s}{'p99':>10s}{'p10':>10s}{'real time':>11s}{'pulsify is':>12s}{'error':>10s}"
    for name, f in figures.items():
        times = "" if name == "pulsify" else f"{ratio(figures['pulsify'], f):.2f} x"
        off = "" if f.error is None else f"{f.error:.0e}"
        yield f"{name:16s}{f.p50:10.3f}{f.p99:10.3f}{f.best:10.3f}{f.p50 / chunk_ms:11.5f}{times:>12s}{off:>10s}"


def profile_lines(spent: Mapping[str, Mapping[str, tuple[int, float]]]) -> Iterator[str]:
    ours, theirs = spent["pulsify"], spent["by hand"]
    yield f"{'µs per chunk (nodes)':26s}{'pulsify':>18s}{'by hand':>18s}{'difference':>12s}"
    none = (0, 0.0)
    for op in sorted({*ours, *theirs}, key=lambda op: -max(ours.get(op, none)[1], theirs.get(op, none)[1])):
        yield _operator_line(op, ours.get(op, none), theirs.get(op, none))
    totals = [(sum(nodes for nodes, _ in s.values()), sum(us for _, us in s.values())) for s in (ours, theirs)]
    yield _operator_line("all", *totals)


def _operator_line(op: str, ours: tuple[int, float], theirs: tuple[int, float]) -> str:
    cells = "".join(f"{us:12.0f} ({nodes:3d})" for nodes, us in (ours, theirs))
    return f"{op:26s}{cells}{ours[1] - theirs[1]:+12.0f}"


def main(argv: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(argv)
    left, right = (int(n) for n in args.context.split(","))
    c = dataclasses.replace(SIZES[args.size], context=(left, right))
    threads = args.threads or (2 if args.size == "full" else 1)
    facts = about(args.size, c, threads)
    print(", ".join(f"{k} {v}" for k, v in facts.items()))
    with tempfile.TemporaryDirectory() as name:
        folder, which = Path(name), ("--size", args.size, "--context", args.context)
        legacy = (*which, "--exporter", "legacy")
        batch = args.encoder or make("examples.fastconformer.export", folder / "batch.onnx", *legacy)
        by_hand = args.by_hand or make("examples.fastconformer.by_hand", folder / "step.onnx", *which)
        field = Contestants(c, batch, by_hand, args.toolkit, threads)
        rest = [["toolkit"]] if args.toolkit else []
        groups = [["pulsify", "by hand"], *rest, ["sliding window", "batch"]]
        groups = [["pulsify", "by hand"]] if args.steps else groups
        weights = sum(p.stat().st_size for p in (batch, Path(f"{batch}.data")) if p.exists())
        if weights < TOGETHER:
            groups = [[name for group in groups for name in group]]
        figures = run(field, groups, args.seconds, args.rounds)
        print("\n".join(figure_lines(figures, STRIDE * c.chunk * FRAME_MS)), flush=True)
        if args.profile:
            facts["profile"] = profile(field, folder)
            print("\n" + "\n".join(profile_lines(facts["profile"])))
    facts["figures"] = {name: dataclasses.asdict(f) for name, f in figures.items()}
    if args.json:
        args.json.write_text(json.dumps(facts, indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--context", default="70,13", help="tokens seen before and after: 70,13 or 70,0")
    parser.add_argument("--threads", type=int, help="of the runtime; 2 for the full size, else 1")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each contestant")
    parser.add_argument("--rounds", type=int, default=6, help="at least so many")
    parser.add_argument("--encoder", type=Path, metavar="PATH", help="a batch export that is there already")
    parser.add_argument("--by-hand", type=Path, metavar="PATH", help="a step by hand that is there already")
    parser.add_argument("--toolkit", type=Path, metavar="PATH", help="NeMo's export, see benchmarks/toolkit.py")
    parser.add_argument("--steps", action="store_true", help="only pulsify and by hand")
    parser.add_argument("--profile", action="store_true", help="also time by operator")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures")
    return parser


if __name__ == "__main__":
    main()
