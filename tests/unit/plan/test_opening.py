"""How many pulses open a stream, and whether it can go on from what they leave."""

from __future__ import annotations

import pytest

from pulsify.analysis.options import Options
from pulsify.convert.analyse import analyse
from pulsify.convert.convert import convert
from pulsify.convert.pulses import planned
from pulsify.plan.opening import LONGEST, leads_to, pulses, sooner
from tests import models
from tests.unit.build import traced


@pytest.mark.parametrize("needed", [2, 3, 4, 5, 17, 64])
def test_the_fewest_pulses_after_which_nothing_is_waited_for(needed: int) -> None:
    assert pulses([lambda n: n >= 2, lambda n: n >= needed], 4) == needed


def test_what_would_take_too_long_is_not_opened() -> None:
    assert pulses([lambda n: n > LONGEST], 1) is None
    assert pulses([lambda n: n >= 2], LONGEST) == 2, "two pulses are never too long"


@pytest.mark.parametrize(("pulse", "count"), [(1, 5), (2, 3), (3, 2), (4, 2), (5, 0), (8, 0)])
def test_an_opening_holds_all_that_is_shown(pulse: int, count: int) -> None:
    """Four frames are mirrored in front of both convolutions: frame 0 shows frame 4."""
    plan = planned(traced(models.mirrored()), pulse)
    assert (plan.opening is not None) == (count > 0)
    assert {o.delay for o, _ in plan.outputs} == {0} and plan.latency == pulse
    if plan.opening is not None:
        assert plan.opening[0].pulse == count * pulse


def test_windows_of_an_opening_begin_where_those_of_the_pulses_do() -> None:
    plan = planned(traced(models.mirrored_lstm("B")), 2)
    assert plan.opening is not None
    first = plan.opening[0]
    assert leads_to(first, plan.ctx) and first.windows
    for name, window in first.windows.items():
        then = plan.ctx.windows[name]
        assert (window.start, window.end) == (then.start, then.end + window.p - then.p)


def test_a_plan_that_still_waits_or_remembers_other_frames_leads_nowhere() -> None:
    tracer = traced(models.mirrored())
    then, outputs = analyse(tracer, 2, started=True)
    shorter, late = analyse(tracer, 4)
    assert shorter.waited and not leads_to(shorter, then)
    assert sooner(outputs, late) and not sooner(late, outputs) and not sooner(outputs, outputs)
    other, _ = analyse(traced(models.causal()), 6)
    assert not other.waited and not leads_to(other, then)


def test_states_of_both_have_the_same_names_and_shapes() -> None:
    made = convert(traced(models.mirrored_lstm("B")), 2)
    assert made.opening is not None and made.spec.opening == 3
    first = made.opening.spec
    assert [(s.name, s.shape, s.kind) for s in first.states] == [(s.name, s.shape, s.kind) for s in made.spec.states]
    assert (first.length, first.position) == (made.spec.length, made.spec.position)


def test_not_asked_for_there_is_none() -> None:
    made = convert(traced(models.mirrored()), 2, Options(opening=False))
    assert made.opening is None and made.spec.opening == 0
    assert (made.spec.outputs[0].delay, made.spec.outputs[0].delay_after_start) == (8, 0)
