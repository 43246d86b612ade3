"""`pulsify export`: a stream for somebody who does not have pulsify."""

from __future__ import annotations

from pathlib import Path

import click

from pulsify.cli import options
from pulsify.cli.outcome import guarded, print_json
from pulsify.cli.screen import short, show, working


@click.command(short_help="Write a streaming model as C, or as ONNX.")
@click.argument("stream")
@click.option("--to", "target", default="c", show_default=True, help="What it is written as: c or onnx.")
@click.option("-o", "--output", type=click.Path(), required=True, help="A folder (c) or a file (onnx).")
@click.option(
    "--weights",
    type=click.Choice(["source", "file"]),
    help="c: the weights as a C file, or as one binary. [default: source]",
)
@click.option("--name", help="c: what its functions are called. [default: the folder's name]")
@options.as_json
@guarded
def export(stream: str, target: str, output: str, weights: str | None, name: str | None, as_json: bool) -> None:
    """Write the streaming model STREAM (made by `pulsify stream`) for a machine without Python.

    \b
    pulsify export stream.onnx --to c -o denoiser
    pulsify export stream.onnx --to c -o denoiser --weights file --name denoiser
    """
    with working(f"reading {short(stream)}", as_json) as say:
        from pulsify import load

        made = load(stream)
        say(f"writing {output}")
        chosen = {key: value for key, value in (("weights", weights), ("name", name)) if value is not None}
        made.export(output, target, **chosen)
        path = Path(output)
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        facts = {
            "stream": stream, "target": target, "output": output, "state_bytes": made.state_bytes,
            "files": {f.name: f.stat().st_size for f in files},
        }  # fmt: skip
    if as_json:
        print_json(facts)
        return
    from pulsify.report.render import summary

    lines = [("stream", stream), ("written as", target), ("to", output)]
    show([summary(lines + [(f.name, f"{f.stat().st_size:,} bytes") for f in files])])
