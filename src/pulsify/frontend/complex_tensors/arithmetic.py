"""Arithmetic, elementary functions, products of matrices and comparisons of complex numbers, part by part."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from pulsify.frontend.complex_tensors.elementary import cosh, sinh
from pulsify.frontend.complex_tensors.elementary import einsum as real_einsum
from pulsify.frontend.complex_tensors.pair import (
    ComplexPair,
    both,
    is_complex,
    pair,
    parts,
    rule,
    uncovered,
)
from pulsify.frontend.complex_tensors.rewrites import atan2

# ---- parts


@rule("real.get", "real")
def _real(func: Any, z: Any) -> Any:
    return parts(z)[0]


@rule("imag.get", "imag")
def _imag(func: Any, z: Any) -> Any:
    return both(z)[1]


@rule("view_as_real")
def _view_as_real(func: Any, z: Any) -> Any:
    return torch.stack(both(z), -1)


@rule("view_as_complex")
def view_as_complex(func: Any, x: Any) -> Any:
    return ComplexPair(x[..., 0], x[..., 1])


@rule("complex")
def from_parts(func: Any, real: Any, imag: Any) -> Any:
    return ComplexPair(*torch.broadcast_tensors(real, imag)) if real.shape != imag.shape else ComplexPair(real, imag)


@rule("polar")
def polar(func: Any, abs: Any, angle: Any) -> Any:
    return ComplexPair(abs * torch.cos(angle), abs * torch.sin(angle))


@rule("abs")
def magnitude(func: Any, z: Any) -> Any:
    re, im = both(z)
    return torch.sqrt(re * re + im * im)


@rule("angle")
def phase(func: Any, z: Any) -> Any:
    re, im = both(z)
    return atan2(im, re)


@rule("conj", "mH.get", "H.get", "adjoint")
def conjugate(func: Any, z: Any) -> Any:
    re, im = both(z)
    if getattr(func, "__name__", "") in ("conj", "conj_physical"):
        return ComplexPair(re, -im)
    return ComplexPair(re.transpose(-2, -1), -im.transpose(-2, -1))


# ---- sums and products


@rule("add", "__radd__")
def add(func: Any, a: Any, b: Any, *, alpha: Any = 1) -> Any:
    (ar, ai), (br, bi) = parts(a), parts(b if alpha == 1 else multiplied(b, alpha))
    re = ar + br
    if ai is None or bi is None:
        ai, bi = (ai, torch.zeros_like(re)) if bi is None else (torch.zeros_like(re), bi)
    return ComplexPair(re, ai + bi) if isinstance(re, torch.Tensor) else complex(re, ai + bi)


@rule("sub")
def subtract(func: Any, a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return add(func, a, multiplied(b, -alpha))


@rule("__rsub__", "rsub")
def subtract_from(func: Any, a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return add(func, b, multiplied(a, -alpha))


@rule("mul", "__rmul__")
def multiply(func: Any, a: Any, b: Any) -> Any:
    return multiplied(a, b)


def multiplied(a: Any, b: Any) -> Any:
    (ar, ai), (br, bi) = parts(a), parts(b)
    if ai is None and bi is None:
        return ar * br
    if not isinstance(br, torch.Tensor) and bi is not None:  # a number such as 1j: no product with zero
        if br == 0:
            return ComplexPair(_zeros(ar, br) if ai is None else ai * -bi, ar * bi)
        if bi == 0:
            bi = None
    if bi is None:
        return ComplexPair(ar * br, ai * br)
    if ai is None:
        return ComplexPair(ar * br, ar * bi)
    return ComplexPair(ar * br - ai * bi, ar * bi + ai * br)


def _zeros(x: Any, number: float) -> Any:
    return torch.zeros_like(x * number)


def squared(z: Any) -> Any:
    re, im = both(z)
    return re * re + im * im


@rule("div")
def divide(func: Any, a: Any, b: Any, *, rounding_mode: Any = None) -> Any:
    if rounding_mode is not None:
        raise uncovered("div(rounding_mode=)")
    return divided(a, b)


def divided(a: Any, b: Any) -> Any:
    if not is_complex(b):
        re, im = both(a)
        return ComplexPair(re / b, im / b)
    if isinstance(b, complex):
        return multiplied(a, 1 / b)
    return divided(multiplied(a, conjugate(torch.conj, b)), squared(b))


@rule("__rtruediv__", "__rdiv__")
def divide_into(func: Any, a: Any, b: Any) -> Any:
    return divided(b, a)


@rule("reciprocal")
def reciprocal(func: Any, z: Any) -> Any:
    return divided(conjugate(torch.conj, z), squared(z))


@rule("square")
def square(func: Any, z: Any) -> Any:
    return multiplied(z, z)


@rule("addcmul")
def addcmul(func: Any, x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    return add(func, x, multiplied(multiplied(a, b), value))


@rule("addcdiv")
def addcdiv(func: Any, x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    return add(func, x, multiplied(divided(a, b), value))


@rule("lerp")
def lerp(func: Any, a: Any, b: Any, weight: Any) -> Any:
    return add(func, a, multiplied(subtract(func, b, a), weight))


def multilinear(func: Any, *operands: Any, **kwargs: Any) -> Any:
    """A function that is linear in each of its operands: a sum over real and imaginary parts."""
    totals: list[Any] = [None, None]
    sides = [(x.re, None) if isinstance(x, ComplexPair) and x.is_real else parts(x) for x in operands]
    choices = [[(p, k) for k, p in enumerate(side) if p is not None] for side in sides]
    for chosen in itertools.product(*choices):
        turns = sum(k for _, k in chosen) % 4  # i to that power
        term = func(*(p for p, _ in chosen), **kwargs)
        term = -term if turns in (2, 3) else term
        totals[turns % 2] = term if totals[turns % 2] is None else totals[turns % 2] + term
    if totals[1] is None:
        totals[1] = torch.zeros_like(totals[0])
    return ComplexPair(*totals)


def _aligned(tensors: Any) -> list[Any]:
    """Of one type: products of matrices do not promote."""
    return [t if isinstance(t, ComplexPair) and t.is_real else pair(t) if is_complex(t) else t for t in tensors]


@rule("matmul", "mm", "bmm", "mv", "dot", "inner", "outer", "ger", "tensordot", "kron", "vecdot", "linalg_vecdot",
      "linalg_multi_dot", "chain_matmul")  # fmt: skip
def product(func: Any, a: Any, b: Any, **kwargs: Any) -> Any:
    if "vecdot" in func.__name__:
        a = conjugate(torch.conj, a)
    return multilinear(func, *_aligned((a, b)), **kwargs)


@rule("vdot")
def vdot(func: Any, a: Any, b: Any) -> Any:
    return multilinear(torch.dot, *_aligned((conjugate(torch.conj, a), b)))


@rule("__rmatmul__")
def rmatmul(func: Any, a: Any, b: Any) -> Any:
    return multilinear(torch.matmul, *_aligned((b, a)))


@rule("einsum")
def einsum(func: Any, equation: str, *operands: Any) -> Any:
    flat = tuple(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    return multilinear(lambda *xs: real_einsum(equation, *xs), *_aligned(flat))


@rule("linear", "bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d")
def layer(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Weights times inputs, and a bias for every feature."""
    count = 3 if func.__name__ == "bilinear" else 2
    bias = kwargs.pop("bias", args[count] if len(args) > count else None)
    rest = args[count + 1 :]
    y = multilinear(lambda *xs: func(*xs, None, *rest, **kwargs), *_aligned(args[:count]))
    if bias is None:
        return y
    shape = (-1,) if func.__name__ in ("linear", "bilinear") else (-1, *[1] * int(func.__name__[-2]))
    return add(torch.add, y, bias.reshape(shape))


