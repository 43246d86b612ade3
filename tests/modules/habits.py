"""Habits of training code: packed sequences, loops by hand, dropout by function, phases summed up."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.modules.case import Case, Modules


class Packed(nn.Module):
    """Sequences of several lengths in no order; streams end together."""

    def __init__(self, total: bool = False) -> None:
        super().__init__()
        self.total, self.rnn, self.out = total, nn.GRU(6, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: Any, n: Any) -> Any:
        packed = pack_padded_sequence(x, n.cpu(), batch_first=True, enforce_sorted=False)
        hidden, _ = self.rnn(packed)
        total = x.shape[1] if self.total else None
        hidden, _ = pad_packed_sequence(hidden, batch_first=True, total_length=total)
        return self.out(hidden)


class PackedLast(Packed):
    """The last state only: nothing is unpacked."""

    def forward(self, x: Any, n: Any) -> Any:
        _, last = self.rnn(pack_padded_sequence(x, n, batch_first=True))
        return self.out(last[-1])


class Harmonics(nn.Module):
    """Phases summed up at the rate of samples, without a turn taken off."""

    def forward(self, pitch: Any) -> Any:
        pitch = F.interpolate(pitch.abs() * 200 + 80, scale_factor=40, mode="nearest")
        phase = 2 * math.pi * torch.cumsum(pitch * torch.arange(1, 5)[:, None] / 8000, -1)
        return torch.sin(phase).mean(1, keepdim=True)


class Pieces(nn.Module):
    """A loop that counts by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        out, at = [], 0
        while at + 16 <= x.shape[2]:
            out.append(self.linear(x[:, :, at : at + 16]))
            at += 16
        return torch.cat(out, -1)


class Endless(nn.Module):
    """A loop that ends in its middle."""

    def forward(self, x: Any) -> Any:
        state, out, t = torch.zeros_like(x[..., 0]), [], 0
        while True:
            if t >= x.shape[-1]:
                break
            state = 0.9 * state + x[..., t]
            out.append(state)
            t += 1
        return torch.stack(out, -1)


class Dropped(nn.Module):
    """A function drops in eval mode as well."""

    def forward(self, x: Any) -> Any:
        x = torch.tanh(x)
        return F.dropout(x, 0.5)


class Shifted(nn.Module):
    """Later by some frames: zeros like the first ones in front. An input shorter than that is cut like them."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Any) -> Any:
        return x - torch.cat([torch.zeros_like(x[:, : self.by]), x[:, : -self.by]], 1)


class Next(nn.Module):
    """Beside every frame the next ones; the last one is its own next."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rnn = nn.Conv1d(5, 5, 4, 2, 1), nn.LSTM(15, 5, batch_first=True)

    def forward(self, x: Any) -> Any:
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        one = torch.cat([x[:, 1:], x[:, -1:]], 1)
        two = torch.cat([x[:, 2:], x[:, -1:].expand(-1, 2, -1)], 1)
        return self.rnn(torch.cat([x, one, two[:, : x.shape[1]]], -1))[0]


class Cached(nn.Module):
    """The last frames of a call are kept for the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(5, 5, 3)
        self.register_buffer("cache", torch.zeros(1, 5, 2))

    def forward(self, x: Any) -> Any:
        x = torch.cat([self.cache, x], -1)
        self.cache = x[..., -2:].detach()
        return self.conv(x)


class Even(nn.Module):
    """Pairs of frames; a frame more where one is left over."""

    def forward(self, x: Any) -> Any:
        if x.shape[-1] % 2:
            x = F.pad(x, (0, 1))
        return F.avg_pool1d(x, 2)


class EvenBySize(nn.Module):
    """The same without a branch, and as many more as a rounded length says."""

    def forward(self, x: Any) -> Any:
        x = F.pad(x, (0, -x.shape[-1] % 2))
        return F.avg_pool1d(F.pad(x, (0, 8 + 4 * round(x.shape[-1] * 0.25) - x.shape[-1])), 2)


class Sloped(nn.Module):
    """A mask of complex numbers, by a slope that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.slope, self.conv = nn.Parameter(torch.tensor(0.25)), nn.Conv1d(66, 66, 1)

    def forward(self, x: Any) -> Any:
        z = torch.stft(x, 64, 32, window=torch.hann_window(64), return_complex=True)
        real, imag = F.prelu(self.conv(torch.cat([z.real, z.imag], 1)), self.slope).chunk(2, 1)
        return torch.view_as_real(z * torch.complex(real, imag))


class Blocks(nn.Module):
    """Attention in blocks, over a block and the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        n = t // 8
        blocks = x[:, : n * 8].view(b, n, 8, c)
        before = torch.cat([torch.zeros_like(blocks[:, :1]), blocks[:, :-1]], 1)
        seen = torch.cat([before, blocks], 2).reshape(b * n, 16, c)
        return self.attention(blocks.reshape(b * n, 8, c), seen, seen)[0].reshape(b, n * 8, c)


def lengths(frames: int) -> Any:
    frames = frames or 30
    return torch.randn(1, frames, 6), torch.tensor([frames])


TIME = {"time": {"x": 2}}
PLACE = r"modules/habits\.py:\d+, in "
HABITS: Modules = {
    "packed": Case(Packed, lengths, (1, 5, 33), {"bind": {"n": "T"}}),
    "packed, padded to a total": Case(lambda: Packed(True), lengths, (1, 5, 33), {"bind": {"n": "T"}}),
    "packed, unbound": Case(Packed, lengths, refused=PLACE + r'Packed.forward.*bind=\{"n": "T"\}'),
    "packed, the last state": Case(PackedLast, lengths, refused=PLACE + "PackedLast.forward.*packs sequences"),
    "shifted by one": Case(lambda: Shifted(1), ((1, 60, 5),), options={"time": {"x": 1}}),
    "shifted by two": Case(lambda: Shifted(2), ((1, 60, 5),), (2, 3, 17, 50), {"time": {"x": 1}}),
    "next frames": Case(Next, ((1, 60, 5),), (4, 6, 7, 17, 50), {"time": {"x": 1}}),
    "next frames, in pulses": Case(Next, ((1, 60, 5),), (4, 6, 7, 17, 50), {"time": {"x": 1}, "pulse": 16}),
    "cached": Case(Cached, ((1, 5, 60),), options=TIME, refused=PLACE + r"Cached.*torch\.cat.*between its calls"),
    "even": Case(Even, ((1, 5, 60),), options=TIME, refused=PLACE + r"Even.*depends on the length.*F\.pad\(x, \(0, -"),
    "even by size": Case(EvenBySize, ((1, 5, 60),), options=TIME),
    "sloped": Case(Sloped, ((1, 800),), (33, 64, 100, 301)),
    "blocks": Case(Blocks, ((1, 64, 16),), (8, 16, 43), {"time": {"x": 1}}),
    "harmonics": Case(Harmonics, ((1, 1, 20),), (1, 5, 13, 200), tolerance=1e-5),
    "pieces": Case(Pieces, ((1, 8, 64),), options=TIME, refused=PLACE + r"Pieces.*while.*loop over time.*\(2 for 32"),
    "endless": Case(Endless, ((1, 8, 64),), options=TIME, refused=PLACE + r"Endless.*loop over time.*\(16 for 16"),
    "dropped": Case(Dropped, ((1, 8, 60),), options=TIME, refused=PLACE + r"Dropped.*F\.dropout.*is random"),
}
