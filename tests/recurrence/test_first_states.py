"""Recurrences over another axis than time, whose first states differ by frame or by stream: by both exporters."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pulsify
from tests.inputs.check import check
from tests.inputs.test_exported import exported
from tests.selection import rotated

torch = pytest.importorskip("torch")

BANDS, ROWS = 3, 400  # of a frame; of the table of states
STATES = ("zeros", "same", "repeated", "data", "first", "table", "table_tiled", "phase", "phase_seen", "sine")


class Bands(torch.nn.Module):
    """A recurrence over the bands of each frame, [B*T, bands, C]; states: where it begins."""

    def __init__(self, cell: str, states: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.cell, self.states = getattr(torch.nn, cell)(2, 4, batch_first=True), states
        self.linear = torch.nn.Linear(2 * BANDS, 4)
        self.one, self.two, self.table = (torch.nn.Parameter(torch.randn(1, n, 4)) for n in (1, 2, ROWS))

    def forward(self, x: Any) -> Any:
        b, t = x.shape[:2]
        h = self.first(x, b, t)
        y, _ = self.cell(x.reshape(b * t, BANDS, 2), (h, torch.tanh(h)) if isinstance(self.cell, torch.nn.LSTM) else h)
        return y.reshape(b, t, BANDS * 4)

    def first(self, x: Any, b: Any, t: Any) -> Any:
        at = torch.arange(t)
        match self.states:
            case "zeros":
                return torch.zeros(1, b * t, 4)
            case "same":
                return self.one.expand(1, b * t, 4).contiguous()
            case "repeated":
                return self.one.repeat(1, b * t, 1)
            case "data":
                return self.linear(x.reshape(b, t, 2 * BANDS)).reshape(1, b * t, 4)
            case "first":
                return self.linear(x[:, :1].reshape(b, 1, 2 * BANDS)).expand(b, t, 4).reshape(1, b * t, 4)
            case "table":
                return self.table[:, :t].unsqueeze(1).expand(1, b, t, 4).reshape(1, b * t, 4)
            case "table_tiled":
                return self.table[:, :t].repeat(1, b, 1)
            case "phase":
                return self.two[:, at % 2].repeat(1, b, 1)
            case "phase_seen":
                return self.two[0, at % 2].repeat(b, 1).view(1, b * t, 4)
            case "backwards":
                return self.table[:, :t].flip(1).repeat(1, b, 1)
            case _:
                return torch.sin(at[:, None] * torch.arange(1, 5)[None] * 0.3)[None].repeat(1, b, 1)


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("states", rotated(STATES, 3))
def test_states_go_with_their_frames(states: str, cell: str, dynamo: bool, tmp_path: Path) -> None:
    proto = exported(Bands(cell, states), ("B", "T", BANDS, 2), tmp_path / "m.onnx", dynamo)
    for pulse in (1, 4):
        for streams in (1, 3):
            stream = check(proto, pulse, [1, 2, 3, 4, 5, 9, 31], batch=streams)
    assert stream.proof.complete


@pytest.mark.parametrize("states", ["table", "table_tiled"])
def test_a_stream_is_no_longer_than_the_table(states: str, tmp_path: Path) -> None:
    stream = pulsify.stream(exported(Bands("GRU", states), ("B", "T", BANDS, 2), tmp_path / "m.onnx", False), pulse=4)
    frames = torch.randn(1, ROWS + 4, BANDS, 2).numpy()
    assert stream.run(frames[:, :ROWS]).shape == (1, ROWS, BANDS * 4)
    with pytest.raises(pulsify.PulsifyError, match=str(ROWS)):
        stream.run(frames)


@pytest.mark.parametrize("dynamo", [False, True])
def test_states_that_wait_for_the_end_are_refused(dynamo: bool, tmp_path: Path) -> None:
    proto = exported(Bands("GRU", "backwards"), ("B", "T", BANDS, 2), tmp_path / "m.onnx", dynamo)
    with pytest.raises(pulsify.NotStreamable) as caught:
        pulsify.stream(proto, pulse=4)
    assert caught.value.node and caught.value.hint


class BothWays(Bands):
    """Bands forwards from one state and backwards from another, or from the same."""

    def __init__(self, states: str) -> None:
        super().__init__("GRU", states)
        self.cell = torch.nn.GRU(2, 4, batch_first=True, bidirectional=True)

    def forward(self, x: Any) -> Any:
        b, t = x.shape[:2]
        each = self.two[:, torch.arange(t) % 2]
        match self.states:
            case "beside zeros":
                h = torch.cat([torch.zeros(1, b * t, 4), each.repeat(1, b, 1)])
            case "tiled":
                h = each.repeat(2, b, 1)
            case _:
                h = each.repeat(1, b, 1).expand(2, b * t, 4).contiguous()
        return self.cell(x.reshape(b * t, BANDS, 2), h)[0].reshape(b, t, BANDS * 8)


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("states", ["beside zeros", "tiled", "expanded"])
def test_both_ways_begin_as_often_as_there_are_streams(states: str, dynamo: bool, tmp_path: Path) -> None:
    proto = exported(BothWays(states), ("B", "T", BANDS, 2), tmp_path / "m.onnx", dynamo)
    for streams in (1, 3):
        check(proto, 4, [1, 3, 4, 9, 31], batch=streams)


class Inner(Bands):
    """The bands of all frames but the first and the last two."""

    def forward(self, x: Any) -> Any:
        return super().forward(x[:, 2:-2])


@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_a_stream_without_a_frame_for_the_recurrence_is_turned_down(cell: str, tmp_path: Path) -> None:
    """ONNX Runtime ends the process on an empty batch, so batch must not be asked either."""
    stream = pulsify.stream(exported(Inner(cell, "data"), ("B", "T", BANDS, 2), tmp_path / "m.onnx", False), pulse=4)
    assert stream.spec.shortest == 5
    with pytest.raises(pulsify.InvalidLength, match="too few"):
        stream.run(torch.randn(1, 4, BANDS, 2).numpy())
    assert stream.run(torch.randn(1, 5, BANDS, 2).numpy()).shape == (1, 1, BANDS * 4)
