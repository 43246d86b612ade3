"""What the step costs, node by node: ONNX Runtime's own profiler on the form that sessions run. Plain data."""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.backends.ort.backend import BACKEND, profiled
from pulsify.backends.seam import Options
from pulsify.report.figures import Figures
from pulsify.verify.inputs import random_array

if TYPE_CHECKING:
    from pulsify.api import Stream

WARM = 4096  # pulses at the most until the steady step runs
KERNEL = "_kernel_time"


def cost_figures(stream: Stream, seconds: float = 1.0) -> Figures:
    """Microseconds of every node of a warm pulse, the median of many, the dearest first; and by operator.

    The profiler itself takes time at every node, the same at each: so much is taken off (`profiler_us`) that nodes sum
    up to what a pulse takes without it.
    """
    program = BACKEND.lower(stream.model, stream.spec, 1)
    bare = median(_run(stream, BACKEND.compile(program, stream.spec, Options()), seconds / 2)) * 1e6
    with tempfile.TemporaryDirectory() as folder:
        opened = profiled(program, stream.spec, folder)
        _run(stream, opened, seconds / 2)
        files = [(r is opened.steady, Path(r.end_profiling())) for r in (opened.runner, opened.steady) if r is not None]
        events = {steady: json.loads(path.read_text("utf-8")) for steady, path in files}
    warm = _kernels(events.get(True, []))
    found, step = (warm, "steady") if warm else (_kernels(events[False]), "general")
    extra = overhead([n["us"] for n in found], bare)
    nodes = sorted(({**n, "us": max(n["us"] - extra, 0.0)} for n in found), key=lambda n: -n["us"])
    by: dict[str, list[float]] = defaultdict(list)
    for n in nodes:
        by[n["op"]].append(n["us"])
    operators = [{"op": op, "nodes": len(us), "us": sum(us)} for op, us in by.items()]
    return {
        "step": step,
        "total_us": bare,
        "profiler_us": extra,
        "nodes": nodes,
        "operators": sorted(operators, key=lambda o: -float(o["us"])),
    }


def overhead(times: Sequence[float], total: float) -> float:
    """What is to be taken off each of these times, none of which is less than nothing, for them to sum up so."""
    left = sorted(times)
    for n, least in enumerate(left):
        rest = left[n:]
        extra = max(sum(rest) - total, 0.0) / len(rest)
        if extra <= least:
            return extra
    return 0.0


def _run(stream: Stream, opened: Any, seconds: float) -> list[float]:
    """Seconds of warm pulses: noise, from the start of a stream on."""
    spec, rng = stream.spec, np.random.default_rng(0)
    statics = {
        s.name: random_array([d if isinstance(d, int) else 1 for d in s.dims], s.dtype, rng) for s in spec.statics
    }
    step = opened.stepper(1, statics)
    for i in spec.inputs:
        step.inputs[i.name][...] = random_array(step.inputs[i.name].shape, i.dtype, rng)
    warm = min(opened.program.since, WARM)
    for _ in range(warm):
        step.run(None)
    end, taken = time.perf_counter() + seconds, list[float]()
    while len(taken) < 8 or (time.perf_counter() < end and len(taken) < 1000):
        start = time.perf_counter()
        step.run(None)
        taken.append(time.perf_counter() - start)
    return taken


def _kernels(events: list[Figures]) -> list[Figures]:
    """Median time by node."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for e in events:
        if e.get("cat") == "Node" and str(e.get("name", "")).endswith(KERNEL):
            times[str(e["name"]).removesuffix(KERNEL), str(e["args"]["op_name"])].append(float(e["dur"]))
    return [{"node": node, "op": op, "us": median(us)} for (node, op), us in times.items()]
