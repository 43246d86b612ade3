"""Which pulse to choose, which to leave out, and how far a model looks. Nothing here depends on how long it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pulsify.api import Stream
from pulsify.core.errors import InvalidArgument
from pulsify.core.length import Length
from pulsify.core.runner import open_model
from pulsify.core.spec import Condition
from pulsify.report.timing import POINTS, bench_figures, choose, fitting, looks, sweep_figures
from tests.models import causal, look_ahead, model, node
from tests.unit.specs import an_output, remembers


def stream(pulse: int = 4, delay: int = 0, **fields: Any) -> Stream:
    outputs = (an_output(dims=("B", 3, pulse), delay=delay),)
    own, spec = remembers("B", pulse)
    return Stream(own, replace(spec, outputs=outputs, **fields))


def point(pulse: int, work: float, late: float | None = None, slowest: float = 0.0) -> dict[str, Any]:
    """work: microseconds a frame. late: total milliseconds."""
    return {
        "pulse": pulse, "latency_frames": pulse, "per_frame_us": work, "total_ms": late,
        "pulse_ms": None if late is None else float(pulse), "p99_us": slowest,
    }  # fmt: skip


def test_without_a_sample_rate_the_knee_is_chosen() -> None:
    found = choose([point(1, 100), point(2, 40), point(4, 35), point(8, 34)])
    assert found["pulse"] == 2 and found["why"].startswith("the knee")
    falling = choose([point(1, 100), point(2, 40), point(4, 15), point(8, 5)])
    assert falling["pulse"] == 8 and falling["why"].startswith("the longest tried")


def test_with_one_the_earliest_is_chosen_of_those_that_leave_half_of_the_time_free() -> None:
    points = [point(1, 9, late=2.0, slowest=501), point(2, 8, late=3.0, slowest=1000), point(4, 7, late=5.0, slowest=9)]
    assert choose(points)["pulse"] == 2
    late = choose([point(1, 9, late=2.0, slowest=1e6), point(2, 8, late=3.0, slowest=1e6)])
    assert late["pulse"] == 2 and "none leaves half of the time free" in late["why"]


def test_a_length_near_the_wished_one_that_the_model_takes() -> None:
    assert fitting(stream(), 10, 100) == 10
    assert fitting(stream(), 1000, 100) == 100
    assert fitting(stream(step=8), 10, 100) == 16
    table = Condition("table", Length(), at_most=6)
    assert fitting(stream(conditions=(table,)), 10, 6) == 6
    assert fitting(stream(step=8), 4, 5) == 8, "the shortest there is, though it is longer than allowed"


@pytest.mark.parametrize(("proto", "seen"), [(causal("B"), (2, 0)), (look_ahead("B"), (3, 3))])
def test_how_far_a_model_looks_is_found_by_trying(proto: Any, seen: tuple[int, int]) -> None:
    assert looks(open_model(proto), stream(), 1 << 12) == seen


def test_a_change_that_is_felt_near_the_end_may_be_felt_beyond() -> None:
    taps = np.zeros((2, 2, 61), np.float32)
    taps[..., [0, 24, 60]] = 1  # 60 before, 36 before, this frame
    sparse = model([node("Conv", "x w", "y", pads=[60, 0])], {"x": ["B", 2, "T"]}, ["y"], {"w": taps})
    assert looks(open_model(sparse), stream(), 1 << 12) == (60, 0)


def test_a_model_that_looks_back_without_end_is_said_to() -> None:
    summing = model([node("CumSum", "x a", "y")], {"x": ["B", 2, "T"]}, ["y"], {"a": np.array(2)})
    assert looks(open_model(summing), stream(), 1 << 9) == (None, 0)
    assert looks(open_model(causal("B")), stream(exact_up_to=9), 1 << 9) == (None, 0), "known, and not tried"


def test_a_stream_is_timed_against_both_ways_to_run_the_batch_model() -> None:
    said: list[str] = []
    found = bench_figures(open_model(causal("B")), stream(), sample_rate=1000, seconds=0.01, progress=said.append)
    assert found["pulse_ms"] == 4.0 and found["threads"] == 1 and len(said) == 6
    assert found["native"].get("p50_us", 0) > 0 or found["native"]["why_not"]
    assert found["sliding"]["window"] == 2 + 4 and found["sliding"]["looks_back"] == 2
    assert found["batch"]["length"] == 64 * 4
    for part in ("stream", "batch", "sliding"):
        assert 0 < found[part]["p50_us"] <= found[part]["p99_us"]


def test_a_pulse_that_a_longer_one_makes_pointless_is_left_out_and_so_are_those_between() -> None:
    """Up to a pulse of 8 the delay makes up for it; pulses of more than 16 are refused."""

    def convert(pulse: int | None) -> Stream:
        if pulse is not None and pulse > 16:
            raise InvalidArgument("too long\nfor this model")
        size = pulse or 1
        return stream(size, delay=max(8 - size, 0))

    found, chosen = sweep_figures(open_model(causal("B")), convert, seconds=0.001)
    timed, left = [p["pulse"] for p in found["sweep"]], {o["pulse"]: o["reason"] for o in found["left_out"]}
    assert timed == sorted(timed) and len(timed) <= POINTS and timed[0] == 8 and chosen.pulse in timed
    assert left[1] == left[7] == "no earlier than a pulse of 8, and more work" and left[64] == "too long"
    assert found["choice"]["pulse"] == chosen.pulse and set(timed).isdisjoint(left)
    assert found["granularity"] == 1 and found["sample_rate"] is None


@pytest.mark.parametrize("also", [10, 37, 5000])
def test_the_pulse_that_is_asked_about_is_timed(also: int) -> None:
    """Whether it lies between two others, is none of those that are tried, or is late."""

    def convert(pulse: int | None) -> Stream:
        return stream(pulse or 1)

    found, _ = sweep_figures(open_model(causal("B")), convert, sample_rate=1000, seconds=0.001, also=also)
    assert also in [p["pulse"] for p in found["sweep"]] and also not in [o["pulse"] for o in found["left_out"]]
