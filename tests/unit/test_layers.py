"""What is imported when: running a saved stream takes no converter, and `import pulsify` takes no library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pulsify
from tests.models import look_ahead

CONVERTING = ("pulsify.convert", "pulsify.trace", "pulsify.frontend", "pulsify.verify")
LIBRARIES = ("onnxruntime", "torch", "onnx")


def imported(code: str, *arguments: str) -> set[str]:
    """All modules that a fresh interpreter has once it has run this."""
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def of(packages: tuple[str, ...], modules: set[str]) -> list[str]:
    return sorted(m for m in modules if any(m == p or m.startswith(f"{p}.") for p in packages))


def test_running_a_saved_stream_imports_nothing_that_converts(tmp_path: Path) -> None:
    path = tmp_path / "stream.onnx"
    pulsify.stream(look_ahead(), pulse=4, verify=False).save(path)
    code = """
import numpy as np, pulsify
out = pulsify.load(sys.argv[1]).session().push(np.ones((1, 2, 12), np.float32))
assert out.shape[2] > 0, "it has to have run"
"""
    modules = imported(code, str(path))
    assert "pulsify.runtime.session" in modules
    assert of(CONVERTING, modules) == []


def test_importing_pulsify_imports_no_library() -> None:
    modules = imported("import pulsify")
    assert "pulsify" in modules
    assert of(LIBRARIES, modules) == []
