"""docs/operators.md, made from the operator table:    python -m pulsify.report.operators > docs/operators.md"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from pulsify.core.facet import FACETS, Facet
from pulsify.frontend.branches import BRANCHES
from pulsify.frontend.fused import FUSED
from pulsify.frontend.load import DROPPED
from pulsify.frontend.newer import NEWER
from pulsify.ops.registry import RULES, STREAM, Entry

HEAD = """# Operators

Made from the operator table by `python -m pulsify.report.operators`; do not edit by hand.

An operator is streamed by the rule in `src/pulsify/ops/<family>.py`, or has no rule of its own because it is
replaced before any is asked ([below](#without-a-rule)). What depends on the length alone (shapes, ranges, masks,
tables) is evaluated and needs none. Functions of the model are written out. Anything not listed here is refused by
name; operators of other domains can be made known from outside (CONTRIBUTING.md of the repository). What else is
known of each operator: [facet by facet](#facet-by-facet).
"""
WITHOUT = """## without a rule

Nodes that stand for others are replaced by them, in `src/pulsify/frontend`.

| operators | what happens to them |
|---|---|"""
FACETS_HEAD = """## facet by facet

What pulsify knows about an operator stands together in `src/pulsify/ops`: one answer per question.

| facet | question |
|---|---|"""
ANSWERS_HEAD = """
●: an answer of its own. ○: the one that follows from what kind of operator it is (`core/traits.py`). Operators with the
same marks share a line.
"""


def without_rule() -> dict[str, str]:
    """Operators that no rule is asked about, and why."""
    fused = {f"{domain}::{op}" if domain else op: says for (domain, op), says in FUSED.items()}
    return {**fused, **NEWER, **BRANCHES, **DROPPED}


def markdown() -> str:
    """The whole page."""
    families: dict[str, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in (e for e in RULES.values() if "::" not in e.op):  # what was registered from outside is not ours
        families[entry.family][entry.says].append(entry)
    lines = [HEAD]
    for family in sorted(families):
        lines += [f"## {family}", "", "| operators | what is streamed |", "|---|---|"]
        for says, entries in families[family].items():
            names = ", ".join(f"`{e.op}`" for e in sorted(entries, key=lambda e: e.op))
            lines.append(f"| {names} | {says} |")
        lines.append("")
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, says in without_rule().items():
        by_reason[says].append(f"`{name}`")
    lines += [WITHOUT, *(f"| {', '.join(names)} | {says} |" for says, names in by_reason.items()), ""]
    listed = sorted({name for name in (*RULES, *without_rule()) if "::" not in name})
    return "\n".join([*lines, *_facet_by_facet(listed), ""])


def _facet_by_facet(operators: Sequence[str]) -> Iterator[str]:
    """The questions, and who answers each."""
    facets = [
        STREAM,
        *sorted((f for f in FACETS.values() if f.answers and f.name != STREAM.name), key=lambda f: f.name),
    ]
    yield FACETS_HEAD
    yield from (f"| {facet.name} | {facet.question} |" for facet in facets)
    yield ANSWERS_HEAD
    yield f"| operators | {' | '.join(f.name for f in facets)} |"
    yield f"|---|{':-:|' * len(facets)}"
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in operators:
        alike[tuple(_mark(facet, name) for facet in facets)].append(f"`{name}`")
    for marks, names in sorted(alike.items(), key=lambda group: group[1]):
        if any(marks):
            yield f"| {', '.join(names)} | {' | '.join(marks)} |"


def _mark(facet: Facet[Any], operator: str) -> str:
    return "●" if operator in facet.answers else "" if facet.named(operator) is None else "○"


def main() -> None:
    import pulsify.ops  # noqa: F401  fills the registry

    print(markdown(), end="")


if __name__ == "__main__":
    main()
