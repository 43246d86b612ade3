"""docs/operators.md, made from the registry:    python -m pulsify.report.operators > docs/operators.md"""

from __future__ import annotations

from collections import defaultdict

from pulsify.convert.rules.registry import RULES, Entry

HEAD = """# Operators

Made from the rule registry by `python -m pulsify.report.operators`; do not edit by hand.

An operator is streamed by the rule in `src/pulsify/rules/<family>.py`. What depends on the length alone (shapes,
ranges, masks, tables) is evaluated and needs no rule. Anything not listed here is refused by name.
"""


def markdown() -> str:
    """The whole page."""
    families: dict[str, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in RULES.values():
        families[entry.family][entry.says].append(entry)
    lines = [HEAD]
    for family in sorted(families):
        lines += [f"## {family}", "", "| operators | what is streamed |", "|---|---|"]
        for says, entries in families[family].items():
            names = ", ".join(f"`{e.op}`" for e in sorted(entries, key=lambda e: e.op))
            lines.append(f"| {names} | {says} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    import pulsify.convert.rules  # noqa: F401  fills the registry

    print(markdown(), end="")


if __name__ == "__main__":
    main()
