"""How a command ends: exit codes that scripts can use, and errors said in a few lines instead of a traceback."""

from __future__ import annotations

import ast
import functools
import json
import re
import shlex
from collections.abc import Callable
from typing import Any, ParamSpec

import click

from pulsify.core.boundary import converted
from pulsify.core.errors import InternalError, InvalidArgument, InvalidPulse, Mismatch, NotStreamable, PulsifyError

MISMATCH, USAGE, NOT_STREAMABLE, INVALID_PULSE, INVALID_INPUT, BUG, INTERRUPTED = 1, 2, 3, 4, 5, 70, 130
SETTINGS = (
    "backend|decoder|device|dtype|hidden|joiner|kind|layers|mode|model|name|opset|proof|runtime|sample_rate|sequences"
)
SETTINGS += "|strategy|target|tokens|tolerance|weights"  # arguments of Python that are options, most of the same name
OTHERS = {"target": "to"}
WORDS = {  # what only a program can do, and what a command's reader can
    "opening=False": "--no-opening",
    "phase=False": "--no-phase",
    "verify=False": "--no-verify",
    "merge_front_end": "--merge-front-end",
    "open it with pulsify.load, or convert its batch model": "give the batch model it was made from",
    ". Push more frames before flush, or reset": "",
    "; push the missing frames, then flush": "",
    "and this chunk makes it longer. Nothing was taken; flush, then reset": "and this input is longer",
    "and this chunk needs more. Nothing was taken; flush, then reset": "and this input needs more",
    "All frames given out so far are right; reset": "All frames given out so far are right",
    "; end this stream and begin another (reset)": "",
}
P = ParamSpec("P")


def exit_code(error: BaseException) -> int:
    """What a script can tell from the outcome alone."""
    error = converted(error) or error
    for kind, code in (
        (InternalError, BUG),
        (Mismatch, MISMATCH),
        (InvalidArgument, USAGE),
        (NotStreamable, NOT_STREAMABLE),
        (InvalidPulse, INVALID_PULSE),
    ):
        if isinstance(error, kind):
            return code
    return INVALID_INPUT if isinstance(error, PulsifyError) else BUG


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """A command that ends with a message and a code, whatever happens."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:  # click's own answer is 1, which here means a mismatch
            click.get_current_context().exit(INTERRUPTED)
        except Exception as error:
            outward = converted(error) or error
            if exit_code(outward) == BUG:
                _traceback()
            fail(outward, bool(kwargs.get("as_json")))

    return run


def fail(error: BaseException, as_json: bool, facts: dict[str, Any] | None = None) -> None:
    """Say it on stderr, as JSON on stdout too if asked for (beside other facts), and leave with its code."""
    click.echo(message(error), err=True)
    if as_json:
        print_json({**(facts or {}), "error": error_figures(error)})
    click.get_current_context().exit(exit_code(error))


def print_json(facts: dict[str, Any]) -> None:
    click.echo(json.dumps(facts, indent=2, allow_nan=False))


def error_figures(error: BaseException) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": type(error).__name__, "exit_code": exit_code(error)}
    if isinstance(error, NotStreamable):
        return facts | {
            "refusal": str(error.kind),
            "node": error.node,
            "op": error.op,
            "reason": spoken(error.reason),
            "hint": spoken(error.hint),
        }
    if isinstance(error, InternalError):
        return facts | {"node": error.node, "op": error.op, "reason": error.reason, "versions": error.versions}
    if isinstance(error, InvalidPulse):
        facts |= {"pulse": error.pulse, "granularity": error.granularity, "natural_pulse": error.natural_pulse}
    return facts | {"reason": spoken(str(error))}


def message(error: BaseException) -> str:
    """The error for a reader: what, where, why, and what would help."""
    if isinstance(error, NotStreamable):
        where = f" {error.op} node '{error.node}'" if error.op else ""
        lines = [_head("not streamable:") + where, f"  {spoken(error.reason)}"]
        return "\n".join(lines + [f"  hint: {spoken(error.hint)}"] * bool(error.hint))
    head = {MISMATCH: "mismatch:", INVALID_PULSE: "invalid pulse:", BUG: "internal error:"}
    text = str(error) if isinstance(error, PulsifyError) else f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{_head(head.get(exit_code(error), 'error:'))} {spoken(text)}"


def spoken(text: str) -> str:
    """Errors are written for Python; say them in options: set={"T": "8*n"} is --set 'T=8*n'."""
    for python, here in WORDS.items():
        text = text.replace(python, here)
    text = re.sub(rf"\b({SETTINGS})=(?:'([^']*)'|\"([^\"]*)\"|(FILE|N\b|\d[\d.]*\d|\d))", _setting, text)
    text = re.sub(r"\b(time|set|bind)=(\{[^{}]*\})", _option, text)
    text = re.sub(r"\btime=(['\"])([^'\"]+)\1", lambda m: f"--time {shlex.quote(m[2])}", text)
    text = re.sub(r"\bunbounded=['\"]?(\w+)['\"]?", r"--unbounded \1", text)
    return re.sub(r"\bpulse=(\d+)", r"-p \1", text)


def _setting(match: re.Match[str]) -> str:
    name, *values = match.groups()
    value = next(v for v in values if v is not None)
    return f"--{OTHERS.get(name, name).replace('_', '-')} {value if value.isidentifier() else shlex.quote(value)}"


def _option(match: re.Match[str]) -> str:
    try:
        given = ast.literal_eval(match[2])
    except (ValueError, SyntaxError):
        return match[0]
    if not isinstance(given, dict):  # set={...}
        return f"--{match[1]} NAME=VALUE"
    return " ".join(f"--{match[1]} {shlex.quote(f'{k}={v}')}" for k, v in given.items()) or f"--{match[1]}"


def _head(text: str) -> str:
    return click.style(text, fg="red", bold=True)


def _traceback() -> None:
    import traceback

    click.echo(traceback.format_exc(), err=True)
