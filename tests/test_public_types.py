"""What users see is typed: no `Any` in signatures of the public face, and results that are what they say."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pulsify
from tests import models

API = sorted((Path(pulsify.__file__).parent / "api").glob("*.py"))


def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in API]


def public_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    found += [n for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body if isinstance(n, ast.FunctionDef)]
    return [f for f in found if not f.name.startswith("_") or f.name == "__init__"]


def test_no_any_in_the_public_face() -> None:
    nodes = [n for tree in trees() for n in ast.walk(tree)]
    names = {n.id for n in nodes if isinstance(n, ast.Name)}
    names |= {a.name for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
    assert "Any" not in names


def test_everything_public_is_annotated() -> None:
    functions = [f for tree in trees() for f in public_functions(tree)]
    assert {"stream", "load", "verify", "export", "run", "session", "save", "pulse"} <= {f.name for f in functions}
    for f in functions:
        given = [*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs, f.args.vararg, f.args.kwarg]
        assert f.returns is not None, f.name
        assert all(a.annotation for a in given if a is not None and a.arg != "self"), f.name


def test_reports_are_values() -> None:
    proto = models.look_ahead()
    stream = pulsify.stream(proto, pulse=4)
    report = pulsify.verify(proto, stream, lengths=[9])
    for seen in (stream.report, report):
        assert isinstance(seen, pulsify.Report)
        assert seen.ok
        assert isinstance(seen.outputs["y"], pulsify.Deviation)
    assert pulsify.stream(proto, pulse=4, verify=False).report is None
    with pytest.raises(AttributeError):
        report.runs = 0  # type: ignore[misc]
    assert report == pulsify.verify(proto, stream, lengths=[9])
