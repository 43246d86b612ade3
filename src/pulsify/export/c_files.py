"""The files that come with an export to C: how to build it, an example, a program that checks it, and what it costs."""

from __future__ import annotations

import math
from fractions import Fraction

from pulsify.backends.native.views import FLOATING
from pulsify.core.spec import concrete
from pulsify.export.c_frames import Parts, around, kind, late, moving, shown, signatures
from pulsify.export.c_vectors import Vectors

FLAGS = "-O3 -fno-math-errno -fno-trapping-math"  # nothing that changes a result


def cmake(name: str, apart: bool) -> str:
    sources = f"{name}.c" if apart else f"{name}.c {name}_weights.c"
    return f"""cmake_minimum_required(VERSION 3.13)
project({name} C)
set(CMAKE_C_STANDARD 11)
option({name.upper()}_NATIVE "for this machine alone" OFF)
add_library({name} STATIC {sources})
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
if(NOT MSVC)
  target_compile_options({name} PRIVATE {FLAGS})
  if({name.upper()}_NATIVE)
    target_compile_options({name} PRIVATE -march=native)
  endif()
  target_link_libraries({name} PUBLIC m)
endif()
add_executable({name}_example example.c)
target_link_libraries({name}_example {name})
add_executable({name}_test test.c)
target_link_libraries({name}_test {name})
enable_testing()
add_test(NAME vectors COMMAND {name}_test ${{CMAKE_CURRENT_SOURCE_DIR}})
"""


def _weights(p: Parts, folder: str) -> list[str]:
    """Reading the weights, where they are a file."""
    if not p.apart:
        return []
    return [
        f"static {p.name}_weights weights;", "static int read_weights(const char *folder) {", "    char path[1024];",
        f'    snprintf(path, sizeof path, "%s/{p.name}_weights.bin", folder);', '    FILE *f = fopen(path, "rb");',
        "    if (!f) return 0;", "    const size_t n = fread(&weights, sizeof weights, 1, f);", "    fclose(f);",
        "    return n == 1;", "}", "",
    ]  # fmt: skip


def _reset(p: Parts, statics: bool = True) -> str:
    words = ["&stream", *(["&weights"] if p.apart else [])]
    words += [f"static_{i}" for i in range(len(p.spec.statics))]
    return f"{p.name}_reset({', '.join(words)});"


