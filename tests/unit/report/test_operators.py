"""The page of operators: every rule once, and what needs none."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pulsify.ops  # noqa: F401  fills the registry
from pulsify.ops.registry import RULES
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
