"""The back end `ort`: what it makes of a step for one stream, several in step, and each at its own pace."""

from __future__ import annotations

import gc
import weakref

from pulsify.backends.ort.backend import BACKEND
from pulsify.backends.seam import Options, StepProgram, plain
from tests.unit.backends.ort.test_ring import attention
from tests.unit.backends.ort.test_ring import spec as attending
from tests.unit.specs import a_state, a_stream, remembers


def test_one_stream_several_and_each_at_its_own_pace_run_different_programs() -> None:
    model = attention()
    assert BACKEND.lower(model, attending(), 2).rings
    assert not BACKEND.lower(model, attending(), None).rings
    one = BACKEND.lower(model, attending(), 1)
    assert one.rings and one.general is not model


def test_a_graph_that_two_programs_have_in_common_is_opened_once() -> None:
    model, spec = remembers("B")
    several, apart = (BACKEND.compile(BACKEND.lower(model, spec, b), spec, Options()) for b in (2, None))
    assert several.runner is apart.runner
    threads = BACKEND.compile(BACKEND.lower(model, spec, 2), spec, Options(threads=2))
    assert threads.runner is not several.runner


def test_layouts_are_worked_out_once_for_every_number_of_streams() -> None:
    model, spec = remembers("B")
    executable = BACKEND.compile(BACKEND.lower(model, spec, 2), spec, Options())
    one, other, third = (executable.stepper(n, {}) for n in (2, 2, 3))
    assert one._layout is other._layout is not third._layout
    assert one.inputs["x"] is not other.inputs["x"], "the memory is each one's own"


def test_nothing_keeps_a_model_that_nobody_has_any_more() -> None:
    model, spec = remembers("B")
    BACKEND.compile(BACKEND.lower(model, spec, 2), spec, Options())
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_ports_by_name_those_with_a_default_among_them() -> None:
    model, spec = remembers("B")
    executable = BACKEND.compile(StepProgram(model), spec, Options())
    (ports,) = executable.ports.values()
    assert ports.takes == {"x", "s"} and ports.gives == {"y", "new_s"}


def test_the_plain_program_is_the_file_with_growing_caches_marked() -> None:
    model, _ = remembers()
    made = plain(model, a_stream(states=(a_state("s"), a_state("keys", (1, "past", 2)))))
    assert made.general is model and made.steady is None
    assert made.place("keys").grows and not made.place("s").grows
