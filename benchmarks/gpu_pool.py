"""What a pool costs beside its model: Python by stream, and a pulse of many streams on a device.

python -m benchmarks.gpu_pool                          bookkeeping alone, and small streams on torch's CPU
python -m benchmarks.gpu_pool --device cuda --streams 4096 --mode graph
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

import pulsify

STREAMS = 4096
PULSE = 4


def small(channels: int = 2) -> onnx.ModelProto:
    """Two convolutions that look ahead: a start, an end, a delay."""
    rng, helper = np.random.default_rng(0), onnx.helper
    weights = {n: rng.standard_normal((channels, channels, 3)).astype(np.float32) for n in ("v", "w")}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["h"], pads=[1, 1]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["y"], pads=[1, 1]),
    ]
    ports = [helper.make_tensor_value_info(n, 1, ["B", channels, "T"]) for n in ("x", "y")]
    held = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "small", ports[:1], ports[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def timed(call: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each."""
    out = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        out.append(time.perf_counter() - start)
    return sorted(out)


def bookkeeping(streams: int = STREAMS, repeats: int = 50, check: bool = False) -> float:
    """Microseconds of Python a stream in `Pool.exchange`, the model left out. check: numbers are looked at."""
    stream = pulsify.stream(small(), pulse=PULSE, verify=False)
    pool = pulsify.Pool(stream, streams, check=check)
    lanes = [pool.open() for _ in range(streams)]
    slots = np.array([lane.slot for lane in lanes])
    frames = np.zeros((streams, 2, PULSE), np.float32)
    made = {"y": np.zeros((streams, 1, 2, PULSE), np.float32)}
    engine: Any = pool._slots
    engine.run = lambda slots, positions, lengths, fed=None: {n: a[: len(slots)] for n, a in made.items()}
    for _ in range(3):
        pool.exchange(slots, frames)
    return timed(lambda: pool.exchange(slots, frames), repeats)[repeats // 2] / streams * 1e6


def on_torch(streams: int = STREAMS, repeats: int = 50, device: str = "cpu") -> float:
    """The same on torch's slots, with the block of indices and the copies of frames: only the step is left out."""
    import torch

    stream = pulsify.stream(small(), pulse=PULSE, verify=False)
    pool = pulsify.Pool(stream, streams, backend="torch", options={"device": device}, check=False)
    lanes = [pool.open() for _ in range(streams)]
    slots, frames = np.array([lane.slot for lane in lanes]), torch.zeros((streams, 2, PULSE), device=device)
    for _ in range(4):
        pool.exchange(slots, frames)
    calls: Any = pool._slots._calls  # type: ignore[attr-defined]
    for key, call in list(calls.items()):
        calls[key] = replace(call, start=lambda: None)
    return timed(lambda: pool.exchange(slots, frames), repeats)[repeats // 2] / streams * 1e6


def pulses(streams: int, device: str, mode: str, repeats: int = 100) -> dict[str, Any]:
    """Milliseconds a pulse of all streams, frames as tensors on the device: half and nearly all of them within it."""
    import torch

    stream = pulsify.stream(small(64), pulse=PULSE, verify=False)
    options = {"device": device, "mode": mode}
    pool = pulsify.Pool(stream, streams, backend="torch", options=options, check=False)
    lanes = [pool.open() for _ in range(streams)]
    slots = np.array([lane.slot for lane in lanes])
    frames = torch.zeros((streams, 64, PULSE), device=device)

    def once() -> None:
        pool.exchange(slots, frames)
        if device != "cpu":
            torch.cuda.synchronize()

    for _ in range(8):
        once()
    took = timed(once, repeats)
    return {
        "streams": streams,
        "device": device,
        "mode": mode,
        "p50_ms": round(took[len(took) // 2] * 1e3, 3),
        "p99_ms": round(took[int(len(took) * 0.99)] * 1e3, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", default="eager")
    parser.add_argument("--repeats", type=int, default=100)
    given = parser.parse_args()
    said = {
        "bookkeeping_us_per_stream": round(bookkeeping(given.streams), 4),
        "with_a_look_at_the_numbers": round(bookkeeping(given.streams, check=True), 4),
        "torch_slots_us_per_stream": round(on_torch(given.streams, device=given.device), 4),
    }
    print(json.dumps(said), flush=True)
    print(json.dumps(pulses(given.streams, given.device, given.mode, given.repeats)), flush=True)


if __name__ == "__main__":
    main()
