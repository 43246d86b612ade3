"""`load`: a stream from the file that `Stream.save` wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path

import onnx_ir as ir

from pulsify.api.model import Stream
from pulsify.core.errors import InvalidModel
from pulsify.core.spec import OPENING, Spec
from pulsify.core.weights import check_places, check_shared


def load(path: str | os.PathLike[str]) -> Stream:
    """A stream saved by `Stream.save`."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidModel(f"load takes a path to a stream, got {type(path).__name__}")
    made = _loaded(Path(path))
    if made.spec.opening:
        made.opening = _opening_of(made, Path(path))
    return made


def _opening_of(made: Stream, path: Path) -> Stream:
    """The file beside it that runs the first pulses."""
    name = str(json.loads(made.model.metadata_props[OPENING]).get("file", ""))
    beside = path.with_name(Path(name).name or f"{path.stem}.opening{path.suffix}")
    if not beside.is_file():
        raise InvalidModel(f"the opening of this stream is gone: put {beside.name!r} back beside it, or convert again")
    opening = _loaded(beside)
    if not opening.spec.opens(made.spec):
        raise InvalidModel(f"{beside.name!r} is not the opening of {path.name!r}: convert the model again")
    return opening


def _loaded(path: Path) -> Stream:
    if not path.is_file():
        raise InvalidModel(f"no such file: {path.name!r}")
    try:
        model = ir.load(path)
    except Exception as error:
        raise InvalidModel(f"{path.name!r} is not a readable ONNX model ({type(error).__name__})") from error
    spec = Spec.from_properties(model.metadata_props)
    check_places(model)
    check_shared(model, path.parent)
    return Stream(model, spec, os.fspath(path))
