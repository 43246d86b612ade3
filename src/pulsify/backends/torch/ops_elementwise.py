"""Operators that look at one element at a time."""

from __future__ import annotations

from functools import reduce

from pulsify.backends.site import Uncovered
from pulsify.backends.torch.site import Site, literal
from pulsify.backends.torch.table import Written, op

BINARY = {
    "Add": "+", "Sub": "-", "Mul": "*", "And": "&", "Or": "|", "Xor": "^", "Less": "<", "LessOrEqual": "<=",
    "Greater": ">", "GreaterOrEqual": ">=", "Equal": "==", "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^",
}  # fmt: skip
UNARY = {
    "Neg": "-{x}", "Not": "~{x}", "BitwiseNot": "~{x}", "Identity": "{x}", "Dropout": "{x}",
    "Relu": "torch.relu({x})", "HardSwish": "F.hardswish({x})", "Softsign": "F.softsign({x})", "Mish": "F.mish({x})",
    "Softplus": "F.softplus({x})",
} | {
    name: f"torch.{name.lower()}({{x}})"
    for name in (
        "Abs", "Sqrt", "Exp", "Log", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh",
        "Atanh", "Erf", "Floor", "Ceil", "Round", "Reciprocal", "Sigmoid", "Tanh", "IsNaN",
    )
}  # fmt: skip


@op(*UNARY)
def unary(n: Site) -> Written:
    n.only(0)
    if n.op == "Dropout" and n.has(2) and n.known(2, "mode").any():
        raise Uncovered("it is in training mode")
    return UNARY[n.op].format(x=n.x())


@op("Sign")
def sign(n: Site) -> Written:
    x = n.x()
    return f"torch.where({x} == {x}, torch.sign({x}), {x})" if n.floating() else f"torch.sign({x})"  # NaN stays


@op(*BINARY)
def binary(n: Site) -> Written:
    x, y = pair(n)
    return f"{x} {BINARY[n.op]} {y}"


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


# ---- activations with settings of their own


@op("Elu", "Celu")
def elu(n: Site) -> Written:
    return f"F.{n.op.lower()}({n.x()}, {literal(n.attr('alpha', 1.0))})"


@op("LeakyRelu")
def leaky_relu(n: Site) -> Written:
    return f"F.leaky_relu({n.x()}, {literal(n.attr('alpha', 0.01))})"


@op("Selu")
def selu(n: Site) -> Written:
    alpha, gamma = literal(n.attr("alpha", 1.6732632423543772)), literal(n.attr("gamma", 1.0507009873554805))
    return f"{gamma} * F.elu({n.x()}, {alpha})"


@op("ThresholdedRelu")
def thresholded_relu(n: Site) -> Written:
    return f"torch.where({n.x()} > {literal(n.attr('alpha', 1.0))}, {n.x()}, 0.0)"


@op("HardSigmoid")
def hard_sigmoid(n: Site) -> Written:
    slope, shift = literal(n.attr("alpha", 0.2)), literal(n.attr("beta", 0.5))
    return f"torch.clamp({slope} * {n.x()} + {shift}, 0.0, 1.0)"


@op("Shrink")
def shrink(n: Site) -> Written:
    x, edge, bias = n.x(), literal(n.attr("lambd", 0.5)), literal(n.attr("bias", 0.0))
    return f"torch.where({x} < -{edge}, {x} + {bias}, torch.where({x} > {edge}, {x} - {bias}, 0.0))"


@op("PRelu")
def prelu(n: Site) -> Written:
    return f"torch.where({n.x()} < 0, {n.x()} * {n.x(1)}, {n.x()})"


@op("Gelu")
def gelu(n: Site) -> Written:
    return f"F.gelu({n.x()}, approximate='{n.attr('approximate', 'none')}')"


@op("Swish")
def swish(n: Site) -> Written:
    return f"{n.x()} * torch.sigmoid({literal(n.attr('alpha', 1.0))} * {n.x()})"


@op("IsInf")
def is_inf(n: Site) -> Written:
    if not (n.attr("detect_negative", 1) and n.attr("detect_positive", 1)):
        raise Uncovered("one of the infinities only")
    return f"torch.isinf({n.x()})"
