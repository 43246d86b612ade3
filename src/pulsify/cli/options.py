"""Options that several commands share, and how their text becomes arguments of the library."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import click

Own = str | Sequence[str] | None
Parts = tuple[str, ...] | None
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


def parse_bind(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str | None]:
    pairs = _pairs("--bind", given, "--bind length=T")
    return {name: None if value == "None" else value for name, value in pairs.items()}


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
    """--time, --bind, --set, --unbounded, --proof, --no-opening, --no-phase: what a model means, how to convert it."""
    for option in (
        click.option(
            "--opening/--no-opening", default=True, show_default=True,
            help="Where the start shows later frames: a first, longer call, or one graph that waits at every pulse.",
        ),
        click.option(
            "--phase/--no-phase", default=True, show_default=True,
            help="The first pulse takes fewer frames, where that makes the latency smaller; or as many as the others.",
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
            help="Fix another symbolic dimension (B=1), or declare lengths ('T=8*n', 'T=320*n+80', 'T=<=3000').",
        ),
        click.option(
            "--bind", multiple=True, callback=parse_bind, metavar="INPUT=T|ones|None",
            help="An input that holds the length, or a mask of ones (or zeros); None: a value of its own. Bound "
            "automatically if its name and its use leave no doubt.",
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


@dataclass(frozen=True)
class Machine:
    """What runs a stream: a back end, and what it was told."""

    backend: str
    options: Mapping[str, Own]


DEFAULT = Machine("ort", {})
AUTO = "auto"  # for --backend: whichever is quickest


class _OneOf(click.Option):
    """Its help lists the back ends there are, when somebody reads it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from pulsify.backends.registry import entries

        listed = [f"{name} ({entry.about})" if entry.about else name for name, entry in entries().items()]
        listed += ["auto (ort or native, whichever is quicker)"] if self.default == AUTO else []
        self.help = f"What runs the stream: {', '.join(listed)}."
        return super().get_help_record(ctx)


QUIET = "pulsify.quiet"
OWN = {
    "device": "Where it runs: cpu, cuda, cuda:1, ... [default: a graphics card, if there is one]",
    "dtype": "The type that stands for float32: float16 or bfloat16. Not exact: the error is reported.",
    "mode": "How it runs: eager, graph (recorded, on a graphics card) or compile.",
}  # by name, for back ends that have such options


def backend_or_auto(command: Command) -> Command:
    """The same, for those who choose one unless somebody else does."""
    return backend(command, AUTO)


def backend(command: Command, default: str = DEFAULT.backend) -> Command:
    """--backend and what one may have for itself, as `machine`."""

    @functools.wraps(command)
    def run(*args: Any, backend: str, option: dict[str, str], allow_cpu: Parts, force_cpu: Parts, **named: Any) -> Any:
        own: dict[str, Own] = {name: text for name in OWN if (text := named.pop(name)) is not None}
        own |= {
            name: parts for name, parts in (("allow_cpu", allow_cpu), ("force_cpu", force_cpu)) if parts is not None
        }
        return command(*args, machine=Machine(backend, own | option), **named)

    made: Any = run
    for one in (
        click.option(
            "--option", multiple=True, callback=parse_option, metavar="NAME=VALUE",
            help="Another option of the back end. Repeatable.",
        ),
        click.option(
            "--force-cpu", multiple=True, callback=parse_parts, metavar="PART",
            help="Nodes with this in their names (or operators) run on the CPU. Repeatable.",
        ),
        click.option(
            "--allow-cpu", multiple=True, callback=parse_parts, metavar="PART",
            help="No other nodes may run there; '' for none at all. Repeatable. [default: any may]",
        ),
        *(click.option(f"--{name}", metavar=name.upper(), help=text) for name, text in reversed(OWN.items())),
        click.option("--backend", cls=_OneOf, default=default, show_default=True, metavar="NAME"),
    ):  # fmt: skip
        made = one(made)
    return cast(Command, made)


def parse_option(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    return _pairs("--option", given, "--option device=cpu")


def parse_parts(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> Parts:
    """Parts of names; None: nothing was said."""
    return tuple(part for part in given if part) if given else None


def no_verify(command: Command) -> Command:
    return click.option("--no-verify", is_flag=True, help="Skip the check against the batch model.")(command)


def sample_rate(command: Command) -> Command:
    return click.option(
        "--sample-rate", type=click.FloatRange(min=0, min_open=True), metavar="HZ",
        help="Input frames a second: delays are shown in ms too.",
    )(command)  # fmt: skip


def as_json(command: Command) -> Command:
    """--json, and --quiet, which `pulsify.cli.screen` asks for."""
    quiet = click.option(
        "-q", "--quiet", is_flag=True, expose_value=False, callback=_hush, help="Show nothing but errors."
    )
    return click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, for machines.")(
        quiet(command)
    )


def _hush(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    context.meta[QUIET] = given
