"""Writes the batch encoder, or the preprocessor in front of it, as ONNX with either of PyTorch's exporters.

python -m examples.fastconformer.export --size tiny --context 70,13 --exporter legacy encoder.onnx
python -m examples.fastconformer.export --size tiny --part preprocessor --exporter legacy preprocessor.onnx
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
from torch import Tensor, nn

from examples.fastconformer.model import SIZES, Encoder, build
from examples.fastconformer.preprocessor import HOP, Preprocessor
from examples.quiet import quiet

OPSETS = {"legacy": 17, "dynamo": 18}
Axes = dict[str, dict[int, str]]  # what stays symbolic


def export(encoder: Encoder, path: str | Path, exporter: str = "legacy", opset: int | None = None) -> Path:
    """Batch and time stay symbolic: audio_signal [B, mels, T] and length [B] in, outputs and encoded_lengths out."""
    frames = 8 * 3 * encoder.config.chunk + 5
    example = (torch.randn(2, encoder.config.mels, frames), torch.tensor([frames, frames - 9]))
    inputs: Axes = {"audio_signal": {0: "B", 2: "T"}, "length": {0: "B"}}
    outputs: Axes = {"outputs": {0: "B", 2: "tokens"}, "encoded_lengths": {0: "B"}}
    return _write(encoder, example, inputs, outputs, Path(path), exporter, opset)


def export_preprocessor(mels: int, path: str | Path, exporter: str = "legacy", opset: int | None = None) -> Path:
    """Batch and time stay symbolic: audio [B, S] and audio_length [B] in, features and features_length out."""
    samples = 20 * HOP + 7
    example = (torch.randn(2, samples), torch.tensor([samples, samples - 2 * HOP]))
    inputs: Axes = {"audio": {0: "B", 1: "S"}, "audio_length": {0: "B"}}
    outputs: Axes = {"features": {0: "B", 2: "F"}, "features_length": {0: "B"}}
    return _write(Preprocessor(mels).eval(), example, inputs, outputs, Path(path), exporter, opset)


def _write(
    module: nn.Module, example: tuple[Tensor, ...], inputs: Axes, outputs: Axes, path: Path, exporter: str,
    opset: int | None,
) -> Path:  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    names = {"input_names": list(inputs), "output_names": list(outputs), "opset_version": opset or OPSETS[exporter]}
    with quiet():
        if exporter == "legacy":
            with _one_file(module, path) as written:
                torch.onnx.export(
                    module, example, str(written), dynamic_axes={**inputs, **outputs}, dynamo=False, **names
                )
        else:
            torch.onnx.export(
                module, example, str(path), dynamic_shapes=inputs, dynamo=True, external_data=_large(module),
                verbose=False, **names,
            )  # fmt: skip
    return path


def _large(module: nn.Module) -> bool:
    """More than one protobuf file can hold."""
    return sum(p.numel() * p.element_size() for p in module.parameters()) > 1 << 30


@contextlib.contextmanager
def _one_file(module: nn.Module, path: Path) -> Iterator[Path]:
    """The older exporter writes large weights to a file each: gather them in one beside the model."""
    if not _large(module):
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
    parser.add_argument("--part", choices=["encoder", "preprocessor"], default="encoder")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="of the encoder; the preprocessor fits it")
    parser.add_argument("--context", default="70,13", help="tokens seen before and after: 70,13 or 70,0")
    parser.add_argument("--norm", choices=["layer_norm", "batch_norm"], default="layer_norm")
    parser.add_argument("--exporter", choices=OPSETS, default="dynamo")
    parser.add_argument("--opset", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.part == "preprocessor":
        mels = SIZES[args.size].mels
        export_preprocessor(mels, args.out, args.exporter, args.opset)
        print(f"{args.out}: {mels} mel bands, a frame every {HOP} samples")
        return
    left, right = (int(n) for n in args.context.split(","))
    config = dataclasses.replace(SIZES[args.size], context=(left, right), norm=args.norm)
    encoder = build(config, args.seed)
    export(encoder, args.out, args.exporter, args.opset)
    count = sum(p.numel() for p in encoder.parameters())
    print(f"{args.out}: {count / 1e6:.1f} million parameters, pulse {8 * config.chunk} frames for one chunk")


if __name__ == "__main__":
    main()
