"""Back ends by name. Each is imported when it is first asked for, with what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import cast

from pulsify.backends.seam import Backend
from pulsify.core.errors import InvalidArgument

DEFAULT = "ort"


@dataclass(frozen=True)
class Entry:
    """`module` has the back end as `BACKEND`; extra: what installs its dependencies."""

    module: str
    extra: str


_ENTRIES: dict[str, Entry] = {
    "ort": Entry("pulsify.backends.ort.backend", "pulsify"),
    "reference": Entry("pulsify.backends.reference.backend", "pulsify[reference]"),
}


def names() -> list[str]:
    return list(_ENTRIES)


def register(name: str, module: str, extra: str) -> None:
    """Add a back end from outside: `module` has it as `BACKEND`, `pip install extra` brings what it needs."""
    _ENTRIES[name] = Entry(module, extra)


def backend(name: str) -> Backend:
    """The back end of this name, or InvalidArgument that says what there is, or what to install."""
    if not isinstance(name, str) or name not in _ENTRIES:
        raise InvalidArgument(f"backend={name!r}: there is none of that name; there are {', '.join(_ENTRIES)}")
    entry = _ENTRIES[name]
    try:
        return cast(Backend, import_module(entry.module).BACKEND)
    except ImportError as error:
        raise InvalidArgument(
            f"backend={name!r} needs {error.name or 'a package'}, which is not installed: pip install '{entry.extra}'"
        ) from error
