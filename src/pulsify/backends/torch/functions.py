"""What generated source calls as `op.*`: operators that are more than one expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F

from pulsify.backends.torch.cells import gru, lstm, rnn
from pulsify.backends.torch.layers import gru_layer, lstm_layer
from pulsify.backends.torch.layouts import by_head, each_channel, join, tap_by_tap
from pulsify.backends.torch.running import in_order
from pulsify.kernels.depthwise.operator import depthwise

__all__ = [
    "by_head",
    "depthwise",
    "each_channel",
    "gru",
    "gru_layer",
    "join",
    "lstm",
    "lstm_layer",
    "rnn",
    "tap_by_tap",
]

Tensor: TypeAlias = torch.Tensor


def without_nan(x: Tensor) -> Tensor:
    """Nothing in place of NaN or -inf is lower than the type's lowest number: what ONNX Runtime's MaxPool compares."""
    lowest = torch.finfo(x.dtype).min
    return x.nan_to_num(lowest, float("inf"), lowest)


# ---- places


def places(at: Tensor, size: int) -> Tensor:
    """Counted from the end if below zero. On a card a place that is none would end all streams: it wraps around."""
    if at.dtype not in (torch.int32, torch.int64):
        at = at.long()
    return torch.where(at < 0, at + size, at) if at.device.type == "cpu" else torch.remainder(at, size)


def _along(at: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(places(i, size).long() for i, size in zip(at.unbind(-1), x.shape, strict=False))


def gather_nd(x: Tensor, at: Tensor, shared: int = 0) -> Tensor:
    """shared: axes in front that both have; there every place is that of the index itself."""
    own = [torch.arange(n, device=x.device) for n in x.shape[:shared]]
    beside = [n.reshape(-1, *[1] * (at.dim() - 2 - axis)) for axis, n in enumerate(own)]
    picked = zip(at.unbind(-1), x.shape[shared:], strict=False)
    return x[(*beside, *(places(i, size).long() for i, size in picked))]


def scatter_nd(x: Tensor, at: Tensor, updates: Tensor, add: bool) -> Tensor:
    return x.index_put(_along(at, x), updates, accumulate=add)


def top(x: Tensor, k: int, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    values, at = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k), at.narrow(axis, 0, k)


def one_hot(at: Tensor, depth: int, off_on: Tensor, axis: int) -> Tensor:
    steps = torch.arange(depth, device=at.device)
    hot = (torch.where(at < 0, at + depth, at).unsqueeze(-1) == steps).movedim(-1, axis)
    return torch.where(hot, off_on[1], off_on[0])


def between(x: Tensor, axis: int, first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """Elements between two of their neighbours."""
    return x.index_select(axis, first) * (1 - share) + x.index_select(axis, second) * share


# ---- sums


def running(product: bool, x: Tensor, axis: int, exclusive: bool, backwards: bool) -> Tensor:
    """Sums or products of all up to here, or before."""
    x = x.flip(axis) if backwards else x
    if exclusive:
        first = torch.full_like(x.narrow(axis, 0, 1), product)
        x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
    if x.is_cpu:
        made = in_order(x, axis, product)
    else:
        made = (torch.cumprod if product else torch.cumsum)(x, axis, dtype=x.dtype)
    return made.flip(axis) if backwards else made


def normal(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """Mean zero, variance one."""
    centred = x - x.mean(axes, True)
    return centred / (centred.square().mean(axes, True) + eps).sqrt()


def by_power(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    return x / (x.square().mean(axes, True) + eps).sqrt()


# ---- transforms


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def stft(signal: Tensor, hop: int, size: int, window: Tensor | None, onesided: bool) -> Tensor:
    """[B, samples, 1 or 2], or [B, samples] as the runtime takes it too -> [B, frames, bins, 2]."""
    x, kind = _wide(signal if signal.dim() == 3 else signal.unsqueeze(-1)), signal.dtype
    frames = x.transpose(1, 2).unfold(2, size, hop)
    if window is not None:
        short = size - window.shape[0]
        frames = frames * F.pad(_wide(window), [short // 2, short - short // 2])
    if frames.shape[1] == 1 and onesided:
        return torch.view_as_real(torch.fft.rfft(frames[:, 0])).to(kind)
    whole = frames[:, 0] if frames.shape[1] == 1 else torch.complex(frames[:, 0], frames[:, 1])
    made = torch.view_as_real(torch.fft.fft(whole))
    return (made[:, :, : size // 2 + 1] if onesided else made).to(kind)


def dft(x: Tensor, axis: int, size: int | None, inverse: bool, onesided: bool) -> Tensor:
    """Real or complex numbers in the last axis; complex ones come out, but for half a spectrum taken back."""
    kind, x = x.dtype, _wide(x)
    whole = x[..., 0] if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())
    if inverse and onesided:
        return torch.fft.irfft(whole, size, axis).unsqueeze(-1).to(kind)
    made = torch.fft.ifft(whole, size, axis) if inverse else torch.fft.fft(whole, size, axis)
    if onesided:
        made = made.narrow(axis, 0, made.shape[axis] // 2 + 1)
    return torch.view_as_real(made.resolve_conj()).to(kind)


# ---- loops of a known count


Body = Callable[..., tuple[Tensor, ...]]


def scan(
    body: Body, states: Sequence[Tensor], rows: Sequence[Tensor], axes: Sequence[int], backwards: Sequence[bool],
    out_axes: Sequence[int], out_backwards: Sequence[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    """A body for every row: its states go on to the next one, the rest is put together."""
    count = rows[0].shape[axes[0]]
    now, made = tuple(states), list[tuple[Tensor, ...]]()
    for t in range(count):
        given = [x.select(a, count - 1 - t if b else t) for x, a, b in zip(rows, axes, backwards, strict=True)]
        out = body(*now, *given)
        now = out[: len(now)]
        made.append(out[len(now) :])
    joined = [
        torch.stack(list(reversed(parts)) if b else parts, a)
        for parts, a, b in zip(zip(*made, strict=True), out_axes, out_backwards, strict=True)
    ]
    return (*now, *joined)


def loop(body: Body, count: int, states: Sequence[Tensor], device: str) -> tuple[Tensor, ...]:
    """A body so many times."""
    now, made = tuple(states), list[tuple[Tensor, ...]]()
    going = torch.ones((), dtype=torch.bool, device=device)
    for t in range(count):
        _, *out = body(torch.full((), t, dtype=torch.int64, device=device), going, *now)
        now = tuple(out[: len(now)])
        made.append(tuple(out[len(now) :]))
    return (*now, *(torch.stack(list(parts)) for parts in zip(*made, strict=True)))
