"""Codecs: sound to codes and back, quantisers, companding, lapped transforms."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules


class Causal(nn.Module):
    """A convolution padded in front, and behind so that the last stride is whole."""

    def __init__(self, a: int, b: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv, self.kernel, self.stride = nn.Conv1d(a, b, kernel, stride), kernel, stride

    def forward(self, x: Any) -> Any:
        total = self.kernel - self.stride
        frames = (x.shape[-1] - self.kernel + total) / self.stride + 1
        extra = (math.ceil(frames) - 1) * self.stride + (self.kernel - total) - x.shape[-1]
        return self.conv(F.pad(x, (total, extra)))


class Encoder(nn.Module):
    def __init__(self, d: int = 12) -> None:
        super().__init__()
        self.net = nn.Sequential(
            Causal(1, 8, 7), nn.ELU(), Causal(8, 12, 4, 2), nn.ELU(), Causal(12, d, 8, 4), nn.ELU(), Causal(d, d, 3)
        )

    def forward(self, x: Any) -> Any:
        return self.net(x)


class Quantiser(nn.Module):
    """Residual vector quantisation: the nearest entry, again of what is left."""

    def __init__(self, d: int = 12, levels: int = 3, size: int = 16) -> None:
        super().__init__()
        self.books = nn.ModuleList([nn.Embedding(size, d) for _ in range(levels)])

    def encode(self, z: Any) -> Any:
        left, codes = z.transpose(1, 2), []
        for book in self.books:
            distance = -(left.pow(2).sum(-1, keepdim=True) - 2 * left @ book.weight.t() + book.weight.pow(2).sum(-1))
            code = distance.max(dim=-1).indices
            left = left - book(code)
            codes.append(code)
        return torch.stack(codes)

    def decode(self, codes: Any) -> Any:
        total = torch.zeros((), device=codes.device)
        for code, book in zip(codes, self.books, strict=True):
            total = total + book(code)
        return total.transpose(1, 2)


class ToCodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.quantiser = Encoder(), Quantiser()

    def forward(self, wave: Any) -> Any:
        return self.quantiser.encode(self.encoder(wave))


class FromCodes(nn.Module):
    """Codes in; transposed convolutions cut to be causal."""

    def __init__(self) -> None:
        super().__init__()
        self.quantiser, self.lstm = Quantiser(), nn.LSTM(12, 12, 2)
        self.ups = nn.ModuleList([nn.ConvTranspose1d(12, 8, 8, 4), nn.ConvTranspose1d(8, 4, 4, 2)])
        self.last = Causal(4, 1, 7)

    def forward(self, codes: Any) -> Any:  # [levels, B, T]
        z = self.quantiser.decode(codes)
        y = z.permute(2, 0, 1)
        z = (self.lstm(y)[0] + y).permute(1, 2, 0)
        for up in self.ups:
            z = up(F.elu(z))[..., : -up.stride[0]]
        return self.last(F.elu(z))


class Both(nn.Module):
    """There and back, the quantised frames passed straight through; several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.quantiser = Encoder(), Quantiser()
        self.decoder = nn.Sequential(nn.ConvTranspose1d(12, 8, 8, 8), nn.ELU(), Causal(8, 1, 7))

    def forward(self, wave: Any) -> Any:
        z = self.encoder(wave)
        codes = self.quantiser.encode(z)
        quantised = z + (self.quantiser.decode(codes) - z).detach()
        sound = self.decoder(quantised)[..., : wave.shape[-1]]
        return {"audio": sound, "codes": codes.permute(1, 0, 2), "latent": z}


