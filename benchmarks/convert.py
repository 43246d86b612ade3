"""How long conversion takes, and how that grows with depth.    python -m benchmarks.convert"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx

import pulsify

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.chains import chain
from benchmarks.encoder import chunk_encoder


def seconds(model: onnx.ModelProto, pulse: int, verify: bool) -> float:
    """The best of three conversions."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        pulsify.stream(model, pulse=pulse, verify=verify)
        best = min(best, time.perf_counter() - start)
    return best


def report(name: str, build: Callable[[int], onnx.ModelProto], depths: tuple[int, ...], pulse: int = 8) -> None:
    before = None
    for depth in depths:
        model = build(depth)
        plain, checked = seconds(model, pulse, False), seconds(model, pulse, True)
        growth = f"{plain / before:5.2f}x the half" if before else ""
        print(f"{name:28s} {depth:4d} layers  {plain:6.3f} s  with verify {checked:6.3f} s  {growth}")
        before = plain


def main() -> None:
    pulsify.stream(chain(1), pulse=1)  # imports
    report("dilated residual chain", chain, (30, 60, 120))
    report("skip-connected chain", lambda n: chain(n, skip=True), (30, 60, 120))
    report("chunk encoder", chunk_encoder, (1, 2, 4, 8, 16, 32))


if __name__ == "__main__":
    main()
