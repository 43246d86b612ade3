"""`pulsify bench`: what a pulse costs, by pulse or against running the batch model again and again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pulsify.cli import options
from pulsify.cli.opening import convert_batch, source_of
from pulsify.cli.outcome import guarded, print_json
from pulsify.cli.screen import short, show, working
from pulsify.core.errors import InvalidArgument

CHECKOUT = Path(__file__).parents[3]  # if pulsify is installed from one, in place


@click.command(short_help="Time a stream: which pulse to choose, what one costs.")
@click.argument("model", required=False)
@click.option(
    "-p",
    "--pulse",
    type=click.IntRange(min=1),
    metavar="N",
    help="Frames per call. [default: many are timed, and one is chosen]",
)
@options.meaning
@options.no_verify
@options.sample_rate
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=1.0, show_default=True, help="For each of the measurements."
)
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Draw it too: .png or .svg (matplotlib).")
@options.as_json
@guarded
def bench(
    model: str | None,
    pulse: int | None,
    time: options.Time,
    bind: dict[str, str | None],
    fixed: dict[str, int | str],
    unbounded: str | int,
    proof: str,
    opening: bool,
    phase: bool,
    no_verify: bool,
    sample_rate: float | None,
    seconds: float,
    plot: str | None,
    as_json: bool,
) -> None:
    """Time the stream made from the batch model MODEL. One thread.

    Without -p many pulses are timed, in turns: how late each is (its own length and the delay), what it costs, and
    which one to choose. With a sample rate that is the smallest total latency of those whose slowest pulses (p99)
    leave half of the time free; without, the knee where twice the latency no longer buys 1.5 times the throughput.

    With -p it is timed beside the batch model, run anew at every pulse over the frames that the new output needs,
    which is how a batch model is streamed without conversion, and run once at the end, over everything.

    Without MODEL, in a checkout of the repository, the benchmark suite runs (python -m benchmarks).
    """
    if model is None:
        _suite(seconds, plot, as_json)
        return
    meaning = {
        "time": time, "bind": bind, "set": fixed, "unbounded": unbounded, "proof": proof, "opening": opening,
        "phase": phase,
    }  # fmt: skip
    if pulse is None:
        _sweep(model, meaning, not no_verify, sample_rate, seconds, plot, as_json)
        return
    if plot:
        raise InvalidArgument("--plot draws many pulses: leave out -p")
    with working(f"converting {short(model)}", as_json) as say:
        from pulsify.core.runner import open_model
        from pulsify.report.figures import stream_figures
        from pulsify.report.timing import bench_figures

        made = convert_batch(model, pulse, meaning, verify=not no_verify)
        timing = bench_figures(
            open_model(source_of(model)), made, sample_rate=sample_rate, seconds=seconds, progress=say
        )
        facts = {"model": model, **timing, "stream_figures": stream_figures(made, sample_rate)}
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def _show(facts: dict[str, Any]) -> None:
    from pulsify.report.render import stream_lines, summary
    from pulsify.report.render_speed import bench_table, looks_text

    kept = [line for line in stream_lines(facts["stream_figures"]) if line[0] in ("pulse", "state", "step graph")]
    lines = [("model", facts["model"]), *kept, ("looks", looks_text(facts))]
    if facts["pulse_ms"]:
        share = facts["stream"]["p50_us"] / 1000 / facts["pulse_ms"]
        lines.append(("real time", f"a pulse lasts {facts['pulse_ms']:.3g} ms, its work {share:.2%} of that"))
    if "why_not" in facts["native"]:
        lines.append(("as C", facts["native"]["why_not"]))
    show([summary(lines), bench_table(facts)])


def _sweep(
    model: str, meaning: dict[str, Any], verify: bool, sample_rate: float | None, seconds: float, plot: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Many pulses. Only the one chosen is checked against the batch model."""
    with working(f"converting {short(model)}", as_json) as say:
        from pulsify.core.runner import open_model
        from pulsify.report.figures import verified_figures
        from pulsify.report.render import summary
        from pulsify.report.render_speed import pyplot, sweep_chart, sweep_lines, sweep_plot, sweep_table
        from pulsify.report.timing import sweep_figures
        from pulsify.verify.check import quick

        if plot:
            pyplot()  # if there is none, that is said before the work
        swept, chosen = sweep_figures(
            open_model(source_of(model)), lambda p: convert_batch(model, p, meaning, verify=False),
            sample_rate=sample_rate, seconds=seconds, progress=say,
        )  # fmt: skip
        say(f"checking pulse {chosen.pulse}")
        report = verified_figures(quick(source_of(model), chosen)) if verify else None
        facts = {"model": model, **swept, "verified": report}
        if plot:
            sweep_plot(facts, plot)
    if as_json:
        print_json(facts)
    else:
        show([summary([("model", model)]), sweep_table(facts), sweep_chart(facts), summary(sweep_lines(facts))])


def _suite(seconds: float, plot: str | None, as_json: bool) -> None:
    """The benchmarks of the repository this pulsify is installed from."""
    import contextlib
    import importlib

    if not (CHECKOUT / "benchmarks" / "__main__.py").is_file():
        raise InvalidArgument(
            "give a model: pulsify bench MODEL. The benchmark suite is part of the repository, not of the package: "
            "check it out, pip install -e '.[bench,test]' there and run python -m benchmarks"
        )
    sys.path.insert(0, str(CHECKOUT))
    run = importlib.import_module("benchmarks.__main__").main
    arguments = ["--seconds", str(seconds), *(["--plot", plot] if plot else [])]
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        facts = run(arguments)
    if as_json:
        print_json(facts)
