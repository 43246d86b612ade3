"""`pulsify inspect`: time axes, windows, delays and states of a model, or the graph as one stage left it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pulsify.cli import options
from pulsify.cli.opening import convert_batch, is_stream, open_any, source_of
from pulsify.cli.outcome import fail, guarded, print_json
from pulsify.cli.screen import line, short, show, working
from pulsify.core.errors import InvalidArgument, PulsifyError

if TYPE_CHECKING:
    from pulsify.analysis.options import Options
    from pulsify.api import Stream
    from pulsify.trace.lengths import Tracer

Figures = dict[str, Any]
WINDOWS = (
    "A wire is a value between two nodes. At pulse n it holds its frames [n*p + start, n*p + end). Its delay is "
    "p - end, in its own frames; "
    "kept are the earlier frames that a state holds for its readers."
)


@click.command(short_help="Time axes, windows, delays and states of a model.")
@click.argument("model")
@options.pulse
@click.option(
    "--stage", type=click.Choice(["trace", "windows", "plan", "stream", "torch"]),
    help="Print the graph as this stage left it: trace (what is data, what is known), windows (what each value "
    "holds at a pulse), plan (what is read, kept and waited for), stream (the streaming graph), torch (its step as the "
    "source that the back end torch runs).",
)  # fmt: skip
@click.option("--delay", is_flag=True, help="Where delay comes from: what each layer adds, from input to output.")
@options.meaning
@options.sample_rate
@options.as_json
@guarded
def inspect(
    model: str,
    pulse: int | None,
    stage: str | None,
    delay: bool,
    time: options.Time,
    bind: dict[str, str | None],
    fixed: dict[str, int | str],
    unbounded: str | int,
    proof: str,
    opening: bool,
    phase: bool,
    sample_rate: float | None,
    as_json: bool,
) -> None:
    """Show what MODEL, a batch model or a streaming one, is made of.

    \b
    pulsify inspect model.onnx                    time axes, windows, delays, states
    pulsify inspect model.onnx --stage windows    every wire
    pulsify inspect model.onnx --delay            where delay comes from, layer by layer
    pulsify inspect stream.onnx                   ports, delays, states of a stream
    pulsify inspect stream.onnx --stage torch     its step, as the back end torch runs it
    """
    if delay and stage is not None:
        raise InvalidArgument("--delay and --stage are two questions: ask one at a time")
    with working(f"looking at {short(model)}", as_json) as say:
        facts, draw = _look(
            model,
            pulse,
            "delay" if delay and stage is None else stage,
            {
                "time": time,
                "bind": bind,
                "set": fixed,
                "unbounded": unbounded,
                "proof": proof,
                "opening": opening,
                "phase": phase,
            },
            sample_rate,
            say,
        )
    refusal = facts.pop("refusal", None)
    if not as_json:
        draw(facts)
    if refusal is not None:
        fail(refusal, as_json, facts)
    elif as_json:
        print_json(facts)


Look = tuple[Figures, Callable[[Figures], None]]


def _look(
    model: str, pulse: int | None, stage: str | None, meaning: Figures, sample_rate: float | None, say: Any
) -> Look:
    """The facts asked for, and the function that shows them."""
    if stage == "stream":
        return _stream_graph(open_any(model, pulse, meaning, verify=False))
    if stage == "torch":
        return _torch_source(open_any(model, pulse, meaning, verify=False))
    if is_stream(model):
        if stage is not None:
            missing = "does not know where delay comes from" if stage == "delay" else f"has no stage '{stage}'"
            raise InvalidArgument(f"{model} is a stream already and {missing}: give the batch model")
        return _stream(model, open_any(model, pulse, meaning, verify=False), sample_rate)
    from pulsify.report.stages import open_batch, plan_figures, trace_figures, window_figures

    tracer = open_batch(source_of(model), meaning["time"], meaning["bind"], meaning["set"])
    if stage == "trace":
        return trace_figures(tracer), _draw_trace
    if stage == "delay":
        return _delay(model, tracer, pulse, meaning, sample_rate), _draw_delay
    if stage == "plan":
        return plan_figures(tracer, pulse, _options(meaning)), lambda facts: line("\n".join(facts["plan"]))
    if stage == "windows":
        return window_figures(tracer, pulse, _options(meaning)), _draw_windows

    def make(pulse: int) -> Stream:
        return convert_batch(model, pulse, meaning, verify=False)

    windows = functools.partial(window_figures, tracer, pulse, _options(meaning))
    return _batch(model, tracer, windows, make, sample_rate, say), _draw_batch


# ---- a stream


def _stream(path: str, made: Stream, sample_rate: float | None) -> Look:
    from pulsify.report.figures import stream_figures

    facts = {"kind": "stream", "model": path, **stream_figures(made, sample_rate), "source": made.spec.source}
    return facts, _draw_stream


def _draw_stream(facts: Figures) -> None:
    from pulsify.report.render import stream_lines, stream_tables, summary

    made_from = ("made from", f"a file with SHA-256 {facts['source'][:16]}...")
    show([summary([("stream", facts["model"]), *stream_lines(facts), made_from]), *stream_tables(facts)])


def _stream_graph(made: Stream) -> Look:
    from pulsify.report.listing import listing

    lines = listing(made.model).splitlines()
    return {"kind": "stream", "graph": lines}, lambda facts: line("\n".join(facts["graph"]))


def _torch_source(made: Stream) -> Look:
    lines = "\n\n".join(made.sources("torch").values()).splitlines()
    return {"kind": "stream", "source": lines}, lambda facts: line("\n".join(facts["source"]))


# ---- a batch model


def _batch(
    path: str,
    tracer: Tracer,
    windows: Callable[[], Figures],
    make: Callable[[int], Stream],
    sample_rate: float | None,
    say: Callable[[str], None],
) -> Figures:
    """As much as can be known: of a model that is refused, all that leads there, and the refusal."""
    from pulsify.report.figures import stream_figures
    from pulsify.report.stages import time_figures, trace_figures

    facts: Figures = {"kind": "batch", "model": path, "time": time_figures(tracer), "refusal": None}
    try:
        facts["trace"] = {k: v for k, v in trace_figures(tracer).items() if k != "values"}
        say("finding windows")
        facts["windows"] = windows()
        facts["refusal"] = facts["windows"].pop("refusal")
        if facts["refusal"] is None:
            facts["stream"] = stream_figures(make(facts["windows"]["pulse"]), sample_rate)
    except PulsifyError as error:
        facts["refusal"] = error
    return facts


def _draw_batch(facts: Figures) -> None:
    from pulsify.report.render import stream_lines, stream_tables, summary, time_lines, trace_line, window_table

    lines = [("model", facts["model"]), *time_lines(facts["time"])]
    if "trace" in facts:
        lines.append(("traced", trace_line(facts["trace"])))
    made = facts.get("stream")
    lines += [row for row in stream_lines(made) if row not in lines] if made else []
    parts: list[Any] = [summary(lines)]
    parts += stream_tables(made) if made else []
    wires = facts.get("windows", {}).get("wires", [])
    changes = [w for w in wires if w.get("changes")]
    if changes:
        parts += [
            f"{WINDOWS}\nThese change the window; --stage windows lists all wires.",
            window_table(changes, cut=True),
        ]
    show(parts)


def _options(meaning: Figures) -> Options:
    from pulsify.analysis.options import Options

    return Options(meaning["unbounded"], meaning["proof"], meaning["opening"], meaning["phase"])


def _delay(path: str, tracer: Tracer, pulse: int | None, meaning: Figures, sample_rate: float | None) -> Figures:
    from pulsify.report.delays import delay_figures
    from pulsify.report.stages import analysed

    plan = analysed(tracer, pulse, _options(meaning))
    return {"model": path, "pulse": plan.ctx.pulse, "delays": delay_figures(plan.course, sample_rate)}


def _draw_delay(facts: Figures) -> None:
    from pulsify.report.render import count, delay_lines, delay_table, summary

    show([summary([("model", facts["model"]), ("pulse", count(facts["pulse"], "frame")), *delay_lines(facts)])])
    for d in facts["delays"]:
        if d["waits"]:
            show(["", delay_table(d)])


def _draw_trace(facts: Figures) -> None:
    from pulsify.report.render import trace_line, trace_table

    show([trace_line(facts), trace_table(facts)])


def _draw_windows(facts: Figures) -> None:
    from pulsify.report.render import count, window_table

    if facts["wires"]:
        show([f"Pulses of {count(facts['pulse'], 'frame')}.\n{WINDOWS}", window_table(facts["wires"])])
