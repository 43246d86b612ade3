"""The values back ends and sessions speak: rings, places, and the axis of streams."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pulsify.backends.reference.backend import Step
from pulsify.backends.registry import backend
from pulsify.backends.seam import (
    AS_IT_IS,
    Cache,
    LowersType,
    OnDevice,
    Options,
    Place,
    Placing,
    Ring,
    Settling,
    StepProgram,
    Wiring,
    Writing,
    is_careful,
    lower_type,
    own_options,
    placement_of,
    stream_axis,
    takes_options,
    takes_tensors,
)
from pulsify.core.spec import Dims
from pulsify.runtime.framer import Framer, ports
from pulsify.runtime.session import Session
from tests.models import Array
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


# ---- what a back end may offer beyond the minimum


OFFERED: tuple[type, ...] = LowersType, Writing, Wiring, OnDevice, Placing, Settling


def offered(name: str) -> set[str]:
    """By the back end, what it opens, and a session and a pool of it."""
    if name == "torch":
        pytest.importorskip("torch")
    model, spec = remembers()
    machine = backend(name)
    opened = machine.compile(machine.lower(model, spec, 1), spec, Options())
    stepper = opened.stepper(1, {})
    told = {
        "TakesOptions": takes_options(machine),
        "TakesTensors": takes_tensors(stepper),
        "Careful": is_careful(stepper),
    }
    parts = [machine, opened, stepper, opened.slots(2)]
    found = {kind.__name__ for kind in OFFERED for part in parts if isinstance(part, kind)}
    return found | {kind for kind, it_does in told.items() if it_does}


@pytest.mark.parametrize(
    ("name", "offers"),
    [
        ("reference", ""),
        ("ort", "Settling"),
        ("native", "Writing Careful Settling"),
        ("torch", "TakesOptions LowersType Writing Wiring OnDevice TakesTensors Placing Settling"),
    ],
)
def test_back_ends_offer_what_they_have(name: str, offers: str) -> None:
    assert offered(name) == set(offers.split())


def test_what_is_not_offered_is_what_the_seam_says() -> None:
    model, spec = remembers()
    machine = backend("reference")
    stepper = machine.compile(machine.lower(model, spec, 1), spec, Options()).stepper(1, {})
    assert own_options(machine) == () and lower_type(machine, {}) is None and placement_of(stepper) == ()


class Asked(Step):
    """The reference's session, and how often it was asked whether it takes tensors and looks at its inputs."""

    times = 0

    @property
    def device(self) -> str:
        self.times += 1
        return "cpu"

    @property
    def run_if_finite(self) -> Callable[[], bool]:
        self.times += 1
        return lambda: bool(self.run())


def test_a_session_asks_once_what_its_stepper_offers() -> None:
    model, spec = remembers()
    machine = backend("reference")
    stepper = Asked(machine.compile(machine.lower(model, spec, 1), spec, Options()), 1, {})  # type: ignore[arg-type]
    known = ports(spec, 1)
    session: Session[Array] = Session(lambda: stepper, Framer(known, 0.0, True), known, True)
    asked = stepper.times
    assert asked
    for _ in range(5):
        session.push(np.ones((1, 2, 4), np.float32))
    assert stepper.times == asked
