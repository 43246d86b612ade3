"""Masks that change late: refused after a bounded amount of work, with the length up to which they stream."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import pulsify
from pulsify.convert.convert import convert
from tests.proof.net import Net, Wire
from tests.unit.build import traced

MOST_CELLS = 170_000_000  # looked at in all: some three seconds


def band(i: Wire, j: Wire, back: int = 8) -> Wire:
    return (j <= i) & (i - j <= back)


Mask = Callable[[Wire, Wire], Wire]
LATE: dict[str, tuple[Mask, int]] = {
    "columns end": (lambda i, j: band(i, j) & (j < 3000), 3000),
    "two of them": (lambda i, j: band(i, j) & ((i < 3000) | (i - j < 4)) & ((j > 2000) | (i - j < 2)), 2000),
    "too far to look": (lambda i, j: band(i, j) & ((i < 5000) | (i - j < 4)), 5000),
    "later than is tried": (lambda i, j: band(i, j) & ((i < 20000) | (i - j < 4)), 4096),
}
VAIN: dict[str, Mask] = {
    "wide and late": lambda i, j: band(i, j, 4000) & ((i < 3000) | (i - j < 8)),
}


@pytest.mark.parametrize("case", [*LATE, *VAIN])
def test_what_is_looked_at_is_bounded(case: str) -> None:
    """Counted, not timed. Every length is looked at once, however often the model is."""
    net = Net()
    mask = LATE[case][0] if case in LATE else VAIN[case]
    tracer = traced(net.model(net.attend(mask(*net.grid()))))
    with pytest.raises(pulsify.NotStreamable):
        convert(tracer, 4)
    assert 0 < tracer.cells <= MOST_CELLS


@pytest.mark.parametrize("case", LATE)
def test_the_length_that_is_proposed_converts(case: str) -> None:
    mask, until = LATE[case]
    net = Net()
    model = net.model(net.attend(mask(*net.grid())))
    with pytest.raises(pulsify.NotStreamable, match=f"up to {until} frames it does") as refused:
        pulsify.stream(model, pulse=4, verify=False)
    declared = re.search(r'set={"T": "(<=\d+)"}', refused.value.hint)
    assert declared is not None
    stream = pulsify.stream(model, pulse=4, verify=False, set={"T": declared.group(1)})
    assert pulsify.verify(model, stream).ok
