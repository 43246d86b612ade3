"""Slots for a back end that has none: every stream is a stepper of its own, and a call of its own."""

from __future__ import annotations

import numpy as np

from pulsify.backends.grouping import apart
from pulsify.backends.seam import Array, Arrays, Executable, Placement, Rows, Stepper, Which, placement_of
from pulsify.core.spec import Spec, concrete


class Apart:
    """Steppers by slot, opened when a slot is first used. `_at`: the positions their counters have."""

    def __init__(self, executable: Executable, spec: Spec, most: int) -> None:
        self._executable, self._pulse, self._unknown = executable, spec.pulse, spec.unknown_length
        self.rows = {i.name: np.zeros((most, *concrete(i.dims, 1)), i.dtype) for i in spec.inputs}
        self._steppers: dict[int, Stepper] = {}
        self._at: dict[int, int] = {}
        self.intact = True

    @property
    def placement(self) -> tuple[Placement, ...]:
        return next((placement_of(s) for s in self._steppers.values()), ())

    def groups(self, positions: Array, lengths: Array | None) -> list[Which]:
        return apart(len(positions))

    def run(self, slots: Array, positions: Array, lengths: Array | None, fed: Rows | None = None) -> Rows:
        (slot,), (position,) = slots.tolist(), positions.tolist()
        length = None if lengths is None or lengths[0] == self._unknown else int(lengths[0])
        stepper = self._steppers[slot]
        if self._at[slot] != position:
            stepper.rebase(self._at[slot] - position)
            self._at[slot] = position
        for name, rows in self.rows.items():
            stepper.inputs[name][...] = rows[slot] if fed is None else fed[name][0]
        self.intact = False
        try:
            made = {name: array[None] for name, array in stepper.run(length).items()}
        except Exception:
            self.intact = True  # nothing was kept of it
            raise
        self._at[slot] = position + self._pulse
        self.intact = True
        return made

    def reset(self, slot: int) -> None:
        if slot not in self._steppers:
            self._steppers[slot] = self._executable.stepper(1, {})
        self._steppers[slot].reset()
        self._at[slot] = 0

    def states(self, slot: int, position: int) -> dict[str, Array]:
        return self._steppers[slot].states()

    def restore(self, slot: int, states: Arrays, position: int) -> None:
        self._steppers[slot].restore(states, position)
        self._at[slot] = position
