"""The documentation says what the code does."""

from __future__ import annotations

from pathlib import Path

import pulsify.rules  # noqa: F401  fills the registry
from pulsify.report.operators import markdown

DOCS = Path(__file__).parent.parent / "docs"


def test_operators_page_is_up_to_date() -> None:
    assert (DOCS / "operators.md").read_text() == markdown(), (
        "run: python -m pulsify.report.operators > docs/operators.md"
    )
