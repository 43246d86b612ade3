"""One pulse in ONNX Runtime: every tensor has its place in memory once and for all, states swap sides.

pulse n      A -> model -> B
pulse n+1    B -> model -> A          rings are written in place: they have one side only

All of it lies in one piece of memory, laid out once for every number of streams; what is bound is bound when first run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.backends.ort.rings import RingStore
from pulsify.backends.seam import Array, StepProgram
from pulsify.core.runner import quick_call
from pulsify.core.spec import Dims, Spec, concrete

if TYPE_CHECKING:
    import onnxruntime as ort

    from pulsify.backends.ort.backend import Executable

ALIGNED = 64  # bytes: a line of the processor's cache
Call = Callable[[], None]


@dataclass(frozen=True)
class Spot:
    """A port's part of the memory, from `offset` on; `made`: the output that is written there, and its shape.

    A tail is the end of what is written: it begins `skip` bytes later, with a shape of its own.
    """

    name: str
    made: str
    full: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kind: Any  # the type as the runtime takes it
    offset: int
    skip: int
    rows: bool

    def seen(self, memory: Array) -> Array:
        """As the portable model has it."""
        array: Array = np.ndarray(self.shape, self.dtype, memory.data, self.offset + self.skip)
        return array.T[None] if self.rows else array


@dataclass(frozen=True)
class Layout:
    """Where everything lies for a number of streams; `sides`: states that swap, before and after a pulse."""

    batch: int
    size: int
    inputs: tuple[Spot, ...]
    outputs: tuple[Spot, ...]
    sides: tuple[tuple[Spot, ...], tuple[Spot, ...]]
    length: Spot | None
    growing: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]


def layout(program: StepProgram, spec: Spec, batch: int) -> Layout:
    end = 0

    def spot(name: str, dims: Dims, dtype: np.dtype[Any], made: str) -> Spot:
        nonlocal end
        place, sizes = program.place(name), concrete(dims, batch)
        shape = (sizes[2], sizes[1]) if place.rows else sizes
        full, made = (shape, made) if place.tail is None else (place.tail.shape, place.tail.full)
        skip = (math.prod(full) - math.prod(shape)) * dtype.itemsize  # a tail is the end of its memory
        found = Spot(name, made, full, shape, dtype, _kind(dtype), end, skip, place.rows)
        end += -(-max(math.prod(full) * dtype.itemsize, 1) // ALIGNED) * ALIGNED
        return found

    fixed = [s for s in spec.states if not s.grows and program.place(s.name).ring is None]
    counter = np.dtype(np.int32)
    one, other = (tuple(spot(s.name, s.shape, s.dtype, s.after) for s in fixed) for _ in range(2))
    inputs = tuple(spot(i.name, i.dims, i.dtype, "") for i in spec.inputs)
    outputs = tuple(spot(o.name, o.dims, o.dtype, o.name) for o in spec.outputs)
    length = spot(spec.length, (batch, 1), counter, "") if spec.length else None
    growing = tuple((s.name, concrete(s.shape, batch), s.dtype) for s in spec.states if s.grows)
    return Layout(batch, end, inputs, outputs, (one, other), length, growing)


class Step:
    """Bound buffers of one session: inputs to fill, outputs to read, two sides of every state."""

    __slots__ = (
        "_address", "_at", "_batch", "_bindings", "_caches", "_calls", "_counted", "_counts", "_growing", "_layout",
        "_lean", "_length", "_memory", "_on", "_pulse", "_rings", "_side", "_sides", "_since", "_statics", "inputs",
        "outputs",
    )  # fmt: skip

    def __init__(self, on: Executable, places: Layout, statics: Mapping[str, Array]) -> None:
        spec, batch = on.spec, places.batch
        self._on, self._layout, self._statics, self._batch = on, places, dict(statics), batch
        whole = np.zeros(places.size + ALIGNED, np.uint8)
        start = -_address(whole) % ALIGNED
        self._memory = whole[start : start + places.size]
        self._address = _address(self._memory)
        self.inputs = {s.name: s.seen(self._memory) for s in places.inputs}
        self.outputs = {s.name: s.seen(self._memory) for s in places.outputs}
        self._sides = [{s.name: s.seen(self._memory) for s in side} for side in places.sides]
        self._length = None if places.length is None else places.length.seen(self._memory)
        rings = on.program.rings
        types = {s.name: s.dtype for s in spec.states} if rings else {}
        self._rings = [RingStore(ring, types, batch) for ring in rings]
        self._growing = {name: np.zeros(shape, dtype) for name, shape, dtype in places.growing}
        self._caches = dict(self._growing)
        self._side = 0
        self._at = 0  # the position
        self._since: float = on.program.since * spec.pulse if on.steady is not None else math.inf
        if on.steady is None and not spec.length and not spec.position:
            self._since = 0  # one step for all there is
        self._pulse = spec.pulse
        self._calls: dict[ort.InferenceSession, list[Call | None]] = {r: [None, None] for r in on.ports}
        self._bindings: dict[ort.InferenceSession, list[ort.IOBinding | None]] = {r: [None, None] for r in on.ports}
        simple = self._since < math.inf and not self._rings and not self._growing
        self._lean = self._calls[on.steady or on.runner] if simple else None
        self._counts = on.program.counts
        self._counted = True  # the position's state says so too
        self._unknown_length()

    def _unknown_length(self) -> None:
        """A steady step may still read it."""
        if self._length is not None:
            self._length.fill(self._on.spec.unknown_length)

    def _bound(self, runner: ort.InferenceSession, side: int) -> Call:
        """The call of a step on a side, bound on its first use: most of what opening a session would cost."""
        binding = runner.io_binding()
        ports, places, rings = self._on.ports[runner], self._layout, self._rings
        for s in (*places.inputs, *places.sides[side], *([places.length] if places.length else [])):
            if s.name in ports.takes:
                binding.bind_input(s.name, "cpu", 0, s.kind, s.shape, self._address + s.offset + s.skip)
        for s in (*places.outputs, *places.sides[1 - side]):
            if s.made in ports.gives:
                binding.bind_output(s.made, "cpu", 0, s.kind, s.full, self._address + s.offset)
        fed = dict(self._statics)
        for ring in rings:
            fed |= ring.inputs | ring.arrays
        for name, array in fed.items():
            if name in ports.takes:
                attach(binding.bind_input, name, array)
        for ring in rings:
            for name, array in ring.arrays.items():
                attach(binding.bind_output, f"new_{name}", array)
        call = quick_call(runner, binding)
        self._calls[runner][side], self._bindings[runner][side] = call, binding
        return call

    def run(self, length: int | None = None) -> Mapping[str, Array]:
        """One pulse. The arrays returned are overwritten by the next one."""
        side = self._side
        if length is None and self._lean is not None and self._at >= self._since:
            call = self._lean[side]
            if call is None:
                call = self._first_lean(side)
            call()
            self._counted = self._counts
            self._side = 1 - side
            self._at += self._pulse
            return self.outputs
        return self._run(length, side)

    def _first_lean(self, side: int) -> Call:
        """Bind it. A general step beside a steady one is wanted again at the end only: its bindings go."""
        on = self._on
        if on.steady is not None:
            self._calls[on.runner], self._bindings[on.runner] = [None, None], [None, None]
        return self._bound(on.steady or on.runner, side)

    def _run(self, length: int | None, side: int) -> Mapping[str, Array]:
        spec, on = self._on.spec, self._on
        if length is None and on.steady is not None and self._at >= self._since:
            runner = on.steady
            counted = self._counts
        else:
            runner, counted = on.runner, True
            self._count()
            if self._length is not None:
                self._length[:] = spec.unknown_length if length is None else length
        for ring in self._rings:
            ring.aim()
        call = self._calls[runner][side] or self._bound(runner, side)
        if self._caches:
            self._run_growing(runner, side)
        else:
            call()
        for ring in self._rings:
            ring.advance()
        self._counted = counted
        self._side = 1 - side
        self._at += self._pulse
        return self.outputs

    def _run_growing(self, runner: ort.InferenceSession, side: int) -> None:
        """Caches that are of another size at every pulse."""
        binding = self._bindings[runner][side]
        assert binding is not None
        for name, array in self._caches.items():
            binding.bind_cpu_input(name, array)
            binding.bind_output(self._on.spec.after(name), "cpu")
        runner.run_with_iobinding(binding)
        made = binding.get_outputs()[-len(self._caches) :]
        self._caches = {name: value.numpy() for name, value in zip(self._caches, made, strict=True)}

    def _count(self) -> None:
        """Bring the position's state up to date after steady pulses."""
        position = self._on.spec.position
        if not self._counted and position is not None:
            self._sides[self._side][position][...] = self._at
            self._counted = True

    def reset(self) -> None:
        self._side = self._at = 0
        self._counted = True
        self._caches = dict(self._growing)
        self._unknown_length()
        for array in self._sides[0].values():
            array.fill(0)
        for ring in self._rings:
            ring.reset()

    def states(self) -> dict[str, Array]:
        """Copies, as the portable model has them, whatever form is running."""
        self._count()
        out = {n: a.copy() for n, a in (self._sides[self._side] | self._caches).items()}
        for ring in self._rings:
            out |= ring.states()
        return out

    def restore(self, states: Mapping[str, Array], position: int) -> None:
        self._at, self._counted = position, True
        self._unknown_length()
        for name, array in self._sides[self._side].items():
            array[...] = states[name]
        self._caches = {name: np.ascontiguousarray(states[name]) for name in self._growing}
        for ring in self._rings:
            ring.restore(states)

    def rebase(self, by: int) -> None:
        self._at -= by
        position = self._on.spec.position
        if position is not None and self._counted:
            self._sides[self._side][position] -= np.int32(by)


def attach(bind: Callable[..., None], name: str, array: Array) -> None:
    """Bind a name to memory, once and for all."""
    bind(name, "cpu", 0, _kind(array.dtype), array.shape, _address(array))


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _kind(dtype: np.dtype[Any]) -> Any:
    """ONNX Runtime takes numpy types it knows, and ONNX's number for the others (bfloat16, int4, ...)."""
    import onnx_ir as ir

    return dtype.type if dtype.kind in "fiub" else int(ir.DataType.from_numpy(dtype))
