"""`depthwise`: torch's own operators against the specification, the operator, what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.core.errors import InvalidArgument
from pulsify.kernels import checking
from pulsify.kernels.depthwise import cases, specification
from pulsify.kernels.registry import kernel

torch = pytest.importorskip("torch")
KERNEL = kernel("depthwise")


def holds(target: str, made: dict[str, Any], dtype: str = "float32", device: str = "cpu") -> None:
    inputs = checking.rounded(made, dtype)
    (want,) = KERNEL.specification(**inputs)
    (got,) = checking.run(KERNEL, target, inputs, device, dtype)
    assert checking.distance(got, want) <= KERNEL.bound(inputs, dtype)


@pytest.mark.parametrize("dtype", checking.TYPES)
def test_cases(dtype: str) -> None:
    found = checking.judged(KERNEL, "torch", "cpu", dtype)
    assert not found.failed and found.cases == len(cases.CASES)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 9),
    st.booleans(),
)
def test_any_sizes(b: int, c: int, taps: int, stride: int, dilation: int, more: int, rows: bool) -> None:
    frames = (taps - 1) * dilation + 1 + more
    holds("torch", cases.inputs(b, c, frames, taps, biased=rows, rows=rows, stride=stride, dilation=dilation))


def test_the_specification_is_torchs_convolution() -> None:
    made = cases.inputs(2, 5, 30, 4, stride=2, dilation=3)
    x, w, bias = (torch.from_numpy(np.ascontiguousarray(made[n])) for n in ("x", "weights", "bias"))
    want = torch.nn.functional.conv1d(x, w[:, None], bias, 2, 0, 3, 5)
    np.testing.assert_allclose(specification.depthwise(**made)[0], want.numpy(), atol=1e-12)


def test_the_operator_is_one_of_torchs() -> None:
    from pulsify.kernels.depthwise.operator import depthwise

    made = {n: checking.tensor(v, "cpu", "float32") for n, v in cases.inputs().items()}
    out = depthwise(**made)
    assert out.stride(1) == 1 and out.shape == (2, 24, 7)
    given_ = (made["x"], made["weights"], made["bias"], 1, 1)
    seen = torch.library.opcheck(
        torch.ops.pulsify.depthwise.default, given_, test_utils=("test_schema", "test_faketensor")
    )
    assert set(seen.values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"frames": 5}, "no window of 9 taps"), ({"batch": 0}, "no window"), ({"stride": 0}, "1 at least"),
        ({"dilation": 0}, "1 at least"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(change: dict[str, int], said: str) -> None:
    made = {n: checking.tensor(v, "cpu", "float32") for n, v in cases.inputs(**change).items()}
    with pytest.raises(InvalidArgument, match=said):
        KERNEL.implementation("torch")(**made)
    with pytest.raises(InvalidArgument, match="24 channels"):
        KERNEL.implementation("torch")(torch.zeros(1, 24, 9), torch.zeros(23, 3))
