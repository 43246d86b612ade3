"""Writes the encoder as batch ONNX with either of PyTorch's exporters, and tells what its stream costs.

python -m examples.masked_encoder.export --exporter dynamo --stream encoder.onnx
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

import pulsify
from examples.masked_encoder.model import Encoder, build
from examples.quiet import quiet

OPSETS = {"legacy": 17, "dynamo": 18}
NAMES = ["input_values", "attention_mask"]
RATE = 16_000


def export(model: Encoder, path: str | Path, exporter: str = "legacy") -> Path:
    """Batch and time stay symbolic in both inputs."""
    path, free = Path(path), {0: "B", 1: "T"}
    example = (torch.randn(2, 12_000), torch.ones(2, 12_000, dtype=torch.int64))
    how = {"dynamic_axes": dict.fromkeys(NAMES, free), "dynamo": False}
    if exporter == "dynamo":
        how = {"dynamic_shapes": dict.fromkeys(NAMES, free), "dynamo": True, "external_data": False, "verbose": False}
    with quiet():
        torch.onnx.export(
            model, example, str(path), input_names=NAMES, output_names=["hidden", "lengths"],
            opset_version=OPSETS[exporter], **how,
        )  # fmt: skip
    return path


def figures(path: str | Path, seconds: float = 20.0) -> dict[str, float]:
    """What it takes to convert the model, and to run its stream over so many seconds."""
    begun = time.process_time()
    stream = pulsify.stream(path)
    converted = time.process_time() - begun
    sound = np.random.default_rng(0).standard_normal((1, int(seconds * RATE))).astype(np.float32)
    session, took = stream.session(), []
    for at in range(0, sound.shape[1] - stream.pulse, stream.pulse):
        begun = time.perf_counter()
        session.push(sound[:, at : at + stream.pulse])
        took.append(time.perf_counter() - begun)
    assert stream.verification is not None
    return {
        "converted_cpu_s": converted,
        "pulse_ms": 1e3 * stream.pulse / RATE,
        "latency_ms": 1e3 * stream.latency / RATE,
        "state_bytes": stream.state_bytes,
        "step_ms": 1e3 * float(np.median(took)),
        "of_real_time": float(np.median(took)) * RATE / stream.pulse,
        "error": stream.verification.error,
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--exporter", choices=OPSETS, default="legacy")
    parser.add_argument("--stream", action="store_true", help="convert it, and tell what the stream costs")
    args = parser.parse_args(argv)
    export(build(), args.out, args.exporter)
    print(f"{args.out}: 320 samples a frame, 16 frames a chunk")
    if args.stream:
        for name, value in figures(args.out).items():
            print(f"  {name:16}{value:12.4g}")


if __name__ == "__main__":
    main()
