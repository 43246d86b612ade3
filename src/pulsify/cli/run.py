"""`pulsify run`: a file through a stream, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from pulsify.cli import options
from pulsify.cli.opening import open_any, source_of
from pulsify.cli.outcome import MISMATCH, guarded, print_json
from pulsify.cli.screen import short, show, working
from pulsify.core.errors import InvalidChunk

if TYPE_CHECKING:
    from pulsify.api import Stream

Figures = dict[str, Any]


@click.command(short_help="Stream a .npy, .npz or .wav file through a model.")
@click.argument("model")
@click.argument("input")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Save the result: .npy, .npz (all outputs) or .wav."
)
@click.option("--chunk", type=click.IntRange(min=1), metavar="N", help="Frames per push. [default: the pulse]")
@click.option("--compare", metavar="MODEL", help="Run this batch model on the whole input too, and compare.")
@click.option(
    "--channel",
    type=click.IntRange(min=0),
    metavar="N",
    help="One channel of a .wav file, from 0. [default: the mean of all]",
)
@options.pulse
@options.meaning
@options.backend
@options.no_verify
@options.sample_rate
@options.as_json
@guarded
def run(
    model: str,
    input: str,
    output: str | None,
    chunk: int | None,
    compare: str | None,
    channel: int | None,
    pulse: int | None,
    time: options.Time,
    bind: dict[str, str | None],
    fixed: dict[str, int | str],
    unbounded: str | int,
    proof: str,
    opening: bool,
    phase: bool,
    machine: options.Machine,
    no_verify: bool,
    sample_rate: float | None,
    as_json: bool,
) -> None:
    """Stream the file INPUT through MODEL: a streaming model, or a batch model converted on the way.

    INPUT is a .npy array, a .npz with one array per input (static inputs too), or a .wav file (whole numbers or floats)
    for a model that takes one channel of sound. A result that is sound can be saved as such.

    \b
    pulsify run stream.onnx features.npy -o out.npy
    pulsify run model.onnx speech.wav -p 160 --compare model.onnx
    pulsify run denoiser.onnx noisy.wav -o clean.wav
    """
    with working(f"opening {short(model)}", as_json) as say:
        from pulsify.cli.feed import check_output, read_feeds, save_results, sound_rate
        from pulsify.runtime.whole import batch_of

        made = open_any(
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
            verify=not no_verify,
        )
        check_output(output, made)
        feeds, found = read_feeds(input, made, channel)
        rate = sample_rate or found or made.sample_rate
        if found and made.sample_rate and found != made.sample_rate:
            raise InvalidChunk(f"{input!r} has {found} samples a second, this stream was made for {made.sample_rate:g}")
        saved_rate = sound_rate(output, made, rate)
        results, facts = push_all(made, feeds, chunk or made.pulse, batch_of(made.spec, feeds), say, machine)
        facts = {"model": model, "input": input, "saved": output, "sample_rate": rate, **facts}
        if output is not None:
            save_results(output, results, saved_rate)
        if compare is not None:
            say(f"running {compare} on everything")
            facts["compared"] = {"model": compare, "outputs": compare_batch(compare, made, feeds, results)}
    if as_json:
        print_json(facts)
    else:
        _show(facts)
    if not all(o["ok"] for o in facts.get("compared", {}).get("outputs", {}).values()):
        click.get_current_context().exit(MISMATCH)


def push_all(
    stream: Stream,
    feeds: Mapping[str, Any],
    chunk: int,
    batch: int,
    say: Callable[[str], None],
    machine: options.Machine = options.DEFAULT,
) -> tuple[dict[str, Any], Figures]:
    """The whole input in pushes of `chunk` units, then flush: the joined results, and how long it took."""
    import time

    from pulsify.core.chunks import sizes
    from pulsify.runtime.whole import run_whole, whole_length

    spec = stream.spec
    session = stream.session(
        batch=batch, statics={s.name: feeds[s.name] for s in spec.statics}, backend=machine.backend,
        options=machine.options,
    )  # fmt: skip
    units = whole_length(spec, feeds)
    pieces, shown = sizes(chunk, units), time.perf_counter()

    def told(at: int) -> None:
        nonlocal shown
        if (now := time.perf_counter()) - shown > 0.1:
            say(f"streaming: {100 * at // units}%")
            shown = now

    start = time.perf_counter()
    joined = run_whole(session, spec, feeds, pieces, told)
    spent = time.perf_counter() - start
    facts = {
        "pulse": stream.pulse,
        "chunk": chunk,
        "frames": units,
        "pushes": len(pieces),
        "seconds": spent,
        "outputs": {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in joined.items()},
    }
    return joined, facts


def compare_batch(model: str, stream: Stream, feeds: Mapping[str, Any], results: Mapping[str, Any]) -> Figures:
    from pulsify.core.runner import open_model
    from pulsify.frontend.load import read
    from pulsify.frontend.program import is_program
    from pulsify.report.batch import check_belongs, difference, run_batch

    if not is_program(model):
        read(model)  # a missing or unreadable file is said in pulsify's words, not the runtime's
    runner = open_model(source_of(model))
    check_belongs(runner, stream)
    want = run_batch(runner, stream, feeds)
    return {name: difference(array, want[name]) for name, array in results.items()}


def _show(facts: Figures) -> None:
    from pulsify.report.figures import shape_text
    from pulsify.report.render import count, summary

    frames = count(facts["frames"], "frame")
    if facts["sample_rate"]:
        frames += f" = {facts['frames'] / facts['sample_rate']:.2f} s at {facts['sample_rate']} Hz"
    speed = f"{facts['seconds'] * 1000:.1f} ms in {count(facts['pushes'], 'chunk')}"
    if facts["sample_rate"] and facts["seconds"]:
        ratio = facts["frames"] / facts["sample_rate"] / facts["seconds"]
        speed += f", {ratio:.0f} times faster than real time" if ratio >= 1 else ", slower than real time"
    lines = [("model", facts["model"]), ("input", f"{facts['input']}: {frames}"), ("took", speed)]
    for name, o in facts["outputs"].items():
        lines.append(("output", f"{name} {o['dtype']} {shape_text(o['shape'])}"))
    lines.append(("saved", facts["saved"] or "no (-o FILE saves it)"))
    if "compared" in facts:
        for name, d in facts["compared"]["outputs"].items():
            lines.append(("vs batch", f"{name}: {_verdict(d)}"))
    show([summary(lines)])


def _verdict(d: Figures) -> str:
    from pulsify.report.render import error_text

    if d["note"]:
        return f"MISMATCH: {d['note']}"
    if d["error"] == 0:
        return "equal bit for bit"
    apart = f"largest difference {error_text(d['largest'])}, relative error {error_text(d['error'])}"
    return f"equal within the limit: {apart}" if d["ok"] else f"MISMATCH: {apart}"
