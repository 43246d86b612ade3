"""The zoo on a card, in float32: python -m pytest tests/gpu/test_zoo.py -m gpu"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.zoo.manifest import Entry, Exporter, load, runnable
from tests.zoo.table import check_entry, model_path

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
CASES = [
    pytest.param(entry, exporter, id=f"{entry.name}-{exporter}")
    for entry, exporter in runnable(load())
    if entry.streamable and not entry.exports[exporter].large
]
TOLERANCE = 1e-5


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize(("entry", "exporter"), CASES)
def test_the_zoo(entry: Entry, exporter: Exporter, mode: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cuda", "mode": mode, "allow_cpu": []}
    result = check_entry(entry, model_path(entry, exporter, tmp_path), backend="torch", options=options)
    assert result.status == "exact", result.detail
    assert result.worst < TOLERANCE
