"""What stands around the step in C: frames in, frames out, delays cut off, and the end exact."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import onnx_ir as ir

from pulsify.backends.native.render import SHORT, Source
from pulsify.backends.native.source import Written
from pulsify.backends.native.views import C_TYPES
from pulsify.core.count import expression
from pulsify.core.framing import computed, filler_is_zero
from pulsify.core.spec import Input, Output, Spec, concrete
from pulsify.export import portable
from pulsify.export.formulas import c_function, c_rules

LOOKED_AT = 1 << 16  # lengths that are tried to see how many frames a flush gives at the most


@dataclass(frozen=True, eq=False)
class Parts:
    """An export. apart: the weights are a file of their own, handed over at reset. first: the opening's, if any."""

    name: str
    made: Written
    source: Source
    spec: Spec
    apart: bool
    since: int = 0  # the pulse from which on the steady step holds
    first: Spec | None = None

    @property
    def upper(self) -> str:
        return self.name.upper()

    @property
    def timed(self) -> list[tuple[int, Output]]:
        return [(i, o) for i, o in enumerate(self.spec.outputs) if o.axis is not None]

    @property
    def need(self) -> str:
        """Frames that the next step takes."""
        return f"s->pulses > 0 ? {self.upper}_PULSE : {self.upper}_FIRST" if self.first else f"{self.upper}_PULSE"

    def has(self, o: Output) -> str:
        """Frames that the next step makes."""
        return f"s->pulses > 0 ? {o.frames} : {o.frames * self.spec.opening}" if self.first else str(o.frames)

    def room(self, port: Input | Output) -> int:
        """Elements that any step takes or makes at the most."""
        many = self.spec.opening if port.axis is not None else 0
        return max(math.prod(concrete(port.dims, 1)) * max(many, 1), 1)

    def call(self, words: list[str]) -> str:
        """The next step."""
        args = ", ".join(words)
        step = f"{self.name}_step({args});"
        return f"if (s->pulses > 0) {step} else {self.name}_opening({args});" if self.first else step

    def place(self, port: str) -> str:
        """Where what stays lies."""
        view = self.made.ports[port].view()
        return f"s->memory.state_{SHORT[view.ctype]}[{view.buffer.offset}]"


def kind(port: Input | Output) -> str:
    return C_TYPES[ir.DataType.from_numpy(port.dtype)]


