"""The last frame of every stream by an index that follows from its length, as sequence classifiers write it."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.inputs.check import check
from tests.models import model, node
from tests.selection import rotated
from tests.side import Batch, streamed

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from examples.quiet import quiet  # noqa: E402
from tests.inputs.test_exported import EXPORTERS  # noqa: E402

ONES = {"bind": {"attention_mask": "ones"}, "filled": {"attention_mask": 1}}


def by_arange(h: Any, n: Any) -> Any:
    return h[torch.arange(h.shape[0]), n - 1]


def by_gather(h: Any, n: Any) -> Any:
    return torch.gather(h, 1, (n - 1).view(-1, 1, 1).expand(-1, 1, h.shape[2]))


def by_gather_of_three(h: Any, n: Any) -> Any:
    """The second to last frame, three times."""
    return torch.gather(h, 1, (n - 2)[:, None, None].repeat(1, 3, h.shape[2]))


def time_first(h: Any, n: Any) -> Any:
    return h.transpose(0, 1).tanh()[n - 1, torch.arange(h.shape[0])]


CASES = [
    (w, b, e) for w in (by_arange, by_gather, by_gather_of_three, time_first) for b in (1, 2, "B") for e in EXPORTERS
]
CASES.remove((time_first, "B", "legacy"))  # it folds the streams behind time


class Last(torch.nn.Module):
    """[B, T, 3] and a mask -> [B, 4], or with lengths in the mask's place."""

    def __init__(self, take: Any, length: str = "sum", stride: int = 1) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 4, 3, stride, 1)
        self.take, self.length, self.stride = take, length, stride

    def forward(self, x: Any, attention_mask: Any) -> Any:
        h = self.conv(x.transpose(1, 2)).transpose(1, 2)
        n = attention_mask
        if self.length == "sum":
            n = attention_mask.sum(1)
        elif self.length == "argmax":
            n = (torch.arange(attention_mask.shape[1]) * attention_mask).argmax(-1) + 1
        return self.take(h, (n - 1) // self.stride + 1 if self.stride > 1 else n)


def exported(module: Any, path: Path, batch: int | str, exporter: str) -> onnx.ModelProto:
    streams, given = batch if isinstance(batch, int) else 2, module.length == "given"
    mask = torch.full((streams,), 40) if given else torch.ones(streams, 40, dtype=torch.long)
    example = (torch.randn(streams, 40, 3), mask)
    free: list[dict[int, str]] = [{0: "B", 1: "T"}, {0: "B"} if given else {0: "B", 1: "T"}]
    free = free if batch == "B" else [{k: v for k, v in f.items() if k} for f in free]
    names = ["x", "attention_mask"]
    how: dict[str, Any] = {"dynamo": False, "dynamic_axes": dict(zip(names, free, strict=True)), "opset_version": 17}
    if exporter == "dynamo":
        how = {"dynamo": True, "dynamic_shapes": tuple(free), "opset_version": 18, "verbose": False}
        how["external_data"] = False
    with quiet():
        torch.onnx.export(module.eval(), example, str(path), input_names=names, output_names=["y"], **how)
    return onnx.load(path)


@pytest.mark.parametrize(("take", "batch", "exporter"), CASES)
def test_the_last_frame_of_every_stream(take: Any, batch: int | str, exporter: str, tmp_path: Path) -> None:
    proto = exported(Last(take), tmp_path / "m.onnx", batch, exporter)
    least = 2 if take is by_gather_of_three else 1
    for pulse in (1, 4):
        for streams in (1, 3) if batch == "B" else (batch,):
            stream = check(proto, pulse, range(least, 15), batch=int(streams), **ONES)
        assert stream.proof.complete and stream.spec.shortest == least and len(stream.inputs) == 1


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("batch", [1, "B"])
@pytest.mark.parametrize("take", rotated([by_arange, by_gather], 2))
def test_the_last_place_that_a_mask_lets_through(take: Any, batch: int | str, exporter: str, tmp_path: Path) -> None:
    """(arange * mask).argmax(), as Hugging Face finds it."""
    proto = exported(Last(take, "argmax"), tmp_path / "m.onnx", batch, exporter)
    check(proto, 4, range(1, 15), batch=2 if batch == "B" else 1, **ONES)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("take", rotated([by_arange, by_gather], 2))
def test_the_last_frame_behind_a_stride(take: Any, exporter: str, tmp_path: Path) -> None:
    proto = exported(Last(take, stride=2), tmp_path / "m.onnx", "B", exporter)
    check(proto, 4, range(1, 20), batch=2, **ONES)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("take", rotated([by_arange, by_gather], 2))
def test_lengths_as_an_input(take: Any, exporter: str, tmp_path: Path) -> None:
    proto = exported(Last(take, "given"), tmp_path / "m.onnx", "B", exporter)
    stream, whole = pulsify.stream(proto, pulse=4, bind={"attention_mask": "T"}), Batch(proto)
    for length in range(1, 14):
        x = np.random.default_rng(length).standard_normal((2, length, 3)).astype(np.float32)
        feeds = {"x": x, "attention_mask": np.full(2, length)}
        for cuts in ([length], [1] * length):
            got = streamed(stream, feeds, cuts)
            np.testing.assert_allclose(got["y"], whole.run(feeds)["y"], rtol=1e-5, atol=1e-6)


def halfway(h: Any, n: Any) -> Any:
    return h[torch.arange(h.shape[0]), n // 2]


def halfway_by_gather(h: Any, n: Any) -> Any:
    return torch.gather(h, 1, (n // 2).view(-1, 1, 1).expand(-1, 1, h.shape[2]))


def of_other_streams(h: Any, n: Any) -> Any:
    return h[h.shape[0] - 1 - torch.arange(h.shape[0]), n - 1]


def of_some_channels(h: Any, n: Any) -> Any:
    return torch.gather(h, 1, (n - 1).view(-1, 1, 1).expand(-1, 1, 2))


REFUSED = [(halfway, "B"), (halfway, 1), (halfway_by_gather, "B"), (of_other_streams, "B"), (of_some_channels, "B")]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(("take", "batch"), REFUSED)
def test_what_is_not_the_last_frame_of_each_is_refused(
    take: Any, batch: int | str, exporter: str, tmp_path: Path
) -> None:
    proto = exported(Last(take), tmp_path / "m.onnx", batch, exporter)
    with pytest.raises(pulsify.NotStreamable) as refused:
        pulsify.stream(proto, pulse=4, bind={"attention_mask": "ones"})
    assert refused.value.op.startswith("Gather") and refused.value.hint


def test_an_index_made_of_data_is_refused_and_channels_of_the_last_frame_are_not() -> None:
    ints = {"a": np.array([1]), "one": np.array([1]), "c": np.array([[2]]), "zero": np.array([[0]])}
    length = [node("Shape", "x", "n", start=1, end=2), node("Sub", "n one", "l"), node("Unsqueeze", "l a", "last")]
    nodes = [*length, node("Concat", "zero last c", "i", axis=1), node("GatherND", "x i", "y")]
    check(model(nodes, {"x": [1, "T", 4]}, ["y"], ints), 4, range(1, 12))
    with pytest.raises(pulsify.NotStreamable, match="among the streams"):
        pulsify.stream(model(nodes, {"x": ["B", "T", 4]}, ["y"], ints), pulse=4)
    best = [node("ArgMax", "x", "i", axis=1), node("GatherElements", "x i", "y", axis=1)]
    with pytest.raises(pulsify.NotStreamable, match="depends on the data") as refused:
        pulsify.stream(model(best, {"x": [1, "T", 4]}, ["y"]), pulse=4)
    assert refused.value.op == "GatherElements"
