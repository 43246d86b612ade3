"""Files of one fixed length: the axis that is named as time becomes dynamic, or the node with the size is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.models import model, node, run_batch, weights

torch = pytest.importorskip("torch")
WINDOW = 60


class Features(torch.nn.Module):
    """A small network of features [B, time, 8] with nothing about the length in it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(8, 4, 3, padding=1)
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x: Any) -> Any:
        y = self.norm(torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2))
        return y.cumsum(1) + torch.nn.functional.pad(y, (0, 0, 5, 0))[:, :-5]


class Positions(Features):
    """As many positions as the window has frames."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(1, WINDOW, 8))

    def forward(self, x: Any) -> Any:
        return super().forward(x + self.table)


class Folded(Features):
    """The size as a number: x.view(1, 60, 8)."""

    def forward(self, x: Any) -> Any:
        return super().forward(torch.relu(x).reshape(-1, WINDOW, 8))


def fixed(module: Any, path: Path, dynamo: bool, batch: bool = False) -> str:
    """Exported at one length; batch: for any number of streams."""
    torch.manual_seed(0)
    example = (torch.randn(2 if batch else 1, WINDOW, 8),)
    how: dict[str, Any] = {"dynamo": False, "opset_version": 17}
    if dynamo:
        how = {"dynamo": True, "verbose": False}
        how |= {"dynamic_shapes": ({0: torch.export.Dim("N", min=2)},)} if batch else {}
    elif batch:
        how |= {"dynamic_axes": {"x": {0: "N"}}}
    torch.onnx.export(module.eval(), example, path, input_names=["x"], output_names=["y"], **how)
    return str(path)


def dynamic(path: str) -> onnx.ModelProto:
    """The file with a symbolic time axis, as one would change it by hand."""
    proto = onnx.load(path)
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "T"
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    return proto


@pytest.mark.parametrize("dynamo", [False, True], ids=["torch.jit", "torch.export"])
def test_a_fixed_axis_becomes_time(dynamo: bool, tmp_path: Path) -> None:
    path = fixed(Features(), tmp_path / "m.onnx", dynamo)
    stream = pulsify.stream(path, time={"x": 1})
    x = np.random.default_rng(0).normal(size=(1, WINDOW, 8)).astype(np.float32)
    np.testing.assert_allclose(stream.run(x), run_batch(onnx.load(path), {"x": x})["y"], rtol=1e-5, atol=1e-5)
    by_hand = dynamic(path)
    for frames in (1, 2, 3, 7, 59, 61, 200):
        x = np.random.default_rng(frames).normal(size=(1, frames, 8)).astype(np.float32)
        np.testing.assert_allclose(stream.run(x), run_batch(by_hand, {"x": x})["y"], rtol=1e-5, atol=1e-5)
    stream.save(tmp_path / "stream.onnx")
    report = pulsify.verify(path, pulsify.load(tmp_path / "stream.onnx"))
    assert len(report.lengths) > 3 and "with that axis dynamic" in " ".join(report.notes)


@pytest.mark.parametrize("dynamo", [False, True], ids=["torch.jit", "torch.export"])
@pytest.mark.parametrize(("module", "op"), [(Positions, "Add"), (Folded, "Reshape")])
def test_a_size_written_into_a_node_names_it(module: Any, op: str, dynamo: bool, tmp_path: Path) -> None:
    path = fixed(module(), tmp_path / "m.onnx", dynamo, batch=True)
    with pytest.raises(pulsify.NotStreamable, match="one length, the 60 frames that its input declares") as refused:
        pulsify.stream(path, time={"x": 1})
    assert refused.value.op == op
    remedy = "dynamic_shapes" if dynamo else "dynamic_axes"
    assert remedy in refused.value.hint and "dynamo=True" not in refused.value.hint


def test_the_batch_is_never_time() -> None:
    """Not though frames of a longer input would count as more streams."""
    proto = model(
        [node("Reshape", "x shape", "a"), node("CumSum", "a axis", "y")],
        {"x": ["N", 60, 8]},
        ["y"],
        {"shape": np.array([-1, 60, 8]), "axis": np.array(1)},
    )
    with pytest.raises(pulsify.InvalidArgument, match=r'time=\{"x": 1\} if it is the one of 60 entries'):
        pulsify.stream(proto)
    with pytest.raises(pulsify.NotStreamable, match=r"\[1, 61, 8\] and \[-1, 60, 8\] do not fit") as refused:
        pulsify.stream(proto, time={"x": 1})
    assert (refused.value.node, refused.value.op) == ("a", "Reshape")


def test_a_cut_of_the_window_is_what_the_file_does() -> None:
    """x[:, :50] of longer streams is their first 50 frames."""
    proto = model(
        [node("Slice", "x start end axis", "y")],
        {"x": [1, 60, 8]},
        ["y"],
        {"start": np.array([0]), "end": np.array([50]), "axis": np.array([1])},
    )
    stream = pulsify.stream(proto, time={"x": 1})
    x = np.random.default_rng(0).normal(size=(1, 70, 8)).astype(np.float32)
    np.testing.assert_array_equal(stream.run(x), x[:, :50])


def test_inputs_of_several_rates() -> None:
    """60 and 120 frames: two of the second for each of the first."""
    pool = node("AveragePool", "b", "p", kernel_shape=[2], strides=[2])
    proto = model([pool, node("Add", "a p", "y")], {"a": [1, 2, 60], "b": [1, 2, 120]}, ["y"])
    stream = pulsify.stream(proto, time={"a": 2, "b": 2})
    assert {i.name: i.rate for i in stream.inputs} == {"a": 1, "b": 2}
    uneven = model([node("ReduceMean", "b", "m"), node("Add", "a m", "y")], {"a": [1, 2, 60], "b": [1, 2, 100]}, ["y"])
    with pytest.raises(pulsify.InvalidArgument, match="100 is no multiple of 60"):
        pulsify.stream(uneven, time={"a": 2, "b": 2})


def test_the_other_inputs_of_the_window_are_named() -> None:
    proto = model([node("Mul", "x mask", "y")], {"x": [1, 60, 8], "mask": [1, 60, 1]}, ["y"])
    with pytest.raises(pulsify.NotStreamable, match="the 60 frames") as refused:
        pulsify.stream(proto, time={"x": 1})
    first = refused.value.remedies[0]
    assert dict(first.options["time"]) == {"x": 1, "mask": 1}
    assert len(pulsify.stream(proto, **first.options).inputs) == 2


def test_a_window_beside_a_dimension_called_as_time_is() -> None:
    """The batch is called T."""
    stream = pulsify.stream(model([node("Relu", "x", "a"), node("Conv", "a w", "y")], {"x": ["T", 2, 60]}, ["y"],
                                  {"w": weights(3, 2, 3)}), time={"x": 2})  # fmt: skip
    assert stream.inputs[0].axis == 2 and stream.spec.batch == "T"


def test_a_window_behind_a_start_that_is_worked_out() -> None:
    """Frames in front that are the same in every stream are computed by running a part of the model."""
    proto = model(
        [node("CumSum", "x axis", "c"), node("Pad", "c pads", "p"), node("Conv", "p w", "y")],
        {"x": [1, 2, 60]},
        ["y"],
        {"pads": np.array([0, 0, 20, 0, 0, 0]), "axis": np.array(2), "w": weights(3, 2, 3)},
    )
    stream = pulsify.stream(proto, time={"x": 2})
    x = np.random.default_rng(0).normal(size=(1, 2, 60)).astype(np.float32)
    np.testing.assert_allclose(stream.run(x), run_batch(proto, {"x": x})["y"], rtol=1e-5, atol=1e-5)
