"""A file says what the options say, in the same words; what it cannot mean is an error that names the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from pulsify.cli.configuration import keys, reread
from pulsify.cli.serve import serve

EXAMPLES: dict[str, Any] = {  # where the type alone does not say what a value may be
    "unbounded": "300", "bind": {"length": "T", "mask": "ones"}, "set": {"B": 1, "S": "8*n"}, "time": {"x": 2},
    "option": {"device": "cpu"}, "models": {"a": "a.onnx@16000", "b": "b.onnx"},
}  # fmt: skip


def parsed(*arguments: str) -> dict[str, Any]:
    with serve.make_context("serve", list(arguments)) as context:
        return context.params


def written(path: Path, values: dict[str, Any]) -> str:
    """As TOML, which JSON's texts, numbers and lists are too."""
    lines = [f"{key} = {json.dumps(v)}" for key, v in values.items() if not isinstance(v, dict)]
    for key, table in values.items():
        if isinstance(table, dict):
            lines += [f"[{key}]", *(f"{name} = {json.dumps(v)}" for name, v in table.items())]
    path.write_text("\n".join(lines))
    return str(path)


def example(key: str, parameter: click.Parameter, here: Path) -> Any:
    """A value that is not the default."""
    kind = parameter.type
    if key in EXAMPLES:
        return EXAMPLES[key]
    if getattr(parameter, "is_flag", False):
        return not parameter.secondary_opts
    if isinstance(kind, click.Choice):
        return next(c for c in kind.choices if c != parameter.default)
    if isinstance(kind, click.types.IntParamType):
        return 7
    if isinstance(kind, click.types.FloatParamType):
        return 7.5
    value = str(here) if isinstance(kind, click.Path) else f"some {key}"
    return [value, "another"] if parameter.multiple else value  # type: ignore[attr-defined]


def arguments(key: str, parameter: click.Parameter, value: Any) -> list[str]:
    """The same on the command line."""
    if isinstance(value, dict):
        value = [f"{name}={each}" for name, each in value.items()]
    if isinstance(parameter, click.Argument):
        return list(value)
    names = [parameter.secondary_opts[0]] if value is False else [f"--{key}"]
    if isinstance(value, bool):
        return names
    return [part for each in (value if isinstance(value, list) else [value]) for part in (names[0], str(each))]


@pytest.mark.parametrize("key", keys(serve))
def test_every_option_means_the_same_in_a_file(key: str, tmp_path: Path) -> None:
    parameter = keys(serve)[key]
    value = example(key, parameter, Path(__file__))
    from_file = parsed("--config", written(tmp_path / "server.toml", {key: value}))
    assert from_file == parsed(*arguments(key, parameter, value))
    assert key == "quiet" or from_file != parsed()  # which is no parameter of the function


def test_all_options_but_two_may_stand_in_a_file() -> None:
    names = {each for parameter in serve.params for each in parameter.opts if each.startswith("--")}
    assert {f"--{key}" for key in keys(serve)} - {"--models"} == names - {"--config"}


def test_the_command_line_and_the_environment_override_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "server.toml", {"port": 1, "most": 2, "key": "file", "models": ["file.onnx"]})
    got = parsed("--config", path, "--port", "3")
    assert (got["port"], got["most"], got["key"], got["sources"]) == (3, 2, "file", ("file.onnx",))
    monkeypatch.setenv("PULSIFY_KEY", "environment")
    monkeypatch.setenv("PULSIFY_CONFIG", path)
    got = parsed("line.onnx")
    assert (got["port"], got["key"], got["sources"]) == (1, "environment", ("line.onnx",))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("prot = 1", "unknown key 'prot'; the nearest one is 'port'"),
        ("tls_cert = 'x'", "unknown key 'tls_cert'; the nearest one is 'tls-cert'"),
        ("config = 'x'", "unknown key 'config'"),
        ("port = 'a'", "port: expected a whole number"),
        ("port = true", "port: expected a whole number"),
        ("port = 99999", "port: 99999 is not in the range"),
        ("wait = nan", "wait: nan is no number"),
        ("host = 5", "host: expected a text"),
        ("no-verify = 1", "no-verify: expected true or false"),
        ("backend = ['a', 'b']", "backend: expected a text"),
        ("origin = [1]", "origin: expected a text"),
        ("bind = 'x'", "bind: 'x' is not NAME=VALUE"),
        ("models = {a = 1979-05-27}", "models: expected a table of texts or numbers"),
        ("log-level = 'loud'", "log-level: 'loud' is not one of"),
        ("tls-cert = '/'", "tls-cert: File '/' is a directory"),
        ("port", "not TOML: Expected '='"),
        ("port = 1\nport = 2", "not TOML: Cannot overwrite a value"),
        ("a = " + "[" * 5000, "not TOML"),
        ("port = 1 # \udcff", "not TOML"),
    ],
)
def test_what_a_file_cannot_mean_is_told(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(click.UsageError) as caught:
        parsed("--config", str(path))
    assert caught.value.message.startswith(f"{path}: ") and why in caught.value.message


def test_names_of_tokens_are_a_table(tmp_path: Path) -> None:
    path = written(tmp_path / "server.toml", {"token": {"app": "s3cret", "page": "another"}})
    assert parsed("--config", path)["token"] == ("app:s3cret", "page:another")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="No such file"):
        parsed("--config", str(tmp_path / "none.toml"))


def test_a_file_is_read_once_more(tmp_path: Path) -> None:
    path = written(tmp_path / "server.toml", {"port": 1, "token": "old"})
    with serve.make_context("serve", ["--config", path, "--most", "2"]) as context:
        assert (context.params["port"], context.params["most"]) == (1, 2)
        written(tmp_path / "server.toml", {"port": 3, "most": 4})
        again = reread(context)
        assert (again["port"], again["most"], again["token"]) == (3, 2, ())
        (tmp_path / "server.toml").write_text("nonsense")
        with pytest.raises(click.ClickException):
            reread(context)
