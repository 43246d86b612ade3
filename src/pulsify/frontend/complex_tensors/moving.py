"""What moves, picks, joins or adds up entries: both parts alike. And what is asked about a tensor without computing."""

from __future__ import annotations

from typing import Any

import torch

from pulsify.frontend.complex_tensors.pair import (
    COMPLEX_OF,
    REAL_OF,
    ComplexPair,
    assign,
    both,
    is_complex,
    name_of,
    pair,
    parts,
    rule,
    write,
)
from pulsify.frontend.complex_tensors.rewrites import rewritten

ALIKE = (
    "transpose", "permute", "unsqueeze", "squeeze", "reshape", "view", "flatten", "unflatten", "expand", "narrow",
    "movedim", "moveaxis", "swapaxes", "swapdims", "t", "T.get", "mT.get", "select", "unfold", "diagonal", "split",
    "chunk", "unbind", "tensor_split", "split_with_sizes", "hsplit", "vsplit", "dsplit", "view_as", "expand_as",
    "broadcast_to", "ravel", "detach", "contiguous", "data.get", "positive", "alias", "as_strided", "clone", "flip",
    "fliplr", "flipud", "roll", "sum", "mean", "nansum", "cumsum", "index_select", "gather", "take_along_dim",
    "repeat", "tile", "repeat_interleave", "diag", "diag_embed", "tril", "triu", "reshape_as", "atleast_1d",
    "atleast_2d", "atleast_3d", "rot90", "neg", "cpu", "dropout", "feature_dropout", "diff", "fft_fftshift",
    "fft_ifftshift", "masked_select", "take", "trace", "new_zeros", "zeros_like", "empty_like", "new_empty",
    "detach_", "requires_grad_", "index_add", "index_copy", "scatter", "scatter_add", "select_scatter",
    "slice_scatter", "diagonal_scatter", "squeeze_", "unsqueeze_", "transpose_", "sum_to_size", "avg_pool1d",
    "avg_pool2d", "resolve_conj", "resolve_neg",
)  # fmt: skip
LISTS = ("cat", "stack", "hstack", "vstack", "dstack", "column_stack")
QUERIES = (
    "shape.get", "size", "dim", "ndim.get", "ndimension", "numel", "nelement", "device.get", "requires_grad.get",
    "layout.get", "is_cuda.get", "is_cpu.get", "is_contiguous", "stride", "__len__", "get_device", "is_sparse.get",
    "is_quantized.get", "is_meta.get", "is_leaf.get", "grad.get", "grad_fn.get", "is_mps.get", "is_same_size",
    "is_nested.get",
)  # fmt: skip


