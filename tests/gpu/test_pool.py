"""Pools and recorded sessions on a card: python -m pytest tests/gpu -m gpu"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.runtime import snapshot
from tests import models
from tests.models import Array, close, frames, run_batch
from tests.test_pool import MODELS, sound

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
PULSE = 4
MODES = ["eager", "graph"]


def options(mode: str, **own: Any) -> dict[str, Any]:
    return {"backend": "torch", "options": {"device": "cuda", "mode": mode, **own}}


@contextmanager
def unwaited() -> Iterator[None]:
    """Whatever waits for the card is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def looked_ahead() -> pulsify.Stream:
    return pulsify.stream(models.look_ahead("B"), pulse=PULSE, verify=False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_starts_middles_and_ends_in_one_batch(name: str, mode: str) -> None:
    build, shape, axis = MODELS[name]
    proto = build()
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE, verify=False), 7, padding=float("nan"), **options(mode))
    assert pool._slots.mixed  # type: ignore[attr-defined]
    xs, out = [sound(shape, n, n) for n in (1, 5, 41, 9, 8, 23, 17, 30, 2)], dict[Any, list[Array]]()
    for x in xs:
        if len(pool) == 7:
            for lane, result in pool.run().items():
                out[lane].append(result)
        lane = pool.open()
        out[lane] = []
        lane.push(x)
        lane.flush()
        for lane, result in pool.step(rounds=1).results.items():
            out[lane].append(result)
    for lane, result in pool.run().items():
        out[lane].append(result)
    for x, parts in zip(xs, out.values(), strict=True):
        close(np.concatenate(parts, axis), run_batch(proto, x)["y"])


def exchanged(mode: str, x: Any, **own: Any) -> tuple[list[Any], list[dict[str, Array]]]:
    """What comes out of eleven streams, started one after the other, and their states then."""
    pool = pulsify.Pool(looked_ahead(), 11, **options(mode, **own))
    lanes, out = list[Any](), list[Any]()
    for n in range(0, x.shape[2], PULSE):
        lanes += [pool.open()] if len(lanes) < 11 else []
        out.append(pool.exchange(lanes, x[: len(lanes), :, n : n + PULSE].contiguous()).frames)
    return out, [snapshot.load(lane.state(), pool.spec, 1)[0] for lane in lanes]


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"])
def test_a_pool_recorded_is_eager_to_the_last_bit(dtype: str | None) -> None:
    x = torch.from_numpy(frames(11, 2, 80)).cuda()
    (eager, states), (graph, recorded) = (exchanged(mode, x, dtype=dtype) for mode in MODES)
    assert all(torch.equal(a, b) for a, b in zip(eager, graph, strict=True))
    for own, other in zip(states, recorded, strict=True):
        for name, state in own.items():
            np.testing.assert_array_equal(state, other[name])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_session_recorded_is_eager_to_the_last_bit(name: str, batch: int) -> None:
    """At the start, in the steady state, at the end; two sessions in turn."""
    build, shape, axis = MODELS[name]
    stream = pulsify.stream(build(), pulse=PULSE, verify=False)
    where = next(i for i, d in enumerate(stream.spec.inputs[0].dims) if isinstance(d, str))
    x, z = (np.concatenate([sound(shape, 43, s + i) for i in range(batch)], where) for s in (0, 50))
    results = {}
    for mode in MODES:
        sessions = [stream.session(batch=batch, **options(mode)) for _ in range(2)]
        parts: list[list[Array]] = [[], []]
        for chunk, other in zip(np.split(x, range(5, 43, 5), axis), np.split(z, range(5, 43, 5), axis), strict=True):
            parts[0].append(sessions[0].push(chunk))
            parts[1].append(sessions[1].push(other))
        results[mode] = [np.concatenate([*p, s.flush()], axis) for p, s in zip(parts, sessions, strict=True)]
    for eager, graph, own in zip(results["eager"], results["graph"], (x, z), strict=True):
        np.testing.assert_array_equal(eager, graph)
        close(graph, run_batch(build(), own)["y"])


