"""Tensors beside arrays: told apart without torch, and the same numbers both ways."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.runtime.tensors import as_arrays, as_tensors, copied, device_in, emptied, finite_rows, is_tensor, type_name

torch = pytest.importorskip("torch")


def test_there_and_back() -> None:
    for array in (np.arange(6, dtype=np.float32).reshape(2, 3), np.array([True, False]), np.arange(3)):
        tensor = as_tensors(array, "cpu")
        assert is_tensor(tensor) and not is_tensor(array)
        assert type_name(tensor) == type_name(array) == array.dtype.name
        np.testing.assert_array_equal(as_arrays(tensor), array)
    mixed = as_arrays({"a": torch.ones(2), "b": np.zeros(2)})
    assert all(isinstance(v, np.ndarray) for v in mixed.values())
    assert as_tensors(None, "cpu") is None and as_tensors(mixed, None) is mixed


def test_a_type_that_numpy_does_not_have() -> None:
    array = as_arrays(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert array.dtype == ir.DataType.BFLOAT16.numpy()
    assert as_tensors(array, "cpu").tolist() == [1.5, -2.0]


def test_where_the_first_is() -> None:
    assert device_in(np.zeros(2), {}) is None
    assert device_in({"a": np.zeros(2), "b": torch.zeros(2)}) == torch.device("cpu")


def test_rows() -> None:
    for like in (np.zeros((3, 2), np.float32), torch.zeros(3, 2)):
        assert tuple(emptied(like, (5, 2)).shape) == (5, 2)
        own = copied(like)
        own[1, 0] = np.nan
        assert finite_rows(own).tolist() == [True, False, True] and finite_rows(like).all()


def test_torch_is_not_imported_for_it() -> None:
    code = "import sys, numpy as np, pulsify, pulsify.runtime.tensors as t; assert not t.is_tensor(np.ones(1))"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], check=True)
