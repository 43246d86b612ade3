"""Entries of a frame picked by coordinates (GatherND), every frame by itself, on every back end."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.models import Array, frames, model, node
from tests.side import Batch, streamed

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from tests.inputs.test_exported import EXPORTERS, exported  # noqa: E402

BACKENDS = ("ort", "native", "torch", "reference")
HERE = [
    node("Shape", "x", "dims"), node("Gather", "dims one", "t"), node("Range", "n0 t n1", "p"),
]  # fmt: skip
SCALARS = {"one": np.array(1), "n0": np.array(0), "n1": np.array(1), "n3": np.array(3)}


def rows(places: Any) -> dict[str, Array]:
    return {"i": np.array(places, np.int64)}


def own_place(kind: str) -> onnx.ModelProto:
    """batch_dims=2 on [1, T, 4]: a place of its own for every frame, by position or as data say."""
    if kind == "position":
        nodes = [
            *HERE, node("Mod", "p n3", "m"), node("Unsqueeze", "m a02", "u"), node("Unsqueeze", "t a0", "t1"),
            node("Concat", "b1 t1 k", "many", axis=0), node("Expand", "u many", "i"),
            node("GatherND", "x i", "y", batch_dims=2),
        ]  # fmt: skip
        more = {"b1": np.array([1]), "k": np.array([2, 1]), "a0": np.array([0])}
        return model(nodes, {"x": [1, "T", 4]}, ["y"], {**SCALARS, "a02": np.array([0, 2, 3]), **more})
    nodes = [node("ArgMax", "x", "m", axis=2), node("Unsqueeze", "m last", "i"), node("Tanh", "x", "h")]
    nodes.append(node("GatherND", "h i", "y", batch_dims=2))
    return model(nodes, {"x": ["B", "T", 4]}, ["y"], {"last": np.array([3])})


CASES = {
    "pairs in front of time": model(
        [node("GatherND", "x i", "y")], {"x": [4, 3, "B", "T"]}, ["y"], rows([[0, 1], [-1, 2], [2, 0]])
    ),
    "a table of pairs": model(
        [node("GatherND", "x i", "y")], {"x": [4, 3, "T", 2]}, ["y"], rows([[[0, 1], [-1, 2]], [[2, 0], [3, -1]]])
    ),
    "shared batch of one": model(
        [node("GatherND", "x i", "y", batch_dims=1)], {"x": [1, 3, 4, "T"]}, ["y"], rows([[[0, 1], [-1, 2]]])
    ),
    "shared channels": model(
        [node("GatherND", "x i", "y", batch_dims=1)], {"x": [2, 3, "T"]}, ["y"], rows([[[0], [-1]], [[1], [1]]])
    ),
    "by position": own_place("position"),
    "by the data": own_place("data"),
}


def check(proto: onnx.ModelProto, batch: int = 1) -> pulsify.Stream:
    stream = pulsify.stream(proto, pulse=3)
    reference = Batch(proto)
    dims = [d.dim_value or d.dim_param for d in proto.graph.input[0].type.tensor_type.shape.dim]
    for length in (1, 2, 3, 5, 8, 12):
        x = frames(*[{"T": length, "B": batch}.get(d, d) for d in dims], seed=length)
        want = reference.run({proto.graph.input[0].name: x})
        for backend in BACKENDS:
            for cuts in ([length], [1] * length):
                got = streamed(stream, x, cuts, backend=backend)
                for name in want:
                    np.testing.assert_allclose(
                        got[name], want[name], rtol=0, atol=1e-6, err_msg=f"{backend} {length} {cuts[:2]}"
                    )
    return stream


@pytest.mark.parametrize("case", CASES)
def test_every_frame_by_itself(case: str) -> None:
    for batch in (1, 2):
        assert all(s.kind == "clock" for s in check(CASES[case], batch).spec.states)


PAIRS = (torch.tensor([2, 0]), torch.tensor([1, 3]))
WRITTEN = {
    "diagonal": lambda x: torch.diagonal(x, 0, 2, 3),
    "above it": lambda x: torch.diagonal(x, 1, 2, 3),
    "pairs": lambda x: x[:, :, PAIRS[0], PAIRS[1]],
}


class Net(torch.nn.Module):
    def __init__(self, written: Any) -> None:
        super().__init__()
        self.written = written

    def forward(self, x: Any) -> Any:
        return self.written(x * 2)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("case", WRITTEN)
def test_as_exporters_write_them(case: str, exporter: str, tmp_path: Path) -> None:
    proto = exported(Net(WRITTEN[case]), ("B", "T", 4, 4), tmp_path / "m.onnx", exporter == "dynamo")
    for batch in (1, 2):
        check(proto, batch)
