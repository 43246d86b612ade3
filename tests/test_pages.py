"""The pages for users: their code runs, their refusals are refusals, their remedies remedies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pulsify

torch = pytest.importorskip("torch")
DOCS = Path(__file__).parent.parent / "docs"
FENCE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def reasons() -> list[tuple[str, str]]:
    """What a section quotes, and the modules below it."""
    page = (DOCS / "refused.md").read_text()
    return re.findall(r"^> (.+?)\n.*?^```python\n(.*?)^```", page, re.M | re.S)


@pytest.mark.parametrize(("reason", "code"), reasons(), ids=[r for r, _ in reasons()])
def test_what_is_refused_and_what_streams_instead(reason: str, code: str) -> None:
    named: dict[str, Any] = {"torch": torch}
    exec(code, named)
    example = torch.randn(1, 40, 8)
    with pytest.raises(pulsify.NotStreamable) as caught:
        pulsify.stream(named["Before"]().eval(), example=example, time={"x": 1})
    assert reason in str(caught.value) and caught.value.hint
    made = pulsify.stream(named["After"]().eval(), example=example, time={"x": 1})
    assert made.verification is not None and made.verification.ok


@pytest.mark.parametrize("page", ["torch", "live-audio"])
def test_the_code_of_a_page_runs(page: str) -> None:
    named: dict[str, Any] = {}
    blocks = FENCE.findall((DOCS / f"{page}.md").read_text())
    assert blocks
    for block in blocks:
        exec(block, named)


def test_every_page_is_in_the_contents() -> None:
    contents = (DOCS.parent / "mkdocs.yml").read_text()
    assert all(page.name in contents for page in DOCS.glob("*.md"))


def test_the_fields_of_a_stream_are_all_told() -> None:
    from pulsify.report.figures import stream_figures, verified_figures
    from tests import models

    page = (DOCS / "json.md").read_text()
    stream = pulsify.stream(models.look_ahead("B"), pulse=4)
    assert stream.verification is not None
    for name in (*stream_figures(stream), *verified_figures(stream.verification)):
        assert f"`{name}`" in page, name
