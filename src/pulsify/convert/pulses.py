"""Which pulse fits, and what a conversion at it does with every wire."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from pulsify.analysis.options import DEFAULT, Options
from pulsify.convert.analyse import Analysed, Outputs, analyse
from pulsify.convert.assemble import course
from pulsify.core.errors import InvalidPulse, NotStreamable
from pulsify.core.spec import latency
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.plan.constant_prefix import fits
from pulsify.plan.context import Context, Misaligned, OutOfStep
from pulsify.plan.opening import leads_to, pulses, sooner
from pulsify.plan.phase import best_phase
from pulsify.plan.trail import Course
from pulsify.trace.lengths import Tracer
from pulsify.trace.traced import CannotRun

LONGEST_CHUNK = 1 << 20  # frames: a longer pulse is of no use
TRIES = 3  # lengths of an opening: the next may be in step with chunks of attention where the first is not


@dataclass(frozen=True)
class Natural:
    """The pulse with the smallest latency (pulse + delay, in frames of the stream); of several the longest: least work.

    granularity: every wire gets whole frames at multiples of it.
    """

    pulse: int
    latency: int
    granularity: int


def natural(tracer: Tracer, options: Options = DEFAULT) -> Natural:
    """One granule; where attention takes frames in chunks, a chunk, unless that is later.

    A row waits for the last column it looks at. With pulses shorter than a chunk every layer waits for its own chunk
    once more, with whole chunks they wait together:

        pulse 2    | . . | . . | . . | . . |      chunk 4, layer 1: 2 frames late, layer 2: 4, ...
        pulse 4    | . . . . | . . . . |          none, in any layer
    """
    chosen, plan = natural_plan(tracer, options)
    if plan is not None:
        plan.released()
    return chosen


def natural_plan(tracer: Tracer, options: Options) -> tuple[Natural, Planned | None]:
    """The natural pulse, and what was planned for it if no other was looked at after it."""
    grain, plain = _granule(tracer, options)
    chunks = {math.lcm(grain, c) for c in plain[0].ask.ledger.chunks} - {grain}
    if not chunks and plain[0].ask.unproven:
        plain[0].release()
        plain = analyse(tracer, grain, options)
    plan = _planned(tracer, plain, options)
    if not chunks:
        return Natural(grain, plan.latency, grain), plan
    found, last = {grain: plan.released()}, None
    for pulse in sorted({*chunks, math.lcm(grain, *chunks)} - {grain}):
        if pulse < LONGEST_CHUNK:
            if last is not None:
                last.released()
            last = None
            with suppress(OutOfStep):  # of several chunks, one may not fit the others
                plain = analyse(tracer, pulse, options)
                last = _planned(tracer, plain, options)
                found[pulse] = last.latency
    pulse = min(found, key=lambda p: (found[p], -p))
    if last is not None and last.ctx.pulse != pulse:
        last.released()
        last = None
    if pulse == grain:  # it was only looked at
        last = planned(tracer, grain, options)
        found[grain] = last.latency
    return Natural(pulse, found[pulse], grain), last


def _granule(tracer: Tracer, options: Options) -> tuple[int, Analysed]:
    """The smallest pulse at which every wire gets whole frames: refused pulses say what they lack."""
    pulse = 1
    while True:
        try:
            ctx, outputs = analyse(tracer, pulse, options, scouting=True)
        except Misaligned as need:
            pulse = math.lcm(pulse, need.multiple)
            continue
        grain = math.lcm(*ctx.ask.ledger.denominators, 1)
        if grain == pulse:
            return grain, (ctx, outputs)
        ctx.release()
        pulse = grain


def unfitting(tracer: Tracer, pulse: int, problem: Misaligned | OutOfStep, options: Options) -> InvalidPulse:
    """Why a pulse does not fit, and which do."""
    chosen = natural(tracer, options)
    if isinstance(problem, OutOfStep):
        return InvalidPulse(pulse, chosen.granularity, chosen.pulse, math.lcm(problem.chunk, chosen.granularity))
    node = problem.node
    groups = (
        f"{node.op} node '{node.name}' puts {problem.multiple} frames together and" if node and _groups(node) else ""
    )
    return InvalidPulse(pulse, chosen.granularity, chosen.pulse, by=groups)


def _groups(node: Node) -> bool:
    """Does it put frames together, without a stride?"""
    kind = traits(node.op, node.domain)
    return kind.regroups or kind.stacks


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
    def exact_latency(self) -> Fraction:
        return latency(self.ctx.pulse, (o for o, _ in self.outputs), self.ctx.phase)

    @property
    def latency(self) -> int:
        return math.ceil(self.exact_latency)

    def released(self) -> int:
        """The latency; nothing else is wanted of it."""
        self.ctx.release()
        if self.opening is not None:
            self.opening[0].release()
        return self.latency


def planned(tracer: Tracer, pulse: int, options: Options = DEFAULT) -> Planned:
    """What a conversion at this pulse does with every wire."""
    return _planned(tracer, analyse(tracer, pulse, options), options)


def _planned(tracer: Tracer, plain: Analysed, options: Options) -> Planned:
    """What was analysed, or the same at another phase where that has a smaller latency."""
    aligned = _opened(tracer, plain, options)
    phase = best_phase(aligned.course) if options.phase else 0
    if not phase:
        return aligned
    with suppress(Misaligned, OutOfStep, NotStreamable):
        shifted = _opened(tracer, analyse(tracer, aligned.ctx.pulse, options, phase=phase), options)
        if shifted.exact_latency < aligned.exact_latency:
            aligned.released()
            return shifted
        shifted.released()
    return aligned


def _opened(tracer: Tracer, plain: Analysed, options: Options) -> Planned:
    """What was analysed; or a stream that follows an opening, where that brings frames out earlier."""
    ctx, outputs = plain
    if not ctx.waited:
        return Planned(ctx, outputs)
    then, later = analyse(tracer, ctx.pulse, options, started=True, phase=ctx.phase)
    if options.opening and fits(ctx) and sooner(later, outputs):  # its weights are held twice
        first = _opening(tracer, then, later, options)
        if first is not None:
            ctx.release()
            return Planned(then, later, first)
    then.release()
    return Planned(ctx, _with_delay_after_start(outputs, later))


def _opening(tracer: Tracer, then: Context, later: Outputs, options: Options) -> Analysed | None:
    """The plan of the first pulses as one, if a stream can go on from what it leaves."""
    fewest = pulses(then.waited, then.pulse)
    for count in range(fewest, fewest + TRIES) if fewest is not None else ():
        with suppress(Misaligned, OutOfStep, NotStreamable, CannotRun):
            first, outputs = analyse(tracer, count * then.pulse, options, then=then, phase=then.phase)
            if leads_to(first, then) and [o.delay for o, _ in outputs] == [o.delay for o, _ in later]:
                return first, outputs
            first.release()
    return None


def _with_delay_after_start(outputs: Outputs, later: Outputs) -> Outputs:
    """Outputs that say how late they would be if only the start did not have to be waited for."""
    delays = {o.name: o.delay for o, _ in later}
    return [(replace(o, delay_after_start=delays[o.name]), v) if o.axis is not None else (o, v) for o, v in outputs]
