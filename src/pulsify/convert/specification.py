"""What a stream says of itself: how to count its frames, which lengths it takes, and the whole specification."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pulsify.analysis.facts import Wire
from pulsify.analysis.ledger import shortest_length
from pulsify.analysis.proof.failing import reject_failing
from pulsify.convert.analyse import LARGEST, Outputs
from pulsify.convert.bindings import bindings_of, check_time, filled_of, with_bindings
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.refusal import Kind, declare
from pulsify.core.spec import Condition, Spec
from pulsify.emit.state import State
from pulsify.frontend.time import TimeSpec
from pulsify.plan.context import Context
from pulsify.plan.ports import static_input, stream_input


@dataclass(frozen=True)
class Counters:
    """unknown: what the length is until it is known. rebase: counters may be set back by multiples of it; 0: never."""

    unknown: int
    rebase: int


def counters(ctx: Context) -> Counters:
    """All counters have 32 bits; they may be set back by what every length and every phase repeats with."""
    pulse = ctx.pulse
    lengths = [f.length for f in ctx.ask.facts.values() if isinstance(f, Wire) and f.length]
    unit = math.lcm(
        *ctx.ask.ledger.denominators, *(n.period for n in lengths), *(n * pulse for n in ctx.clock.phases), pulse
    )
    fastest = max((math.ceil(n.steepest) for n in (*lengths, *ctx.clock.told)), default=1)
    most = LARGEST // max(fastest, 1)
    whole = unit if 4 * unit <= most else pulse  # counters could not be set back in time by so much
    return Counters(max(most // whole, 1) * whole, 0 if ctx.clock.absolute or whole != unit else unit)


def specification(ctx: Context, time: TimeSpec, outputs: Outputs, states: list[State], counting: Counters) -> Spec:
    """Of a plan whose step graph is written. states: by the names that they have there."""
    given = {*time.streams, *time.bound, *time.filled}
    static = [p.name for p in ctx.ask.model.inputs if p.name not in given]
    bindings = bindings_of(time)
    spec = Spec(
        pulse=ctx.pulse,
        granularity=math.lcm(*ctx.ask.ledger.denominators, 1),
        time=time.symbol,
        batch=time.batch,
        step=time.step,
        shortest=shortest_length(ctx.ask.ledger.conditions, time.step),
        inputs=tuple(stream_input(ctx, time, n) for n in time.streams),
        statics=tuple(static_input(ctx, time, n) for n in static),
        outputs=tuple(o for o, _ in outputs),
        states=tuple(s.described for s in states),
        conditions=_conditions(ctx, time),
        length=None if ctx.clock.length is None else str(ctx.clock.length.name),
        unknown_length=counting.unknown,
        position=next((str(s.before.name) for s in states if s.kind == "clock"), None),
        phase=ctx.phase,
        rebase=counting.rebase,
        source="",
        natural_pulse=None if ctx.ask.ledger.chunks else math.lcm(*ctx.ask.ledger.denominators, 1),
        proof=with_bindings(ctx.ask.ledger.proof(), bindings),
        exact_up_to=ctx.ask.ledger.kept,
        filled=filled_of(time, lambda name: ctx.ask.dtype(name).numpy()),
        bindings=bindings,
    )
    check_time(spec, time, ctx.ask.model.inputs)
    return spec


def settle_conditions(ctx: Context, time: TimeSpec) -> None:
    """Which lengths the stream takes, once everything has been claimed."""
    _require_seen_lengths(ctx)
    reject_failing(ctx.ask)
    _check_declared(ctx, time)


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
