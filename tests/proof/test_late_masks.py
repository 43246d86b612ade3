"""Masks that change late: refused after a bounded amount of work, with the length up to which they stream."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
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
    assert type(refused.value) is pulsify.NotStreamable, "what it is called inside is nobody's business"
    declared = re.search(r'set={"T": "(<=\d+)"}', refused.value.hint)
    assert declared is not None
    stream = pulsify.stream(model, pulse=4, verify=False, set={"T": declared.group(1)})
    assert pulsify.verify(model, stream).ok


@pytest.mark.parametrize("rows", [40, 300])
def test_a_mask_written_row_by_row_in_python(rows: int) -> None:
    """As a loop over the frames of the example is exported: one ScatterND after the other."""
    net = Net()
    i, j = net.grid()
    mask = (i < 0) & (j < 0)
    for row in range(rows):
        columns = list(range(max(row - 4, 0), row + 1))
        places = np.array([[row, c] for c in columns])
        mask = net.op("ScatterND", mask, places, np.ones(len(columns), bool), kind="b")
    with pytest.raises(pulsify.NotStreamable) as refused:
        pulsify.stream(net.model(net.attend(mask)), pulse=4)
    if rows > 200:
        assert refused.value.op == "ScatterND" and "a loop in Python was written out" in refused.value.reason
    assert len(str(refused.value)) < 500


def test_a_module_that_is_refused_for_a_late_mask_is_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once more for one stream: the mask is the same."""
    torch = pytest.importorskip("torch")

    class Late(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            i, j = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1])[None]
            seen = (j <= i) & (i - j <= 8) & ((i < 600) | (i - j < 4))
            scores = (x @ x.transpose(1, 2)).masked_fill(~seen, -torch.inf)
            return scores.softmax(-1) @ x

    streams = list[int | None]()

    def counted(tracer: Any, *rest: Any) -> Any:
        streams.append(tracer.time.batch)
        return convert(tracer, *rest)

    monkeypatch.setattr("pulsify.convert.convert.convert", counted)
    with pytest.raises(pulsify.NotStreamable, match="up to 600 frames it does"):
        pulsify.stream(Late(), pulse=4, example=torch.randn(1, 30, 4), time={"x": 1})
    assert streams and all(batch is not None for batch in streams)
