"""ONNX Runtime on the CPU: the passes that pay there, and its sessions, shared by all that run the same program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

import onnx_ir as ir
import onnxruntime  # noqa: F401  this back end is there if it is: asking for it says so at once

from pulsify.backends.ort.forms import Forms, forms, single, without_rings
from pulsify.backends.ort.slots import Engine
from pulsify.backends.ort.step import Layout, Step, layout
from pulsify.backends.seam import Array, Backend, Options, Settling, StepProgram
from pulsify.core.runner import open_model
from pulsify.core.spec import Spec

if TYPE_CHECKING:
    import onnxruntime as ort

    Opened = WeakValueDictionary[tuple[int, bool], ort.InferenceSession]

# Two programs may have a graph in common (the general step of one that has no rings is the file's): opened once.
_OPEN: WeakKeyDictionary[ir.Model, Opened] = WeakKeyDictionary()
# The form for one stream is made of the one for several. Kept without the model itself, which would never go then.
_FORMS: WeakKeyDictionary[ir.Model, tuple[ir.Model | None, Callable[[ir.Model], Forms]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Ports:
    """What a graph in the runtime takes and gives, by name."""

    takes: frozenset[str]
    gives: frozenset[str]


@dataclass(frozen=True, eq=False)
class Executable:
    """The two steps open in the runtime. Layouts are worked out once for every number of streams."""

    program: StepProgram
    spec: Spec
    runner: ort.InferenceSession
    steady: ort.InferenceSession | None
    ports: Mapping[ort.InferenceSession, Ports]
    _layouts: dict[int, Layout] = field(default_factory=dict)

    def stepper(self, batch: int, statics: Mapping[str, Array]) -> Step:
        if batch not in self._layouts:
            self._layouts[batch] = layout(self.program, self.spec, batch)
        return Step(self, self._layouts[batch], statics)

    def slots(self, most: int) -> Engine:
        return Engine(self, most)


@dataclass(frozen=True)
class Ort:
    """The back end `ort`."""

    def lower(self, model: ir.Model, spec: Spec, batch: int | None) -> StepProgram:
        if batch is None:  # streams at different places: no rings, which turn for all of them at once
            return without_rings(model, spec).program(spec)
        made = _in_step(model, spec)
        return (single(made, spec) if batch == 1 else made).program(spec)

    def compile(self, program: StepProgram, spec: Spec, options: Options) -> Executable:
        runner = _opened(program.general, options)
        steady = None if program.steady is None else _opened(program.steady, Options(options.threads, options.fuse))
        ports = {r: _ports(r) for r in (runner, steady) if r is not None}
        return Executable(program, spec, runner, steady, ports)


def profiled(program: StepProgram, spec: Spec, folder: str) -> Executable:
    """A program opened apart from all others, with the runtime's profiler: it writes to this folder."""
    runner = open_model(program.general, profile=f"{folder}/general")
    steady = None if program.steady is None else open_model(program.steady, profile=f"{folder}/steady")
    return Executable(program, spec, runner, steady, {r: _ports(r) for r in (runner, steady) if r is not None})


def _in_step(model: ir.Model, spec: Spec) -> Forms:
    if model not in _FORMS:
        made = forms(model, spec)
        kept = partial(Forms, rings=made.rings, steady=made.steady, since=made.since, counts=made.counts)
        _FORMS[model] = None if made.general is model else made.general, kept
    general, rest = _FORMS[model]
    return rest(general or model)


def _opened(model: ir.Model, options: Options) -> ort.InferenceSession:
    opened = _OPEN.setdefault(model, WeakValueDictionary())
    key = options.threads, options.fuse
    runner = opened.get(key)
    if runner is None:
        opened[key] = runner = open_model(options.path or model, options.threads, optimize=options.fuse)
    return runner


def _ports(runner: ort.InferenceSession) -> Ports:
    takes = (*runner.get_inputs(), *runner.get_overridable_initializers())
    return Ports(frozenset(i.name for i in takes), frozenset(o.name for o in runner.get_outputs()))


BACKEND: Backend = Ort()
# what is offered beyond the minimum, for mypy to check
_OFFERS: tuple[type[Settling]] = (Engine,)
