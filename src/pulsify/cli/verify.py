"""`pulsify verify`: does a stream equal its batch model?"""

from __future__ import annotations

from typing import Any

import click

from pulsify.cli import options
from pulsify.cli.opening import is_stream
from pulsify.cli.outcome import error_figures, guarded, message, print_json
from pulsify.cli.screen import show, working
from pulsify.core.errors import InvalidArgument, Mismatch


@click.command(short_help="Check a stream against its batch model.")
@click.argument("model")
@click.argument("stream")
@click.option("-n", "--length", "lengths", type=click.IntRange(min=1), multiple=True, help="Try it. Repeatable.")
@click.option("--tolerance", type=click.FloatRange(min=0), help="Largest error, relative to the output's scale.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random inputs.")
@options.backend
@options.as_json
@guarded
def verify(
    model: str,
    stream: str,
    lengths: tuple[int, ...],
    tolerance: float | None,
    seed: int,
    backend: str,
    as_json: bool,
) -> None:
    """Run the batch MODEL and the STREAM made from it side by side; exit code 1 if they differ.

    Many lengths, pushed pulse by pulse, in random chunks and in one piece.
    """
    wrong: Mismatch | None = None
    with working("running batch and stream side by side", as_json):
        from pulsify.api import load
        from pulsify.core.identity import source_hash
        from pulsify.core.runner import open_model
        from pulsify.report.batch import check_belongs
        from pulsify.report.figures import verified_figures
        from pulsify.verify.check import verify as check

        made = load(stream)
        if is_stream(model):
            raise InvalidArgument(f"{model} is a stream too: the batch model comes first, then the stream")
        check_belongs(open_model(model), made)
        try:
            report = check(model, made, lengths=list(lengths) or None, tolerance=tolerance, seed=seed, backend=backend)
        except Mismatch as error:
            if error.report is None or not error.report.runs:
                raise
            wrong, report = error, error.report
        same = made.spec.source == source_hash(model)
        facts = {"model": model, "stream": stream, "made_from_this_file": same, "verified": verified_figures(report)}
    if as_json:
        print_json(facts | ({"error": error_figures(wrong)} if wrong else {}))
    else:
        _show(facts)
    if wrong is not None:
        if as_json:
            click.echo(message(wrong), err=True)
        click.get_current_context().exit(1)


def _show(facts: dict[str, Any]) -> None:
    from pulsify.report.render import count, summary, verified_table

    verified = facts["verified"]
    lines = [
        ("batch model", facts["model"]),
        ("stream", facts["stream"]),
        *([] if facts["made_from_this_file"] else [("", "made from another file")]),
        ("compared", f"{count(verified['runs'], 'stream')} at lengths {', '.join(map(str, verified['lengths']))}"),
        ("limits", "of each output's scale, by its type" if len(verified["outputs"]) > 1 else "of the output's scale"),
        (
            "result",
            "the stream is the batch model" if verified["ok"] else "MISMATCH: the stream is not the batch model",
        ),
    ]
    if verified["departs"]:
        lines.append(("departs", f"first at wire '{verified['departs']}'"))
    lines += [("note", note) for note in verified["notes"]]
    show([summary(lines), verified_table(verified)])
