"""What computes is chosen by measuring, and whoever it is gives the same streams."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import pulsify
from pulsify.backends.native import library
from pulsify.serve.hosted import Machine
from pulsify.serve.service import Service, Settings
from pulsify.serve.sources import Served, of_stream
from tests import models
from tests.models import close, frames, run_batch
from tests.serve.live import cut, exchange, serving

needs_c = pytest.mark.skipif(not library.available(), reason="no C compiler")


def served() -> list[Served]:
    return [of_stream("m", pulsify.stream(models.look_ahead("B"), 4, verify=False), 100)]


@needs_c
def test_a_small_model_is_served_as_c_and_exactly() -> None:
    with serving(served()) as (service, where):
        assert service.models["m"].facts["backends"] == ["native"]
        x = frames(1, 2, 23)
        made, _ = asyncio.run(exchange(where, "m", cut(x, 2, [5, 2])))
        got = np.concatenate([np.frombuffer(m, "<f4").reshape(1, 3, -1) for m in made], 2)
        close(got, run_batch(models.look_ahead("B"), x)["y"])


def test_without_a_compiler_it_is_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> None:
        raise pulsify.InvalidArgument("no compiler")

    monkeypatch.setattr("pulsify.backends.native.backend.compiler", nothing)
    assert Service(served()).models["m"].facts["backends"] == ["ort"]


@pytest.mark.parametrize("backend", ["ort", pytest.param("native", marks=needs_c), "reference"])
def test_who_says_which_gets_it(backend: str) -> None:
    assert Service(served(), Settings(Machine(backend=backend))).models["m"].facts["backends"] == [backend]
