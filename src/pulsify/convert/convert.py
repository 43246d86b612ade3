"""The whole way from a model and a pulse to a streaming graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

import onnx_ir as ir

import pulsify.convert.rules  # noqa: F401  fills the registry
from pulsify.convert.assemble import assemble, course, position_state, probes
from pulsify.convert.context import Context, Misaligned, OutOfStep
from pulsify.convert.facts import Window, Wire
from pulsify.convert.known.series import Unsure
from pulsify.convert.known_facts import known_fact
from pulsify.convert.ledger import shortest_length
from pulsify.convert.opening import leads_to, pulses, sooner
from pulsify.convert.ports import (
    file_inputs,
    output,
    static_input,
    stream_input,
)
from pulsify.convert.primitives.builder import Builder
from pulsify.convert.primitives.clock import Clock
from pulsify.convert.primitives.known_start import beginning, fits, frames_of, wishes
from pulsify.convert.primitives.state import State
from pulsify.convert.proof.batches import check_batches
from pulsify.convert.proof.decided import check_decisions
from pulsify.convert.proof.failing import turn_down
from pulsify.convert.proof.numbers import uncertain
from pulsify.convert.questions import Questions, Unclear
from pulsify.convert.rules.latch import latched
from pulsify.convert.rules.registry import apply_rule
from pulsify.convert.trail import Course
from pulsify.core.errors import InvalidPulse, NotStreamable
from pulsify.core.length import LONGEST, Length
from pulsify.core.progress import counted, tell
from pulsify.core.spec import Condition, Filled, Output, Spec, latency
from pulsify.core.traits import traits
from pulsify.frontend.model import Model, Node
from pulsify.frontend.time import TimeSpec
from pulsify.trace.lengths import Tracer, Traces, choose, nearly_longest
from pulsify.trace.traced import CannotRun, TooLarge

LARGEST = 1 << 29  # counters stay far from the end of int32, twice a length included
MOST_FRAMES = 3000  # of a value with two time axes (it grows with the square of the length) that is just looked at
MOST_BOUND = 9000  # of one that is known to be bounded, but further out
LONG_ENOUGH = 1 << 20  # frames: a model that can count no further is not converted
LONGEST_CHUNK = 1 << 20  # frames: a longer pulse is of no use
TRIES = 3  # lengths of an opening: the next may be in step with chunks of attention where the first is not
LOOKS, LONGER = 6, 4  # where what was seen is unclear, look so often at lengths so many times longer


Outputs = list[tuple[Output, ir.Value]]
Analysed = tuple[Context, Outputs]


@dataclass(frozen=True, eq=False)
class Converted:
    """A streaming model and all that is to know about it."""

    model: ir.Model
    spec: Spec
    probes: dict[str, tuple[ir.Value, Window, int]]  # batch wire -> where its frames are, for finding a mismatch
    opening: Converted | None = None  # what runs the first pulses, all of them at once
    course: Course | None = None  # time through it, for who wants to know where delay comes from


def convert(
    tracer: Tracer, pulse: int | None, unbounded: str | int = "refuse", proof: str = "proven", opening: bool = True
) -> Converted:
    """Convert at `pulse`, or at the natural one. Raises InvalidPulse with the granularity if it does not fit."""
    try:
        if pulse is None:
            chosen, plan = _natural(tracer, unbounded, proof, opening)
            made = _convert(tracer, chosen.pulse, unbounded, proof, opening, plan)
            return replace(made, spec=replace(made.spec, natural_pulse=chosen.pulse, natural_latency=chosen.latency))
        try:
            return _convert(tracer, pulse, unbounded, proof, opening)
        except (Misaligned, OutOfStep) as problem:
            raise unfitting(tracer, pulse, problem, unbounded, proof) from None
    except CannotRun as problem:
        large = isinstance(problem, TooLarge)
        raise NotStreamable(
            f"the model cannot run at a length that was looked at: {problem.reason}",
            node=problem.node.name,
            op=problem.node.op,
            hint="make it of smaller values" if large else 'if it takes only some lengths, say which: set={"T": "8*n"}',
        ) from problem
    finally:
        tracer.forget()
        tracer.made.clear()


def unfitting(
    tracer: Tracer, pulse: int, problem: Misaligned | OutOfStep, unbounded: str | int, proof: str
) -> InvalidPulse:
    """Why a pulse does not fit, and which do."""
    chosen = natural(tracer, unbounded, proof)
    if isinstance(problem, OutOfStep):
        return InvalidPulse(pulse, chosen.granularity, chosen.pulse, math.lcm(problem.chunk, chosen.granularity))
    node = problem.node
    groups = (
        f"{node.op} node '{node.name}' puts {problem.multiple} frames together and" if node and _groups(node) else ""
    )
    return InvalidPulse(pulse, chosen.granularity, chosen.pulse, by=groups)


def _groups(node: Node) -> bool:
    """Does it put frames together, without a stride?"""
    return traits(node.op, node.domain).regroups or node.op == "SpaceToDepth"


@dataclass(frozen=True)
class Natural:
    """The pulse with the smallest latency (pulse + delay, in frames of the stream); of several the longest: least work.

    granularity: every wire gets whole frames at multiples of it.
    """

    pulse: int
    latency: int
    granularity: int


def natural(tracer: Tracer, unbounded: str | int = "refuse", proof: str = "proven", opening: bool = True) -> Natural:
    """One granule; where attention takes frames in chunks, a chunk, unless that is later.

    A row waits for the last column it looks at. With pulses shorter than a chunk every layer waits for its own chunk
    once more, with whole chunks they wait together:

        pulse 2    | . . | . . | . . | . . |      chunk 4, layer 1: 2 frames late, layer 2: 4, ...
        pulse 4    | . . . . | . . . . |          none, in any layer
    """
    chosen, plan = _natural(tracer, unbounded, proof, opening)
    if plan is not None:
        plan.released()
    return chosen


def _natural(tracer: Tracer, unbounded: str | int, proof: str, opening: bool) -> tuple[Natural, Planned | None]:
    """The natural pulse, and what was planned for it if no other was looked at after it."""
    grain, plain = _granule(tracer, unbounded, proof)
    chunks = {math.lcm(grain, c) for c in plain[0].ask.ledger.chunks} - {grain}
    if not chunks and plain[0].ask.unproven:
        plain[0].release()
        plain = analyse(tracer, grain, unbounded, proof)
    plan = _planned(tracer, plain, unbounded, proof, opening)
    if not chunks:
        return Natural(grain, plan.latency, grain), plan
    found, last = {grain: plan.released()}, None
    for pulse in sorted({*chunks, math.lcm(grain, *chunks)} - {grain}):
        if pulse < LONGEST_CHUNK:
            if last is not None:
                last.released()
            last = None
            with suppress(OutOfStep):  # of several chunks, one may not fit the others
                plain = analyse(tracer, pulse, unbounded, proof)
                last = _planned(tracer, plain, unbounded, proof, opening)
                found[pulse] = last.latency
    pulse = min(found, key=lambda p: (found[p], -p))
    if last is not None and last.ctx.pulse != pulse:
        last.released()
        last = None
    if pulse == grain:  # it was only looked at
        last = planned(tracer, grain, unbounded, proof, opening)
        found[grain] = last.latency
    return Natural(pulse, found[pulse], grain), last


def _granule(tracer: Tracer, unbounded: str | int, proof: str) -> tuple[int, Analysed]:
    """The smallest pulse at which every wire gets whole frames: refused pulses say what they lack."""
    pulse = 1
    while True:
        try:
            ctx, outputs = analyse(tracer, pulse, unbounded, proof, scouting=True)
        except Misaligned as need:
            pulse = math.lcm(pulse, need.multiple)
            continue
        grain = math.lcm(*ctx.ask.ledger.denominators, 1)
        if grain == pulse:
            return grain, (ctx, outputs)
        ctx.release()
        pulse = grain


@dataclass(frozen=True, eq=False)
class Planned:
    """Every wire of a stream at one pulse; opening: of the first pulses, taken as one, where those are not for it."""

    ctx: Context
    outputs: Outputs
    opening: Analysed | None = None

    @property
    def course(self) -> Course:
        return course(self.ctx, self.outputs)

    @property
    def latency(self) -> int:
        return math.ceil(latency(self.ctx.pulse, (o for o, _ in self.outputs)))

    def released(self) -> int:
        """The latency; nothing else is wanted of it."""
        self.ctx.release()
        if self.opening is not None:
            self.opening[0].release()
        return self.latency


def planned(
    tracer: Tracer, pulse: int, unbounded: str | int = "refuse", proof: str = "proven", opening: bool = True
) -> Planned:
    """What a conversion at this pulse does with every wire."""
    return _planned(tracer, analyse(tracer, pulse, unbounded, proof), unbounded, proof, opening)


def _planned(tracer: Tracer, plain: Analysed, unbounded: str | int, proof: str, opening: bool) -> Planned:
    """What was analysed; or a stream that follows an opening, where that brings frames out earlier."""
    ctx, outputs = plain
    if not ctx.waited:
        return Planned(ctx, outputs)
    then, later = analyse(tracer, ctx.pulse, unbounded, proof, started=True)
    if opening and fits(ctx) and sooner(later, outputs):  # its weights are held twice
        first = _opening(tracer, then, later, unbounded, proof)
        if first is not None:
            ctx.release()
            return Planned(then, later, first)
    then.release()
    return Planned(ctx, _with_delay_after_start(outputs, later))


def _opening(tracer: Tracer, then: Context, later: Outputs, unbounded: str | int, proof: str) -> Analysed | None:
    """The plan of the first pulses as one, if a stream can go on from what it leaves."""
    fewest = pulses(then.waited, then.pulse)
    for count in range(fewest, fewest + TRIES) if fewest is not None else ():
        with suppress(Misaligned, OutOfStep, NotStreamable, CannotRun):
            first, outputs = analyse(tracer, count * then.pulse, unbounded, proof, then=then)
            if leads_to(first, then) and [o.delay for o, _ in outputs] == [o.delay for o, _ in later]:
                return first, outputs
            first.release()
    return None


def analyse(
    tracer: Tracer,
    pulse: int,
    unbounded: str | int = "refuse",
    proof: str = "proven",
    started: bool = False,
    then: Context | None = None,
    scouting: bool = False,
) -> Analysed:
    """Apply every rule and settle every output; the context then holds the facts and windows of all wires.

    started: what the start of the stream shows is not waited for; the first pulses are worth nothing then.
    then: the plan of the pulses that come after this one, which is their opening.
    scouting: to choose a pulse by; claims of attention in chunks are left, and `unproven` says so.
    """
    problem: Unclear | None = None
    at_least = 4 * pulse if pulse < 4096 else pulse

    def look(traces: Traces, nothing_longer: bool) -> Analysed:
        ctx = _opened(tracer, traces, pulse)
        ask, ctx.started = ctx.ask, started
        ask.scouting = scouting
        ctx.then = then.windows if then is not None else {}
        ask.unbounded, ask.proof, ask.longest_look = unbounded, proof, nothing_longer
        try:
            return ctx, _apply_rules(ctx, tracer.time)
        except NotStreamable:
            ctx.release()
            raise

    for _ in range(LOOKS):
        try:
            traces = choose(tracer, at_least)
        except NotStreamable as error:
            raise problem or error from None
        limited = traces.lengths[0] < at_least  # it takes nothing that long
        nothing_longer = problem is not None and limited
        if problem is not None and nothing_longer and not problem.look:
            return _at_its_end(look, traces, problem, pulse)
        try:
            return look(traces, nothing_longer)
        except Unclear as error:
            widest = _widest_field(traces) / traces.lengths[-1]
            tracer.forget()
            problem, longer = error, max(LONGER * traces.lengths[0], 256)
            at_least = max(error.look, traces.lengths[0] + 1) if error.look else longer
            if nothing_longer or 2 * widest * at_least > (MOST_BOUND if error.look else MOST_FRAMES):
                break
        except NotStreamable as error:
            if not limited:
                raise
            return _at_its_end(look, traces, error, pulse)
    assert problem is not None
    raise problem


def _at_its_end(
    look: Callable[[Traces, bool], Analysed], traces: Traces, problem: NotStreamable, pulse: int
) -> Analysed:
    """A model that takes no long streams, looked at its longest ones; what is refused then says how short they are."""
    near = nearly_longest(traces)
    if near is not None:
        with suppress(NotStreamable):
            return look(near, True)
    longest = (near or traces).lengths[-1]
    shorter = f"choose a shorter pulse ({max(longest // 8, 1)} frames), or " if 4 * pulse > longest else ""
    raise NotStreamable(
        f"{problem.reason} (at {longest} frames, the longest stream that was found to run)",
        node=problem.node,
        op=problem.op,
        hint=f"{shorter}{problem.hint}",
    ) from problem


def _opened(tracer: Tracer, traces: Traces, pulse: int) -> Context:
    builder = Builder()
    builder.reserve(tracer.model.outputs)
    ask = Questions(tracer.model, traces, lambda name: known_fact(ctx, name))
    ctx = Context(ask, pulse, builder, Clock(builder, pulse, tracer.time.batch), apply_rule)
    ask.latch = lambda name: latched(ctx, name)
    return ctx


def _apply_rules(ctx: Context, time: TimeSpec) -> Outputs:
    try:
        return _applied(ctx, time)
    except Unsure as problem:  # outside of any rule
        uncertain(ctx.ask, getattr(problem, "node", None), "a value of the model", problem)


def _applied(ctx: Context, time: TimeSpec) -> Outputs:
    file_inputs(ctx, time)
    wanted = _wanted(ctx.ask.model)
    nodes = [n for n in ctx.ask.model.nodes if n.name in wanted and _is_data(ctx.ask.traces, n)]
    for node in counted("node", nodes):
        apply_rule(ctx, node)
    outputs = [output(ctx, name) for name in ctx.ask.model.outputs]
    check_decisions(ctx.ask)
    check_batches(ctx.ask, nodes)
    _check_limit(ctx)
    return outputs


def _check_limit(ctx: Context) -> None:
    """What the model counts must be exact long enough to be of use, and then a stream says where that ends."""
    if ctx.ask.ledger.limit >= (ctx.ask.traces.tracer.time.longest or LARGEST):
        ctx.ask.ledger.limit = LONGEST
    elif ctx.ask.ledger.limit < LONG_ENOUGH:
        raise NotStreamable(
            f"the model counts in numbers that its types hold exactly only up to {ctx.ask.ledger.limit} frames",
            node=ctx.ask.ledger.limited_by,
            hint=f'count in smaller numbers, or declare how long streams are: set={{"T": "<={ctx.ask.ledger.limit}"}}',
        )


def _wanted(model: Model) -> set[str]:
    """Nodes some output depends on. What only has its shape read is not computed."""
    seen: set[str] = set()
    names, todo = set(), list(model.outputs)
    while todo:
        name = todo.pop()
        if name in names:
            continue
        names.add(name)
        node = model.producers.get(name)
        if node is not None and node.name not in seen:
            seen.add(node.name)
            todo.extend(i for i in node.reads if i and node.op not in ("Shape", "Size"))
    return seen


def _is_data(traces: Traces, node: Node) -> bool:
    return any(o and not traces.runs[0][o].known for o in node.outputs)


def _require_seen_lengths(ctx: Context) -> None:
    """Where the model takes only some lengths and the rules do not know which, keep to those that were seen."""
    traces, tracer = ctx.ask.traces, ctx.ask.traces.tracer
    declared = tracer.time.lengths
    if declared.least > 1:
        ctx.ask.ledger.require("", Length(), at_least=declared.least)
    if declared.remainder:
        ctx.ask.ledger.require("", Length().then(add=-declared.remainder), multiple=declared.every)
    if traces.step == declared.every:
        return
    base = traces.lengths[0]
    near = range(base, base + min(2 * traces.step, 64 * declared.every), declared.every)
    if any(tracer.works(s) != all(c.met(s) for c in ctx.ask.ledger.conditions if c.at_most is None) for s in near):
        ctx.ask.ledger.require("", Length().then(add=-(base % traces.step)), multiple=traces.step)


def _widest_field(traces: Traces) -> int:
    """The largest size of a time axis where frames meet frames, at the longest length seen."""
    run, narrow = traces.longest, traces.runs[0]
    sizes = (
        [y for x, y in zip(narrow[n].dims, v.dims, strict=True) if x != y] for n, v in run.values.items() if n in narrow
    )
    return max((max(s) for s in sizes if len(s) > 1), default=0)


def _convert(
    tracer: Tracer, pulse: int, unbounded: str | int, proof: str, opening: bool, plan: Planned | None = None
) -> Converted:
    plan = plan or planned(tracer, pulse, unbounded, proof, opening)
    made = _built(tracer.time, plan.ctx, plan.outputs)
    if plan.opening is None:
        return made
    first = _built(tracer.time, *plan.opening)
    spec = replace(made.spec, opening=first.spec.pulse // pulse)
    if not first.spec.opens(spec):  # states are named when all is done
        return _convert(tracer, pulse, unbounded, proof, opening=False)
    return replace(made, spec=spec, opening=first)


def _built(time: TimeSpec, ctx: Context, outputs: Outputs) -> Converted:
    """The graph of a plan, and all that is to know about it."""
    tell("writing the step")
    pulse = ctx.pulse
    states = _buffered(ctx)
    states += [s for b in ctx.buffers.values() if (s := b.finish_growing(time.batch)) is not None]
    states += ctx.carries
    if ctx.clock.position is not None:
        states.append(position_state(ctx))
    _require_seen_lengths(ctx)
    turn_down(ctx.ask)
    _check_declared(ctx, time)
    lengths = [f.length for f in ctx.ask.facts.values() if isinstance(f, Wire) and f.length]
    unit = math.lcm(
        *ctx.ask.ledger.denominators, *(n.period for n in lengths), *(n * pulse for n in ctx.clock.phases), pulse
    )
    fastest = max((math.ceil(n.steepest) for n in (*lengths, *ctx.clock.told)), default=1)
    most = LARGEST // max(fastest, 1)
    whole = unit if 4 * unit <= most else pulse  # counters could not be set back in time by so much
    unknown = max(most // whole, 1) * whole
    graph, named = assemble(ctx, outputs, states, unknown)
    given = {*time.streams, *time.bound, *time.filled}
    static = [p.name for p in ctx.ask.model.inputs if p.name not in given]
    spec = Spec(
        pulse=pulse,
        granularity=math.lcm(*ctx.ask.ledger.denominators, 1),
        time=time.symbol,
        batch=time.batch,
        step=time.step,
        shortest=shortest_length(ctx.ask.ledger.conditions, time.step),
        inputs=tuple(stream_input(ctx, time, n) for n in time.streams),
        statics=tuple(static_input(ctx, time, n) for n in static),
        outputs=tuple(o for o, _ in outputs),
        states=tuple(s.described for s in named),
        conditions=_conditions(ctx, time),
        length=None if ctx.clock.length is None else str(ctx.clock.length.name),
        unknown_length=unknown,
        position=next((str(s.before.name) for s in named if s.kind == "clock"), None),
        rebase=0 if ctx.clock.absolute or whole != unit else unit,
        source="",
        natural_pulse=None if ctx.ask.ledger.chunks else math.lcm(*ctx.ask.ledger.denominators, 1),
        proof=ctx.ask.ledger.proof(),
        exact_up_to=ctx.ask.ledger.kept,
        filled=tuple(
            Filled(name, axis, Fraction(per), value, ctx.ask.dtype(name).numpy())
            for name, (axis, per, value) in time.filled.items()
        ),
    )
    model = ir.Model(graph, ir_version=ctx.ask.model.ir_version, producer_name="pulsify")
    made = Converted(model, spec, probes(ctx), course=course(ctx, outputs))
    ctx.release()
    return made


def _check_declared(ctx: Context, time: TimeSpec) -> None:
    """Of the declared lengths some must be taken: a branch may have been decided as it is for longer ones."""
    shortest = shortest_length(ctx.ask.ledger.conditions, time.step)
    if time.longest is not None and shortest > time.longest:
        by = max(ctx.ask.ledger.conditions, key=lambda c: shortest_length([c], time.step))
        raise NotStreamable(
            f"what it does at the declared lengths (up to {time.longest}) is not what it does from {shortest} frames "
            "on, where the model was looked at",
            node=by.node,
            hint=f'export the model as it is for short streams, or declare more: set={{"T": "<={shortest}"}}',
        )


def _with_delay_after_start(outputs: Outputs, later: Outputs) -> Outputs:
    """Outputs that say how late they would be if only the start did not have to be waited for."""
    delays = {o.name: o.delay for o, _ in later}
    return [(replace(o, delay_after_start=delays[o.name]), v) if o.axis is not None else (o, v) for o, v in outputs]


def _buffered(ctx: Context) -> list[State]:
    """Buffers with all windows that were asked for; those with a known start begin with it."""
    known, states = frames_of(ctx, wishes(ctx)), []
    for name, buffer in ctx.buffers.items():
        begin = beginning(ctx, buffer, known.get(buffer.wire))
        states.append(buffer.finish(ctx.clock.batch, name in ctx.zeroed, begin))
    return [s for s in states if s is not None]


def _conditions(ctx: Context, time: TimeSpec) -> tuple[Condition, ...]:
    """What bounds a stream comes last: it can be told before the end."""
    found = dict(sorted(((c, None) for c in ctx.ask.ledger.conditions), key=lambda c: c[0].at_most is not None))
    if time.longest is not None:
        found[Condition("", Length(), at_most=time.longest)] = None
    return tuple(found)
