"""Things found by name, each imported when it is first asked for: back ends, export targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from pulsify.core.errors import InvalidArgument


@dataclass(frozen=True)
class Entry:
    """`module` has the thing; extra: what installs its dependencies; about: what it is, in a word or two."""

    module: str
    extra: str
    about: str = ""


def install_hint(extra: str) -> str:
    """How to install an extra. torch is large: PyPI's build for Linux brings CUDA."""
    hint = f"pip install '{extra}'"
    if extra != "pulsify[torch]":
        return hint
    return f'{hint}; without a GPU, install PyTorch\'s CPU build first (see its "Get started" instructions)'


@cache
def installed(group: str) -> dict[str, Entry]:
    """What other distributions have entered: the module that has the thing, by the name of its entry point."""
    return {
        point.name: Entry(point.module, "" if point.dist is None else point.dist.name)
        for point in entry_points(group=group)
    }


def imported(what: str, attribute: str, entries: Mapping[str, Entry], name: str) -> Any:
    """`attribute` of the module of this name, or InvalidArgument that says what there is, or what to install."""
    if not isinstance(name, str) or name not in entries:
        raise InvalidArgument(f"{what}={name!r}: there is none of that name; there are {', '.join(entries)}")
    entry = entries[name]
    try:
        module = import_module(entry.module)
    except ModuleNotFoundError as error:  # any other ImportError is the module's own fault, and says so itself
        raise InvalidArgument(
            f"{what}={name!r} needs {error.name or 'a package'}, which is not installed: {install_hint(entry.extra)}"
        ) from error
    if not hasattr(module, attribute):
        raise InvalidArgument(f"{what}={name!r}: the module {entry.module} has no {attribute}; call the object so")
    return getattr(module, attribute)
