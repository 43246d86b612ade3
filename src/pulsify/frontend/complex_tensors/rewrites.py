"""Functions of real tensors that the older exporter rejects, or writes with another result, in terms of others."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from pulsify.frontend.complex_tensors.sites import record

REWRITES: dict[str, Callable[..., Any]] = {}


def rewritten(name: str, func: Any) -> Any:
    """What stands for a function, or the function itself."""
    found = REWRITES.get(name, func)
    return functools.partial(found, function=name) if found is convolution else found


def rewrite(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        REWRITES.update(dict.fromkeys(names, function))
        return function

    return register


@rewrite("atan2", "arctan2")
def atan2(y: Any, x: Any) -> Any:
    """At zero too: the exporter's own divides by it."""
    zero = torch.zeros_like(x)
    base = torch.atan(y / torch.where(x == 0, torch.ones_like(x), x))
    turned = torch.where(y < 0, base - math.pi, base + math.pi)
    upright = torch.where(y > 0, zero + math.pi / 2, torch.where(y < 0, zero - math.pi / 2, zero))
    return torch.where(x == 0, upright, torch.where(x < 0, turned, base))


@rewrite("cumsum")
def cumsum(x: Any, dim: int, *, dtype: Any = None, **kwargs: Any) -> Any:
    """Summed up in double precision, as torch does: ONNX Runtime's own drifts off within thousands of frames."""
    if dtype is None and x.dtype == torch.bool:  # torch counts; the exporter sums up booleans, which no runtime does
        dtype = torch.int64
    kind = x.dtype if dtype is None else dtype
    if kind != torch.float32 or kwargs:
        return torch.cumsum(x, dim, dtype=dtype, **kwargs)
    return torch.cumsum(x, dim, dtype=torch.float64).to(kind)


@rewrite("prelu")
def prelu(x: Any, weight: Any) -> Any:
    """One slope for all, without an axis: the exporter gives it axes that it does not have."""
    return torch.prelu(x, weight.reshape(1) if weight.dim() == 0 else weight)


@rewrite("floor_divide", "__floordiv__")
def floor_divide(x: Any, y: Any) -> Any:
    """Rounded down: the exporter's own is rounded towards zero."""
    return torch.div(x, y, rounding_mode="floor")


@rewrite("__rfloordiv__")
def floor_divide_into(x: Any, y: Any) -> Any:
    return torch.div(torch.as_tensor(y, device=x.device), x, rounding_mode="floor")


@rewrite("transpose", "swapaxes", "swapdims")
def transpose(x: Any, *args: Any, **kwargs: Any) -> Any:
    """All axes are named: of what a scripted loop makes, the exporter does not know how many there are."""
    given = [*args, *(kwargs[k] for k in ("dim0", "axis0", "dim1", "axis1") if k in kwargs)]
    if len(given) != 2 or not all(isinstance(axis, int) for axis in given) or x.dim() < 2:
        return torch.transpose(x, *args, **kwargs)
    order = list(range(x.dim()))
    one, other = (order[axis] for axis in given)
    order[one], order[other] = other, one
    return x.permute(order)


@rewrite("movedim", "moveaxis")
def movedim(x: Any, source: Any, destination: Any) -> Any:
    moved, places = ([axes] if isinstance(axes, int) else list(axes) for axes in (source, destination))
    own = list(range(x.dim()))
    at = {own[to]: own[axis] for axis, to in zip(moved, places, strict=True)}
    rest = iter(axis for axis in own if axis not in at.values())
    return x.permute([at[to] if to in at else next(rest) for to in own])


@rewrite("mT.get", "mH.get", "H.get", "adjoint")
def transposed(x: Any) -> Any:
    return transpose(x, -2, -1)


@rewrite("data.get")
def data(x: Any) -> Any:
    """Detached: what `data` is, the tracer does not see, and its sizes would be numbers."""
    return x.detach()


@rewrite("diagonal")
def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """By a table of places: the exporter's own sums up an axis that is no single number."""
    x = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = (int(n) for n in x.shape[-2:])
    row, column = max(-offset, 0), max(offset, 0)
    count = max(min(rows - row, columns - column), 0)
    places = torch.arange(count, device=x.device) * (columns + 1) + row * columns + column
    return x.flatten(-2)[..., places]


@rewrite("fft_fftshift")
def fftshift(x: Any, dim: Any = None) -> Any:
    return _shifted(x, dim, 1)


@rewrite("fft_ifftshift")
def ifftshift(x: Any, dim: Any = None) -> Any:
    return _shifted(x, dim, 0)


def _shifted(x: Any, dim: Any, more: int) -> Any:
    axes = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    for axis in axes:
        half = (int(x.shape[axis]) + more) // 2
        x = torch.cat([x.narrow(axis, half, int(x.shape[axis]) - half), x.narrow(axis, 0, half)], axis)
    return x


