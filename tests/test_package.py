"""The face of the package: what is offered, and that nothing of it is imported before it is used."""

from __future__ import annotations

import subprocess
import sys

import pulsify


def test_the_public_names_are_offered() -> None:
    assert dir(pulsify) == sorted([*pulsify.__all__, "__version__"])
    assert {"stream", "load", "verify", "Session", "Pool", "NotStreamable"} <= set(dir(pulsify))
    assert all(getattr(pulsify, name) is not None for name in dir(pulsify))


def test_offering_them_imports_nothing() -> None:
    heavy = {"numpy", "onnx", "onnx_ir", "pulsify.api"}
    code = f"import pulsify, sys; dir(pulsify); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0)