def example(p: Parts) -> str:
    """Streams a raw file: frames of the first input one after the other, and so the first output's."""
    up, spec = p.upper, p.spec
    first = next((i for i, _ in p.timed), 0)
    lead_in, lead_out = around(spec.inputs[0])[0], around(spec.outputs[first])[0]
    plain = len(spec.inputs) == 1 and not spec.statics and lead_in == lead_out == 1 and p.timed
    lines = [
        f"/* {p.name}_example IN OUT{' FOLDER' if p.apart else ''}: streams a raw file ({kind(spec.inputs[0])}). */"
    ]
    lines += [
        "#include <stdio.h>",
        "#include <stdlib.h>",
        f'#include "{p.name}.h"',
        "",
        f"static {p.name}_state stream;",
    ]
    lines += _buffers(p) + _weights(p, ".")
    lines += ["int main(int argc, char **argv) {"]
    lines += [
        "    if (argc < 3) {",
        '        fprintf(stderr, "usage: %s IN OUT\\n", argv[0]);',
        "        return 2;",
        "    }",
    ]
    if p.apart:
        lines += ['    if (!read_weights(argc > 3 ? argv[3] : ".")) {', '        fprintf(stderr, "no weights\\n");']
        lines += ["        return 2;", "    }"]
    lines += [
        '    FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");',
        "    if (!in || !out) return 2;",
        f"    {_reset(p)}",
    ]
    size = math.prod(concrete(spec.inputs[0].dims, 1)) // spec.pulse
    more = [f"in_{i}" for i in range(1, len(spec.inputs))]
    timed = [f"out_{i}" for i, _ in p.timed]
    per = f"{up}_FRAME_{first}" if p.timed else "0"
    push = f"{p.name}_push(&stream, {', '.join(['in_0', *more, '(int)n', *timed])})"
    note = (
        "" if plain else "    /* an array of several axes is dense: all frames of the first channel, then the next */\n"
    )
    lines += [
        f"{note}    size_t n;", f"    while ((n = fread(in_0, sizeof(*in_0) * {size}, {up}_PULSE, in)) > 0) {{",
        f"        const int frames = {push};",
        '        if (frames < 0) return 1;',
        f"        fwrite(out_{first}, sizeof(*out_{first}) * {per}, (size_t)frames, out);", "    }",
        f"    const int frames = {p.name}_flush(&stream, {', '.join(f'out_{i}' for i in range(len(spec.outputs)))});",
        '    if (frames < 0) fprintf(stderr, "the model takes no stream of that length\\n");',
        f"    else fwrite(out_{first}, sizeof(*out_{first}) * {per}, (size_t)frames, out);",
        "    fclose(in);", "    return fclose(out) || frames < 0;", "}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _buffers(p: Parts) -> list[str]:
    lines = [f"static {kind(port)} in_{i}[{p.upper}_IN_{i}];" for i, port in enumerate(p.spec.inputs)]
    for i, o in enumerate(p.spec.outputs):
        lines.append(
            f"static {kind(o)} out_{i}[{p.upper}_OUT_{i} > {p.upper}_FLUSH_{i} ? "
            f"{p.upper}_OUT_{i} : {p.upper}_FLUSH_{i}];"
        )
    for i, x in enumerate(p.spec.statics):
        port = p.made.ports[x.name]
        lines.append(f"static {port.ctype} static_{i}[{max(math.prod(port.shape), 1)}];")
    return lines


def test(p: Parts, found: Vectors) -> str:
    """Streams every vector twice, pulse by pulse and in ragged pieces, and compares all of it."""
    spec, up = p.spec, p.upper
    lines = [
        "/* Checks test_vectors.bin: exit code 0 if every frame is right. */",
        "#include <math.h>",
        "#include <stdio.h>",
    ]
    lines += [
        "#include <stdlib.h>",
        "#include <string.h>",
        f'#include "{p.name}.h"',
        "",
        f"static {p.name}_state stream;",
    ]
    lines += _buffers(p) + _weights(p, ".")
    for i, port in enumerate(spec.inputs):
        lines.append(f"static {kind(port)} whole_in_{i}[{found.inputs[i]}];")
    for i, o in enumerate(spec.outputs):
        lines.append(f"static {kind(o)} want_{i}[{found.outputs[i]}], got_{i}[{found.outputs[i]}];")
    lines += [*MOVE, *_one_stream(p), *MAIN_HEAD]
    if p.apart:
        lines.append('    if (!read_weights(argc > 1 ? argv[1] : ".")) return 2;')
    lines += [
        "    for (int c = 0; c < cases; c++) {",
        "        int32_t length = 0;",
        "        if (!get(&length, 4, f)) return 2;",
    ]
    for i in range(len(spec.statics)):
        lines.append(f"        if (!get(static_{i}, sizeof static_{i}, f)) return 2;")
    for i, port in enumerate(spec.inputs):
        size, rate = math.prod(concrete(port.dims, 1)) // port.frames, Fraction(port.rate).numerator
        lines.append(f"        if (length < 0 || length > {found.inputs[i] // (size * rate)}) return 2;")
        lines.append(
            f"        if (!get(whole_in_{i}, sizeof(*whole_in_{i}) * {size * rate} * (size_t)length, f)) return 2;"
        )
    for i in range(len(spec.outputs)):
        lines.append(f"        int32_t size_{i} = 0;")
        lines.append(f"        if (!get(&size_{i}, 4, f) || size_{i} < 0 || size_{i} > {found.outputs[i]}) return 2;")
        lines.append(f"        if (!get(want_{i}, sizeof(*want_{i}) * (size_t)size_{i}, f)) return 2;")
    sizes = ", ".join(f"size_{i}" for i in range(len(spec.outputs)))
    lines += [
        "        for (int ragged = 0; ragged < 2; ragged++) {",
        f"            if (!streamed(length, ragged, {sizes})) {{",
    ]
    lines += [
        '                printf("length %d: not as many frames as there should be\\n", (int)length);',
        "                return 1;",
        "            }",
    ]
    for i, o in enumerate(spec.outputs):
        if kind(o) in FLOATING:
            lines += [
                "            {", "                double scale = 1.0, worst = 0.0;",
                f"                for (int k = 0; k < size_{i}; k++) scale = fmax(scale, fabs((double)want_{i}[k]));",
                f"                for (int k = 0; k < size_{i}; k++) {{",
                f"                    const double e = fabs((double)got_{i}[k] - (double)want_{i}[k]) / scale;",
                f"                    if (!(e <= worst) && !(isnan(got_{i}[k]) && isnan(want_{i}[k]))) worst = e;",
                "                }",
                f'                printf("length %d, output {i}: %d elements, error %.2g\\n", (int)length, '
                f"(int)size_{i}, worst);",
                "                if (!(worst <= 1e-5)) failed = 1;", "            }",
            ]  # fmt: skip
        else:
            lines.append(f"            failed |= memcmp(got_{i}, want_{i}, sizeof(*got_{i}) * (size_t)size_{i}) != 0;")
    lines += [
        "        }",
        "    }",
        "    fclose(f);",
        '    printf(failed ? "FAILED\\n" : "ok\\n");',
        "    return failed;",
        "}",
        "",
    ]
    return "\n".join(lines).replace("@UP@", up)


MOVE = [
    *moving("move"),
    "static int get(void *to, size_t size, FILE *f) { return size == 0 || fread(to, size, 1, f) == 1; }", "",
]  # fmt: skip
MAIN_HEAD = [
    "int main(int argc, char **argv) {", "    char path[1024];",
    '    snprintf(path, sizeof path, "%s/test_vectors.bin", argc > 1 ? argv[1] : ".");',
    '    FILE *f = fopen(path, "rb");', "    int32_t cases = 0;", "    int failed = 0;",
    "    if (!f || !get(&cases, 4, f) || cases < 1) {",
    '        printf("no vectors in %s\\n", path);', "        return 2;", "    }",
]  # fmt: skip


def _one_stream(p: Parts) -> list[str]:
    spec, up = p.spec, p.upper
    sizes = ", ".join(f"int size_{i}" for i in range(len(spec.outputs)))
    lines = [
        f"static int streamed(int length, int ragged, {sizes}) {{",
        f"    {_reset(p)}",
        "    int at = 0, turn = 0;",
    ]
    lines += [f"    int done_{i} = 0;" for i, _ in p.timed]
    lines += [
        "    while (at < length) {",
        f"        int n = ragged ? 1 + turn++ * 7 % {up}_PULSE : {up}_PULSE;",
        "        n = n < length - at ? n : length - at;",
    ]
    for i, port in enumerate(spec.inputs):
        lead, _, inner = around(port)
        r = Fraction(port.rate).numerator
        lines.append(
            f"        move(whole_in_{i}, length * {r}, at * {r}, in_{i}, n * {r}, 0, n * {r}, {lead}, "
            f"sizeof(*in_{i}) * {inner});"
        )
    ins, timed = [f"in_{i}" for i in range(len(spec.inputs))], [f"out_{i}" for i, _ in p.timed]
    lines.append(f"        if ({p.name}_push({', '.join(['&stream', *ins, 'n', *timed])}) < 0) return 0;")
    lines += ["        at += n;", *_collected(p, "        "), "    }"]
    every = [f"out_{i}" for i in range(len(spec.outputs))]
    lines.append(f"    if ({p.name}_flush({', '.join(['&stream', *every])}) < 0) return 0;")
    lines += _collected(p, "    ")
    for i, o in enumerate(spec.outputs):
        if o.axis is None:
            lines.append(f"    memcpy(got_{i}, out_{i}, sizeof(*got_{i}) * (size_t)size_{i});")
    tests = [f"done_{i} == size_{i} / {up}_FRAME_{i}" for i, _ in p.timed]
    return [*lines, f"    return {' && '.join(tests) or '1'};", "}", ""]


def _collected(p: Parts, indent: str) -> list[str]:
    lines = []
    for i, o in p.timed:
        lead, _, inner = around(o)
        total = f"size_{i} / {p.upper}_FRAME_{i}"
        lines.append(f"{indent}if (done_{i} + stream.given[{i}] > {total}) return 0;")
        lines.append(
            f"{indent}move(out_{i}, stream.given[{i}], 0, got_{i}, {total}, done_{i}, stream.given[{i}], {lead}, "
            f"sizeof(*out_{i}) * {inner});"
        )
        lines.append(f"{indent}done_{i} += stream.given[{i}];")
    return lines


def readme(p: Parts, live: int) -> str:
    spec, found = p.spec, signatures(p)
    states = sum(s.nbytes for s in spec.states)
    memory = p.source.memory.size + p.source.work.size
    ports = [f"- `in_{i}` {x.name}: {shown(x)}" for i, x in enumerate(spec.inputs)]
    ports += [
        f"- `out_{i}` {o.name}: {shown(o)}" + (f", {late(spec, o)}" if o.axis is not None else ", out of flush")
        for i, o in enumerate(spec.outputs)
    ]
    calls = "\n".join(f"    {text};" for text in found.values())
    how = (
        f"`{p.name}_weights.bin` (map it, flash it or read it; hand its address to reset)"
        if p.apart
        else f"`{p.name}_weights.c`"
    )
    return f"""# {p.name}

A streaming neural network in C11: `math.h` and nothing else, no allocation, no globals that are written, reentrant.
{spec.pulse} frames a step. Results are those of the batch model, from the first frame to the last.

{calls}

{chr(10).join(ports)}

| | bytes |
|---|---:|
| weights, {how} | {p.source.weights.size:,} |
| a stream (`{p.name}_state`): what stays and what it works with | {memory:,} |
| of that what is remembered | {states:,} |
| and alive at once at the most within a step | {live:,} |

    cmake -B build && cmake --build build && ctest --test-dir build      # checks test_vectors.bin
    build/{p.name}_example in.raw out.raw

By hand: `cc -std=c11 {FLAGS} {p.name}.c {"" if p.apart else f"{p.name}_weights.c "}example.c -lm`; with
`-march=native` it is quickest on the machine that compiles it. Frames are dense arrays, as said above; a push takes
up to {spec.pulse} of them and gives those that are ready (`s.given[i]` for every output), flush the rest.
Negative: an error, see `{p.name}.h`.
"""
