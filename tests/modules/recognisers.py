"""Encoders: conformers, transformers, convolutions, state spaces."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules


class Feed(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.SiLU(), nn.Dropout(0.1), nn.Linear(2 * d, d))

    def forward(self, x: Any) -> Any:
        return self.net(x)


class Attention(nn.Module):
    """Heads by hand; the mask is made in forward."""

    def __init__(self, d: int, heads: int, left: int | None, right: int, chunk: int | None = None) -> None:
        super().__init__()
        self.heads, self.left, self.right, self.chunk = heads, left, right, chunk
        self.qkv, self.out, self.norm = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.LayerNorm(d)

    def mask(self, t: Any, device: Any) -> Any:
        i = torch.arange(t, device=device)
        if self.chunk is not None:
            i = torch.div(i, self.chunk, rounding_mode="floor")
        gap = i[None, :] - i[:, None]
        keep = gap <= self.right
        return keep if self.left is None else keep & (gap >= -self.left)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        scores = scores.masked_fill(~self.mask(t, x.device), float("-inf"))
        y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Convolution(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Conv1d(d, 2 * d, 1), nn.Conv1d(d, d, 1)
        self.depth, self.bn = nn.Conv1d(d, d, 7, groups=d), nn.BatchNorm1d(d)

    def forward(self, x: Any) -> Any:
        y = F.glu(self.up(self.norm(x).transpose(1, 2)), dim=1)
        return self.down(F.silu(self.bn(self.depth(F.pad(y, (6, 0)))))).transpose(1, 2)


class Conformer(nn.Module):
    """Every fourth frame by 2D convolutions, blocks with attention in chunks; lengths beside the features."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.sub = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1), nn.ReLU())
        self.into = nn.Linear(4 * 5, d)
        self.blocks = nn.ModuleList(
            [nn.ModuleList([Feed(d), Attention(d, 2, 2, 0, chunk=4), Convolution(d), Feed(d)]) for _ in range(2)]
        )
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 11)

    def forward(self, x: Any, lengths: Any) -> Any:
        y = self.sub(x.unsqueeze(1))
        b, c, t, f = y.shape
        y = self.into(y.transpose(1, 2).reshape(b, t, c * f))
        lengths = torch.div(torch.div(lengths + 1, 2, rounding_mode="floor") + 1, 2, rounding_mode="floor")
        for one, attention, conv, two in self.blocks:
            y = y + 0.5 * one(y)
            y = y + attention(y)
            y = y + conv(y)
            y = y + 0.5 * two(y)
        return self.head(self.norm(y)).log_softmax(-1), lengths


class Positions(nn.Module):
    """A table of sines, made in __init__, cut in forward."""

    def __init__(self, d: int = 16, most: int = 2000) -> None:
        super().__init__()
        place = torch.arange(most).unsqueeze(1)
        rate = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        table = torch.zeros(1, most, d)
        table[0, :, 0::2], table[0, :, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
        self.register_buffer("table", table)
        self.attention, self.feed = Attention(d, 2, 8, 0), Feed(d)

    def forward(self, x: Any) -> Any:
        x = x + self.table[:, : x.size(1)]
        x = x + self.attention(x)
        return x + self.feed(x)


def rotated(x: Any, angles: Any) -> Any:
    """Rotary positions by complex products."""
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)).flatten(-2).type_as(x)


