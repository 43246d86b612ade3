"""Lower types: sums, softmax, norms and recurrent layers compute in float32, and round once, at their end."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.core.traits import TRAITS
from tests.models import Array, weights
from tests.unit.graphs import run
from tests.unit.specs import a_stream

torch = pytest.importorskip("torch")

from pulsify.backends.torch.source import function, source  # noqa: E402
from pulsify.backends.torch.tensors import Weights, to_wire  # noqa: E402
from tests.unit.backends.torch.both import by_torch, small, written  # noqa: E402

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


# ---- ranges

CARD = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"))
RANGES = {op: t.range for op, t in TRAITS.items() if t.range is not None}
HIGHEST = {"Softmax": "Softmax x > y axis=1", **{op: f"{op} x > y" for op in RANGES if op != "Softmax"}}


def everything(dtype: str) -> Array:
    """Every finite number of a type of 16 bits; of float32 those with all signs, exponents and some mantissas."""
    if dtype == "float32":
        bits = np.arange(0, 1 << 32, 4093, dtype=np.uint64).astype(np.uint32)
        near = np.linspace(-20, 20, 1 << 16, dtype=np.float32)  # where they come near their ends
        numbers = np.concatenate([bits.view(np.float32), near])
    else:
        every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
        numbers = every.view(getattr(torch, dtype)).float().numpy()
    return numbers[np.isfinite(numbers)]


@pytest.mark.parametrize("device", ["cpu", CARD])
@pytest.mark.parametrize("dtype", ["float32", *DTYPES])
@pytest.mark.parametrize("op", RANGES)
def test_no_number_leaves_the_range_of_its_operator(op: str, dtype: str, device: str) -> None:
    numbers = everything(dtype)
    rows = numbers[: len(numbers) // 4 * 4].reshape(-1, 4)
    model = small(HIGHEST[op], {"x": list(rows.shape)})
    made = source(model, a_stream(), 1, device, None if dtype == "float32" else dtype)
    assert not made.islands
    with torch.inference_mode():
        (y,) = function(made, Weights(torch.device(device)))(to_wire(rows, made.kinds["x"], device))
    seen = y.double().cpu().numpy()
    least, most = RANGES[op]
    assert not np.isnan(seen).any() and least <= seen.min() and seen.max() <= most


def test_a_softmax_is_one_in_all_up_to_its_rounding() -> None:
    model = small("Softmax x > y axis=1", {"x": [7, 300]})
    for dtype, half in DTYPES.items():
        y = by_torch(model, {"x": weights(7, 300, seed=3) * 5}, low=dtype)["y"]
        assert np.abs(y.sum(1) - 1).max() <= 2 * half
