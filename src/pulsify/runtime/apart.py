"""Slots for a back end that has none: every stream is a stepper of its own, and a call of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from pulsify.backends.seam import Array, Arrays, Executable, Placement, Stepper, placement_of
from pulsify.core.spec import Spec, concrete


class Apart:
    """Steppers by slot, opened when a slot is first used. `_at`: the positions their counters have."""

    def __init__(self, executable: Executable, spec: Spec, most: int) -> None:
        self._executable, self._pulse = executable, spec.pulse
        self.rows = {i.name: np.zeros((most, *concrete(i.dims, 1)), i.dtype) for i in spec.inputs}
        self._steppers: dict[int, Stepper] = {}
        self._at: dict[int, int] = {}
        self.intact = True

    @property
    def placement(self) -> tuple[Placement, ...]:
        return next((placement_of(s) for s in self._steppers.values()), ())

    def group(self, position: int, length: int | None) -> Hashable:
        return object()  # equal to nothing else

    def run(self, slots: Sequence[int], positions: Sequence[int], length: int | None) -> list[dict[str, Array]]:
        (slot,), (position,) = slots, positions
        stepper = self._steppers[slot]
        if self._at[slot] != position:
            stepper.rebase(self._at[slot] - position)
            self._at[slot] = position
        for name, rows in self.rows.items():
            stepper.inputs[name][...] = rows[slot]
        self.intact = False
        try:
            made = [dict(stepper.run(length))]
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
