"""Operators on single elements: the formulas of `backends/elementwise.py`, and those that need code of torch's own."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import reduce

from pulsify.backends.elementwise import FORMULAS, Language, formula
from pulsify.backends.site import Uncovered
from pulsify.backends.torch.site import Site, literal
from pulsify.backends.torch.table import Written, op

FUSED = {  # torch's own kernel, where it has one for the whole formula
    "Relu": "torch.relu({x})", "Reciprocal": "torch.reciprocal({x})", "IsNaN": "torch.isnan({x})",
    "HardSwish": "F.hardswish({x})", "Softsign": "F.softsign({x})", "Mish": "F.mish({x})",
    "LeakyRelu": "F.leaky_relu({x}, {alpha})", "Elu": "F.elu({x}, {alpha})",
    "Celu": "F.celu({x}, {alpha})", "Selu": "{gamma} * F.elu({x}, {alpha})",
}  # fmt: skip
CALLED = {
    "not": "~{}", "softplus": "F.softplus({})", "clip": "torch.clamp({}, {}, {})", "pick": "torch.where({}, {}, {})",
}  # fmt: skip


@op(*FORMULAS)
def by_formula(n: Site) -> Written:
    f = formula(n.op)
    infix = isinstance(f.body, ast.BinOp | ast.Compare) and len(f.operands) == 2
    operands = pair(n) if infix else map(n.x, range(len(f.operands)))
    names = dict(zip(f.operands, operands, strict=True))
    names |= {name: literal(n.attr(name, default)) for name, default in f.settings.items()}
    if n.op in FUSED:
        return FUSED[n.op].format(**names)
    return Language(names, literal, called).write(f.body)


def called(name: str, arguments: Sequence[str]) -> str:
    return CALLED[name].format(*arguments) if name in CALLED else f"torch.{name}({', '.join(arguments)})"


@op("Identity", "Dropout")
def same(n: Site) -> Written:
    n.only(0)
    if n.op == "Dropout" and n.has(2) and n.known(2, "mode").any():
        raise Uncovered("it is in training mode")
    return n.x()


@op("Sign")
def sign(n: Site) -> Written:
    x = n.x()
    return f"torch.where({x} == {x}, torch.sign({x}), {x})" if n.floating() else f"torch.sign({x})"  # NaN stays


def pair(n: Site, first: int = 0, second: int = 1) -> tuple[str, str]:
    """Two operands; one of them as a number, if it is one and the other has all the axes."""
    for a, b in ((first, second), (second, first)):
        number = n.number(b)
        if number is not None and n.const(a) is None and n.within(b, a):
            return (n.x(a), number) if a == first else (number, n.x(a))
    return n.x(first), n.x(second)


@op("Div")
def div(n: Site) -> Written:
    """Integers are cut off towards zero. A number is kept as a tensor: a card multiplies with its inverse otherwise."""
    if not n.floating():
        x, y = pair(n)
        if n.const(0) is not None:
            x = n.x(0)
        return f"torch.div({x}, {y}, rounding_mode='trunc')"
    return f"{n.x(0)} / {n.x(1)}"


@op("Mod")
def mod(n: Site) -> Written:
    fmod = n.attr("fmod", 0)
    if n.floating() and not fmod:
        raise Uncovered("of floats only with fmod=1")
    return f"torch.{'fmod' if fmod else 'remainder'}({n.x(0)}, {n.x(1)})"


@op("Pow")
def power(n: Site) -> Written:
    if n.floating():
        return f"torch.pow({n.x(0)}, {n.number(1) or n.x(1)})"
    exponent = n.known(1, "exponent")
    if exponent.dtype.kind == "f" or (exponent < 0).any():
        raise Uncovered("of integers only with exponents that are none below zero")
    return f"torch.pow({n.x(0)}, {n.x(1)}).to(torch.{n.made()})"


@op("Max", "Min")
def extremes(n: Site) -> Written:
    if n.count() == 2:
        for i, other in ((0, 1), (1, 0)):
            number = n.number(other)
            if number is not None and n.const(i) is None and n.within(other, i):
                return f"{n.x(i)}.clamp({'min' if n.op == 'Max' else 'max'}={number})"
    name = "maximum" if n.op == "Max" else "minimum"
    return reduce(lambda a, b: f"torch.{name}({a}, {b})", (n.x(i) for i in range(n.count())))


@op("Sum")
def total(n: Site) -> Written:
    return " + ".join(n.x(i) for i in range(n.count()))


@op("Mean")
def mean(n: Site) -> Written:
    return f"({' + '.join(n.x(i) for i in range(n.count()))}) / {n.count()}"


@op("Where")
def where(n: Site) -> Written:
    texts = [n.x(1), n.x(2)]
    for i, other in ((2, 1), (1, 2)):
        number = n.number(i)
        if number is not None and n.number(other) is None and (n.within(i, other) or n.within(i, 0)):
            texts[i - 1] = number
            break
    return f"torch.where({n.x(0)}, {texts[0]}, {texts[1]})"


@op("Cast", "CastLike")
def cast(n: Site) -> Written:
    return f"{n.x()}.to(torch.{n.made()})"


@op("Clip")
def clip(n: Site) -> Written:
    if n.opset < 11:
        low, high = (n.attr(k) for k in ("min", "max"))
        bounds = [None if b is None else literal(b) for b in (low, high)]
        tensors = False
    else:
        bounds = [n.number(i) or n.x(i) if n.has(i) else None for i in (1, 2)]
        tensors = any(n.has(i) and n.number(i) is None for i in (1, 2))
    if tensors:
        bounds = [n.x(i) if n.has(i) else None for i in (1, 2)]
    if n.floating() and not tensors:  # what is not bounded ends at the last number before infinity
        last = f"torch.finfo(torch.{n.kind()}).max"
        bounds = [b if b is not None else f"{sign}{last}" for b, sign in zip(bounds, ("-", ""), strict=True)]
    named = [f"{name}={b}" for name, b in zip(("min", "max"), bounds, strict=True) if b is not None]
    return f"torch.clamp({n.x()}, {', '.join(named)})" if named else n.x()


@op("Gelu")
def gelu(n: Site) -> Written:
    return f"F.gelu({n.x()}, approximate='{n.attr('approximate', 'none')}')"


@op("IsInf")
def is_inf(n: Site) -> Written:
    if not (n.attr("detect_negative", 1) and n.attr("detect_positive", 1)):
        raise Uncovered("one of the infinities only")
    return f"torch.isinf({n.x()})"
