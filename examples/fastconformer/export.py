"""Writes the batch encoder as ONNX, with either of PyTorch's exporters.

python -m examples.fastconformer.export --size tiny --context 70,13 --exporter legacy encoder.onnx
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch

from examples.fastconformer.model import SIZES, Encoder, build
from examples.quiet import quiet

INPUTS, OUTPUTS = ["audio_signal", "length"], ["outputs", "encoded_lengths"]
OPSETS = {"legacy": 17, "dynamo": 18}


def export(encoder: Encoder, path: str | Path, exporter: str = "legacy", opset: int | None = None) -> Path:
    """Batch and time stay symbolic: audio_signal [B, mels, T] and length [B] in, outputs and encoded_lengths out."""
    path, opset = Path(path), opset or OPSETS[exporter]
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = 8 * 3 * encoder.config.chunk + 5
    example = (torch.randn(2, encoder.config.mels, frames), torch.tensor([frames, frames - 9]))
    with quiet():
        if exporter == "legacy":
            axes = {"audio_signal": {0: "B", 2: "T"}, "length": {0: "B"}}
            axes |= {"outputs": {0: "B", 2: "tokens"}, "encoded_lengths": {0: "B"}}
            with _one_file(encoder, path) as written:
                torch.onnx.export(
                    encoder, example, str(written), input_names=INPUTS, output_names=OUTPUTS, dynamic_axes=axes,
                    opset_version=opset, dynamo=False,
                )  # fmt: skip
        else:
            shapes = {"audio_signal": {0: "B", 2: "T"}, "length": {0: "B"}}
            torch.onnx.export(
                encoder, example, str(path), input_names=INPUTS, output_names=OUTPUTS, dynamic_shapes=shapes,
                opset_version=opset, dynamo=True, external_data=_large(encoder), verbose=False,
            )  # fmt: skip
    return path


def _large(encoder: Encoder) -> bool:
    """More than one protobuf file can hold."""
    return sum(p.numel() * p.element_size() for p in encoder.parameters()) > 1 << 30


@contextlib.contextmanager
def _one_file(encoder: Encoder, path: Path) -> Iterator[Path]:
    """The older exporter writes large weights to a file each: gather them in one beside the model."""
    if not _large(encoder):
        yield path
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        scattered = Path(folder) / path.name
        yield scattered
        (path.parent / f"{path.name}.data").unlink(missing_ok=True)
        onnx.save(onnx.load(scattered), path, save_as_external_data=True, location=f"{path.name}.data")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--context", default="70,13", help="tokens seen before and after: 70,13 or 70,0")
    parser.add_argument("--norm", choices=["layer_norm", "batch_norm"], default="layer_norm")
    parser.add_argument("--exporter", choices=OPSETS, default="dynamo")
    parser.add_argument("--opset", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    left, right = (int(n) for n in args.context.split(","))
    config = dataclasses.replace(SIZES[args.size], context=(left, right), norm=args.norm)
    encoder = build(config, args.seed)
    export(encoder, args.out, args.exporter, args.opset)
    count = sum(p.numel() for p in encoder.parameters())
    print(f"{args.out}: {count / 1e6:.1f} million parameters, pulse {8 * config.chunk} frames for one chunk")


if __name__ == "__main__":
    main()
