"""Memory on the device and its image on the host. On the CPU both are the same; a card copies from pinned memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pulsify.backends.seam import Array

RING = 4  # sendings that may be under way at a time


class Mirror:
    """there: a tensor on the device, at one address for good. here: an array on the host."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Any) -> None:
        image = torch.from_numpy(np.zeros(shape, dtype))
        self._image: Any = image.pin_memory() if device.type == "cuda" else None
        self.there: Any = image if self._image is None else image.to(device)
        self.here: Array = (image if self._image is None else self._image).numpy()

    def send(self, count: int | None = None) -> None:
        """The first rows (all, if not told) to the device. `here` must stay as it is until somebody has waited."""
        if self._image is not None:
            self.there[:count].copy_(self._image[:count], non_blocking=True)

    def fetch(self, count: int | None = None) -> None:
        """The first rows to the host: they are there after `wait`."""
        if self._image is not None:
            self._image[:count].copy_(self.there[:count], non_blocking=True)


def wait(device: Any) -> None:
    """Until all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class Sent:
    """A small block that is sent again and again, at one address there; nobody has to wait for the last sending."""

    def __init__(self, shape: tuple[int, ...], device: Any) -> None:
        self.there: Any = torch.zeros(shape, dtype=torch.int64, device=device)
        self._images = [torch.zeros(shape, dtype=torch.int64).pin_memory() for _ in range(RING * self._far(device))]
        self._events = [torch.cuda.Event() for _ in self._images]
        self._next = 0

    @staticmethod
    def _far(device: Any) -> bool:
        return bool(device.type == "cuda")

    def send(self, block: Array) -> None:
        if not self._images:
            self.there.numpy()[...] = block
            return
        image, event = self._images[self._next], self._events[self._next]
        self._next = (self._next + 1) % RING
        event.synchronize()  # of the sending so many ago; one never recorded is done
        image.numpy()[...] = block
        self.there.copy_(image, non_blocking=True)
        event.record()


def shared(*dtypes: np.dtype[Any]) -> bool:
    """May arrays of these types be a tensor's memory?"""
    try:
        return all(torch.from_numpy(np.zeros(1, dtype)) is not None for dtype in dtypes)
    except TypeError:
        return False
