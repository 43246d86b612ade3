"""Frames cut by an index table that is mirrored at both ends, as Kaldi does if edges are not snipped."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pulsify
from tests.inputs.check import check
from tests.models import model, node

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from tests.inputs.test_exported import EXPORTERS, exported  # noqa: E402


def by_where(i: Any, n: Any) -> Any:
    """Kaldi's own: the last sample is shown twice."""
    i = torch.where(i < 0, -i - 1, i)
    return torch.where(i >= n, 2 * n - 1 - i, i)


def by_minimum(i: Any, n: Any) -> Any:
    i = i.abs()
    return torch.minimum(i, 2 * (n - 1) - i)


def by_comparison(i: Any, n: Any) -> Any:
    i = torch.where(i <= -1, -i, i)
    return torch.where(i > n - 1, 2 * n - 2 - i, i)


def by_a_choice_in_a_choice(i: Any, n: Any) -> Any:
    return torch.where(i < 0, -1 - i, torch.where(i >= n, 2 * n - 1 - i, i))


def by_a_choice_with_the_end_first(i: Any, n: Any) -> Any:
    return torch.where(i >= n, 2 * n - 1 - i, torch.where(i >= 0, i, -1 - i))


def by_a_choice_around_a_minimum(i: Any, n: Any) -> Any:
    return torch.where(i > 0, torch.minimum(i, 2 * (n - 1) - i), -i)


NESTED = [by_a_choice_in_a_choice, by_a_choice_with_the_end_first, by_a_choice_around_a_minimum]


class Frames(torch.nn.Module):
    """[B, T] -> [B, frames, size], a frame every `shift` samples, in the middle of them."""

    def __init__(self, mirror: Any, size: int = 25, shift: int = 10) -> None:
        super().__init__()
        self.mirror, self.size, self.shift = mirror, size, shift

    def forward(self, x: Any) -> Any:
        n = x.shape[1]
        count = (n + self.shift // 2) // self.shift
        start = torch.arange(count) * self.shift + (self.shift // 2 - self.size // 2)
        return x[:, self.mirror(start[:, None] + torch.arange(self.size)[None], n)] * torch.hann_window(self.size)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("mirror", [by_where, by_minimum, by_comparison, *NESTED])
def test_frames_with_edges_not_snipped(mirror: Any, exporter: str, tmp_path: Path) -> None:
    proto = exported(Frames(mirror), ("B", "T"), tmp_path / "m.onnx", dynamo=exporter == "dynamo")
    for pulse, streams in ((10, 1), (40, 2)):
        stream = check(proto, pulse, range(24, 90), batch=streams)
        assert stream.proof.complete and stream.spec.shortest <= 24


def test_frames_of_kaldi_s_own_sizes(tmp_path: Path) -> None:
    proto = exported(Frames(by_where, 400, 160), (1, "T"), tmp_path / "m.onnx", dynamo=True)
    stream = check(proto, 160, [400, 401, 479, 480, 559, 560, 561, 1000, 1600])
    assert stream.spec.shortest <= 400 and stream.outputs[0].delay <= 2


class Shown(torch.nn.Module):
    """A pad by places."""

    def forward(self, x: Any) -> Any:
        return x[:, by_minimum(torch.arange(x.shape[1] + 8) - 4, x.shape[1])]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_pad_by_places_takes_the_streams_that_a_pad_takes(exporter: str, tmp_path: Path) -> None:
    proto = exported(Shown(), ("B", "T"), tmp_path / "m.onnx", dynamo=exporter == "dynamo")
    for pulse in (1, 4, 7):
        stream = check(proto, pulse, range(5, 30), batch=2)
        with pytest.raises(pulsify.InvalidLength, match="at least 5"):
            stream.run(np.zeros((1, 4), np.float32))


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("off", [-9, -2])
def test_choices_in_choices_that_mirror_nothing(off: int, exporter: str, tmp_path: Path) -> None:
    """Behind the end they go on elsewhere: neither the lesser nor the larger of two."""

    def elsewhere(i: Any, n: Any) -> Any:
        return torch.where(i < 0, -1 - i, torch.where(i >= n, 2 * n - 1 + off - i, i))

    proto = exported(Frames(elsewhere), ("B", "T"), tmp_path / "m.onnx", dynamo=exporter == "dynamo")
    with pytest.raises(pulsify.NotStreamable) as refused:
        pulsify.stream(proto, pulse=10)
    assert refused.value.op.startswith("Gather") and refused.value.hint


def test_a_table_mirrored_at_a_place_of_its_own_and_one_that_runs_backwards() -> None:
    """At frame 7, and not at either end."""
    nodes = [
        node("Shape", "x", "t", start=1, end=2),
        node("Squeeze", "t", "n"),
        node("Range", "zero n one", "i"),
        node("Sub", "turn i", "back"),
        node("Abs", "back", "away"),
        node("Gather", "x away", "y", axis=1),
    ]
    given = {"zero": np.array(0), "one": np.array(1), "turn": np.array(7)}
    check(model(nodes, {"x": ["B", "T"]}, ["y"], given), 4, range(8, 30), batch=2)
    nodes[3:4] = [node("Sub", "n one", "last"), node("Sub", "last i", "back")]
    with pytest.raises(pulsify.NotStreamable) as refused:
        pulsify.stream(model(nodes, {"x": ["B", "T"]}, ["y"], given), pulse=4)
    assert refused.value.op == "Gather" and "relative to the current one" in refused.value.hint
