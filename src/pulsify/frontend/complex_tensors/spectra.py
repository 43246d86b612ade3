"""Fourier transforms as products with constant tables: stft, istft and torch.fft along axes of a fixed size."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from pulsify.core.arrays import Array
from pulsify.frontend.complex_tensors.arithmetic import conjugate, multilinear, multiplied
from pulsify.frontend.complex_tensors.pair import ComplexPair, both, is_complex, pair, parts, rule, uncovered, untraced
from pulsify.frontend.complex_tensors.rewrites import unfold
from pulsify.frontend.complex_tensors.sites import record


def waves(bins: int, size: int) -> tuple[Array, Array]:
    """cos and sin of 2π k n / size, exact where they are 0 or ±1."""
    turns = np.outer(np.arange(bins), np.arange(size)) % size
    angles = 2 * np.pi * np.arange(size) / size
    cos, sin = np.cos(angles), np.sin(angles)
    quarter = np.arange(size) * 4 % size == 0
    cos[quarter], sin[quarter] = np.round(cos[quarter]), np.round(sin[quarter])
    return cos[turns], sin[turns]


def _table(array: Array, like: Any) -> Any:
    """A constant of the trace."""
    with untraced():
        return torch.tensor(np.ascontiguousarray(array), dtype=like.dtype, device=like.device)


# ---- short-time transforms


def _window(window: Any, n_fft: int, win_length: int | None) -> Array:
    """In the middle of n_fft samples."""
    size = int(win_length or n_fft)
    if window is None:
        shape = np.ones(size)
    elif is_complex(window):
        raise uncovered("a complex window")
    else:
        with untraced():
            shape = np.array(window.detach().cpu().double().numpy())
    left = (n_fft - size) // 2
    return np.pad(shape, (left, n_fft - size - left))


@rule("stft")
def stft(
    func: Any,
    x: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    n_fft, hop = int(n_fft), int(hop_length or n_fft // 4)
    if align_to_window:
        raise uncovered("stft(align_to_window=True)")
    shape = _window(window, n_fft, win_length)
    bins = n_fft // 2 + 1 if onesided or (onesided is None and not is_complex(x)) else n_fft
    cos, sin = waves(bins, n_fft)
    scale = shape / (np.sqrt(n_fft) if normalized else 1)
    basis = _table(np.concatenate([cos, -sin])[:, None] * scale, parts(x)[0])

    def frames(part: Any) -> Any:
        flat = part.reshape(-1, 1, part.shape[-1])
        if center:
            flat = F.pad(flat, (n_fft // 2, n_fft // 2), mode=pad_mode)
        if part.dtype == torch.float64:  # ONNX Runtime has no convolution of doubles
            made = (unfold(flat[:, 0], 1, n_fft, hop) @ basis[:, 0].T).transpose(1, 2)
        else:
            made = F.conv1d(flat, basis, stride=hop)
        return ComplexPair(*(s if part.dim() > 1 else s[0] for s in (made[:, :bins], made[:, bins:])))

    re, im = parts(x)
    z = frames(re) if im is None else frames(re) + multiplied(frames(im), 1j)
    return torch.view_as_real(z) if return_complex is False else z


@rule("istft")
def istft(
    func: Any,
    z: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> Any:
    n_fft, hop = int(n_fft), int(hop_length or n_fft // 4)
    shape = _window(window, n_fft, win_length)
    scale = np.sqrt(n_fft) if normalized else 1
    re, im = both(z)
    single = re.dim() == 2
    re, im = (re[None], im[None]) if single else (re, im)
    if return_complex:
        cos, sin = waves(n_fft, n_fft)
        table = [np.concatenate([cos, -sin]), np.concatenate([sin, cos])]
    else:
        bins = n_fft // 2 + 1
        re, im = re[:, :bins], im[:, :bins]
        table = [np.concatenate(_half_back(n_fft))]
    both_parts = torch.cat([re, im], 1)
    whole = [
        F.conv_transpose1d(both_parts, _table(t[:, None] * shape * scale / n_fft, re), stride=hop)[:, 0] for t in table
    ]
    envelope = F.conv_transpose1d(torch.ones_like(re[:1, :1]), _table(shape[None, None] ** 2, re), stride=hop)[:, 0]
    start = n_fft // 2 if center else 0
    stop = None if length is None else start + length
    if length is None and center:
        stop = -start
    # the samples that are cut off may have an envelope of zero
    sound = [_filled((s / envelope)[:, start:stop], n_fft, hop, length) for s in whole]
    sound = [s[0] for s in sound] if single else sound
    return ComplexPair(*sound) if return_complex else sound[0]


def _filled(x: Any, n_fft: int, hop: int, length: Any) -> Any:
    """Zeros up to the length that is asked for, where frames may end before it."""
    if length is None or (hop <= n_fft // 2 and int(x.shape[-1]) >= int(length)):
        return x
    return F.pad(x, (0, length - x.shape[-1]))


def _half_back(size: int) -> tuple[Array, Array]:
    """From one half of a spectrum to real samples: what is multiplied with its real and imaginary parts."""
    bins = size // 2 + 1
    weight = np.full((bins, 1), 2.0)
    weight[0] = 1
    if size % 2 == 0:
        weight[-1] = 1
    cos, sin = waves(bins, size)
    return weight * cos, -weight * sin


# ---- torch.fft


def _fitted(x: Any, axis: int, size: int | None) -> tuple[Any, int]:
    """The axis last, cut or filled with zeros to its size."""
    x = x.transpose(axis, -1)
    have = int(x.shape[-1])
    if size is None:
        record("a Fourier transform of the whole axis", have)
        return x, have
    if isinstance(size, torch.Tensor):  # it is computed from a length
        record("a Fourier transform of the whole axis", int(size))
    size = int(size)
    if have > size:
        return x[..., :size], size
    return (F.pad(x, (0, size - have)) if have < size else x), size


def _scale(size: int, norm: str | None, inverse: bool) -> float:
    plain = {None: inverse, "backward": inverse, "forward": not inverse}
    return size**-0.5 if norm == "ortho" else 1 / size if plain[norm] else 1.0


def _through(x: Any, table: Array) -> Any:
    return F.linear(x, _table(table, x))


def _dft(z: Any, size: int | None, axis: int, norm: str | None, inverse: bool) -> Any:
    if not is_complex(z):
        z = z if z.is_floating_point() else z.to(torch.get_default_dtype())
    z, size = _fitted(z, axis, size)
    cos, sin = (w * _scale(size, norm, inverse) for w in waves(size, size))
    table = ComplexPair(*(_table(t, parts(z)[0]) for t in (cos, sin if inverse else -sin)))
    return multilinear(F.linear, z, table).transpose(axis, -1)


def _rdft(x: Any, size: int | None, axis: int, norm: str | None, inverse: bool = False) -> Any:
    if is_complex(x):
        raise uncovered("rfft")
    x, size = _fitted(x if x.is_floating_point() else x.to(torch.get_default_dtype()), axis, size)
    cos, sin = (w * _scale(size, norm, inverse) for w in waves(size // 2 + 1, size))
    return ComplexPair(_through(x, cos), _through(x, -sin)).transpose(axis, -1)


def _irdft(z: Any, size: int | None, axis: int, norm: str | None, inverse: bool = True) -> Any:
    z = pair(z)
    if size is None:
        have = int(z.shape[axis])
        record("a Fourier transform of the whole axis", have)
        size = 2 * (have - 1)
    size = int(size)
    z, _ = _fitted(z, axis, size // 2 + 1)
    back = [w.T * _scale(size, norm, inverse) for w in _half_back(size)]
    return (_through(z.re, back[0]) + _through(z.im, back[1])).transpose(axis, -1)


@rule("fft_fft", "fft_ifft")
def fft(func: Any, x: Any, n: Any = None, dim: int = -1, norm: str | None = None) -> Any:
    return _dft(x, n, dim, norm, func.__name__ == "fft_ifft")


@rule("fft_rfft")
def rfft(func: Any, x: Any, n: Any = None, dim: int = -1, norm: str | None = None) -> Any:
    return _rdft(x, n, dim, norm)


@rule("fft_irfft")
def irfft(func: Any, z: Any, n: Any = None, dim: int = -1, norm: str | None = None) -> Any:
    return _irdft(z, n, dim, norm)


@rule("fft_hfft")
def hfft(func: Any, z: Any, n: Any = None, dim: int = -1, norm: str | None = None) -> Any:
    return _irdft(conjugate(torch.conj, z), n, dim, norm, inverse=False)


@rule("fft_ihfft")
def ihfft(func: Any, x: Any, n: Any = None, dim: int = -1, norm: str | None = None) -> Any:
    return conjugate(torch.conj, _rdft(x, n, dim, norm, inverse=True))


@rule("fft_fft2", "fft_ifft2", "fft_rfft2", "fft_irfft2", "fft_fftn", "fft_ifftn", "fft_rfftn", "fft_irfftn")
def fftn(func: Any, x: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """Axis after axis; of real signals the last one first, or back last."""
    name = func.__name__
    dims = (-2, -1) if dim is None and name.endswith("2") else dim
    if dims is None:
        dims = range(x.dim()) if s is None else range(-len(s), 0)
    sizes = [None if n == -1 else n for n in s] if s is not None else [None] * len(dims)
    axes = list(zip(dims, sizes, strict=True))
    inverse = "_i" in name
    if "_r" in name:
        x = _rdft(x, axes[-1][1], axes[-1][0], norm)
    for axis, size in axes[:-1] if "_r" in name or "_ir" in name else axes:
        x = _dft(x, size, axis, norm, inverse)
    return _irdft(x, axes[-1][1], axes[-1][0], norm) if "_ir" in name else x
