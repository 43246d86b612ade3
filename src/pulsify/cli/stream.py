"""`pulsify stream`: convert, check, save, and say what came out."""

from __future__ import annotations

import click

from pulsify.cli import options
from pulsify.cli.opening import convert_batch, source_of
from pulsify.cli.outcome import guarded, print_json
from pulsify.cli.screen import short, show, working


@click.command(short_help="Turn a batch model into a streaming one.")
@click.argument("model")
@options.pulse
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Where to save the streaming model.")
@options.meaning
@options.no_verify
@options.sample_rate
@options.as_json
@guarded
def stream(
    model: str,
    pulse: int | None,
    output: str | None,
    time: options.Time,
    bind: dict[str, str | None],
    fixed: dict[str, int | str],
    unbounded: str | int,
    proof: str,
    opening: bool,
    phase: bool,
    no_verify: bool,
    sample_rate: float | None,
    as_json: bool,
) -> None:
    """Turn the batch model MODEL (an ONNX file, or a .pt2 of torch.export) into a streaming one.

    \b
    pulsify stream model.onnx -p 8 -o stream.onnx
    pulsify stream model.onnx -p 160 --sample-rate 16000 --set B=1
    """
    with working(f"converting {short(model)}", as_json) as say:
        from pulsify.report.figures import stream_figures, verified_figures
        from pulsify.verify.check import quick

        made = convert_batch(
            model,
            pulse,
            {
                "time": time,
                "bind": bind,
                "set": fixed,
                "unbounded": unbounded,
                "proof": proof,
                "opening": opening,
                "phase": phase,
            },
            verify=False,
            sample_rate=sample_rate,
        )
        verified = None
        if not no_verify:
            verified = verified_figures(quick(source_of(model), made))
        if output is not None:
            say(f"writing {output}")
            made.save(output)
        facts = {"model": model, "saved": output, **stream_figures(made, sample_rate), "verified": verified}
    if as_json:
        print_json(facts)
        return
    from pulsify.report.render import stream_lines, stream_tables, summary, verified_text

    lines = [("model", model), *stream_lines(facts), ("verified", verified_text(verified))]
    if verified and verified["fed"]:
        lines.append(("fed", ", ".join(verified["fed"])))
    lines += [("note", note) for note in (verified or {"notes": []})["notes"]]
    lines.append(("saved", output or "no (-o FILE saves it)"))
    show([summary(lines), *stream_tables(facts)])
