"""Outputs that follow from the length alone, in every shape and for several streams: positions, counts, masks."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pulsify
from tests.inputs.check import check
from tests.models import frames, model, node
from tests.selection import rotated

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from tests.inputs.test_exported import EXPORTERS, exported  # noqa: E402


class Known(torch.nn.Module):
    """Frames doubled, and something that is the same in every stream."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Any) -> Any:
        return 2 * x, self.make(x)


def _ones(x: Any) -> Any:
    return torch.ones(x.shape[0], x.shape[1], dtype=torch.int64)


MAKERS = {
    "every second place": lambda x: torch.arange(x.shape[1])[::2].float(),
    "every second place, by stream": lambda x: torch.arange(x.shape[1])[::2][None].expand(x.shape[0], -1),
    "a count": lambda x: torch.ones(x.shape[1], dtype=torch.int64).cumsum(0),
    "a count by stream": lambda x: _ones(x).cumsum(1),
    "every third count, time first": lambda x: _ones(x).cumsum(1)[:, ::3].transpose(0, 1),
    "a table of places": lambda x: torch.sin(torch.arange(x.shape[1]).float()[None, :, None] * torch.ones(4)),
    "a mask up to the length": lambda x: torch.arange(x.shape[1])[None, None] < _ones(x).sum(1)[:, None, None] - 1,
    "the mask, over channels": lambda x: (_ones(x)[:, None] > 0).expand(-1, 5, -1),
}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("what", rotated(list(MAKERS), 2))
def test_known_outputs_of_several_streams(what: str, exporter: str, tmp_path: Path) -> None:
    proto = exported(Known(MAKERS[what]), ("B", "T", 3), tmp_path / "m.onnx", dynamo=exporter == "dynamo")
    for streams in (1, 3):
        for pulse in (1, 6):
            try:
                check(proto, pulse, range(1, 20), batch=streams)
            except pulsify.InvalidPulse:  # every second or third frame
                check(proto, 6 * pulse, range(1, 20), batch=streams)


def test_rows_of_streams_twice_over() -> None:
    nodes = [
        node("Shape", "x", "b", start=0, end=1),
        node("Shape", "x", "t", start=1, end=2),
        node("Mul", "b two", "rows"),
        node("Concat", "rows t", "dims", axis=0),
        node("Expand", "one dims", "ones"),
        node("Relu", "x", "y"),
    ]
    given = {"two": np.array([2]), "one": np.array([[7]])}
    proto = model(nodes, {"x": ["B", "T", 3]}, ["y", "ones"], given, dtypes={"ones": np.int64})
    for streams in (1, 3):
        check(proto, 4, batch=streams)


@pytest.mark.parametrize("outputs", [["y"], ["y", "h"]])
def test_places_times_a_value_of_each_stream(outputs: list[str]) -> None:
    nodes = [
        node("Shape", "x", "t", start=1, end=2),
        node("Squeeze", "t", "n"),
        node("Range", "zero n one", "p"),
        node("Cast", "p", "f", to=1),
        node("Reshape", "f column", "g"),
        node("Mul", "g scale", "h"),
        node("Add", "x h", "y"),
    ]
    given = {"zero": np.array(0), "one": np.array(1), "column": np.array([1, -1, 1])}
    proto = model(nodes, {"x": ["B", "T", 3], "scale": ["B", 1, 3]}, outputs, given)
    for streams in (1, 3):
        check(proto, 4, batch=streams)


def test_places_counted_through_all_streams_are_refused() -> None:
    nodes = [
        node("Shape", "x", "dims", start=0, end=2),
        node("ReduceProd", "dims", "n", keepdims=0),
        node("Range", "zero n one", "places"),
        node("Relu", "x", "y"),
    ]
    given = {"zero": np.array(0), "one": np.array(1)}
    proto = model(nodes, {"x": ["B", "T", 3]}, ["y", "places"], given, dtypes={"places": np.int64})
    with pytest.raises(pulsify.NotStreamable) as refused:
        pulsify.stream(proto, pulse=4)
    assert refused.value.op == "Range" and refused.value.hint
    check(proto, 4, set={"B": 1})


@pytest.mark.parametrize("what", ["a count", "a count by stream"])
def test_streams_of_a_pool_have_their_own_places(what: str, tmp_path: Path) -> None:
    """Whether they are rows of an output or the whole of it, and wherever the others are."""
    proto = exported(Known(MAKERS[what]), ("B", "T", 3), tmp_path / "m.onnx", dynamo=True)
    stream = pulsify.stream(proto, pulse=2)
    pool, places, got = pulsify.Pool(stream, 3), stream.outputs[1].name, dict[int, list[int]]()
    for first in (0, 3, 5):  # each begins when the one before is so far
        lane = pool.open()
        lane.push(frames(1, 11 - first, 3))
        lane.flush()
        for one, result in pool.run().items() if first == 5 else pool.step(rounds=2).results.items():
            got.setdefault(one.number, []).extend(result[places].reshape(-1))
    assert sorted(got.values(), key=len) == [list(range(1, n + 1)) for n in (6, 8, 11)]
