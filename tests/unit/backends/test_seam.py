"""The values back ends and sessions speak: rings, places, and the axis of streams."""

from __future__ import annotations

import numpy as np
import pytest

from pulsify.backends.seam import AS_IT_IS, Cache, Place, Ring, StepProgram, stream_axis
from pulsify.core.spec import Dims
from tests.unit.specs import remembers


@pytest.mark.parametrize(("dims", "axis"), [(("B", 2, 4), 0), ((2, "4*B"), 1), ((1, 2), None), ((), None)])
def test_streams_lie_along_the_first_free_axis(dims: Dims, axis: int | None) -> None:
    assert stream_axis(dims) == axis


def test_the_axes_in_front_of_time_are_the_same_for_a_ring_that_is_swapped() -> None:
    assert Cache("k", 2, False, ("B", 4, 9, 3), "at").lead == ("B", 4)
    assert Cache("k", 3, True, ("B", 4, 9, 3), "at").lead == ("B", 4)
    assert np.prod(Cache("k", 0, False, (9, 3), "at").lead) == 1


def test_a_port_that_is_nowhere_else_is_as_the_file_has_it_and_rings_are_listed_once() -> None:
    model, _ = remembers()
    ring = Ring(7, 2, "start", "stop", ())
    program = StepProgram(model, places={"k": Place(ring=ring), "v": Place(ring=ring), "x": Place(rows=True)})
    assert program.place("y") is AS_IT_IS and program.rings == (ring,)
