"""How long a batch waits for company, a moment or longer; and what a round is counted as."""

from __future__ import annotations

from typing import Any

import pytest

import pulsify
from pulsify.serve import scheduler as module
from pulsify.serve.hosted import STRETCH, Hosted, Machine
from pulsify.serve.protocol import Sound
from pulsify.serve.scheduler import EASY, FULL, Live, Scheduler
from pulsify.serve.sources import of_stream
from tests.models import frames, look_ahead


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


def test_a_round_of_several_pulses_is_no_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or whoever sends messages of several pulses would keep others out."""
    stream = pulsify.stream(look_ahead("B"), 4, verify=False)
    hosted = Hosted(of_stream("m", stream, 100), Machine(calibrate=False), lambda batch: None)
    made, engine, clock = hosted.scheduler, hosted._stages[0].engine, [0.0]
    pulses = engine.pulses

    def slow(places: Any, feeds: Any, count: int = 1) -> Any:
        clock[0] += 0.01 * count
        return pulses(places, feeds, count)

    monkeypatch.setattr(engine, "pulses", slow)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    for _ in range(2):
        live = Live(hosted.chain(Sound(), Sound()))
        made._handle(live, "open", None, 0.0)
        made._handle(live, "data", frames(1, 2, 4 * 8).tobytes(), 0.0)
    made._round()
    assert (made.meter.rounds, made.meter.pulses) == (1, 16)
    assert made.meter.busy == pytest.approx(0.08) and 0.009 < made.meter.slowest <= 0.01
