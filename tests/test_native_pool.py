"""Many streams as C: each exactly what it would be alone, all of those of a round in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pulsify
from pulsify.backends.native import library
from pulsify.backends.native.slots import Slots
from pulsify.runtime.snapshot import load
from tests import models
from tests.mixed import mixed_ages, pooled_zoo
from tests.models import Array, close, frames, run_batch
from tests.test_pool import MODELS, PULSE, come_and_go, sound
from tests.zoo.manifest import Entry

pytestmark = pytest.mark.skipif(not library.available(), reason="no C compiler")


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_streams_come_and_go(name: str, seed: int) -> None:
    """Starts, middles and ends in one batch, padding that is NaN, slots used anew."""
    build, shape, axis = MODELS[name]
    proto = build()
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE, verify=False), 3, padding=float("nan"), backend="native")
    driven = come_and_go(pool, shape, axis, seed)
    for d in driven:
        close(np.concatenate(d.out, axis), run_batch(proto, d.x)["y"])


@pytest.mark.parametrize("entry", pooled_zoo())
def test_the_zoo_in_batches_of_mixed_ages(entry: Entry) -> None:
    assert isinstance(mixed_ages(entry, backend="native")._slots, Slots)


@pytest.mark.parametrize("moved", [False, True])
def test_a_round_is_two_calls_at_the_most(moved: bool) -> None:
    """Those that are warm, and those at a start or an end; streams that moved in from ONNX Runtime too."""
    proto = models.look_ahead("B")
    stream = pulsify.stream(proto, pulse=PULSE, verify=False)
    pools = [pulsify.Pool(stream, 4, backend="ort" if moved else "native"), pulsify.Pool(stream, 4, backend="native")]
    xs = [frames(1, 2, n, seed=n) for n in (40, 43, 6, 5)]
    lanes, out = [pools[0].open() for _ in xs], [list[Array]() for _ in xs]

    def run(pool: pulsify.Pool) -> None:
        for lane, result in pool.run().items():
            out[lanes.index(lane)].append(result)

    for lane, x, n in zip(lanes, xs, (36, 32, 4, 0), strict=True):
        lane.push(x[..., :n])
    run(pools[0])
    calls: list[int] = []
    moving = [pools[1].open() for _ in xs]
    for lane, other in zip(lanes, moving, strict=True):
        other.restore(lane.state())
    lanes, inner = moving, pools[1]._slots.run

    def counted(slots: Array, *where: Any) -> Any:
        calls.append(len(slots))
        return inner(slots, *where)

    pools[1]._slots.run = counted  # type: ignore[method-assign]
    for lane, x, n in zip(lanes, xs, (36, 32, 4, 0), strict=True):
        lane.push(x[..., n : n + 4])
    lanes[2].push(xs[2][..., 8:])
    lanes[2].flush()
    for lane, result in pools[1].step(rounds=1).results.items():
        out[lanes.index(lane)].append(result)
    assert calls == [2, 2]
    for lane, x, n in zip(lanes, xs, (40, 36, 8, 4), strict=True):
        if lane.live:
            lane.push(x[..., n:])
            lane.flush()
    run(pools[1])
    for x, parts in zip(xs, out, strict=True):
        close(np.concatenate(parts, 2), run_batch(proto, x)["y"])


@pytest.mark.parametrize("name", MODELS)
def test_a_streams_state_is_that_of_onnx_runtime_after_every_pulse(name: str) -> None:
    """Positions are given with every pulse: what the memory says of them may be behind."""
    build, shape, axis = MODELS[name]
    stream, x = pulsify.stream(build(), pulse=PULSE, verify=False), sound(shape, 60, 1)
    pool, alone = pulsify.Pool(stream, 2, backend="native"), stream.session()
    pool.open()  # the first slot is somebody else's
    lane = pool.open()
    for chunk in np.split(x, 15, axis):
        pool.exchange([lane], chunk)
        alone.push(chunk)
        mine, its = (load(blob, stream.spec, 1) for blob in (lane.state(), alone.state()))
        assert mine[2] == its[2] and mine[0].keys() == its[0].keys()
        for state, array in its[0].items():
            close(mine[0][state], array)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_worked_with_is_shared_and_leaves_nothing_behind(name: str) -> None:
    """A stream of NaN before each pulse of another, in the same call: it is as if it had been alone."""
    build, shape, axis = MODELS[name]
    proto, x = build(), sound(shape, 43, 1)
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE, verify=False), 2, check=False, backend="native")
    bad, good = pool.open(), pool.open()
    parts = []
    for chunk in np.split(x, range(7, 43, 7), axis):
        bad.push(np.full_like(chunk, np.nan))
        good.push(chunk)
        parts += [result for lane, result in pool.run().items() if lane is good]
    bad.flush()
    good.flush()
    parts += [result for lane, result in pool.run().items() if lane is good]
    close(np.concatenate(parts, axis), run_batch(proto, x)["y"])
