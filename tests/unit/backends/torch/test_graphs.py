"""Steps on places: layouts stay, states are written over the old ones, sessions take turns. On the CPU, unrecorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pulsify
from pulsify.backends.torch import backend as module
from pulsify.backends.torch.graphs import placed, replaced_by
from tests import models
from tests.models import close, frames, run_batch


def test_what_replaces_what() -> None:
    assert replaced_by(("x", "s", "t"), ("y", "new_t"), {"s": "new_s", "t": "new_t", "u": "new_u"}) == {2: 1}


def test_states_lie_as_the_step_makes_them() -> None:
    def step(x: Any, s: Any) -> tuple[Any, ...]:
        return x + 1, torch.cat([s, x], 2).transpose(1, 2).contiguous().transpose(1, 2)[:, :, 3:]

    seen: list[Any] = []

    def quick(*given: Any) -> tuple[Any, ...]:
        seen.append([(t.data_ptr(), t.stride()) for t in given])
        return step(*given)

    call, state = placed(step, quick, {1: 1}), torch.zeros(2, 4, 5)
    rows = [torch.randn(2, 4, 3) for _ in range(4)]
    for x in rows:
        y, state = call(x, state)
        torch.testing.assert_close(y, x + 1)
    torch.testing.assert_close(state, torch.cat(rows, 2)[:, :, -5:])
    assert len({str(s) for s in seen}) == 1 and seen[0][1][1] == (20, 1, 4)


def test_results_that_are_arguments_are_copies() -> None:
    call = placed(lambda x, s: (s[:1], x), lambda x, s: (s[:1], x), {1: 1})
    first, state = call(torch.ones(2), torch.zeros(2))
    assert first.tolist() == [0.0] and state.tolist() == [1.0, 1.0]
    second, _ = call(torch.full((2,), 2.0), state)
    assert (first.tolist(), second.tolist()) == ([0.0], [1.0])


# ---- sessions


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., Any]]:
    """A compiler that gives back what it gets, and what it got."""
    got: list[Callable[..., Any]] = []
    monkeypatch.setattr(module, "compiled", lambda step: got.append(step) or step)
    return got


def test_sessions_of_one_stream_do_not_see_each_other(uncompiled: list[Any]) -> None:
    model = models.look_ahead("B")
    stream = pulsify.stream(model, pulse=4, verify=False)
    sounds = [frames(2, 2, 41) * k for k in (1, 2, 3)]
    sessions = [stream.session(batch=2, backend="torch", device="cpu", mode="compile") for _ in sounds]
    parts: list[list[Any]] = [[] for _ in sounds]
    for start in range(0, 41, 5):
        for session, sound, part in zip(sessions, sounds, parts, strict=True):
            part.append(session.push(sound[..., start : start + 5]))
    kept = sessions[0].state()
    for session, part in zip(sessions, parts, strict=True):
        part.append(session.flush())
    for sound, part in zip(sounds, parts, strict=True):
        close(np.concatenate(part, 2), run_batch(model, sound)["y"])
    again = stream.session(batch=2, backend="torch", device="cpu", mode="compile")
    again.restore(kept)
    close(again.flush(), parts[0][-1])


def test_one_step_is_compiled(uncompiled: list[Any]) -> None:
    """The steady one, if there is one: the other runs at both ends of a stream only."""
    stream = pulsify.stream(models.look_ahead("B"), pulse=4, verify=False)
    session = stream.session(backend="torch", device="cpu", mode="compile")
    session.push(frames(1, 2, 40))
    (step,) = uncompiled
    assert "steady" in str(step.__doc__)


@pytest.mark.slow  # a compiler of C++ takes half a minute
def test_compiled() -> None:
    model, x = models.look_ahead("B"), frames(2, 2, 41)
    stream = pulsify.stream(model, pulse=4, verify=False)
    session = stream.session(batch=2, backend="torch", device="cpu", mode="compile")
    got = np.concatenate([session.push(x[..., :17]), session.push(x[..., 17:]), session.flush()], 2)
    close(got, run_batch(model, x)["y"])
