"""Kernels by name. Each is a specification, cases that are made from it alone, and implementations by target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pulsify.core.named import Entry, imported

Inputs = Mapping[str, Any]  # arrays and options, by name


@dataclass(frozen=True)
class Case:
    """Inputs made from a seed. about: what must hold there."""

    name: str
    about: str
    make: Callable[[], Inputs]


@dataclass(frozen=True)
class Implementation:
    """`entry.module` has a function named like the kernel, on tensors. devices: the types it runs on."""

    entry: Entry
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Kernel:
    """specification: from inputs (numpy) to results in float64, the first of which an implementation gives back.

    written: the inputs that it writes to; the specification gives them as they are afterwards, in this order.
    bound: what an implementation's result may be off by, given the inputs and their type.
    """

    name: str
    about: str
    specification: Callable[..., tuple[Any, ...]]
    cases: tuple[Case, ...]
    bound: Callable[[Inputs, str], float]
    written: tuple[str, ...]
    implementations: Mapping[str, Implementation]

    def implementation(self, target: str) -> Callable[..., Any]:
        """The function of this target, or InvalidArgument that says what to install."""
        entries = {name: found.entry for name, found in self.implementations.items()}
        return cast(Callable[..., Any], imported("target", self.name, entries, target))


_ENTRIES: dict[str, Entry] = {
    "stream_attention": Entry("pulsify.kernels.stream_attention.kernel", "pulsify"),
    "depthwise": Entry("pulsify.kernels.depthwise.kernel", "pulsify"),
}


def kernels() -> list[Kernel]:
    return [kernel(name) for name in _ENTRIES]


def kernel(name: str) -> Kernel:
    """The kernel of this name, or InvalidArgument that says which there are."""
    return cast(Kernel, imported("kernel", "KERNEL", _ENTRIES, name))
