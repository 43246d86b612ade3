"""Operators on single elements that are one formula, whichever back end writes it.

    LeakyRelu    x, alpha=0.01: where(x < 0.0, alpha * x, x)

x and y are the operands; a name with a default is an attribute. A formula is plain Python: `ast` reads and writes it,
and a back end puts in its own names, numbers and functions. What differs between back ends is a function in each:

    Div Mod Pow Cast    whole numbers, and numbers out of range
    Sign Max Min Clip   what is not a number stays so
    Where Sum Mean      constants as plain numbers; any number of operands
    Gelu IsInf          an attribute chooses the formula
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

FUNCTIONS = (
    "Abs", "Sqrt", "Exp", "Log", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh",
    "Erf", "Floor", "Ceil", "Round", "Sigmoid", "Tanh", "Softplus",
)  # fmt: skip
FORMULAS = {name: f"x: {name.lower()}(x)" for name in FUNCTIONS} | {
    "Add": "x, y: x + y",
    "Sub": "x, y: x - y",
    "Mul": "x, y: x * y",
    "Neg": "x: -x",
    "Reciprocal": "x: 1.0 / x",
    "And": "x, y: x & y",
    "Or": "x, y: x | y",
    "Xor": "x, y: x ^ y",
    "Not": "x: not x",
    "BitwiseAnd": "x, y: x & y",
    "BitwiseOr": "x, y: x | y",
    "BitwiseXor": "x, y: x ^ y",
    "BitwiseNot": "x: ~x",
    "Less": "x, y: x < y",
    "LessOrEqual": "x, y: x <= y",
    "Greater": "x, y: x > y",
    "GreaterOrEqual": "x, y: x >= y",
    "Equal": "x, y: x == y",
    "IsNaN": "x: x != x",
    "Relu": "x: where(x < 0, 0, x)",
    "LeakyRelu": "x, alpha=0.01: where(x < 0.0, alpha * x, x)",
    "PRelu": "x, y: where(x < 0, x * y, x)",
    "ThresholdedRelu": "x, alpha=1.0: where(x > alpha, x, 0.0)",
    "Shrink": "x, lambd=0.5, bias=0.0: where(x < -lambd, x + bias, where(x > lambd, x - bias, 0.0))",
    "Elu": "x, alpha=1.0: pick(x < 0.0, alpha * (exp(x) - 1.0), x)",
    "Celu": "x, alpha=1.0: pick(x < 0.0, alpha * (exp(x / alpha) - 1.0), x)",
    "Selu": "x, alpha=1.6732632423543772, gamma=1.0507009873554805: gamma * pick(x < 0.0, alpha * (exp(x) - 1.0), x)",
    "HardSigmoid": "x, alpha=0.2, beta=0.5: clip(alpha * x + beta, 0.0, 1.0)",
    "HardSwish": "x: x * clip(0.16666666666666666 * x + 0.5, 0.0, 1.0)",
    "Softsign": "x: x / (1.0 + abs(x))",
    "Mish": "x: x * tanh(softplus(x))",
    "Swish": "x, alpha=1.0: x * sigmoid(alpha * x)",
}  # `pick`: as `where`, but quicker where a machine works out both


@dataclass(frozen=True)
class Formula:
    """What an operator means. settings: its attributes, and what they are if left out."""

    operands: tuple[str, ...]
    settings: Mapping[str, float]
    body: ast.expr


@dataclass(frozen=True)
class Language(ast.NodeTransformer):
    """What a back end puts in: the text of a name, of a number, and of a function of such texts (`not` is one)."""

    names: Mapping[str, str]
    number: Callable[[float], str]
    call: Callable[[str, Sequence[str]], str]

    def write(self, body: ast.expr) -> str:
        return ast.unparse(self.visit(body))

    def visit_Name(self, e: ast.Name) -> ast.expr:
        return ast.Name(self.names[e.id])

    def visit_Constant(self, e: ast.Constant) -> ast.expr:
        assert isinstance(e.value, (int, float))
        return ast.Name(self.number(e.value))

    def visit_Call(self, e: ast.Call) -> ast.expr:
        assert isinstance(e.func, ast.Name)
        return ast.Name(self.call(e.func.id, [self.write(a) for a in e.args]))

    def visit_UnaryOp(self, e: ast.UnaryOp) -> ast.expr:
        if isinstance(e.op, ast.Not):
            return ast.Name(self.call("not", [self.write(e.operand)]))
        return ast.UnaryOp(e.op, self.visit(e.operand))


def formula(op: str) -> Formula:
    """The formula of an operator, parsed anew each time: writing it changes its nodes."""
    read = ast.parse(f"lambda {FORMULAS[op]}", mode="eval").body
    assert isinstance(read, ast.Lambda)
    names, defaults = [a.arg for a in read.args.args], [ast.literal_eval(d) for d in read.args.defaults]
    count = len(names) - len(defaults)
    return Formula(tuple(names[:count]), dict(zip(names[count:], defaults, strict=True)), read.body)
