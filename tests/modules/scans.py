"""Recurrences in forms that train in parallel: chunks, running sums, logarithms; and as loops over frames."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules

CHUNK = 4


def chunked(x: Any) -> Any:
    """[B, T, C] -> [B, chunks, frames, C], the last chunk filled with zeros."""
    return F.pad(x, (0, 0, 0, -x.shape[1] % CHUNK)).reshape(x.shape[0], -1, CHUNK, x.shape[-1])


def segment_sums(a: Any) -> Any:
    """[..., n] -> [..., n, n]: of what is behind entry j, up to entry i."""
    n, total = a.shape[-1], a.cumsum(-1)
    hidden = ~torch.ones(n, n, dtype=torch.bool).tril()
    return (total[..., :, None] - total[..., None, :]).masked_fill(hidden, float("-inf"))


@torch.jit.script
def retained(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(q.shape[0], q.shape[1], q.shape[3], v.shape[3])
    out = []
    for t in range(q.shape[2]):
        state = decay * state + k[:, :, t].unsqueeze(-1) * v[:, :, t].unsqueeze(-2)
        out.append((q[:, :, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(out, 2)


class Retention(nn.Module):
    """Frame by frame, a decay a head, norms in groups."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.norm = heads, nn.Linear(width, 3 * width), nn.GroupNorm(heads, width)
        self.out = nn.Linear(width, width)
        self.register_buffer("decay", (1 - 2.0 ** (-3.0 - torch.arange(heads))).reshape(1, heads, 1, 1))

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = retained(q, k, v, self.decay).transpose(1, 2).reshape(b * t, c)
        return self.out(self.norm(y).reshape(b, t, c))


