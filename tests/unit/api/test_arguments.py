"""What is given is taken, or refused in words that say what to give."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pulsify.api.arguments import LONGEST_PULSE, check_options, check_rate, frozen, whole
from pulsify.core.errors import InvalidArgument


@pytest.mark.parametrize("given", [1, 7, np.int64(3), np.uint8(200), LONGEST_PULSE])
def test_whole_numbers(given: object) -> None:
    assert whole(given, "no") == given


@pytest.mark.parametrize("given", [0, -1, True, 1.0, "4", None, LONGEST_PULSE + 1, np.float32(2), [1]])
def test_what_is_none(given: object) -> None:
    with pytest.raises(InvalidArgument, match="say so"):
        whole(given, "say so")


def test_options_are_those_of_the_back_end() -> None:
    pytest.importorskip("torch", reason="pip install 'pulsify[torch]'")
    check_options("torch", {"device": "cpu"})
    with pytest.raises(InvalidArgument, match=r"unknown \['devise'\]; there are .*device"):
        check_options("torch", {"devise": "cpu"})
    with pytest.raises(InvalidArgument, match="it has none of its own"):
        check_options("reference", {"device": "cpu"})


def test_a_key_does_not_depend_on_the_order_or_on_lists() -> None:
    assert frozen({"b": ["x", "y"], "a": None}) == frozen({"a": None, "b": ("x", "y")})
    assert hash(frozen({"a": ["x"]}))


def test_rates() -> None:
    for rate in (None, 1, 16000, 62.5):
        check_rate(rate)
    for wrong in (0, -1.0, True, math.inf, math.nan, "16000"):
        with pytest.raises(InvalidArgument, match="frames a second"):
            check_rate(wrong)  # type: ignore[arg-type]
