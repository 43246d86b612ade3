"""mode="compile": the same step, compiled when it is opened; what is missing is said there."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.backends.seam import Options
from pulsify.backends.torch import compiling
from pulsify.backends.torch.backend import BACKEND
from pulsify.core.errors import InvalidArgument
from tests.models import Array, frames, look_ahead, run_batch
from tests.unit.specs import remembered, remembers

COMPILE: dict[str, Any] = {"device": "cpu", "mode": "compile"}


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """torch.compile that gives the function back."""
    seen: list[Any] = []

    def compile(step: Any, **options: Any) -> Any:
        seen.append(options)
        return step

    monkeypatch.setattr(compiling.torch, "compile", compile)
    return seen


def run(x: Array, **own: Any) -> Array:
    model, spec = remembers("B")
    step = BACKEND.compile(BACKEND.lower(model, spec, 2), spec, Options(own={**COMPILE, **own})).stepper(1, {})
    parts = []
    for piece in np.split(x, x.shape[2] // 4, 2):
        step.inputs["x"][...] = piece
        parts.append(step.run()["y"].copy())
    return np.concatenate(parts, 2)


@pytest.mark.parametrize("own", [{}, {"force_cpu": ["Conv"]}, {"dtype": "bfloat16"}])
def test_it_is_compiled_when_it_is_opened(pretended: list[Any], own: dict[str, Any]) -> None:
    x = frames(1, 2, 12)
    np.testing.assert_allclose(run(x, **own), remembered(x), atol=0.05 if own.get("dtype") else 1e-5)
    assert pretended == [{"dynamic": False}]


def test_what_fails_names_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("\nno working C++ compiler found\nin many lines")

    monkeypatch.setattr(compiling.torch, "compile", lambda step, **_: broken)
    with pytest.raises(InvalidArgument, match=r"found\); on the CPU it needs a C\+\+ .*mode='eager'") as caught:
        run(frames(1, 2, 4))
    assert "many lines" not in str(caught.value)


def test_a_cache_that_grows_is_not_compiled(pretended: list[Any]) -> None:
    from tests.zoo.manifest import load

    entry = next(e for e in load() if e.name == "attn_full_causal")
    stream = pulsify.stream(entry.fixture("legacy"), pulse=4, unbounded="grow", verify=False)
    stream.session(backend="torch", **COMPILE)
    assert pretended == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on the CPU")
@pytest.mark.parametrize("force", [[], ["Relu"]])
def test_a_compiled_stream_is_the_batch_model(force: list[str]) -> None:
    proto, x = look_ahead("B"), frames(2, 2, 37)
    stream = pulsify.stream(proto, pulse=4, verify=False)
    options = {**COMPILE, "force_cpu": force}
    got = stream.run(x, chunks=5, backend="torch", options=options, padding=float("nan"))
    np.testing.assert_allclose(got, run_batch(proto, x)["y"], atol=1e-5)
    assert pulsify.compare_nodes(stream, options=options).ok
