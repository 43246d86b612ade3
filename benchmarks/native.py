"""The step as C beside ONNX Runtime's, in turns, and how near it is to what a core can do.

python -m benchmarks.native [--only NAME ...] [--seconds 1]
python -m benchmarks.native --pools     16 and 64 streams: all at once in ONNX Runtime, one by one as C

Peak: multiply-adds a second of a loop that does nothing else, twelve sums of eight floats, on the same core.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from pathlib import Path

import numpy as np
import onnx

import pulsify
from benchmarks.cases import CASES, Case, prepare
from benchmarks.runners import endless, warmed
from benchmarks.turns import Run, measure
from pulsify.backends.choosing import multiply_adds
from pulsify.backends.native.library import library
from pulsify.backends.native.render import HEAD, prelude
from pulsify.core.spec import concrete

SUMS, TIMES = 12, 1_000_000
STEP, PUSH = "step", "push"


def peak() -> float:
    """Multiply-adds a second."""
    sums = "\n".join(f"p_vec s{i} = P_SPLAT(x + {i}.0f);" for i in range(SUMS))
    adds = " ".join(f"p_madd(&s{i}, b, s{i});" for i in range(SUMS))
    ends = " + ".join(f"p_sum(s{i})" for i in range(SUMS))
    text = f"{HEAD}{prelude()}\nfloat peak(float x, int n) {{\n{sums}\nconst p_vec b = P_SPLAT(x * 1e-8f);\n"
    text += f"for (int i = 0; i < n; i++) {{ {adds} }}\nreturn {ends};\n}}\n"
    call = library(text).peak
    call.argtypes, call.restype = [ctypes.c_float, ctypes.c_int], ctypes.c_float
    best = 0.0
    for _ in range(20):
        start = time.perf_counter()
        call(1.0, TIMES)
        best = max(best, SUMS * 8 * TIMES / (time.perf_counter() - start))
    return best


def line(name: str, stream: pulsify.Stream, seconds: float, most: float) -> str:
    runs, chunk = dict[str, Run](), endless(stream)
    start = time.perf_counter()
    stream.session(backend="native")
    opened = time.perf_counter() - start
    for backend in ("ort", "native"):
        session, step = warmed(stream, backend=backend), warmed(stream, backend=backend)._stepper
        runs[f"{backend} {PUSH}"] = Run(lambda session=session: session.push(chunk()))
        runs[f"{backend} {STEP}"] = Run(step.run)
    times = measure(runs, seconds)
    adds = multiply_adds(stream.model)
    ratios = {what: times[f"native {what}"].ratio(times[f"ort {what}"]) for what in (STEP, PUSH)}
    least = {name: min(t.rounds_us) for name, t in times.items()}
    share = adds / (least[f"native {STEP}"] * 1e-6) / most
    cells = [f"{least[f'{b} {what}']:9.1f}" for what in (STEP, PUSH) for b in ("ort", "native")]
    return (
        f"{name:20s} {adds / 1e6:7.3f} {cells[0]} {cells[1]} {ratios[STEP]:5.2f}x {cells[2]} {cells[3]} "
        f"{ratios[PUSH]:5.2f}x {share:6.1%} {opened:6.1f}"
    )


def with_streams(path: Path) -> onnx.ModelProto:
    """A model of one stream, its batch made a symbol."""
    proto = onnx.load(path)
    for port in (*proto.graph.input, *proto.graph.output):
        first = port.type.tensor_type.shape.dim[0]
        if first.dim_value == 1:
            first.dim_param = "B"
    del proto.graph.value_info[:]
    return proto


def exchanging(stream: pulsify.Stream, backend: str, count: int) -> Run:
    """A pulse of so many streams, by exchange."""
    pool, port = pulsify.Pool(stream, count, backend=backend), stream.inputs[0]
    lanes = [pool.open() for _ in range(count)]
    slots = np.array([lane.slot for lane in lanes])
    x = np.random.default_rng(0).standard_normal(concrete(port.dims, count)).astype(port.dtype)
    return Run(lambda lanes=lanes: pool.exchange(slots, x), count)  # lanes that are dropped are closed


def pools(case: Case, seconds: float, folder: Path | None) -> str:
    name = case.many or case.batch
    path = prepare([name], folder)[name]
    try:
        stream = pulsify.stream(path if case.many else with_streams(path), case.pulse, opening=False, verify=False)
        runs = {f"{b} x{n}": exchanging(stream, b, n) for n in (16, 64) for b in ("ort", "native")}
    except pulsify.PulsifyError as error:
        return f"{case.name:20s} {type(error).__name__}: {str(error).splitlines()[0][:90]}"
    times = measure(runs, seconds)
    cells = []
    for n in (16, 64):
        both = times[f"ort x{n}"], times[f"native x{n}"]
        cells.append(" ".join(f"{min(t.rounds_us):9.1f}" for t in both) + f" {both[1].ratio(both[0]):5.2f}x")
    return f"{case.name:20s} {multiply_adds(stream.model) / 1e6:7.3f} {' '.join(cells)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--pools", action="store_true", help="many streams, not one")
    given = parser.parse_args()
    chosen = [case for case in CASES if not given.only or case.name in given.only]
    if given.pools:
        print(f"{'model':20s} {'MMAC':>7s} {'ort x16':>9s} {'native':>9s} {'':>6s} {'ort x64':>9s} {'native':>9s}")
        for case in chosen:
            print(pools(case, given.seconds, given.folder), flush=True)
        return
    most = peak()
    print(f"peak {most / 1e9:.1f} G multiply-adds a second; microseconds a pulse, best round; ratios: median round")
    head = (
        f"{'model':20s} {'MMAC':>7s} {'step ort':>9s} {'native':>9s} {'':>6s} {'push ort':>9s} {'native':>9s} {'':>6s}"
    )
    print(f"{head} {'of peak':>6s} {'open s':>6s}")
    for case in chosen:
        paths = prepare([case.batch], given.folder)
        stream = pulsify.stream(paths[case.batch], pulse=case.pulse, verify=False)
        print(line(case.name, stream, given.seconds, most), flush=True)


if __name__ == "__main__":
    main()
