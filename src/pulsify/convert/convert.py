"""The whole way from a model and a pulse to a streaming graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from pulsify.analysis.facts import Window
from pulsify.analysis.options import DEFAULT, Options
from pulsify.analysis.questions import Undecided
from pulsify.convert.analyse import Outputs
from pulsify.convert.assemble import assemble, course, position_state, probes
from pulsify.convert.bindings import with_free
from pulsify.convert.emit import emit, states_of
from pulsify.convert.pulses import Planned, natural_plan, planned, unfitting
from pulsify.convert.shorter import declared
from pulsify.convert.specification import counters, settle_conditions, specification
from pulsify.core.boundary import node_of
from pulsify.core.errors import NotStreamable
from pulsify.core.progress import tell
from pulsify.core.refusal import Kind, declare
from pulsify.core.spec import Spec
from pulsify.frontend.time import TimeSpec
from pulsify.plan.context import Context, Misaligned, OutOfStep
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
    course: Course | None = None  # time through it, for diagnostics: where delay comes from


def convert(tracer: Tracer, pulse: int | None, options: Options = DEFAULT) -> Converted:
    """Convert at `pulse`, or at the natural one. Raises InvalidPulse with the granularity if it does not fit."""
    try:
        if pulse is None:
            chosen, plan = natural_plan(tracer, options)
            result = _convert(tracer, chosen.pulse, options, plan)
            spec = replace(result.spec, natural_pulse=chosen.pulse, natural_latency=chosen.latency)
            return replace(result, spec=spec)
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
        raise _cannot_run(problem, tracer.time) from problem
    finally:
        tracer.forget()
        tracer.made.clear()


def _convert(tracer: Tracer, pulse: int, options: Options, plan: Planned | None = None) -> Converted:
    plan = plan or planned(tracer, pulse, options)
    result = _built(tracer.time, plan.ctx, plan.outputs)
    if plan.opening is None:
        return result
    first = _built(tracer.time, *plan.opening)
    spec = replace(result.spec, opening=first.spec.pulse // pulse)
    if not first.spec.opens(spec):  # states are named when all is done
        return _convert(tracer, pulse, replace(options, opening=False))
    return replace(result, spec=spec, opening=first)


def _cannot_run(problem: CannotRun, time: TimeSpec) -> NotStreamable:
    remedy = declare(time.symbol, "8*n", "if it takes only some lengths, declare which")
    return NotStreamable(
        f"the model cannot run at a length that was looked at: {problem.reason}",
        node=problem.node.name,
        op=problem.node.op,
        hint="make it of smaller values" if isinstance(problem, TooLarge) else remedy,
        kind=Kind.EXPORT,
    )


def _built(time: TimeSpec, ctx: Context, outputs: Outputs) -> Converted:
    """The graph of a plan, and all that is to know about it."""
    tell("writing the step")
    emission = emit(ctx)
    for _, value in outputs:
        _ = value.value
    states = states_of(emission)
    if ctx.clock.position is not None:
        states.append(position_state(ctx))
    settle_conditions(ctx, time)
    counting = counters(ctx)
    graph, named = assemble(ctx, outputs, states, counting.unknown)
    spec = specification(ctx, time, outputs, named, counting)
    model = ir.Model(graph, ir_version=ctx.ask.model.ir_version, producer_name="pulsify")
    result = Converted(model, spec, probes(ctx), course=course(ctx, outputs))
    ctx.release()
    return result
