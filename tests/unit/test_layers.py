"""What is imported when: running a saved stream takes no converter, and `import pulsify` takes no library.

And what is tested where: this folder has a counterpart for every package.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import pulsify
from tests.models import look_ahead

SOURCE, TESTS = Path(pulsify.__file__).parent, Path(__file__).parent
NO_MODULES = ("__init__.py", "__main__.py")
PACKAGES = sorted({p.parent.relative_to(SOURCE) for p in SOURCE.rglob("*.py") if p.name not in NO_MODULES})
CONVERTING = ("pulsify.convert", "pulsify.plan", "pulsify.emit", "pulsify.trace", "pulsify.frontend", "pulsify.verify")
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


def modules_imported(test: Path) -> set[str]:
    """All that a file imports, whole modules and names out of them alike."""
    found = set()
    for node in ast.walk(ast.parse(test.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return found


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: ".".join(("pulsify", *p.parts)))
def test_every_package_has_tests_of_its_own_that_import_from_it(package: Path) -> None:
    own = {p.stem for p in (SOURCE / package).glob("*.py") if p.name not in NO_MODULES}
    wanted = {".".join(("pulsify", *package.parts, name)) for name in own}
    tests = list((TESTS / package).glob("test_*.py"))
    assert any(modules_imported(test) & wanted for test in tests), f"no test_*.py in tests/unit/{package} does"
