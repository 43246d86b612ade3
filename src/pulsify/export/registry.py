"""Export targets by name. Each is imported when it is first asked for, with what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import onnx_ir as ir

from pulsify.backends.seam import Opening
from pulsify.core.errors import InvalidArgument
from pulsify.core.named import Entry, imported
from pulsify.core.spec import Spec

Option = str | int | float | bool
KINDS: dict[str, type[Option]] = {"str": str, "int": int, "bool": bool}  # as fields are annotated
WORDS: dict[type[Option], str] = {str: "text", int: "a whole number", bool: "True or False"}


class Target(Protocol):
    """Writes a stream down for somebody who does not have pulsify."""

    def write(self, model: ir.Model, spec: Spec, path: Path) -> None:
        """model: the step graph, to be left as it is. spec: everything else about the stream. path: where to.

        One that holds streams with an opening has a field for it, `opening`.
        """
        ...


_ENTRIES: dict[str, Entry] = {
    "onnx": Entry("pulsify.export.onnx", "pulsify"),
    "c": Entry("pulsify.export.c", "pulsify", "C11 sources, a folder of them"),
    "openvino": Entry("pulsify.export.openvino", "pulsify[openvino]", "a stateful IR, and a client"),
    "web": Entry("pulsify.export.web", "pulsify", "a page that streams in the browser, a folder for any static host"),
    "triton": Entry("pulsify.export.triton", "pulsify", "a model repository of NVIDIA Triton, and a client"),
    "sherpa-onnx": Entry("pulsify.export.sherpa", "pulsify", "a recogniser's folder for sherpa-onnx"),
}


def names() -> list[str]:
    return list(_ENTRIES)


def register(name: str, module: str, extra: str) -> None:
    """Add a target from outside: `module` has it as `TARGET`, `pip install extra` brings what it needs."""
    _ENTRIES[name] = Entry(module, extra)


def target(name: str) -> Target:
    """The target of this name, or InvalidArgument that says what there is, or what to install."""
    return cast(Target, imported("target", "TARGET", _ENTRIES, name))


def options_of(name: str) -> dict[str, type[Option]]:
    """What a target takes, by name."""
    found = target(name)
    return {f.name: KINDS[str(f.type)] for f in fields(found) if f.type in KINDS} if is_dataclass(found) else {}


def with_options(name: str, options: Mapping[str, Option]) -> Target:
    """The target with settings of its own: those of its fields that are strings, whole numbers or truth values."""
    found, known = target(name), options_of(name)
    if unknown := sorted(set(options) - set(known)):
        has = f"takes {', '.join(known)}" if known else "has no options of its own"
        raise InvalidArgument(f"unknown {unknown}: the target {name!r} {has}")
    for option, value in options.items():
        if type(value) is not known[option]:
            raise InvalidArgument(f"{option}={value!r}: the target {name!r} takes {WORDS[known[option]]} there")
    settled: Any = found
    return replace(settled, **options) if options else found


def with_opening(name: str, chosen: Target, opening: Opening | None) -> Target:
    """The target with what runs the first pulses of the stream; InvalidArgument if it holds one graph only."""
    if opening is None:
        return chosen
    if not is_dataclass(chosen) or "opening" not in [f.name for f in fields(chosen)]:
        raise InvalidArgument(f"{name!r} takes one graph, and this stream has an opening: convert with opening=False")
    held: Any = chosen
    return cast(Target, replace(held, opening=opening))
