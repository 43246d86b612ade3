"""Batch and stream side by side. `pulsify.verify` is this package, and it is also the function of the same name."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """Importing a submodule sets `pulsify.verify` to this module: it can be called as the function it hides."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from importlib import import_module  # the function stands above this package

        return import_module("pulsify.api").verify(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
