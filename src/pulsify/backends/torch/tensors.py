"""Between numpy and torch. What torch has no type for stays an array wherever it goes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeAlias

import numpy as np
import torch

from pulsify.backends.seam import Array
from pulsify.backends.torch.site import Need, narrowed

Wire: TypeAlias = Any  # a tensor, or an array of a type that torch does not have


def to_wire(array: Array, kind: str | None, device: Any) -> Wire:
    """A copy on the device, of torch's type `kind`; None: the array itself."""
    if kind is None:
        return array
    array = np.array(array, order="C")  # memory of its own, which may be written
    own = array.dtype.name
    made = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if own == "bfloat16" else torch.from_numpy(array)
    return made.to(device=device, dtype=getattr(torch, kind))


def to_array(wire: Wire, dtype: np.dtype[Any] | None) -> Array:
    """A copy with the CPU, of numpy's type; None: as it is."""
    if isinstance(wire, np.ndarray):
        return wire
    wire = wire.detach().cpu()
    if wire.dtype == torch.bfloat16:
        wire = wire.float()
    array: Array = np.asarray(wire.numpy(), order="C")
    return array if dtype is None or array.dtype == dtype else array.astype(dtype)


def as_tensor(wire: Wire, dtype: np.dtype[Any], device: Any) -> Any:
    """A copy on the device that is the caller's, of torch's own type for an array's."""
    if isinstance(wire, np.ndarray):
        return torch.from_numpy(wire.copy()).to(device)
    return wire.to(dtype=getattr(torch, dtype.name), copy=True)  # outside inference mode: an ordinary tensor


class Weights:
    """Constants on a device, made when first named, and shared by all forms of a step and all numbers of streams."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._made: dict[Hashable, tuple[Wire, Need]] = {}  # the need keeps what its key is the identity of

    def tensor(self, need: Need) -> Wire:
        if need.key not in self._made:
            array = need.make()
            array = narrowed(array, need.dtype) if array.dtype == np.float32 else array
            made = to_wire(array, need.dtype, "cpu" if need.host else self.device)
            self._made[need.key] = made, need
        return self._made[need.key][0]
