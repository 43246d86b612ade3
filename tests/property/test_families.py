"""Every operator family: alone, between convolutions, and in front of branches that meet again."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.check import check
from tests.property.strategies import FAMILIES, alone, residual, sandwiched

EXAMPLES = int(os.environ.get("PULSIFY_EXAMPLES", 0))
FACTORS = st.sampled_from([None, 2, 3, 1, 5, 8])


def few(count: int) -> settings:
    return settings(max_examples=EXAMPLES or count)


@pytest.mark.parametrize("family", FAMILIES)
@few(8)
@given(data=st.data())
def test_alone(family: str, data: st.DataObject) -> None:
    check(*data.draw(alone(family)), data.draw(FACTORS))


@pytest.mark.parametrize("family", FAMILIES)
@few(8)
@given(data=st.data())
def test_between_convolutions(family: str, data: st.DataObject) -> None:
    check(*data.draw(sandwiched(family)), data.draw(FACTORS))


@pytest.mark.parametrize("family", FAMILIES)
@few(4)
@given(data=st.data())
def test_branches(family: str, data: st.DataObject) -> None:
    check(*data.draw(residual(family)), data.draw(FACTORS))


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "quantize"])
@few(3)
@given(data=st.data())
def test_batch(family: str, data: st.DataObject) -> None:
    """Two streams side by side in a session of a free batch."""
    check(*data.draw(sandwiched(family, batches=("B",))), data.draw(FACTORS))


@pytest.mark.parametrize("family", ["conv", "pad", "resize", "elementwise", "positions", "average_pool", "concat"])
@few(2)
@given(data=st.data())
def test_half_precision(family: str, data: st.DataObject) -> None:
    check(*data.draw(alone(family, dtypes=(np.float16,))), data.draw(FACTORS))


@pytest.mark.parametrize("family", ["pad", "slice", "gather", "reshape", "products", "positions", "concat"])
@few(2)
@given(data=st.data())
def test_double_precision(family: str, data: st.DataObject) -> None:
    """ONNX Runtime has no convolutions and pools of doubles."""
    check(*data.draw(alone(family, dtypes=(np.float64,))), data.draw(FACTORS))
