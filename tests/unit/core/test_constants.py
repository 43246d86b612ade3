"""Values that hold tensors, and when two of them are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.core.constants import elements, holding, of_array
from tests.models import weights


def test_a_tensor_is_shared() -> None:
    tensor = ir.tensor(weights(2, 3), name="w")
    made = holding("other", tensor)
    assert made.const_value is tensor and made.name == "other"
    assert made.dtype == ir.DataType.FLOAT and made.shape is not None and list(made.shape) == [2, 3]


@pytest.mark.parametrize("array", [weights(3, 2).T, np.array(7), np.zeros((0, 2), np.int32)])
def test_an_array_of_any_layout_is_held_as_it_is(array: Any) -> None:
    made = of_array("c", array)
    assert made.const_value is not None and made.shape is not None and list(made.shape) == list(array.shape)
    np.testing.assert_array_equal(made.const_value.numpy(), array)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (np.array([np.nan]), np.array([np.nan]), True),
        (np.array([0.0]), np.array([-0.0]), False),
        (np.array([1]), np.array([1], np.int32), False),
        (np.array([1]), np.array(1), False),
        (weights(3, 2).T, np.ascontiguousarray(weights(3, 2).T), True),
        (np.array([1, 2]), np.array([1, 2], np.longlong), True),
    ],
)
def test_what_is_alike_has_type_shape_and_bits_in_common(one: Any, other: Any, same: bool) -> None:
    assert (elements(one) == elements(other)) is same
