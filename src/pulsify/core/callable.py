"""Packages of `pulsify` that have a public function's name: importing one must not hide the function."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """Importing a submodule sets `pulsify.verify` to its package: it can be called as the function it hides."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module("pulsify.api"), name)(*arguments, **options)  # it stands above these packages


def callable_as_function(package: str) -> None:
    """The package can be called as the function of `pulsify.api` that has its name."""
    sys.modules[package].__class__ = _Callable
