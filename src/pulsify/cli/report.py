"""`pulsify report`: all there is to know about a model as a stream, on one page."""

from __future__ import annotations

from pathlib import Path

import click

from pulsify.cli import options
from pulsify.cli.opening import is_stream
from pulsify.cli.outcome import NOT_STREAMABLE, guarded, print_json
from pulsify.cli.screen import line, short, working
from pulsify.core.errors import InvalidArgument


@click.command(short_help="A page about a model as a stream: time, delay, cost, errors, ways out.")
@click.argument("model")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="The HTML file. [default: MODEL.html, here]")
@options.pulse
@options.meaning
@options.sample_rate
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=0.2, show_default=True, help="For each of the measurements."
)
@options.as_json
@guarded
def report(
    model: str,
    output: str | None,
    pulse: int | None,
    time: options.Time,
    bind: dict[str, str | None],
    fixed: dict[str, int | str],
    unbounded: str | int,
    proof: str,
    opening: bool,
    phase: bool,
    sample_rate: float | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Write one HTML file about the batch model MODEL as a stream. It needs no other file and no network.

    What an output frame reads and where delay comes from, layer by layer; pulses against latency, work and state; the
    cost of every node; errors against batch. Of a model that is refused: where it stops, and ways out that were tried.

    \b
    pulsify report model.onnx -o report.html
    pulsify report model.onnx --sample-rate 16000
    pulsify report model.onnx --json              the same figures, no file
    """
    if is_stream(model):
        raise InvalidArgument(f"{model} is a stream already: give the batch model it was made from")
    meaning = {
        "time": time, "bind": bind, "set": fixed, "unbounded": unbounded, "proof": proof, "opening": opening,
        "phase": phase,
    }  # fmt: skip
    with working(f"looking at {short(model)}", as_json) as say:
        from pulsify.report.document import Asked, report_figures
        from pulsify.report.page import page

        facts = report_figures(Asked(model, pulse, meaning, sample_rate, seconds, say))
        path = output or (None if as_json else f"{Path(model).stem}.html")
        if path is not None:
            Path(path).write_text(page(facts), "utf-8")
    if as_json:
        print_json({**facts, "saved": path})
    else:
        line(f"written to {path}")
    if facts["refusal"] is not None:
        click.echo(f"not streamable: {facts['refusal']['reason']}", err=True)
        click.get_current_context().exit(NOT_STREAMABLE)
