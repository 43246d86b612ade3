"""Options that several commands share, and how their text becomes arguments of the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
Time = str | dict[str, int] | None


def _pairs(option: str, given: tuple[str, ...], example: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE, as in {example}", param_hint=option)
        out[name.strip()] = value.strip()
    return out


def parse_time(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> Time:
    """`T` names the dimension; `x=2` says the axis, input by input."""
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    out: dict[str, int] = {}
    for name, axis in _pairs("--time", given, "--time x=2").items():
        try:
            out[name] = int(axis)
        except ValueError:
            raise click.BadParameter(f"{axis!r} is not an axis of {name}", param_hint="--time") from None
    return out


def parse_bind(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    return _pairs("--bind", given, "--bind length=T")


def parse_set(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, int | str]:
    pairs = _pairs("--set", given, "--set B=1 or --set 'T=8*n'")
    return {name: int(value) if value.lstrip("-").isdigit() else value for name, value in pairs.items()}


def parse_unbounded(context: click.Context, parameter: click.Parameter, given: str) -> str | int:
    if given in ("refuse", "grow"):
        return given
    if given.isdigit() and int(given) > 0:
        return int(given)
    raise click.BadParameter(f"{given!r} is not refuse, grow or a number of frames", param_hint="--unbounded")


def meaning(command: Command) -> Command:
    """--time, --bind, --set, --unbounded, --proof, --no-opening: what a model means, how it is to be converted."""
    for option in (
        click.option(
            "--opening/--no-opening", default=True, show_default=True,
            help="Where the start shows later frames: a first, longer call, or one graph that waits at every pulse.",
        ),
        click.option(
            "--proof", type=click.Choice(["proven", "sampled"]), default="proven", show_default=True,
            help="What is not certain at every length: refuse it, or take it as a sample of lengths shows it.",
        ),
        click.option(
            "--unbounded", default="refuse", callback=parse_unbounded, metavar="refuse|grow|N",
            help="Attention that looks back to the start: refuse it, keep all of it, or N frames (not exact).",
        ),
        click.option(
            "--set", "fixed", multiple=True, callback=parse_set, metavar="NAME=N",
            help="Fix another symbolic dimension (B=1), or declare lengths ('T=8*n', 'T=<=3000'). Repeatable.",
        ),
        click.option(
            "--bind", multiple=True, callback=parse_bind, metavar="INPUT=T",
            help="An integer input that holds the length. Found by itself where obvious. Repeatable.",
        ),
        click.option(
            "--time", multiple=True, callback=parse_time, metavar="T|INPUT=AXIS",
            help="The time dimension by name, or its axis by input (x=2, repeatable). Needed only if ambiguous.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def pulse(command: Command) -> Command:
    return click.option(
        "-p", "--pulse", type=click.IntRange(min=1), metavar="N", help="Frames per call. [default: the fewest that fit]"
    )(command)


def backend(command: Command) -> Command:
    return click.option(
        "--backend", default="ort", show_default=True, metavar="NAME",
        help="What runs the stream: ort (ONNX Runtime), torch, or reference (onnx's own evaluator, slow).",
    )(command)  # fmt: skip


def no_verify(command: Command) -> Command:
    return click.option("--no-verify", is_flag=True, help="Skip the check against the batch model.")(command)


def sample_rate(command: Command) -> Command:
    return click.option(
        "--sample-rate", type=click.FloatRange(min=0, min_open=True), metavar="HZ",
        help="Input frames a second: delays are shown in ms too.",
    )(command)  # fmt: skip


def as_json(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, for machines.")(command)
