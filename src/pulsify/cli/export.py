"""`pulsify export`: a stream for somebody who does not have pulsify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pulsify.cli import options
from pulsify.cli.outcome import guarded, print_json
from pulsify.cli.screen import short, show, working

COUNT = click.IntRange(min=1)
FRONT = ("merge_front_end", "model", "sample_rate")  # any target takes them


@click.command(short_help="Write a streaming model for C, OpenVINO, Triton, the web, sherpa-onnx, or as ONNX.")
@click.argument("stream")
@click.option(
    "--to",
    "target",
    default="c",
    show_default=True,
    help="What it is written as: c, onnx, openvino, triton, web, sherpa-onnx.",
)
@click.option("-o", "--output", type=click.Path(), required=True, help="A folder, or a file (onnx).")
@click.option("--merge-front-end", metavar="FILE", help="An ONNX model to run in front: samples to STREAM's input.")
@click.option("--model", metavar="FILE", help="With it: the batch model that STREAM was made from.")
@click.option(
    "--sample-rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="HZ",
    help="With it: of its samples. [default: from STREAM's own]",
)
@click.option(
    "--weights",
    type=click.Choice(["source", "file"]),
    help="c: the weights as a C file, or as one binary. [default: source]",
)
@click.option("--name", help="c, triton: what it is called. [default: the folder's name]")
@click.option("--fp16", is_flag=True, help="onnx: weights and states in half precision; the error is told.")
@click.option("--opset", type=COUNT, metavar="N", help="onnx: written in this version of ONNX's operators.")
@click.option("--ort-format", is_flag=True, help="onnx: in ONNX Runtime's own format, *.ort.")
@click.option("--strategy", type=click.Choice(["oldest", "direct"]), help="triton: how sequences share a batch.")
@click.option("--batch", type=COUNT, metavar="N", help="triton: streams in one call at most. [default: 16]")
@click.option("--sequences", type=COUNT, metavar="N", help="triton: streams open at once. [default: 256]")
@click.option("--kind", type=click.Choice(["ctc", "transducer"]), help="sherpa-onnx: of recogniser. [default: ctc]")
@click.option("--tokens", metavar="FILE", help="sherpa-onnx: one unit a line; one of them is <blk>.")
@click.option("--decoder", metavar="FILE", help="sherpa-onnx: of a transducer.")
@click.option("--joiner", metavar="FILE", help="sherpa-onnx: of a transducer.")
@click.option("--layers", type=COUNT, metavar="N", help="sherpa-onnx: of the decoder. [default: 1]")
@click.option("--hidden", type=COUNT, metavar="N", help="sherpa-onnx: the decoder's width.")
@click.option("--native", is_flag=True, help="web: as C compiled to WebAssembly, in the audio thread for sound.")
@click.option("--runtime", metavar="FOLDER", help="web: onnxruntime-web's dist. [default: fetched with npm, once]")
@options.as_json
@guarded
def export(stream: str, target: str, output: str, as_json: bool, **own: Any) -> None:
    """Write the streaming model STREAM (made by `pulsify stream`) for somebody who does not have pulsify.

    \b
    pulsify export stream.onnx --to c -o denoiser --weights file
    pulsify export stream.onnx --to onnx -o half.onnx --fp16 --opset 15
    pulsify export stream.onnx --to openvino -o denoiser
    pulsify export stream.onnx --to triton -o repository --batch 32
    pulsify export stream.onnx --to web -o site
    pulsify export ctc.onnx --to sherpa-onnx -o recogniser --tokens units.txt
    """
    with working(f"reading {short(stream)}", as_json) as say:
        from pulsify import load

        made = load(stream)
        say(f"writing {output}")
        given = {key: value for key, value in own.items() if value is not None and value is not False}
        _fit(target, given)
        path = Path(output)
        before = _seen(path)
        made.export(output, target, **given)
        files = [f for f, seen in _seen(path).items() if before.get(f) != seen] if path.is_dir() else [path]
        sizes = {str(f.relative_to(path)) if path.is_dir() else f.name: f.stat().st_size for f in sorted(files)}
        facts: dict[str, Any] = {
            "stream": stream, "target": target, "output": output, "state_bytes": made.state_bytes, "files": sizes,
            **(_halved(path) if own["fp16"] else {}),
        }  # fmt: skip
    if as_json:
        print_json(facts)
        return
    from pulsify.report.render import summary

    lines = [("stream", stream), ("written as", target), ("to", output)]
    lines += [(name, f"{size:,} bytes") for name, size in sizes.items()]
    lines += [(f"relative error of {name}", f"{off:.1e}") for name, off in facts.get("rounding", {}).items()]
    show([summary(lines)])


def _fit(target: str, given: dict[str, Any]) -> None:
    """InvalidArgument if an option is not the target's, in the words of the command line."""
    from pulsify.core.errors import InvalidArgument
    from pulsify.export.registry import options_of

    takes = [name for name in options_of(target) if name in _here()]
    if unknown := [name for name in given if name not in (*takes, *FRONT)]:
        has = f"it takes {', '.join(map(_option, takes))}" if takes else "it has none of its own"
        raise InvalidArgument(f"{_option(unknown[0])} is no option of --to {target}: {has}")


def _here() -> list[str]:
    return [str(p.name) for p in export.params]


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _seen(path: Path) -> dict[Path, tuple[int, int]]:
    """All files of a folder, and what changes when one is written."""
    files = [f for f in path.rglob("*") if f.is_file()] if path.is_dir() else []
    return {f: (f.stat().st_ino, f.stat().st_mtime_ns) for f in files}


def _halved(path: Path) -> dict[str, Any]:
    """What half precision costs, by output, and what its states take."""
    import json

    from pulsify.export.onnx import rounding, said

    states = json.loads(said(path)["pulsify.states"])
    return {"rounding": dict(rounding(path)), "state_bytes": sum(s["nbytes"] for s in states)}
