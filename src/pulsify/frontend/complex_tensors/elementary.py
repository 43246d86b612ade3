"""Elementary functions of real tensors that the older exporter does not know, by those that it knows."""

from __future__ import annotations

import math
from typing import Any

import torch

from pulsify.frontend.complex_tensors.rewrites import flatten, rewrite, unflatten


@rewrite("hypot")
def hypot(x: Any, y: Any) -> Any:
    return torch.sqrt(x * x + y * y)


@rewrite("cosh")
def cosh(x: Any) -> Any:
    return (torch.exp(x) + torch.exp(-x)) * 0.5


@rewrite("sinh")
def sinh(x: Any) -> Any:
    return torch.tanh(x) * cosh(x)


@rewrite("expm1", "special_expm1")
def expm1(x: Any) -> Any:
    """Exact near zero too."""
    half = torch.tanh(torch.clamp(x, max=1.0) * 0.5)
    return torch.where(x < 1, 2 * half / (1 - half), torch.exp(x) - 1)


@rewrite("exp2", "special_exp2")
def exp2(x: Any) -> Any:
    return torch.exp(x * math.log(2.0))


@rewrite("asinh", "arcsinh")
def asinh(x: Any) -> Any:
    size = torch.abs(x)
    return torch.sign(x) * torch.log1p(size + size * size / (1 + torch.sqrt(size * size + 1)))


@rewrite("acosh", "arccosh")
def acosh(x: Any) -> Any:
    return torch.log(x + torch.sqrt(x * x - 1))


@rewrite("atanh", "arctanh")
def atanh(x: Any) -> Any:
    return 0.5 * (torch.log1p(x) - torch.log1p(-x))


@rewrite("erfc", "special_erfc")
def erfc(x: Any) -> Any:
    return 1 - torch.erf(x)


@rewrite("trunc", "fix")
def trunc(x: Any) -> Any:
    return torch.sign(x) * torch.floor(torch.abs(x))


@rewrite("frac")
def frac(x: Any) -> Any:
    return x - trunc(x)


@rewrite("sgn")
def sgn(x: Any) -> Any:
    return torch.sign(x)


@rewrite("signbit")
def signbit(x: Any) -> Any:
    return x < 0


@rewrite("copysign")
def copysign(x: Any, y: Any) -> Any:
    y = y if isinstance(y, torch.Tensor) else torch.full_like(x, y)
    return torch.where(y < 0, -torch.abs(x), torch.abs(x))


@rewrite("positive", "conj", "resolve_conj", "resolve_neg", "conj_physical", "real")
def positive(x: Any) -> Any:
    return x


@rewrite("sinc", "special_sinc")
def sinc(x: Any) -> Any:
    turned = torch.where(x == 0, torch.ones_like(x), x * math.pi)
    return torch.where(x == 0, torch.ones_like(x), torch.sin(turned) / turned)


@rewrite("deg2rad")
def deg2rad(x: Any) -> Any:
    return x * (math.pi / 180)


@rewrite("rad2deg")
def rad2deg(x: Any) -> Any:
    return x * (180 / math.pi)


@rewrite("logaddexp")
def logaddexp(x: Any, y: Any) -> Any:
    return torch.maximum(x, y) + torch.log1p(torch.exp(-torch.abs(x - y)))


@rewrite("logaddexp2")
def logaddexp2(x: Any, y: Any) -> Any:
    return torch.maximum(x, y) + torch.log2(1 + exp2(-torch.abs(x - y)))


@rewrite("xlogy", "special_xlogy")
def xlogy(x: Any, y: Any) -> Any:
    y = y if isinstance(y, torch.Tensor) else torch.full_like(x, y)
    return torch.where(y * 0 + x == 0, torch.zeros_like(x * y), x * torch.log(y))


@rewrite("heaviside")
def heaviside(x: Any, values: Any) -> Any:
    return torch.where(x == 0, values, (x > 0).to(x.dtype))


@rewrite("float_power")
def float_power(x: Any, exponent: Any) -> Any:
    return torch.pow(x.double(), exponent)


