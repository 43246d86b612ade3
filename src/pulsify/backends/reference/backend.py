"""onnx's own reference evaluator: slow, exact, and a third opinion. Nothing here but what the seam asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from pulsify.backends.reference.evaluator import evaluator
from pulsify.backends.seam import Array, Backend, Options, SlotStepper, StepProgram, plain
from pulsify.core.spec import Spec, concrete


class Step:
    """States are a dictionary that every pulse replaces."""

    def __init__(self, on: Executable, batch: int, statics: Mapping[str, Array]) -> None:
        self._on, self._batch, self._statics = on, batch, dict(statics)
        self.inputs = {i.name: np.zeros(concrete(i.dims, batch), i.dtype) for i in on.spec.inputs}
        self.outputs = {o.name: np.zeros(concrete(o.dims, batch), o.dtype) for o in on.spec.outputs}
        self._states: dict[str, Array] = {}
        self.reset()

    def run(self, length: int | None = None) -> Mapping[str, Array]:
        spec = self._on.spec
        feeds = {**self.inputs, **self._statics, **self._states}
        if spec.length:
            known = spec.unknown_length if length is None else length
            feeds[spec.length] = np.full((self._batch, 1), known, np.int32)
        made = dict(zip(self._on.gives, self._on.graph.run(None, feeds), strict=True))
        for name, array in self.outputs.items():
            array[...] = made[name]
        self._states = {s.name: np.asarray(made[s.after], s.dtype) for s in spec.states}
        return self.outputs

    def reset(self) -> None:
        self._states = {s.name: np.zeros(concrete(s.shape, self._batch), s.dtype) for s in self._on.spec.states}

    def states(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self._states.items()}

    def restore(self, states: Mapping[str, Array], position: int) -> None:
        self._states = {s.name: np.array(states[s.name]) for s in self._on.spec.states}

    def rebase(self, by: int) -> None:
        if (position := self._on.spec.position) is not None:
            self._states[position] = self._states[position] - np.int32(by)


@dataclass(frozen=True, eq=False)
class Executable:
    spec: Spec
    graph: ReferenceEvaluator
    gives: tuple[str, ...]

    def stepper(self, batch: int, statics: Mapping[str, Array]) -> Step:
        return Step(self, batch, statics)

    def slots(self, most: int) -> SlotStepper | None:
        return None


@dataclass(frozen=True)
class Reference:
    def lower(self, model: ir.Model, spec: Spec, batch: int | None) -> StepProgram:
        return plain(model, spec)

    def compile(self, program: StepProgram, spec: Spec, options: Options) -> Executable:
        model = ir.external_data.load_to_model(program.general.clone())
        return Executable(spec, evaluator(model), tuple(str(v.name) for v in model.graph.outputs))


BACKEND: Backend = Reference()
