from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from pulsify.core.named import Entry
from pulsify.kernels import checking
from pulsify.kernels.registry import Case, Implementation, Kernel, kernel


def twice(x: Any) -> Any:
    return x * 2 + 1e-3


def made(module: str = __name__, bound: float = 1e-2) -> Kernel:
    """A kernel that is a little wrong."""
    return Kernel(
        "twice", "two times x", lambda x: (x * 2,),
        (Case("one", "", lambda: {"x": np.ones(3)}), Case("nan", "", lambda: {"x": np.array([1.0, math.nan])})),
        lambda inputs, dtype: bound, (), {"torch": Implementation(Entry(module, "what-it-needs"), ("cpu",))},
    )  # fmt: skip


def test_the_worst_error_of_all_cases() -> None:
    (outcome,) = checking.check(made(), "cpu", ["float32"])
    assert (outcome.cases, outcome.failed, outcome.missing) == (2, (), "")
    assert outcome.error == pytest.approx(1e-3, rel=1e-2) and outcome.share == pytest.approx(0.1, rel=1e-2)


def test_a_case_beyond_the_bound_is_named() -> None:
    (outcome,) = checking.check(made(bound=1e-4), "cpu", ["float32"])
    assert outcome.failed == ("one", "nan")


def test_what_is_not_installed_is_said() -> None:
    (outcome,) = checking.check(made("no_such_module"), "cpu", ["float32"])
    assert "pip install 'what-it-needs'" in outcome.missing and outcome.cases == 0
    assert list(checking.check(made(), "cuda")) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card here")
def test_a_card_that_is_not_there_is_said() -> None:
    outcomes = list(checking.check(kernel("stream_attention"), "cuda", ["float32"]))
    assert [one.target for one in outcomes] == ["torch", "triton"]
    assert outcomes[0].missing == "there is no card here" and all(one.missing for one in outcomes)


def test_triton_on_the_cpu_needs_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    attention = kernel("stream_attention")
    few = dataclasses.replace(attention, cases=attention.cases[:2])
    outcomes = {(one.target, one.dtype): one for one in checking.check(few, "cpu")}
    assert "TRITON_INTERPRET=1" in outcomes["triton", "float32"].missing
    assert outcomes["torch", "bfloat16"].failed == () and outcomes["torch", "bfloat16"].cases == 2


def test_nan_elsewhere_is_infinitely_far() -> None:
    nan, one = np.array([math.nan, 1.0]), np.ones(2)
    assert checking.distance(nan, nan) == 0
    assert checking.distance(nan, one) == checking.distance(one, nan) == math.inf
    assert checking.distance(np.array([math.inf]), np.array([-math.inf])) == math.inf


@pytest.mark.parametrize("dtype", checking.TYPES)
def test_rounded_numbers_are_those_of_torch(dtype: str) -> None:
    x = np.concatenate([np.random.default_rng(0).standard_normal(1000) * 10, [math.nan, math.inf, -math.inf, 0.0]])
    want = torch.from_numpy(x).float().to(getattr(torch, dtype)).double().numpy()
    np.testing.assert_array_equal(checking.nearest(x, dtype), want)


def test_the_order_in_memory_is_kept() -> None:
    x = np.zeros((2, 3, 4)).transpose(2, 0, 1)
    assert checking.tensor(checking.nearest(x, "bfloat16"), "cpu", "bfloat16").stride() == (1, 12, 4)
