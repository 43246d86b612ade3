"""Writes the batch denoiser as ONNX with either of PyTorch's exporters, or the stream written by hand.

python -m examples.gtcrn.export --exporter dynamo denoiser.onnx
python -m examples.gtcrn.export --by-hand step.onnx

One export a process: PyTorch's newer exporter takes lengths for constants in a second one with recurrent layers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from examples.gtcrn.by_hand import Step
from examples.gtcrn.model import Denoiser, build
from examples.quiet import quiet

OPSETS = {"legacy": 17, "dynamo": 18}


def export(
    model: Denoiser, path: str | Path, exporter: str = "legacy", opset: int | None = None, batch: int | None = None
) -> Path:
    """spec [B, 257, T, 2] in, out [B, 257, T, 2] out: time stays symbolic, and so does the batch if none is given."""
    path = Path(path)
    example = (torch.randn(batch or 2, model.config.bins, 37, 2),)
    free = {2: "T"} if batch else {0: "B", 2: "T"}
    how = {"dynamic_axes": {"spec": free, "out": free}, "dynamo": False}
    if exporter == "dynamo":
        how = {"dynamic_shapes": {"spec": free}, "dynamo": True, "external_data": False, "verbose": False}
    with quiet():
        torch.onnx.export(
            model, example, str(path), input_names=["spec"], output_names=["out"],
            opset_version=opset or OPSETS[exporter], **how,
        )  # fmt: skip
    return path


def export_step(model: Denoiser, path: str | Path) -> Path:
    """The stream written by hand."""
    path, step = Path(path), Step(model).eval()
    states = step.states()
    with quiet():
        torch.onnx.export(
            step, (torch.randn(1, model.config.bins, 1, 2), *states.values()), str(path), dynamo=False,
            input_names=["spec", *states], output_names=["out", *(f"new_{name}" for name in states)],
            opset_version=OPSETS["legacy"],
        )  # fmt: skip
    return path


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--by-hand", action="store_true", help="the stream written by hand, not the batch model")
    parser.add_argument("--exporter", choices=OPSETS, default="legacy")
    parser.add_argument("--opset", type=int)
    parser.add_argument("--batch", type=int, help="a fixed number of recordings; any, if not given")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    model = build(seed=args.seed)
    if args.by_hand:
        export_step(model, args.out)
    else:
        export(model, args.out, args.exporter, args.opset, args.batch)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{args.out}: {trained / 1e3:.1f} thousand trained weights, one frame is 16 ms")


if __name__ == "__main__":
    main()
