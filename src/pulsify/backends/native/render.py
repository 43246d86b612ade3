"""Calls of kernels as C text: what stays, what is worked with and the weights are a struct each, arrays by type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import numpy as np

from pulsify.backends.native.scope import Kernel
from pulsify.backends.native.source import Step, Written, moves
from pulsify.backends.native.views import NUMPY, Buffer, View, width
from pulsify.backends.seam import Array

GRAIN = 8  # bytes: every array of a struct is as long as a multiple of this, so that nothing lies between them
HEAD = "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n"
SHORT = {t: f"{n[0]}{np.dtype(n).itemsize * 8}" for t, n in NUMPY.items()}  # f32, i64, u8


@cache
def prelude() -> str:
    """The functions that kernels call."""
    return files("pulsify.backends.native").joinpath("prelude.c").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Field:
    """An array of a struct, from byte `offset` on."""

    name: str
    ctype: str
    count: int
    offset: int


@dataclass(frozen=True)
class Struct:
    fields: tuple[Field, ...]
    size: int

    def at(self, name: str) -> Field:
        return next(f for f in self.fields if f.name == name)

    def text(self, name: str) -> str:
        inside = [f"    {f.ctype} {f.name}[{f.count}];" for f in self.fields] or ["    uint8_t none[8];"]
        return "\n".join([f"typedef struct {name} {{", *inside, f"}} {name};"])


def struct(arrays: Mapping[tuple[str, str], int]) -> Struct:
    """(name, type) -> elements, the widest type first."""
    fields, at = [], 0
    for ctype in NUMPY:
        for (name, kind), count in arrays.items():
            if kind == ctype and count:
                grain = GRAIN // width(ctype)
                room = -(-count // grain) * grain
                fields.append(Field(name, ctype, room, at))
                at += room * width(ctype)
    return Struct(tuple(fields), max(at, GRAIN))


@dataclass(frozen=True, eq=False)
class Source:
    """The text of a program, and what its structs look like. work: worth nothing from one step to the next."""

    kernels: str
    steps: Mapping[str, str]
    memory: Struct
    work: Struct
    weights: Struct
    image: Array  # the weights, as their struct has them
    arguments: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """All of it in one piece."""
        parts = [HEAD, prelude(), self.structs(name), self.kernels, *self.steps.values()]
        return "\n".join(parts).replace("@NAME@", name)

    def structs(self, name: str) -> str:
        known = {"memory": self.memory, "work": self.work, "weights": self.weights}
        return "".join(f"{each.text(f'{name}_{what}')}\n" for what, each in known.items())


def render(made: Written) -> Source:
    kept: dict[tuple[str, str], int] = {}
    worked: dict[tuple[str, str], int] = {}
    for port in made.ports.values():
        buffer = port.view().buffer
        key = f"state_{SHORT[port.ctype]}", port.ctype
        kept[key] = max(kept.get(key, 0), buffer.offset + max(buffer.size, 1))
    for moved in moves(made.ports):
        key = "state_i32", moved.ctype
        kept[key] = max(kept.get(key, 0), moved.offset + 1)
    for step in made.steps:
        for ctype, count in step.work.items():
            key = f"work_{SHORT[ctype]}", ctype
            worked[key] = max(worked.get(key, 0), count)
    weights = struct({(SHORT[t], t): n for t, n in made.weights.sizes.items()})
    image = np.zeros(weights.size, np.uint8)
    for f in weights.fields:
        part = made.weights.arena(f.ctype).view(np.uint8)
        image[f.offset : f.offset + part.size] = part
    names = _Names()
    first = made.steps[0]
    arguments = tuple(
        f"{'const ' if b.kind == 'in' else ''}{b.ctype} *{b.kind}_{i}"
        for many in (first.inputs, first.outputs)
        for i, b in enumerate(many)
    )
    steps = {step.name: _step(step, names, arguments) for step in made.steps}
    return Source("\n".join(names.texts), steps, struct(kept), struct(worked), weights, image, arguments)


@dataclass(eq=False)
class _Names:
    """Kernels by what they do: those that are the same are written once, whichever step calls them."""

    known: dict[tuple[tuple[str, ...], str], str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def name(self, kernel: Kernel) -> str:
        body = kernel.body
        for i, inner in enumerate(kernel.inner):
            body = body.replace(f"@{i}@", self.name(inner))
        key = kernel.params, body
        if key not in self.known:
            self.known[key] = f"{kernel.hint}_{len(self.known)}"
            self.texts.append(f"static void {self.known[key]}({', '.join(kernel.params)}) {{\n{body}\n}}\n")
        return self.known[key]


def _step(step: Step, names: _Names, arguments: Sequence[str]) -> str:
    places = {b: f"{b.kind}_{i}" for many in (step.inputs, step.outputs) for i, b in enumerate(many)}
    lines = [
        f"static void @NAME@_step_{step.name}(const @NAME@_weights *w, @NAME@_memory *s, @NAME@_work *t, "
        f"{', '.join(arguments)}) {{"
    ]
    lines += [f"    (void){name};" for name in ("w", "s", "t", *(a.rpartition("*")[2] for a in arguments))]
    for call in step.calls:
        if call.comment:
            lines.append(f"    /* {call.comment.replace('*/', '* /')} */")
        args = ", ".join(_place(v, places) for v in call.args)
        lines.append(f"    {names.name(call.kernel)}({args});")
    return "\n".join([*lines, "}\n"])


def _place(view: View, places: Mapping[Buffer, str]) -> str:
    buffer = view.buffer
    base = {
        "weight": f"w->{SHORT[buffer.ctype]}", "state": f"s->state_{SHORT[buffer.ctype]}",
        "work": f"t->work_{SHORT[buffer.ctype]}",
    }.get(buffer.kind) or places[buffer]  # fmt: skip
    at = view.offset + (0 if buffer.kind in ("in", "out") else buffer.offset)
    moved = "" if buffer.moved is None else f" + s->state_i32[{buffer.moved[0].offset}] * {buffer.moved[1]}"
    return f"{base}{moved}{f' + {at}' if at else ''}"
