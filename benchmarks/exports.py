"""How the models of the benchmark are registered, and written by PyTorch's exporters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from examples.quiet import quiet

EXPORTS: dict[str, Callable[[Path], object]] = {}


def written(export: Callable[[Path], object]) -> Callable[[Path], object]:
    """Registers a function that writes a model by itself."""
    EXPORTS[export.__name__] = export
    return export


def module(
    *shape: int | str, dynamo: bool = False, many: bool = False
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Registers a function that builds a module; `many` also as one for any number of recordings."""

    def register(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        name = build.__name__
        EXPORTS[name] = lambda path: _export(build(), shape, path, dynamo)
        if many:
            EXPORTS[f"{name}_many"] = lambda path: _export(build(), ("B", *shape[1:]), path, dynamo)
        return build

    return register


def _export(module: nn.Module, shape: tuple[int | str, ...], path: Path, dynamo: bool) -> None:
    free = {axis: d for axis, d in enumerate(shape) if isinstance(d, str)}
    sizes = {"B": 2, "T": 48, "S": 4807}
    x = torch.randn([sizes[d] if isinstance(d, str) else d for d in shape])
    how = {"dynamic_axes": {"x": free}, "dynamo": False}
    if dynamo:
        how = {"dynamic_shapes": ({axis: torch.export.Dim(d, min=2, max=1 << 24) for axis, d in free.items()},)}
        how |= {"dynamo": True, "external_data": False, "verbose": False}
    with quiet():
        torch.onnx.export(
            module.eval(), (x,), str(path), input_names=["x"], output_names=["y"],
            opset_version=18 if dynamo else 17, **how,
        )  # fmt: skip
