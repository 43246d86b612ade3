"""Overlap-add and resampling as torch's exporters write them, with any number of streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

import pulsify
from tests.inputs.check import check

torch = pytest.importorskip("torch")


class OverlapAdd(torch.nn.Module):
    """Frames added up, and divided by the envelope of their windows: both are cut first, where it is zero."""

    def __init__(self, window: int, hop: int) -> None:
        super().__init__()
        self.hop, self.half = hop, window // 2
        self.register_buffer("window", torch.hann_window(window))
        self.register_buffer("eye", torch.eye(window)[:, None])

    def forward(self, x: Any) -> Any:
        frames = (x * self.window).transpose(1, 2)
        squares = (self.window**2)[None, :, None].expand(1, -1, x.shape[1])
        y, envelope = (
            torch.nn.functional.conv_transpose1d(f, self.eye, stride=self.hop)[:, 0] for f in (frames, squares)
        )
        return y[:, self.half : -self.half] / envelope[:, self.half : -self.half]


class Resampled(torch.nn.Module):
    """A bank of filters, one for each phase of the new rate, and as many samples as the new rate has."""

    def __init__(self, old: int, new: int) -> None:
        super().__init__()
        self.old, self.new, self.reach = old, new, 5
        self.register_buffer("filters", torch.randn(new, 1, 2 * self.reach + old))

    def forward(self, x: Any) -> Any:
        streams, samples = x.shape
        padded = torch.nn.functional.pad(x, (self.reach, self.reach + self.old))
        y = torch.nn.functional.conv1d(padded[:, None], self.filters, stride=self.old)
        return y.transpose(1, 2).reshape(streams, -1)[:, : (self.new * samples + self.old - 1) // self.old]


def exported(module: Any, example: Any, path: Path, dynamo: bool) -> onnx.ModelProto:
    torch.manual_seed(0)
    how: dict[str, Any] = {"dynamo": False, "opset_version": 17, "dynamic_axes": {"x": {0: "B", 1: "T"}}}
    if dynamo:
        dims = {0: torch.export.Dim("B"), 1: torch.export.Dim("T")}
        how = {"dynamo": True, "verbose": False, "dynamic_shapes": (dims,)}
    torch.onnx.export(module, (example,), path, input_names=["x"], output_names=["y"], **how)
    return onnx.load(path)


@pytest.mark.parametrize("dynamo", [False, True], ids=["torch.jit", "torch.export"])
@pytest.mark.parametrize(("window", "hop"), [(16, 8), (15, 5)])
def test_an_overlap_add_with_the_envelope_cut_first(window: int, hop: int, dynamo: bool, tmp_path: Path) -> None:
    proto = exported(OverlapAdd(window, hop), torch.randn(2, 40, window), tmp_path / "m.onnx", dynamo)
    for batch in (1, 3):
        check(proto, 2, [2, 3, 4, 9, 20], batch=batch)


@pytest.mark.parametrize("dynamo", [False, True], ids=["torch.jit", "torch.export"])
@pytest.mark.parametrize(("old", "new"), [(3, 2), (2, 3)])
def test_resampling_with_any_number_of_streams(old: int, new: int, dynamo: bool, tmp_path: Path) -> None:
    proto = exported(Resampled(old, new), torch.randn(2, 60), tmp_path / "m.onnx", dynamo)
    for batch in (1, 3):
        check(proto, None, [1, 2, 3, 4, 9, 20, 41], batch=batch)


def test_resampling_of_a_batch_that_is_divided_by_the_length(tmp_path: Path) -> None:
    """What is no multiple at every size stays refused, at the node."""

    class Mixed(Resampled):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            return y * (x.shape[1] // x.shape[0])

    proto = exported(Mixed(3, 2), torch.randn(2, 60), tmp_path / "m.onnx", True)
    with pytest.raises(pulsify.NotStreamable) as refused:
        pulsify.stream(proto)
    assert refused.value.kind in ("batch", "length", "not-proven") and refused.value.node
