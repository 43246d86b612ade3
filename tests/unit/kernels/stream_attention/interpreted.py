"""The Triton kernel without a card.

    TRITON_INTERPRET=1 python -m pytest tests/unit/kernels/stream_attention/interpreted.py

A file of its own, in a process of its own: Triton decides when it is imported whether it is interpreted.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.kernels import checking
from pulsify.kernels.registry import Case
from pulsify.kernels.stream_attention import cases
from pulsify.kernels.stream_attention.cases import CASES
from tests.unit.kernels.stream_attention.properties import CLAIMS, KERNEL, On, drawn, masked

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where the kernel computes with NaN
LONG = ("width-8192", "width-1024", "many-queries")
HALF = (
    "everything",
    "nan-hidden-values",
    "inf-hidden",
    "relative-blocks",
    "depth-40",
)  # the interpreter has no bfloat16


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=[pytest.mark.slow] * (c.name in LONG)) for c in CASES]
)
def test_case(case: Case) -> None:
    On("triton").holds(case.make())


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=[pytest.mark.slow] * (c.name not in HALF)) for c in CASES]
)
def test_case_in_float16(case: Case) -> None:
    On("triton", "float16").holds(case.make())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
@given(data=st.data())
@settings(max_examples=3, deadline=None, derandomize=True)
def test_claim(claim: Any, data: st.DataObject) -> None:
    claim(On("triton"), data)


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_claim_at_length(claim: Any, data: st.DataObject) -> None:
    claim(On("triton"), data)


@given(data=st.data())
@settings(max_examples=6, deadline=None, derandomize=True)
def test_any_plan_gives_the_same(data: st.DataObject) -> None:
    """Blocks of any size, columns shared by any number of programs, queries in several blocks."""
    from pulsify.kernels.stream_attention.on_triton import Plan, stream_attention

    made = masked(data, drawn(data, most=80, batch=1, heads=1, queries=data.draw(st.sampled_from([1, 5, 20]))))
    plan = Plan(16, data.draw(st.sampled_from([16, 32])), 16, 16, data.draw(st.integers(1, 4)), 4, 1)
    inputs = checking.rounded(made, "float32")
    want, *after = KERNEL.specification(**inputs)
    tensors = {name: checking.tensor(value, "cpu", "float32") for name, value in inputs.items()}
    got = stream_attention(**tensors, plan=plan)
    assert checking.distance(got.double().numpy(), want) <= KERNEL.bound(inputs, "float32")
    for name, kept in zip(KERNEL.written, after, strict=True):
        assert (tensors[name].numpy() == kept).all()


def test_the_tiles_fit_on_the_chip() -> None:
    """What is read ahead, at all depths and numbers of queries."""
    from pulsify.kernels.stream_attention.on_triton import SHARED, planned
    from pulsify.kernels.stream_attention.sizes import Sizes

    for depth in (16, 128, 256):
        for queries in (1, 14, 64, 300):
            for size in (2, 4):
                plan = planned(Sizes(1, 8, queries, depth, depth, 1, 8192, queries), size, 132)
                stage = size * (plan.columns * 2 * plan.depth + (plan.columns + plan.queries) * plan.depth)
                assert plan.stages * stage <= SHARED
                assert plan.split * cases.Shape().heads >= 1
