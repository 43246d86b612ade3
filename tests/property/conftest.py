"""Default: few examples, always the same. PULSIFY_EXAMPLES=2000 and `-m slow`: many, from a random seed (printed)."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Verbosity, settings

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

settings.register_profile("default", derandomize=True, database=None, deadline=None, suppress_health_check=QUIET)
settings.register_profile(
    "long", derandomize=False, print_blob=True, deadline=None, suppress_health_check=QUIET, verbosity=Verbosity.normal
)
settings.load_profile("long" if "PULSIFY_EXAMPLES" in os.environ else "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long run only if asked for: -m slow, or PULSIFY_EXAMPLES."""
    if "slow" in str(config.getoption("markexpr")) or "PULSIFY_EXAMPLES" in os.environ:
        return
    for item in items:
        if item.get_closest_marker("slow") and "property" in str(item.path):
            item.add_marker(pytest.mark.skip(reason="long: run it with -m slow"))