@torch.jit.script
def between_chunks(states: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """The state before every chunk."""
    state = torch.zeros_like(states[:, 0])
    out = []
    for i in range(states.shape[1]):
        out.append(state)
        state = decay[:, i].unsqueeze(-1) * state + states[:, i]
    return torch.stack(out, 1)


class Selective(nn.Module):
    """A state space whose step and projections follow from the frame; `mix` is how it is summed up."""

    def __init__(self, width: int = 4, size: int = 3) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv1d(width, width, 4, groups=width, padding=3), nn.Linear(width, width)
        self.step, self.both = nn.Linear(width, width), nn.Linear(width, 2 * size)
        self.rate, self.skip = nn.Parameter(-torch.rand(width, size) - 0.2), nn.Parameter(torch.rand(width))

    def mix(self, step: Any, b: Any, c: Any, x: Any) -> Any:
        """By running sums: what was put in, divided by what is left of it since the start."""
        left = torch.cumsum(step.unsqueeze(-1) * self.rate, 1)
        state = left.exp() * torch.cumsum((-left).exp() * (step * x).unsqueeze(-1) * b.unsqueeze(2), 1)
        return (state * c.unsqueeze(2)).sum(-1)

    def forward(self, x: Any) -> Any:
        u = F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        b, c = self.both(u).chunk(2, -1)
        return (self.mix(F.softplus(self.step(u)), b, c, u) + u * self.skip) * F.silu(self.gate(x))


class SelectiveChunks(Selective):
    """A matrix within every chunk, a loop over chunks."""

    def within(self, step: Any, b: Any, c: Any, x: Any) -> tuple[Any, ...]:
        decay, value, b, c = chunked(step * self.rate.mean(1)), chunked(step * x), chunked(b), chunked(c)
        seen = segment_sums(decay.transpose(2, 3)).exp()
        y = torch.einsum("bgln,bgmn,bgdlm,bgmd->bgld", c, b, seen, value)
        total = decay.cumsum(2)
        states = torch.einsum("bgln,bgld->bgdn", b, (total[:, :, -1:] - total).exp() * value)
        return y, states, total, c

    def mix(self, step: Any, b: Any, c: Any, x: Any) -> Any:
        y, states, total, c = self.within(step, b, c, x)
        before = between_chunks(states, total[:, :, -1].exp())
        y = y + torch.einsum("bgln,bgdn,bgld->bgld", c, before, total.exp())
        return y.flatten(1, 2)[:, : x.shape[1]]


class SelectiveMatrix(SelectiveChunks):
    """A matrix over all chunks too."""

    def mix(self, step: Any, b: Any, c: Any, x: Any) -> Any:
        y, states, total, c = self.within(step, b, c, x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        seen = segment_sums(F.pad(total[:, :, -1].transpose(1, 2), (1, 0))).exp()
        before = torch.einsum("bdij,bjdn->bidn", seen, states)[:, :-1]
        y = y + torch.einsum("bgln,bgdn,bgld->bgld", c, before, total.exp())
        return y.flatten(1, 2)[:, : x.shape[1]]


@torch.jit.script
def gated_chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    mask = torch.ones(q.shape[2], q.shape[2]).tril()
    out = []
    for i in range(q.shape[1]):
        total = g[:, i].cumsum(1)
        last, query = total[:, -1].unsqueeze(1), q[:, i] * total.exp()
        scores = (query @ (k[:, i] * (-total).exp()).transpose(1, 2)) * mask
        out.append(query @ state + scores @ v[:, i])
        state = last.transpose(1, 2).exp() * state + (k[:, i] * (last - total).exp()).transpose(1, 2) @ v[:, i]
    return torch.stack(out, 1)


@torch.jit.script
def delta_chunks(
    q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, u: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    mask = torch.ones(q.shape[2], q.shape[2]).tril()
    out = []
    for i in range(q.shape[1]):
        new = u[:, i] - w[:, i] @ state
        out.append(q[:, i] @ state + ((q[:, i] @ k[:, i].transpose(1, 2)) * mask) @ new)
        state = state + k[:, i].transpose(1, 2) @ new
    return torch.stack(out, 1)


class LinearAttention(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.qkv, self.gate, self.rate = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.mix(q, k, v, F.logsigmoid(self.gate(x)), self.rate(x).sigmoid())

    def mix(self, q: Any, k: Any, v: Any, g: Any, rate: Any) -> Any:
        """Gated, in chunks."""
        state = torch.zeros(q.shape[0], q.shape[2], v.shape[2])
        return gated_chunks(chunked(q), chunked(k), chunked(v), chunked(g), state).flatten(1, 2)[:, : q.shape[1]]


class GatedSums(LinearAttention):
    """Gated, by a running sum of outer products."""

    def mix(self, q: Any, k: Any, v: Any, g: Any, rate: Any) -> Any:
        total = g.cumsum(1)
        states = ((k * (-total).exp()).unsqueeze(-1) * v.unsqueeze(-2)).cumsum(1)
        return ((q * total.exp()).unsqueeze(-2) @ states).squeeze(-2)


class GatedMatrix(LinearAttention):
    """Gated, by scores of all frames."""

    def mix(self, q: Any, k: Any, v: Any, g: Any, rate: Any) -> Any:
        total = g.cumsum(1)
        return ((q * total.exp()) @ (k * (-total).exp()).transpose(1, 2)).tril() @ v


class Delta(LinearAttention):
    """The delta rule in chunks: a triangular matrix inverted row by row, in place."""

    def mix(self, q: Any, k: Any, v: Any, g: Any, rate: Any) -> Any:
        k = F.normalize(k, dim=-1)
        q, value, scaled, k = chunked(q), chunked(v * rate), chunked(k * rate), chunked(k)
        a = -(scaled @ k.transpose(-1, -2)).masked_fill(torch.ones(CHUNK, CHUNK, dtype=torch.bool).triu(), 0)
        for i in range(1, CHUNK):
            a[..., i, :i] = a[..., i, :i].clone() + (a[..., i, :i, None].clone() * a[..., :i, :i].clone()).sum(-2)
        a = a + torch.eye(CHUNK)
        state = torch.zeros(q.shape[0], q.shape[3], v.shape[2])
        return delta_chunks(q, k, a @ scaled, a @ value, state).flatten(1, 2)[:, : v.shape[1]]


class Doubled(nn.Module):
    """As many steps as the length has bits."""

    def forward(self, x: Any) -> Any:
        decay, step = torch.full_like(x, 0.97), 1
        while step < x.shape[1]:
            before = F.pad(x, (0, 0, step, 0))[:, :-step]
            x, decay = decay * before + x, decay * F.pad(decay, (0, 0, step, 0), value=1.0)[:, :-step]
            step *= 2
        return x


class Suffix(LinearAttention):
    """What is left of the decay until the end."""

    def mix(self, q: Any, k: Any, v: Any, g: Any, rate: Any) -> Any:
        left = g.flip(1).cumsum(1).flip(1).exp()
        return (k * v * left).cumsum(1) / (left + 1e-12)


FRAMES = ((1, 24, 4),)
TIME = {"time": {"x": 1}}
LENGTHS = (1, 2, 3, 4, 5, 9, 24)
SCANS: Modules = {
    "retention, frame by frame": Case(Retention, ((1, 24, 8),), LENGTHS, TIME),
    "selective, running sums": Case(Selective, FRAMES, LENGTHS, TIME),
    "selective, chunks": Case(SelectiveChunks, FRAMES, LENGTHS, TIME),
    "selective, matrix of chunks": Case(SelectiveMatrix, FRAMES, options=TIME, refused="unbounded look-back"),
    "selective, matrix of chunks, growing": Case(SelectiveMatrix, FRAMES, LENGTHS, TIME | {"unbounded": "grow"}),
    "gated, chunks": Case(LinearAttention, FRAMES, LENGTHS, TIME),
    "gated, running sums": Case(GatedSums, FRAMES, LENGTHS, TIME),
    "gated, matrix": Case(GatedMatrix, FRAMES, options=TIME, refused="unbounded look-back"),
    "gated, matrix, growing": Case(GatedMatrix, FRAMES, LENGTHS, TIME | {"unbounded": "grow"}),
    "delta, chunks": Case(Delta, FRAMES, LENGTHS, TIME),
    "doubled steps": Case(Doubled, FRAMES, options=TIME, refused="is a loop over time: exported, it is unrolled"),
    "suffix sums": Case(Suffix, FRAMES, options=TIME, refused="backwards over the whole stream"),
}
