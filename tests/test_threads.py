"""Threads: one runs a pool while others push; two that meet in one stream are told so."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.backends import registry
from tests import models
from tests.models import Array, close, frames, run_batch

PULSE = 4


@pytest.fixture(autouse=True)
def quick_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("backend", registry.names())
@pytest.mark.parametrize("chunk", [PULSE, 3])
def test_a_worker_runs_while_others_push(chunk: int, backend: str) -> None:
    """Sixteen streams, eight threads that push, one that runs: every stream is what it is alone."""
    proto, total = models.look_ahead("B"), 203 if backend == "ort" else 43
    stream = pulsify.stream(proto, pulse=PULSE, verify=False)
    for trial in range(3 if backend == "ort" else 1):
        pool = pulsify.Pool(stream, 16, backend=backend)
        lanes = [pool.open() for _ in range(16)]
        xs = [frames(1, 2, total, seed=100 * trial + i) for i in range(16)]
        parts: dict[Any, list[Array]] = {lane: [] for lane in lanes}
        done = threading.Event()

        def work(pool: Any = pool, parts: Any = parts, done: Any = done) -> None:
            while not done.is_set() or len(pool):
                outcome = pool.step(rounds=2)
                assert not outcome.failures
                for lane, result in outcome.results.items():
                    parts[lane].append(result)

        def push(who: int, lanes: Any = lanes, xs: Any = xs) -> None:
            for at in range(0, total, chunk):
                for i in (who, who + 8):
                    piece = xs[i][..., at : at + chunk].copy()
                    lanes[i].push(piece)
                    piece.fill(np.nan)
            for i in (who, who + 8):
                lanes[i].flush()

        worker = threading.Thread(target=work)
        worker.start()
        try:
            with ThreadPoolExecutor(8) as pushers:
                list(pushers.map(push, range(8)))
        finally:
            done.set()
            worker.join(60)
        assert not worker.is_alive()
        for lane, x in zip(lanes, xs, strict=True):
            close(np.concatenate(parts[lane], 2), run_batch(proto, x)["y"])


def test_others_read_states_and_reset_while_a_worker_runs() -> None:
    proto, total = models.look_ahead("B"), 120
    stream = pulsify.stream(proto, pulse=PULSE, verify=False)
    pool, x = pulsify.Pool(stream, 4), frames(1, 2, 120)
    steady, moved = pool.open(), pool.open()
    parts, done = list[Array](), threading.Event()

    def work() -> None:
        while not done.is_set():
            parts.extend(r for lane, r in pool.step().results.items() if lane is steady)

    worker = threading.Thread(target=work)
    worker.start()
    for at in range(0, total, 3):
        steady.push(x[..., at : at + 3])
        moved.push(x[..., at : at + 3])
        if at % 30 == 0:
            blob = steady.state()
            moved.restore(blob)
            moved.reset()
    time.sleep(0.05)
    done.set()
    worker.join(60)
    steady.flush()
    close(np.concatenate([*parts, pool.run()[steady]], 2), run_batch(proto, x)["y"])


def test_two_threads_that_meet_in_a_session_are_told() -> None:
    """Whatever is not refused is right."""
    stream = pulsify.stream(models.causal(), pulse=PULSE, verify=False)
    session, x = stream.session(), frames(1, 2, PULSE)
    met, pushed = [0], [0]
    session.push(x)
    session.push(x)
    wanted = session.push(x)  # the same again and again, once warm

    def push(_: int) -> None:
        for _ in range(2000):
            try:
                np.testing.assert_array_equal(session.push(x), wanted)
                pushed[0] += 1
            except pulsify.SessionBusy:
                met[0] += 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(push, range(4)))
    assert pushed[0] > 100
    session.push(x)  # and it goes on


def test_a_session_says_that_another_thread_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsify.backends.ort.step import Step

    session, x = pulsify.stream(models.causal(), pulse=PULSE, verify=False).session(), frames(1, 2, PULSE)
    inside, go, run = threading.Event(), threading.Event(), Step.run

    def slow(self: Step, length: int | None = None) -> Any:
        inside.set()
        go.wait(10)
        return run(self, length)

    monkeypatch.setattr(Step, "run", slow)
    other = threading.Thread(target=lambda: session.push(x))
    other.start()
    inside.wait(10)
    for use in (lambda: session.push(x), session.flush, session.state, session.reset, session.fork):
        with pytest.raises(pulsify.SessionBusy, match="another thread is in this stream"):
            use()
    go.set()
    other.join(10)
    session.push(x)
