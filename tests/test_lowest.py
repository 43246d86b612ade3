"""What `./check --lowest` installs and runs follows from pyproject.toml, and the documentation says the same."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.lowest import PROJECT, SMOKE, declared, lowest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("requirement", "pinned"),
    [
        ("numpy>=1.26", "numpy==1.26"),
        ("onnx-ir >= 0.1.16", "onnx-ir==0.1.16"),
        ("mkdocs-material>=9.5,<10", "mkdocs-material==9.5"),
        ("tritonclient[grpc]>=2.50", "tritonclient[grpc]==2.50"),
        ("uvloop>=0.20; sys_platform != 'win32'", "uvloop==0.20"),
        ("torch==2.13.0", "torch==2.13.0"),
    ],
)
def test_the_bound_is_the_version(requirement: str, pinned: str) -> None:
    assert lowest([requirement]) == [pinned]


def test_what_has_no_bound_is_an_error() -> None:
    for requirement in ("numpy", "numpy<3", "numpy>1.26"):
        with pytest.raises(ValueError, match="has no lower bound"):
            lowest([requirement])


def test_all_dependencies_have_one() -> None:
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    assert len(lowest(declared())) == len(project["dependencies"]) > 0
    for extra in ("torch", "native", "serve", "openvino"):
        assert lowest(declared(extra))[len(project["dependencies"]) :]


def test_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.lowest"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == lowest(declared())
    done = subprocess.run(
        [sys.executable, "-m", "tests.lowest", "--smoke"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.split() == list(SMOKE) and all((ROOT / path).exists() for path in SMOKE)


def test_the_documentation_says_the_same() -> None:
    rows = dict(re.findall(r"^\| ([a-z-]+) \| ([0-9.]+) \|", (ROOT / "docs" / "install.md").read_text("utf-8"), re.M))
    core = dict(pin.split("==") for pin in lowest(declared()))
    assert {name: rows.get(name) for name in core} == core
