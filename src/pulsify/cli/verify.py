"""`pulsify verify`: does a stream equal its batch model?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pulsify.cli import options
from pulsify.cli.opening import is_stream, source_of
from pulsify.cli.outcome import MISMATCH, error_figures, guarded, message, print_json
from pulsify.cli.screen import show, working
from pulsify.core.errors import InvalidArgument, Mismatch

if TYPE_CHECKING:
    from pulsify.core.report import NodeReport


@click.command(short_help="Check a stream against its batch model.")
@click.argument("model")
@click.argument("stream")
@click.option("-n", "--length", "lengths", type=click.IntRange(min=1), multiple=True, help="Try it. Repeatable.")
@click.option("--tolerance", type=click.FloatRange(min=0), help="Largest error, relative to the output's scale.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random inputs.")
@click.option(
    "--per-node",
    is_flag=True,
    help="Node by node too: the step on the back end beside ONNX Runtime, and the first node that departs.",
)
@options.backend
@options.as_json
@guarded
def verify(
    model: str,
    stream: str,
    lengths: tuple[int, ...],
    tolerance: float | None,
    seed: int,
    per_node: bool,
    machine: options.Machine,
    as_json: bool,
) -> None:
    """Run the batch MODEL and the STREAM made from it side by side; exit code 1 if they differ.

    Many lengths, pushed pulse by pulse, in random chunks and in one piece.

    \b
    pulsify verify model.onnx stream.onnx
    pulsify verify model.onnx stream.onnx --backend torch --device cuda --per-node
    """
    wrong: Mismatch | None = None
    found: NodeReport | None = None
    with working("running batch and stream side by side", as_json) as say:
        from pulsify.api import load
        from pulsify.api import verify as check
        from pulsify.core.identity import source_hash
        from pulsify.core.runner import open_model
        from pulsify.report.batch import check_belongs
        from pulsify.report.figures import node_figures, verified_figures
        from pulsify.verify.nodes import compare_nodes

        made = load(stream, check="full")
        if is_stream(model):
            raise InvalidArgument(f"{model} is a stream too: the batch model comes first, then the stream")
        source = source_of(model)
        same = made.spec.source == source_hash(source)
        try:
            check_belongs(open_model(source), made)
        except InvalidArgument as error:
            raise (
                error if same else InvalidArgument(f"{stream} was made from another file than {model}: {error}")
            ) from None
        try:
            report = check(
                source, made, lengths=list(lengths) or None, tolerance=tolerance, seed=seed, backend=machine.backend,
                options=machine.options,
            )  # fmt: skip
        except Mismatch as error:
            if error.report is None or not error.report.runs:
                raise
            wrong, report = error, error.report
        facts = {"model": model, "stream": stream, "made_from_this_file": same, "verified": verified_figures(report)}
        if per_node:
            say("running the step node by node")
            found = compare_nodes(
                made, backend=machine.backend, options=machine.options, tolerance=tolerance, seed=seed
            )
            facts["nodes"] = node_figures(found)
    if as_json:
        print_json(facts | ({"error": error_figures(wrong)} if wrong else {}))
    else:
        _show(facts)
    if wrong is not None and as_json:
        click.echo(message(wrong), err=True)
    judged = found is not None and (found.low is None or tolerance is not None)  # a lower type is told, not judged
    if wrong is not None or (found is not None and (found.outside or (judged and not found.ok))):
        click.get_current_context().exit(MISMATCH)


def _show(facts: dict[str, Any]) -> None:
    from pulsify.report.render import count, node_lines, node_table, summary, verified_table

    verified = facts["verified"]
    scale = "each output's scale, by its type" if len(verified["outputs"]) > 1 else "the output's scale"
    lines = [
        ("batch model", facts["model"]),
        ("stream", facts["stream"]),
        *([] if facts["made_from_this_file"] else [("", "was made from another file than this batch model")]),
        ("compared", f"{count(verified['runs'], 'stream')} at lengths {', '.join(map(str, verified['lengths']))}"),
        *([("fed", ", ".join(verified["fed"]))] if verified["fed"] else []),
        ("limits", f"relative to {scale}" if verified["judged"] else f"none: errors are told, relative to {scale}"),
        ("result", _result(verified, facts["made_from_this_file"])),
    ]
    if verified["departs"]:
        lines.append(("departs", f"inside the model, first at '{verified['departs']}'"))
    lines += [("note", note) for note in verified["notes"]]
    show([summary(lines), verified_table(verified)])
    if "nodes" in facts:
        show(["", summary(node_lines(facts["nodes"])), node_table(facts["nodes"])])


def _result(verified: dict[str, Any], same: bool) -> str:
    from pulsify.report.render import error_text

    if not verified["ok"]:
        return "MISMATCH: the stream is not the batch model" + ("" if same else ", nor was it made from this file")
    if verified["judged"]:
        return "the stream is the batch model"
    mean = max((o["mean"] for o in verified["outputs"]), default=0.0)
    worst = f"relative error {error_text(verified['error'])} at most, {error_text(mean)} in the mean"
    return f"in {verified['computed_in']}, not the batch model in float32: {worst}"