@rewrite("threshold")
def threshold(x: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    return torch.where(x > threshold, x, torch.full_like(x, value))


@rewrite("addcdiv")
def addcdiv(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    return x + value * (a / b)


@rewrite("isclose")
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    return torch.abs(a - b) <= atol + rtol * torch.abs(b)


@rewrite("rms_norm")
def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    axes = list(range(-len(normalized_shape), 0))
    y = x * torch.rsqrt(x.pow(2).mean(axes, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps))
    return y if weight is None else y * weight


# ---- products, differences, moves


@rewrite("einsum")
def einsum(equation: str, *operands: Any) -> Any:
    """As products of matrices, two operands at a time: of an Einsum the exporter holds the sizes fixed."""
    tensors = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    letters = inputs.split(",")
    if not arrow or "." in equation or any(len(set(names)) < len(names) for names in (*letters, out)):
        return torch.einsum(equation, *tensors)
    whole, names = tensors[0], letters[0]
    for i, (tensor, others) in enumerate(zip(tensors[1:], letters[1:], strict=True), 1):
        kept = set(out).union(*letters[i + 1 :])
        whole, names = _contracted(
            *_summed(whole, names, kept | set(others)), *_summed(tensor, others, kept | set(names)), kept
        )
    whole, names = _summed(whole, names, set(out))
    return whole.permute([names.index(c) for c in out]) if names != out else whole


def _summed(x: Any, names: str, kept: set[str]) -> tuple[Any, str]:
    """Without the axes that nobody needs."""
    gone = [i for i, c in enumerate(names) if c not in kept]
    return (x.sum(gone), "".join(c for c in names if c in kept)) if gone else (x, names)


def _contracted(a: Any, first: str, b: Any, second: str, kept: set[str]) -> tuple[Any, str]:
    """Two operands: axes of both that are kept are a batch, the others of both are summed over."""
    batch = [c for c in first if c in second and c in kept]
    inner = [c for c in first if c in second and c not in kept]
    left, right = [c for c in first if c not in second], [c for c in second if c not in first]
    a = a.permute([first.index(c) for c in (*batch, *left, *inner)])
    b = b.permute([second.index(c) for c in (*batch, *inner, *right)])
    n = len(batch)
    if not inner:
        for _ in right:
            a = a.unsqueeze(-1)
        for _ in left:
            b = b.unsqueeze(n)
        return a * b, "".join([*batch, *left, *right])
    a, b = _inner_last(a, len(inner), -1), _inner_last(b, len(inner), n)
    a = a if left else a.unsqueeze(n)
    b = b if right else b.unsqueeze(-1)
    for _ in right[:-1]:  # all axes but one of either operand are further axes of the batch
        a = a.unsqueeze(-3)
    b = b.movedim(n, -2)
    for _ in left[:-1]:
        b = b.unsqueeze(n)
    y = a @ b
    y = y if right else y.squeeze(-1)
    y = y if left else y.squeeze(-2 if right else -1)
    return y, "".join([*batch, *left[:-1], *right[:-1], *left[-1:], *right[-1:]])


def _inner_last(x: Any, count: int, axis: int) -> Any:
    """The axes that are summed over as one: the last, or those from `axis` on."""
    if count == 1:
        return x
    start = x.dim() - count if axis == -1 else axis
    size = math.prod(int(n) for n in x.shape[start : start + count])
    return x.reshape([*x.shape[:start], size, *x.shape[start + count :]])


@rewrite("inner")
def inner(a: Any, b: Any) -> Any:
    return torch.tensordot(a, b, dims=([-1], [-1]))


@rewrite("vdot")
def vdot(a: Any, b: Any) -> Any:
    return torch.sum(a * b)


@rewrite("linalg_multi_dot", "chain_matmul")
def multi_dot(first: Any, *rest: Any) -> Any:
    matrices = first if isinstance(first, (list, tuple)) else (first, *rest)
    whole = matrices[0]
    for matrix in matrices[1:]:
        whole = whole @ matrix
    return whole


@rewrite("bilinear")
def bilinear(a: Any, b: Any, weight: Any, bias: Any = None) -> Any:
    y = torch.einsum("...i,oij,...j->...o", a, weight, b)
    return y if bias is None else y + bias


@rewrite("diff")
def diff(x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    parts = [t for t in (prepend, x, append) if t is not None]
    x = torch.cat(parts, dim) if len(parts) > 1 else x
    for _ in range(n):
        x = (
            x[(slice(None),) * (dim % x.dim()) + (slice(1, None),)]
            - x[(slice(None),) * (dim % x.dim()) + (slice(None, -1),)]
        )
    return x


@rewrite("take_along_dim")
def take_along_dim(x: Any, indices: Any, dim: int | None = None) -> Any:
    return torch.gather(x, dim, indices) if dim is not None else torch.gather(x.reshape(-1), 0, indices.reshape(-1))


@rewrite("count_nonzero")
def count_nonzero(x: Any, dim: Any = None) -> Any:
    return torch.sum(x != 0) if dim is None else torch.sum(x != 0, dim)


@rewrite("nansum")
def nansum(x: Any, *args: Any, **kwargs: Any) -> Any:
    return torch.sum(torch.where(torch.isnan(x), torch.zeros_like(x), x), *args, **kwargs)


@rewrite("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(x: Any, groups: int) -> Any:
    return flatten(unflatten(x, 1, (groups, -1)).transpose(1, 2), 1, 2)
