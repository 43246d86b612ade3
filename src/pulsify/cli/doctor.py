"""`pulsify doctor`: what is here, what is missing, and how to get it."""

from __future__ import annotations

from typing import Any

import click

from pulsify.cli import options
from pulsify.cli.outcome import guarded, print_json
from pulsify.cli.screen import show, working


@click.command(short_help="Versions, back ends, devices, compilers, and what is missing.")
@options.as_json
@guarded
def doctor(as_json: bool) -> None:
    """Say what pulsify finds on this machine, and what to install for the rest."""
    with working("looking around", as_json):
        from pulsify.report.doctor import doctor_figures

        facts = doctor_figures()
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def _show(facts: dict[str, Any]) -> None:
    from pulsify.report.render import backend_table, extra_table, size, summary

    machine, compiler = facts["machine"], facts["compiler"]
    lines = [
        ("pulsify", f"{facts['pulsify']}, Python {facts['python']}"),
        ("machine", f"{machine['system']}, {machine['processor']}, {machine['cores']} cores"),
        *((d["name"], d["version"] or "MISSING: reinstall pulsify") for d in facts["core"]),
        ("C compiler", compiler["version"] or compiler["why_not"] or compiler["command"]),
    ]
    cards = [(d["device"], f"{d['name']}, {size(d['bytes'])}") for d in facts["devices"]]
    lines += cards or [("graphics card", "none that torch sees")]
    show([summary(lines), backend_table(facts), extra_table(facts)])
