"""Files in and out of `pulsify run`: .npy, .npz and .wav become what the model takes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.asr.sound import one_channel, shape_sound, shown_dims
from pulsify.asr.wav import read_wav, write_wav
from pulsify.core.errors import InvalidArgument, InvalidChunk
from pulsify.export.clients.frames import write
from pulsify.runtime.framer import converted, one_number

if TYPE_CHECKING:
    from pulsify.api import Stream
    from pulsify.core.spec import Input, Static

Array = np.ndarray[Any, Any]


def read_feeds(path: str, stream: Stream, channel: int | None = None) -> tuple[dict[str, Array], int | None]:
    """Arrays by input name, static inputs included, and the sample rate if it is a sound file."""
    if not Path(path).is_file():
        raise InvalidChunk(f"no such input file: {path!r}")
    suffix = Path(path).suffix.lower()
    rate = None
    if suffix == ".npz":
        given = _read_npz(path)
    elif suffix in (".npy", ".wav"):
        if len(stream.inputs) > 1 or stream.statics:
            names = [i.name for i in stream.inputs] + [s.name for s in stream.statics]
            raise InvalidChunk(f"this model takes several inputs: put them into one .npz file, by name: {names}")
        port = stream.inputs[0]
        if suffix == ".npy":
            given = {port.name: _load(path)}
        else:
            samples, rate = read_wav(path, channel)
            given = {port.name: shape_sound(samples, port)}
    else:
        raise InvalidChunk(f"{path!r}: the input must be a .npy, .npz or .wav file")
    return _checked(given, stream), rate


def _load(path: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InvalidChunk(f"{path!r} is not a readable array file ({str(error)[:80]})") from error


def _read_npz(path: str) -> dict[str, Array]:
    archive = _load(path)
    try:
        return {name: archive[name] for name in archive.files}
    except (AttributeError, ValueError) as error:
        raise InvalidChunk(f"{path!r} is not a readable .npz file") from error


def _checked(given: Mapping[str, Array], stream: Stream) -> dict[str, Array]:
    ports: dict[str, Input | Static] = {i.name: i for i in stream.inputs}
    ports |= {s.name: s for s in stream.statics}
    missing, unknown = sorted(set(ports) - set(given)), sorted(set(given) - set(ports))
    if missing or unknown:
        parts = [f"missing: {missing}"] * bool(missing) + [f"unknown: {unknown}"] * bool(unknown)
        raise InvalidChunk(f"the input file does not hold what the model takes, {sorted(ports)}; {'; '.join(parts)}")
    for port in stream.inputs:
        _check_shape(given[port.name], port)
    for port in stream.inputs:
        _check_scale(given[port.name], port)
    return {name: as_dtype(name, given[name], port.dtype) for name, port in ports.items()}


def _check_shape(array: Array, port: Input) -> None:
    """The whole array at once, so that the message shows the file's shape and not a chunk's."""
    others = [axis for axis, d in enumerate(port.dims) if axis != port.axis and isinstance(d, int)]
    if array.ndim != len(port.dims) or any(array.shape[a] != port.dims[a] for a in others):
        raise InvalidChunk(f"input '{port.name}' takes {shown_dims(port)}, the file holds {list(array.shape)}")
    if not array.shape[port.axis]:
        raise InvalidChunk(f"the file holds no frames for input '{port.name}': time is axis {port.axis}")


def _check_scale(array: Array, port: Input) -> None:
    """Whole samples may be sound of -32768 to 32767, and the model's is of -1 to 1: nobody but the caller knows."""
    if array.dtype.kind == "i" and array.dtype.itemsize == 2 and port.dtype.kind == "f" and one_number(port):
        how = converted(array, port)
        raise InvalidChunk(f"input '{port.name}' takes {port.dtype}, the file holds {array.dtype}: {how}")


def as_dtype(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """float64 becomes float32 and the like; what would change a value by more than rounding is refused."""
    if array.dtype == dtype:
        return array
    if array.dtype.kind == dtype.kind == "f":
        return array.astype(dtype)
    if array.dtype.kind in "iub" and np.array_equal(array.astype(dtype), array):
        return array.astype(dtype)
    raise InvalidChunk(f"input '{name}' takes {dtype}, the file holds {array.dtype}: convert it first")


# ---- results


def check_output(path: str | None, stream: Stream) -> None:
    """Said before anything runs, not after."""
    if path is None:
        return
    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".npz", ".wav"):
        raise InvalidArgument(f"-o {path}: results are saved as .npy, as .npz with several outputs, or as .wav (sound)")
    if suffix != ".npz" and len(stream.outputs) > 1:
        names = [o.name for o in stream.outputs]
        raise InvalidArgument(f"-o {path}: this model has several outputs, {names}: save them as .npz")
    if suffix == ".wav" and not one_channel(stream.outputs[0]):
        o = stream.outputs[0]
        raise InvalidArgument(
            f"-o {path}: output '{o.name}' is {o.dtype} {shown_dims(o)}, not one channel of sound: save it as .npy"
        )


def sound_rate(path: str | None, stream: Stream, rate: float | None) -> int | None:
    """Samples a second of what is saved as sound, if it is; `rate`: those of the input."""
    if path is None or Path(path).suffix.lower() != ".wav":
        return None
    if rate is None:
        raise InvalidArgument(f"-o {path}: the sample rate is not known; say it with --sample-rate HZ")
    out = Fraction(rate) * stream.outputs[0].rate / stream.inputs[0].rate
    if out.denominator != 1:
        raise InvalidArgument(f"-o {path}: {float(out):g} samples a second is no whole number: save it as .npy")
    return int(out)


def save_results(path: str, results: Mapping[str, Array], rate: int | None = None) -> None:
    """rate: of sound, if it is saved as such."""
    if rate is not None:
        write_wav(path, next(iter(results.values())).reshape(-1), rate)
    elif Path(path).suffix.lower() == ".npy":
        np.save(path, next(iter(results.values())))
    else:
        write(path, results)
