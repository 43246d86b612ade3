"""How many streams there is time for."""

from __future__ import annotations

import pytest

import pulsify
from pulsify.serve.admission import MESSAGE, SHARE, Capacity, calibrated, fitted, quicker
from pulsify.serve.engine import open_engine
from pulsify.serve.hosted import Machine
from pulsify.serve.metrics import Meter
from pulsify.serve.protocol import Refused
from pulsify.serve.service import Service, Settings
from pulsify.serve.sources import of_stream
from pulsify.serve.stage import Stage
from tests.models import look_ahead


def test_a_line_through_what_was_measured() -> None:
    made = fitted(1000, 0.010, [1, 16, 64], [0.0011, 0.0026, 0.0074])
    assert abs(made.base - 0.001) < 1e-6 and abs(made.each - 0.0001) < 1e-6
    assert made.streams == int((SHARE * 0.010 - made.base) / made.each) == 70


def test_there_is_always_room_for_one_and_never_for_more_than_may_be() -> None:
    assert fitted(1000, 0.001, [1], [0.5]).streams == 1
    assert fitted(8, 1.0, [1, 8], [0.001, 0.002]).streams == 8
    assert Capacity(8).streams == 8 and not Capacity(8).late(100.0)


def test_rounds_that_take_too_long_leave_no_room() -> None:
    made = Capacity(100, 0.010, 0.001, 0.0001)
    assert not made.late(0.005)
    assert made.late(0.0085)


def test_a_model_is_measured_and_everyone_leaves() -> None:
    stage = Stage(open_engine(pulsify.stream(look_ahead("B"), 4, verify=False), 64, "ort", {}))
    made = calibrated([(stage, 1.0)], 0.5, 64)
    assert made.streams > 1 and made.each > 0
    assert len(stage.engine.pool) == 0  # type: ignore[attr-defined]


def test_a_stream_takes_what_its_messages_take_beside_its_model() -> None:
    """A model that takes nothing is no room for a million: bytes are moved by somebody."""
    stage = Stage(open_engine(pulsify.stream(look_ahead("B"), 4, verify=False), 1 << 14, "ort", {}))
    made = calibrated([(stage, 1.0)], 0.032, 1 << 14)
    assert made.each > MESSAGE and made.streams < SHARE * 0.032 / MESSAGE


def test_the_quicker_of_two_is_taken() -> None:
    stream = pulsify.stream(look_ahead("B"), 4, verify=False)
    stages = [Stage(open_engine(stream, 8, name, {})) for name in ("reference", "ort")]
    assert quicker(stages, 8) is stages[1] and quicker(stages[:1], 8) is stages[0]
    assert all(len(stage.engine.pool) == 0 for stage in stages)  # type: ignore[attr-defined]


def test_the_slowest_round_is_forgotten() -> None:
    meter = Meter()
    meter.round(3, 0.2, 0.2)
    assert 0.19 < meter.slowest <= 0.2
    meter._slowest = (meter._slowest[0] - 10, 0.2)
    assert meter.slowest < 0.001
    meter.round(3, 0.01, 0.01)
    assert 0.009 < meter.slowest <= 0.01 and meter.rounds == 2 and meter.pulses == 6


def test_a_model_that_is_full_leaves_others_their_time() -> None:
    """How many streams of it there may be says nothing of how long they take."""
    stream = pulsify.stream(look_ahead("B"), 4, verify=False)
    service = Service([of_stream(n, stream, None) for n in "ab"], Settings(Machine(most=2, calibrate=False)))
    service.uploads["a"] = 2
    for measured in (Capacity(2), Capacity(2, 0.010, 0.0, 0.0001)):
        service.models["a"].capacity = measured
        assert service.admit("b") is service.models["b"]
        with pytest.raises(Refused, match="2 streams of 'a' are open"):
            service.admit("a")
    slow = Capacity(2, 0.010, 0.0, 0.004)
    service.models["a"].capacity = service.models["b"].capacity = slow
    with pytest.raises(Refused, match="no time for more than 2"):
        service.admit("b")
