"""docs/operators.md, made from the registry:    python -m pulsify.report.operators > docs/operators.md"""

from __future__ import annotations

from collections import defaultdict

from pulsify.frontend.branches import BRANCHES
from pulsify.frontend.fused import FUSED
from pulsify.frontend.load import DROPPED
from pulsify.ops.registry import RULES, Entry

HEAD = """# Operators

Made from the rule registry by `python -m pulsify.report.operators`; do not edit by hand.

An operator is streamed by the rule in `src/pulsify/ops/<family>.py`, or has no rule of its own because it is
replaced before any is asked ([below](#without-a-rule)). What depends on the length alone (shapes, ranges, masks,
tables) is evaluated and needs none. Functions of the model are written out. Anything not listed here is refused by
name; operators of other domains can be made known from outside (CONTRIBUTING.md of the repository).
"""
WITHOUT = """## without a rule

Nodes that stand for others are replaced by them, in `src/pulsify/frontend`.

| operators | what happens to them |
|---|---|"""


def without_rule() -> dict[str, str]:
    """Operators that no rule is asked about, and why."""
    fused = {f"{domain}::{op}" if domain else op: says for (domain, op), says in FUSED.items()}
    return {**fused, **BRANCHES, **DROPPED}


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
    return "\n".join(lines)


def main() -> None:
    import pulsify.ops  # noqa: F401  fills the registry

    print(markdown(), end="")


if __name__ == "__main__":
    main()
