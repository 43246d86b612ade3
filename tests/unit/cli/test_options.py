"""Text of options to arguments of the library."""

from __future__ import annotations

from typing import Any

import click
import pytest

from pulsify.cli.options import parse_bind, parse_set, parse_time, parse_unbounded

CONTEXT, PARAMETER = click.Context(click.Command("any")), click.Option(["--any"])


@pytest.mark.parametrize(
    ("given", "want"),
    [((), None), (("T",), "T"), (("x=2",), {"x": 2}), (("x=2", "y = -1"), {"x": 2, "y": -1})],
)
def test_time_is_a_name_or_axes(given: tuple[str, ...], want: Any) -> None:
    assert parse_time(CONTEXT, PARAMETER, given) == want


@pytest.mark.parametrize("given", [("x=two",), ("T", "x=2"), ("=2",), ("x=",)])
def test_a_time_that_is_neither_is_told(given: tuple[str, ...]) -> None:
    with pytest.raises(click.BadParameter, match=r"is not an axis|is not NAME=VALUE"):
        parse_time(CONTEXT, PARAMETER, given)


def test_sizes_are_numbers_and_lengths_stay_as_they_are_written() -> None:
    assert parse_set(CONTEXT, PARAMETER, ("B=1", "T=8*n", "S=<=3000")) == {"B": 1, "T": "8*n", "S": "<=3000"}
    assert parse_bind(CONTEXT, PARAMETER, ("length=T",)) == {"length": "T"}
    assert parse_bind(CONTEXT, PARAMETER, ("max_len=None",)) == {"max_len": None}
    with pytest.raises(click.BadParameter, match="as in --bind length=T"):
        parse_bind(CONTEXT, PARAMETER, ("length",))


@pytest.mark.parametrize(("given", "want"), [("refuse", "refuse"), ("grow", "grow"), ("300", 300)])
def test_how_far_to_look_back(given: str, want: Any) -> None:
    assert parse_unbounded(CONTEXT, PARAMETER, given) == want


@pytest.mark.parametrize("given", ["0", "-3", "1.5", "all", ""])
def test_how_far_is_refuse_grow_or_a_number(given: str) -> None:
    with pytest.raises(click.BadParameter, match="refuse, grow or a number of frames"):
        parse_unbounded(CONTEXT, PARAMETER, given)
