"""How long a batch waits for company: a moment, and longer where there is hardly time for all."""

from __future__ import annotations

from typing import Any

import pytest

import pulsify
from pulsify.serve import scheduler as module
from pulsify.serve.hosted import STRETCH, Hosted, Machine
from pulsify.serve.scheduler import EASY, FULL, Live, Scheduler
from pulsify.serve.sources import of_stream
from tests.models import look_ahead


@pytest.mark.parametrize(
    ("load", "stretch", "waits"),
    [(0.0, 0.01, 0.002), (EASY, 0.01, 0.002), ((EASY + FULL) / 2, 0.01, 0.006), (1.0, 0.01, 0.01), (1.0, 0.0, 0.002)],
)
def test_company_is_waited_for_longer_under_load(
    load: float, stretch: float, waits: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    made = Scheduler("m", 0.002, lambda batch: None, stretch)
    made._load, made._since = load, 100.0
    made._lives = {Live(Any): None}  # somebody who is not ready
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0)
    monkeypatch.setattr(module.time, "sleep", slept.append)
    made._company()
    assert slept == pytest.approx([waits])


@pytest.mark.parametrize(("rate", "stretch"), [(None, 0.002), (1000, 0.002), (100, 0.02), (10, STRETCH)])
def test_half_a_pulse_at_the_most(rate: int | None, stretch: float) -> None:
    stream = pulsify.stream(look_ahead("B"), 4, verify=False)
    hosted = Hosted(of_stream("m", stream, rate), Machine(calibrate=False), lambda batch: None)
    assert hosted.scheduler._stretch == pytest.approx(stretch)