def _each(func: Any, args: Any, kwargs: Any, imaginary: bool) -> Any:
    """The function on one part of every pair among its arguments."""

    def part(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and any(map(is_complex, value)):
            return type(value)(map(part, value))
        return parts(value)[imaginary] if is_complex(value) else value

    func = rewritten(name_of(func), func)
    return func(*map(part, args), **{k: part(v) for k, v in kwargs.items()})


def _zipped(re: Any, im: Any) -> Any:
    if isinstance(re, (list, tuple)):
        return tuple(_zipped(a, b) for a, b in zip(re, im, strict=True))
    return ComplexPair(re, im)


@rule(*ALIKE)
def _alike(func: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_complex(args[0]):
        args = (pair(args[0]), *args[1:])
    dtype = kwargs.get("dtype")
    if dtype in REAL_OF:
        kwargs = {**kwargs, "dtype": REAL_OF[dtype]}
    elif dtype is not None:
        return func(parts(args[0])[0], *args[1:], **kwargs)
    return _zipped(_each(func, args, kwargs, False), _each(func, args, kwargs, True))


@rule(*LISTS)
def _joined(func: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    sides = [both(t) for t in tensors]
    return ComplexPair(func([re for re, _ in sides], *args, **kwargs), func([im for _, im in sides], *args, **kwargs))


@rule("broadcast_tensors")
def _broadcast(func: Any, *tensors: Any) -> Any:
    tensors = tuple(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    whole = func(*(parts(t)[0] for t in tensors))
    return tuple(
        ComplexPair(w, parts(t)[1].expand_as(w)) if is_complex(t) else w for w, t in zip(whole, tensors, strict=True)
    )


@rule("__getitem__")
def _item(func: Any, z: Any, index: Any) -> Any:
    re, im = both(z)
    return ComplexPair(re[index], im[index], view_of=(z, index) if isinstance(z, ComplexPair) else None)


@rule("__setitem__")
def _set_item(func: Any, z: Any, index: Any, value: Any) -> None:
    write(z, index, value)


@rule("__iter__")
def _iterated(func: Any, z: Any) -> Any:
    return iter(z.unbind(0))


@rule("pad", "constant_pad_nd")
def _padded(func: Any, z: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    fill, imaginary = parts(value)
    pad_one = torch.nn.functional.pad
    return ComplexPair(pad_one(z.re, pad, mode, fill), pad_one(z.im, pad, mode, imaginary))


@rule("copy_", "fill_", "zero_")
def _overwrite(func: Any, z: Any, value: Any = 0.0, non_blocking: bool = False) -> Any:
    re, im = parts(value)
    return assign(z, ComplexPair(torch.zeros_like(z.re) + re, torch.zeros_like(z.im) + (0.0 if im is None else im)))


@rule("where")
def _where(func: Any, condition: Any, first: Any, second: Any) -> Any:
    if isinstance(condition, ComplexPair):  # z.where(condition, other)
        condition, first = first, condition
    (a, b), (c, d) = both(first), both(second)
    return ComplexPair(torch.where(condition, a, c), torch.where(condition, b, d))


@rule("masked_fill")
def _masked_fill(func: Any, z: Any, mask: Any, value: Any) -> Any:
    (re, im), (fill, imaginary) = both(z), both(value)
    return ComplexPair(re.masked_fill(mask, fill), im.masked_fill(mask, imaginary))


# ---- what is asked about a tensor


@rule(*QUERIES)
def _query(func: Any, z: Any, *args: Any, **kwargs: Any) -> Any:
    return func(z.re, *args, **kwargs)


@rule("dtype.get")
def _dtype(func: Any, z: Any) -> Any:
    return COMPLEX_OF.get(z.re.dtype, torch.complex64)


@rule("is_complex")
def _yes(func: Any, z: Any) -> bool:
    return True


@rule("is_floating_point", "is_conj", "is_neg", "is_inference")
def _no(func: Any, z: Any) -> bool:
    return False


@rule("__hash__")
def _hash(func: Any, z: Any) -> int:
    return id(z)


@rule("__repr__", "__format__", "__str__")
def _repr(func: Any, z: Any, *args: Any, **kwargs: Any) -> str:
    return f"ComplexPair({tuple(z.re.shape)})"


@rule("to", "type", "type_as", "cfloat", "cdouble", "chalf", "float", "double", "half")
def _to(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Another type: of complex numbers, or the real part; another device; nothing."""
    wanted = {"cfloat": torch.complex64, "cdouble": torch.complex128, "chalf": torch.complex32}.get(func.__name__)
    if func.__name__ in ("float", "double", "half"):
        return func(parts(x)[0])
    dtypes = [wanted, kwargs.get("dtype"), *args]
    dtype = next((d for d in dtypes if isinstance(d, torch.dtype)), None)
    other = next((a for a in (*args, kwargs.get("other")) if isinstance(a, torch.Tensor)), None)
    if other is not None:
        dtype = other.dtype
    if dtype is None:
        return x
    if dtype not in REAL_OF:
        return parts(x)[0].to(dtype)
    re, im = both(x)
    whole = ComplexPair(re.to(REAL_OF[dtype]), im.to(REAL_OF[dtype]))
    whole.is_real = not is_complex(x) or (isinstance(x, ComplexPair) and x.is_real)
    return whole