class Rotary(nn.Module):
    """Rotary positions as complex numbers, attention with torch's own function and a window."""

    def __init__(self, d: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.register_buffer("rates", 1.0 / 100 ** (torch.arange(0, d // heads, 2) / (d // heads)), persistent=False)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        angles = torch.outer(torch.arange(t, device=x.device).float(), self.rates)
        mask = torch.ones(t, t, dtype=torch.bool).tril().triu(-8)
        y = F.scaled_dot_product_attention(rotated(q, angles), rotated(k, angles), v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Stock(nn.Module):
    """torch's own encoder layers with a mask, as a user writes them."""

    def __init__(self, window: int | None) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.encoder, self.window = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), window

    def forward(self, x: Any) -> Any:
        mask = torch.triu(torch.full((x.size(1), x.size(1)), float("-inf")), diagonal=1)
        if self.window is not None:
            mask = mask + torch.tril(torch.full_like(mask, float("-inf")), diagonal=-self.window)
        return self.encoder(x, mask=mask)


class Separable(nn.Module):
    """Depthwise separable convolutions with batch norm and residuals, CTC."""

    def __init__(self) -> None:
        super().__init__()

        def block(kernel: int) -> Any:
            return nn.Sequential(
                nn.Conv1d(16, 16, kernel, padding=kernel // 2, groups=16, bias=False),
                nn.Conv1d(16, 16, 1, bias=False),
                nn.BatchNorm1d(16, eps=1e-3),
            )

        self.first = nn.Conv1d(20, 16, 5, stride=2, padding=2)
        self.blocks = nn.ModuleList([block(k) for k in (5, 9, 13)])
        self.out = nn.Conv1d(16, 9, 1)

    def forward(self, features: Any) -> Any:
        x = F.relu(self.first(features))
        for block in self.blocks:
            x = F.relu(block(x) + x)
        return F.log_softmax(self.out(x), dim=1).permute(2, 0, 1)


class Squeezed(nn.Module):
    """Gains from the mean over the whole recording, applied to every frame."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gain = nn.Conv1d(20, 16, 3, padding=1), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        return x * torch.sigmoid(self.gain(x.mean(-1)))[..., None]


class Speaker(nn.Module):
    """Dilated convolutions in groups, attention over time with mean and deviation, an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(20, 32, 5, padding=2)
        self.groups = nn.ModuleList([nn.Conv1d(8, 8, 3, padding=2, dilation=2) for _ in range(3)])
        self.attend = nn.Sequential(nn.Conv1d(96, 16, 1), nn.Tanh(), nn.Conv1d(16, 32, 1))
        self.out = nn.Linear(64, 12)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.first(x))
        parts = torch.split(x, 8, dim=1)
        done, y = [parts[0]], parts[0]
        for conv, part in zip(self.groups, parts[1:], strict=True):
            y = F.relu(conv(y + part))
            done.append(y)
        x = torch.cat(done, 1) + x
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True, unbiased=False)
        context = torch.cat([x, mean.expand_as(x), std.expand_as(x)], 1)
        w = torch.softmax(self.attend(context), -1)
        mean = (x * w).sum(-1)
        std = torch.sqrt(((x**2 * w).sum(-1) - mean**2).clamp(min=1e-6))
        return F.normalize(self.out(torch.cat([mean, std], 1)), dim=-1)


class XVector(nn.Module):
    """Time delay layers, mean and deviation over time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(20, 16, 5), nn.Conv1d(16, 16, 3, dilation=2)])
        self.out = nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.out(torch.cat([x.mean(2), x.std(2)], 1))


class Raw(nn.Module):
    """Strided convolutions on samples, normalised over channels; a grouped convolution for positions."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(1, 16, 10, 5), nn.Conv1d(16, 16, 3, 2), nn.Conv1d(16, 16, 2, 2)])
        self.group = nn.GroupNorm(16, 16) if norm == "group" else None
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(3)])
        self.position = nn.utils.parametrizations.weight_norm(nn.Conv1d(16, 16, 8, padding=4, groups=4), dim=2)

    def forward(self, x: Any) -> Any:
        x = x[:, None]
        for i, conv in enumerate(self.convs):
            x = conv(x)
            if self.group is None:
                x = self.norms[i](x.transpose(-2, -1)).transpose(-2, -1)
            elif i == 0:
                x = self.group(x)
            x = F.gelu(x)
        return (x + F.gelu(self.position(x)[:, :, :-1])).transpose(1, 2)


class Prediction(nn.Module):
    """Tokens in: an embedding after a start token, an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(30, 12, padding_idx=0), nn.LSTM(12, 16, 2, batch_first=True)

    def forward(self, tokens: Any) -> Any:
        tokens = F.pad(tokens, (1, 0), value=0)
        y, (h, c) = self.lstm(self.embed(tokens))
        return y, h, c


@torch.jit.script
def scanned(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(b[:, 0])
    out = torch.jit.annotate(list[torch.Tensor], [])
    for t in range(a.size(1)):
        state = a[:, t] * state + b[:, t]
        out.append((state * c[:, t].unsqueeze(1)).sum(-1))
    return torch.stack(out, 1)


class StateSpace(nn.Module):
    """A selective state space, scanned by a script."""

    def __init__(self, d: int = 8, n: int = 4) -> None:
        super().__init__()
        self.n, self.into, self.out = n, nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.conv, self.parts = nn.Conv1d(d, d, 4, groups=d, padding=3), nn.Linear(d, 1 + 2 * n)
        self.step, self.rates = nn.Linear(1, d), nn.Parameter(torch.log(torch.arange(1, n + 1).float()).repeat(d, 1))

    def forward(self, x: Any) -> Any:
        t = x.shape[1]
        y, gate = self.into(x).chunk(2, -1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., :t]).transpose(1, 2)
        delta, b, c = self.parts(y).split([1, self.n, self.n], -1)
        delta = F.softplus(self.step(delta))
        decay = torch.exp(delta.unsqueeze(-1) * -torch.exp(self.rates))
        drive = (delta * y).unsqueeze(-1) * b.unsqueeze(2)
        return self.out(scanned(decay, drive, c) * F.silu(gate))


class LongFilter(nn.Module):
    """A filter as long as the recording, by transforms of the whole of it."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.rand(8))

    def forward(self, x: Any) -> Any:  # [B, 8, T]
        size = x.shape[-1]
        kernel = torch.exp(-self.rate[:, None] * torch.arange(size))
        y = torch.fft.irfft(torch.fft.rfft(x, n=2 * size) * torch.fft.rfft(kernel, n=2 * size), n=2 * size)
        return y[..., :size]


class Pyramid(nn.Module):
    """Pairs of frames joined, a layer at half the rate, repeated back, added."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.LSTM(32, 16, batch_first=True), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        odd = t % 2
        y = F.pad(x, (0, 0, 0, odd)).reshape(b, (t + odd) // 2, 2 * d)
        y = self.low(y)[0].repeat_interleave(2, 1)[:, :t]
        return x + self.high(y)


class Masked(nn.Module):
    """Frames behind the length are set to zero; the length is an argument of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(10, 8, 3, padding=1)

    def forward(self, *, features: Any, feature_lengths: Any, scale: float = 1.0) -> Any:
        mask = torch.arange(features.size(2))[None] < feature_lengths[:, None]
        return self.conv(features * scale * mask[:, None]) * mask[:, None]


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


def with_length(n: int) -> Any:
    return torch.randn(1, n or 64, 20), torch.tensor([n or 64])


def by_name(n: int) -> Any:
    return {"features": torch.randn(1, 10, n or 64), "feature_lengths": torch.tensor([n or 64]), "scale": 2.0}


RECOGNISERS: Modules = {
    "conformer": Case(Conformer, with_length, (1, 5, 33), large=True),
    "positions": Case(Positions, ((1, 64, 16),)),
    "rotary": Case(Rotary, ((1, 64, 16),)),
    "stock, window": Case(lambda: Stock(6), ((1, 64, 16),), large=True),
    "stock, all the past": Case(lambda: Stock(None), ((1, 64, 16),), refused="unbounded"),
    "stock, growing": Case(lambda: Stock(None), ((1, 64, 16),), options={"unbounded": "grow"}, large=True),
    "separable": Case(Separable, ((1, 20, 64),)),
    "squeezed": Case(Squeezed, ((1, 20, 64),), refused="whole"),
    "speaker": Case(Speaker, ((1, 20, 64),), refused="whole"),
    "x-vector": Case(XVector, ((1, 20, 64),), (10, 17, 50)),
    "raw, layer norm": Case(lambda: Raw("layer"), ((1, 1000),), (60, 200, 333)),
    "raw, group norm": Case(lambda: Raw("group"), ((1, 1000),), refused="whole"),
    "prediction": Case(Prediction, lambda n: torch.randint(0, 30, (1, n or 20))),
    "state space": Case(StateSpace, ((1, 64, 8),)),
    "long filter": Case(
        LongFilter, ((1, 8, 64),), refused=r"modules/recognisers\.py:\d+, in LongFilter.*Fourier transform"
    ),
    "pyramid": Case(Pyramid, ((1, 64, 16),)),
    "masked by length": Case(Masked, by_name),
    "attention to all": Case(Whole, ((1, 64, 16),), refused="looks ahead without bound"),
}
