"""The step as C beside ONNX Runtime's, in turns, and how near it is to what a core can do.

python -m benchmarks.native [--only NAME ...] [--seconds 1]

Peak: multiply-adds a second of a loop that does nothing else, twelve sums of eight floats, on the same core.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from pathlib import Path

import pulsify
from benchmarks.cases import CASES, prepare
from benchmarks.runners import endless, warmed
from benchmarks.turns import Run, measure
from pulsify.backends.choosing import multiply_adds
from pulsify.backends.native.library import library
from pulsify.backends.native.render import HEAD, prelude

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    most = peak()
    print(f"peak {most / 1e9:.1f} G multiply-adds a second; microseconds a pulse, best round; ratios: median round")
    head = (
        f"{'model':20s} {'MMAC':>7s} {'step ort':>9s} {'native':>9s} {'':>6s} {'push ort':>9s} {'native':>9s} {'':>6s}"
    )
    print(f"{head} {'of peak':>6s} {'open s':>6s}")
    for case in CASES:
        if given.only and case.name not in given.only:
            continue
        paths = prepare([case.batch], given.folder)
        stream = pulsify.stream(paths[case.batch], pulse=case.pulse, verify=False)
        print(line(case.name, stream, given.seconds, most), flush=True)


if __name__ == "__main__":
    main()
