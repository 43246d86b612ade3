"""The page of operators: every rule once, and what needs none."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pulsify.ops  # noqa: F401  fills the registry
from pulsify.ops.registry import RULES, STREAM
from pulsify.report.operators import main, markdown, without_rule


def test_every_operator_with_a_rule_is_named_with_what_is_streamed() -> None:
    page = markdown()
    for entry in RULES.values():
        if "::" not in entry.op:
            assert f"`{entry.op}`" in page and entry.says in page and f"## {entry.family}\n" in page


def test_operators_without_a_rule_say_what_happens_to_them() -> None:
    named, page = without_rule(), markdown()
    assert "If" in named and all(named.values())
    assert all(f"`{name}`" in page and says in page for name, says in named.items())


def test_what_was_registered_from_outside_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "acme::Boost", replace(RULES["Relu"], op="acme::Boost"))
    assert "acme::Boost" not in markdown()


def test_it_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert capsys.readouterr().out == markdown()


def test_every_facet_is_asked_of_every_operator() -> None:
    table = markdown().split("## facet by facet")[1]
    assert f"| {STREAM.name} | {STREAM.question} |" in table
    header = next(line for line in table.splitlines() if line.startswith("| operators |"))
    names = [cell.strip() for cell in header.strip("|").split("|")][1:]
    marks = {op: dict(zip(names, cells, strict=True)) for op, cells in rows(table)}
    assert marks["Conv"]["stream"] == marks["Conv"]["check"] == "●"
    assert marks["Exp"]["check"] == "○" and marks["Less"]["digits"] == "○", "as their kind has it"
    assert marks["Relu"]["shape"] == ""


def rows(table: str) -> list[tuple[str, list[str]]]:
    """Operators with the marks in their line."""
    lines = [line[2:-2].split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return [(name.strip("` "), [m.strip() for m in marks]) for names, *marks in lines for name in names.split(",")]
