"""How many streams there is time for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import pulsify
from pulsify.serve.admission import MESSAGE, SHARE, Capacity, calibrated, fitted, quicker
from pulsify.serve.engine import open_engine
from pulsify.serve.hosted import Machine
from pulsify.serve.pace import Congestion, Pace
from pulsify.serve.protocol import Refused
from pulsify.serve.service import Service, Settings
from pulsify.serve.sources import of_stream
from pulsify.serve.stage import Stage
from tests.models import look_ahead


def test_a_line_through_what_was_measured() -> None:
    made = fitted(1000, 0.010, [1, 16, 64], [0.0011, 0.0026, 0.0074])
    assert abs(made.base - 0.001) < 1e-6 and abs(made.each - 0.0001) < 1e-6
    assert made.streams == round((SHARE * 0.010 - 0.001) / 0.0001) == 70


def test_there_is_always_room_for_one_and_never_for_more_than_may_be() -> None:
    assert fitted(1000, 0.001, [1], [0.5]).streams == 1
    assert fitted(8, 1.0, [1, 8], [0.001, 0.002]).streams == 8
    assert Capacity(8).streams == 8 and Capacity(8).share(100.0) == 0


def test_the_largest_sizes_decide() -> None:
    """A device takes hardly longer for a few streams than for one: that says nothing about many."""
    flat = fitted(1 << 20, 0.1, [1, 4, 16, 64, 256, 1024], [0.002, 0.002, 0.002, 0.0026, 0.0074, 0.0266])
    assert abs(flat.each - 25e-6) < 3e-6 and flat.streams == pytest.approx(0.08 / 25e-6, rel=0.15)


class Costly:
    """An engine whose pulse takes base + each * n by a clock of its own; its first ones of each size are compiled."""

    spec = pulsify.stream(look_ahead("B"), 4, verify=False).spec
    backend, together = "torch", 1

    def __init__(self, base: float, each: float, compiling: float, settles: int) -> None:
        self.base, self.each, self.compiling, self.settles = base, each, compiling, settles
        self.now, self.opened = 0.0, 0
        self.pulsed: Counter[int] = Counter()  # calls by size

    def open(self) -> object:
        self.opened += 1
        return object()

    def close(self, place: object) -> None:
        self.opened -= 1

    def pulses(self, places: list[object], feeds: Any, count: int = 1) -> list[Any]:
        self.pulsed[len(places)] += 1
        first = self.pulsed[len(places)] <= self.settles + 1
        self.now += self.compiling if first else self.base + self.each * len(places)
        return [({}, None) for _ in places]

    def pushes(self, given: Any) -> list[Any]:
        raise AssertionError("it has no first call")


@pytest.mark.parametrize("step", [2, 4])
def test_what_the_first_steps_take_is_no_part_of_what_is_measured(step: int) -> None:
    """Compiling took the time there was for measuring: 14 streams were let in where 214 fit."""
    engine = Costly(0.002, 50e-6, compiling=30.0, settles=7)
    stage = Stage(engine)  # type: ignore[arg-type]
    made = calibrated([(stage, 1.0)], 0.025, 1024, lambda: engine.now, step)
    assert made.base == pytest.approx(0.002) and made.each == pytest.approx(50e-6) and made.message == MESSAGE
    assert made.streams == int((SHARE * 0.025 - 0.002) / (50e-6 + MESSAGE)) == 200
    assert stage.cost.of(100) == pytest.approx(0.007)
    assert engine.opened == 0 and 256 in engine.pulsed, "all sizes that are used have been computed"
    assert step == 4 or list(engine.pulsed) == [1 << k for k in range(10)]


def test_a_long_pulse_comes_in_several_messages() -> None:
    engine = Costly(0.002, 50e-6, compiling=0.1, settles=0)
    made = calibrated([(Stage(engine), 1.0)], 0.32, 64, lambda: engine.now)  # type: ignore[arg-type]
    assert made.message == pytest.approx(4 * MESSAGE)


def test_a_model_that_is_too_slow_for_one_is_tried_with_no_more() -> None:
    engine = Costly(0.5, 0.1, compiling=30.0, settles=0)
    made = calibrated([(Stage(engine), 1.0)], 0.5, 1024, lambda: engine.now)  # type: ignore[arg-type]
    assert list(engine.pulsed) == [1] and made.streams == 1


def test_a_model_is_measured_and_everyone_leaves() -> None:
    stage = Stage(open_engine(pulsify.stream(look_ahead("B"), 4, verify=False), 64, "ort", {}))
    made = calibrated([(stage, 1.0)], 0.5, 64)
    assert made.streams > 1 and made.each > 0
    assert len(stage.engine.pool) == 0  # type: ignore[attr-defined]


def test_a_stream_takes_what_its_messages_take_beside_its_model() -> None:
    """A model that takes nothing is no room for a million: bytes are moved by somebody."""
    stage = Stage(open_engine(pulsify.stream(look_ahead("B"), 4, verify=False), 1 << 14, "ort", {}))
    made = calibrated([(stage, 1.0)], 0.032, 1 << 14)
    assert made.message == MESSAGE and made.streams < SHARE * 0.032 / MESSAGE


def test_the_quicker_of_two_is_taken() -> None:
    stream = pulsify.stream(look_ahead("B"), 4, verify=False)
    stages = [Stage(open_engine(stream, 8, name, {})) for name in ("reference", "ort")]
    assert quicker(stages, 8) is stages[1] and quicker(stages[:1], 8) is stages[0]
    assert all(len(stage.engine.pool) == 0 for stage in stages)  # type: ignore[attr-defined]


def service_of(capacity: Capacity, clock: Clock) -> Service:
    stream = pulsify.stream(look_ahead("B"), 4, verify=False)
    service = Service([of_stream("m", stream, None)], Settings(Machine(most=1024, calibrate=False)))
    service.models["m"].capacity = capacity
    service.models["m"].scheduler.meter.pace = Pace(clock)
    service.congestion = Congestion(clock)
    return service


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


SIX_HUNDRED = Capacity(1024, 0.032, 0.0, 0.8 * 0.032 / 600)


def test_one_live_stream_of_six_hundred_keeps_nobody_out() -> None:
    """Whatever the machine is held up by."""
    clock = Clock()
    service = service_of(SIX_HUNDRED, clock)
    service.uploads.models["m"] = 1
    assert service.models["m"].capacity.streams == 600
    for _ in range(100):
        clock.now += 0.25
        service.models["m"].scheduler.meter.pace.add(0.3, 0.001)  # one round, 300 times as long as it should be
        service.congestion.look(late=True)
        assert service.admit("m") is service.models["m"]


def test_streams_that_have_not_sent_yet_have_their_place() -> None:
    """Rounds of the few that send take twice as long as expected: so will those of all others."""
    clock = Clock()
    service = service_of(SIX_HUNDRED, clock)
    service.uploads.models["m"] = 350
    assert service.admit("m") is service.models["m"]
    for _ in range(400):  # ten streams
        clock.now += 0.032
        service.models["m"].scheduler.meter.pace.add(0.02, 0.01)
    with pytest.raises(Refused, match="no time for more than 350"):
        service.admit("m")
    clock.now += 60  # nothing has been slow of late
    assert service.admit("m") is service.models["m"]


def test_lateness_most_of_the_time_closes_the_door_and_does_not_flicker() -> None:
    clock = Clock()
    service = service_of(SIX_HUNDRED, clock)
    service.uploads.models["m"] = 100

    def after(*looks: bool) -> bool:
        for late in looks:
            clock.now += 0.25
            service.congestion.look(late)
        if not service.congestion.present:
            return service.admit("m") is service.models["m"]
        with pytest.raises(Refused, match="all the time there is"):
            service.admit("m")
        return False

    assert after(*[True, False, False] * 20), "now and then"
    assert after(True, True, True), "for a moment"
    assert not after(*[True] * 8)
    assert not after(*[True, False] * 10), "half of the time: it stays closed"
    assert after(*[False] * 8)


def test_the_event_loop_and_the_rounds_may_each_be_late() -> None:
    service = service_of(SIX_HUNDRED, Clock())
    meter = service.models["m"].scheduler.meter
    service.uploads.models["m"] = 10
    assert not service._late()
    meter.round(10, 0.03, 10, 0.03)
    assert service._late() and not service._late(), "rounds since the last look"
    meter.round(1, 0.03, 1, 0.03)
    meter.round(100, 0.01, 99, 0.01)
    assert not service._late(), "what most streams have seen"
    service.figures.loop_late = 0.04
    assert service._late()
    service.figures.loop_late = 0.0
    meter.began = 0.0  # a round that does not end
    assert service._late()
    service.uploads.models["m"] = 0
    assert not service._late()


def test_a_slow_pace_is_forgotten() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.slowdown == 1
    pace.add(0.05, 0.0)
    assert pace.slowdown == 1, "a cost that was never measured"
    for _ in range(100):
        pace.add(0.3, 0.1)
    assert pace.slowdown == pytest.approx(3, abs=0.05)
    clock.now += 5
    pace.add(0.001, 0.1)
    assert 2.5 < pace.slowdown < 3
    clock.now += 60
    assert pace.slowdown < 1.1


def test_a_model_that_is_full_leaves_others_their_time() -> None:
    """How many streams of it there may be says nothing of how long they take."""
    stream = pulsify.stream(look_ahead("B"), 4, verify=False)
    service = Service([of_stream(n, stream, None) for n in "ab"], Settings(Machine(most=2, calibrate=False)))
    service.uploads.models["a"] = 2
    for measured in (Capacity(2), Capacity(2, 0.010, 0.0, 0.0001)):
        service.models["a"].capacity = measured
        assert service.admit("b") is service.models["b"]
        with pytest.raises(Refused, match="2 streams of 'a' are open"):
            service.admit("a")
    slow = Capacity(2, 0.010, 0.0, 0.004)
    service.models["a"].capacity = service.models["b"].capacity = slow
    with pytest.raises(Refused, match="no time for more than 2"):
        service.admit("b")
