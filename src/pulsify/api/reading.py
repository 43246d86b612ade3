"""`load`: a stream from the file that `Stream.save` wrote."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import onnx_ir as ir

from pulsify.api.model import Stream
from pulsify.api.origin import SavedFile
from pulsify.api.ports import check_ports
from pulsify.core.boundary import public
from pulsify.core.checksum import KEY, matches, stated
from pulsify.core.errors import InvalidArgument, InvalidModel
from pulsify.core.spec import FORMAT, OPENING, PHASED, VERSION, Spec
from pulsify.core.weights import PRODUCER, check_places, check_weights, stamps

CHECKS = ("quick", "full")


@public
def load(path: str | os.PathLike[str], *, check: str = "quick") -> Stream:
    """A stream saved by `Stream.save`, if all of it is as it was saved.

    Args:
        path: The stream's file. Its weights and its opening, if they are files of their own, are found beside it.
        check: "quick" compares the checksum of the file and of its opening, and of a large file of weights only its
            size and parts of it; "full" reads all weights.

    Returns:
        The stream, bit for bit what was saved. Files written before there were checksums load with a UserWarning.

    Raises:
        InvalidModel: The file, its opening or its weights are missing, damaged, or were changed by another tool.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidModel(f"load takes a path to a stream, got {type(path).__name__}")
    if check not in CHECKS:
        raise InvalidArgument(f"check={check!r}: expected 'quick' or 'full'")
    file, full = Path(path), check == "full"
    loaded, digest = _loaded(file, full)
    if loaded.spec.opening:
        loaded.opening = _opening_of(loaded, file, full, digest is not None)
    if digest is None:
        warnings.warn(
            f"{file.name!r} was written by an earlier version of pulsify and has no checksum, so damage to it is not "
            "noticed; convert the batch model again, or save the stream once more after pulsify.verify",
            stacklevel=3,
        )
    return loaded


def _opening_of(stream: Stream, path: Path, full: bool, sealed: bool) -> Stream:
    """The file beside it that runs the first pulses."""
    facts = json.loads(stream.model.metadata_props[OPENING])
    beside = path.with_name(Path(str(facts.get("file", ""))).name or f"{path.stem}.opening{path.suffix}")
    if not beside.is_file():
        raise InvalidModel(f"the opening of this stream is gone: put {beside.name!r} back beside it, or convert again")
    opening, digest = _loaded(beside, full)
    if digest != (facts["checksum"] if sealed else None) or not opening.spec.opens(stream.spec):
        raise InvalidModel(f"{beside.name!r} is not the opening of {path.name!r}: convert the model again")
    return opening


def _loaded(path: Path, full: bool) -> tuple[Stream, str | None]:
    """The stream of one file, and its checksum, if there is one. Whatever is wrong is InvalidModel that names it."""
    try:
        return _read(path, full)
    except (InvalidModel, MemoryError):
        raise
    except OSError as error:
        raise InvalidModel(f"{path.name!r} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # of a damaged file anything may fail, in onnx_ir too
        raise InvalidModel(f"{path.name!r} is damaged ({error!r:.120}); convert the model again") from error


def _read(path: Path, full: bool) -> tuple[Stream, str | None]:
    if not path.is_file():
        raise InvalidModel(f"no such file: {path.name!r}")
    digest = stated(path)
    if digest is not None and not matches(path, digest):
        raise _changed(path)
    try:
        model = ir.load(path)
    except Exception as error:
        raise InvalidModel(f"{path.name!r} is not a readable ONNX model ({type(error).__name__})") from error
    sealed, props = digest is not None, model.metadata_props
    if not sealed and _was_sealed(model):
        raise _changed(path)
    try:
        spec = Spec.from_properties(props)
        check_places(model)
        check_weights(props, path, full)
        if not sealed:
            check_ports(model, spec)
    except InvalidModel as error:  # of the contents alone: the file has no name there
        raise InvalidModel(f"{path.name!r}: {error}") from error
    props.pop(KEY, None)
    return Stream(model, spec, SavedFile(os.fspath(path), sealed, stamps(model, path))), digest


def _was_sealed(model: ir.Model) -> bool:
    """Was it written with a checksum, and lost it? More than one trace must go to pass for an older file."""
    props = model.metadata_props
    return props.get(VERSION) in (FORMAT, PHASED) or KEY in props or model.producer_name == PRODUCER


def _changed(path: Path) -> InvalidModel:
    return InvalidModel(
        f"{path.name!r} is not as pulsify wrote it: it was damaged, or changed by another tool (its checksum does "
        "not match). If it was copied, copy it again. Simplify, optimise or quantise the batch model and convert that "
        "instead; for half precision or another opset there is stream.export(path, fp16=True, opset=N). A changed "
        "file may still run without pulsify, but whether it is exact is not known"
    )
