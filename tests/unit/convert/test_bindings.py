"""What a stream says of inputs that it does not have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsify.convert.bindings import bindings_of, check_time, with_bindings
from pulsify.core.errors import InvalidArgument
from pulsify.core.spec import Binding, Proof
from pulsify.frontend.time import TimeSpec
from tests.unit.specs import a_state, a_stream, an_output

TIME = TimeSpec(
    "T", {"x": (1, 1)}, bound=("length", "n"), filled={"mask": (1, 1, 1), "off": (1, 1, 0)},
    guessed=("length", "mask"), reasons={"length": "Where 'w' masks"},
)  # fmt: skip


def test_all_that_is_bound_is_listed_and_assumed() -> None:
    length, n, mask, off = bindings_of(TIME)
    assert length == Binding("length", "T", "guessed", "Where 'w' masks") and str(length) == "length=T (guessed)"
    assert n == Binding("n", "T") and str(n) == "n=T"
    assert (mask.value, mask.source, off.value, off.source) == ("ones", "guessed", "zeros", "given")
    proof = with_bindings(Proof(assumed=("scores differ",)), (length, off))
    assert proof.assumed == (
        "scores differ", "'length' is the number of frames T (guessed)", "'off' is all zeros (given)",
    )  # fmt: skip


def test_a_lone_first_axis_is_time_if_entries_meet() -> None:
    lone, alone = TimeSpec("s0", {"x": (0, 1)}, lone=True), a_stream(states=(), outputs=(an_output(rate=1),))
    split = a_stream(states=(), outputs=(an_output(rate=2),))
    for apart in (alone, split):
        with pytest.raises(InvalidArgument, match="pass time='s0'"):
            check_time(apart, lone, ())
        check_time(apart, replace(lone, lone=False), ())
    for meets in (
        a_stream(states=(a_state(),), outputs=(an_output(rate=1),)),
        a_stream(states=(), outputs=(an_output(rate=1),), granularity=4),
    ):
        check_time(meets, lone, ())
