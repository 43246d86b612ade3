"""Torch's tensors beside arrays, without torch: whoever hands one in has imported it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.arrays import is_dense
from pulsify.core.errors import InvalidChunk

Array = np.ndarray[Any, Any]


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def checked_dense(tensor: Any) -> Any:
    if not is_dense(tensor):
        raise InvalidChunk("expected a dense tensor, got a sparse, nested, quantised or meta tensor")
    return tensor


def device_in(*values: Any) -> Any:
    """Where the first tensor among these (or in mappings of them) is; None: there is none."""
    for value in values:
        for one in value.values() if isinstance(value, Mapping) else (value,):
            if is_tensor(one):
                return one.device
    return None


def as_arrays(value: Any) -> Any:
    """The same with arrays for tensors."""
    if isinstance(value, Mapping):
        return {name: as_arrays(one) for name, one in value.items()}
    if not is_tensor(value):
        return value
    value = checked_dense(value).detach().cpu()
    if type_name(value) != "bfloat16":
        return value.numpy()
    return value.view(sys.modules["torch"].int16).numpy().view(ir.DataType.BFLOAT16.numpy())  # numpy has no such type


def as_tensors(value: Any, device: Any) -> Any:
    """The same with tensors on a device for arrays; None, for an array: as it is."""
    if device is None or value is None:
        return value
    if isinstance(value, Mapping):
        return {name: as_tensors(one, device) for name, one in value.items()}
    torch = sys.modules["torch"]
    if not is_tensor(value):
        low = value.dtype.name == "bfloat16"
        value = torch.from_numpy(value.view(np.int16)).view(torch.bfloat16) if low else torch.from_numpy(value)
    return value.to(device)


def type_name(value: Any) -> str:
    """As numpy calls it."""
    return str(value.dtype).removeprefix("torch.")


def copied(value: Any) -> Any:
    return value.clone() if is_tensor(value) else value.copy()


def emptied(like: Any, shape: tuple[int, ...]) -> Any:
    """Of the same kind, nothing in it yet."""
    return like.new_empty(shape) if is_tensor(like) else np.empty(shape, like.dtype)


def finite_rows(value: Any) -> Any:
    """By row: is every number finite? On a card this waits for it."""
    if is_tensor(value):
        return value.isfinite().flatten(1).all(1).cpu().numpy()
    return np.isfinite(value).reshape(len(value), -1).all(1)
