"""How long a batch waits for company, a moment or longer; what a round is counted as; and peeks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.serve import scheduler as module
from pulsify.serve.hosted import STRETCH, Hosted, Machine
from pulsify.serve.protocol import Sound
from pulsify.serve.scheduler import EASY, FULL, Live, Opened, Peeked, Scheduler
from pulsify.serve.sources import of_stream
from tests.models import frames, look_ahead, run_batch


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
    assert made.meter.busy == pytest.approx(0.08) and made.meter.mean_round((0, 0.0))[0] == pytest.approx(0.01)


def test_a_peek_waits_for_what_has_come_to_be_computed() -> None:
    """It computes what waits alone, and everybody waits for it: so little must."""
    told: list[Any] = []
    stream = pulsify.stream(look_ahead("B"), 4, verify=False)
    hosted = Hosted(of_stream("m", stream, None), Machine(calibrate=False), lambda batch: None)
    made, live, x = hosted.scheduler, Live(hosted.chain(Sound(), Sound())), frames(1, 2, 4 * 30 + 1)
    made._deliver = lambda batch: told.extend(news for _, each in batch for news in each)
    made._handle(live, "open", None, 0.0)
    made._handle(live, "data", x.tobytes(), 0.0)
    made._handle(live, "peek", None, time.monotonic())
    rounds = 0
    while live in made._peeking:
        made._round()
        made._answer_peeks()
        rounds += 1
    made._hand_out()
    assert rounds == 3 and isinstance(told[-1], Peeked), "the last few are computed by the peek"
    got = [m for m in told if isinstance(m, bytes)] + [m for m in told[-1].messages if isinstance(m, bytes)]
    want = run_batch(look_ahead("B"), x)["y"]
    np.testing.assert_allclose(
        np.concatenate([np.frombuffer(m, "<f4").reshape(1, 3, -1) for m in got], 2), want, atol=1e-5
    )


def test_a_peek_that_a_flush_overtakes_is_answered() -> None:
    stream = pulsify.stream(look_ahead("B"), 4, verify=False)
    hosted = Hosted(of_stream("m", stream, None), Machine(calibrate=False), lambda batch: None)
    made, live = hosted.scheduler, Live(hosted.chain(Sound(), Sound()))
    for kind, value in (("open", None), ("data", frames(1, 2, 100).tobytes()), ("peek", None), ("end", None)):
        made._handle(live, kind, value, time.monotonic())
    (peeked,) = (news for news in made._news[live] if isinstance(news, Peeked))
    assert peeked.error is not None and not made._peeking


@pytest.mark.parametrize("messages", [0, 3, 600])
@pytest.mark.parametrize("opened", [True, False])
def test_a_place_is_free_before_the_next_stream_wants_it(messages: int, opened: bool) -> None:
    """However much of the stream that has left is still waiting; and if it left before it had its place."""
    told: dict[Live, list[Any]] = {}
    stream = pulsify.stream(look_ahead("B"), 4, verify=False)
    hosted = Hosted(of_stream("m", stream, None), Machine(most=1, calibrate=False), lambda batch: None)
    made, chain = hosted.scheduler, hosted.chain(Sound(), Sound())
    made._deliver = lambda batch: [told.setdefault(live, []).extend(news) for live, news in batch]
    first, second = Live(chain), Live(chain)
    made.post(first, "open")
    if opened:
        made._drain()
    for _ in range(messages):
        made.post(first, "data", frames(1, 2, 2).tobytes())
    made.post(first, "utterance", 256)
    if opened:
        made._drain()
    made.post(first, "close")
    made.post(second, "open")
    while made._line.qsize():
        made._drain()
    made._hand_out()
    assert [type(news) for news in told[second]] == [Opened] and len(made) == 1 and first.over
    assert hosted._stages[0].seats == 1