def around(port: Input | Output) -> tuple[int, int, int]:
    """What lies in front of time, frames a pulse, and elements of a frame behind it."""
    shape, axis = concrete(port.dims, 1), port.axis
    if axis is None:
        return 1, 1, math.prod(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def most_frames(spec: Spec, o: Output) -> int:
    """Frames that a flush gives at the most."""
    pulse, out, best = spec.pulse, o.framing, o.delay + o.frames
    period = math.lcm(o.length.period, pulse)
    far = o.length.settled + 2 * period + pulse * (2 + spec.opening + -(-o.delay // max(o.frames, 1)))
    for total in range(1, min(far, LOOKED_AT) + 1):
        done = computed((total + spec.phase) // pulse, spec.opening or 1)
        best = max(best, o.length.at(total) - out.given(done))
    return best


# ---- the header


def header(p: Parts) -> str:
    spec, up = p.spec, p.upper
    lines = [f"/* {p.name}: a stream, made by pulsify from {spec.source or 'a model'}. Batch of one. */"]
    lines += [f"#ifndef {up}_H", f"#define {up}_H", "#include <stdint.h>", "#include <stddef.h>"]
    lines += ["#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    lines += [f"#define {up}_PULSE {spec.pulse} /* frames a step takes */"]
    if p.first:
        lines.append(f"#define {up}_FIRST {p.first.pulse} /* frames the first step takes, the opening */")
    if spec.phase:
        lines.append(f"#define {up}_PHASE {spec.phase} /* of those that the first step takes, none of the stream's */")
    lines += [f"#define {up}_INPUTS {len(spec.inputs)}", f"#define {up}_OUTPUTS {len(spec.outputs)}"]
    for i, port in enumerate(spec.inputs):
        lines.append(f"/* input {i}, {port.name}: {shown(port)}, {port.rate} frames a unit of time */")
        lines.append(f"#define {up}_IN_{i} {math.prod(concrete(port.dims, 1))} /* elements a pulse */")
    for i, o in enumerate(spec.outputs):
        if o.axis is None:
            lines.append(f"/* output {i}, {o.name}: {shown(o)}, comes out of flush */")
            lines.append(f"#define {up}_OUT_{i} {math.prod(concrete(o.dims, 1))} /* elements */")
            lines.append(f"#define {up}_FLUSH_{i} {math.prod(concrete(o.dims, 1))}")
            continue
        lead, frames, inner = around(o)
        lines.append(f"/* output {i}, {o.name}: {shown(o)}, {late(spec, o)} */")
        lines.append(f"#define {up}_FRAME_{i} {lead * inner} /* elements of a frame */")
        most = max(frames, frames * spec.opening - o.delay)
        lines.append(f"#define {up}_OUT_{i} {lead * most * inner} /* elements that a push gives at the most */")
        lines.append(f"#define {up}_FLUSH_{i} {max(most_frames(spec, o), 1) * lead * inner} /* and a flush */")
    lines += ["", *errors(p), "", p.source.structs(p.name), *_state(p), "", *declarations(p), ""]
    lines += ["#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(lines)


def shown(port: Input | Output) -> str:
    dims = ["frames" if i == port.axis else str(d) for i, d in enumerate(concrete(port.dims, 1))]
    return f"{kind(port)} [{', '.join(dims)}]"


def late(spec: Spec, o: Output) -> str:
    """By how many frames it is late, in words."""
    frames = spec.lateness(o)
    first = f", the first one after {spec.start_up} frames of start-up" if o.start_up else ""
    return f"{frames if frames.denominator == 1 else round(float(frames), 3)} frames late{first}"


def errors(p: Parts) -> list[str]:
    return [
        f"#define {p.upper}_WRONG (-1) /* more frames than a pulse, or the stream has ended */",
        f"#define {p.upper}_LENGTH (-2) /* a length that the model does not take; nothing was taken */",
    ]


def _state(p: Parts) -> list[str]:
    lines = [
        f"/* All of a stream: {p.name}_reset first; it may be copied, moved and kept. */",
        f"typedef struct {p.name}_state {{",
    ]
    lines += [f"    const {p.name}_weights *weights;", f"    {p.name}_memory memory;", f"    {p.name}_work work;"]
    lines += [
        "    int64_t received, pulses, rebased; /* frames that came, steps that ran, by how much counters are back */"
    ]
    ports: list[tuple[str, int, Input | Output]] = [("wait", i, x) for i, x in enumerate(p.spec.inputs)]
    ports += [("made", i, o) for i, o in enumerate(p.spec.outputs)]
    lines += [f"    {kind(x)} {word}_{i}[{p.room(x)}];" for word, i, x in ports]
    lines += [f"    int32_t given[{p.upper}_OUTPUTS]; /* frames of each output that the last call gave */"]
    return [*lines, "    int32_t waiting, ended;", f"}} {p.name}_state;"]


def arguments(p: Parts, inputs: bool, outputs: list[int]) -> str:
    """Of push, flush and step."""
    words = [f"{p.name}_state *s"]
    if inputs:
        words += [f"const {kind(port)} *in_{i}" for i, port in enumerate(p.spec.inputs)]
    return ", ".join(words + [f"{kind(p.spec.outputs[i])} *out_{i}" for i in outputs])


def signatures(p: Parts) -> dict[str, str]:
    every, timed = list(range(len(p.spec.outputs))), [i for i, _ in p.timed]
    statics = "".join(f", const {p.made.ports[x.name].ctype} *static_{i}" for i, x in enumerate(p.spec.statics))
    pushed = arguments(p, True, []) + ", int frames" + "".join(f", {kind(p.spec.outputs[i])} *out_{i}" for i in timed)
    weights = f", const {p.name}_weights *weights" if p.apart else ""
    bare = f"({arguments(p, True, every)}, int64_t length)"
    found = {
        "reset": f"void {p.name}_reset({p.name}_state *s{weights}{statics})",
        "push": f"int {p.name}_push({pushed})",
        "flush": f"int {p.name}_flush({arguments(p, False, every)})",
        "step": f"void {p.name}_step{bare}",
    }
    return {**found, "opening": f"void {p.name}_opening{bare}"} if p.first else found


def declarations(p: Parts) -> list[str]:
    found = signatures(p)
    lines = [] if p.apart else [f"extern const {p.name}_weights {p.name}_data;"]
    opening = [f"/* The first bare step: {p.upper}_FIRST frames in. */", f"{found['opening']};"] if p.first else []
    return [
        *lines, "/* A new stream. */", f"{found['reset']};",
        f"/* Takes 0 to {p.upper}_PULSE frames (all inputs, dense) and gives the frames that are ready: how many. */",
        f"{found['push']};", "/* Ends the stream: the frames that are left, how many. */", f"{found['flush']};",
        "/* One bare step: a whole pulse in, a whole pulse out, delays and all. length: the stream's, or -1. */",
        f"{found['step']};", *opening,
    ]  # fmt: skip


# ---- the functions


def functions(p: Parts) -> str:
    lines = "\n".join([*moving("cut"), *_lengths(p), *_reset(p), *_step(p), *_opening(p), *_push(p), *_flush(p)])
    return "\n".join([*c_rules(lines), lines]) + "\n"


def moving(name: str) -> list[str]:
    """A function that moves frames from one dense array to another: `lead` rows of them, a frame of `size` bytes."""
    return [
        f"static void {name}(const void *from, int has, int first, void *to, int room, int at, int count, int lead,",
        "                 size_t size) {",
        "    for (int i = 0; i < lead; i++) {",
        "        const char *const source = (const char *)from + (size_t)(i * has + first) * size;",
        "        memcpy((char *)to + (size_t)(i * room + at) * size, source, (size_t)count * size);",
        "    }",
        "}",
        "",
    ]


def _lengths(p: Parts) -> Iterator[str]:
    for i, o in enumerate(p.spec.outputs):
        if o.frames:
            yield from c_function(f"count_{i}", ["S"], expression(o.length))
    for i, c in enumerate(p.spec.conditions):
        yield from [f"/* {c.node.replace('*/', '')} */"] if c.node else []
        yield from c_function(f"condition_{i}", ["S"], portable.met(c))
        if c.at_most is not None:
            yield from c_function(f"rows_{i}", ["S"], portable.signed(c.length))
    yield "static int fits(int64_t n) { /* is it a length the model takes? */"
    yield f"    if (n < {p.spec.shortest} || n % {p.spec.step}) return 0;"
    if p.spec.proof.limit is not None:
        yield f"    if (n > {p.spec.proof.limit}) return 0;"
    yield from (f"    if (!condition_{i}(n)) return 0;" for i in range(len(p.spec.conditions)))
    yield "    return 1;"
    yield "}"
    yield ""


def _reset(p: Parts) -> Iterator[str]:
    yield f"{signatures(p)['reset']} {{"
    yield "    memset(s, 0, sizeof *s);"
    yield f"    s->weights = {'weights' if p.apart else f'&{p.name}_data'};"
    if p.spec.phase:
        yield f"    s->waiting = {p.upper}_PHASE; /* zeros */"
    if p.spec.length:
        yield f"    {p.place(p.spec.length)} = {p.spec.unknown_length};"
    for i, x in enumerate(p.spec.statics):
        size = max(math.prod(concrete(x.dims, 1)), 1)
        yield f"    memcpy(&{p.place(x.name)}, static_{i}, sizeof(*static_{i}) * {size});"
    yield "}"
    yield ""


def _step(p: Parts) -> Iterator[str]:
    spec = p.spec
    names = _given(p)
    yield f"{signatures(p)['step']} {{"
    yield f"    const int64_t position = s->pulses * {spec.pulse} - s->rebased;"
    yield "    (void)position;"
    general = [f"{p.name}_step_general({names});"]
    if spec.position is not None:
        general.insert(0, f"{p.place(spec.position)} = (int32_t)position;")
    if spec.length:
        general.insert(
            0, f"{p.place(spec.length)} = length < 0 ? {spec.unknown_length} : (int32_t)(length - s->rebased);"
        )
    steady = "steady" in p.source.steps
    if steady:
        yield f"    if (length < 0 && position >= {p.since * spec.pulse}) {{"
        yield f"        {p.name}_step_steady({names});"
        yield "    } else {"
    yield from (f"    {'    ' * steady}{line}" for line in general)
    if steady:
        yield "    }"
    if not spec.length:
        yield "    (void)length;"
    yield "    s->pulses++;"
    yield "}"
    yield ""


def _given(p: Parts) -> str:
    """What a step is called with."""
    return ", ".join(["s->weights", "&s->memory", "&s->work", *(a.rpartition("*")[2] for a in p.source.arguments)])


def _opening(p: Parts) -> Iterator[str]:
    """The first pulses as one, on the same memory: what it remembers is the stream's."""
    if p.first is None:
        return
    names = _given(p)
    yield f"{signatures(p)['opening']} {{"
    if p.first.length:
        yield f"    {p.place(p.first.length)} = length < 0 ? {p.first.unknown_length} : (int32_t)length;"
    else:
        yield "    (void)length;"
    yield f"    {p.name}_step_opening({names});"
    yield f"    s->pulses += {p.spec.opening};"
    yield "}"
    yield ""


def _counters(p: Parts) -> Iterator[str]:
    """Counters are 32 bits wide, and set back on endless streams."""
    spec = p.spec
    if spec.position is None:
        return
    yield f"    const int64_t at = s->pulses * {spec.pulse} - s->rebased;"
    if not spec.rebase:
        yield f"    if (at >= {spec.unknown_length - spec.pulse}) return {p.upper}_LENGTH;"
        return
    yield f"    if (at >= {spec.unknown_length // 2}) {{"
    yield f"        s->rebased += frames_back(at, {spec.rebase});"
    yield f"        {p.place(spec.position)} = (int32_t)(s->pulses * {spec.pulse} - s->rebased);"
    yield "    }"


def _stored(p: Parts, first: str, count: str, room: str, at: str) -> Iterator[str]:
    """Frames of all inputs to where they wait, `room` of them for the next step."""
    for i, port in enumerate(p.spec.inputs):
        lead, _, inner = around(port)
        rate = Fraction(port.rate)
        times = "" if rate == 1 else f" * {rate.numerator}"
        yield (
            f"    cut(in_{i}, frames{times}, {first}{times}, s->wait_{i}, {room}{times}, {at}{times}, {count}{times}, "
            f"{lead}, sizeof(*in_{i}) * {inner});"
        )


def _push(p: Parts) -> Iterator[str]:
    spec, up = p.spec, p.upper
    yield f"{signatures(p)['push']} {{"
    yield f"    if (frames < 0 || frames > {up}_PULSE || s->ended) return {up}_WRONG;"
    for i, c in enumerate(spec.conditions):
        if c.at_most is not None:
            yield f"    if (rows_{i}(s->received + frames) > {c.at_most}) return {up}_LENGTH;"
    yield from _counters(p)
    yield f"    const int need = {p.need};"
    yield "    const int before = s->waiting;"
    yield "    const int part = frames < need - before ? frames : need - before;"
    yield "    const int whole = before == 0 && frames == need;"
    yield "    s->received += frames;"
    yield f"    for (int i = 0; i < {up}_OUTPUTS; i++) s->given[i] = 0;"
    yield "    if (!whole) {"
    yield from (f"    {line}" for line in _stored(p, "0", "part", "need", "before"))
    yield "        if (before + part < need) {"
    yield "            s->waiting = before + part;"
    yield "            return 0;"
    yield "        }"
    yield "    }"
    yield from (f"    {line}" for line in _front(p))
    given = []
    for i, o in p.timed:
        yield f"    const int has_{i} = {p.has(o)};"
        yield f"    const int first_{i} = {_place(i, o, '0')};"
        yield f"    const int last_{i} = {f'has_{i}' if o.length.cap is None else _place(i, o, str(o.length.cap))};"
        yield f"    const int all_{i} = first_{i} == 0 && last_{i} == has_{i};"
        given.append(i)
    outs = [
        f"all_{i} ? out_{i} : s->made_{i}" if o.axis is not None else f"s->made_{i}" for i, o in enumerate(spec.outputs)
    ]
    ins = [f"whole ? in_{i} : s->wait_{i}" for i in range(len(spec.inputs))]
    yield f"    {p.call(['s', *ins, *outs, '-1'])}"
    for i, o in p.timed:
        lead, _, inner = around(o)
        yield f"    s->given[{i}] = last_{i} - first_{i};"
        yield (
            f"    if (!all_{i}) cut(s->made_{i}, has_{i}, first_{i}, out_{i}, s->given[{i}], 0, s->given[{i}], "
            f"{lead}, sizeof(*out_{i}) * {inner});"
        )
    yield "    s->waiting = frames - part;"
    yield "    if (frames > part) {"
    yield from (f"    {line}" for line in _stored(p, "part", "(frames - part)", f"{up}_PULSE", "0"))
    yield "    }"
    yield f"    return s->given[{given[0]}];" if given else "    return 0;"
    yield "}"
    yield ""


def _flush(p: Parts) -> Iterator[str]:
    spec, up = p.spec, p.upper
    yield f"#ifndef {up}_PADDING"
    yield f"#define {up}_PADDING 0.0f /* behind the last frame; it never shows */"
    yield "#endif"
    yield f"{signatures(p)['flush']} {{"
    yield "    const int64_t total = s->received;"
    yield f"    if (s->ended) return {up}_WRONG;"
    yield f"    if (total > 0 && !fits(total)) return {up}_LENGTH;"
    yield f"    for (int i = 0; i < {up}_OUTPUTS; i++) s->given[i] = 0;"
    yield from _counters(p)
    yield "    s->ended = 1;"
    yield "    if (total == 0) return 0;"
    for i, o in p.timed:
        before = f"frames_given(s->pulses, {o.frames}, {o.delay}, end_{i})"
        yield f"    const int64_t end_{i} = count_{i}(total);"
        yield f"    const int left_{i} = (int)(end_{i} - {before});"
    needed = [f"frames_until(count_{i}(total), {o.frames}, {o.delay})" for i, o in enumerate(spec.outputs) if o.frames]
    for i, word in enumerate(needed):
        yield f"    const int64_t needed_{i} = {word};"
    yield "    do {"
    yield f"        const int need = {p.need};"
    yield from _padded(p)
    yield from (f"        {line}" for line in _front(p))
    outs, ins = [f"s->made_{i}" for i in range(len(spec.outputs))], [f"s->wait_{i}" for i in range(len(spec.inputs))]
    for i, o in p.timed:
        yield f"        const int has_{i} = {p.has(o)};"
        yield f"        const int first_{i} = {_place(i, o, '0')}, last_{i} = {_place(i, o, f'end_{i}')};"
    yield f"        {p.call(['s', *ins, *outs, 'total'])}"
    for i, o in p.timed:
        lead, _, inner = around(o)
        yield (
            f"        if (last_{i} > first_{i}) cut(s->made_{i}, has_{i}, first_{i}, out_{i}, left_{i}, s->given[{i}], "
            f"last_{i} - first_{i}, {lead}, sizeof(*out_{i}) * {inner});"
        )
        yield f"        s->given[{i}] += last_{i} - first_{i};"
    yield "        s->waiting = 0;"
    yield f"    }} while ({' || '.join(f's->pulses < needed_{i}' for i in range(len(needed))) or '0'});"
    for i, o in enumerate(spec.outputs):
        if o.axis is None:
            yield f"    memcpy(out_{i}, s->made_{i}, sizeof(*out_{i}) * {math.prod(concrete(o.dims, 1))});"
    yield f"    return s->given[{p.timed[0][0]}];" if p.timed else "    return 0;"
    yield "}"


def _place(i: int, o: Output, frame: str) -> str:
    """Where a frame is in what the next step makes."""
    return f"(int)frames_place({frame}, s->pulses, {o.frames}, {o.delay}, has_{i})"


def _front(p: Parts) -> Iterator[str]:
    """Whole numbers in front of the stream are the first one, once that is there: they may be indices, or divisors."""
    whole = [(i, x) for i, x in enumerate(p.spec.inputs) if not filler_is_zero(x.dtype)]
    if not p.spec.phase or not whole:
        return
    yield "if (s->pulses == 0) {"
    for i, port in whole:
        lead, _, inner = around(port)
        times = Fraction(port.rate).numerator
        room, ahead = f"need * {times}", f"{p.upper}_PHASE * {times}"
        yield f"    for (int a = 0; a < {lead}; a++)"
        yield f"        for (int t = 0; t < {ahead}; t++)"
        to, source = (f"s->wait_{i}[(a * {room} + {at}) * {inner} + c]" for at in ("t", ahead))
        yield f"            for (int c = 0; c < {inner}; c++) {to} = {source};"
    yield "}"


def _padded(p: Parts) -> Iterator[str]:
    """What no frame has come for: floats are padded, whole numbers go on as the last one."""
    for i, port in enumerate(p.spec.inputs):
        lead, _, inner = around(port)
        times = Fraction(port.rate).numerator
        room = "need" if times == 1 else f"need * {times}"
        fill = f"({kind(port)}){p.upper}_PADDING" if kind(port) in ("float", "double") else ""
        yield f"        for (int a = 0; a < {lead}; a++)"
        yield f"            for (int t = s->waiting * {times}; t < {room}; t++)"
        value = (
            fill or f"t > 0 ? s->wait_{i}[(a * {room} + t - 1) * {inner} + c] : s->wait_{i}[(a * {room}) * {inner} + c]"
        )
        place = f"s->wait_{i}[(a * {room} + t) * {inner} + c]"
        yield f"                for (int c = 0; c < {inner}; c++) {place} = {value};"
