"""Export targets by name. Each is imported when it is first asked for, with what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import onnx_ir as ir

from pulsify.core.errors import InvalidArgument
from pulsify.core.spec import Spec


class Target(Protocol):
    """Writes a stream down for somebody who does not have pulsify."""

    def write(self, model: ir.Model, spec: Spec, path: Path) -> None:
        """model: the step graph, to be left as it is. spec: everything else about the stream. path: where to."""
        ...


@dataclass(frozen=True)
class Entry:
    """`module` has the target as `TARGET`; extra: what installs its dependencies."""

    module: str
    extra: str


_ENTRIES: dict[str, Entry] = {"onnx": Entry("pulsify.export.onnx", "pulsify")}


def names() -> list[str]:
    return list(_ENTRIES)


def register(name: str, module: str, extra: str) -> None:
    """Add a target from outside: `module` has it as `TARGET`, `pip install extra` brings what it needs."""
    _ENTRIES[name] = Entry(module, extra)


def target(name: str) -> Target:
    """The target of this name, or InvalidArgument that says what there is, or what to install."""
    if not isinstance(name, str) or name not in _ENTRIES:
        raise InvalidArgument(f"target={name!r}: there is none of that name; there are {', '.join(_ENTRIES)}")
    entry = _ENTRIES[name]
    try:
        return cast(Target, import_module(entry.module).TARGET)
    except ImportError as error:
        raise InvalidArgument(
            f"target={name!r} needs {error.name or 'a package'}, which is not installed: pip install '{entry.extra}'"
        ) from error