@rewrite("unflatten")
def unflatten(x: Any, dim: int, sizes: Any) -> Any:
    """The exporter's own holds the other sizes fixed."""
    dim = dim % x.dim()
    return x.reshape([*x.shape[:dim], *sizes, *x.shape[dim + 1 :]])


@rewrite("flatten")
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    if x.dim() == 0:
        return x.reshape(1)
    start, end = start_dim % x.dim(), end_dim % x.dim()
    return x if start == end else x.reshape([*x.shape[:start], -1, *x.shape[end + 1 :]])


@rewrite("unfold")
def unfold(x: Any, *args: Any, **kwargs: Any) -> Any:
    """Tensor.unfold (windows along an axis) by a table of places; the function F.unfold is left as it is."""
    given = dict(zip(("dimension", "size", "step"), args, strict=False)) | kwargs
    if "step" not in given or not isinstance(given["dimension"], int):
        return _unfolded_rows(x, *args, **kwargs)
    axis, size, step = given["dimension"] % x.dim(), given["size"], given["step"]
    count = (x.shape[axis] - size) // step + 1
    places = torch.arange(count, device=x.device)[:, None] * step + torch.arange(size, device=x.device)
    return x[(slice(None),) * axis + (places,)].movedim(axis + 1, -1)


def _unfolded_rows(x: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """F.unfold; a kernel as wide as the picture (all frames) by rows, as the exporter takes no size that is traced."""
    wide = isinstance(kernel_size, (tuple, list)) and isinstance(kernel_size[-1], torch.Tensor) and x.dim() == 4
    plain = (dilation, padding) in ((1, 0), ((1, 1), (0, 0)))
    if not wide or not plain or int(kernel_size[-1]) != int(x.shape[-1]):
        return torch.nn.functional.unfold(x, kernel_size, dilation, padding, stride)
    windows = unfold(x, 2, int(kernel_size[0]), stride if isinstance(stride, int) else stride[0])
    return windows.permute(0, 1, 4, 3, 2).reshape(x.shape[0], -1, windows.shape[2])


@rewrite("as_strided")
def as_strided(x: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """Frames cut out of the last axis, as in Kaldi, by a table of places; any other view is left as it is."""
    lead = x.dim() - 1
    kept = [int(n) for n in size[:lead]] == [int(n) for n in x.shape[:lead]] and len(size) > lead
    kept = kept and [int(n) for n in stride[:lead]] == list(x.stride()[:lead])
    if not kept or storage_offset not in (None, 0) or not x.is_contiguous():
        return torch.as_strided(x, size, stride, storage_offset)
    places = torch.zeros((), dtype=torch.int64, device=x.device)
    for count, step in zip(size[lead:], stride[lead:], strict=True):
        places = places[..., None] + torch.arange(count, device=x.device) * int(step)
    return x[..., places]


@rewrite("tensor_split")
def tensor_split(x: Any, indices_or_sections: Any, dim: int = 0) -> Any:
    """By slices: the exporter's own is a sequence of tensors."""
    have = int(x.shape[dim])
    record("pieces of a fixed size", have)
    if isinstance(indices_or_sections, (list, tuple)):
        starts = [0, *(int(i) for i in indices_or_sections)]
    else:
        size, more = divmod(have, int(indices_or_sections))
        starts = [i * size + min(i, more) for i in range(int(indices_or_sections))]
    around = (slice(None),) * (dim % x.dim())
    return tuple(x[(*around, slice(a, b))] for a, b in zip(starts, [*starts[1:], None], strict=True))


@rewrite("median")
def median(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower one of the middle, as torch has it; the exporters have none."""
    if dim is None:
        return torch.median(x)
    ordered, places = torch.sort(x, dim)
    middle = (int(x.shape[dim]) - 1) // 2
    record("a median of a fixed number of values", middle)
    pair = [v.narrow(dim, middle, 1) if keepdim else v.select(dim, middle) for v in (ordered, places)]
    return torch.return_types.median(pair)


@rewrite("quantile")
def quantile(x: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
    """Of a fixed number of values, between the two nearest."""
    if dim is None or not isinstance(q, float) or interpolation != "linear":
        return torch.quantile(x, q, dim, keepdim, interpolation=interpolation)
    count = int(x.shape[dim])
    record("a quantile of a fixed number of values", count)
    below = min(int(q * (count - 1)), max(count - 2, 0))
    ordered = torch.sort(x, dim)[0]
    low, high = (ordered.narrow(dim, i, 1) for i in (below, min(below + 1, count - 1)))
    value = low + (high - low) * (q * (count - 1) - below)
    return value if keepdim else value.squeeze(dim)


@rewrite("fold")
def fold(x: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """Overlap-add as a transposed convolution with ones, which the sizes of its blocks may follow."""
    size, kernel, dilation, padding, stride = (
        (v, v) if isinstance(v, int) else tuple(v) for v in (output_size, kernel_size, dilation, padding, stride)
    )
    cells = int(kernel[0]) * int(kernel[1])
    single = x.dim() == 2
    x = x[None] if single else x
    channels = int(x.shape[1]) // cells
    blocks = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in zip(size, kernel, dilation, padding, stride)]
    rows = 1 if kernel[0] == 1 and stride[0] == 1 and int(size[0]) == 1 else blocks[0]
    kernels = torch.eye(cells, dtype=x.dtype, device=x.device).reshape(cells, 1, *kernel)
    if isinstance(rows, int) and rows == 1:  # along one axis
        y = torch.nn.functional.conv_transpose1d(
            x.reshape(-1, cells, x.shape[-1]), kernels[:, :, 0], None, stride[1], padding[1], 0, 1, dilation[1]
        )[:, :, None]
    else:
        y = torch.nn.functional.conv_transpose2d(
            x.reshape(-1, cells, *blocks), kernels, None, stride, padding, 0, 1, dilation
        )
    missing = [n - m for n, m in zip(size, y.shape[2:], strict=True)]
    if any(int(n) > 0 for n in missing):
        y = torch.nn.functional.pad(y, (0, missing[1], 0, missing[0]))
    y = y if channels == 1 else unflatten(y[:, 0], 0, (-1, channels))
    return y[0] if single else y


@rewrite("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(x: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
    """With a kernel that was computed, its sizes must be said: the exporter writes them as attributes."""
    function: Any = getattr(torch.nn.functional, kwargs.pop("function"))
    if not isinstance(weight, torch.nn.Parameter):
        weight = weight.reshape([int(n) for n in weight.shape])
    return function(x, weight, *args, **kwargs)


def adaptive_mean(input: Any, output_size: Any, *, axes: int) -> Any:
    """Axis after axis: the exporter's own needs sizes that it does not keep where frames are folded into the batch."""
    sizes = (output_size,) * axes if isinstance(output_size, int) else tuple(output_size)
    for axis, size in enumerate(sizes, input.dim() - axes):
        if size is not None:
            input = input.mean(axis, keepdim=True) if size == 1 else _pooled(input, axis, size)
    return input


for _axes in (1, 2, 3):
    REWRITES[f"adaptive_avg_pool{_axes}d"] = functools.partial(adaptive_mean, axes=_axes)


def _pooled(x: Any, axis: int, size: int) -> Any:
    have = int(x.shape[axis])
    record("a pool of a fixed number of pieces", have)
    if have % size == 0:
        return unflatten(x, axis, (size, have // size)).mean(axis + 1)
    pieces = [(i * have // size, -(-(i + 1) * have // size)) for i in range(size)]
    return torch.cat([x.narrow(axis, a, b - a).mean(axis, keepdim=True) for a, b in pieces], axis)


# ---- writing into a tensor


@rewrite("__setitem__")
def set_item(x: Any, index: Any, value: Any) -> None:
    """A choice, if the index is a mask. Places are left to the exporter: what reads other parts of x waits for none."""
    single = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    whole = with_item(x, single, value) if isinstance(single, torch.Tensor) else None
    if whole is None:
        torch.Tensor.__setitem__(x, index, value)
    else:
        x.copy_(whole)


def with_item(x: Any, index: Any, value: Any) -> Any:
    """What `x[index] = value` makes of x; None for an index that is not made of numbers and slices, or a mask."""
    index = index if isinstance(index, tuple) else (index,)
    if len(index) == 1 and isinstance(index[0], torch.Tensor) and index[0].dtype == torch.bool:
        single = not isinstance(value, torch.Tensor) or value.dim() == 0
        return torch.where(index[0], value, x) if single and index[0].dim() == x.dim() else None
    if any(not isinstance(i, (int, slice)) and i is not Ellipsis for i in index):
        return None
    if any(isinstance(i, bool) or (isinstance(i, slice) and i.step not in (None, 1)) for i in index):
        return None
    if Ellipsis in index:
        place = index.index(Ellipsis)
        index = (*index[:place], *(slice(None),) * (x.dim() - len(index) + 1), *index[place + 1 :])
    part = x[index]
    filled = torch.zeros_like(part) + value
    for axis, i in enumerate(index):
        filled = filled.unsqueeze(axis) if isinstance(i, int) else filled
    return _joined(x, 0, index, filled)


def _joined(x: Any, axis: int, index: tuple[Any, ...], filled: Any) -> Any:
    if axis == len(index):
        return filled
    i = index[axis]
    start, stop = (i, None if i == -1 else i + 1) if isinstance(i, int) else (i.start, i.stop)
    around = (slice(None),) * axis
    middle = _joined(x[(*around, slice(start, stop))], axis + 1, index, filled)
    pieces = [middle]
    if start is not None and not (isinstance(start, int) and start == 0):
        pieces.insert(0, x[(*around, slice(None, start))])
    if stop is not None and int(stop) != int(x.shape[axis]):  # nothing is behind it
        pieces.append(x[(*around, slice(stop, None))])
    return torch.cat(pieces, axis) if len(pieces) > 1 else middle