@pytest.mark.parametrize("mode", MODES)
def test_tensors_stay_on_the_card_and_nothing_waits(mode: str) -> None:
    stream = looked_ahead()
    session, pool = stream.session(check=False, **options(mode)), pulsify.Pool(stream, 5, check=False, **options(mode))
    lanes = [pool.open() for _ in range(5)]
    one, five = torch.randn(1, 2, PULSE, device="cuda"), torch.randn(5, 2, PULSE, device="cuda")
    for _ in range(4):
        session.push(one)
        pool.exchange(lanes, five)
    torch.cuda.synchronize()
    with unwaited():
        for _ in range(20):
            out, made = session.push(one), pool.exchange(lanes, five)
    assert out.is_cuda and made.frames.is_cuda


def test_a_recorded_step_allocates_its_results_alone() -> None:
    stream = looked_ahead()
    pool = pulsify.Pool(stream, 8, check=False, **options("graph"))
    lanes, x = [pool.open() for _ in range(8)], torch.randn(8, 2, PULSE, device="cuda")
    for _ in range(4):
        pool.exchange(lanes, x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    kept = [pool.exchange(lanes, x).frames for _ in range(10)]
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - before == len(kept)


@pytest.mark.parametrize("mode", MODES)
def test_the_host_may_run_ahead(mode: str) -> None:
    """Indices are sent while earlier ones are still on their way."""
    stream, x = looked_ahead(), frames(64, 2, 40)
    pool = pulsify.Pool(stream, 64, check=False, **options(mode))
    lanes, rng = [pool.open() for _ in range(64)], np.random.default_rng(0)
    sent, out, there = np.zeros(64, int), [list[Any]() for _ in range(64)], torch.from_numpy(x).cuda()
    while (sent < 40).any():
        who = np.flatnonzero((sent < 40) & (rng.random(64) < 0.5))
        if not who.size:
            continue
        chunk = torch.stack([there[i, :, sent[i] : sent[i] + PULSE] for i in who])
        made = pool.exchange([lanes[i] for i in who], chunk)
        for row, i in enumerate(who):
            out[i].append(made.of(row))
        sent[who] += PULSE
    for i, parts in enumerate(out):
        got = torch.cat(parts, 2).cpu().numpy()
        close(got, run_batch(models.look_ahead("B"), x[i : i + 1])["y"][..., : got.shape[2]])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("mode", MODES)
def test_what_is_not_finite_stays_in_its_stream(mode: str, value: float) -> None:
    x = frames(7, 2, 40)
    x[1::2] = value
    pool = pulsify.Pool(looked_ahead(), 7, check=False, **options(mode))
    lanes = [pool.open() for _ in range(7)]
    made = [pool.exchange(lanes, x[..., n : n + PULSE]) for n in range(0, 40, PULSE)]
    for i in range(0, 7, 2):
        got = np.concatenate([m.of(i) for m in made], 2)
        close(got, run_batch(models.look_ahead("B"), x[i : i + 1])["y"][..., : got.shape[2]])


@pytest.mark.parametrize("mode", MODES)
def test_streams_move_between_the_card_and_the_cpu(mode: str) -> None:
    stream, x = looked_ahead(), frames(1, 2, 39)
    pools = [pulsify.Pool(stream, 3), pulsify.Pool(stream, 3, **options(mode))]
    parts, state, cuts = list[Array](), b"", [0, 3, 16, 21, 39]
    for turn, (start, end) in enumerate(pairwise(cuts)):
        pool = pools[turn % 2]
        lane = pool.open()
        if state:
            lane.restore(state)
        lane.push(x[..., start:end])
        parts += pool.run().values()
        if end == 39:
            lane.flush()
            parts += pool.run().values()
        else:
            state = lane.state()
            lane.close()
    close(np.concatenate(parts, 2), run_batch(models.look_ahead("B"), x)["y"])


def test_four_thousand_streams() -> None:
    count, x = 4096, frames(4096, 2, 24)
    pool = pulsify.Pool(looked_ahead(), count, **options("graph"))
    lanes = [pool.open() for _ in range(count)]
    slots, there = np.array([lane.slot for lane in lanes]), torch.from_numpy(x).cuda()
    made = [pool.exchange(slots, there[..., n : n + PULSE].contiguous()) for n in range(0, 24, PULSE)]
    got = torch.cat([m.frames for m in made], 2).cpu().numpy()[..., 3:]  # three frames late
    assert made[0].real[0].tolist() == [3, 4] and made[-1].whole
    close(got, run_batch(models.look_ahead("B"), x)["y"][..., : got.shape[2]])
