"""The one registry: operator -> rule. An operator without a rule is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pulsify.convert.context import Context, Misaligned
from pulsify.convert.known.series import Unsure
from pulsify.convert.plan import Plan, execute
from pulsify.convert.proof.numbers import uncertain
from pulsify.core.custom import WHOLE, split
from pulsify.core.errors import InvalidArgument
from pulsify.frontend.model import Node

Rule = Callable[[Context, Node], Plan | None]


@dataclass(frozen=True)
class Entry:
    """A rule with the one line that docs/operators.md prints for it."""

    op: str
    family: str
    rule: Rule
    says: str


RULES: dict[str, Entry] = {}


def rule(*ops: str, says: str = "") -> Callable[[Rule], Rule]:
    """Register a function as the rule of these operators ("Conv"; "acme::Boost" if of another domain).

    The function gets the context and the node and returns a Plan; None means it has filed the facts itself.
    """

    def register(function: Rule) -> Rule:
        family = function.__module__.rsplit(".", 1)[-1]
        text = says or (function.__doc__ or function.__name__).strip().splitlines()[0]
        for op in ops:
            if op in RULES:
                raise InvalidArgument(f"{op} has a rule already, in {RULES[op].rule.__module__}")
            if "::" in op:
                WHOLE.add(split(op))
            RULES[op] = Entry(op, family, function, text)
        return function

    return register


def apply_rule(ctx: Context, node: Node) -> None:
    """Run the rule of a node and file the facts of its outputs."""
    try:
        _apply(ctx, node)
    except Unsure as problem:
        uncertain(ctx.ask, node, node.outputs[0], problem)
    except Misaligned as problem:
        problem.node = problem.node or node
        raise


def _apply(ctx: Context, node: Node) -> None:
    from pulsify.convert.rules.pairwise import field_rule, meets

    if meets(ctx, node):
        field_rule(ctx, node)
        return
    key = f"{node.domain}::{node.op}" if node.domain else node.op
    entry = RULES.get(key)
    if entry is None:
        ctx.ask.refuse(
            node,
            f"no streaming rule is known for operator {key}",
            "replace it by operators listed in docs/operators.md, or keep it outside the streamed model",
        )
    plan = entry.rule(ctx, node)
    if plan is not None:
        execute(ctx, node, plan)
