"""Conformers, codecs and other encoders, as users write them."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules


def band_mask(size: Any, left: int) -> Any:
    """True where a frame may not look."""
    at = torch.arange(size)
    apart = at[:, None] - at[None, :]
    return (apart < 0) | (apart > left)


class ConvModule(nn.Module):
    def __init__(self, dim: int, kernel: int = 7) -> None:
        super().__init__()
        self.norm, self.kernel = nn.LayerNorm(dim), kernel
        self.up, self.down = nn.Conv1d(dim, 2 * dim, 1), nn.Conv1d(dim, dim, 1)
        self.depthwise, self.batch = nn.Conv1d(dim, dim, kernel, groups=dim), nn.BatchNorm1d(dim)

    def forward(self, x: Any) -> Any:
        y = F.glu(self.up(self.norm(x).transpose(1, 2)), dim=1)
        y = self.batch(self.depthwise(F.pad(y, (self.kernel - 1, 0))))
        return self.down(F.silu(y)).transpose(1, 2)


class ConformerLayer(nn.Module):
    def __init__(self, dim: int, left: int) -> None:
        super().__init__()
        self.left = left
        self.one, self.two = (
            nn.Sequential(
                nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim)
            )
            for _ in range(2)
        )
        self.norm, self.attention = nn.LayerNorm(dim), nn.MultiheadAttention(dim, 2, batch_first=True)
        self.conv, self.last = ConvModule(dim), nn.LayerNorm(dim)

    def forward(self, x: Any) -> Any:
        x = x + 0.5 * self.one(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, attn_mask=band_mask(x.shape[1], self.left), need_weights=False)[0]
        x = x + self.conv(x)
        return self.last(x + 0.5 * self.two(x))


class Conformer(nn.Module):
    def __init__(self, left: int = 8, full: bool = False) -> None:
        super().__init__()
        self.front = nn.Linear(20, 16)
        self.layers = nn.ModuleList([ConformerLayer(16, left) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        x = self.front(x)
        for layer in self.layers:
            x = layer(x)
        return x


class FullAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Rotary(nn.Module):
    """Queries and keys turned by complex numbers, attention to the last frames."""

    def __init__(self, dim: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        freqs = 1.0 / 100 ** (torch.arange(0, dim // heads, 2) / (dim // heads))
        self.register_buffer("freqs", freqs)

    def turned(self, x: Any, turn: Any) -> Any:
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * turn).flatten(-2)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        angle = torch.outer(torch.arange(t).float(), self.freqs)
        turn = torch.polar(torch.ones_like(angle), angle)
        q, k = self.turned(q, turn), self.turned(k, turn)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=~band_mask(t, 8))
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class PaddedConv(nn.Module):
    """As many frames as a whole number of strides needs, computed with math.ceil."""

    def __init__(self, a: int, b: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv, self.kernel, self.stride = nn.Conv1d(a, b, kernel, stride), kernel, stride

    def forward(self, x: Any) -> Any:
        total = self.kernel - self.stride
        frames = (x.shape[-1] - self.kernel + total) / self.stride + 1
        ideal = (math.ceil(frames) - 1) * self.stride + self.kernel - total
        return self.conv(F.pad(x, (total, ideal - x.shape[-1])))


class Codec(nn.Module):
    """An encoder, an LSTM, a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            PaddedConv(1, 8, 7), nn.ELU(), PaddedConv(8, 8, 4, 2), nn.ELU(), PaddedConv(8, 16, 8, 4)
        )
        self.lstm = nn.LSTM(16, 16, 2)
        self.up = nn.ModuleList([nn.ConvTranspose1d(16, 8, 8, 4), nn.ConvTranspose1d(8, 8, 4, 2)])
        self.last = PaddedConv(8, 1, 7)

    def encode(self, x: Any) -> Any:
        z = self.encoder(x)
        y, _ = self.lstm(z.permute(2, 0, 1))
        return z + y.permute(1, 2, 0)

    def forward(self, x: Any) -> Any:
        z = self.encode(x)
        for up in self.up:
            z = F.elu(up(z))[..., : -up.stride[0]]
        return self.last(z)


