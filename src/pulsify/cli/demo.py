"""`pulsify demo`: a model that comes with the package, streamed before your eyes."""

from __future__ import annotations

from typing import Any

import click

from pulsify.cli import options
from pulsify.cli.outcome import guarded, print_json
from pulsify.cli.screen import show, working


@click.command(short_help="See it work on a model that comes with pulsify.")
@click.option(
    "-p", "--pulse", type=click.IntRange(min=1), metavar="N", default=160, show_default=True, help="Samples per call."
)
@click.option("--save", type=click.Path(dir_okay=False), metavar="FILE", help="Write the batch model to FILE too.")
@options.as_json
@guarded
def demo(pulse: int, save: str | None, as_json: bool) -> None:
    """Stream a speech enhancer and a recogniser that come with pulsify, and show that both are exact.

    \b
    pulsify demo
    pulsify demo --save demo.onnx && pulsify inspect demo.onnx --stage windows -p 160
    """
    with working("reading the model", as_json) as say:
        from pulsify.demo.figures import demo_figures
        from pulsify.demo.model import enhancer

        facts = demo_figures(pulse, 0.4, say)
        facts["saved"] = save
        if save is not None:
            import onnx

            onnx.save(enhancer(), save)
    if as_json:
        print_json(facts)
    else:
        _show(facts)
        _recognise()


def _recognise() -> None:
    """A recogniser that comes with pulsify, on speech: the transcript grows as it would live."""
    import sys

    from pulsify.asr.settings import BUILT_IN
    from pulsify.cli.asr import asr

    show([
        "And something that hears: a FastConformer of digits and commands, trained on synthetic speech, "
        "converted from its batch export and fed 80 ms at a time. Live it says what it says of the whole "
        "recording (try  pulsify asr):"
    ])  # fmt: skip
    click.get_current_context().invoke(
        asr, wav=str(BUILT_IN / "lights.wav"), model=str(BUILT_IN / "model.toml"), live=False,
        realtime=sys.stdout.isatty(), chunk_ms=80.0, channel=None, batch_check=True, pulse=None, no_verify=False,
        as_json=False,
    )  # fmt: skip


def _show(facts: dict[str, Any]) -> None:
    from pulsify.report.render import exact_table, stream_lines, summary
    from pulsify.report.render_speed import bench_table, picture

    made, bench, drawn = facts["stream"], facts["bench"], facts["timeline"]
    head = (
        f"A speech enhancer of {facts['batch_nodes']} nodes, written for whole recordings (16 kHz): a spectrum every "
        "10 ms, a convolution that looks a frame ahead, two GRU layers, a mask, and overlap-add back to sound. "
        f"Here it runs as a stream, {made['pulse']} samples at a time."
    )
    parts: list[Any] = [head, summary(stream_lines(made))]
    if drawn["rows"]:
        parts += [
            f"What happens when {drawn['length']} samples come in ('#' given out, '.' in but still held back):",
            picture(drawn["rows"]),
        ]
    parts += [
        "Is it exact? Whole streams against the batch model on the whole input, pushed three ways:",
        exact_table(facts["exact"]),
        "Is it fast? One thread, microseconds:",
        bench_table(bench),
        f"A pulse lasts {bench['pulse_ms']:g} ms; computing it takes {bench['stream']['p50_us'] / 1000:.2f} ms.",
    ]
    if facts["saved"]:
        parts.append(f"The batch model is in {facts['saved']}: try  pulsify inspect {facts['saved']}")
    show(parts)
