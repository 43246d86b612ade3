"""How a command ends: codes for scripts, words for people."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pulsify.cli.outcome import error_figures, exit_code, guarded, message, spoken
from pulsify.core.errors import (
    InternalError,
    InvalidArgument,
    InvalidChunk,
    InvalidLength,
    InvalidModel,
    InvalidPulse,
    Mismatch,
    NotStreamable,
)
from pulsify.core.refusal import Kind

ERRORS: list[tuple[BaseException, int]] = [
    (Mismatch("no"), 1), (InvalidArgument("no"), 2), (NotStreamable("no"), 3), (InvalidPulse(3, 4), 4),
    (InvalidModel("no"), 5), (InvalidChunk("no"), 5), (InvalidLength("no"), 5), (FileNotFoundError(2, "none", "f"), 5),
    (RuntimeError("no"), 70), (InternalError("no"), 70),
]  # fmt: skip


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_every_kind_of_end_has_its_code(error: BaseException, code: int) -> None:
    assert exit_code(error) == code

    @click.command()
    @guarded
    def command() -> None:
        raise error

    result = CliRunner().invoke(command)
    assert result.exit_code == code
    assert ("Traceback" in result.stderr) == (code == 70), "a traceback is for what should not have happened"


def test_an_interruption_is_no_mismatch() -> None:
    @click.command()
    @guarded
    def command() -> None:
        raise KeyboardInterrupt

    assert CliRunner().invoke(command).exit_code == 130


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('declare set={"T": "8*n"}', "declare --set 'T=8*n'"),
        ('time={"x": 2}; say which', "--time x=2; say which"),
        ('pass time="T"', "pass --time T"),
        ("set={'B': 1, 'C': 2}", "--set B=1 --set C=2"),
        ("with set={...}", "with --set NAME=VALUE"),
        ("unbounded='grow' or unbounded=300", "--unbounded grow or --unbounded 300"),
        ("try pulse=8", "try -p 8"),
        ("bind={'n': 'T'}", "--bind n=T"),
        ("take backend='ort' for this model", "take --backend ort for this model"),
        ('or proof="sampled"', "or --proof sampled"),
        ("convert with opening=False", "convert with --no-opening"),
        ("opset=9: too old", "--opset 9: too old"),
        ("target='x': there is none", "--to x: there is none"),
        ("tokens=FILE is missing", "--tokens FILE is missing"),
        ("sample_rate=-1: expected more", "sample_rate=-1: expected more"),
        ("1 is too few: at least 80. Push more frames before flush, or reset", "1 is too few: at least 80"),
        ("and this chunk needs more. Nothing was taken; flush, then reset", "and this input needs more"),
        ("nothing of ours", "nothing of ours"),
    ],
)
def test_hints_are_said_in_options(text: str, said: str) -> None:
    assert spoken(text) == said


def test_a_refusal_says_where_why_and_what_would_help() -> None:
    error = NotStreamable("it looks at all", node="n", op="Softmax", hint='pass unbounded="grow"', kind=Kind.LOOK_BACK)
    assert click.unstyle(message(error)) == (
        "not streamable: Softmax node 'n'\n  it looks at all\n  hint: pass --unbounded grow"
    )
    assert error_figures(error) == {
        "kind": "NotStreamable", "exit_code": 3, "refusal": "look-back", "node": "n", "op": "Softmax",
        "reason": "it looks at all", "hint": "pass --unbounded grow",
    }  # fmt: skip
    assert click.unstyle(message(FileNotFoundError(2, "No such file", "a.onnx"))) == "error: No such file: a.onnx"


def test_a_pulse_that_does_not_fit_says_which_would() -> None:
    facts: dict[str, Any] = error_figures(InvalidPulse(6, 4))
    assert (facts["pulse"], facts["granularity"]) == (6, 4) and facts["reason"].endswith("try -p 8")


@pytest.mark.parametrize(
    "args",
    [
        ["stream", "--bogus", "--json"],
        ["verify", "--json"],
        ["nothing", "--json"],
        ["--bogus", "--json"],
        ["--bogus", "stream", "--json"],
    ],
)
def test_usage_errors_are_json_too(args: list[str]) -> None:
    from pulsify.cli.main import main

    out = CliRunner().invoke(main, args)
    assert out.exit_code == 2
    told = json.loads(out.stdout)["error"]
    assert (told["kind"], told["exit_code"]) == ("Usage", 2) and told["reason"] in out.stderr
    plain = CliRunner().invoke(main, [a for a in args if a != "--json"])
    assert plain.exit_code == 2 and not plain.stdout
