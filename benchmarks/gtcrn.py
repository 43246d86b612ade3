"""A denoiser frame by frame: pulsify's stream beside the stream written by hand.    python -m benchmarks.gtcrn

All on one thread and in one run, in turns of a few frames: what slows the machine down slows all of them down.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

import pulsify

Array = npt.NDArray[Any]
REPOSITORY = Path(__file__).parent.parent
BATCH_FRAMES, TURN = 500, 50  # frames of the batch model's input; of every other one's turn
WARM = 2  # calls of a turn that are not counted: the caches are another one's


def make(folder: Path, name: str, *arguments: str) -> Path:
    """One export a process, see there."""
    path = folder / f"{name}.onnx"
    command = [sys.executable, "-m", "examples.gtcrn.export", *arguments, str(path)]
    subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    return path


def opened(path: Path, profiled: bool = False) -> ort.InferenceSession:
    """One thread; what the runtime makes of the graph is written beside it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.optimized_model_filepath = str(_optimized(path))
    options.enable_profiling, options.profile_file_prefix = profiled, str(path.with_suffix(""))
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _optimized(path: Path) -> Path:
    return path.with_suffix(".optimized.onnx")


class Bound:
    """A step with all tensors in place: state `x` comes out as `new_x` and goes in again, the two sides in turn."""

    def __init__(self, model: ort.InferenceSession) -> None:
        self.model = model
        inputs, outputs = ({p.name: _zeros(p) for p in ports} for ports in (model.get_inputs(), model.get_outputs()))
        self.kept = [inputs, outputs]  # bindings know only their addresses
        self.x, self.y = next(iter(inputs.values())), next(iter(outputs.values()))
        other = {name: outputs.get(f"new_{name}", array) for name, array in inputs.items()}
        back = {name: inputs.get(name.removeprefix("new_"), array) for name, array in outputs.items()}
        self.sides = [self._bind(inputs, outputs), self._bind(other, back)]

    @property
    def state_bytes(self) -> int:
        return sum(a.nbytes for name, a in self.kept[0].items() if f"new_{name}" in self.kept[1])

    def _bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> ort.IOBinding:
        binding = self.model.io_binding()
        for name, a in inputs.items():
            binding.bind_input(name, "cpu", 0, a.dtype.type, a.shape, a.ctypes.data)
        for name, a in outputs.items():
            binding.bind_output(name, "cpu", 0, a.dtype.type, a.shape, a.ctypes.data)
        return binding

    def __call__(self, frame: Array) -> Array:
        self.x[...] = frame
        self.model.run_with_iobinding(self.sides[0])
        self.sides.reverse()
        return self.y


def _zeros(port: Any) -> Array:
    return np.zeros(port.shape, {"tensor(float)": np.float32, "tensor(int32)": np.int32}[port.type])


def measure(runs: Mapping[str, tuple[Callable[[Array], Any], int]], rounds: int) -> dict[str, Array]:
    """Microseconds per frame of every call, by name; each run has the frames one call takes."""
    rng = np.random.default_rng(0)
    chunks = {name: rng.standard_normal((1, 257, n, 2)).astype(np.float32) for name, (_, n) in runs.items()}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (run, frames) in runs.items():
            for i in range(-WARM, max(TURN // frames, 1)):
                start = time.perf_counter_ns()
                run(chunks[name])
                if i >= 0:
                    taken[name].append((time.perf_counter_ns() - start) / 1e3 / frames)
    return {name: np.array(times) for name, times in taken.items()}


def print_times(runs: Mapping[str, tuple[Callable[[Array], Any], int]], rounds: int) -> None:
    print(f"{'µs per frame':34s}{'p50':>8s}{'p99':>8s}")
    for label, times in measure(runs, rounds).items():
        print(f"{label:34s}{np.percentile(times, 50):8.1f}{np.percentile(times, 99):8.1f}")


def print_sizes(name: str, path: Path, step: Bound | None) -> None:
    written, left = (len(onnx.load(p).graph.node) for p in (path, _optimized(path)))
    state = f", {step.state_bytes} bytes of state" if step else ""
    print(f"{name:34s}{written:5d} nodes, {left} once optimised{state}")


def profile(path: Path, frames: int = 400) -> dict[str, tuple[int, float]]:
    """Nodes and microseconds a frame (of its better half), by operator. Timing costs time: compare, do not add up."""
    model = opened(path, profiled=True)
    step = Bound(model)
    x = np.random.default_rng(0).standard_normal(step.x.shape).astype(np.float32)
    for _ in range(frames):
        step(x)
    taken: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    for event in json.loads(Path(model.end_profiling()).read_text()):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            taken[event["args"]["op_name"], event["name"]].append(event["dur"])
    spent: dict[str, tuple[int, float]] = {}
    for (op, _), times in taken.items():
        calls, total = spent.get(op, (0, 0.0))
        spent[op] = calls + 1, total + float(np.mean(np.sort(times)[: frames // 2]))
    return spent


def print_profiles(ours: Mapping[str, tuple[int, float]], theirs: Mapping[str, tuple[int, float]]) -> None:
    print(f"{'µs per frame (nodes)':24s}{'pulsify':>16s}{'by hand':>16s}")
    none = (0, 0.0)
    for op in sorted({*ours, *theirs}, key=lambda op: -max(ours.get(op, none)[1], theirs.get(op, none)[1])):
        cells = [f"{us:8.1f} ({calls:3d})" for calls, us in (ours.get(op, none), theirs.get(op, none))]
        print(f"{op:24s}" + "".join(f"{cell:>16s}" for cell in cells))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exporter", choices=["legacy", "dynamo"], default="legacy")
    parser.add_argument("--rounds", type=int, default=40, help=f"of {TURN} frames each")
    parser.add_argument("--profile", action="store_true", help="also time by operator, of both steps")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        batch, hand = make(folder, "batch", "--exporter", args.exporter), make(folder, "hand", "--by-hand")
        streams = {p: pulsify.stream(batch, pulse=p, set={"B": 1}, verify=False) for p in (1, 2, 5)}
        streams[1].save(step := folder / "step.onnx")
        whole, ours, theirs = opened(batch), Bound(opened(step)), Bound(opened(hand))
        runs: dict[str, tuple[Callable[[Array], Any], int]] = {
            "pulsify, session.push": (streams[1].session().push, 1),
            "pulsify, bare step": (ours, 1),
            "by hand, bare step": (theirs, 1),
            "pulsify, session.push, pulse 2": (streams[2].session().push, 2),
            "pulsify, session.push, pulse 5": (streams[5].session().push, 5),
            f"batch, {BATCH_FRAMES} frames": (lambda x: whole.run(None, {"spec": x}), BATCH_FRAMES),
        }
        print_times(runs, args.rounds)
        print()
        print_sizes("pulsify", step, ours)
        print_sizes("by hand", hand, theirs)
        print_sizes("batch", batch, None)
        if args.profile:
            print()
            print_profiles(profile(step), profile(hand))


if __name__ == "__main__":
    main()
