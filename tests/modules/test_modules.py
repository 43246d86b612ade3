"""Modules in ordinary style, from their forward to the last frame of a stream."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("torch")

from tests.modules.case import Case
from tests.modules.check import check

AREAS = (
    "published", "speech", "enhancers", "vocoders", "encoders", "sensors",
    "spotters", "separators", "synthesisers", "recognisers", "coders", "instruments", "films", "idioms", "habits",
    "scans", "maskers",
)  # fmt: skip
CASES: dict[str, Case] = {
    f"{area}: {name}": case
    for area in AREAS
    for name, case in getattr(importlib.import_module(f"tests.modules.{area}"), area.upper()).items()
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if c.large else []) for n, c in CASES.items()]
)
def test_a_module_streams_exactly_or_is_refused_for_a_true_reason(name: str) -> None:
    check(CASES[name])
