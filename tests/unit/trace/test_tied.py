"""Exports tied to one length: which lengths are tried."""

from __future__ import annotations

import numpy as np

from pulsify.core.length import LONGEST
from pulsify.frontend.model import make_node
from pulsify.trace.tied import tied
from pulsify.trace.traced import CannotRun, known


def test_the_largest_number_there_is_is_no_size_to_try() -> None:
    """The end of x[5000:] is written as one: a length worked out from it ran over."""
    lengths = []

    def run(length: int, batch: int) -> None:
        lengths.append(length)
        problem = CannotRun(make_node("Slice", ["x", "end"], "y", 17), "nothing is left")
        problem.read = [known(np.zeros((1, 2, length), np.float32)), known(np.array([2**63 - 1, 5000]))]
        raise problem

    assert tied(run, 1, (1,)) is None
    assert 5000 in lengths and max(lengths) <= LONGEST


def test_lengths_that_say_whether_it_is_tied_are_lengths() -> None:
    """Many frames share a size, and another size is large: so many times that is more than any stream has."""
    lengths = []

    def run(length: int, batch: int) -> None:
        lengths.append(length)
        if 256 <= length < 320:
            return
        problem = CannotRun(make_node("Reshape", ["x", "shape"], "y", 17), "it does not fit")
        problem.read = [known(np.zeros((1, length // 64), np.float32)), known(np.array([4, 1 << 29]))]
        raise problem

    tied(run, 1, (1,))
    assert max(lengths) <= LONGEST
