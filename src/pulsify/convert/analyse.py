"""Every rule applied at one pulse, at lengths that are long enough to tell."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pulsify.ops  # noqa: F401  fills the registry
from pulsify.analysis.facts import Deferred
from pulsify.analysis.options import DEFAULT, Options
from pulsify.analysis.proof.batches import check_batches
from pulsify.analysis.proof.decided import check_decisions
from pulsify.analysis.proof.numbers import uncertain
from pulsify.analysis.questions import Questions, Unclear, Undecided
from pulsify.convert.shorter import first_change
from pulsify.core.errors import NotStreamable
from pulsify.core.length import LONGEST, Length
from pulsify.core.progress import counted
from pulsify.core.refusal import Kind
from pulsify.core.spec import Output
from pulsify.frontend.model import Model, Node
from pulsify.frontend.time import TimeSpec
from pulsify.lengths.series import Unsure
from pulsify.ops.fold import as_value
from pulsify.ops.registry import apply_rule
from pulsify.plan.context import Context, Misaligned, OutOfStep
from pulsify.plan.known_facts import known_fact
from pulsify.plan.ports import file_inputs, output
from pulsify.trace.evaluate import measures
from pulsify.trace.lengths import Tracer, Traces, choose, nearly_longest

LARGEST = 1 << 29  # counters stay far from the end of int32, twice a length included
MOST_FRAMES = 3000  # of a value with two time axes (it grows with the square of the length) that is just looked at
MOST_BOUND = 9000  # of one that is known to be bounded, but further out
LONG_ENOUGH = 1 << 17  # frames: a model that can count no further is not converted
FAR = 1 << 20  # frames: streams of one that counts less far end there, before a frame is taken
MOST_STEPS, TIMES = 40_000, 30  # nodes looked at, or times the model's own, after which no longer streams are
LOOKS, LONGER = 6, 4  # where what was seen is unclear, look so often at lengths so many times longer

Outputs = list[tuple[Output, Deferred]]
Analysed = tuple[Context, Outputs]


def analyse(
    tracer: Tracer,
    pulse: int,
    options: Options = DEFAULT,
    started: bool = False,
    then: Context | None = None,
    scouting: bool = False,
    phase: int = 0,
) -> Analysed:
    """Apply every rule and settle every output; the context then holds the facts and windows of all wires.

    started: what the start of the stream shows is not waited for; the first pulses are worth nothing then.
    then: the plan of the pulses that come after this one, which is their opening.
    scouting: to choose a pulse by; claims of attention in chunks are left, and `unproven` says so.
    phase: the first pulse begins so many frames before the stream.
    """
    problem: Unclear | None = None
    at_least = 4 * pulse if pulse < 4096 else pulse

    def look(traces: Traces, nothing_longer: bool) -> Analysed:
        ctx = _opened(tracer, traces, pulse)
        ctx.phase = phase
        ask, ctx.started = ctx.ask, started
        ask.scouting = scouting
        ctx.then = then.windows if then is not None else {}
        ask.options, ask.longest_look = options, nothing_longer
        try:
            return ctx, _apply_rules(ctx, tracer.time)
        except NotStreamable as error:
            if isinstance(error, Undecided):
                error.change = first_change(ask, error.far)
            ctx.release()
            raise
        except (Misaligned, OutOfStep):
            ctx.release()
            raise

    most_steps = tracer.evaluator.steps + max(MOST_STEPS, TIMES * len(tracer.model.nodes))
    for _ in range(LOOKS):
        if problem is not None and tracer.evaluator.steps > most_steps:
            break
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
    shorter = f"choose a shorter pulse ({max(longest // 8, 1)} frames)" if 4 * pulse > longest else ""
    raise NotStreamable(
        f"{problem.reason} (at {longest} frames, the longest stream that was found to run)",
        node=problem.node,
        op=problem.op,
        hint=(shorter, *problem.remedies),
        kind=problem.kind,
    ) from problem


def _opened(tracer: Tracer, traces: Traces, pulse: int) -> Context:
    ask = Questions(tracer.model, traces, lambda name: known_fact(ctx, name))
    ctx = Context(ask, pulse, tracer.time.batch, apply_rule)
    ask.as_value = lambda name: as_value(ctx, name)
    return ctx


def _apply_rules(ctx: Context, time: TimeSpec) -> Outputs:
    try:
        return _applied(ctx, time)
    except Unsure as problem:  # outside of any rule
        uncertain(ctx.ask, problem.node, "a value of the model", problem)


def _applied(ctx: Context, time: TimeSpec) -> Outputs:
    file_inputs(ctx, time)
    wanted = _wanted(ctx.ask.model)
    nodes = [n for n in ctx.ask.model.nodes if n.name in wanted and _is_data(ctx.ask.traces, n)]
    for node in counted("node", nodes):
        apply_rule(ctx, node)
    outputs = [output(ctx, name) for name in ctx.ask.model.outputs]
    for _, value in outputs:
        ctx.read(value.reads)
    check_decisions(ctx.ask)
    measured = _wanted(ctx.ask.model, measured=True)
    check_batches(ctx.ask, [n for n in ctx.ask.model.nodes if n.name in measured and _is_data(ctx.ask.traces, n)])
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
            hint=(
                "count in smaller numbers",
                ctx.ask.declare(f"<={ctx.ask.ledger.limit}", "declare how long streams are"),
            ),
            kind=Kind.LENGTH,
        )
    elif ctx.ask.ledger.limit < FAR:
        counter = ctx.ask.model.producers.get(ctx.ask.ledger.limited_by)
        name = ctx.ask.ledger.limited_by if counter is None else counter.name
        ctx.ask.ledger.require(name, Length(), at_most=ctx.ask.ledger.limit)


def _wanted(model: Model, measured: bool = False) -> set[str]:
    """Nodes some output depends on. What only has its shape read is not computed; measured: it counts all the same."""
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
            todo.extend(i for i in node.reads if i and (measured or not measures(node)))
    return seen


def _is_data(traces: Traces, node: Node) -> bool:
    return any(o and not traces.runs[0][o].known for o in node.outputs)


def _widest_field(traces: Traces) -> int:
    """The largest size of a time axis where frames meet frames, at the longest length seen."""
    run, narrow = traces.longest, traces.runs[0]
    sizes = (
        [y for x, y in zip(narrow[n].dims, v.dims, strict=True) if x != y] for n, v in run.values.items() if n in narrow
    )
    return max((max(s) for s in sizes if len(s) > 1), default=0)
