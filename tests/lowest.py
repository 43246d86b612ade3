"""The lowest versions that pyproject.toml allows, as requirements:    python -m tests.lowest [extra ...]

`./check --lowest` installs them and runs `SMOKE` there, so that a bound that is too low fails.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
BOUND = re.compile(r"^(?P<name>[A-Za-z0-9._-]+(\[[^]]*\])?)\s*(>=|==)\s*(?P<version>[0-9][0-9.]*)(\s*,[^;]*)?(;.*)?$")
SMOKE = (
    "tests/zoo", "tests/unit/api", "tests/unit/core", "tests/unit/frontend", "tests/unit/runtime", "tests/unit/verify",
    "tests/test_format.py", "tests/test_forms.py", "tests/test_pool.py", "tests/test_run.py", "tests/test_session.py",
    "tests/test_cli.py", "tests/test_verify.py",
)  # fmt: skip


def lowest(requirements: Iterable[str]) -> list[str]:
    """`numpy>=1.26` as `numpy==1.26`. Every requirement has a lower bound, or it is an error."""
    out = []
    for requirement in requirements:
        bound = BOUND.match(requirement)
        if bound is None:
            raise ValueError(f"{requirement!r} has no lower bound")
        out.append(f"{bound['name']}=={bound['version']}")
    return out


def declared(*extras: str) -> list[str]:
    """The dependencies in pyproject.toml, with those of extras."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    return [*project["dependencies"], *(r for e in extras for r in project["optional-dependencies"][e])]


if __name__ == "__main__":
    if sys.argv[1:] == ["--smoke"]:
        print("\n".join(SMOKE))
    else:
        print("\n".join(lowest(declared(*sys.argv[1:]))))
