"""Names for what goes in and out of streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pulsify.core.errors import InvalidChunk

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]
ArrayLike = npt.ArrayLike  # whatever numpy makes an array of
Given = ArrayLike | Mapping[str, ArrayLike]  # the one input, or inputs by name
Pieces = Iterable[Given]  # chunks, one after the other
Result = Array | Arrays  # of the one output, or outputs by name


def is_dense(tensor: Any) -> bool:
    """Does a torch tensor hold its elements like an array (it is not sparse, nested, quantised or without data)?"""
    return not (tensor.is_nested or tensor.is_meta or tensor.is_quantized) and str(tensor.layout) == "torch.strided"


def as_input(name: str, value: Any) -> Array:
    """What is given for an input as an array, or InvalidChunk."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # lists of unequal length, a tensor with a gradient
        raise InvalidChunk(f"input '{name}' takes an array, and this is none ({error})") from error
