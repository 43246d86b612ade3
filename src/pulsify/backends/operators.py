"""A back end's table of operators: ONNX's name -> the function that writes it.

The functions are in one file per family, and enter themselves by a decorator. All files are imported when the table is
first asked for.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Generic, TypeVar

F = TypeVar("F")


@dataclass(frozen=True)
class Operators(Generic[F]):
    """One table. modules: how the names of the families' modules begin; entered: what is in it so far."""

    modules: str
    entered: dict[str, F] = field(default_factory=dict)

    def __call__(self, *names: str) -> Callable[[F], F]:
        """Enter a function for operators of these names."""

        def enter(function: F) -> F:
            self.entered.update(dict.fromkeys(names, function))
            return function

        return enter

    def table(self) -> Mapping[str, F]:
        """All of it."""
        _import(self.modules)
        return self.entered


@cache
def _import(modules: str) -> None:
    package = modules.rpartition(".")[0]
    for found in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        if found.name.startswith(modules):
            import_module(found.name)
