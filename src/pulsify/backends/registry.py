"""Back ends by name. Each is imported when it is first asked for, with what it needs.

Three ways in: a line here, `register` from outside, or an installed distribution's entry point:

    [project.entry-points."pulsify.backends"]
    acme = "acme_backend"        # a module with an object BACKEND
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pulsify.core.named import Entry, imported, installed

if TYPE_CHECKING:
    from pulsify.backends.seam import Backend

DEFAULT = "ort"
GROUP = "pulsify.backends"


_ENTRIES: dict[str, Entry] = {
    "ort": Entry("pulsify.backends.ort.backend", "pulsify", "ONNX Runtime"),
    "reference": Entry("pulsify.backends.reference.backend", "pulsify[reference]", "onnx's own evaluator, slow"),
    "torch": Entry("pulsify.backends.torch.backend", "pulsify[torch]", "on the CPU or a graphics card"),
    "native": Entry("pulsify.backends.native.backend", "pulsify[native]", "the step as C, compiled for this machine"),
}


def entries() -> dict[str, Entry]:
    """All there are. What is here, or was registered, is not replaced by what is installed."""
    return {**_ENTRIES, **{name: entry for name, entry in installed(GROUP).items() if name not in _ENTRIES}}


def names() -> list[str]:
    return list(entries())


def register(name: str, module: str, extra: str, about: str = "") -> None:
    """Add a back end from outside: `module` has it as `BACKEND`, `pip install extra` brings what it needs."""
    _ENTRIES[name] = Entry(module, extra, about)


def backend(name: str) -> Backend:
    """The back end of this name, or InvalidArgument that says what there is, or what to install."""
    known = isinstance(name, str) and name in _ENTRIES  # what is installed is looked through only if it is not
    return cast("Backend", imported("backend", "BACKEND", _ENTRIES if known else entries(), name))
