"""One pulse in ONNX Runtime: every tensor has its place in memory once and for all, states swap sides.

pulse n      A -> model -> B
pulse n+1    B -> model -> A
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.export.metadata import Spec, concrete

if TYPE_CHECKING:
    import onnxruntime as ort

Array = np.ndarray[Any, Any]


class Step:
    """Bound buffers of one session: inputs to fill, outputs to read, two sides of every state."""

    def __init__(self, runner: ort.InferenceSession, spec: Spec, batch: int, statics: Mapping[str, Array]) -> None:
        self._runner, self._spec = runner, spec
        self.inputs = {i.name: np.zeros(concrete(i.dims, batch), i.dtype) for i in spec.inputs}
        self._statics = dict(statics)
        self._length = np.full((batch, 1), spec.unknown_length, np.int32)
        self.outputs = {o.name: np.zeros(concrete(o.dims, batch), o.dtype) for o in spec.outputs}
        fixed = [s for s in spec.states if not s.grows]
        self._growing = {s.name: np.zeros(concrete(s.shape, batch), s.dtype) for s in spec.states if s.grows}
        self._caches = dict(self._growing)
        self._sides = [{s.name: np.zeros(concrete(s.shape, batch), s.dtype) for s in fixed} for _ in range(2)]
        self._bindings = [self._bind(self._sides[i], self._sides[1 - i]) for i in range(2)]
        self._side = 0

    def _bind(self, before: Mapping[str, Array], after: Mapping[str, Array]) -> ort.IOBinding:
        binding = self._runner.io_binding()
        fed = {**self.inputs, **self._statics, **before}
        if self._spec.length:
            fed[self._spec.length] = self._length
        for name, array in fed.items():
            binding.bind_input(name, "cpu", 0, _type(array), array.shape, array.ctypes.data)
        for name, array in {**self.outputs, **{f"new_{n}": a for n, a in after.items()}}.items():
            binding.bind_output(name, "cpu", 0, _type(array), array.shape, array.ctypes.data)
        return binding

    def run(self, length: int | None = None) -> Mapping[str, Array]:
        """One pulse. The arrays returned are overwritten by the next one."""
        if self._spec.length:
            self._length[:] = self._spec.unknown_length if length is None else length
        binding = self._bindings[self._side]
        for name, array in self._caches.items():  # of another size at every pulse
            binding.bind_cpu_input(name, array)
            binding.bind_output(f"new_{name}", "cpu")
        self._runner.run_with_iobinding(binding)
        if self._caches:
            made = binding.get_outputs()[-len(self._caches) :]
            self._caches = {name: value.numpy() for name, value in zip(self._caches, made, strict=True)}
        self._side = 1 - self._side
        return self.outputs

    def reset(self) -> None:
        self._side = 0
        self._caches = dict(self._growing)
        for array in self._sides[0].values():
            array.fill(0)

    def states(self) -> dict[str, Array]:
        return {n: a.copy() for n, a in (self._sides[self._side] | self._caches).items()}

    def restore(self, states: Mapping[str, Array]) -> None:
        for name, array in self._sides[self._side].items():
            array[...] = states[name]
        self._caches = {name: np.ascontiguousarray(states[name]) for name in self._growing}

    def set_back(self, counter: str, by: int) -> None:
        self._sides[self._side][counter] -= np.int32(by)


def _type(array: Array) -> Any:
    import onnx_ir as ir

    # ONNX Runtime takes numpy types it knows, and ONNX's number for the others (bfloat16, int4, ...).
    return array.dtype.type if array.dtype.kind in "fiub" else int(ir.DataType.from_numpy(array.dtype))
