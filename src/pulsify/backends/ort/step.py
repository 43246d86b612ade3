"""One pulse in ONNX Runtime: every tensor has its place in memory once and for all, states swap sides.

pulse n      A -> model -> B
pulse n+1    B -> model -> A          rings are written in place: they have one side only
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.backends.ort.rings import RingStore
from pulsify.core.runner import quick_call
from pulsify.core.spec import Spec, concrete

if TYPE_CHECKING:
    import onnxruntime as ort

    from pulsify.backends.ort.aliased import Tail
    from pulsify.backends.ort.ring import Ring

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Form:
    """A model open in the runtime, the states that it keeps as rings, and its steady step, if it has one.

    steady: for pulses from number `since` on whose end is unknown; counts: that step advances the position too.
    """

    runner: ort.InferenceSession
    rings: tuple[Ring, ...] = ()
    steady: ort.InferenceSession | None = None
    since: int = 0
    counts: bool = True
    rows: frozenset[str] = frozenset()  # inputs, outputs and states that lie in memory as [frames, channels]
    tails: Mapping[str, Tail] = field(default_factory=dict)  # states that are the end of an output


class Step:
    """Bound buffers of one session: inputs to fill, outputs to read, two sides of every state."""

    def __init__(self, form: Form, spec: Spec, batch: int, statics: Mapping[str, Array]) -> None:
        self._form, self._spec = form, spec
        self.inputs = {i.name: self._place(i.name, concrete(i.dims, batch), i.dtype) for i in spec.inputs}
        self._statics = dict(statics)
        self._length = np.full((batch, 1), spec.unknown_length, np.int32)
        self.outputs = {o.name: self._place(o.name, concrete(o.dims, batch), o.dtype) for o in spec.outputs}
        types = {s.name: s.dtype for s in spec.states}
        self._rings = [RingStore(ring, types, batch) for ring in form.rings]
        in_rings = {c.state for ring in form.rings for c in ring.caches}
        fixed = [s for s in spec.states if not s.grows and s.name not in in_rings]
        self._growing = {s.name: np.zeros(concrete(s.shape, batch), s.dtype) for s in spec.states if s.grows}
        self._caches = dict(self._growing)
        self._sides = [
            {s.name: self._place(s.name, concrete(s.shape, batch), s.dtype) for s in fixed} for _ in range(2)
        ]
        self._bindings = {
            runner: [self._bind(runner, self._sides[i], self._sides[1 - i]) for i in range(2)]
            for runner in (form.runner, form.steady)
            if runner is not None
        }
        self._side = 0
        self._at = 0  # the position
        self._since: float = form.since * spec.pulse if form.steady is not None else math.inf
        self._pulse = spec.pulse
        self._calls = {r: [quick_call(r, b) for b in bindings] for r, bindings in self._bindings.items()}
        plain = form.steady is not None and not self._rings and not self._growing
        self._lean = self._calls[form.steady] if plain else None
        self._counted = True  # the position's state says so too

    def _place(self, name: str, dims: tuple[int, ...], dtype: Any) -> Array:
        """Memory for a port, seen as the portable model has it."""
        tail, rows = self._form.tails.get(name), name in self._form.rows
        memory = np.zeros(tail.shape if tail else (dims[2], dims[1]) if rows else dims, dtype)
        if tail is not None:
            frames = dims[2] if rows else dims[tail.axis]
            memory = memory[(slice(None),) * tail.axis + (slice(tail.shape[tail.axis] - frames, None),)]
        return memory.T[None] if rows else memory

    def _bind(
        self, runner: ort.InferenceSession, before: Mapping[str, Array], after: Mapping[str, Array]
    ) -> ort.IOBinding:
        binding = runner.io_binding()
        fed = {**self.inputs, **self._statics, **before}
        made = {**self.outputs}
        for n, a in after.items():
            if n in self._form.tails:
                made[self._form.tails[n].full] = np.asarray(a if a.base is None else a.base)
            else:
                made[f"new_{n}"] = a
        for ring in self._rings:
            fed |= ring.inputs | ring.arrays
            made |= {f"new_{n}": a for n, a in ring.arrays.items()}
        if self._spec.length:
            fed[self._spec.length] = self._length
        takes = {i.name for i in (*runner.get_inputs(), *runner.get_overridable_initializers())}
        gives = {o.name for o in runner.get_outputs()}
        rows = self._form.rows | {f"new_{n}" for n in self._form.rows}
        for name, array in fed.items():
            if name in takes:
                attach(binding.bind_input, name, array if name not in rows else array[0].T)
        for name, array in made.items():
            if name in gives:
                attach(binding.bind_output, name, array if name not in rows else array[0].T)
        return binding

    def run(self, length: int | None = None) -> Mapping[str, Array]:
        """One pulse. The arrays returned are overwritten by the next one."""
        if length is None and self._lean is not None and self._at >= self._since:
            self._lean[self._side]()
            self._counted = self._form.counts
            self._side = 1 - self._side
            self._at += self._pulse
            return self.outputs
        return self._run_any(length)

    def _run_any(self, length: int | None) -> Mapping[str, Array]:
        runner, side = self._form.runner, self._side
        if length is None and self._at >= self._since:
            assert self._form.steady is not None
            runner = self._form.steady
            self._counted = self._form.counts
        else:
            self._count()
            if self._spec.length:
                self._length[:] = self._spec.unknown_length if length is None else length
        for ring in self._rings:
            ring.aim()
        if self._caches:
            self._run_growing(runner, self._bindings[runner][side])
        else:
            self._calls[runner][side]()
        for ring in self._rings:
            ring.advance()
        self._side = 1 - self._side
        self._at += self._spec.pulse
        return self.outputs

    def _run_growing(self, runner: ort.InferenceSession, binding: ort.IOBinding) -> None:
        """Caches that are of another size at every pulse."""
        for name, array in self._caches.items():
            binding.bind_cpu_input(name, array)
            binding.bind_output(f"new_{name}", "cpu")
        runner.run_with_iobinding(binding)
        made = binding.get_outputs()[-len(self._caches) :]
        self._caches = {name: value.numpy() for name, value in zip(self._caches, made, strict=True)}

    def _count(self) -> None:
        """Bring the position's state up to date after steady pulses."""
        if not self._counted and self._spec.position is not None:
            self._sides[self._side][self._spec.position][...] = self._at
            self._counted = True

    def reset(self) -> None:
        self._side = self._at = 0
        self._counted = True
        self._caches = dict(self._growing)
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

    def restore(self, states: Mapping[str, Array], at: int) -> None:
        """at: how many frames have passed, as the position counts them."""
        self._at, self._counted = at, True
        self._length[:] = self._spec.unknown_length
        for name, array in self._sides[self._side].items():
            array[...] = states[name]
        self._caches = {name: np.ascontiguousarray(states[name]) for name in self._growing}
        for ring in self._rings:
            ring.restore(states)

    def set_back(self, by: int) -> None:
        """Counters are set back, all by the same."""
        self._at -= by
        if self._spec.position is not None and self._counted:
            self._sides[self._side][self._spec.position] -= np.int32(by)


def attach(bind: Callable[..., None], name: str, array: Array) -> None:
    """Bind a name to memory, once and for all."""
    bind(name, "cpu", 0, _type(array), array.shape, array.ctypes.data)


def _type(array: Array) -> Any:
    import onnx_ir as ir

    # ONNX Runtime takes numpy types it knows, and ONNX's number for the others (bfloat16, int4, ...).
    return array.dtype.type if array.dtype.kind in "fiub" else int(ir.DataType.from_numpy(array.dtype))
