"""The whole way from a model and a pulse to a streaming graph."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import onnx_ir as ir

from pulsify.analysis.facts import Window, Wire
from pulsify.analysis.ledger import shortest_length
from pulsify.analysis.options import DEFAULT, Options
from pulsify.analysis.proof.failing import turn_down
from pulsify.analysis.questions import Undecided
from pulsify.convert.analyse import LARGEST, Outputs
from pulsify.convert.assemble import assemble, course, position_state, probes
from pulsify.convert.bindings import bindings_of, check_time, filled_of, with_bindings, with_free
from pulsify.convert.emit import emit, states_of
from pulsify.convert.pulses import Planned, natural_plan, planned, unfitting
from pulsify.convert.shorter import declared
from pulsify.core.boundary import node_of
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.progress import tell
from pulsify.core.refusal import Kind, declare
from pulsify.core.spec import Condition, Spec
from pulsify.frontend.time import TimeSpec
from pulsify.plan.context import Context, Misaligned, OutOfStep
from pulsify.plan.ports import static_input, stream_input
from pulsify.plan.trail import Course
from pulsify.trace.lengths import Tracer
from pulsify.trace.tied import too_deep
from pulsify.trace.traced import CannotRun, TooLarge


@dataclass(frozen=True, eq=False)
class Converted:
    """A streaming model and all that is to know about it."""

    model: ir.Model
    spec: Spec
    probes: dict[str, tuple[ir.Value, Window, int]]  # batch wire -> where its frames are, for finding a mismatch
    opening: Converted | None = None  # what runs the first pulses, all of them at once
    course: Course | None = None  # time through it, for who wants to know where delay comes from


def convert(tracer: Tracer, pulse: int | None, options: Options = DEFAULT) -> Converted:
    """Convert at `pulse`, or at the natural one. Raises InvalidPulse with the granularity if it does not fit."""
    try:
        if pulse is None:
            chosen, plan = natural_plan(tracer, options)
            made = _convert(tracer, chosen.pulse, options, plan)
            return replace(made, spec=replace(made.spec, natural_pulse=chosen.pulse, natural_latency=chosen.latency))
        try:
            return _convert(tracer, pulse, options)
        except (Misaligned, OutOfStep) as problem:
            raise unfitting(tracer, pulse, problem, options) from None
    except RecursionError as error:
        raise too_deep(*node_of(error), tracer.model.exporter) from None
    except Undecided as problem:
        refusal = declared(tracer, problem, lambda t: convert(t, pulse, options))
        raise with_free(refusal, tracer.model, tracer.time) from problem
    except NotStreamable as refusal:
        with_free(refusal, tracer.model, tracer.time)
        raise
    except CannotRun as problem:
        large = isinstance(problem, TooLarge)
        raise NotStreamable(
            f"the model cannot run at a length that was looked at: {problem.reason}",
            node=problem.node.name,
            op=problem.node.op,
            hint="make it of smaller values"
            if large
            else declare(tracer.time.symbol, "8*n", "if it takes only some lengths, declare which"),
            kind=Kind.EXPORT,
        ) from problem
    finally:
        tracer.forget()
        tracer.made.clear()


def _convert(tracer: Tracer, pulse: int, options: Options, plan: Planned | None = None) -> Converted:
    plan = plan or planned(tracer, pulse, options)
    made = _built(tracer.time, plan.ctx, plan.outputs)
    if plan.opening is None:
        return made
    first = _built(tracer.time, *plan.opening)
    spec = replace(made.spec, opening=first.spec.pulse // pulse)
    if not first.spec.opens(spec):  # states are named when all is done
        return _convert(tracer, pulse, replace(options, opening=False))
    return replace(made, spec=spec, opening=first)


def _built(time: TimeSpec, ctx: Context, outputs: Outputs) -> Converted:
    """The graph of a plan, and all that is to know about it."""
    tell("writing the step")
    pulse = ctx.pulse
    emission = emit(ctx)
    for _, value in outputs:
        _ = value.value
    states = states_of(emission)
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
    bindings = bindings_of(time)
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
        proof=with_bindings(ctx.ask.ledger.proof(), bindings),
        exact_up_to=ctx.ask.ledger.kept,
        filled=filled_of(time, lambda name: ctx.ask.dtype(name).numpy()),
        bindings=bindings,
    )
    check_time(spec, time, ctx.ask.model.inputs)
    model = ir.Model(graph, ir_version=ctx.ask.model.ir_version, producer_name="pulsify")
    made = Converted(model, spec, probes(ctx), course=course(ctx, outputs))
    ctx.release()
    return made


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


def _check_declared(ctx: Context, time: TimeSpec) -> None:
    """Of the declared lengths some must be taken: a branch may have been decided as it is for longer ones."""
    shortest = shortest_length(ctx.ask.ledger.conditions, time.step)
    if time.longest is not None and shortest > time.longest:
        by = max(ctx.ask.ledger.conditions, key=lambda c: shortest_length([c], time.step))
        raise NotStreamable(
            f"what it does at the declared lengths (up to {time.longest}) is not what it does from {shortest} frames "
            "on, where the model was looked at",
            node=by.node,
            hint=(
                "export the model as it is for short streams",
                declare(time.symbol, f"<={shortest}", "declare longer streams"),
            ),
            kind=Kind.LENGTH,
        )


def _conditions(ctx: Context, time: TimeSpec) -> tuple[Condition, ...]:
    """What bounds a stream comes last: it can be told before the end."""
    found = dict(sorted(((c, None) for c in ctx.ask.ledger.conditions), key=lambda c: c[0].at_most is not None))
    if time.longest is not None:
        found[Condition("", Length(), at_most=time.longest)] = None
    return tuple(found)
