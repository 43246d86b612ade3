"""`pulsify bench`: what a pulse costs, against running the batch model again and again."""

from __future__ import annotations

from typing import Any

import click

from pulsify.cli import options
from pulsify.cli.opening import convert_batch
from pulsify.cli.outcome import guarded, print_json
from pulsify.cli.screen import short, show, working


@click.command(short_help="Time a pulse, against running the batch model again.")
@click.argument("model")
@options.pulse
@options.meaning
@options.no_verify
@options.sample_rate
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=1.0, show_default=True, help="For each of the measurements."
)
@options.as_json
@guarded
def bench(
    model: str,
    pulse: int | None,
    time: options.Time,
    bind: dict[str, str],
    fixed: dict[str, int | str],
    unbounded: str | int,
    no_verify: bool,
    sample_rate: float | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Time a pulse of the stream made from the batch model MODEL. One thread.

    Beside it: the batch model run anew at every pulse over the frames that the new output needs, which is how a batch
    model is streamed without conversion, and the batch model run once at the end, over everything.
    """
    with working(f"converting {short(model)}", as_json) as say:
        from pulsify.report.facts import stream_facts
        from pulsify.report.timing import bench_facts
        from pulsify.runtime.runner import open_model

        made = convert_batch(
            model, pulse, {"time": time, "bind": bind, "set": fixed, "unbounded": unbounded}, verify=not no_verify
        )
        timing = bench_facts(open_model(model), made, sample_rate=sample_rate, seconds=seconds, progress=say)
        facts = {"model": model, **timing, "stream_facts": stream_facts(made, sample_rate)}
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def _show(facts: dict[str, Any]) -> None:
    from pulsify.report.render import bench_table, looks_text, stream_lines, summary

    kept = [line for line in stream_lines(facts["stream_facts"]) if line[0] in ("pulse", "state", "step graph")]
    lines = [("model", facts["model"]), *kept, ("looks", looks_text(facts))]
    if facts["pulse_ms"]:
        share = facts["stream"]["p50_us"] / 1000 / facts["pulse_ms"]
        lines.append(("real time", f"a pulse lasts {facts['pulse_ms']:.3g} ms, its work {share:.2%} of that"))
    show([summary(lines), bench_table(facts)])
