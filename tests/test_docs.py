"""The documentation says what the code does."""

from __future__ import annotations

from pathlib import Path

import pulsify.convert.rules  # noqa: F401  fills the registry
from pulsify.report.operators import markdown

DOCS = Path(__file__).parent.parent / "docs"


ROOT = DOCS.parent


def test_the_readme_shows_the_lines_that_are_tested() -> None:
    tested = (ROOT / "tests" / "test_artefact.py").read_text()
    lines = tested.split("# README: begin\n")[1].split("# README: end")[0]
    assert lines in (ROOT / "README.md").read_text()


def test_operators_page_is_up_to_date() -> None:
    assert (DOCS / "operators.md").read_text() == markdown(), (
        "run: python -m pulsify.report.operators > docs/operators.md"
    )
