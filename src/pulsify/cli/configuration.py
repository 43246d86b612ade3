"""Options of a command from a TOML file, `--config server.toml`.

The keys are the command's own long options without the dashes, and `models` for its arguments: nothing is listed twice.
What the command line or an environment variable says overrides the file.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
ARGUMENTS = "models"  # the key of what is no option
NOT_IN_A_FILE = ("config", "help")
NUMBERS = (click.IntRange, click.types.IntParamType, click.FloatRange, click.types.FloatParamType)


class Configured(click.Command):
    """A command that remembers its arguments, so that they and its file can be read once more."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[__name__] = list(args)
        return super().parse_args(ctx, args)


class Arguments(click.Argument):
    """With none on the command line, those of the file: click 8.2 takes an empty list for an answer."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        value, source = super().consume_value(ctx, opts)
        return value or (ctx.default_map or {}).get(self.name, ()), source


def arguments(context: click.Context) -> list[str]:
    """Those that a running command was called with."""
    return list(context.meta[__name__])


def reread(context: click.Context) -> dict[str, Any]:
    """The parameters of a running command as they would be now. A click.ClickException if they are wrong by now."""
    with context.command.make_context(context.info_name, list(context.meta[__name__])) as again:
        return again.params


def config(command: Command) -> Command:
    """--config, read before any other option."""
    return click.option(
        "--config", envvar="PULSIFY_CONFIG", type=click.Path(dir_okay=False), is_eager=True, expose_value=False,
        callback=_read, help="TOML file with these options; the command line overrides it. [env: PULSIFY_CONFIG]",
    )(command)  # fmt: skip


def keys(command: click.Command) -> dict[str, click.Parameter]:
    """What a file may say."""
    out: dict[str, click.Parameter] = {}
    for each in command.params:
        key = ARGUMENTS if isinstance(each, click.Argument) else _long(each)
        if key not in NOT_IN_A_FILE:
            out[key] = each
    return out


def _long(option: click.Parameter) -> str:
    return next(name for name in option.opts if name.startswith("--")).removeprefix("--")


def _read(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    known, defaults = keys(context.command), {}
    for key, value in _table(path).items():
        if key not in known:
            (nearest,) = difflib.get_close_matches(key, known, n=1, cutoff=0)
            raise click.UsageError(f"{path}: unknown key '{key}'; the nearest one is '{nearest}'", context)
        one = known[key]
        assert one.name is not None
        try:
            defaults[one.name] = _raw(one, value)
            one.process_value(context, defaults[one.name])
        except click.BadParameter as error:
            raise click.UsageError(f"{path}: {key}: {error.message}", context) from error
    context.default_map = {**(context.default_map or {}), **defaults}


def _table(path: str) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(f"{path}: not TOML: {error}") from error


def _raw(parameter: click.Parameter, value: Any) -> Any:
    """As the command line would have it. A table is NAME=VALUE or NAME:VALUE, once for each of its keys."""
    if getattr(parameter, "is_flag", False):
        return _of(bool, value, "true or false")
    if not (parameter.multiple if isinstance(parameter, click.Option) else parameter.nargs == -1):
        return _one(parameter, value)
    between = next((sign for sign in "=:" if sign in (parameter.metavar or "")), None)
    if isinstance(value, dict) and between is not None:
        return [f"{name}{between}{_text(each)}" for name, each in value.items()]
    return [_one(parameter, each) for each in (value if isinstance(value, list) else [value])]


def _one(parameter: click.Parameter, value: Any) -> Any:
    if not isinstance(parameter.type, NUMBERS):
        return _of(str, value, "a text, in quotes")
    if isinstance(value, float) and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number")
    whole = isinstance(parameter.type, click.types.IntParamType)
    return _of(int if whole else (int, float), value, "a whole number" if whole else "a number")


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise click.BadParameter("expected a table of texts or numbers")
    return str(value)


def _of(kind: type | tuple[type, ...], value: Any, expected: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise click.BadParameter(f"expected {expected}")
    return value
