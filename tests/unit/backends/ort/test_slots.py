"""Many streams in slots: a pulse of any of them together, each what it would be alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.backends.ort.backend import BACKEND
from pulsify.backends.ort.slots import Engine
from pulsify.backends.seam import Options
from pulsify.core.spec import Spec
from tests.models import Array, close, frames
from tests.unit.graphs import graph
from tests.unit.optimize.test_steady import both_ends
from tests.unit.optimize.test_steady import spec as clocked
from tests.unit.specs import a_stream, an_input, an_output, remembered, remembers


def engine(model: ir.Model, spec: Spec, most: int = 5) -> Engine:
    made = BACKEND.compile(BACKEND.lower(model, spec, None), spec, Options()).slots(most)
    for slot in range(most):
        made.reset(slot)
    return made


def ran(slots: Engine, which: list[int], positions: list[int], length: int | None = None) -> list[dict[str, Array]]:
    """Outputs by stream."""
    lengths = None if length is None else np.full(len(which), length)
    made = slots.run(np.array(which), np.array(positions), lengths)
    return [{name: rows[i].copy() for name, rows in made.items()} for i in range(len(which))]


def together(slots: Engine, *places: tuple[int, int | None]) -> list[list[int]]:
    """Which of these, given by position and length, run together."""
    far = [clocked().unknown_length if length is None else length for _, length in places]
    found = slots.groups(np.array([at for at, _ in places]), np.array(far))
    return [np.arange(len(places))[which].tolist() for which in found]


def test_streams_in_any_slots_and_any_company_are_what_they_are_alone() -> None:
    slots, x = engine(*remembers("B")), frames(5, 2, 16)
    turns = [[0, 3], [3], [4, 0, 3], [0], [4, 3], [4, 0], [4]]  # four pulses of each
    done: dict[int, list[Array]] = {0: [], 3: [], 4: []}
    for now in turns:
        for slot in now:
            n = len(done[slot])
            slots.rows["x"][slot] = x[slot : slot + 1, :, 4 * n : 4 * n + 4]
        made = ran(slots, now, [4 * len(done[s]) for s in now])
        for slot, out in zip(now, made, strict=True):
            done[slot].append(out["y"])
    assert slots.together
    for slot, parts in done.items():
        close(np.concatenate(parts, 2), remembered(x[slot : slot + 1]))


def test_a_reset_slot_forgets_and_a_restored_one_goes_on() -> None:
    slots, x = engine(*remembers("B")), frames(1, 2, 4)
    slots.rows["x"][1] = slots.rows["x"][2] = x
    first = ran(slots, [1], [0])[0]["y"]
    kept = slots.states(1, 4)
    np.testing.assert_array_equal(kept["s"], x[..., -2:])
    second = ran(slots, [1], [4])[0]["y"]
    slots.restore(2, kept, 4)
    np.testing.assert_array_equal(ran(slots, [2], [4])[0]["y"], second)
    slots.reset(1)
    np.testing.assert_array_equal(ran(slots, [1], [0])[0]["y"], first)


def test_streams_at_different_places_run_together_once_they_are_warm() -> None:
    slots = engine(both_ends(), clocked())
    assert together(slots, (0, None), (4, None), (0, None)) == [[0, 2], [1]]
    assert together(slots, (12, None), (400, None)) == [[0, 1]], "the position is not asked for any more"
    assert together(slots, (400, 402), (400, None), (400, 403)) == [[0], [1], [2]], "at the end it is"
    assert slots.groups(np.array([8, 8]), None) == [slice(0, 2)]


@pytest.mark.parametrize("made", [remembers, lambda batch: (both_ends(), clocked())], ids=["no clock", "a clock"])
def test_whoever_has_no_end_in_sight_is_grouped_alike_the_short_way(made: Callable[[str], Any]) -> None:
    slots = engine(*made("B"))
    for places in ([0, 4, 0], [0, 400, 4], [12, 400], [8, 8], [0, 0, 4, 400, 404]):
        short = [np.arange(len(places))[which].tolist() for which in slots.groups(np.array(places), None)]
        assert short == together(slots, *((at, None) for at in places))


def test_positions_and_lengths_are_each_streams_own() -> None:
    slots, x = engine(both_ends(), clocked()), frames(1, 2, 4)
    slots.rows["x"][0] = slots.rows["x"][1] = x
    assert not ran(slots, [0], [0])[0]["y"].any(), "nine frames are late"
    early, late = ran(slots, [0, 1], [12, 400])
    np.testing.assert_array_equal(early["y"], x)
    np.testing.assert_array_equal(late["y"], x)
    ended = ran(slots, [1], [400], 393)[0]["y"]
    np.testing.assert_array_equal(ended[..., :2], x[..., :2])
    assert not ended[..., 2:].any(), "frames 393 and on are none"
    assert slots.states(1, 404)["position"] == 404


def mixing(text: str) -> tuple[ir.Model, Spec]:
    constants = {"first": np.array([0]), "nought": np.zeros(1, np.float32)}
    own = ("B", 2, 4)
    model = graph(text, {"x": own}, "y", {n: c for n, c in constants.items() if f" {n} " in text})
    model.graph.outputs[0].shape = ir.Shape(own)
    return model, a_stream(batch="B", inputs=(an_input(dims=own),), outputs=(an_output(dims=own),))


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        ("Exp x > h; Identity h > y", True),
        ("ReduceMean x > m axes=[0]; Sub x m > h; Identity h > y", False),  # the mean of all streams
        ("ReduceSum x first > m keepdims=1; Mul m nought > n; Add x n > y", False),  # times zero: NaN gets across
    ],
)
def test_streams_that_a_model_mixes_are_calls_of_their_own(text: str, apart: bool) -> None:
    slots = engine(*mixing(text))
    assert slots.together is apart
    assert together(slots, (0, None), (0, None)) == ([[0, 1]] if apart else [[0], [1]])


def test_an_output_without_a_stream_axis_is_taken_for_mixed() -> None:
    model, spec = mixing("Exp x > h; Identity h > y")
    fixed = replace(spec, outputs=(an_output(dims=(1, 2, 4)),))
    assert not engine(model, fixed).together


def test_a_call_that_fails_leaves_states_as_they_were() -> None:
    slots = engine(*remembers("B"))
    slots.rows["x"][0] = 1
    ran(slots, [0], [0])
    before = slots.states(0, 4)
    call = slots._calls[False, 1]

    def fails() -> None:
        raise RuntimeError("no")

    call.run = fails
    with pytest.raises(RuntimeError):
        ran(slots, [0], [4])
    assert slots.intact
    np.testing.assert_array_equal(slots.states(0, 4)["s"], before["s"])
