"""Operators that look at one element at a time, as C expressions."""

from __future__ import annotations

from functools import reduce

from pulsify.backends.native.fuse import literal
from pulsify.backends.native.scope import Site
from pulsify.backends.native.table import expression
from pulsify.backends.native.views import FLOATING, width
from pulsify.backends.site import Uncovered

COMPARED = {"Less": "<", "LessOrEqual": "<=", "Greater": ">", "GreaterOrEqual": ">=", "Equal": "=="}
LOGICAL = {"And": "&", "Or": "|", "Xor": "^"}
LAST = 3.4028234663852886e38  # of float
WRAPPED = {"Add": "+", "Sub": "-", "Mul": "*"}
UNSIGNED = {"int64_t": "uint64_t", "int32_t": "uint32_t", "int16_t": "uint32_t", "int8_t": "uint32_t",
            "uint8_t": "uint32_t", "uint16_t": "uint32_t", "uint32_t": "uint32_t"}  # fmt: skip
OWN = {  # polynomials of ours, for float
    "Exp": "exp", "Tanh": "tanh", "Sigmoid": "sigmoid", "Log": "log", "Sin": "sin", "Cos": "cos", "Erf": "erf",
    "Softplus": "softplus",
}  # fmt: skip
MATH = ("Sqrt", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Floor", "Ceil")
ROUNDED = {"Round": "rint", "Abs": "fabs"}


def real(n: Site, i: int = 0) -> str:
    kind = n.kind(i)
    if kind not in FLOATING:
        raise Uncovered(f"of {kind}")
    return kind


def call(name: str, kind: str) -> str:
    """A function of math.h, of the right type."""
    return f"{name}f" if kind == "float" else name


@expression(*WRAPPED)
def arithmetic(n: Site, x: list[str]) -> str:
    """Whole numbers wrap around, as they do in the runtime."""
    sign, kind = WRAPPED[n.op], n.makes()
    if kind in FLOATING:
        return f"{x[0]} {sign} {x[1]}"
    wide = UNSIGNED[kind]
    return f"({kind})(({wide}){x[0]} {sign} ({wide}){x[1]})"


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


@expression(*COMPARED)
def compared(n: Site, x: list[str]) -> str:
    return f"(uint8_t)({x[0]} {COMPARED[n.op]} {x[1]})"


@expression(*LOGICAL)
def logical(n: Site, x: list[str]) -> str:
    return f"(uint8_t)({x[0]} {LOGICAL[n.op]} {x[1]})"


@expression("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bits(n: Site, x: list[str]) -> str:
    return f"({n.makes()})({x[0]} {LOGICAL[n.op[7:]]} {x[1]})"


@expression("BitwiseNot")
def turned_bits(n: Site, x: list[str]) -> str:
    return f"({n.makes()})~{x[0]}"


@expression("BitShift")
def shifted(n: Site, x: list[str]) -> str:
    """By as many bits as there are or more nothing is left."""
    kind, sign = n.makes(), "<<" if n.text("direction", "LEFT") == "LEFT" else ">>"
    return f"({kind})({x[1]} < {8 * width(kind)} ? (uint64_t){x[0]} {sign} {x[1]} : 0)"


@expression("Not")
def negated(n: Site, x: list[str]) -> str:
    return f"(uint8_t)!{x[0]}"


@expression("Neg")
def negative(n: Site, x: list[str]) -> str:
    kind = n.makes()
    return f"-{x[0]}" if kind in FLOATING else f"({kind})(0u - ({UNSIGNED[kind]}){x[0]})"


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


@expression(*OWN, *MATH, *ROUNDED)
def function(n: Site, x: list[str]) -> str:
    kind = n.kind()
    if n.op == "Abs" and kind not in FLOATING:
        return f"({kind})({x[0]} < 0 ? -{x[0]} : {x[0]})"
    real(n)
    if kind == "float" and n.op in OWN:
        return f"p_{OWN[n.op]}({x[0]})"
    if n.op == "Sigmoid":
        return f"1.0 / (1.0 + exp(-{x[0]}))"
    if n.op == "Softplus":
        return f"log1p(exp(-fabs({x[0]}))) + ({x[0]} > 0.0 ? {x[0]} : 0.0)"
    name = ROUNDED.get(n.op, n.op.lower())
    return f"{call(name, kind)}({x[0]})"


@expression("Sign")
def sign(n: Site, x: list[str]) -> str:
    kind = n.makes()
    if kind in FLOATING:
        one, zero = literal(1, kind), literal(0, kind)
        return f"{x[0]} > {zero} ? {one} : {x[0]} < {zero} ? -{one} : {x[0]} == {zero} ? {zero} : {x[0]}"
    return f"({kind})(({x[0]} > 0) - ({x[0]} < 0))"


@expression("Reciprocal")
def reciprocal(n: Site, x: list[str]) -> str:
    return f"{literal(1, real(n))} / {x[0]}"


@expression("IsNaN")
def is_nan(n: Site, x: list[str]) -> str:
    return f"(uint8_t)({x[0]} != {x[0]})"


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


# ---- activations with settings of their own


@expression("Relu")
def relu(n: Site, x: list[str]) -> str:
    kind = n.makes()
    return f"{x[0]} < {literal(0, kind)} ? {literal(0, kind)} : {x[0]}"


@expression("Elu", "Celu", "Selu")
def elu(n: Site, x: list[str]) -> str:
    alpha = float(n.attr("alpha", 1.6732632423543772 if n.op == "Selu" else 1.0))
    gamma = float(n.attr("gamma", 1.0507009873554805)) if n.op == "Selu" else 1.0
    if real(n) != "float":
        raise Uncovered("of double")
    inner = f"{x[0]} / {literal(alpha, 'float')}" if n.op == "Celu" else x[0]
    text = f"p_pick({x[0]} < 0.0f, {literal(alpha, 'float')} * (p_exp({inner}) - 1.0f), {x[0]})"
    return f"{literal(gamma, 'float')} * {text}" if n.op == "Selu" else text


@expression("LeakyRelu")
def leaky_relu(n: Site, x: list[str]) -> str:
    kind = real(n)
    return f"{x[0]} < {literal(0, kind)} ? {literal(n.attr('alpha', 0.01), kind)} * {x[0]} : {x[0]}"


@expression("PRelu")
def prelu(n: Site, x: list[str]) -> str:
    return f"{x[0]} < {literal(0, real(n))} ? {x[0]} * {x[1]} : {x[0]}"


@expression("ThresholdedRelu")
def thresholded_relu(n: Site, x: list[str]) -> str:
    kind = real(n)
    return f"{x[0]} > {literal(n.attr('alpha', 1.0), kind)} ? {x[0]} : {literal(0, kind)}"


@expression("HardSigmoid", "HardSwish")
def hard_sigmoid(n: Site, x: list[str]) -> str:
    if real(n) != "float":
        raise Uncovered("of double")
    hard = n.op == "HardSwish"
    slope, shift = (1 / 6, 0.5) if hard else (float(n.attr("alpha", 0.2)), float(n.attr("beta", 0.5)))
    text = f"p_min(p_max({literal(slope, 'float')} * {x[0]} + {literal(shift, 'float')}, 0.0f), 1.0f)"
    return f"{x[0]} * {text}" if hard else text


@expression("Softsign")
def softsign(n: Site, x: list[str]) -> str:
    kind = real(n)
    return f"{x[0]} / ({literal(1, kind)} + {call('fabs', kind)}({x[0]}))"


@expression("Mish", "Gelu", "Swish")
def smooth(n: Site, x: list[str]) -> str:
    if real(n) != "float":
        raise Uncovered("of double")
    if n.op == "Mish":
        return f"{x[0]} * p_tanh(p_softplus({x[0]}))"
    if n.op == "Gelu":
        if n.text("approximate", "none") == "tanh":
            return f"0.5f * {x[0]} * (1.0f + p_tanh(0.7978845608f * ({x[0]} + 0.044715f * {x[0]} * {x[0]} * {x[0]})))"
        return f"0.5f * {x[0]} * (1.0f + p_erf({x[0]} * 0.70710678118654752f))"
    return f"{x[0]} * p_sigmoid({literal(n.attr('alpha', 1.0), 'float')} * {x[0]})"


@expression("Shrink")
def shrink(n: Site, x: list[str]) -> str:
    kind = real(n)
    edge, bias = (literal(n.attr(k, d), kind) for k, d in (("lambd", 0.5), ("bias", 0.0)))
    return f"{x[0]} < -{edge} ? {x[0]} + {bias} : {x[0]} > {edge} ? {x[0]} - {bias} : {literal(0, kind)}"
