"""The memory of a pool as C has it, and one call for any of its streams.

slot       0     1     2     3          a piece of memory for each stream
ready            x           x
batch      [1  3] -> C, one call: the step of 1, then of 3

Each stream is computed by itself, so where it stands does not matter to the others. Beside a call for each, Python is
asked once, and other threads have the interpreter meanwhile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pulsify.backends.grouping import alike
from pulsify.backends.native.step import ALIGNED, FIXED, Step, address, aligned, seen
from pulsify.backends.seam import Array, Arrays, Rows, Which
from pulsify.core.spec import Input, Output, concrete

if TYPE_CHECKING:
    from pulsify.backends.native.backend import Executable


class Slots:
    """Up to `most` streams. Positions come with every run: what the memory says of them is behind at times."""

    def __init__(self, on: Executable, most: int) -> None:
        spec = on.spec
        self._on, self._spec = on, spec
        self._memory = _pieces(on.source.memory.size, most)
        self._steps: dict[int, Step] = {}  # of slots that have been used: a stream seen by itself
        self.rows = {i.name: _rows(i, most) for i in spec.inputs}
        self._fed = {i.name: _rows(i, most) for i in spec.inputs}
        self._made = {o.name: _rows(o, most) for o in spec.outputs}
        self._rows_at, self._fed_at = ([_addresses(rows) for rows in each.values()] for each in (self.rows, self._fed))
        self._homes = _addresses(self._memory)
        self._work = aligned(on.source.work.size)  # of whichever stream is being computed
        self._pointers = np.zeros((most, FIXED + len(self._fed) + len(self._made)), np.uintp)  # as C takes them
        self._pointers[:, 0], self._pointers[:, 2] = on.weights_at, address(self._work)
        for at, rows in enumerate(self._made.values(), FIXED + len(self._fed)):
            self._pointers[:, at] = _addresses(rows)
        self._position, self._length = (self._counter(name) for name in (spec.position, spec.length))
        self.since: float = on.program.since * spec.pulse if on.steady is not None else math.inf
        self.intact = True

    def _counter(self, name: str | None) -> Array | None:
        """Where all streams have theirs, if the step asks for it."""
        if name is None or name not in self._on.made.ports:
            return None
        one = seen(self._memory[0], self._on.source, self._on.made.ports[name])
        offset = address(one) - address(self._memory)
        return self._memory[:, offset : offset + one.itemsize].view(one.dtype)[:, 0]

    def groups(self, positions: Array, lengths: Array | None) -> list[Which]:
        """Those that are warm, their end out of sight, and all others."""
        warm = positions >= self.since
        return alike(warm if lengths is None else warm & (lengths == self._spec.unknown_length))

    def run(self, slots: Array, positions: Array, lengths: Array | None, fed: Rows | None = None) -> Rows:
        """One pulse of these streams. Their outputs, valid until the next call."""
        count, pointers = len(slots), self._pointers[: len(slots)]
        far = lengths is None or lengths[0] == self._spec.unknown_length
        steady = self._on.steady if far and positions[0] >= self.since else None
        pointers[:, 1] = self._homes[slots]
        for i, (name, room) in enumerate(self._fed.items()):
            if fed is None:
                pointers[:, FIXED + i] = self._rows_at[i][slots]
            else:
                room[:count] = fed[name]
                pointers[:, FIXED + i] = self._fed_at[i][:count]
        if self._position is not None and (steady is None or self._on.program.counts):
            self._position[slots] = positions
        if self._length is not None and steady is None:
            self._length[slots] = self._spec.unknown_length if lengths is None else lengths
        made = {name: rows[:count] for name, rows in self._made.items()}
        at = address(pointers)
        self.intact = False
        (steady or self._on.general).run_many(at, count)
        self.intact = True  # no call from here on: an interruption would find states that have gone on
        return made

    def reset(self, slot: int) -> None:
        if slot not in self._steps:
            self._steps[slot] = Step(self._on, {}, (self._memory[slot], self._work))
        self._steps[slot].reset()

    def states(self, slot: int, position: int) -> dict[str, Array]:
        """Copies, as the portable model has them."""
        if self._position is not None:
            self._position[slot] = position
        return self._steps[slot].states()

    def restore(self, slot: int, states: Arrays, position: int) -> None:
        self._steps[slot].restore(states, position)


def _pieces(size: int, most: int) -> Array:
    """So many bytes for each, all of them where a line of the processor's cache begins."""
    each = -(-size // ALIGNED) * ALIGNED
    return aligned(each * most).reshape(most, each)[:, :size]


def _rows(port: Input | Output, most: int) -> Array:
    """A port of every stream: [most, *the shape for one]."""
    shape = concrete(port.dims, 1)
    return _pieces(math.prod(shape) * port.dtype.itemsize, most).view(port.dtype).reshape(most, *shape)


def _addresses(rows: Array) -> Array:
    return address(rows) + np.arange(len(rows), dtype=np.uintp) * np.uintp(rows.strides[0])
