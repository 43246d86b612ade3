"""What is installed here and what is missing: versions, back ends, devices, compilers. Plain data, as JSON takes it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pulsify
from pulsify.backends import registry
from pulsify.core.errors import InvalidArgument
from pulsify.report.figures import Figures

CORE = ("onnx", "onnx-ir", "onnxruntime", "numpy", "safetensors", "click", "rich")
EXTRAS = {  # what a distribution is for, and the extra that brings it
    "torch": ("torch modules, the back end torch", "torch"),
    "onnxscript": ("torch's newer exporter", "torch"),
    "triton": ("kernels of our own on a graphics card", "gpu"),
    "ziglang": ("a C compiler, where there is none", "native"),
    "sounddevice": ("the microphone of `pulsify asr --live`", "live"),
    "starlette": ("`pulsify serve`", "serve"),
    "openvino": ("the export openvino", "openvino"),
    "matplotlib": ("`pulsify bench --plot`", "bench"),
}


def doctor_figures() -> Figures:
    """Everything. `missing`: what would have to be installed, and for what."""
    extras = [
        {"name": name, "version": _version(name), "for": what, "install": f"pip install 'pulsify[{extra}]'"}
        for name, (what, extra) in EXTRAS.items()
    ]
    return {
        "pulsify": pulsify.__version__,
        "python": platform.python_version(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "core": [{"name": name, "version": _version(name)} for name in CORE],
        "extras": extras,
        "compiler": _compiler(),
        "devices": _devices(),
        "backends": [_backend(name) for name in registry.names()],
        "missing": [e["name"] for e in extras if e["version"] is None],
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _backend(name: str) -> Figures:
    """Does it import, and has it what it runs on?"""
    about = registry.entries()[name].about
    try:
        registry.backend(name)
        if name == "native":
            _found_compiler()
        return {"name": name, "about": about, "works": True, "why_not": None}
    except InvalidArgument as error:
        return {"name": name, "about": about, "works": False, "why_not": str(error)}
    except Exception as error:  # a library that is there and broken: said, not raised
        return {"name": name, "about": about, "works": False, "why_not": f"{type(error).__name__}: {error}"}


def _found_compiler() -> tuple[str, ...]:
    from pulsify.backends.native.library import compiler

    return compiler()


def _compiler() -> Figures:
    try:
        command = _found_compiler()
    except InvalidArgument as error:
        return {"command": None, "version": None, "why_not": str(error)}
    try:
        told = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=20, check=False)
        first = told.stdout.strip().partition("\n")[0] or None
    except (OSError, subprocess.SubprocessError) as error:
        return {"command": _shown(command), "version": None, "why_not": str(error)}
    return {"command": _shown(command), "version": first, "why_not": None}


def _shown(command: tuple[str, ...]) -> str:
    return " ".join("python" if part == sys.executable else part for part in command)


def _devices() -> list[Figures]:
    """Graphics cards that torch sees; empty without torch."""
    if _version("torch") is None:
        return []
    import torch

    out: list[Figures] = []
    for i in range(torch.cuda.device_count()):
        about: Any = torch.cuda.get_device_properties(i)
        out.append({"device": f"cuda:{i}", "name": about.name, "bytes": about.total_memory})
    return out
