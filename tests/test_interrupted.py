"""Ctrl-C at any moment: a stream is as before the call, or says that it is broken; frames made are not lost."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.backends.ort.slots import Engine
from pulsify.backends.ort.step import Step
from tests import models
from tests.models import Array, close, frames, run_batch, run_stream

PULSE, TOTAL = 4, 40


@pytest.fixture(scope="module")
def stream() -> pulsify.Stream:
    return pulsify.stream(models.look_ahead("B"), pulse=PULSE, verify=False)


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Ctrl-C after so many seconds, once; 0: no more."""
    armed = [False]

    def strike(*_: object) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    def arm(seconds: float) -> None:
        armed[0] = seconds > 0
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, strike)
    yield arm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupted(alarm: Callable[[float], None], after: float, call: Callable[[], Any]) -> tuple[bool, Any]:
    """Was it, and if not, what came of it?"""
    out: list[Any] = []
    try:
        alarm(after)
        out.append(call())
        alarm(0)
    except KeyboardInterrupt:
        return not out, out[0] if out else None
    finally:
        alarm(0)
    return False, out[0]


def warmed(stream: pulsify.Stream, backend: str) -> tuple[pulsify.Pool, float]:
    """A pool whose steps for any number of streams have been made, and the seconds that one takes."""
    pool, took = pulsify.Pool(stream, 6, backend=backend), 1.0
    for count in (*range(1, 7), 6):
        lanes = [pool.open() for _ in range(count)]
        for _ in range(0, TOTAL, PULSE):
            start = perf_counter()
            pool.exchange(lanes, np.zeros((count, 2, PULSE), np.float32))
            took = min(took, perf_counter() - start)
        for lane in lanes:
            lane.flush()
        pool.run()
    return pool, took


def rounds(least: int, seen: Counter[str], **wanted: int) -> Iterator[int]:
    """So many, and on until enough of all outcomes were seen: where a signal strikes depends on the machine."""
    for n in range(20 * least):
        if n >= least and all(seen[what] > count for what, count in wanted.items()):
            break
        yield n
    for what, count in wanted.items():
        assert seen[what] > count, what


@pytest.mark.parametrize("chunk", [PULSE, 3, 24])
def test_a_session_after_any_interruption(stream: pulsify.Stream, alarm: Callable[[float], None], chunk: int) -> None:
    """Interrupted at random, then tried again: right, or refused; after restore() right."""
    rng, x = np.random.default_rng(chunk), frames(1, 2, TOTAL)
    wanted = run_batch(models.look_ahead("B"), x)["y"]
    broken = whole = 0
    for _ in range(150):
        session, parts = stream.session(), list[Array]()
        for piece in np.split(x, range(chunk, TOTAL, chunk), 2):
            before, spare = session.state(), piece.copy()
            hit, result = interrupted(alarm, rng.uniform(1e-6, 2e-4), lambda s=session, p=spare: s.push(p))
            if hit:
                spare.fill(np.nan)  # nothing points into the caller's buffer
                try:
                    result = session.push(piece)
                    whole += 1
                except pulsify.SessionClosed:
                    session.restore(before)
                    result = session.push(piece)
                    broken += 1
            parts.append(result)
        close(np.concatenate([*parts, session.flush()], 2), wanted)
    assert broken + whole > 20


