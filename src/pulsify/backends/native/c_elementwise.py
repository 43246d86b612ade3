"""Operators on single elements as C: the formulas of `backends/elementwise.py`, and those that need C of their own."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import partial, reduce

from pulsify.backends.elementwise import FORMULAS, Language, formula
from pulsify.backends.native.fuse import literal
from pulsify.backends.native.scope import Site
from pulsify.backends.native.table import expression
from pulsify.backends.native.views import FLOATING, width
from pulsify.backends.site import Uncovered

WRAPS = {"Add": "{} + {}", "Sub": "{} - {}", "Mul": "{} * {}", "Neg": "0u - {}"}  # whole numbers, as in the runtime
LAST = 3.4028234663852886e38  # of float
UNSIGNED = {"int64_t": "uint64_t", "int32_t": "uint32_t", "int16_t": "uint32_t", "int8_t": "uint32_t",
            "uint8_t": "uint32_t", "uint16_t": "uint32_t", "uint32_t": "uint32_t"}  # fmt: skip
OWN = ("exp", "tanh", "sigmoid", "log", "sin", "cos", "erf", "softplus")  # polynomials of ours, for float
CALLS = {  # where it is not a function of math.h under the same name
    "any": {"where": "({} ? {} : {})", "not": "!{}"},
    "float": {
        **{name: f"p_{name}({{}})" for name in OWN}, "abs": "fabsf({})", "round": "rintf({})",
        "clip": "p_min(p_max({}, {}), {})", "pick": "p_pick({}, {}, {})",
    },
    "double": {
        "sigmoid": "(1.0 / (1.0 + exp(-({0}))))", "softplus": "(log1p(exp(-fabs({0}))) + ({0} > 0.0 ? {0} : 0.0))",
        "abs": "fabs({})", "round": "rint({})",
    },
}  # fmt: skip


def real(n: Site, i: int = 0) -> str:
    kind = n.kind(i)
    if kind not in FLOATING:
        raise Uncovered(f"of {kind}")
    return kind


def call(name: str, kind: str) -> str:
    """A function of math.h, of the right type."""
    return f"{name}f" if kind == "float" else name


@expression(*FORMULAS)
def by_formula(n: Site, x: list[str]) -> str:
    f, kind, made = formula(n.op), n.kind(), n.makes()
    names = dict(zip(f.operands, x, strict=True))
    names |= {name: literal(n.attr(name, default), real(n)) for name, default in f.settings.items()}
    if made not in FLOATING and n.op in WRAPS:
        return f"({made})({WRAPS[n.op].format(*(f'({UNSIGNED[made]}){operand}' for operand in x))})"
    text = Language(names, partial(literal, ctype=kind), partial(function, n)).write(f.body)
    return text if made in FLOATING or isinstance(f.body, ast.Call) else f"({made})({text})"


def function(n: Site, name: str, x: Sequence[str]) -> str:
    if name in CALLS["any"]:
        return CALLS["any"][name].format(*x)
    if name == "abs" and n.kind() not in FLOATING:
        return f"({n.kind()})({x[0]} < 0 ? -{x[0]} : {x[0]})"
    kind = real(n)
    if name in CALLS[kind]:
        return CALLS[kind][name].format(*x)
    if name in ("clip", "pick"):
        raise Uncovered("of double")
    return f"{call(name, kind)}({x[0]})"


@expression("Div")
def divided(n: Site, x: list[str]) -> str:
    kind = n.makes()
    return f"{x[0]} / {x[1]}" if kind in FLOATING else f"({kind})p_div({x[0]}, {x[1]})"


@expression("Mod")
def remainder(n: Site, x: list[str]) -> str:
    kind, fmod = n.makes(), n.attr("fmod", 0)
    if kind in FLOATING:
        if not fmod:
            raise Uncovered("of floats only with fmod=1")
        return f"{call('fmod', kind)}({x[0]}, {x[1]})"
    return f"({kind}){'p_rem' if fmod else 'p_mod'}({x[0]}, {x[1]})"


@expression("Pow")
def power(n: Site, x: list[str]) -> str:
    kind = real(n)
    exponent = n.const(1)
    if exponent is not None and exponent.size == 1:
        number = float(exponent.reshape(-1)[0])
        if number == 2.0:
            return f"{x[0]} * {x[0]}"
        if number == 0.5:
            return f"{call('sqrt', kind)}({x[0]})"
        if number == 3.0:
            return f"{x[0]} * {x[0]} * {x[0]}"
    return f"{call('pow', kind)}({x[0]}, ({kind}){x[1]})"


@expression("BitShift")
def shifted(n: Site, x: list[str]) -> str:
    """By as many bits as there are or more nothing is left."""
    kind, sign = n.makes(), "<<" if n.text("direction", "LEFT") == "LEFT" else ">>"
    return f"({kind})({x[1]} < {8 * width(kind)} ? (uint64_t){x[0]} {sign} {x[1]} : 0)"


@expression("Max", "Min")
def extremes(n: Site, x: list[str]) -> str:
    """What is not a number stays so."""
    name = n.op.lower()
    if n.makes() == "float":
        return reduce(lambda a, b: f"p_{name}({a}, {b})", x)
    sign = ">" if n.op == "Max" else "<"
    if len(x) > 2:
        raise Uncovered("of more than two that are no float32")
    return x[0] if len(x) == 1 else f"{x[0]} {sign} {x[1]} ? {x[0]} : {x[1]}"


@expression("Sum", "Mean")
def total(n: Site, x: list[str]) -> str:
    kind = real(n)
    text = " + ".join(x)
    return text if n.op == "Sum" else f"({text}) / {literal(len(x), kind)}"


@expression("Where")
def where(n: Site, x: list[str]) -> str:
    return f"{x[0]} ? {x[1]} : {x[2]}"


@expression("Cast", "CastLike")
def cast(n: Site, x: list[str]) -> str:
    source, target = n.kind(), n.makes()
    if n.node.outputs[0].dtype is not None and n.node.outputs[0].dtype.name == "BOOL":
        return f"(uint8_t)({x[0]} != 0)"
    if source in FLOATING and target not in FLOATING:
        wide = target in ("int64_t", "uint32_t")  # what 32 bits with a sign do not hold
        return f"({target})p_whole{'64' if wide else ''}({x[0]})"
    return f"({target}){x[0]}"


@expression("Sign")
def sign(n: Site, x: list[str]) -> str:
    kind = n.makes()
    if kind in FLOATING:
        one, zero = literal(1, kind), literal(0, kind)
        return f"{x[0]} > {zero} ? {one} : {x[0]} < {zero} ? -{one} : {x[0]} == {zero} ? {zero} : {x[0]}"
    return f"({kind})(({x[0]} > 0) - ({x[0]} < 0))"


@expression("IsInf")
def is_inf(n: Site, x: list[str]) -> str:
    kind = real(n)
    tests = [
        f"{x[0]} == {literal(sign, kind)}"
        for name, sign in (("detect_positive", float("inf")), ("detect_negative", float("-inf")))
        if n.attr(name, 1)
    ]
    return f"(uint8_t)({' || '.join(tests) or '0'})"


@expression("Clip")
def clip(n: Site, x: list[str]) -> str:
    """Lower bound first, as the runtime has it."""
    kind, out = n.makes(), x[0]
    if n.opset < 11:
        bounds = [None if n.attr(k) is None else literal(n.attr(k), kind) for k in ("min", "max")]
    else:
        bounds = [x[i] if n.has(i) else None for i in (1, 2)]
    if kind == "float":  # what is not bounded ends at the last number before infinity
        bounds = [b if b is not None else literal(s * LAST, kind) for b, s in zip(bounds, (-1, 1), strict=True)]
    for bound, name in zip(bounds, ("max", "min"), strict=True):
        if bound is not None:
            out = f"p_{name}({out}, {bound})" if kind == "float" else f"P_{name.upper()}({out}, {bound})"
    return out


@expression("Gelu")
def gelu(n: Site, x: list[str]) -> str:
    if real(n) != "float":
        raise Uncovered("of double")
    if n.text("approximate", "none") == "tanh":
        return f"0.5f * {x[0]} * (1.0f + p_tanh(0.7978845608f * ({x[0]} + 0.044715f * {x[0]} * {x[0]} * {x[0]})))"
    return f"0.5f * {x[0]} * (1.0f + p_erf({x[0]} * 0.70710678118654752f))"