@rule("addmm", "baddbmm", "addmv")
def addmm(func: Any, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return add(func, multiplied(x, beta), multiplied(multilinear(torch.matmul, *_aligned((a, b))), alpha))


# ---- elementary functions


@rule("exp")
def exp(func: Any, z: Any) -> Any:
    re, im = both(z)
    return polar(None, torch.exp(re), im)


@rule("expm1")
def expm1(func: Any, z: Any) -> Any:
    return add(func, exp(func, z), -1.0)


@rule("log", "log2", "log10")
def log(func: Any, z: Any) -> Any:
    base = {"log2": 2.0, "log10": 10.0}.get(func.__name__.strip("_"))
    whole = ComplexPair(0.5 * torch.log(squared(z)), phase(func, z))
    return whole if base is None else divided(whole, math.log(base))


@rule("log1p")
def log1p(func: Any, z: Any) -> Any:
    return log(torch.log, add(func, z, 1.0))


@rule("sqrt", "rsqrt")
def sqrt(func: Any, z: Any) -> Any:
    power = 0.5 if func.__name__.strip("_") == "sqrt" else -0.5
    return _real_power(z, power)


def _real_power(z: Any, exponent: Any) -> Any:
    return polar(None, torch.pow(magnitude(None, z), exponent), phase(None, z) * exponent)


@rule("pow", "float_power")
def power(func: Any, z: Any, exponent: Any) -> Any:
    if isinstance(exponent, (int, float)) and exponent == int(exponent) and 0 < abs(exponent) <= 4:
        whole = z
        for _ in range(int(abs(exponent)) - 1):
            whole = multiplied(whole, z)
        return whole if exponent > 0 else reciprocal(func, whole)
    if not is_complex(exponent):
        return _real_power(pair(z), exponent)
    if not is_complex(z):  # a number, to a complex power
        whole = torch.log(z) if isinstance(z, torch.Tensor) else math.log(z)
        return exp(func, multiplied(exponent, whole))
    return exp(func, multiplied(log(torch.log, z), exponent))


@rule("__rpow__")
def power_of(func: Any, exponent: Any, base: Any) -> Any:
    return power(func, base, exponent)


@rule("sgn", "sign")
def sgn(func: Any, z: Any) -> Any:
    size = magnitude(func, z)
    return divided(z, torch.where(size == 0, torch.ones_like(size), size))


@rule("sinh", "cosh", "sin", "cos")
def sines(func: Any, z: Any) -> Any:
    re, im = both(z)
    name = func.__name__.strip("_")
    if name == "sin":
        return ComplexPair(torch.sin(re) * cosh(im), torch.cos(re) * sinh(im))
    if name == "cos":
        return ComplexPair(torch.cos(re) * cosh(im), -torch.sin(re) * sinh(im))
    if name == "sinh":
        return ComplexPair(sinh(re) * torch.cos(im), cosh(re) * torch.sin(im))
    return ComplexPair(cosh(re) * torch.cos(im), sinh(re) * torch.sin(im))


@rule("tanh", "tan")
def tangents(func: Any, z: Any) -> Any:
    if func.__name__.strip("_") == "tan":
        return divided(sines(torch.sin, z), sines(torch.cos, z))
    re, im = both(z)
    scale = cosh(2 * re) + torch.cos(2 * im)
    return ComplexPair(sinh(2 * re) / scale, torch.sin(2 * im) / scale)


@rule("sigmoid")
def sigmoid(func: Any, z: Any) -> Any:
    return reciprocal(func, add(func, exp(func, multiplied(z, -1.0)), 1.0))


@rule("silu")
def silu(func: Any, z: Any, inplace: bool = False) -> Any:
    return multiplied(z, sigmoid(func, z))


# ---- what is left of all of it


@rule("prod")
def prod(func: Any, z: Any, *args: Any, **kwargs: Any) -> Any:
    return polar(None, torch.prod(magnitude(None, z), *args, **kwargs), torch.sum(phase(None, z), *args, **kwargs))


@rule("var", "std")
def variance(func: Any, z: Any, *args: Any, **kwargs: Any) -> Any:
    re, im = both(z)
    total = torch.var(re, *args, **kwargs) + torch.var(im, *args, **kwargs)
    return total if func.__name__ == "var" else torch.sqrt(total)


@rule("norm", "linalg_norm", "linalg_vector_norm", "linalg_matrix_norm")
def norm(func: Any, z: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs = {k: v for k, v in kwargs.items() if v is not None}
    return func(magnitude(None, z), *args, **kwargs)


@rule("normalize")
def normalize(func: Any, z: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    return divided(z, torch.linalg.vector_norm(magnitude(None, z), p, dim, keepdim=True).clamp_min(eps))


@rule("eq")
def equal(func: Any, a: Any, b: Any) -> Any:
    (ar, ai), (br, bi) = both(a), both(b)
    return (ar == br) & (ai == bi)


@rule("ne")
def unequal(func: Any, a: Any, b: Any) -> Any:
    return ~equal(func, a, b)


@rule("isnan", "isinf", "isfinite")
def finite(func: Any, z: Any) -> Any:
    re, im = both(z)
    return func(re) & func(im) if func.__name__ == "isfinite" else func(re) | func(im)


@rule("nan_to_num")
def nan_to_num(func: Any, z: Any, *args: Any, **kwargs: Any) -> Any:
    return ComplexPair(*(torch.nan_to_num(p, *args, **kwargs) for p in both(z)))


@rule("isclose", "allclose")
def isclose(func: Any, a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    near = magnitude(None, subtract(None, a, b)) <= atol + rtol * magnitude(None, pair(b))
    return bool(near.all()) if func.__name__ == "allclose" else near
