"""A stream in a box: what is not just as it was written is turned down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pulsify.core.errors import InvalidState
from pulsify.runtime.snapshot import load, save
from tests.unit.core.test_spec import a_spec

STATES = {
    "state": np.arange(12, dtype=np.float32).reshape(1, 2, 6),
    "keys": np.ones((1, 3, 4), np.float32),
    "position": np.array([[8]], np.int32),
}
BACKLOG = {"x": np.zeros((1, 2, 0), np.float32)}
COUNTS = {"pulses": 1, "rebased": 0, "closed": 0, "batch": 1, "received.x": 16}


def test_a_box_holds_what_was_put_in_empty_backlogs_included() -> None:
    states, backlog, counts = load(save(STATES, BACKLOG, COUNTS, a_spec()), a_spec(), 1)
    assert counts == COUNTS and backlog["x"].shape == (1, 2, 0)
    for name, array in STATES.items():
        np.testing.assert_array_equal(states[name], array)


def test_any_byte_changed_or_cut_off_shows() -> None:
    blob = save(STATES, BACKLOG, COUNTS, a_spec())
    for at in range(len(blob)):
        damaged = bytearray(blob)
        damaged[at] ^= 1
        with pytest.raises(InvalidState):
            load(bytes(damaged), a_spec(), 1)
    for end in range(0, len(blob), 7):
        with pytest.raises(InvalidState):
            load(blob[:end], a_spec(), 1)


def test_another_pulse_and_another_number_of_streams_are_turned_down() -> None:
    blob = save(STATES, BACKLOG, COUNTS, a_spec())
    with pytest.raises(InvalidState, match="another model or another pulse"):
        load(blob, replace(a_spec(), pulse=4), 1)
    with pytest.raises(InvalidState, match="holds 1 streams, the session 2"):
        load(blob, a_spec(), 2)
