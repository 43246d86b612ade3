"""Thousands of live streams on one card: a pool with all of them resident, chunk after chunk, as if for a minute.

python -m benchmarks.gpu_live --keep FOLDER [--streams 16000] [--seconds 60] [--dtype bfloat16]

Every stream gets a chunk a round, in batches of the pool; frames come from the card and results stay there. A round
must take no longer than a chunk lasts. The streams in --keep are those of benchmarks.gpu (--prepare).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pulsify
from benchmarks.gpu import _made_up, say

FRAME = 0.01  # seconds of sound


def live(s: argparse.Namespace) -> dict[str, Any]:
    saved = s.keep / f"stream-{s.size}-{s.context.replace(',', '-')}.onnx"
    _made_up(saved)
    stream = pulsify.load(saved)
    chunk = stream.pulse * FRAME
    options = {"device": s.device, "dtype": s.dtype, "mode": s.mode}
    pool = pulsify.Pool(stream, s.streams, backend="torch", options=options, check=False)
    lanes = [pool.open() for _ in range(s.streams)]
    slots = np.array([lane.slot for lane in lanes])
    size = min(s.batch or pool._slots.largest, s.streams)  # type: ignore[attr-defined]
    say(f"{s.streams} streams open, batches of {size}")
    frames = torch.randn(size, *stream.inputs[0].dims[1:], device=s.device)
    rounds, late = [], 0
    for number in range(int(np.ceil(s.seconds / chunk)) + s.warm):
        began = time.perf_counter()
        for start in range(0, s.streams, size):
            part = slots[start : start + size]
            pool.exchange(part, frames[: len(part)])
        _wait(s.device)
        spent = time.perf_counter() - began
        if number >= s.warm:
            rounds.append(spent)
            late += spent > chunk
        if number in (0, s.warm - 1, s.warm):
            say(f"round {number}: {spent:.3f} s of {chunk:.2f} s")
    return {
        "streams": s.streams, "batch": size, "dtype": s.dtype, "mode": s.mode, "rounds": len(rounds), "late": late,
        "chunk_s": chunk, "p50_s": float(np.median(rounds)), "p99_s": float(np.percentile(rounds, 99)),
        "longest_s": max(rounds), "memory_gb": _memory(s.device),
    }  # fmt: skip


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _memory(device: str) -> float:
    return 0.0 if device == "cpu" else (torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--size", default="full")
    parser.add_argument("--context", default="70,13")
    parser.add_argument("--streams", type=int, default=16000)
    parser.add_argument("--batch", type=int, help="streams in a call; as many as the pool takes at once if not given")
    parser.add_argument("--seconds", type=float, default=60.0, help="of sound in every stream")
    parser.add_argument("--warm", type=int, default=8, help="rounds that are not counted: recording, the first chunks")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--mode", default="graph")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, metavar="OUT")
    s = parser.parse_args()
    found = live(s)
    say(", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()))
    if s.json:
        s.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
