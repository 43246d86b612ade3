"""Frames in front of a stream: exact at every length, computed once, and as early as can be."""

from __future__ import annotations

import os

import numpy as np
import pytest

import pulsify
from pulsify.convert.analyse import analyse
from pulsify.core.errors import NotStreamable
from pulsify.frontend.load import load
from pulsify.frontend.time import find_time
from pulsify.plan.context import Context, Misaligned
from pulsify.trace.lengths import Tracer
from pulsify.trace.resolve import resolve
from tests.property import hunt_edges, hunt_start
from tests.property.graph import Graph, Tensor
from tests.property.test_edges import stream_equals_batch
from tests.property.test_latency import check_delay

EXAMPLES = int(os.environ.get("PULSIFY_EXAMPLES", 300))
FEW = 10
CHAINS = {"start": hunt_start.chain, "edges": hunt_edges.chain}


def windows(graph: Graph, made: Tensor, pulse: int) -> Context | None:
    """What a conversion holds at each pulse, or None where it is refused."""
    model = load(graph.model([made]).SerializeToString())
    time = find_time(model, None, None, None)
    try:
        return analyse(Tracer(resolve(model, time), time), pulse)[0]
    except (Misaligned, NotStreamable):
        return None


@pytest.mark.parametrize("seed", range(FEW))
def test_a_chain_behind_a_front_is_exact(seed: int) -> None:
    hunt_start.hunt(seed, pulses=2)


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(EXAMPLES // 10))
def test_chains_behind_a_front_are_exact(tens: int) -> None:
    for seed in range(1000 + 10 * tens, 1010 + 10 * tens):
        hunt_start.hunt(seed)


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("pulse", [1, 4, 12])
def test_no_frame_is_computed_twice(kind: str, pulse: int) -> None:
    seen = 0
    for seed in range(FEW):
        ctx = windows(*CHAINS[kind](seed), pulse)
        for name, window in ctx.windows.items() if ctx is not None else ():
            assert window.frames <= window.p, f"seed {seed}: '{name}' holds {window} at each pulse"
            seen += 1
    assert seen > 10


@pytest.mark.parametrize("seed", range(FEW))
def test_the_delay_is_the_smallest_there_is(seed: int) -> None:
    graph, made = hunt_start.chain(seed)
    check_delay(graph, made, None)
    check_delay(graph, made, 3)


def padded(graph: Graph, x: Tensor, once: bool, value: float = 0.0) -> Tensor:
    """Three dilated convolutions, each with its input past it; padded all at once in front, or each by itself."""
    spans = [2, 4, 8]
    if once:
        fill = graph.const(np.array(value), np.float32)
        x = x.but(graph.op("Pad", x, graph.ints(0, 0, sum(spans), 0, 0, 0), fill))
    for i, span in enumerate(spans):
        front = x if once else x.but(graph.op("Pad", x, graph.ints(0, 0, span, 0, 0, 0)))
        weight = graph.const(np.random.default_rng(i).normal(size=(2, 2, 3)), np.float32)
        made = graph.op(
            "Tanh", graph.op("Conv", front, weight, graph.const(np.ones(2), np.float32), dilations=[span // 2])
        )
        past = graph.op("Slice", x, graph.ints(span), graph.ints(hunt_start.LARGE), graph.ints(2)) if once else x
        x = x.but(graph.op("Add", made, past))
    return x


@pytest.mark.parametrize("pulse", [1, 3, 8])
def test_padded_once_costs_no_more_than_padded_by_layer(pulse: int) -> None:
    made = {}
    for once in (True, False):
        graph = Graph(batch="B")
        model = graph.model([padded(graph, graph.input, once)])
        made[once] = pulsify.stream(model, pulse=pulse)
    ops = {once: [n.op_type for n in (p.steady or p.general).graph] for once, p in
           ((o, s._program("single")) for o, s in made.items())}  # fmt: skip
    assert sorted(ops[True]) == sorted(ops[False])
    assert made[True].outputs[0].delay == made[False].outputs[0].delay == 0
    sizes = [sum(s.nbytes for s in stream.states if s.kind == "buffer") for stream in made.values()]
    assert sizes[0] == sizes[1]


def test_a_front_of_other_values_is_exact_at_every_length() -> None:
    stream_equals_batch(lambda g, x: padded(g, x, once=True, value=0.5), rounds=4.0)
