"""The memory of a pool, and one call of the model for any of its streams.

slot       0     1     2     3          a row of every input and state for each stream
ready            x           x
batch      [1  3] -> model -> [1  3]    rows are taken out, and put back
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pulsify.backends.counting import counts_streams
from pulsify.backends.grouping import alike, apart
from pulsify.backends.neighbours import kept_apart, same_place
from pulsify.backends.ort.step import attach
from pulsify.backends.seam import Array, Rows, Which, parted, stream_axis
from pulsify.core.runner import quick_call
from pulsify.core.spec import Dims, concrete

if TYPE_CHECKING:
    import onnxruntime as ort

    from pulsify.backends.ort.backend import Executable


class Engine:
    """Rows for up to `most` streams. Nothing here knows which of them are open."""

    def __init__(self, on: Executable, most: int) -> None:
        spec = on.spec
        self._on, self._spec, self._most = on, spec, most
        kept = [s for s in spec.states if s.name != spec.position]
        self._kept = [s.name for s in kept]
        dims: dict[str, Dims] = {i.name: i.dims for i in spec.inputs} | {s.name: s.shape for s in kept}
        self._dims = dims | {o.name: o.dims for o in spec.outputs}
        self._types = {i.name: i.dtype for i in spec.inputs} | {o.name: o.dtype for o in spec.outputs}
        self._types |= {s.name: s.dtype for s in kept}
        shared = any(stream_axis(dims[name]) is None for name in self._kept)  # a call has but one for all
        self.together = not shared and _computed_apart(on)  # False: every stream is a call of its own
        rows = {n: np.zeros((most, *concrete(d, 1)), self._types[n]) for n, d in dims.items()}
        self._states = {n: rows[n] for n in self._kept}
        self.rows = {i.name: rows[i.name] for i in spec.inputs}
        self._rows = rows
        self._memory: dict[str, Array] = {}
        self._calls: dict[tuple[bool, int], _Call] = {}
        self.since: float = on.program.since * spec.pulse if on.steady is not None else math.inf
        self.intact = True

    def groups(self, positions: Array, lengths: Array | None) -> list[Which]:
        """Streams at the same place; where a steady step asks for no position, all those that are warm."""
        if not self.together or not len(positions):
            return apart(len(positions))
        spec, low, high = self._spec, positions.min(), positions.max()
        asks, counts = spec.position is not None, self._on.program.counts
        warm = low >= self.since and not (asks and counts)
        cold = high < self.since and not asks
        if lengths is None and (low == high or warm or cold):
            return [slice(0, len(positions))]  # the short way to what most often holds
        far = np.full(len(positions), spec.unknown_length) if lengths is None else lengths
        steady = (far == spec.unknown_length) & (positions >= self.since)
        at = np.where(steady & (not counts), 0, positions) if asks else np.zeros_like(positions)
        return alike(steady, at, far)

    def run(self, slots: Array, positions: Array, lengths: Array | None, fed: Rows | None = None) -> Rows:
        """One pulse of these streams. Their outputs, valid until the next call."""
        self.intact = True
        far = lengths is None or lengths[0] == self._spec.unknown_length
        key = bool(far and positions[0] >= self.since), len(slots)
        if key not in self._calls:
            self._calls[key] = self._call(*key)
        call = self._calls[key]
        for name, view in call.taken.items():
            if fed is not None and name in fed:
                view[...] = fed[name]
            else:
                _take(self._rows[name], slots, view)
        for array in call.position:
            array[:, 0] = positions
        call.length[:, 0] = self._spec.unknown_length if lengths is None else lengths
        call.run()
        self.intact = False
        for name, view in call.kept.items():
            self._rows[name][slots] = view
        self.intact = True
        return call.outputs

    def reset(self, slot: int) -> None:
        for rows in self._states.values():
            rows[slot] = 0

    def states(self, slot: int, position: int) -> dict[str, Array]:
        """Copies, as the portable model has them."""
        out = {name: rows[slot].copy() for name, rows in self._states.items()}
        counter = self._spec.position
        return out | ({counter: np.full((1, 1), position, np.int32)} if counter else {})

    def restore(self, slot: int, states: Mapping[str, Array], position: int) -> None:
        for name, rows in self._states.items():
            rows[slot] = states[name]

    def _call(self, steady: bool, count: int) -> _Call:
        """A model bound to the pool's memory, for a number of streams."""
        spec, runner = self._spec, self._on.steady if steady else self._on.runner
        assert runner is not None
        takes, gives = self._on.ports[runner].takes, self._on.ports[runner].gives
        binding = runner.io_binding()
        call = _Call(quick_call(runner, binding), binding, np.zeros((count, 1), np.int32))
        for name in self._rows:
            array = self._array(name, name, count)
            attach(call.binding.bind_input, name, array)
            call.taken[name] = parted(array, self._dims[name], count)
        for name in self._kept:
            array = self._array(spec.after(name), name, count)
            attach(call.binding.bind_output, spec.after(name), array)
            call.kept[name] = parted(array, self._dims[name], count)
        for output in (o for o in spec.outputs if o.name in gives):
            array = self._array(output.name, output.name, count)
            attach(call.binding.bind_output, output.name, array)
            call.outputs[output.name] = parted(array, self._dims[output.name], count)
        if spec.length is not None and spec.length in takes:
            attach(call.binding.bind_input, spec.length, call.length)
        position = spec.position or ""
        for port, bind in ((position, binding.bind_input), (spec.after(position), binding.bind_output)):
            if port in takes | gives:
                call.position.append(np.zeros((count, 1), np.int32))
                attach(bind, port, call.position[-1])
        return call

    def _array(self, memory: str, name: str, count: int) -> Array:
        """The first part of a port's memory, in the shape it has for so many streams."""
        dims = self._dims[name]
        if memory not in self._memory:
            self._memory[memory] = np.zeros(int(np.prod(concrete(dims, self._most))), self._types[name])
        shape = concrete(dims, count)
        return self._memory[memory][: int(np.prod(shape))].reshape(shape)


@dataclass(eq=False)
class _Call:
    """A binding, and its memory by stream."""

    run: Callable[[], None]
    binding: ort.IOBinding
    length: Array
    taken: dict[str, Array] = field(default_factory=dict)
    kept: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, Array] = field(default_factory=dict)
    position: list[Array] = field(default_factory=list)


def _take(rows: Array, slots: Array, into: Array) -> None:
    if into.flags.c_contiguous:
        np.take(rows, slots, axis=0, out=into, mode="clip")
    else:
        into[...] = rows[slots]


def _computed_apart(on: Executable) -> bool:
    """Streams at the same place, their end not in sight."""
    spec, program = on.spec, on.program
    if counts_streams(program.general):
        return False
    warm = program.since * spec.pulse if on.steady is not None else 0  # where all that is remembered matters
    begun, later = (same_place(at, spec.unknown_length) for at in (0, warm))
    steps = [(on.runner, [begun, later]), *([(on.steady, [later])] if on.steady is not None else [])]
    return all(kept_apart(partial(_outcome, r), spec, s, fewer=partial(_outcome, r)) for r, s in steps)


def _outcome(runner: ort.InferenceSession, feeds: dict[str, Array]) -> dict[str, Array]:
    takes = {i.name for i in (*runner.get_inputs(), *runner.get_overridable_initializers())}
    names = [o.name for o in runner.get_outputs()]
    return dict(zip(names, runner.run(None, {n: v for n, v in feeds.items() if n in takes}), strict=True))
