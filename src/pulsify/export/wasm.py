"""A stream's C compiled for browsers: one WebAssembly module with its weights, which asks its host for nothing."""

from __future__ import annotations

import importlib.util
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from pulsify.core.errors import CompileFailed, InvalidArgument, NotSupported
from pulsify.core.progress import tell
from pulsify.core.spec import Spec, concrete
from pulsify.export.c import code_files, parts
from pulsify.export.c_frames import Parts, kind

FLAGS = ("-std=c11", "-O3", "-msimd128", "-fno-math-errno", "-fno-trapping-math", "-w", "-s")
CALLS = ("input", "output", "fixed", "given", "reset", "push", "flush", "step")  # what the module gives
LINKED = ("-mexec-model=reactor", *(f"-Wl,--export={name}" for name in CALLS), "-Wl,-z,stack-size=262144")
TIMEOUT = 600.0  # seconds
WITHOUT = "leave --native out: the page then runs the model with onnxruntime-web"


def module(model: ir.Model, spec: Spec) -> bytes:
    """The stream as WebAssembly, batch of one. Refused if there is no C for a node, or no compiler here."""
    tell("as C")
    try:
        made = parts(model, spec, "model", apart=False)
    except NotSupported as no:
        hint = f"{no.hint}; or {WITHOUT}" if no.hint else WITHOUT
        raise NotSupported(no.reason, node=no.node, op=no.op, target=no.target, hint=hint) from no
    words = compiler()  # what cannot be at all is said before what is missing here
    tell("compiling it to WebAssembly")
    with tempfile.TemporaryDirectory() as place:
        files = {**code_files(made), "module.c": _calls(made)}
        for name, text in files.items():
            Path(place, name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return _compiled(words, Path(place))


def compiler() -> tuple[str, ...]:
    """Zig's, which brings all that WebAssembly needs."""
    if importlib.util.find_spec("ziglang") is not None:
        return sys.executable, "-m", "ziglang", "cc"
    if found := shutil.which("zig"):
        return found, "cc"
    raise InvalidArgument(
        "a native page needs a compiler for WebAssembly: pip install 'pulsify[native]', which brings one (Zig's); "
        f"or {WITHOUT}"
    )


def _compiled(words: tuple[str, ...], place: Path) -> bytes:
    sources, made = sorted(place.glob("*.c")), place / "stream.wasm"
    command = [*words, "-target", "wasm32-wasi", *FLAGS, *LINKED, *map(str, sources), "-o", str(made)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise CompileFailed(f"{' '.join(words)} does not run: {error}; {WITHOUT}") from error
    if done.returncode or not made.exists():
        raise CompileFailed(f"{' '.join(words)} does not compile the step: {done.stderr.strip()[:2000]}; {WITHOUT}")
    return made.read_bytes()


def _calls(p: Parts) -> str:
    """One stream and room for what goes in and comes out, by numbers: JavaScript has no structs."""
    spec, up = p.spec, p.upper
    lines = [f'#include "{p.name}.h"', f"static {p.name}_state state;"]
    lines += [f"static {kind(x)} in_{i}[{p.room(x)}];" for i, x in enumerate(spec.inputs)]
    for i, o in enumerate(spec.outputs):
        room = f"{up}_FLUSH_{i} > {p.room(o)} ? {up}_FLUSH_{i} : {p.room(o)}"
        lines.append(f"static {kind(o)} out_{i}[{room}];")
    for i, s in enumerate(spec.statics):
        size = max(math.prod(concrete(s.dims, 1)), 1)
        lines.append(f"static {p.made.ports[s.name].ctype} static_{i}[{size}];")
    ins, statics = [f"in_{i}" for i in range(len(spec.inputs))], [f"static_{i}" for i in range(len(spec.statics))]
    outs, timed = [f"out_{i}" for i in range(len(spec.outputs))], [f"out_{i}" for i, _ in p.timed]
    for name, found in (("input", ins), ("output", outs), ("fixed", statics)):
        lines += [f"void *{name}(int i) {{", *_picked(found), "}"]
    lines += [
        "int given(int i) { return state.given[i]; }",
        f"void reset(void) {{ {p.name}_reset({', '.join(['&state', *statics])}); }}",
        f"int push(int n) {{ return {p.name}_push({', '.join(['&state', *ins, 'n', *timed])}); }}",
        f"int flush(void) {{ return {p.name}_flush({', '.join(['&state', *outs])}); }}",
        f"void step(int length) {{ {p.name}_step({', '.join(['&state', *ins, *outs, 'length'])}); }}",
    ]
    return "\n".join([*lines, ""])


def _picked(names: list[str]) -> Iterator[str]:
    yield from (f"    if (i == {i}) return {name};" for i, name in enumerate(names))
    yield "    return 0;"
