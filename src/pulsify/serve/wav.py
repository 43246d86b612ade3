"""A .wav file where it lies: nothing is copied, so that a large one costs as little as a small one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pulsify.serve.protocol import Refused

PCM, EXTENSIBLE = 1, 0xFFFE


@dataclass(frozen=True)
class Wav:
    """Samples of 16 bits, the channels of each side by side."""

    channels: int
    rate: int
    samples: memoryview

    @property
    def opening(self) -> dict[str, object]:
        """`open`, for `pieces`."""
        return {"format": "pcm16" if self.channels == 1 else "float32", "rate": self.rate}

    def pieces(self, size: int) -> Iterator[bytes]:
        """As one channel, their mean, in pieces of about so many bytes."""
        width = 2 * self.channels
        step = max(size // width, 1) * width
        for at in range(0, len(self.samples) // width * width, step):
            piece = self.samples[at : at + step]
            if self.channels == 1:
                yield bytes(piece)
            else:
                frames = np.frombuffer(piece, "<i2", len(piece) // width * self.channels).reshape(-1, self.channels)
                yield (frames.mean(1) / 32768).astype("<f4").tobytes()


def read(body: bytes | bytearray | memoryview) -> Wav:
    """Refused if it is none, or not of 16 bits."""
    view = memoryview(body)
    if len(view) < 12 or bytes(view[:4]) != b"RIFF" or bytes(view[8:12]) != b"WAVE":
        raise _unreadable("it does not begin as one")
    at, form = 12, None
    while len(view) - at >= 8:
        name, size = bytes(view[at : at + 4]), int.from_bytes(view[at + 4 : at + 8], "little")
        at += 8
        if name == b"fmt ":
            form = _form(view[at : at + size])
        elif name == b"data":
            if form is None:
                raise _unreadable("no format before the samples")
            channels, rate = form
            return Wav(channels, rate, view[at : at + size])
        at += size + size % 2
    raise _unreadable("it has no samples")


def _form(chunk: memoryview) -> tuple[int, int]:
    """Channels and rate."""
    if len(chunk) < 16:
        raise _unreadable("its format is cut off")
    kind, channels, rate, _, _, bits = struct.unpack("<HHIIHH", chunk[:16])
    if kind == EXTENSIBLE and len(chunk) >= 26:
        kind = int.from_bytes(chunk[24:26], "little")
    if kind != PCM:
        raise _unreadable(f"its format is {kind}, not PCM")
    if bits != 16:
        raise Refused("unsupported", f"a .wav file of {bits} bits: expected 16")
    if not channels or not rate:
        raise _unreadable(f"{channels} channels at {rate} Hz")
    return channels, rate


def _unreadable(why: str) -> Refused:
    return Refused("unsupported", f"not a .wav file that can be read ({why})")
