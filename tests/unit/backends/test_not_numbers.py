"""NaN and infinite numbers inside an operator: C and torch give what ONNX Runtime gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.backends.native import library
from tests.models import Array, weights
from tests.unit.backends.alike import same, small
from tests.unit.backends.native.both import by_c
from tests.unit.graphs import run

torch_side = pytest.importorskip("tests.unit.backends.torch.both")

Run = Callable[[ir.Model, Mapping[str, Array]], dict[str, Array]]
WILD = [np.nan, np.inf, -np.inf]
RUNS = [
    pytest.param(by_c, id="native", marks=pytest.mark.skipif(not library.available(), reason="no C compiler")),
    pytest.param(torch_side.by_torch, id="torch"),
]
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
CELLS = [
    (op, direction, late, biased, clip)
    for op, direction, late, biased, clip in itertools.product(
        GATES, ("forward", "reverse", "bidirectional"), (0, 1), (True, False), (None, 0.4)
    )
    if op == "GRU" or not late
]


def cell(op: str, direction: str, late: int, biased: bool, clip: float | None, more: str = "") -> ir.Model:
    ways, hidden = 1 + (direction == "bidirectional"), 6
    sizes = {"w": (ways, GATES[op] * hidden, 5), "r": (ways, GATES[op] * hidden, hidden)}
    sizes |= {"b": (ways, 2 * GATES[op] * hidden)} if biased else {}
    known = {name: weights(*size) * np.float32(0.3) for name, size in sizes.items()}
    text = f"{op} x {' '.join(known)} > y hidden_size={hidden} direction='{direction}'{more}"
    text += f" linear_before_reset={late}" * (op == "GRU") + f" clip={clip}" * (clip is not None)
    return small(text, {"x": [6, 2, 5]}, known)


@pytest.mark.parametrize("by", RUNS)
@pytest.mark.parametrize(("op", "direction", "late", "biased", "clip"), CELLS)
def test_cells_clip_gates_as_the_runtime_does(
    by: Run, op: str, direction: str, late: int, biased: bool, clip: float | None
) -> None:
    """Where a bias is added NaN becomes the upper bound, and the state recovers; where not, it stays NaN."""
    model = cell(op, direction, late, biased, clip)
    for value, whole in itertools.product(WILD, (True, False)):
        x = weights(6, 2, 5)
        x[2, 0, slice(None) if whole else 1] = value
        same(by(model, {"x": x})["y"], run(model, {"x": x})["y"], 5e-6)


@pytest.mark.parametrize("by", RUNS)
def test_a_rectified_cell_takes_nan_for_nothing(by: Run) -> None:
    model = cell("RNN", "forward", 0, True, None, " activations=['Relu']")
    x = weights(6, 2, 5)
    x[2, 0] = np.nan
    want = run(model, {"x": x})["y"]
    assert np.isfinite(want).all()
    same(by(model, {"x": x})["y"], want, 5e-6)


@pytest.mark.parametrize("op", ["RNN", "GRU"])
def test_a_hard_sigmoid_takes_nan_for_nothing(op: str) -> None:
    names = ",".join(["'HardSigmoid'"] * (1 + (op == "GRU")))
    model = cell(op, "forward", 0, False, None, f" activations=[{names}]")
    x = weights(6, 2, 5)
    x[2, 0] = np.nan
    want = run(model, {"x": x})["y"]
    assert np.isfinite(want).all()
    same(torch_side.by_torch(model, {"x": x})["y"], want, 5e-6)


@pytest.mark.parametrize("by", RUNS)
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_gates_without_a_bias_are_clipped_too(by: Run, value: float) -> None:
    """Rectified, an infinite gate would be infinite, and zero times it NaN."""
    model = cell("LSTM", "forward", 0, False, None, " activations=['Relu','Relu','Tanh']")
    x = weights(6, 2, 5)
    x[5, 0, 1] = value
    want = run(model, {"x": x})["y"]
    assert np.isfinite(want).all()
    same(by(model, {"x": x})["y"], want, 5e-6)


@pytest.mark.parametrize("by", RUNS)
@pytest.mark.parametrize(
    "how",
    ["kernel_shape=[3]", "kernel_shape=[3] strides=[2]", "kernel_shape=[3] pads=[1,1]", "kernel_shape=[2] strides=[2]"],
)
@pytest.mark.parametrize("value", WILD)
def test_the_largest_along_one_axis_is_a_number(by: Run, how: str, value: float) -> None:
    """NaN is left out of the comparison, and a window of nothing else has the lowest number of the type."""
    model = small(f"MaxPool x > y {how}", {"x": [1, 3, 19]})
    x = weights(1, 3, 19)
    x[0, 0, 4], x[0, 1, 7:12] = value, value
    want = run(model, {"x": x})["y"]
    assert not np.isnan(want).any()
    same(by(model, {"x": x})["y"], want)
