"""Walkers name no operator: what they know of one, they ask the operator table (`core/facet.py`, `core/traits.py`)."""

from __future__ import annotations

import ast
from pathlib import Path

import onnx
import pytest

import pulsify

ROOT = Path(pulsify.__file__).parent
WALKERS = sorted(p for part in ("analysis", "analysis/rows", "analysis/fields") for p in (ROOT / part).glob("*.py"))
OPERATORS = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}


def named(source: str) -> list[str]:
    return [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and n.value in OPERATORS]


def test_names_are_seen() -> None:
    assert named('if node.op in ("Concat", "other"):\n    pass') == ["Concat"]
    assert len(WALKERS) > 15


@pytest.mark.parametrize("path", WALKERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_walker_names_no_operator(path: Path) -> None:
    assert not named(path.read_text())
