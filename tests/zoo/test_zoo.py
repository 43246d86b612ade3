"""Every case of the zoo, as both PyTorch exporters write it: exact, or a refusal that says why."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.selection import turns
from tests.zoo.manifest import Entry, Exporter, load, runnable
from tests.zoo.table import check_entry, model_path

SUPPORTED: frozenset[str] = frozenset({"foundation", "attention", "recurrence", "signal", "whole", "inputs"})


def supported_cases() -> list[Any]:
    """One exporter's all, and half of the other's a day: they write much the same graphs."""
    return [
        pytest.param(
            entry,
            exporter,
            id=f"{entry.name}-{exporter}",
            marks=[pytest.mark.slow] if entry.exports[exporter].large else turns(i, 2) if exporter == "dynamo" else [],
        )
        for i, (entry, exporter) in enumerate(runnable(load(), masks=True))
        if entry.family in SUPPORTED
    ]


@pytest.mark.parametrize(("entry", "exporter"), supported_cases())
def test_stream_equals_batch_or_is_refused(entry: Entry, exporter: Exporter, tmp_path: Path) -> None:
    if entry.exports[exporter].large:
        pytest.importorskip("torch")
    result = check_entry(entry, model_path(entry, exporter, tmp_path))
    assert result.status == entry.expected, result.detail
    if result.status == "refused":
        assert result.refusal is not None
        assert all(dataclasses.astuple(result.refusal)), result.refusal  # node, op, reason and hint are there
