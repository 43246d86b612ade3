"""Streams that open with a longer call: exact at every length, as early as can be, and no later than need be."""

from __future__ import annotations

import os

import numpy as np
import pytest

import pulsify
from tests.property import hunt_opening
from tests.property.check import convert
from tests.property.test_latency import check_delay

EXAMPLES = int(os.environ.get("PULSIFY_EXAMPLES", 300))
FEW = 12
FOUND = [84, 105]  # seeds whose graphs were wrong once: an opening over before the pulses after it could go on


@pytest.mark.parametrize("seed", range(FEW))
def test_a_chain_behind_a_mirrored_start_is_exact(seed: int) -> None:
    hunt_opening.hunt(seed, pulses=2)


@pytest.mark.parametrize("seed", FOUND)
def test_chains_that_were_wrong_once(seed: int) -> None:
    hunt_opening.hunt(seed)


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(EXAMPLES // 10))
def test_chains_behind_a_mirrored_start_are_exact(tens: int) -> None:
    for seed in range(1000 + 10 * tens, 1010 + 10 * tens):
        hunt_opening.hunt(seed)


def first_frame_at(stream: pulsify.Stream) -> int:
    """The pulse that brings the first frame."""
    (out,) = stream.outputs
    return max(stream.spec.opening, out.delay // out.frames + 1)


def test_whatever_is_earlier_after_its_start_opens() -> None:
    opened = 0
    for seed in range(2 * FEW):
        graph, made = hunt_opening.chain(seed)
        stream = convert(graph.model([made]), None)
        (out,) = stream.outputs
        assert out.delay_after_start in (None, out.delay), f"seed {seed}: {stream}\n{graph!r}"
        opened += stream.spec.opening > 0
    assert opened > FEW // 2


@pytest.mark.parametrize("seed", range(FEW))
def test_the_first_frame_comes_no_later_than_if_it_were_waited_for(seed: int) -> None:
    graph, made = hunt_opening.chain(seed, hunt_opening.MIRRORED)
    stream = convert(graph.model([made]), None)
    waits = pulsify.stream(graph.model([made]), stream.pulse, opening=False, verify=False)
    assert first_frame_at(stream) <= first_frame_at(waits), f"{stream}, {waits}\n{graph!r}"


@pytest.mark.parametrize("seed", range(FEW))
def test_the_delay_after_the_opening_is_the_smallest_there_is(seed: int) -> None:
    graph, made = hunt_opening.chain(seed, hunt_opening.WINDOWED)
    check_delay(graph, made, None)
    check_delay(graph, made, int(np.random.default_rng(seed).integers(2, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(EXAMPLES // 10))
def test_delays_after_openings_are_the_smallest_there_are(tens: int) -> None:
    for seed in range(1000 + 10 * tens, 1010 + 10 * tens):
        check_delay(*hunt_opening.chain(seed, hunt_opening.WINDOWED), None)
