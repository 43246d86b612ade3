"""The Triton kernel without a card, in a process that has the interpreter from the start (see stream_attention)."""

from __future__ import annotations

import pytest

from pulsify.kernels import checking
from pulsify.kernels.depthwise.cases import CASES
from tests.unit.kernels.depthwise.test_depthwise import KERNEL


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cases(dtype: str) -> None:
    found = checking.judged(KERNEL, "triton", "cpu", dtype)
    assert not found.failed and found.cases == len(CASES)
