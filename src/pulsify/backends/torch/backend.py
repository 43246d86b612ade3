"""Torch: the step as generated source, on the CPU or a graphics card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from pulsify.backends.seam import (
    Array,
    Backend,
    LowersType,
    OnDevice,
    Options,
    Own,
    Placement,
    Placing,
    Settling,
    StepProgram,
    TakesOptions,
    TakesTensors,
    Wired,
    Wiring,
    Writing,
    plain,
)
from pulsify.backends.torch.attention import attention_by
from pulsify.backends.torch.compiling import compiled
from pulsify.backends.torch.graphs import Graphs, Recorder, as_it_is
from pulsify.backends.torch.mirror import shared
from pulsify.backends.torch.options import NAMES, Chosen, chosen
from pulsify.backends.torch.passes import Joined
from pulsify.backends.torch.placement import check_allowed, forced_parts, placements
from pulsify.backends.torch.recorded import RecordedStep
from pulsify.backends.torch.rings import Ring
from pulsify.backends.torch.slots import Slots, pooled
from pulsify.backends.torch.source import Function, Source, function, source
from pulsify.backends.torch.step import Step
from pulsify.backends.torch.tensors import Weights
from pulsify.backends.torch.trial import Trial
from pulsify.backends.torch.wires import look_into
from pulsify.core.spec import Spec
from pulsify.optimize.steady import steady_form

if TYPE_CHECKING:
    from pulsify.backends.seam import SlotStepper


@dataclass(frozen=True, eq=False)
class Form:
    """One step of a program for so many streams, ready to run. recorded: as a CUDA graph."""

    source: Source
    call: Function
    recorded: bool

    @property
    def rings(self) -> Mapping[str, Ring]:
        """Caches that it takes as rings, by state."""
        return {r.state: r for r in self.source.plan.rings}


@dataclass(frozen=True, eq=False)
class Forms:
    """All steps of a program for so many streams."""

    general: Form
    steady: Form | None
    placement: tuple[Placement, ...]


@dataclass(frozen=True, eq=False)
class Executable:
    """A program on a device. Source is written once for every number of streams; the weights are there once."""

    program: StepProgram
    spec: Spec
    options: Options
    chosen: Chosen
    weights: Weights
    trial: Trial
    _joined: Joined = field(default_factory=Joined)
    _steps: dict[tuple[str, int, int | None], Form] = field(default_factory=dict)
    _forms: dict[tuple[int, int | None], Forms] = field(default_factory=dict)

    def stepper(self, batch: int, statics: Mapping[str, Array]) -> TakesTensors:
        forms = self.forms(batch, batch if self._records else None)
        whole = all(form.recorded for form in (forms.general, forms.steady) if form is not None)
        return RecordedStep(self, batch, statics) if whole else Step(self, batch, statics)

    def slots(self, most: int) -> SlotStepper | None:
        return pooled(self, most)

    def as_written(self) -> Executable:
        """The same, never compiled: good enough to see what a step does, and there at once."""
        if self.chosen.mode != "compile":
            return self
        return replace(self, chosen=replace(self.chosen, mode="eager"), _steps={}, _forms={})

    def forms(self, batch: int, rows: int | None = None) -> Forms:
        """rows: caches of attention may be rings in the steady step, in memory for so many streams."""
        if (batch, rows) not in self._forms:
            made = {name: self.form(name, batch, rows if name == "steady" else None) for name in self._models}
            device = str(self.chosen.device)
            found = tuple(p for name, form in made.items() for p in placements(form.source.plan, name, device))
            check_allowed(found, self.chosen.allow_cpu)
            self._forms[batch, rows] = Forms(made["general"], made.get("steady"), found)
        return self._forms[batch, rows]

    def form(self, name: str, batch: int, rows: int | None = None) -> Form:
        """One of the steps, by its name."""
        key = name, batch, rows
        if key not in self._steps:
            self._steps[key] = self._form(name, self._source(name, batch, ringed=rows is not None), rows)
        return self._steps[key]

    def rings(self) -> Mapping[str, Ring]:
        """Caches of attention that a pool keeps as rings, by state; the step is looked at for two streams."""
        if "steady" not in self._models:
            return {}
        streams = 2 if self.spec.batch is not None else 1
        return {r.state: r for r in self._source("steady", streams, ringed=True).plan.rings}

    def release(self, batch: int) -> None:
        """The steps for so many streams go."""
        for key in [k for k in self._forms if k[0] == batch]:
            del self._forms[key]
        for step in [k for k in self._steps if k[1] == batch]:
            del self._steps[step]

    def texts(self, batch: int) -> dict[str, str]:
        return {name: self._source(name, batch).text for name in self._models}

    def wired(self, batch: int) -> dict[str, Wired]:
        device, found = str(self.chosen.device), dict[str, Wired]()
        for name in self._models:
            made = self._source(name, batch, wires=True)
            call = self._form(name, made).call
            found[name] = look_into(made, call, self.weights.device, tuple(placements(made.plan, name, device)))
        return found

    @property
    def _models(self) -> dict[str, ir.Model]:
        both = {"general": self.program.general, "steady": self.program.steady}
        return {name: model for name, model in both.items() if model is not None}

    def _source(self, name: str, batch: int, wires: bool = False, ringed: bool = False) -> Source:
        model, device, low = self._models[name], str(self.chosen.device), self.chosen.dtype
        streams = "one stream" if batch == 1 else f"{batch} streams"
        said = f"The {name} step of {streams}, {low or 'float32'} on {device}."
        force = forced_parts(self.chosen.force_cpu)
        joined = self._joined if self.options.fuse and not wires else None
        kind, fault = device.partition(":")[0], self.trial.fault
        by = attention_by(kind, low)
        return source(
            model, self.spec, batch, kind, low, force, said, fault, joined, self._is_compiled(name), wires, by,
            ringed and by == "triton",
        )  # fmt: skip

    def _is_compiled(self, name: str) -> bool:
        """The step that runs all the time; the one for both ends of a stream is not worth the wait."""
        return self.chosen.mode == "compile" and name == list(self._models)[-1]

    def _form(self, name: str, made: Source, rows: int | None = None) -> Form:
        step = function(made, self.weights, self.options.threads, self.options.fuse)
        grows = any(s.grows for s in self.spec.states)
        if self._is_compiled(name) and not grows:  # it would be compiled anew whenever a cache has grown
            step = compiled(step, made, self.weights.device, rows)
        ports = [i.dtype for i in self.spec.inputs] + [o.dtype for o in self.spec.outputs]
        there = not made.islands and not grows and shared(*ports)  # what is on the CPU cannot be recorded
        return Form(made, step, self._records and there)

    @property
    def _records(self) -> bool:
        return self.chosen.mode == "graph" or (self.chosen.mode == "compile" and self.weights.device.type == "cuda")

    def recorder(self) -> Recorder:
        """One a session or pool: what is recorded has memory of its own."""
        return Graphs() if self._records else as_it_is


@dataclass(frozen=True)
class Torch:
    """The back end `torch`."""

    options: tuple[str, ...] = NAMES

    def lower(self, model: ir.Model, spec: Spec, batch: int | None) -> StepProgram:
        own, warm = plain(model, spec), steady_form(model, spec)
        if warm is None:
            return own
        return StepProgram(model, warm.model, warm.since, warm.counts, own.places)

    def lower_type(self, own: Mapping[str, Own]) -> str | None:
        return chosen(own).dtype

    def compile(self, program: StepProgram, spec: Spec, options: Options) -> Executable:
        settled = chosen(options.own)
        weights = Weights(torch.device(settled.device))
        return Executable(program, spec, options, settled, weights, Trial(weights))


BACKEND: Backend = Torch()
# what is offered beyond the minimum, for mypy to check
_OFFERS: tuple[TakesOptions, LowersType, type[Writing], type[Wiring]] = (Torch(), Torch(), Executable, Executable)
_PLACING: tuple[type[Placing], ...] = (Step, RecordedStep, Slots)
_SLOTS: tuple[type[OnDevice], type[Settling]] = (Slots, Slots)
