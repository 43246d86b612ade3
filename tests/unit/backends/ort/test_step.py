"""One session's memory in ONNX Runtime: where everything lies, and what a pulse does to it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pulsify.backends.ort.backend import BACKEND
from pulsify.backends.ort.step import ALIGNED, Step, layout
from pulsify.backends.seam import Options, Place, StepProgram, Tail
from pulsify.core.spec import Spec
from tests.models import close, frames
from tests.unit.optimize.test_steady import both_ends
from tests.unit.optimize.test_steady import spec as clocked
from tests.unit.specs import FAR, a_state, a_stream, an_input, an_output, remembered, remembers


def opened(batch: int, free: bool = True) -> Step:
    model, spec = remembers("B" if free else batch)
    return BACKEND.compile(BACKEND.lower(model, spec, batch), spec, Options()).stepper(batch, {})


# ---- where everything lies


def several() -> tuple[StepProgram, Spec]:
    model, _ = remembers()
    spec = a_stream(
        4,
        inputs=(an_input("x", ("B", 3, 4)), an_input("z", ("B", 4), dtype=np.int8)),
        outputs=(an_output("y", ("B", 5, 4)), an_output("w", ("2*B", 4))),
        states=(a_state("s", ("B", 7, 3)), a_state("t", (1, 7, 2)), a_state("grows", ("B", "past", 2))),
        batch="B",
        length="length",
    )
    return StepProgram(model, places={"grows": Place(grows=True)}), spec


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_no_two_things_share_memory_and_all_begin_on_a_line(batch: int) -> None:
    made = layout(*several(), batch)
    assert made.length is not None
    spots = [*made.inputs, *made.outputs, *made.sides[0], *made.sides[1], made.length]
    spans = sorted((s.offset, s.offset + int(np.prod(s.full)) * s.dtype.itemsize) for s in spots)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(start % ALIGNED == 0 for start, _ in spans) and spans[-1][1] <= made.size
    assert {s.name: s.shape for s in spots} == {
        "x": (batch, 3, 4), "z": (batch, 4), "y": (batch, 5, 4), "w": (2 * batch, 4), "s": (batch, 7, 3),
        "t": (1, 7, 2), "length": (batch, 1),
    }  # fmt: skip


def test_states_that_grow_have_no_place_of_their_own() -> None:
    made = layout(*several(), 2)
    assert [(name, shape) for name, shape, _ in made.growing] == [("grows", (2, 0, 2))]


def test_a_port_of_rows_is_seen_as_the_portable_model_has_it() -> None:
    model, spec = remembers()
    made = layout(StepProgram(model, places={"x": Place(rows=True)}), spec, 1)
    (spot,) = made.inputs
    memory = np.zeros(made.size, np.uint8)
    assert spot.shape == (4, 2)
    seen = spot.seen(memory)
    seen[0, 1, 0] = 1.0  # the second channel of the first frame is the second number
    assert seen.shape == (1, 2, 4) and memory.view(np.float32)[spot.offset // 4 + 1] == 1.0


def test_a_tail_is_the_end_of_what_is_written() -> None:
    model, spec = remembers()
    tail = Tail("full_new_s", (1, 1, 6), 2)
    spec = replace(spec, states=(a_state(shape=(1, 1, 2)),))
    made = layout(StepProgram(model, places={"s": Place(tail=tail)}), spec, 1)
    (spot,) = made.sides[0]
    assert spot.made == "full_new_s" and spot.full == (1, 1, 6) and spot.shape == (1, 1, 2)
    memory = np.zeros(made.size, np.uint8)
    memory.view(np.float32)[spot.offset // 4 :][:6] = np.arange(6)
    np.testing.assert_array_equal(spot.seen(memory), [[[4.0, 5.0]]])


# ---- pulses


@pytest.mark.parametrize(("batch", "free"), [(1, True), (1, False), (3, True)])
def test_pulses_give_what_all_frames_at_once_give(batch: int, free: bool) -> None:
    step, x = opened(batch, free), frames(batch, 2, 20)
    parts = []
    for n in range(5):
        step.inputs["x"][...] = x[..., 4 * n : 4 * n + 4]
        parts.append(step.run()["y"].copy())
    close(np.concatenate(parts, 2), remembered(x))
    np.testing.assert_array_equal(step.states()["s"], x[..., -2:])


@pytest.mark.parametrize("pulses", [1, 2])
def test_a_stream_goes_on_from_its_states_elsewhere(pulses: int) -> None:
    """On whichever of the two sides they lie."""
    one, other, x = opened(1), opened(1), frames(1, 2, 16)
    for n in range(pulses):
        one.inputs["x"][...] = x[..., 4 * n : 4 * n + 4]
        one.run()
    other.inputs["x"][...] = 7  # it has been at something else
    other.run()
    other.restore(one.states(), 4 * pulses)
    for step in (one, other):
        step.inputs["x"][...] = x[..., 4 * pulses : 4 * pulses + 4]
    np.testing.assert_array_equal(one.run()["y"], other.run()["y"])


def test_a_reset_stream_is_a_new_one_on_either_side() -> None:
    step, x = opened(1), frames(1, 2, 4)
    step.inputs["x"][...] = x
    first = step.run()["y"].copy()
    for pulses in (1, 2):
        for _ in range(pulses):
            step.run()
        step.reset()
        assert not step.states()["s"].any()
        np.testing.assert_array_equal(step.run()["y"], first)


def test_states_are_copies() -> None:
    step = opened(1)
    step.inputs["x"][...] = 1
    step.run()
    kept = step.states()["s"]
    step.inputs["x"][...] = 2
    step.run()
    assert (kept == 1).all()


# ---- the clock


def test_the_steady_step_takes_over_and_gives_way_and_the_position_is_right_throughout() -> None:
    """Nine frames late; of 40 frames the last pulses are told so."""
    model, spec = both_ends(), clocked()
    program = BACKEND.lower(model, spec, 2)
    assert program.steady is not None and program.since == 3
    step = BACKEND.compile(program, spec, Options()).stepper(2, {})
    plain = BACKEND.compile(StepProgram(model), spec, Options()).stepper(2, {})
    x = frames(2, 2, 60)
    for n in range(14):
        for s in (step, plain):
            s.inputs["x"][...] = x[..., 4 * n : 4 * n + 4]
        length = 40 if n >= 10 else None
        np.testing.assert_array_equal(step.run(length)["y"], plain.run(length)["y"])
        if n in (1, 7, 12):  # looked at in both steps
            np.testing.assert_array_equal(step.states()["position"], [[4 * n + 4]] * 2)


def test_counters_that_are_set_back_change_nothing() -> None:
    model, spec = both_ends(), clocked()
    step = BACKEND.compile(BACKEND.lower(model, spec, 1), spec, Options()).stepper(1, {})
    far = FAR // 2 // 4 * 4
    step.restore({"position": np.full((1, 1), far, np.int32)}, far)
    step.inputs["x"][...] = x = frames(1, 2, 4)
    np.testing.assert_array_equal(step.run()["y"], x)
    step.rebase(far - 40)
    assert step.states()["position"] == 44
    np.testing.assert_array_equal(step.run()["y"], x)
    assert step.states()["position"] == 48
    assert not step.run(20)["y"].any(), "all of it is past the end"
