"""What both exporters write: results of the whole stream, values of the first frames."""

from __future__ import annotations

import pytest

from tests.selection import rotated
from tests.whole.check import check
from tests.whole.graphs import FOLDS, LATCHES, exported

NAMES = [*FOLDS, *LATCHES]


@pytest.mark.parametrize("name", NAMES)
def test_of_the_first_exporter(name: str) -> None:
    check(exported("legacy", name))


@pytest.mark.parametrize("name", rotated(NAMES, 5))
def test_of_the_second_exporter(name: str) -> None:
    check(exported("dynamo", name), pulses=(1, 5))
