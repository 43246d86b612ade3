"""Model files as commands get them: a batch model to convert, or a stream to run as it is."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pulsify.core.errors import InvalidArgument

if TYPE_CHECKING:
    from pulsify.api import Stream


def is_stream(path: str) -> bool:
    """Whether a file was made by `Stream.save`, damaged or not. A missing or unreadable one raises InvalidModel."""
    from pathlib import Path

    from pulsify.core.checksum import stated
    from pulsify.core.spec import is_streaming
    from pulsify.frontend.load import read
    from pulsify.frontend.program import is_program

    if Path(path).is_file() and stated(Path(path)) is not None:
        return True
    return not is_program(path) and is_streaming(read(path).metadata_props)


@cache
def source_of(path: str) -> Any:
    """What the library takes a batch model from: the file, or ONNX made of a program of torch.export."""
    from pulsify.frontend.program import as_onnx, is_program

    return as_onnx(path) if is_program(path) else path


def convert_batch(
    path: str, pulse: int | None, meaning: dict[str, Any], verify: bool, sample_rate: float | None = None
) -> Stream:
    """The stream of a batch model."""
    from pulsify.api import stream as convert

    if is_stream(path):
        raise InvalidArgument(f"{path} is a stream already: give the batch model it was made from")
    return convert(source_of(path), pulse, **meaning, verify=verify, sample_rate=sample_rate)


def open_any(path: str, pulse: int | None, meaning: dict[str, Any], verify: bool) -> Stream:
    """A stream as it is, a batch model converted on the way."""
    from pulsify.api import load

    if not is_stream(path):
        return convert_batch(path, pulse, meaning, verify)
    made = load(path)
    others = [v for k, v in meaning.items() if k not in ("opening", "phase") and v and v not in ("refuse", "proven")]
    if pulse not in (None, made.pulse) or others or not (meaning["opening"] and meaning["phase"]):
        raise InvalidArgument(
            f"{path} is a stream already, with pulses of {made.pulse}; -p, --time, --bind, --set, "
            "--unbounded, --proof, --no-opening and --no-phase are for batch models"
        )
    return made
