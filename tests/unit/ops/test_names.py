"""What is known about an operator stands in `pulsify.ops`: elsewhere no code names one that it reads from a model."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

import pulsify

SOURCE = Path(pulsify.__file__).parent
OPERATORS = {s.name for s in onnx.defs.get_all_schemas_with_history()} | {"MultiHeadAttention"}
NAMED_HERE = ("ops/", "backends/", "frontend/", "export/", "optimize/")  # optimize: rewrites of steps
TABLES = ("core/by_numpy.py", "core/traits.py")  # what runs without `ops` knows these
REWRITES = ("serve/detectors.py",)  # takes the graph of one known file apart
WRITERS = {"op", "ops", "node", "make_node", "Node", "reduced"}  # calls that write a node of this name
PREFIXES = {"startswith", "endswith"}


def names_read(code: str) -> Iterator[tuple[int, str]]:
    """The lines at which code names operators, but for those that it writes into a graph."""
    tree = ast.parse(code)
    written = {
        leaf
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _called(call) in WRITERS
        for argument in call.args[:2]
        for leaf in _leaves(argument)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in written and _names_operators(node.value):
            yield node.lineno, str(node.value)
        elif isinstance(node, ast.Call | ast.Compare) and _parts_of_name(node):
            yield node.lineno, ast.unparse(node)


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _leaves(argument: ast.expr) -> list[ast.expr]:
    """The argument; of a choice between two, both."""
    return [argument] if not isinstance(argument, ast.IfExp) else [*_leaves(argument.body), *_leaves(argument.orelse)]


def _names_operators(value: object) -> bool:
    words = value.split() if isinstance(value, str) else []
    return bool(words) and set(words) <= OPERATORS


def _parts_of_name(node: ast.Call | ast.Compare) -> bool:
    """node.op.startswith("Reduce"), "Pool" in node.op"""
    if isinstance(node, ast.Compare):
        return any(isinstance(o, ast.In) and _operator(c) for o, c in zip(node.ops, node.comparators, strict=True))
    return isinstance(node.func, ast.Attribute) and node.func.attr in PREFIXES and _operator(node.func.value)


def _operator(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Attribute) and expression.attr in ("op", "op_type")


def files() -> list[str]:
    names = (p.relative_to(SOURCE).as_posix() for p in sorted(SOURCE.rglob("*.py")))
    return [n for n in names if not n.startswith((*NAMED_HERE, *TABLES, *REWRITES))]


def test_no_code_outside_the_table_names_an_operator_that_it_reads() -> None:
    lines = [f"{n}:{line}: {text}" for n in files() for line, text in names_read((SOURCE / n).read_text("utf-8"))]
    assert not lines, "ask a facet or a trait (core/facet.py, core/traits.py):\n" + "\n".join(lines)


@pytest.mark.parametrize(
    "code",
    [
        'node.op == "Concat"', 'node.op in ("Less", "Greater")', 'LAWS = {"Add": 1}', 'LAWS.get("Add")',
        'NAMES = "Exp Log Sin".split()', 'node.op.startswith("Reduce")', 'proto.op_type.endswith("Pool")',
        '"Sequence" in node.op', 'FACET.named("Mul")', 'f(op="If")', 'match node.op:\n    case "Conv":\n        pass',
    ],
)  # fmt: skip
def test_names_that_are_read_are_seen(code: str) -> None:
    assert list(names_read(code))


@pytest.mark.parametrize(
    "code",
    [
        'b.op("Concat", x, axis=1)', 'helper.make_node("Cast", ["x"], ["y"])', 'ir.Node("", "Identity", [x])',
        'b.op("Less" if before else "Greater", x, y)', 'say("Add it to the list")', '"""Concat joins."""', 'f("text")',
        'name.startswith("Con")', '"x" in node.inputs',
    ],
)  # fmt: skip
def test_names_that_are_written_are_no_matter(code: str) -> None:
    assert not list(names_read(code))


def test_what_is_left_out_is_there() -> None:
    assert all((SOURCE / name).exists() for name in (*NAMED_HERE, *TABLES, *REWRITES))
