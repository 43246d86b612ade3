"""Pulses of one stream as C, or of several in step: memory that is laid out once, and a function for each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.backends.native.render import SHORT, Source
from pulsify.backends.native.scope import Port
from pulsify.backends.native.views import NUMPY, width
from pulsify.backends.seam import Array, joined, parted
from pulsify.core.spec import concrete

if TYPE_CHECKING:
    from pulsify.backends.native.backend import Executable

ALIGNED = 64
FIXED = 3  # pointers before those of the ports: weights, what stays, what is worked with


def aligned(size: int) -> Array:
    """Zeros that begin where a line of the processor's cache does."""
    whole = np.zeros(size + ALIGNED, np.uint8)
    start = -address(whole) % ALIGNED
    return whole[start : start + size]


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


class Step:
    """Pulses of one stream: memory laid out once, a C function for each step.

    room: what stays (zeros) and what is worked with, where they are somebody else's.
    """

    def __init__(self, on: Executable, statics: Mapping[str, Array], room: tuple[Array, Array] | None = None) -> None:
        spec = on.spec
        self._on, self._pulse = on, spec.pulse
        self._memory, self._work = room or (aligned(on.source.memory.size), aligned(on.source.work.size))
        self.inputs = {i.name: _port(concrete(i.dims, 1), i.dtype) for i in spec.inputs}
        self.outputs = {o.name: _port(concrete(o.dims, 1), o.dtype) for o in spec.outputs}
        self._kept = {name: seen(self._memory, on.source, port) for name, port in on.made.ports.items()}
        self._moved = {
            port.name: seen(self._memory, on.source, replace(port, shape=(1,), ctype="int32_t", order=(0,), axis=None,
                                                              buffer=port.buffer.moved[0]))
            for port in on.made.ports.values() if port.buffer is not None and port.buffer.moved
        }  # fmt: skip
        frame = [on.weights_at, address(self._memory), address(self._work)]
        frame += [address(a) for a in (*self.inputs.values(), *self.outputs.values())]
        self._frame = np.array(frame, np.uintp)
        self._at_frame = address(self._frame)
        self._general, self._steady = on.general, on.steady or on.general  # the second from `_since` on
        self._careful = self._steady.run_if_finite
        self._counts = on.program.counts
        self._since: float = on.program.since * spec.pulse if on.steady is not None else math.inf
        self._length = self._kept.get(spec.length) if spec.length else None
        self._statics = dict(statics)
        self._at = 0
        self._counted = True
        self._start()

    def _start(self) -> None:
        for name, array in self._statics.items():
            self._kept[name][...] = array
        self._unknown_length()

    def _unknown_length(self) -> None:
        if self._length is not None:
            self._length[...] = self._on.spec.unknown_length

    def run(self, length: int | None = None) -> Mapping[str, Array]:
        if length is None and self._at >= self._since:
            self._steady.run(self._at_frame)
            self._counted = self._counts
        else:
            self._count()
            if self._length is not None and length is not None:
                self._length[...] = length
            self._general.run(self._at_frame)
            if self._length is not None and length is not None:
                self._length[...] = self._on.spec.unknown_length
        self._at += self._pulse
        return self.outputs

    def run_if_finite(self) -> bool:
        """A pulse, both ends out of sight, unless a number in the inputs is not finite: False, and nothing happens."""
        if self._at >= self._since:
            if not self._careful(self._at_frame):
                return False
            self._counted = self._counts
        else:
            if not self._counted:
                self._count()
            if not self._general.run_if_finite(self._at_frame):
                return False
        self._at += self._pulse
        return True

    def _count(self) -> None:
        """Bring the position's state up to date after steady pulses, which may not count."""
        position = self._on.spec.position
        if not self._counted and position is not None:
            self._kept[position][...] = self._at
        self._counted = True

    def reset(self) -> None:
        self._memory.fill(0)
        self._at, self._counted = 0, True
        self._start()

    def _settle(self) -> None:
        """States that have moved on go back to where they are seen."""
        for name, moved in self._moved.items():
            far, front = int(moved[0]), self._kept[name]
            if far:
                front[...] = seen(self._memory, self._on.source, self._on.made.ports[name], far).copy()
                moved[0] = 0

    def states(self) -> dict[str, Array]:
        self._count()
        self._settle()
        return {s.name: np.array(self._kept[s.name], s.dtype, order="C") for s in self._on.spec.states}

    def restore(self, states: Mapping[str, Array], position: int) -> None:
        self._at, self._counted = position, True
        self._settle()
        for s in self._on.spec.states:
            self._kept[s.name][...] = states[s.name]
        self._start()

    def rebase(self, by: int) -> None:
        self._count()
        self._at -= by
        if (position := self._on.spec.position) is not None:
            self._kept[position] -= np.int32(by)


def _port(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = math.prod(shape) * dtype.itemsize
    return np.ndarray(shape, dtype, aligned(max(size, 1)).data)


def seen(memory: Array, source: Source, port: Port, moved: int = 0) -> Array:
    """What stays, as the portable file has it. moved: by how many frames it has."""
    view, field_ = port.view(), source.memory.at(f"state_{SHORT[port.ctype]}")
    item, far = width(port.ctype), moved * view.buffer.moved[1] if view.buffer.moved else 0
    at = field_.offset + (view.offset + view.buffer.offset + far) * item
    dtype = np.dtype(NUMPY[port.ctype])
    return np.ndarray(view.shape, dtype, memory.data, at, tuple(s * item for s in view.strides))


class Steps:
    """Several streams in step: each has its own memory and they take turns."""

    def __init__(self, on: Executable, batch: int, statics: Mapping[str, Array]) -> None:
        spec = on.spec
        self._spec, self._batch = spec, batch
        dims = {s.name: s.dims for s in spec.statics}
        each = {n: parted(np.asarray(a), dims[n], batch) for n, a in statics.items()}
        self._each = [Step(on, {n: np.array(a[b]) for n, a in each.items()}) for b in range(batch)]
        self.inputs = {i.name: np.zeros(concrete(i.dims, batch), i.dtype) for i in spec.inputs}
        self.outputs = {o.name: np.zeros(concrete(o.dims, batch), o.dtype) for o in spec.outputs}

    def run(self, length: int | None = None) -> Mapping[str, Array]:
        fed = {i.name: parted(self.inputs[i.name], i.dims, self._batch) for i in self._spec.inputs}
        made: dict[str, list[Array]] = {o.name: [] for o in self._spec.outputs}
        for b, step in enumerate(self._each):
            for name, array in step.inputs.items():
                array[...] = fed[name][b]
            for name, array in step.run(length).items():
                made[name].append(array)
        for o in self._spec.outputs:
            self.outputs[o.name][...] = joined(np.stack(made[o.name]), o.dims, self._batch)
        return self.outputs

    def reset(self) -> None:
        for step in self._each:
            step.reset()

    def states(self) -> dict[str, Array]:
        each = [step.states() for step in self._each]
        return {s.name: joined(np.stack([e[s.name] for e in each]), s.shape, self._batch) for s in self._spec.states}

    def restore(self, states: Mapping[str, Array], position: int) -> None:
        rows = {s.name: parted(np.asarray(states[s.name]), s.shape, self._batch) for s in self._spec.states}
        for b, step in enumerate(self._each):
            step.restore({name: array[b] for name, array in rows.items()}, position)

    def rebase(self, by: int) -> None:
        for step in self._each:
            step.rebase(by)
