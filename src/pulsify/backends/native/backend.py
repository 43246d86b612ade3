"""The back end `native`: the step compiled for this machine, its memory one piece, a pulse one call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from pulsify.backends.counting import counts_streams
from pulsify.backends.native.library import compiler, library
from pulsify.backends.native.render import Source, render
from pulsify.backends.native.slots import Slots
from pulsify.backends.native.source import Written, written
from pulsify.backends.native.step import FIXED, Step, Steps, address, aligned
from pulsify.backends.native.views import FLOATING
from pulsify.backends.neighbours import combined
from pulsify.backends.seam import Array, Backend, Careful, Options, Settling, SlotStepper, StepProgram, Writing, plain
from pulsify.core.errors import NotSupported
from pulsify.core.runner import open_model, run_model
from pulsify.core.spec import Spec
from pulsify.optimize.steady import steady_form

NAME = "pulse"


@dataclass(frozen=True, eq=False, slots=True)
class Calls:
    """A step in the library, by the address of its pointers. run_if_finite: 0, and nothing done, if inputs are not.

    run_many: of several streams, whose pointers lie one behind the other.
    """

    run: Callable[[int], None]
    run_if_finite: Callable[[int], int]
    run_many: Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Executable:
    """A program as a library that is loaded. weights_at: where the weights lie, which all sessions share."""

    program: StepProgram
    spec: Spec
    made: Written
    source: Source
    loaded: ctypes.CDLL
    weights_at: int
    general: Calls
    steady: Calls | None
    _held: list[Array] = field(default_factory=list)

    def stepper(self, batch: int, statics: Mapping[str, Array]) -> Step | Steps:
        if batch == 1:
            return Step(self, statics)
        if self._combines:
            raise NotSupported(
                "the model combines the streams of a batch, and as C each is computed alone",
                hint="backend='ort' or 'torch', or one session for each stream",
            )
        return Steps(self, batch, statics)

    @cached_property
    def _combines(self) -> bool:
        """Does the batch model see how many streams there are, or what is beside one? Tried in ONNX Runtime."""
        if counts_streams(self.program.general):
            return True
        runner, warm = open_model(self.program.general), self.program.since * self.spec.pulse
        takes = {i.name for i in (*runner.get_inputs(), *runner.get_overridable_initializers())}

        def run(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
            return run_model(runner, {n: v for n, v in feeds.items() if n in takes})

        return combined(run, self.spec, [(at, self.spec.unknown_length) for at in dict.fromkeys((0, warm))])

    def slots(self, most: int) -> SlotStepper | None:
        return Slots(self, most)

    def texts(self, batch: int) -> dict[str, str]:
        return dict(self.source.steps)


@dataclass(frozen=True)
class Native:
    """The back end `native`."""

    def lower(self, model: ir.Model, spec: Spec, batch: int | None) -> StepProgram:
        own, warm = plain(model, spec), steady_form(model, spec)
        if warm is None:
            return own
        return StepProgram(model, warm.model, warm.since, warm.counts, own.places)

    def compile(self, program: StepProgram, spec: Spec, options: Options) -> Executable:
        compiler()
        made = written(program, spec)
        source = render(made)
        entries = [_finite(made), *(_entry(name, source) for name in source.steps)]
        loaded = library(source.text(NAME) + "\n".join(entries))
        weights = aligned(source.weights.size)
        weights[...] = source.image
        steps = {name: _calls(loaded, name) for name in source.steps}
        both = steps["general"], steps.get("steady")
        return Executable(program, spec, made, source, loaded, address(weights), *both, [weights])


def _entry(name: str, source: Source) -> str:
    """A step that takes all its pointers as one: calling it costs little. Another looks at its inputs first.

    The third is for many streams, each with pointers and memory of its own.
    """
    casts = [f"({a.rpartition('*')[0]}*)f[{FIXED + i}]" for i, a in enumerate(source.arguments)]
    first = f"(const {NAME}_weights *)f[0]", f"({NAME}_memory *)f[1]", f"({NAME}_work *)f[2]"
    args = ", ".join([*first, *casts])
    looks = f"if (!{NAME}_finite(f)) return 0; {NAME}_{name}(f); return 1;"
    return (
        f"void {NAME}_{name}(void **f) {{ {NAME}_step_{name}({args}); }}\n"
        f"int {NAME}_{name}_if_finite(void **f) {{ {looks} }}\n"
        f"void {NAME}_{name}_many(void **f, int64_t n) {{\n"
        f"    for (int64_t i = 0; i < n; i++) {NAME}_{name}(f + i * {FIXED + len(source.arguments)});\n}}\n"
    )


def _finite(made: Written) -> str:
    """Are all numbers of the inputs finite? What is not is no zero when taken from itself."""
    lines = [
        f"for (int i = 0; i < {b.size}; i++) {{ {b.ctype} x = (({b.ctype} *)f[{FIXED + k}])[i]; bad |= (x - x) != 0; }}"
        for k, b in enumerate(made.steps[0].inputs)
        if b.ctype in FLOATING
    ]
    return "\n".join(
        [f"static int {NAME}_finite(void **f) {{", "(void)f;", "int bad = 0;", *lines, "return !bad;", "}\n"]
    )


def _calls(loaded: ctypes.CDLL, name: str) -> Calls:
    run, careful = getattr(loaded, f"{NAME}_{name}"), getattr(loaded, f"{NAME}_{name}_if_finite")
    run.argtypes, run.restype = [ctypes.c_void_p], None
    careful.argtypes, careful.restype = [ctypes.c_void_p], ctypes.c_int
    many = getattr(loaded, f"{NAME}_{name}_many")
    many.argtypes, many.restype = [ctypes.c_void_p, ctypes.c_int64], None
    return Calls(run, careful, many)


BACKEND: Backend = Native()
# what is offered beyond the minimum, for mypy to check
_OFFERS: tuple[type[Writing], type[Careful], type[Settling]] = (Executable, Step, Slots)
