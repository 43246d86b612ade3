"""CONTRIBUTING.md is run, block by block; what it names is there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsify.backends import registry as backends
from pulsify.core.custom import CUSTOM, WHOLE
from pulsify.export import registry as targets
from pulsify.ops.registry import RULES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"^```python(?: title=\"([\w.]+)\")?\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.fixture
def as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the modules; what the page registers is forgotten again."""
    monkeypatch.syspath_prepend(tmp_path)
    kept: list[tuple[Any, Any]] = [(d, d.copy()) for d in (RULES, CUSTOM, WHOLE, backends._ENTRIES, targets._ENTRIES)]
    modules = set(sys.modules)
    yield tmp_path
    for now, before in kept:
        now.clear()
        now.update(before)
    for name in set(sys.modules) - modules:
        if not name.startswith("pulsify"):
            del sys.modules[name]


def test_the_page_runs(as_before: Path) -> None:
    assert len(BLOCKS) >= 7
    namespace: dict[str, Any] = {"__name__": "contributing"}
    for title, code in BLOCKS:
        if title:
            (as_before / title).write_text(code)
        else:
            at = PAGE[: PAGE.index(code)].count("\n")
            exec(compile("\n" * at + code, "CONTRIBUTING.md", "exec"), namespace)  # errors name the page's own lines


def test_files_it_names_are_there() -> None:
    named = set(re.findall(r"`((?:src|tests|docs|examples|[a-z]+)/[\w/.]+)`", PAGE))
    places = (ROOT, ROOT / "src/pulsify", ROOT / "src/pulsify/convert")
    missing = [n for n in named if not any((p / n).exists() for p in places)]
    assert len(named) > 10 and not missing, missing


def test_code_that_it_quotes_is_there() -> None:
    quoted = re.findall(r"^```python title=\"(src/[\w/.]+)\"\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(quoted) == 3
    assert not [path for path, code in quoted if code not in (ROOT / path).read_text()]


def test_quickstart(capsys: pytest.CaptureFixture[str]) -> None:
    code = (ROOT / "examples" / "quickstart.py").read_text()
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(('"""', "import", "from"))]
    assert len(lines) <= 10
    exec(compile(code, "quickstart.py", "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out
    assert "16000 samples in, 16000 out" in said
    assert "largest relative error" in said


def test_the_licence_is_the_one_that_is_named() -> None:
    named = re.search(r'^license = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert named is not None and named[1] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "## 0.1.0" in (ROOT / "CHANGELOG.md").read_text()
