"""What users see is typed: no `Any` in signatures of the public face, and results that are what they say."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
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
    for seen in (stream.verification, report):
        assert isinstance(seen, pulsify.Report)
        assert seen.ok
        assert isinstance(seen.outputs["y"], pulsify.Deviation)
    assert pulsify.stream(proto, pulse=4, verify=False).verification is None
    with pytest.raises(AttributeError):
        report.runs = 0  # type: ignore[misc]
    assert report == pulsify.verify(proto, stream, lengths=[9])


TYPED = """
import asyncio
import numpy as np
import pulsify

stream, x = pulsify.stream("model.onnx", pulse=4, quiet=True), np.zeros((1, 2, 9), np.float32)
reveal_type(stream.session(by_name=False).push(x))
reveal_type(stream.session(by_name=True).flush())
reveal_type(stream.session(by_name=True, backend="native").fork().peek())
reveal_type([y for y in stream.session(by_name=False).iterate([x])])
reveal_type(stream.session())
reveal_type(stream.run(x, 5))
reveal_type(stream.run(iter([x]), by_name=False))
reveal_type(stream.run({"x": x}, by_name=True))
reveal_type(stream.verification)
reveal_type(stream.report("page.html"))
session: pulsify.Session = stream.session(batch=2)


async def arriving() -> None:
    async for y in stream.session(by_name=False).aiterate([x]):
        reveal_type(y)
"""
ARRAY, NAMED = "ndarray[Any, dtype[Any]]", "dict[str, ndarray[Any, dtype[Any]]]"
REVEALED = [
    ARRAY, NAMED, NAMED, f"list[{ARRAY}]", "Session[Any]", f"{ARRAY} | {NAMED}", ARRAY, NAMED, "Report | None", "None",
    ARRAY,
]  # fmt: skip


def test_a_type_checker_knows_the_results(tmp_path: Path) -> None:
    """With the project's own settings, so that the cache of `mypy` itself serves here as well."""
    pytest.importorskip("mypy", reason="the lowest versions are tested without it")
    (tmp_path / "typed.py").write_text(TYPED)
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(tmp_path / "typed.py")], capture_output=True,
        text=True, cwd=root, env={**os.environ, "MYPYPATH": str(root / "src")},
    )  # fmt: skip
    told = re.findall(r'note: Revealed type is "(.*)"', done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [re.sub(r"[a-z_]+\.(?=[a-z_A-Z])", "", one) for one in told] == REVEALED
