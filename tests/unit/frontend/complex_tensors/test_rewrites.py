"""Functions of real tensors as the older exporter gets them: what ONNX Runtime computes is what torch does."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from pulsify.frontend.complex_tensors.branches import branches, mark  # noqa: E402
from tests.unit.frontend.complex_tensors.test_rules import Function, exported  # noqa: E402


def written(x: Any, how: Callable[[Any], Any]) -> Any:
    x = x.clone()
    how(x)
    return x


def scaled(x: Any) -> Any:
    x = x.clone()
    x[:, 1:3] *= 2
    x[:, 0] = x[:, 0] * 3
    return x


def put(*index: Any, value: Any) -> Callable[[Any], Any]:
    return lambda x: x.__setitem__(index if len(index) > 1 else index[0], value)


def weights(size: int, hidden: int = 3, projected: int = 2, layers: int = 1, bias: bool = True) -> list[Any]:
    """Of an LSTM with projections."""
    shapes = [(4 * hidden, size), (4 * hidden, projected), *[(4 * hidden,)] * (2 * bias), (projected, hidden)]
    return [torch.arange(math.prod(n) + 1.0)[1:].sin().reshape(n) for _ in range(layers) for n in shapes]


ALL = slice(None)
# x: [2, 5, 4], in (0.1, 0.9)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "atan2": lambda x: torch.atan2(x - 0.5, 0.4 - x) + torch.atan2(torch.zeros_like(x), x - x),
    "hypot": lambda x: torch.hypot(x, x.flip(-1)),
    "hyperbolic": lambda x: torch.cosh(x) + torch.sinh(x) + torch.asinh(x) + torch.acosh(1 + x) + torch.atanh(x),
    "expm1": lambda x: torch.expm1(x * 1e-4) / 1e-4 + torch.expm1(x * 30) * 1e-12 + torch.expm1(-x),
    "exp2": lambda x: torch.exp2(x) + torch.special.exp2(x),
    "erfc": lambda x: torch.erfc(x),
    "trunc": lambda x: torch.trunc(x * 9 - 4) + torch.frac(x * 9 - 4) * 2 + torch.fix(x),
    "signs": lambda x: torch.sgn(x - 0.5) + torch.copysign(x, x - 0.5) + torch.signbit(x - 0.5),
    "sinc": lambda x: torch.sinc(x - x) + torch.sinc(3 * x),
    "degrees": lambda x: torch.deg2rad(x) + torch.rad2deg(x),
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(-1)) + torch.logaddexp2(x, x.flip(-1)),
    "xlogy": lambda x: torch.xlogy(x, x.flip(-1)) + torch.xlogy(x - x, x - x),
    "heaviside": lambda x: torch.heaviside(x - 0.5, x),
    "addcdiv": lambda x: torch.addcdiv(x, x, x + 1, value=2),
    "rms_norm": lambda x: F.rms_norm(x, (4,), torch.arange(4.0)),
    "inner": lambda x: torch.inner(x, x[0]),
    "multi_dot": lambda x: torch.linalg.multi_dot([x[0], x[1].mT, x[0]]),
    "bilinear": lambda x: F.bilinear(x, x.flip(-1), torch.ones(2, 4, 4), torch.ones(2)),
    "diff": lambda x: torch.diff(x, dim=1, prepend=x[:, :1]) + x.diff(n=1, dim=-1).sum(-1, keepdim=True),
    "take_along_dim": lambda x: x.take_along_dim(torch.zeros(2, 5, 1, dtype=torch.long), 2),
    "count_nonzero": lambda x: (x > 0.5).count_nonzero(-1),
    "channel_shuffle": lambda x: F.channel_shuffle(x[:, :4, None], 2),
    "unflatten": lambda x: x.unflatten(-1, (2, -1)) + x.unflatten(2, (2, 2)),
    "flatten": lambda x: x.flatten(1).flatten() + torch.flatten(x, 0, -1),
    "unfold": lambda x: x.unfold(1, 3, 2) + x.unfold(dimension=-2, size=3, step=2),
    "unfold of pictures": lambda x: F.unfold(x[:, None], (3, 2)),
    "unfold of rows": lambda x: F.unfold(x[:, None], (3, x.shape[2])),
    "unfold of every second row": lambda x: F.unfold(x[:, None], (3, x.shape[2]), stride=(2, 1)),
    "transpose": lambda x: x.transpose(-1, 0) + torch.swapaxes(x, axis0=0, axis1=2) + torch.transpose(x, 2, dim1=0),
    "movedim": lambda x: x.movedim(0, -1) + torch.moveaxis(x, (2, 0), (1, 2)),
    "fold": lambda x: F.fold(x.reshape(2, 5, 4), (1, 11), (1, 5), stride=(1, 2)),
    "fold of pictures": lambda x: F.fold(x.mT[:, :, :4], (3, 3), 2) + F.fold(x.mT[..., :4], (3, 3), (2, 2)),
    "computed kernel": lambda x: F.conv1d(x.mT, torch.arange(3.0).repeat(4, 1, 1) * x.shape[2], groups=4),
    "transposed": lambda x: x.mT + x.mT.mH.adjoint(),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x) + torch.einsum("bij->b", x)[:, None, None],
    "einsum of three": lambda x: torch.einsum("bij,jk,bk->ibk", x, torch.ones(4, 3), x[:, 0, :3]),
    "einsum without a sum": lambda x: (
        torch.einsum("bi,bj->bij", x[:, 0], x[:, 1]) + torch.einsum("bij,j->bij", x[:, :4], x[0, 0])
    ),
    "einsum over two": lambda x: torch.einsum("bij,ijk->bk", x, torch.ones(5, 4, 2)),
    "einsum, ellipsis": lambda x: torch.einsum("...ij,...kj->...ik", x, x),
    "attention": lambda x: F.multi_head_attention_forward(
        x, x, x, 4, 2, torch.ones(12, 4), torch.zeros(12), None, None, False, 0.0, torch.ones(4, 4), torch.zeros(4)
    )[0],
    "write": lambda x: written(x, put(ALL, slice(1, 3), value=0.0)),
    "write a number": lambda x: written(x, put(ALL, 2, value=7)),
    "write at the end": lambda x: written(x, put(ALL, -1, value=x[:, 0])),
    "write in the last axis": lambda x: written(x, put(Ellipsis, slice(-2, None), value=x[..., :2])),
    "write twice": lambda x: written(written(x, put(0, value=1)), put(slice(1, None), slice(None, 2), 3, value=2)),
    "write by mask": lambda x: written(x, lambda y: y.__setitem__(y > 0.5, 0.0)),
    "write every second": lambda x: written(x, put(ALL, ALL, slice(None, None, 2), value=0.0)),
    "write the last of a list": lambda x: written(x, put(Ellipsis, 3, value=1.0)),
    "scale a part": scaled,
    "floor division": lambda x: torch.ones(3, 4)[: -((x.shape[1] - 12) // 4)] * (7 // x.shape[2]) * (-7 // x.shape[2]),
    "as_strided": lambda x: (
        x[0, :, 0].contiguous().as_strided((2, 3), (2, 1)).sum() + x.as_strided((2, 5, 3, 2), (20, 4, 1, 1))
    ),
    "tensor_split": lambda x: x.tensor_split(3, 1)[1] + x.tensor_split((2, 3), dim=2)[0][:, :2, :1],
    "median": lambda x: x.median(1)[0] + torch.median(x, -1, keepdim=True).values[:, :1, 0],
    "quantile": lambda x: torch.quantile(x, 0.3, 1) + x.quantile(1.0, dim=1, keepdim=True)[:, 0],
    "cummax": lambda x: torch.cummax(x, 1).values + torch.cummax(x, -1).indices,
    "cummin": lambda x: x.cummin(1)[0] + x.round().cummin(1)[1],
    "logcumsumexp": lambda x: torch.logcumsumexp(x * 50, 1) + (x - 90).logcumsumexp(-1),
    "cumprod": lambda x: torch.cumprod(x * 2, 1) + x.cumprod(-1),
    "lstm, projected": lambda x: torch.lstm(
        x.mT, (torch.ones(1, 2, 2), torch.ones(1, 2, 3)), weights(5), True, 1, 0.0, False, False, True
    )[0],
    "lstm, projected, no bias": lambda x: torch.lstm(
        x, (torch.ones(2, 5, 4), torch.ones(2, 5, 3)), weights(4, 3, 4, 2, False), False, 2, 0.0, False, False, False
    )[1][0],
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_exported_as_torch_has_it(name: str) -> None:
    x = torch.rand(2, 5, 4, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
    want = FUNCTIONS[name](x)
    got = exported(Function(FUNCTIONS[name]), x)
    assert got.shape == want.shape
    np.testing.assert_allclose(got.double(), want.double(), rtol=0, atol=2e-6 * float(want.abs().max()))


# ---- branches


def test_conditions_on_data_are_listed_and_can_be_turned() -> None:
    def branched(x: Any) -> Any:
        if x.sum() > 0:
            x = x + 1
        if torch.ones(1).sum() > 0:  # no data
            x = x * 2
        return x

    x = torch.ones(3)
    mark(x)
    with branches() as seen:
        plain = branched(x)
    assert [s.source for s in seen.sites] == ["if x.sum() > 0:"]
    with branches(seen.sites[0]):
        other = branched(x)
    assert plain.tolist() == [4.0] * 3 and other.tolist() == [2.0] * 3
