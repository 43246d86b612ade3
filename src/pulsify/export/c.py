"""C11 with `math.h` and nothing else: a folder with the stream, its weights, an example, and vectors to check it by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from pulsify.backends.native.backend import BACKEND
from pulsify.backends.native.buffers import widest
from pulsify.backends.native.fuse import literal
from pulsify.backends.native.render import HEAD, Source, prelude, render
from pulsify.backends.native.source import Written, written
from pulsify.backends.native.views import NUMPY, width
from pulsify.backends.seam import Array, Opening
from pulsify.core.errors import InvalidArgument
from pulsify.core.spec import Spec
from pulsify.export import c_files, c_frames, portable
from pulsify.export.c_vectors import Vectors, vectors
from pulsify.export.registry import Target

RESERVED = {
    "auto", "break", "case", "char", "const", "default", "do", "double", "else", "enum", "example", "extern", "float",
    "for", "goto", "if", "int", "long", "main", "register", "return", "short", "signed", "static", "struct", "switch",
    "test", "union", "unsigned", "void", "while",
}  # fmt: skip


@dataclass(frozen=True)
class C:
    """weights: "source" (a C file) or "file" (one aligned binary, to be mapped or flashed). name: of it all.

    opening: what runs the first pulses.
    """

    weights: str = "source"
    name: str = ""
    opening: Opening | None = None

    def write(self, model: ir.Model, spec: Spec, path: Path) -> None:
        if self.weights not in ("source", "file"):
            raise InvalidArgument(f"weights={self.weights!r}: 'source' (a C file) or 'file' (a binary)")
        name = self.name or _plain(path.name)
        if not re.fullmatch(r"[A-Za-z]\w*", name) or name in RESERVED:
            raise InvalidArgument(f"name={name!r} is no name in C: take letters, digits and _")
        made = parts(model, spec, name, self.weights == "file", self.opening)
        files = {**code_files(made), **_beside(made, vectors(model, spec, made.since, self.opening))}
        with portable.folder(path, "C") as place:
            portable.put(place, files)


def parts(model: ir.Model, spec: Spec, name: str, apart: bool, opening: Opening | None = None) -> c_frames.Parts:
    """The stream as C; NotSupported if there is none for a node. apart: the weights are a file of their own."""
    program = BACKEND.lower(model, spec, 1)
    made = written(program, spec, opening)
    return c_frames.Parts(
        name, made, render(made), spec, apart, program.since, None if opening is None else opening.spec
    )


def code_files(p: c_frames.Parts) -> dict[str, str | bytes]:
    """The stream itself and its weights."""
    name, source, guard = p.name, p.source, f"{p.upper}_MATHS_H"
    files: dict[str, str | bytes] = {
        f"{name}.h": c_frames.header(p),
        f"{name}.c": _code(name, source, c_frames.functions(p)),
        f"{name}_maths.h": f"#ifndef {guard}\n#define {guard}\n{HEAD}\n{prelude()}\n#endif\n",
    }
    if p.apart:
        return {**files, f"{name}_weights.bin": source.image.tobytes()}
    return {**files, f"{name}_weights.c": _weights(name, source)}


def _beside(p: c_frames.Parts, found: Vectors) -> dict[str, str | bytes]:
    return {
        "CMakeLists.txt": c_files.cmake(p.name, p.apart),
        "example.c": c_files.example(p),
        "test.c": c_files.test(p, found),
        "test_vectors.bin": found.data,
        "README.md": c_files.readme(p, _work(p.made)),
    }


def _plain(text: str) -> str:
    found = re.sub(r"\W+", "_", Path(text).stem).strip("_").lower() or "stream"
    return f"stream_{found}" if found[0].isdigit() or found in RESERVED else found


def _code(name: str, source: Source, functions: str) -> str:
    parts = [f'#include "{name}.h"\n#include "{name}_maths.h"\n', source.kernels, *source.steps.values(), functions]
    return "\n".join(parts).replace("@NAME@", name)


def _weights(name: str, source: Source) -> str:
    lines = [f'#include "{name}.h"', "#include <math.h>", "", f"const {name}_weights {name}_data = {{"]
    for field in source.weights.fields:
        size = field.count * width(field.ctype)
        array = source.image[field.offset : field.offset + size].view(NUMPY[field.ctype])
        lines.append(f"    .{field.name} = {{")
        lines += ["        " + " ".join(f"{literal(x, field.ctype)}," for x in row) for row in _rows(array)]
        lines.append("    },")
    if not source.weights.fields:
        lines.append("    .none = {0},")
    return "\n".join([*lines, "};", ""])


def _rows(array: Array) -> list[Array]:
    return [array[i : i + 8] for i in range(0, array.size, 8)]


def _work(made: Written) -> int:
    """Bytes that are alive at once at the most, whatever the plan."""
    return max(widest(step.calls, {t: width(t) for t in NUMPY}) for step in made.steps)


TARGET: Target = C()