class Quantiser(Codec):
    """Code numbers of two residual codebooks."""

    def __init__(self) -> None:
        super().__init__()
        self.books = nn.ParameterList([nn.Parameter(torch.randn(24, 16)) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        rest, codes = self.encode(x).transpose(1, 2), []
        for book in self.books:
            distance = rest.pow(2).sum(-1, keepdim=True) - 2 * rest @ book.t() + book.pow(2).sum(-1)
            index = (-distance).argmax(-1)
            rest = rest - F.embedding(index, book)
            codes.append(index)
        return torch.stack(codes, 1)


class RoundedLength(nn.Module):
    """A size made an int."""

    def forward(self, x: Any) -> Any:
        n = int(math.ceil(x.shape[-1] / 4) * 4)
        x = F.pad(x, (0, n - x.shape[-1]))
        return F.avg_pool1d(x, 4)


class Temporal(nn.Module):
    """Dilated, weight-normalised, causal by cutting."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for i in range(3):
            conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(12, 12, 3, padding=2 * 2**i, dilation=2**i))
            self.layers.append(conv)

    def forward(self, x: Any) -> Any:
        for i, layer in enumerate(self.layers):
            x = F.relu(x + F.dropout(F.relu(layer(x)[..., : -2 * 2**i]), 0.2, self.training))
        return x


class StateSpace(nn.Module):
    """Convolved with a kernel as long as the recording, by transforms of all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.c = nn.Parameter(torch.rand(8)), nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, x: Any) -> Any:  # [B, 8, T]
        length = x.shape[-1]
        kernel = (self.c[:, None] * torch.exp((-self.decay + 1j)[:, None] * torch.arange(length))).real
        y = torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        return torch.fft.irfft(y, n=2 * length)[..., :length]


@torch.jit.script
def linear_recurrence(re: torch.Tensor, im: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A complex diagonal recurrence, by its parts."""
    h, g, out = torch.zeros_like(re[:, 0]), torch.zeros_like(re[:, 0]), []
    for t in range(re.shape[1]):
        h, g = a * h - b * g + re[:, t], a * g + b * h + im[:, t]
        out.append(torch.cat([h, g], -1))
    return torch.stack(out, 1)


class LinearRecurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nu, self.theta = nn.Parameter(torch.rand(6) - 1), nn.Parameter(torch.rand(6))
        self.b, self.c = nn.Linear(4, 6, bias=False, dtype=torch.complex64), nn.Linear(12, 3)

    def forward(self, x: Any) -> Any:
        turn = torch.polar(torch.exp(-torch.exp(self.nu)), self.theta)
        u = self.b(x.to(torch.complex64))
        return self.c(linear_recurrence(u.real, u.imag, turn.real, turn.imag))


class Squeezed(nn.Module):
    """Half the rate in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce, self.layer = nn.Conv1d(12, 12, 3, stride=2, padding=1), nn.GRU(12, 12, batch_first=True)
        self.restore = nn.Linear(12, 12)

    def forward(self, x: Any) -> Any:
        y = self.layer(self.reduce(x).transpose(1, 2))[0]
        y = self.restore(y.repeat_interleave(2, 1)).transpose(1, 2)
        return x + y[..., : x.shape[-1]]


FRAMES = ((1, 60, 20),)
ENCODERS: Modules = {
    "conformer": Case(Conformer, FRAMES, options={"time": {"x": 1}}),
    "full attention": Case(FullAttention, ((1, 60, 16),), refused="whole stream|look|attend|later|unbounded"),
    "rotary": Case(Rotary, ((1, 60, 16),)),
    "codec": Case(Codec, ((1, 1, 320),), (8, 9, 50, 123)),
    "quantiser": Case(Quantiser, ((1, 1, 320),), (8, 9, 50, 123)),
    "rounded length": Case(
        RoundedLength,
        ((1, 6, 80),),
        options={"time": {"x": 2}},
        refused=r"encoders\.py:\d+, in RoundedLength.*reads a size",
    ),
    "temporal": Case(Temporal, ((1, 12, 80),)),
    "state space": Case(StateSpace, ((1, 8, 80),), refused=r"encoders\.py:\d+, in StateSpace"),
    "linear recurrent": Case(LinearRecurrent, ((1, 40, 4),)),
    "squeezed": Case(Squeezed, ((1, 12, 80),)),
}
