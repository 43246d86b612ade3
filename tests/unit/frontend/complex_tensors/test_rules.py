"""Every rule for complex tensors, beside torch's own result, eagerly and traced by the exporter."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import istft as istft_by_name  # noqa: E402
from torch import nn  # noqa: E402
from torch import stft as stft_by_name  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from pulsify.core.runner import open_model  # noqa: E402
from pulsify.frontend.complex_tensors.mode import real_numbers  # noqa: E402
from pulsify.frontend.complex_tensors.pair import ComplexPair, Uncovered  # noqa: E402
from pulsify.frontend.complex_tensors.sites import recording  # noqa: E402


def written(z: Any, index: Any, value: Any) -> Any:
    z = z.clone()
    z[index] = value
    return z


def in_place(z: Any, how: Callable[[Any], Any]) -> Any:
    z = z.clone()
    how(z)
    return z


def through_a_view(z: Any) -> Any:
    z = z.clone()
    row = z[:, 1]
    row.mul_(2j)
    return z


def parts_set(z: Any) -> Any:
    z = z.clone()
    z.real = z.imag * 2
    z.imag = 1.0
    return z


MATRIX = torch.randn(5, 5, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))
# z, w: complex [3, 4, 5]; x: real [3, 4, 5]
RULES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda z, w, x: z + w + x + 1 + 2j + (1 + z) + (x + z),
    "add alpha": lambda z, w, x: torch.add(z, w, alpha=2) - torch.sub(w, z, alpha=3),
    "sub": lambda z, w, x: z - w - (x - z) - (1j - z) - 2.0,
    "mul": lambda z, w, x: z * w * x * 2 * (1 - 1j) + 1j * x + x * 2j,
    "div": lambda z, w, x: z / w + z / 2 + z / (1 + x * x) + 1 / z + x / z + z / (1 - 2j) + 1j / w,
    "functions": lambda z, w, x: torch.mul(z, w) + torch.div(z, w) + torch.neg(z) + torch.subtract(z, w),
    "in place": lambda z, w, x: in_place(z, lambda z: z.mul_(w).add_(x).div_(2)),
    "operators in place": lambda z, w, x: in_place(z, lambda z: z.__imul__(w).__iadd__(1j).__isub__(x).__itruediv__(2)),
    "view in place": lambda z, w, x: through_a_view(z),
    "parts set": lambda z, w, x: parts_set(z),
    "zero_": lambda z, w, x: in_place(z, lambda z: z.zero_()) + in_place(z, lambda z: z.fill_(1j)),
    "copy_": lambda z, w, x: in_place(z, lambda z: z.copy_(w)) + in_place(z, lambda z: z[0].copy_(x[1])),
    "pow": lambda z, w, x: z**2 + z**-1 + z**0.5 + z.pow(3) + torch.pow(z, 1.7) + z**x + z ** (1 + 1j) + 2**z + z**w,
    "square": lambda z, w, x: z.square() + torch.square(w) + z.reciprocal(),
    "addcmul": lambda z, w, x: torch.addcmul(z, w, z, value=2) + torch.lerp(z, w, 0.3),
    "exp": lambda z, w, x: torch.exp(z) + z.exp() + torch.exp(1j * x) + torch.exp(-1j * math.pi * x),
    "log": lambda z, w, x: torch.log(z) + z.log2() + z.log10() + torch.log1p(z),
    "sqrt": lambda z, w, x: z.sqrt() + torch.rsqrt(z),
    "sines": lambda z, w, x: z.sin() + z.cos() + torch.sinh(z) + torch.cosh(w) + z.tanh() + torch.tan(z) + z.sigmoid(),
    "sgn": lambda z, w, x: torch.sgn(z) * z.sgn(),
    "abs": lambda z, w, x: abs(z) + z.abs() + torch.abs(w) + z.absolute(),
    "angle": lambda z, w, x: torch.angle(z) + w.angle() + torch.atan2(z.imag, z.real),
    "conj": lambda z, w, x: z.conj() * torch.conj(w) + z.conj().resolve_conj() + torch.conj_physical(z),
    "adjoint": lambda z, w, x: z.mH @ w + z.adjoint() @ w + z[0].H.sum(),
    "real": lambda z, w, x: z.real * torch.imag(z) + torch.real(w) - w.imag,
    "view_as_real": lambda z, w, x: torch.view_as_real(z),
    "view_as_complex": lambda z, w, x: torch.view_as_complex(torch.stack([x, z.real], -1)) * z,
    "complex": lambda z, w, x: torch.complex(x, z.imag) * z,
    "complex keeps its parts": lambda z, w, x: written(torch.complex(x, x), 0, 0) + x,
    "polar": lambda z, w, x: torch.polar(z.abs(), w.angle() * 0.5),
    "view": lambda z, w, x: z.view(3, 20).reshape(-1, 4).T.contiguous() + z.flatten().unflatten(0, (4, 15))[:, :1],
    "shape": lambda z, w, x: z.view(z.shape[0], z.size(1) * z.size(-1), *z.shape[3:]),
    "transpose": lambda z, w, x: z.transpose(1, 2).permute(2, 0, 1) + w.movedim(1, 0).mT.swapaxes(1, 2),
    "squeeze": lambda z, w, x: z.unsqueeze(1).squeeze(1).unsqueeze_(0).expand(2, -1, -1, -1),
    "flip": lambda z, w, x: z.flip(2).roll(1, 0) + torch.flip(w, [0]) + torch.roll(z, 2, -1),
    "repeat": lambda z, w, x: z.repeat(1, 2, 1) + torch.tile(w, (1, 2, 1)) + z.repeat_interleave(2, 1),
    "split": lambda z, w, x: (
        torch.split(z, [2, 3], -1)[1] + w.chunk(2, 1)[0][..., :1].sum() + z.split(2, 2)[0][..., :1]
    ),
    "unbind": lambda z, w, x: z.unbind(1)[2] + torch.unbind(w, 0)[0][0] + sum(list(z))[1],
    "cat": lambda z, w, x: torch.cat([z, w, torch.complex(x, x)], 1) + torch.cat((z,) * 3, dim=1),
    "stack": lambda z, w, x: torch.stack([z, w], 1) + torch.hstack([z[0, 0], w[0, 0]]).sum(),
    "index": lambda z, w, x: z[..., 1:3] * w[:, None, 0, :2, None].sum() + z[..., [0, 2]] + z[:, -1:, ::2][..., :2],
    "index tensor": lambda z, w, x: z[torch.tensor([2, 0])] + torch.index_select(w, 0, torch.tensor([1, 1])),
    "gather": lambda z, w, x: z.gather(1, torch.zeros(3, 2, 5, dtype=torch.long)) + z.select(1, 0)[:, None],
    "write": lambda z, w, x: written(z, (..., 2), 0) + written(w, (slice(None), 1), z[:, 0] * x[:, 0]),
    "write a number": lambda z, w, x: written(z, (0, slice(1, 3)), 1 - 2j),
    "write by mask": lambda z, w, x: written(z, x > 0, 0),
    "pad": lambda z, w, x: F.pad(z, (1, 2)) + F.pad(z, (2, 1), value=1.5) + F.pad(z, (1, 2), mode="replicate"),
    "where": lambda z, w, x: torch.where(x > 0, z, w) + torch.where(x > 0, z, 0) + z.where(x > 1, w),
    "masked_fill": lambda z, w, x: z.masked_fill(x > 0, 0) + torch.masked_fill(w, x < 0, 1j),
    "sum": lambda z, w, x: z.sum() + torch.sum(z, 1).mean() + w.sum((0, 2), keepdim=True).mean(-1) + z.cumsum(1).mean(),
    "norm": lambda z, w, x: z.norm() + torch.norm(w, dim=1) + torch.linalg.norm(z[0]) + torch.linalg.vector_norm(z),
    "std": lambda z, w, x: z.std() + torch.var(w, 1) + z.var(dim=-1, unbiased=False).sum(),
    "prod": lambda z, w, x: torch.prod(z, 1),
    "matmul": lambda z, w, x: z @ w.mT + (x @ x.mT) + z.matmul(MATRIX)[..., :4] + torch.bmm(z, w.mT),
    "dot": lambda z, w, x: torch.vdot(z[0, 0], w[0, 0]) + torch.dot(z[0, 0], w[0, 0]) + torch.mv(MATRIX, z[0, 0]),
    "outer": lambda z, w, x: torch.outer(z[0, 0], w[0, 0]),
    "einsum": lambda z, w, x: (
        torch.einsum("bij,bkj->bik", z, w.conj()) + torch.einsum("bij,bkj,bj->bik", z, x, w[:, 0])
    ),
    "real as complex": lambda z, w, x: (
        F.linear(x.to(torch.complex64), MATRIX) + F.linear(written(x.to(torch.complex64), (0, 1), 1j), MATRIX)
        + F.linear(in_place(x.cfloat(), lambda z: z.mul_(1j)), MATRIX) + F.linear(x.cfloat() * w, MATRIX)
        + F.linear(parts_set(x.cfloat()), MATRIX)
    ),
    "linear": lambda z, w, x: F.linear(z, MATRIX, MATRIX[0]) + F.linear(z, MATRIX) + z @ MATRIX,
    "conv": lambda z, w, x: F.conv1d(z, MATRIX[:2, :4, None].expand(2, 4, 3), MATRIX[0, :2], padding=1),
    "equal": lambda z, w, x: (z == w) | (z != z.clone()) | torch.isfinite(z) & ~torch.isnan(w),
    "like": lambda z, w, x: torch.zeros_like(z) + torch.ones_like(w) * torch.full_like(z, 1j) + z.new_zeros(5),
    "made": lambda z, w, x: (
        torch.zeros(4, 5, dtype=torch.complex64) + torch.ones(5, dtype=torch.cfloat) * z + torch.tensor(1j)
    ),
    "tensor": lambda z, w, x: torch.tensor([1j, 1, 2, 3, 4]) * z + torch.exp(1j * torch.arange(5)),
    "to": lambda z, w, x: x.to(torch.complex64) * z.to(torch.cfloat) + x.cfloat() + x.type(torch.complex64),
    "queries": lambda z, w, x: z * (z.is_complex() + z.dim() + z.ndim + len(z) + (z.dtype == torch.complex64)),
    "isinstance": lambda z, w, x: (
        z if isinstance(z, torch.Tensor) and torch.is_complex(z) and torch.is_tensor(z) else x
    ),
    "normalize": lambda z, w, x: F.normalize(z, dim=-1) + F.dropout(z, 0.5, training=False),
    "fft": lambda z, w, x: torch.fft.fft(z) + torch.fft.ifft(w, dim=-1) + torch.fft.fft(x),
    "fft axis": lambda z, w, x: torch.fft.fft(z, dim=1, norm="ortho") + torch.fft.ifft(w, dim=1, norm="forward"),
    "fft n": lambda z, w, x: (
        torch.fft.fft(z, n=8) + torch.fft.fft(x, n=8) + F.pad(torch.fft.ifft(z, 3, norm="ortho"), (0, 5))
    ),
    "rfft": lambda z, w, x: torch.fft.rfft(x) + torch.fft.rfft(x, norm="ortho") + torch.fft.ihfft(x),
    "rfft n": lambda z, w, x: torch.fft.rfft(x, 8, dim=1, norm="forward") + torch.fft.rfft(x, n=9, dim=1),
    "irfft": lambda z, w, x: torch.fft.irfft(z) + torch.fft.irfft(z, 8, norm="ortho") + torch.fft.hfft(w, 8),
    "irfft odd": lambda z, w, x: torch.fft.irfft(z, n=9) + torch.fft.irfft(z[..., :3], n=9),
    "rfft back": lambda z, w, x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=x.shape[1], dim=1),
    "fftn": lambda z, w, x: torch.fft.fft2(z) + torch.fft.ifft2(w) + torch.fft.fftn(z) + torch.fft.fftn(z, dim=(0, 2)),
    "rfftn": lambda z, w, x: (
        torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape[1:]) + torch.fft.irfftn(torch.fft.rfftn(x), x.shape)
    ),
    "fftshift": lambda z, w, x: torch.fft.fftshift(z, -1) + torch.fft.ifftshift(z, 1) + torch.fft.fftfreq(5),
}  # fmt: skip


def values() -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(0)
    z, w = (torch.randn(3, 4, 5, dtype=torch.complex64, generator=generator) for _ in range(2))
    return z, w, torch.randn(3, 4, 5, generator=generator)


def plain(value: Any) -> Any:
    return torch.complex(value.re, value.im) if isinstance(value, ComplexPair) else value


def same(got: Any, want: Any) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    scale = float(want.abs().max()) if want.is_floating_point() or want.is_complex() else 1
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=0, atol=2e-6 * scale)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_computes_what_torch_does(name: str) -> None:
    z, w, x = values()
    want = RULES[name](z, w, x)
    with real_numbers():
        got = RULES[name](ComplexPair(z.real.clone(), z.imag.clone()), ComplexPair(w.real.clone(), w.imag.clone()), x)
        if isinstance(want, torch.Tensor) and want.is_complex():
            assert isinstance(got, ComplexPair)
    same(plain(got), want)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def exported(module: Any, *inputs: Any) -> Any:
    """What ONNX Runtime makes of the module as the older exporter writes it."""
    file = io.BytesIO()
    names = [f"x{i}" for i in range(len(inputs))]
    with real_numbers(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {n: {0: "B"} for n in names}
        torch.onnx.export(module, inputs, file, dynamo=False, opset_version=17, input_names=names, dynamic_axes=axes)
    session = open_model(file.getvalue())
    feeds = {n: i.numpy() for n, i in zip(names, inputs, strict=True)}
    return torch.from_numpy(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})[0])


@pytest.mark.parametrize("name", [n for n in RULES if n not in ("equal",)])
def test_a_rule_is_exported(name: str) -> None:
    def through(a: Any, b: Any, x: Any) -> Any:
        z, w = torch.view_as_complex(a), torch.view_as_complex(b)
        out = RULES[name](z, w, x)
        return torch.view_as_real(out) if out.is_complex() else out

    z, w, x = values()
    inputs = torch.view_as_real(z).clone(), torch.view_as_real(w).clone(), x
    same(exported(Function(through), *inputs), through(*inputs))


# ---- short-time transforms

SOUND = torch.randn(2, 1200, generator=torch.Generator().manual_seed(1))
STFT: dict[str, dict[str, Any]] = {
    "plain": {"n_fft": 64},
    "window": {"n_fft": 64, "hop_length": 16, "window": torch.hann_window(64)},
    "shorter window": {"n_fft": 64, "hop_length": 20, "win_length": 40, "window": torch.hamming_window(40)},
    "odd shorter window": {"n_fft": 64, "hop_length": 20, "win_length": 41},
    "not centred": {"n_fft": 60, "hop_length": 25, "center": False},
    "zeros": {"n_fft": 64, "pad_mode": "constant"},
    "edges": {"n_fft": 64, "pad_mode": "replicate"},
    "around": {"n_fft": 64, "pad_mode": "circular"},
    "normalized": {"n_fft": 64, "normalized": True},
    "both sides": {"n_fft": 64, "onesided": False},
    "odd": {"n_fft": 63, "hop_length": 21},
}


@pytest.mark.parametrize("how", ["torch", "method", "by name"])
@pytest.mark.parametrize("name", STFT)
def test_stft(name: str, how: str) -> None:
    call = {"torch": torch.stft, "method": torch.Tensor.stft, "by name": stft_by_name}[how]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (SOUND, SOUND[0]):
            want = call(x, **STFT[name], return_complex=True)
            with real_numbers():
                got = call(x, **STFT[name], return_complex=True)
                old = call(x, **STFT[name], return_complex=False)
            same(plain(got), want)
            same(old, torch.view_as_real(want))
        if not STFT[name].get("window", SOUND).is_complex() and STFT[name].get("onesided") is not True:
            z = torch.complex(SOUND, SOUND.flip(1))
            want = torch.stft(z, **{**STFT[name], "onesided": False}, return_complex=True)
            with real_numbers():
                got = torch.stft(ComplexPair(z.real, z.imag), **{**STFT[name], "onesided": False}, return_complex=True)
            same(plain(got), want)


ISTFT: dict[str, dict[str, Any]] = {
    "plain": {"n_fft": 64},
    "length": {"n_fft": 64, "hop_length": 16, "window": torch.hann_window(64), "length": 1100},
    "all of the length": {"n_fft": 64, "hop_length": 16, "window": torch.hann_window(64), "length": 1200},
    "shorter window": {"n_fft": 64, "hop_length": 10, "win_length": 40, "window": torch.hamming_window(40)},
    "not centred": {"n_fft": 64, "hop_length": 32, "center": False},
    "not centred, length": {"n_fft": 64, "hop_length": 32, "center": False, "length": 900},
    "normalized": {"n_fft": 64, "normalized": True},
    "both sides": {"n_fft": 64, "onesided": False},
    "complex": {"n_fft": 64, "onesided": False, "return_complex": True},
    "odd": {"n_fft": 63, "hop_length": 21},
    "longer than the frames": {"n_fft": 64, "hop_length": 64, "length": 1200, "center": False},
}


@pytest.mark.parametrize("how", ["torch", "method", "by name"])
@pytest.mark.parametrize("name", ISTFT)
def test_istft(name: str, how: str) -> None:
    call = {"torch": torch.istft, "method": torch.Tensor.istft, "by name": istft_by_name}[how]
    options = ISTFT[name]
    bins = options["n_fft"] if options.get("onesided") is False else options["n_fft"] // 2 + 1
    z = torch.randn(2, bins, 76 if options["n_fft"] == 64 and "length" in options else 20, dtype=torch.complex64)
    if name == "longer than the frames":
        z = z[..., :10]
    for one in (z, z[0]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = call(one, **options)
            with real_numbers():
                got = call(ComplexPair(one.real, one.imag), **options)
        same(plain(got), want)


def test_zero_imaginary_parts_have_the_angle_of_torch() -> None:
    """Of the first and last bins of a spectrum, whose imaginary part is exactly zero, and of silence."""
    x = torch.cat([torch.tensor([[1.0], [-1.0]]).expand(2, 200), torch.zeros(2, 200)], 1)
    want = torch.stft(x, 32, return_complex=True, center=False).angle()
    with real_numbers():
        got = torch.stft(x, 32, return_complex=True, center=False).angle()
    np.testing.assert_allclose(got[:, [0, -1]], want[:, [0, -1]], atol=1e-6)


# ---- what surrounds the rules


def test_complex_parameters_and_buffers_are_constants() -> None:
    class Rotated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.randn(5, dtype=torch.complex64))
            self.layer = nn.Linear(5, 3, dtype=torch.complex64)
            self.register_buffer("shift", torch.randn(3, dtype=torch.complex64))

        def forward(self, x: Any) -> Any:
            return (self.layer(x * self.turn) + self.shift).abs()

    torch.manual_seed(0)
    module, x = Rotated().eval(), values()[2]
    same(exported(module, x), module(x).detach())
    assert module.turn.is_complex()


def test_what_has_no_rule_is_named_with_the_users_line() -> None:
    with (
        real_numbers(),
        pytest.raises(Uncovered, match=r"linalg_inv.*test_rules\.py:\d+, in .*: `torch.linalg.inv") as error,
    ):
        torch.linalg.inv(torch.complex(torch.eye(3), torch.eye(3)))
    assert ".real and .imag" in str(error.value)
    with real_numbers(), pytest.raises(Uncovered, match="writing a complex value into a real tensor"):
        torch.zeros(3)[0] = torch.tensor(1j)


def test_numbers_that_become_constants_are_recorded() -> None:
    def loop(x: Any) -> Any:
        for i in range(x.shape[0]):
            x = x + i
        return x * float(x.shape[0])

    with recording() as fixed:
        exported(Function(loop), SOUND)
    found = [(f.purpose, f.value, f.site.source) for f in fixed if f.site is not None]
    assert ("an index", 2, "for i in range(x.shape[0]):") in found
    assert ("a float", 2.0, "return x * float(x.shape[0])") in found
    with recording() as fixed:
        exported(Function(lambda x: torch.fft.rfft(x).abs()), SOUND)
    assert [(f.purpose, f.value) for f in fixed if "Fourier" in f.purpose] == [
        ("a Fourier transform of the whole axis", 1200)
    ]
