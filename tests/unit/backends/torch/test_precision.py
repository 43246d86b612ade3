"""Lower types: sums, softmax, norms and recurrent layers compute in float32, and round once, at their end."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tests.models import Array, weights
from tests.unit.backends.torch.both import by_torch, small, written
from tests.unit.graphs import run

torch = pytest.importorskip("torch")

DTYPES = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half of the last place, relative to the number
SUMS = ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare")


def gates(count: int, inputs: int = 6, hidden: int = 5) -> dict[str, Array]:
    return {
        "w": weights(1, count * hidden, inputs, seed=1) / 2,
        "r": weights(1, count * hidden, hidden, seed=2) / 2,
        "b": weights(1, 2 * count * hidden, seed=3),
    }


def scaled(count: int) -> dict[str, Array]:
    return {"g": weights(count, seed=4), "s": weights(count, seed=5)}


CASES: dict[str, tuple[str, list[int], dict[str, Array], dict[str, Any]]] = {
    "softmax": ("Softmax x > y axis=1", [3, 700], {}, {}),
    "softmax_flat": ("Softmax x > y axis=1", [3, 20, 30], {}, {"opset": 11}),
    "log_softmax": ("LogSoftmax x > y axis=1", [3, 700], {}, {}),
    "layer_norm": ("LayerNormalization x g s > y", [3, 300], scaled(300), {}),
    "layer_norm_by_frame": ("LayerNormalization x g s > y axis=-2", [3, 4, 30], scaled(30), {}),
    "rms_norm": ("RMSNormalization x g > y", [3, 300], {"g": weights(300, seed=4)}, {"opset": 23}),
    "instance_norm": ("InstanceNormalization x g s > y", [2, 4, 200], scaled(4), {}),
    "group_norm": ("GroupNormalization x g s > y num_groups=2", [2, 4, 200], scaled(4), {"opset": 21}),
    "group_norm_by_group": ("GroupNormalization x g s > y num_groups=2", [2, 4, 200], scaled(2), {"opset": 18}),
    "batch_norm": (
        "BatchNormalization x g s m v > y",
        [2, 4, 9],
        {**scaled(4), "m": weights(4, seed=6), "v": np.abs(weights(4, seed=7)) + np.float32(0.1)},
        {},
    ),
    "lp_norm": ("LpNormalization x > y axis=1", [3, 300], {}, {}),
    "cumulative_sum": ("CumSum x i > y", [2, 400], {"i": np.array(1)}, {}),
    "average": ("GlobalAveragePool x > y", [2, 3, 500], {}, {}),
    "average_pool": ("AveragePool x > y kernel_shape=[9] pads=[4,4]", [2, 3, 50], {}, {}),
    "lp_pool": ("LpPool x > y kernel_shape=[9] p=2", [2, 3, 50], {}, {}),
    "gru": ("GRU x w r b > o y hidden_size=5", [30, 2, 6], gates(3), {}),
    "gru_reset_later": ("GRU x w r b > o y hidden_size=5 linear_before_reset=1", [30, 2, 6], gates(3), {}),
    "lstm": ("LSTM x w r b > o y hidden_size=5", [30, 2, 6], gates(4), {}),
    "rnn": ("RNN x w r b > o y hidden_size=5", [30, 2, 6], gates(1), {}),
} | {name: (f"{name} x > y axes=[1] keepdims=1", [3, 700], {}, {"opset": 12}) for name in SUMS}


def rounded(array: Array, dtype: str) -> Array:
    """As the lower type has it."""
    if array.dtype != np.float32:
        return array
    made: Array = torch.from_numpy(array).to(getattr(torch, dtype)).float().numpy()
    return made


def within_one_rounding(got: Array, want: Array, dtype: str) -> None:
    """Half of a last place, and what float32 leaves open."""
    room = DTYPES[dtype] * np.abs(want) + 4e-6 * np.abs(want).max() + (6e-8 if dtype == "float16" else 0)
    worst = (np.abs(got - want) / room).max()
    assert worst <= 1, f"{worst:.2f} roundings"


def model_of(case: str, dtype: str) -> ir.Model:
    text, dims, constants, options = CASES[case]
    return small(text, {"x": dims}, {name: rounded(a, dtype) for name, a in constants.items()}, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_one_rounding_at_the_end(case: str, dtype: str) -> None:
    model, (_, dims, _, _) = model_of(case, dtype), CASES[case]
    feeds = {"x": rounded(weights(*dims, seed=9), dtype)}
    assert not written(model, low=dtype).islands
    within_one_rounding(by_torch(model, feeds, low=dtype)["y"], run(model, feeds)["y"], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_numbers_still_count_in_a_long_sum(dtype: str) -> None:
    """Added up in bfloat16, 256 ones and more are 256."""
    model = small("ReduceSum x i > y keepdims=1", {"x": [1, 3000]}, {"i": np.array([1])})
    assert by_torch(model, {"x": np.ones((1, 3000), np.float32)}, low=dtype)["y"].item() == rounded(
        np.array(3000, np.float32), dtype
    )
