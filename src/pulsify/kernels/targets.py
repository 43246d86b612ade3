"""Who computes a kernel on a device: Triton on a card (its interpreter takes the CPU too), else torch itself."""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from typing import Any


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def chosen(device: str) -> str:
    """The target that computes on a device of this type: "triton" or "torch"."""
    there = device == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    return "triton" if there and has_triton() else "torch"


@cache
def implementation(kernel: str, target: str) -> Any:
    """The function of a kernel, named like it."""
    return getattr(importlib.import_module(f"pulsify.kernels.{kernel}.on_{target}"), kernel)
