"""Running sums and products on the CPU, one frame after the other in the type itself, as ONNX Runtime has them.

torch adds float32 up in double there, which no carried float32 continues: every pulse would round where batch does not.
An operator of torch, `pulsify::running`, so that torch.compile takes it whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Tensor = Any


def in_order(x: Tensor, axis: int, product: bool) -> Tensor:
    """Sums or products of all up to here."""
    return torch.ops.pulsify.running(x, axis, product)


def _compute(x: Tensor, axis: int, product: bool) -> Tensor:
    array = x.numpy()
    made = np.empty(array.shape, array.dtype)
    with np.errstate(all="ignore"):  # what is not finite, or runs over, is the model's affair
        (np.multiply if product else np.add).accumulate(array, axis, array.dtype, made)
    return torch.from_numpy(made)


def _shaped(x: Tensor, axis: int, product: bool) -> Tensor:
    return x.new_empty(x.shape)


_SCHEMA = "(Tensor x, int axis, bool product) -> Tensor"
torch.library.custom_op("pulsify::running", _compute, mutates_args=(), schema=_SCHEMA).register_fake(_shaped)