@pytest.mark.parametrize("backend", ["ort", "torch", "native"])
def test_a_pool_after_any_interruption(stream: pulsify.Stream, alarm: Callable[[float], None], backend: str) -> None:
    """Whatever lane does not say that it is broken is right, and has all of its frames."""
    if backend == "torch":
        pytest.importorskip("torch")
    rng, xs = np.random.default_rng(0), [frames(1, 2, TOTAL, seed=i) for i in range(6)]
    wanted = [run_batch(models.look_ahead("B"), x)["y"] for x in xs]
    pool, took = warmed(stream, backend)
    least, seen = 120 if backend == "ort" else 40, Counter[str]()
    for _ in rounds(least, seen, hits=least // 2, right=least // 4):
        lanes, parts, failed = [pool.open() for _ in xs], [list[Array]() for _ in xs], set[int]()
        for at in range(0, TOTAL + 1, 8):
            for i, (lane, x) in enumerate(zip(lanes, xs, strict=True)):
                if i in failed:
                    continue
                use = lane.flush if at == TOTAL else lambda lane=lane, x=x, at=at: lane.push(x[..., at : at + 8])
                hit, _ = interrupted(alarm, rng.uniform(1e-6, 1e-4), use)
                seen["hits"] += hit
                if hit:
                    use()  # nothing was taken
            hit = True
            while hit:
                after = rng.uniform(1e-6, 4 * took) if rng.random() < 0.5 else 600.0
                hit, outcome = interrupted(alarm, after, lambda: pool.step(rounds=None))
                seen["hits"] += hit
            for lane, result in outcome.results.items():
                parts[lanes.index(lane)].append(result)
            failed |= {lanes.index(lane) for lane in outcome.failures}
        for i, lane in enumerate(lanes):
            if i in failed:
                with pytest.raises(pulsify.SessionClosed, match="interrupted"):
                    lane.push(xs[i][..., :1])
                lane.close()
            else:
                seen["right"] += 1
                close(np.concatenate(parts[i], 2), wanted[i])
        assert len(pool) == 0


@pytest.mark.parametrize("backend", ["ort", "torch", "native"])
def test_exchanges_after_any_interruption(stream: pulsify.Stream, alarm: Callable[[float], None], backend: str) -> None:
    """Frames are in the caller's hands, or the streams that were asked for say that they are broken; or nothing was."""
    if backend == "torch":
        pytest.importorskip("torch")
    rng, x = np.random.default_rng(0), frames(6, 2, TOTAL)
    wanted = run_batch(models.look_ahead("B"), x)["y"]
    pool, took = warmed(stream, backend)
    seen = Counter[str]()
    for _ in rounds(30, seen, hits=20, right=20, broken=5):
        lanes, parts, failed = [pool.open() for _ in x], [list[Array]() for _ in x], set[int]()
        for at in range(0, TOTAL, PULSE):
            who = [i for i in range(6) if i not in failed and rng.random() < 0.9]
            chunk = x[who, :, at : at + PULSE]
            hit, made = True, None
            while hit and who:
                # no partial: signals are looked for between a C call's return and its caller
                use = lambda who=[lanes[i] for i in who], chunk=chunk: pool.exchange(who, chunk)  # noqa: E731
                after = rng.uniform(1e-6, 2 * took) if rng.random() < 0.15 else 600.0  # most are left alone
                hit, made = interrupted(alarm, after, use)
                seen["hits"] += hit
                if hit and not all(lanes[i].live for i in who):
                    failed |= {i for i in who if not lanes[i].live}
                    assert failed >= set(who), "all of them or none"
                    break
            skipped = set(range(6)) - set(who) - failed
            for row, i in enumerate(who if not hit else ()):
                parts[i].append(made.of(row))
            for i in skipped:
                lanes[i].push(x[i : i + 1, :, at : at + PULSE])
            for lane, result in pool.run().items():
                parts[lanes.index(lane)].append(result)
        for i, lane in enumerate(lanes):
            if i in failed:
                with pytest.raises(pulsify.SessionClosed, match="interrupted"):
                    lane.push(x[i : i + 1, :, :1])
                seen["broken"] += 1
            else:
                seen["right"] += 1
                got = np.concatenate(parts[i], 2)
                close(got, wanted[i : i + 1, :, : got.shape[2]])
                assert got.shape[2] == TOTAL - 3
            lane.close()


@pytest.mark.parametrize("after", [False, True])
def test_a_session_interrupted_in_its_step(
    stream: pulsify.Stream, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    run, x = Step.run, frames(1, 2, TOTAL)
    calls: list[int] = []

    def strike(self: Step, length: int | None = None) -> Any:
        calls.append(1)
        if len(calls) == 4:
            if after:
                run(self, length)
            raise KeyboardInterrupt
        return run(self, length)

    session = stream.session()
    before = session.state()
    monkeypatch.setattr(Step, "run", strike)
    with pytest.raises(KeyboardInterrupt):
        session.push(x)
    for use in (lambda: session.push(x), session.flush, session.state, session.fork):
        with pytest.raises(pulsify.SessionClosed, match=r"interrupted.*reset\(\).*restore\(\)"):
            use()
    assert "broken" in repr(session)
    close(session.made(), run_batch(models.look_ahead("B"), x)["y"][..., : 3 * PULSE - 3])
    session.restore(before)
    close(run_stream(session, x, [7]), run_batch(models.look_ahead("B"), x)["y"])
    session.reset()
    close(run_stream(session, x, [7]), run_batch(models.look_ahead("B"), x)["y"])


def test_a_pool_interrupted_in_the_model_goes_on(stream: pulsify.Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is where nearly all of the time goes, and nothing has been kept yet: no lane breaks."""
    call, struck = Engine._call, list[int]()

    def bound(self: Engine, steady: bool, count: int) -> Any:
        made = call(self, steady, count)
        run = made.run

        def strike() -> None:
            run()
            if len(struck) < 2:
                struck.append(1)
                raise KeyboardInterrupt

        made.run = strike
        return made

    monkeypatch.setattr(Engine, "_call", bound)
    pool, xs = pulsify.Pool(stream, 2), [frames(1, 2, 21), frames(1, 2, 9)]
    lanes = [pool.open() for _ in xs]
    for lane, x in zip(lanes, xs, strict=True):
        lane.push(x)
        lane.flush()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            pool.run()
    results = pool.run()
    for lane, x in zip(lanes, xs, strict=True):
        close(results[lane], run_batch(models.look_ahead("B"), x)["y"])


def test_a_pool_interrupted_while_states_are_written_says_which(
    stream: pulsify.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, x = pulsify.Pool(stream, 3), frames(1, 2, 8)
    early, late, later = (pool.open() for _ in range(3))
    early.push(x)
    first = pool.run()[early]
    kept = late.state()
    run = Engine.run

    def strike(self: Engine, *given: Any) -> Any:
        run(self, *given)
        self.intact = False
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "run", strike)
    late.push(x)
    later.push(x)
    with pytest.raises(KeyboardInterrupt):
        pool.run()
    monkeypatch.undo()
    with pytest.raises(pulsify.SessionClosed, match="interrupted"):
        late.push(x)
    assert set(pool.step().failures) == {late, later}
    late.restore(kept)
    later.reset()
    for lane in (late, later):
        lane.push(x)
    for lane in (early, late, later):
        lane.flush()
    rest = pool.run()
    close(np.concatenate([first, rest[early]], 2), run_batch(models.look_ahead("B"), x)["y"])
    for lane in (late, later):
        close(rest[lane], run_batch(models.look_ahead("B"), x)["y"])
