"""Default: what is quick. `-m slow` or PULSIFY_EXAMPLES=500: long streams, more pulses, many programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" in str(config.getoption("markexpr")) or "PULSIFY_EXAMPLES" in os.environ:
        return
    for item in items:
        if item.get_closest_marker("slow") and HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="long: run it with -m slow"))