class Scalar(nn.Module):
    """Every channel rounded to a few levels, one code of them all."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.down = Encoder(), nn.Linear(12, 3)
        self.register_buffer("levels", torch.tensor([5, 5, 3]))
        self.register_buffer("basis", torch.cumprod(torch.tensor([1, 5, 5]), 0))

    def forward(self, wave: Any) -> Any:
        z = self.down(self.encoder(wave).transpose(1, 2))
        half = self.levels // 2
        z = torch.tanh(z) * half
        z = z + (z.round() - z).detach()
        return ((z + half) * self.basis).sum(-1).to(torch.int32)


class Normed(nn.Module):
    """Codes by cosine distance in a small space, periodic activations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.alpha = nn.Conv1d(1, 12, 16, stride=8, padding=4), nn.Parameter(torch.ones(1, 12, 1))
        self.down, self.book, self.up = nn.Conv1d(12, 4, 1), nn.Embedding(32, 4), nn.Conv1d(4, 12, 1)

    def forward(self, wave: Any) -> Any:
        z = self.conv(wave)
        z = z + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * z).pow(2)
        e = self.down(z)
        b, d, t = e.shape
        flat = F.normalize(e.permute(0, 2, 1).reshape(b * t, d))
        book = F.normalize(self.book.weight)
        code = torch.cdist(flat, book).argmin(1).reshape(b, t)
        return code, self.up(F.embedding(code, self.book.weight).transpose(1, 2))


class Companded(nn.Module):
    """Samples to 256 levels, one hot, a causal convolution, logits and the likeliest sample."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(32, 32, 2, dilation=4)

    def forward(self, x: Any) -> Any:
        y = torch.sign(x) * torch.log1p(31 * torch.abs(x).clamp(max=1)) / math.log1p(31)
        code = ((y + 1) / 2 * 31 + 0.5).long()
        hot = F.one_hot(code, 32).float().transpose(1, 2)
        logits = self.conv(F.pad(hot, (4, 0)))
        best = logits.argmax(1).float() / 31 * 2 - 1
        return logits, torch.sign(best) * (torch.pow(torch.tensor(32.0), best.abs()) - 1) / 31


class Lapped(nn.Module):
    """A lapped cosine transform, coarser coefficients, and its inverse by overlapping halves."""

    def __init__(self, n: int = 16) -> None:
        super().__init__()
        self.n = n
        k, t = torch.arange(n).float(), torch.arange(2 * n).float()
        self.register_buffer("basis", torch.cos(math.pi / n * (t[:, None] + 0.5 + n / 2) * (k + 0.5)))
        self.register_buffer("window", torch.sin(math.pi / (2 * n) * (t + 0.5)))

    def forward(self, x: Any) -> Any:
        n = self.n
        frames = F.pad(x, (n, n)).unfold(-1, 2 * n, n) * self.window
        bands = torch.round(frames @ self.basis * 4) / 4
        back = bands @ self.basis.t() * self.window * (2 / n)
        return (back[:, :-1, n:] + back[:, 1:, :n]).flatten(1)


class TwoStates(nn.Module):
    """Decoder with its state passed in and out as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 12, batch_first=True)

    def forward(self, z: Any, state: Any) -> Any:
        y, state = self.lstm(z, state)
        return y, state


def codes(n: int) -> Any:
    return torch.randint(0, 16, (3, 1, n or 40))


CODERS: Modules = {
    "to codes": Case(ToCodes, ((1, 1, 800),), (8, 40, 333)),
    "from codes": Case(FromCodes, codes, (1, 5, 17), options={"time": {"codes": 2}}),
    "both": Case(Both, ((1, 1, 800),), (8, 40, 333)),
    "scalar": Case(Scalar, ((1, 1, 800),), (8, 40, 333)),
    "normed": Case(Normed, ((1, 1, 800),), (8, 40, 333)),
    "companded": Case(Companded, ((1, 400),)),
    "lapped": Case(Lapped, ((1, 800),), (16, 40, 333)),
    "two states": Case(
        TwoStates, lambda n: (torch.randn(1, n or 40, 12), (torch.zeros(1, 1, 12), torch.zeros(1, 1, 12)))
    ),
}
