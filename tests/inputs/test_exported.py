"""Torch's own layers and models with masks, by both exporters."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import onnx
import pytest

import pulsify
from tests.inputs.check import check
from tests.models import frames
from tests.selection import rotated

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from examples.masked_encoder.export import export  # noqa: E402
from examples.masked_encoder.model import Config, build  # noqa: E402
from examples.quiet import quiet  # noqa: E402

EXPORTERS = ("legacy", "dynamo")
TINY = Config(channels=4, width=8, heads=2, layers=2, chunk=4, past=1, kernels=((5, 2), (3, 2)))


def exported(module: Any, dims: tuple[int | str, ...], path: Path, dynamo: bool) -> onnx.ModelProto:
    """x of these dimensions, those with a name open."""
    free = {i: d for i, d in enumerate(dims) if isinstance(d, str)}
    example = (torch.randn([{"B": 2, "T": 40}.get(str(d), d) for d in dims]),)
    how: dict[str, Any] = {"dynamo": False, "dynamic_axes": {"x": free}, "opset_version": 17}
    if dynamo:
        how = {"dynamo": True, "dynamic_shapes": (free,), "opset_version": 18, "verbose": False, "external_data": False}
    with quiet():
        torch.onnx.export(module.eval(), example, str(path), input_names=["x"], output_names=["y"], **how)
    return onnx.load(path)


@pytest.mark.parametrize("exporter", rotated(EXPORTERS, 2))
def test_a_chunked_encoder_with_a_mask(exporter: str, tmp_path: Path) -> None:
    proto = onnx.load(export(build(TINY), tmp_path / "m.onnx", exporter))
    for streams in (1, 2):
        stream = check(proto, 16, [12, 13, 27, 40, 63, 64, 100], batch=streams, filled={"attention_mask": 1})
    assert [i.name for i in stream.inputs] == ["input_values"] and stream.proof.complete


class Layer(torch.nn.Module):
    """An encoder layer of torch's own under a band of six frames."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=batch_first)
        self.time = 1 if batch_first else 0

    def forward(self, x: Any) -> Any:
        at = torch.arange(x.shape[self.time])
        behind = at[:, None] - at[None]
        return self.layer(x, src_mask=(behind < 0) | (behind > 5))


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_layer_of_torch_with_any_batch(batch_first: bool, tmp_path: Path) -> None:
    dims = ("B", "T", 16) if batch_first else ("T", "B", 16)
    proto = exported(Layer(batch_first), dims, tmp_path / "m.onnx", dynamo=True)
    for streams in (1, 3):
        check(proto, 4, [1, 2, 5, 9, 20], batch=streams)


def test_a_layer_of_torch_that_the_older_exporter_ties_to_a_length(tmp_path: Path) -> None:
    proto = exported(Layer(True), ("B", "T", 16), tmp_path / "m.onnx", dynamo=False)
    with pytest.raises(pulsify.NotStreamable, match="runs at 40 frames and at no other") as refused:
        pulsify.stream(proto, pulse=4)
    assert refused.value.op == "Reshape" and "dynamo=True" in refused.value.hint


class Looped(torch.nn.Module):
    """A mask drawn by loops over frames: numbers, to an exporter that traces. Thousands of nodes."""

    def forward(self, x: Any) -> Any:
        size = int(x.shape[1])
        seen = torch.zeros(size, size, dtype=torch.bool)
        for i in range(size):
            for j in range(max(0, i - 5), i + 1):
                seen[i, j] = True
        return torch.softmax((x @ x.transpose(1, 2)).masked_fill(~seen, -1e9), -1) @ x


def test_a_mask_drawn_by_loops_is_named_at_once(tmp_path: Path) -> None:
    proto = exported(Looped(), ("B", "T", 8), tmp_path / "m.onnx", dynamo=False)
    assert len(proto.graph.node) > 5000
    begun = time.process_time()
    with pytest.raises(pulsify.NotStreamable, match="runs at 40 frames and at no other") as refused:
        pulsify.stream(proto, pulse=4)
    assert time.process_time() - begun < 2
    assert refused.value.op == "Where" and "loops over frames" in refused.value.hint


