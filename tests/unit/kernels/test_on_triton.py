"""The Triton kernels, in their interpreter, in a process that has it from the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not run")


def test_the_interpreter_agrees_with_the_specification() -> None:
    tests = [str(path) for path in sorted(Path(__file__).parent.glob("*/interpreted.py"))]
    assert len(tests) == 2
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
