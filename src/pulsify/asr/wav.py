"""Sound files: .wav of whole numbers or floats, any number of channels, as samples between -1 and 1."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pulsify.core.errors import InvalidArgument, InvalidChunk

Array = np.ndarray[Any, Any]
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE


@dataclass(frozen=True)
class Format:
    """What a file says of its samples."""

    kind: int
    channels: int
    rate: int
    width: int  # bytes of a sample


def read_wav(path: str, channel: int | None = None) -> tuple[Array, int]:
    """Samples of one channel, or the mean of all, as float32, and the sample rate."""
    try:
        form, raw = _parts(Path(path).read_bytes())
    except (ValueError, struct.error) as error:
        raise InvalidChunk(f"{path!r} is not a PCM .wav file ({error}); convert it to 16-bit PCM") from error
    if channel is not None and channel >= form.channels:
        raise InvalidArgument(f"--channel {channel}: {path!r} has only {form.channels}, counted from 0")
    usable = len(raw) // (form.width * form.channels) * (form.width * form.channels)
    frames = _samples(raw[:usable], form).reshape(-1, form.channels)
    if form.channels > 1 and channel is None:
        return frames.mean(1, dtype=np.float32), form.rate
    return frames[:, channel or 0], form.rate


def write_wav(path: str, samples: Array, rate: int) -> None:
    """One channel. Floats stay floats, so that nothing is rounded or cut off; whole numbers keep their width."""
    if samples.dtype.kind == "i":
        kind, samples = PCM, samples.astype(samples.dtype.newbyteorder("<"))
    else:
        kind, samples = FLOAT, samples.astype("<f4")
    width = samples.dtype.itemsize
    form = struct.pack("<HHIIHH", kind, 1, rate, rate * width, width, 8 * width)
    parts = [(b"fmt ", form), (b"data", samples.tobytes())]
    if kind == FLOAT:  # asked for by the format wherever samples are not whole numbers
        parts.insert(1, (b"fact", struct.pack("<I", len(samples))))
    body = b"".join(name + struct.pack("<I", len(part)) + part + b"\0" * (len(part) % 2) for name, part in parts)
    Path(path).write_bytes(b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body)


def _parts(blob: bytes) -> tuple[Format, bytes]:
    """The format and the samples; a file that was cut off gives what there is."""
    if blob[:4] != b"RIFF" or blob[8:12] != b"WAVE":
        raise ValueError("it does not begin as one")
    form, at = None, 12
    while at + 8 <= len(blob):
        name, size = blob[at : at + 4], int.from_bytes(blob[at + 4 : at + 8], "little")
        part = blob[at + 8 : at + 8 + size]
        if name == b"fmt ":
            form = _format(part)
        elif name == b"data":
            if form is None:
                raise ValueError("its samples come before their format")
            return form, part
        at += 8 + size + size % 2
    raise ValueError("it holds no samples")


def _format(part: bytes) -> Format:
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", part)
    if kind == EXTENSIBLE:
        (kind,) = struct.unpack_from("<H", part, 24)
    if kind not in (PCM, FLOAT):
        raise ValueError(f"unknown format: {kind}")
    if bits not in ((8, 16, 24, 32) if kind == PCM else (32, 64)):
        raise ValueError(f"samples of {bits} bits")
    if not channels or not rate:
        raise ValueError("it has no channels, or no sample rate")
    return Format(kind, channels, rate, bits // 8)


def _samples(raw: bytes, form: Format) -> Array:
    if form.kind == FLOAT:
        return np.frombuffer(raw, f"<f{form.width}").astype(np.float32)
    if form.width == 1:  # the only width that is unsigned
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / np.float32(128)
    if form.width == 3:  # widened to 32 bits with a zero byte below
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return _scaled(wide.reshape(-1).view("<i4"), 31)
    return _scaled(np.frombuffer(raw, f"<i{form.width}"), 8 * form.width - 1)


def _scaled(samples: Array, bits: int) -> Array:
    """Rounded down where float32 would round a full-scale 32-bit sample up to 1."""
    scaled = (samples.astype(np.float64) / 2.0**bits).astype(np.float32)
    return np.minimum(scaled, np.nextafter(np.float32(1), np.float32(0)))
