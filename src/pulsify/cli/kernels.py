"""`pulsify kernels`: which kernels there are, and how far each of their implementations is from its specification."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import click

from pulsify.cli import options
from pulsify.cli.outcome import MISMATCH, guarded, print_json
from pulsify.cli.screen import show, working

if TYPE_CHECKING:
    from pulsify.kernels.checking import Outcome


@click.group(invoke_without_command=True, short_help="Kernels: which there are, and their proof.")
@options.as_json
@click.pass_context
@guarded
def kernels(context: click.Context, as_json: bool) -> None:
    """List the kernels: each has a specification in numpy, cases made from it alone, and implementations by target.

    \b
    pulsify kernels                        which there are
    pulsify kernels check                  every case on every implementation there is
    pulsify kernels check --device cuda    those for a graphics card
    """
    if context.invoked_subcommand is None:
        from pulsify.kernels.registry import kernels as all_kernels

        facts = [
            {
                "name": one.name, "about": one.about, "cases": len(one.cases),
                "implementations": {name: list(found.devices) for name, found in one.implementations.items()},
            }
            for one in all_kernels()
        ]  # fmt: skip
        if as_json:
            print_json({"kernels": facts})
        else:
            _list(facts)


@kernels.command(short_help="Every case on every implementation there is.")
@click.option(
    "--device", metavar="DEVICE", help="cpu, cuda, cuda:1, ... [default: cpu, and a graphics card if there is one]"
)
@options.as_json
@guarded
def check(device: str | None, as_json: bool) -> None:
    """Run every case on every implementation, and print the worst error of each.

    An error's share is that of what roundings may come to. Ends with 1 if a case is beyond it, has NaN elsewhere
    than the specification, or if nothing could be run. Triton runs on the CPU in its interpreter: TRITON_INTERPRET=1.
    """
    from pulsify.kernels.checking import check as outcomes
    from pulsify.kernels.registry import kernels as all_kernels

    found: list[Outcome] = []
    with working("running cases", as_json) as say:
        for kernel in all_kernels():
            for where in [device] if device else _devices():
                for outcome in outcomes(kernel, where):
                    say(f"{kernel.name}: {outcome.target} on {where}, {outcome.dtype}")
                    found.append(outcome)
    ran = [one for one in found if not one.missing]
    ok = bool(ran) and not any(one.failed for one in ran)
    if as_json:
        print_json({"ok": ok, "checked": [_figures(one) for one in found]})
    else:
        _table(found)
    if not ok:
        click.get_current_context().exit(MISMATCH)


def _figures(one: Outcome) -> dict[str, Any]:
    """JSON has no infinity: NaN elsewhere is a failed case without a share."""
    return dataclasses.asdict(one) | {"share": one.share if math.isfinite(one.share) else None}


def _devices() -> list[str]:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        return ["cpu"]
    import torch

    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _list(facts: list[dict[str, Any]]) -> None:
    from pulsify.report.sheet import Column, Sheet

    sheet = Sheet([Column("kernel", "label"), Column("cases", "number"), Column("implementations"), Column("")])
    for one in facts:
        targets = ", ".join(f"{name} ({', '.join(devices)})" for name, devices in one["implementations"].items())
        sheet.add(one["name"], str(one["cases"]), targets, one["about"])
    show([sheet])


def _table(found: list[Outcome]) -> None:
    from pulsify.report.sheet import Column, Sheet

    for kernel in dict.fromkeys(one.kernel for one in found):
        sheet = Sheet(
            [
                Column("target"), Column("device", "fixed"), Column("type", "fixed"), Column("cases", "number"),
                Column("worst error", "number"), Column("share", "number"), Column("where"),
            ]
        )  # fmt: skip
        for one in found:
            if one.kernel == kernel and not one.missing:
                where = f"FAILED: {', '.join(one.failed)}" if one.failed else one.worst
                sheet.add(
                    one.target, one.device, one.dtype, str(one.cases), f"{one.error:.1e}", f"{one.share:.2f}", where,
                    style="red" if one.failed else "",
                )  # fmt: skip
        left = {(one.target, one.device, one.missing): None for one in found if one.kernel == kernel and one.missing}
        show([kernel, sheet, *(f"{target} on {device} was not run: {why}" for target, device, why in left)])
