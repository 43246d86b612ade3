"""Where a step's time goes, operator by operator: pulsify's beside the one written by hand.

    python -m benchmarks.operators gtcrn

Timing operators costs time itself: compare, do not add up.
"""

from __future__ import annotations

import argparse
import collections
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

import pulsify
from benchmarks.by_hand import Bound
from benchmarks.cases import CASES, prepare
from pulsify.core.runner import options

PULSES = 400
Spent = dict[str, tuple[int, float]]  # nodes and microseconds a pulse, by operator


def profile(path: Path, folder: Path) -> tuple[Spent, int, int]:
    """What operators take in the better half of all pulses; the nodes of the graph, and of what is run of it."""
    chosen, optimized = options(), folder / f"{path.stem}.optimized.onnx"
    chosen.enable_profiling, chosen.profile_file_prefix = True, str(folder / path.stem)
    chosen.optimized_model_filepath = str(optimized)
    model = ort.InferenceSession(str(path), chosen, providers=["CPUExecutionProvider"])
    step, rng = Bound(model), np.random.default_rng(0)
    for _ in range(PULSES):
        step(rng.standard_normal(step.x.shape).astype(np.float32))
    taken: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    for event in json.loads(Path(model.end_profiling()).read_text()):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            taken[event["args"]["op_name"], event["name"]].append(event["dur"])
    spent: Spent = {}
    for (op, _), times in taken.items():
        nodes, total = spent.get(op, (0, 0.0))
        spent[op] = nodes + 1, total + float(np.mean(np.sort(times)[: PULSES // 2]))
    return spent, len(onnx.load(path).graph.node), len(onnx.load(optimized).graph.node)


def together(profiles: Iterable[tuple[Spent, int, int]]) -> tuple[Spent, int, int]:
    """The steps of a pipeline as one."""
    total: Spent = {}
    counts = [0, 0]
    for spent, *nodes in profiles:
        counts = [a + b for a, b in zip(counts, nodes)]
        for op, (number, taken) in spent.items():
            before = total.get(op, (0, 0.0))
            total[op] = before[0] + number, before[1] + taken
    return total, counts[0], counts[1]


def table(ours: Mapping[str, tuple[int, float]], theirs: Mapping[str, tuple[int, float]]) -> list[str]:
    none = (0, 0.0)
    lines = [f"{'µs per pulse (nodes)':28s}{'pulsify':>16s}{'by hand':>16s}"]
    for op in sorted({*ours, *theirs}, key=lambda op: -max(ours.get(op, none)[1], theirs.get(op, none)[1])):
        cells = [f"{us:8.1f} ({nodes:3d})" for nodes, us in (ours.get(op, none), theirs.get(op, none))]
        lines.append(f"{op:28s}" + "".join(f"{cell:>16s}" for cell in cells))
    return lines


def main(argv: list[str] | None = None) -> None:
    known = {case.name: case for case in CASES if case.by_hand}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=known)
    case = known[parser.parse_args(argv).name]
    batch, *by_hand = prepare(case.models).values()
    with tempfile.TemporaryDirectory() as name:
        step = Path(name) / "pulsify.onnx"
        pulsify.stream(batch, pulse=case.pulse, verify=False).save(step)
        profiles = [together(profile(path, Path(name)) for path in paths) for paths in ([step], by_hand)]
    print("\n".join(table(profiles[0][0], profiles[1][0])))
    for label, (_, nodes, left) in zip(("pulsify", "by hand"), profiles):
        print(f"{label}: {nodes} nodes, {left} once optimised")


if __name__ == "__main__":
    main()
