"""The rules of `core/framing.py`, and how many frames there are at a length, as C and as JavaScript.

A rule is read as an expression (`core/count.py`), which a length is already:

    whole * (whole >= first)        ["multiply", "whole", ["greater_equal", "whole", "first"]]
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pulsify.core import framing
from pulsify.core.count import Expression

RULES: tuple[Callable[..., int], ...] = (
    framing.computed, framing.given, framing.place, framing.until, framing.left, framing.back,
)  # fmt: skip
OPERATORS = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.FloorDiv: "floor_divide", ast.GtE: "greater_equal",
}  # fmt: skip
INFIX = {
    "add": "+", "subtract": "-", "multiply": "*", "equal": "==", "less": "<", "greater": ">", "less_equal": "<=",
    "greater_equal": ">=", "logical_and": "&&", "logical_or": "||",
}  # fmt: skip
C = {
    "floor_divide": "p_floor_div({}, {})", "mod": "p_mod({}, {})", "minimum": "P_MIN({}, {})",
    "maximum": "P_MAX({}, {})", "where": "({} ? {} : {})", "float32": "(float)({})", "int64": "(int64_t)({})",
}  # fmt: skip
JAVASCRIPT = {"floor_divide": "Math.floor({} / {})", "minimum": "Math.min({}, {})", "maximum": "Math.max({}, {})"}


@dataclass(frozen=True)
class Formula:
    """A rule: what it is called with, what it gives, and what that is."""

    name: str
    variables: tuple[str, ...]
    value: Expression
    meaning: str


def formula(rule: Callable[..., int]) -> Formula:
    """What a rule computes, as an expression."""
    (function,) = ast.parse(inspect.getsource(rule)).body
    assert isinstance(function, ast.FunctionDef)
    returned = function.body[-1]
    assert isinstance(returned, ast.Return) and len(function.body) == 2, f"{function.name} is more than one expression"
    names = tuple(a.arg for a in function.args.args)
    return Formula(function.name, names, _expression(returned.value), ast.get_docstring(function) or "")


def _expression(node: ast.expr | None) -> Expression:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=a, op=op, right=b) | ast.Compare(left=a, ops=[op], comparators=[b]):
            return [OPERATORS[type(op)], _expression(a), _expression(b)]
        case ast.Call(func=ast.Name(id=("min" | "max") as name), args=[a, b]):
            return [f"{name}imum", _expression(a), _expression(b)]
    raise AssertionError(f"a rule has no {ast.dump(node) if node else node}")


@dataclass
class Text:
    """Expressions in C. tables: what is looked up in them, by name."""

    tables: dict[tuple[int, ...], str] = field(default_factory=dict)

    def of(self, e: Expression) -> str:
        if isinstance(e, list) and e[0] == "take":
            name = self.tables.setdefault(tuple(e[1]), f"table_{len(self.tables)}")
            return f"{name}[{self.of(e[2])}]"
        return rendered(e, C, self.of)

    @property
    def declared(self) -> list[str]:
        return [f"static const int32_t {n}[] = {{{', '.join(map(str, v))}}};" for v, n in self.tables.items()]


def rendered(e: Expression, calls: dict[str, str], inner: Callable[[Expression], str]) -> str:
    if not isinstance(e, list):
        return f"({e})" if isinstance(e, int | float) and e < 0 else str(e)
    name, parts = e[0], [inner(part) for part in e[1:]]
    return f"({parts[0]} {INFIX[name]} {parts[1]})" if name in INFIX else calls[name].format(*parts)


def c_function(name: str, variables: Sequence[str], value: Expression) -> list[str]:
    """A function of whole numbers."""
    text = Text()
    returned = text.of(value)
    head = f"static inline int64_t {name}({', '.join(f'int64_t {v}' for v in variables)}) {{"
    return [head, *(f"    {line}" for line in text.declared), f"    return {returned};", "}"]


def c_rules(text: str) -> list[str]:
    """The rules that are called in it."""
    lines = []
    for f in map(formula, RULES):
        if f"frames_{f.name}(" in text:
            lines += [f"/* {f.meaning} */", *c_function(f"frames_{f.name}", f.variables, f.value)]
    return lines


def js_rules(names: Sequence[str]) -> str:
    def javascript(e: Expression) -> str:
        return rendered(e, JAVASCRIPT, javascript)

    lines = []
    for f in map(formula, RULES):
        if f.name in names:
            lines += [f"/** {f.meaning} */", f"const {f.name} = ({', '.join(f.variables)}) => {javascript(f.value)};"]
    return "\n".join(lines)