class Recurrent(torch.nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layers, self.out = kind(8, 8, 2, batch_first=True), torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.out(self.layers(x)[0])


@pytest.mark.parametrize("kind", rotated(["LSTM", "GRU"], 2))
def test_shapes_that_an_exporter_declares_wrongly_are_left_out(kind: str, tmp_path: Path) -> None:
    proto = exported(Recurrent(getattr(torch.nn, kind)), (1, "T", 8), tmp_path / "m.onnx", dynamo=True)
    declared = {v.name: v for v in (*proto.graph.value_info, *proto.graph.output)}
    if not any(d.dim_value == 0 for v in declared.values() for d in v.type.tensor_type.shape.dim if not d.dim_param):
        pytest.skip("this exporter declares no shape wrongly")
    stream = pulsify.stream(proto, pulse=4)
    assert stream.verification is not None
    assert stream.run(frames(1, 11, 8)).shape == (1, 11, 3)


class Within(torch.nn.Module):
    """A GRU inside of every frame, over [B*T], that starts at numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.start = torch.nn.GRU(3, 4, batch_first=True), torch.tensor([0.1, -0.2, 0.3, 0.4])

    def forward(self, x: Any) -> Any:
        b, t, f, c = x.shape
        h = torch.ones(1, b * t, 4) * self.start
        return self.cell(x.reshape(b * t, f, c), h)[0].reshape(b, t, f, 4)


def test_first_states_of_frames_that_are_not_zero(tmp_path: Path) -> None:
    proto = exported(Within(), ("B", "T", 5, 3), tmp_path / "m.onnx", dynamo=False)
    for streams in (1, 3):
        check(proto, 4, range(1, 10), batch=streams)


class Twice(torch.nn.Module):
    """Two frames a turn."""

    def forward(self, x: Any) -> Any:
        return _twice(x)


@torch.jit.script
def _twice(x: torch.Tensor) -> torch.Tensor:
    out = []
    h = torch.zeros(x.shape[0], x.shape[2])
    for t in range(x.shape[1]):
        h = 0.5 * h + x[:, t]
        out.append(h)
        out.append(torch.tanh(h))
    return torch.stack(out, 1)


def test_a_scripted_loop_that_appends_twice(tmp_path: Path) -> None:
    check(exported(Twice(), (1, "T", 3), tmp_path / "m.onnx", dynamo=False), 3)


class Thinned(torch.nn.Module):
    """Every third frame, picked by a mask."""

    def forward(self, x: Any) -> Any:
        return 2 * x[:, torch.arange(x.shape[1]) % 3 == 0]


@pytest.mark.parametrize("dynamo", [False, True])
def test_frames_picked_by_a_mask_that_repeats(dynamo: bool, tmp_path: Path) -> None:
    check(exported(Thinned(), ("B", "T", 4), tmp_path / "m.onnx", dynamo), 6, range(1, 20), batch=2)


class Last(torch.nn.Module):
    """The mean of the last frames, more than short streams have."""

    def forward(self, x: Any) -> Any:
        return x[:, -200:].mean(1)


@pytest.mark.parametrize("dynamo", [False, True])
def test_more_of_the_last_frames_than_short_streams_have(dynamo: bool, tmp_path: Path) -> None:
    proto = exported(Last(), ("B", "T", 4), tmp_path / "m.onnx", dynamo)
    with pytest.raises(pulsify.NotStreamable, match="keeps the last 200 frames") as refused:
        pulsify.stream(proto, pulse=8)
    assert 'set={"T": "200+n"}' in refused.value.hint
    check(proto, 8, [200, 201, 209, 450], batch=2, set={"T": "200+n"})


class Positions(torch.nn.Module):
    """Places counted by the mask, with a number where it hides: as Hugging Face makes `position_ids`."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 4)

    def forward(self, x: Any, attention_mask: Any) -> Any:
        places = attention_mask.long().cumsum(-1) - 1
        return x + self.table(places.masked_fill(attention_mask == 0, 1))


class Kept(torch.nn.Module):
    """What counts behind a stride, written at the last frame and summed up backwards: as wav2vec 2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(4, 4, 4, stride=2, padding=1)

    def forward(self, x: Any, attention_mask: Any) -> Any:
        h = self.conv(x.transpose(1, 2)).transpose(1, 2)
        count = torch.div(attention_mask.sum(-1) - 2, 2, rounding_mode="floor") + 1
        kept = torch.zeros(h.shape[:2], dtype=attention_mask.dtype)
        kept[(torch.arange(h.shape[0]), count - 1)] = 1
        return h * kept.flip([-1]).cumsum(-1).flip([-1]).bool()[..., None]


def masked(module: Any, path: Path, dynamo: bool) -> onnx.ModelProto:
    """x and an attention_mask, both with any batch and length."""
    free = {0: "B", 1: "T"}
    given = (torch.randn(2, 40, 4), torch.ones(2, 40, dtype=torch.int64))
    how: dict[str, Any] = {
        "dynamo": False, "dynamic_axes": {"x": free, "attention_mask": free}, "opset_version": 17
    }  # fmt: skip
    if dynamo:
        how = {"dynamo": True, "dynamic_shapes": (free, free), "opset_version": 18, "verbose": False}
        how["external_data"] = False
    with quiet():
        torch.onnx.export(module.eval(), given, str(path), input_names=["x", "attention_mask"], **how)
    return onnx.load(path)


@pytest.mark.parametrize("dynamo", [False, True])
def test_positions_that_a_mask_counts_and_hides(dynamo: bool, tmp_path: Path) -> None:
    """A choice by a mask that is ones throughout was taken for one that changes, and refused."""
    proto = masked(Positions(), tmp_path / "m.onnx", dynamo)
    check(proto, 4, [*range(1, 12), 49, 50, 51], batch=2, filled={"attention_mask": 1})


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_mask_written_at_the_last_frame_and_summed_up_backwards(dynamo: bool, tmp_path: Path) -> None:
    proto = masked(Kept(), tmp_path / "m.onnx", dynamo)
    with pytest.raises(pulsify.NotStreamable, match="how many streams there are") as refused:
        pulsify.stream(proto, pulse=4)
    assert 'set={"B": 1}' in refused.value.hint
    check(proto, 4, range(2, 20), filled={"attention_mask": 1}, set={"B": 1})


class Offsets(torch.nn.Module):
    """A bias by the offset, out of a table that ends: as T5's and Swin's are."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.table = most, torch.nn.Parameter(torch.randn(2 * most - 1))

    def forward(self, x: Any) -> Any:
        at = torch.arange(x.shape[1])
        behind = at[:, None] - at[None]
        scores = x @ x.transpose(1, 2) + self.table[behind + self.most - 1]
        return torch.softmax(scores.masked_fill((behind < 0) | (behind > 6), float("-inf")), -1) @ x


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_table_of_offsets_ends(dynamo: bool, tmp_path: Path) -> None:
    """The newer exporter picks by GatherND: lengths that the table has no rows for were tried, and it was refused."""
    proto = exported(Offsets(300), ("B", "T", 4), tmp_path / "m.onnx", dynamo)
    check(proto, 4, [1, 2, 9, 299, 300, 301], batch=2)


class Strided(torch.nn.Module):
    """Ten samples a frame, whose number is written down behind two strides."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv1d(1, 8, 10, 5), torch.nn.Conv1d(8, 8, 3, 2)

    def forward(self, x: Any) -> Any:
        y = self.second(torch.relu(self.first(x[:, None]))).transpose(1, 2)
        return y.reshape(int(y.shape[1]), 2, 4).sum(1)


def test_a_length_that_is_written_down_behind_strides(tmp_path: Path) -> None:
    """4,000 samples are 399 frames, as are 4,009: how many samples make a frame shows at two lengths only nearly."""
    path = tmp_path / "m.onnx"
    torch.onnx.export(
        Strided(), (torch.randn(1, 4000),), path, dynamo=False, input_names=["x"], dynamic_axes={"x": {1: "T"}}
    )
    with pytest.raises(pulsify.NotStreamable, match=r"within 10 of 40\d\d frames and at no other") as refused:
        pulsify.stream(onnx.load(path))
    assert refused.value.op == "Reshape" and "(399)" in refused.value.reason


class Decibels(torch.nn.Module):
    """As the spectrograms of music libraries are cut: 80 dB below the loudest of all."""

    def forward(self, x: Any) -> Any:
        loud = 10 * torch.log10(x.abs().clamp(min=1e-10))
        most = loud.reshape(x.shape[0], -1).max(1)[0].reshape(-1, 1, 1)
        return torch.maximum(loud, most - 80)


@pytest.mark.parametrize("dynamo", [False, True], ids=["torch.jit", "torch.export"])
def test_the_loudest_of_all_frames_is_known_at_the_end(dynamo: bool, tmp_path: Path) -> None:
    """Whatever axes are merged: what is in the way is that frames are compared with it."""
    proto = exported(Decibels(), ("B", "T", 16), tmp_path / "m.onnx", dynamo=dynamo)
    for options in ({}, {"set": {"B": 1}}):
        with pytest.raises(pulsify.NotStreamable, match="known only when the stream has ended") as refused:
            pulsify.stream(proto, **options)
        assert refused.value.kind == "whole-stream" and "reshape" not in refused.value.hint
