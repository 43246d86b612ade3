"""The one registry: operator -> rule. An operator without a rule is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pulsify.analysis.facts import FirstFrames, Late, Static, Wire
from pulsify.analysis.proof.numbers import uncertain
from pulsify.analysis.questions import Questions
from pulsify.core.boundary import foreign, processing, public
from pulsify.core.custom import WHOLE, split
from pulsify.core.facet import Facet, full_name
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.lengths.series import Unsure
from pulsify.plan.context import Context, Misaligned
from pulsify.plan.plan import Plan, execute

Rule = Callable[[Context, Node], Plan | None]


@dataclass(frozen=True)
class Entry:
    """A rule with the one line that docs/operators.md prints for it."""

    op: str
    family: str
    rule: Rule
    says: str

    def __str__(self) -> str:
        return f"in {self.rule.__module__}"


STREAM = Facet[Entry]("stream", "which frames an output frame reads, how many there are, how a window is computed")


RULES = STREAM.answers


@public
def rule(*ops: str, says: str = "") -> Callable[[Rule], Rule]:
    """Register a function as the rule of these operators ("Conv"; "acme::Boost" if of another domain).

    The function gets the context and the node and returns a Plan; None means it has filed the facts itself.
    """

    whole = {op: split(op) for op in ops if "::" in op}

    @public
    def register(function: Rule) -> Rule:
        family = function.__module__.rsplit(".", 1)[-1]
        text = says or (function.__doc__ or function.__name__).strip().splitlines()[0]
        STREAM.add({op: Entry(op, family, function, text) for op in ops})
        WHOLE.update(whole.values())
        return function

    return register


def apply_rule(ctx: Context, node: Node) -> None:
    """Run the rule of a node and file the facts of its outputs."""
    try:
        with processing(node):
            _apply(ctx, node)
            _check_first(ctx, node)
    except Unsure as problem:
        uncertain(ctx.ask, node, node.outputs[0], problem)
    except Misaligned as problem:
        problem.node = problem.node or node
        raise


def _check_first(ctx: Context, node: Node) -> None:
    """Whatever is made of first frames says so, or comes when they are there."""
    read = [f for n in node.reads if isinstance(f := ctx.ask.facts.get(n), (Static, Wire))]
    first = {w for f in read for w in f.waits if w.early and w.pulse > 0}
    for name in node.outputs if first else ():
        fact = ctx.ask.facts.get(name)
        if fact is None or isinstance(fact, Late):  # what it is made of goes along with it
            continue
        if isinstance(fact, (Static, Wire)) and first <= {*fact.waits}:
            continue
        ends: list[tuple[int, int]] = []  # where windows end, and by how many frames they move
        if isinstance(fact, Wire) and fact.end is not None and fact.length is not None:
            ends = [(fact.end, ctx.frames(fact.rate))]
        elif isinstance(fact, Static):
            ends = [(w.window.end, w.window.p) for w in fact.late if w.window is not None]
        if ends and (ctx.started or all(end <= -(w.pulse - 1) * p for w in first for end, p in ends)):
            continue
        ctx.ask.refuse(
            node,
            "the first frames of the stream are used in a way that does not wait for them",
            "feed them as a separate input without a time axis, or use a longer pulse",
        )


def _apply(ctx: Context, node: Node) -> None:
    from pulsify.ops.late import late_rule, reads_late
    from pulsify.ops.pairwise import field_rule, meets

    check = REQUIRED.of(node)
    if check is not None:
        check(ctx.ask, node)
    _take_first_frames(ctx, node)
    if reads_late(ctx, node):
        plan = late_rule(ctx, node)
        if plan is not None:
            execute(ctx, node, plan)
        return
    if meets(ctx, node):
        field_rule(ctx, node)
        return
    key = full_name(node)
    entry = STREAM.of(node)
    if entry is None:
        ctx.ask.refuse(
            node,
            f"no streaming rule is known for operator {key}",
            "replace it by operators listed in docs/operators.md, or keep it outside the streamed model",
        )
    if entry.rule.__module__.partition(".")[0] == __package__.partition(".")[0]:
        plan = entry.rule(ctx, node)
    else:
        with foreign(f"the rule of '{key}'"):
            plan = entry.rule(ctx, node)
    if plan is not None:
        execute(ctx, node, plan)


def _take_first_frames(ctx: Context, node: Node) -> None:
    """First frames that a node reads as a value are one from here on."""
    kind = traits(node.op, node.domain)
    if kind.regroups or kind.axes == "join":  # they take first frames as they are, without waiting for them
        return
    for name in node.reads:
        if isinstance(ctx.ask.facts.get(name), FirstFrames) and ctx.ask.as_value is not None:
            ctx.ask.as_value(name)


REQUIRED = Facet[Callable[[Questions, Node], None]]("required", "what must hold, whichever way it is streamed")
