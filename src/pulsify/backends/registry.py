"""Back ends by name. Each is imported when it is first asked for, with what it needs."""

from __future__ import annotations

from typing import cast

from pulsify.backends.seam import Backend
from pulsify.core.named import Entry, imported

DEFAULT = "ort"


_ENTRIES: dict[str, Entry] = {
    "ort": Entry("pulsify.backends.ort.backend", "pulsify"),
    "reference": Entry("pulsify.backends.reference.backend", "pulsify[reference]"),
    "torch": Entry("pulsify.backends.torch.backend", "pulsify[torch]"),
}


def names() -> list[str]:
    return list(_ENTRIES)


def register(name: str, module: str, extra: str) -> None:
    """Add a back end from outside: `module` has it as `BACKEND`, `pip install extra` brings what it needs."""
    _ENTRIES[name] = Entry(module, extra)


def backend(name: str) -> Backend:
    """The back end of this name, or InvalidArgument that says what there is, or what to install."""
    return cast(Backend, imported("backend", "BACKEND", _ENTRIES, name))
