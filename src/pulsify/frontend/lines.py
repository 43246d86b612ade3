"""Lines of the user's module that nodes of its export come from: kept beside a model, named where a node is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx_ir as ir

from pulsify.core.errors import NotStreamable

KEY = "pulsify.lines"  # in `ir.Model.meta`, which no file keeps


def keep_lines(model: ir.Model, lines: Mapping[str, object]) -> None:
    """lines: by the name of the node; anything that reads as a place in the source."""
    model.meta[KEY] = lines


def from_module(model: ir.Model) -> bool:
    """Was the model exported here, from a module?"""
    return KEY in model.meta


def line_of(name: str, lines: Mapping[str, object]) -> str:
    """Of a node, or of the one that it was written out of ('Loop_3/Slice' of 'Loop_3'); empty if unknown."""
    while name:
        if name in lines:
            return str(lines[name])
        name = name.rpartition("/")[0]
    return ""


@contextmanager
def naming_lines(source: object) -> Iterator[None]:
    """A refusal meanwhile has the line of its node, if the model came from a module."""
    try:
        yield
    except NotStreamable as error:
        lines = source.meta.get(KEY) if isinstance(source, ir.Model) else None
        if lines and not error.line:
            error.line = line_of(error.node, lines)
        raise
