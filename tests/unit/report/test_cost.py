"""What nodes cost adds up to what a pulse takes."""

from __future__ import annotations

import json

import pytest

import pulsify
from pulsify.report.cost import cost_figures, overhead
from tests.models import conditioned, look_ahead


@pytest.mark.parametrize("proto", [look_ahead(), conditioned()], ids=["steady", "with a static input"])
def test_every_node_of_the_step_is_timed(proto: object) -> None:
    found = json.loads(json.dumps(cost_figures(pulsify.stream(proto, 4, verify=False), 0.05)))  # type: ignore[arg-type]
    assert found["nodes"] and found["total_us"] > 0 and found["profiler_us"] >= 0
    assert sum(n["us"] for n in found["nodes"]) == pytest.approx(sum(o["us"] for o in found["operators"]))
    assert sum(n["us"] for n in found["nodes"]) <= found["total_us"] * 1.001
    assert [n["us"] for n in found["nodes"]] == sorted((n["us"] for n in found["nodes"]), reverse=True)


def test_what_the_profiler_takes_is_taken_off_every_node_alike() -> None:
    assert overhead([5.0, 7.0, 12.0], 9.0) == 5.0
    assert overhead([5.0, 7.0, 12.0], 4.0) == 8.0, "the smaller ones are nothing then"
    assert overhead([1.0, 2.0], 10.0) == 0.0
