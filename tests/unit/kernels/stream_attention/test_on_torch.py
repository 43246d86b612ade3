"""torch's own operators: every case in every type, and every claim."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.kernels.checking import TYPES
from pulsify.kernels.registry import Case
from pulsify.kernels.stream_attention import on_torch
from pulsify.kernels.stream_attention.cases import CASES
from tests.unit.kernels.stream_attention.properties import CLAIMS, On


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, dtype: str) -> None:
    On("torch", dtype).holds(case.make())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_claim(claim: Any, data: st.DataObject) -> None:
    claim(On("torch"), data)


def test_the_result_lies_frame_by_frame() -> None:
    import torch

    q, keys = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8)
    assert on_torch.stream_attention(q, keys, keys).transpose(1, 2).is_contiguous()
