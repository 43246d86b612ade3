"""Running sums on the CPU: one after the other in the type itself, whatever the axis and the layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pulsify.backends.torch.functions import running
from pulsify.backends.torch.running import in_order

X = (np.random.default_rng(0).standard_normal((3, 4000, 2)) + 10).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_addition_rounds_in_the_type(dtype: type, axis: int) -> None:
    x = X.astype(dtype)
    made = in_order(torch.from_numpy(x), axis, False).numpy()
    assert made.dtype == dtype
    np.testing.assert_array_equal(made, x.cumsum(axis, dtype))
    if dtype == np.float32 and axis == 1:
        assert (torch.from_numpy(x).cumsum(axis).numpy() != made).any(), "torch's own adds up in double"


def test_products_and_other_layouts() -> None:
    x = torch.from_numpy(X / 10).transpose(0, 1)
    np.testing.assert_array_equal(in_order(x, 0, True).numpy(), np.cumprod(x.numpy(), 0))
    np.testing.assert_array_equal(in_order(x[::3, 1:], 0, False).numpy(), np.cumsum(x.numpy()[::3, 1:], 0))
    assert in_order(x[:0], 0, False).shape == (0, 3, 2)


def test_exclusive_and_backwards_as_onnx_has_them() -> None:
    x = torch.tensor([[-0.0, 2.0, 3.0]])
    assert running(False, x, 1, True, False).tolist() == [[0, 0, 2]]
    assert running(False, x, 1, False, True).tolist() == [[5, 5, 3]]
    assert running(True, x + 1, 1, True, True).tolist() == [[12, 4, 1]]
    assert torch.signbit(running(False, x, 1, False, False)).tolist() == [[True, False, False]]


def test_it_is_an_operator_that_torch_can_trace() -> None:
    torch.library.opcheck(torch.ops.pulsify.running, (torch.from_numpy(X[:, :5]).transpose(0, 1), 0, False))
