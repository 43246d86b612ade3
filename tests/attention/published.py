"""Attention as published models write it: decays, sinks, memory, first frames, chunks by reshape, masks of all kinds.

proto = exported("legacy", "sink_logit")      # x [B, T, 8] -> y
"""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from functools import cache

import onnx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attention.written import CHUNK, WIDTH, Net, Written, band, chunks, export

LOW = torch.finfo(torch.float32).min
MEMORY = 3


class Layers(Net):
    """With torch's own layers, which keep memory of their own."""

    def __init__(self, forward: object) -> None:
        super().__init__(forward)  # type: ignore[arg-type]
        self.plain = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.learned = nn.MultiheadAttention(WIDTH, 2, batch_first=True, add_bias_kv=True)
        self.zeros = nn.MultiheadAttention(WIDTH, 2, batch_first=True, add_zero_attn=True)


def behind(x: Tensor) -> Tensor:
    """How far column j lies behind row i, [T, T]."""
    at = torch.arange(x.shape[1])
    return at[:, None] - at[None]


def seen(m: Net, x: Tensor, shown: Tensor, low: float = -math.inf) -> Tensor:
    return m.scores(x).masked_fill(~shown, low)


def softened(m: Net, x: Tensor, scores: Tensor) -> Tensor:
    return m.joined(torch.softmax(scores, -1) @ m.values(x))


def past(x: Tensor, count: int = 5) -> Tensor:
    d = behind(x)
    return (d >= 0) & (d < count)


# ---- a decay by distance, instead of a softmax or on top of it


def decay_window(m: Net, x: Tensor) -> Tensor:
    d = behind(x)
    return m.joined((m.scores(x) * torch.where((d >= 0) & (d < 5), 0.8 ** d.clamp(min=0), 0)) @ m.values(x))


def decay_by_head(m: Net, x: Tensor) -> Tensor:
    d = behind(x).float()
    decay = torch.tensor([0.8, 0.9])[:, None, None] ** d.clamp(min=0)
    return m.joined((m.scores(x) * torch.where(past(x), decay, torch.zeros(()))) @ m.values(x))


def decay_by_exp(m: Net, x: Tensor) -> Tensor:
    return m.joined((m.scores(x) * torch.exp(behind(x).clamp(min=0) * math.log(0.8)) * past(x)) @ m.values(x))


def decay_to_nothing(m: Net, x: Tensor) -> Tensor:
    """Without a window: 0.3 to the power of some 87 is zero in a float."""
    d = behind(x)
    return m.joined((m.scores(x) * torch.where(d >= 0, 0.3 ** d.clamp(min=0), 0)) @ m.values(x))


def retention(m: Net, x: Tensor) -> Tensor:
    """Normalised as RetNet's parallel form is."""
    d = behind(x).float()
    rate = torch.log(1 - 2 ** (-5 - torch.arange(2, dtype=torch.float)))[:, None, None]
    mask = torch.nan_to_num(torch.exp(torch.where(past(x), d, torch.full_like(d, math.inf)) * rate))
    weights = m.scores(x) * (mask / mask.sum(-1, keepdim=True).sqrt())
    return m.joined(weights / weights.abs().sum(-1, keepdim=True).clamp(min=1) @ m.values(x))


# ---- columns beside those of the frames


def sink(m: Net, scores: Tensor) -> Tensor:
    return m.slopes.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)


def sink_logit(m: Net, x: Tensor) -> Tensor:
    s = seen(m, x, band(x))
    return m.joined(torch.cat([s, sink(m, s)], -1).softmax(-1)[..., :-1] @ m.values(x))


def sink_in_front(m: Net, x: Tensor) -> Tensor:
    """Rows that look at the sink alone, too."""
    s = seen(m, x, (behind(x) > 0) & (behind(x) < 4))
    return m.joined(torch.cat([sink(m, s), s], -1).softmax(-1)[..., 1:] @ m.values(x))


def sink_less_the_largest(m: Net, x: Tensor) -> Tensor:
    s = m.scores(x) + torch.zeros(x.shape[1], x.shape[1]).masked_fill(~band(x, 5, 0), LOW)
    both = torch.cat([s, sink(m, s)], -1)
    both = both - both.max(dim=-1, keepdim=True).values
    return m.joined(both.softmax(-1)[..., :-1] @ m.values(x))


def sink_of_zero(m: Net, x: Tensor) -> Tensor:
    return m.joined(F.pad(seen(m, x, band(x)), (0, 1)).softmax(-1)[..., :-1] @ m.values(x))


def one_more(m: Net, x: Tensor) -> Tensor:
    e = torch.exp(m.scores(x)) * band(x)
    return m.joined(e / (1 + e.sum(-1, keepdim=True)) @ m.values(x))


def zero_key(m: Net, x: Tensor) -> Tensor:
    v = m.values(x)
    return m.joined(F.pad(seen(m, x, band(x)), (0, 1)).softmax(-1) @ torch.cat([v, torch.zeros_like(v[:, :, :1])], 2))


def memory(m: Net, x: Tensor, front: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of learned tokens and frames, their values, and the mask."""
    own = m.q.weight[:MEMORY].reshape(1, MEMORY, WIDTH).expand(x.shape[0], -1, -1)
    k, v = (m.heads(torch.cat([own, y] if front else [y, own], 1)) for y in (m.k(x), m.v(x)))
    shown = F.pad(band(x), (MEMORY, 0) if front else (0, MEMORY), value=True)
    return m.heads(m.q(x)) @ k.transpose(2, 3), v, shown


def memory_in_front(m: Net, x: Tensor) -> Tensor:
    s, v, shown = memory(m, x, True)
    return m.joined(torch.softmax(s.masked_fill(~shown, -math.inf), -1) @ v)


def memory_behind(m: Net, x: Tensor) -> Tensor:
    s, v, shown = memory(m, x, False)
    return m.joined(torch.softmax(s.masked_fill(~shown, -math.inf), -1) @ v)


def memory_by_place(m: Net, x: Tensor) -> Tensor:
    s, v, _ = memory(m, x, True)
    i, j = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1] + MEMORY)[None] - MEMORY
    return m.joined(torch.softmax(s.masked_fill(~((j < 0) | ((i - j >= 0) & (i - j <= 5))), -math.inf), -1) @ v)


def memory_apart(m: Net, x: Tensor) -> Tensor:
    own = m.heads(m.q.weight[:MEMORY].reshape(1, MEMORY, WIDTH).expand(x.shape[0], -1, -1))
    s = torch.cat([m.heads(m.q(x)) @ own.transpose(2, 3), seen(m, x, band(x))], -1).softmax(-1)
    return m.joined(s[..., :MEMORY] @ own + s[..., MEMORY:] @ m.values(x))


# ---- the first frames of the stream, and a window


def first_frames(m: Net, x: Tensor) -> Tensor:
    d, j = behind(x), torch.arange(x.shape[1])[None]
    return softened(m, x, seen(m, x, ((d < 5) | (j < 3)) & (d >= 0)))


def first_frames_ahead(m: Net, x: Tensor) -> Tensor:
    d, j = behind(x), torch.arange(x.shape[1])[None]
    return softened(m, x, seen(m, x, (d.abs() < 4) | (j < 6)))


def first_frames_of_the_past(m: Net, x: Tensor) -> Tensor:
    """The window looks ahead, at no more of the first frames than that."""
    d, j = behind(x), torch.arange(x.shape[1])[None]
    return softened(m, x, seen(m, x, ((d < 4) & (d >= -1)) | ((j < 3) & (d >= 0))))


def first_frames_summed(m: Net, x: Tensor) -> Tensor:
    d, j = behind(x), torch.arange(x.shape[1])[None]
    return m.joined((m.scores(x) * (((d < 5) | (j < 3)) & (d >= 0))) @ m.values(x))


def first_frames_and_sink(m: Net, x: Tensor) -> Tensor:
    d, j = behind(x), torch.arange(x.shape[1])[None]
    s = seen(m, x, ((d < 5) | (j < 2)) & (d >= 0))
    return m.joined(torch.cat([s, sink(m, s)], -1).softmax(-1)[..., :-1] @ m.values(x))


# ---- windows


def clamped(m: Net, x: Tensor, behind_last: bool) -> Tensor:
    """A centred window cut at both ends."""
    t, i = x.shape[1], torch.arange(x.shape[1])
    high, low, j = (i + 3).clamp(max=t if behind_last else t - 1), (i - 4).clamp(min=0), i[None]
    below = j < high[:, None] if behind_last else j <= high[:, None]
    return softened(m, x, seen(m, x, (j >= low[:, None]) & below))


def picked(m: Net, x: Tensor) -> Tensor:
    """Keys and values picked by places, the last frame as often as the window is cut."""
    at = (torch.arange(x.shape[1])[:, None] + torch.arange(-4, 4)[None]).clamp(0, x.shape[1] - 1)
    s = (m.q(x)[:, :, None] * m.k(x)[:, at]).sum(-1)
    return (s.softmax(-1)[..., None] * m.v(x)[:, at]).sum(2)


def picked_inside(m: Net, x: Tensor) -> Tensor:
    """The same without what lies outside the stream."""
    t = x.shape[1]
    at = torch.arange(t)[:, None] + torch.arange(-4, 4)[None]
    inside, at = (at >= 0) & (at < t), at.clamp(0, t - 1)
    s = (m.q(x)[:, :, None] * m.k(x)[:, at]).sum(-1).masked_fill(~inside, -math.inf)
    return (s.softmax(-1)[..., None] * m.v(x)[:, at]).sum(2)


def unfolded(m: Net, x: Tensor) -> Tensor:
    """Windows of keys and values by `unfold`, centred."""
    k, v = (F.pad(part(x), (0, 0, 4, 2)).unfold(1, 7, 1) for part in (m.k, m.v))
    at = torch.arange(x.shape[1])[:, None] + torch.arange(-4, 3)[None]
    s = torch.einsum("btc,btcw->btw", m.q(x), k).masked_fill((at < 0) | (at >= x.shape[1]), -math.inf)
    return torch.einsum("btw,btcw->btc", s.softmax(-1), v)


def blocks(m: Net, x: Tensor, by: str) -> Tensor:
    """Chunks by reshape; what pads the last one is masked."""
    t = x.shape[1]
    n = (t + CHUNK - 1) // CHUNK
    y = F.pad(x, (0, 0, 0, n * CHUNK - t))
    if by == "ones":
        outside = F.pad(torch.ones(t), (0, n * CHUNK - t)).reshape(n, 1, CHUNK) == 0
    elif by == "places":
        outside = torch.arange(n * CHUNK).reshape(n, 1, CHUNK) >= t
    else:
        outside = ~torch.ones(CHUNK, CHUNK).tril().bool()
    q, k, v = (part(y).reshape(-1, n, CHUNK, WIDTH) for part in (m.q, m.k, m.v))
    s = (q @ k.transpose(2, 3)).masked_fill(outside, -math.inf)
    return (s.softmax(-1) @ v).reshape(-1, n * CHUNK, WIDTH)[:, :t]


def chunk_ends(m: Net, x: Tensor) -> Tensor:
    t, i = x.shape[1], torch.arange(x.shape[1])
    end, start = ((i // CHUNK + 1) * CHUNK).clamp(max=t), (i // CHUNK * CHUNK - 8).clamp(min=0)
    return softened(m, x, seen(m, x, (i[None] < end[:, None]) & (i[None] >= start[:, None])))


# ---- biases, scores, weights


def alibi(m: Net, x: Tensor) -> Tensor:
    return softened(m, x, (m.scores(x) - m.slopes[:, None, None] * behind(x).abs()).masked_fill(~past(x), -math.inf))


def cosine(m: Net, x: Tensor) -> Tensor:
    q, k = F.normalize(m.heads(m.q(x)), dim=-1), F.normalize(m.heads(m.k(x)), dim=-1)
    s = q @ k.transpose(2, 3) * m.slopes.reshape(-1, 1, 1).clamp(max=math.log(100)).exp()
    return softened(m, x, s.masked_fill(~band(x), -math.inf))


def forgetting(m: Net, x: Tensor) -> Tensor:
    f = F.logsigmoid(m.k(x)[..., :2]).transpose(1, 2).cumsum(-1)
    return softened(m, x, (m.scores(x) + f[..., :, None] - f[..., None, :]).masked_fill(~past(x), -math.inf))


def buckets(m: Net, x: Tensor) -> Tensor:
    table = m.positions.weight.reshape(-1)[:22].reshape(11, 2)
    return softened(m, x, (m.scores(x) + table[behind(x).clamp(-5, 5) + 5].permute(2, 0, 1)).masked_fill(~band(x), LOW))


def mixed_heads(m: Net, x: Tensor) -> Tensor:
    w = seen(m, x, band(x)).softmax(-1)
    return m.joined(torch.einsum("bhij,hg->bgij", w, m.slopes[:, None] * m.slopes) @ m.values(x))


def difference_of_heads(m: Net, x: Tensor) -> Tensor:
    w = seen(m, x, band(x)).softmax(-1)
    return torch.tanh((w[:, 0] - 0.3 * w[:, 1]) @ m.v(x))


def running(m: Net, x: Tensor) -> Tensor:
    q, k, v = F.elu(m.q(x)) + 1, F.elu(m.k(x)) + 1, m.v(x)
    return (q[..., None] * (k[..., None] * v[:, :, None]).cumsum(1)).sum(2) / (q * k.cumsum(1)).sum(-1, keepdim=True)


def fused(m: Net, x: Tensor, shown: Tensor) -> Tensor:
    q, k, v = (m.heads(part(x)) for part in (m.q, m.k, m.v))
    return m.joined(F.scaled_dot_product_attention(q, k, v, attn_mask=shown))


def triangle(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1]).tril().bool()


STREAMED: Written = {
    "decay_window": decay_window,
    "decay_by_head": decay_by_head,
    "decay_by_exp": decay_by_exp,
    "decay_to_nothing": decay_to_nothing,
    "retention": retention,
    "sink_logit": sink_logit,
    "sink_in_front": sink_in_front,
    "sink_less_the_largest": sink_less_the_largest,
    "sink_of_zero": sink_of_zero,
    "one_more": one_more,
    "zero_key": zero_key,
    "memory_in_front": memory_in_front,
    "memory_behind": memory_behind,
    "memory_by_place": memory_by_place,
    "memory_apart": memory_apart,
    "first_frames": first_frames,
    "first_frames_ahead": first_frames_ahead,
    "first_frames_of_the_past": first_frames_of_the_past,
    "first_frames_summed": first_frames_summed,
    "first_frames_and_sink": first_frames_and_sink,
    "clamped_behind_last": lambda m, x: clamped(m, x, True),
    "clamped_at_last": lambda m, x: clamped(m, x, False),
    "picked": picked,
    "picked_inside": picked_inside,
    "blocks_by_ones": lambda m, x: blocks(m, x, "ones"),
    "blocks_by_places": lambda m, x: blocks(m, x, "places"),
    "near": lambda m, x: softened(m, x, seen(m, x, behind(x).abs() <= 3)),
    "dilated": lambda m, x: softened(m, x, seen(m, x, (behind(x).abs() <= 6) & (behind(x) % 2 == 0))),
    "chunk_ends": chunk_ends,
    "chunks_low": lambda m, x: softened(m, x, seen(m, x, chunks(x, 2), -1e4)),
    "alibi": alibi,
    "cosine": cosine,
    "capped": lambda m, x: softened(m, x, (torch.tanh(m.scores(x) / 5) * 5).masked_fill(~band(x), LOW)),
    "temperatures": lambda m, x: softened(
        m, x, (m.scores(x) * m.slopes.reshape(1, -1, 1, 1).exp()).masked_fill(~band(x), -math.inf)
    ),
    "forgetting": forgetting,
    "buckets": buckets,
    "mixed_heads": mixed_heads,
    "difference_of_heads": difference_of_heads,
    "sigmoid": lambda m, x: m.joined(torch.sigmoid(seen(m, x, band(x))) @ m.values(x)),
    "squared": lambda m, x: m.joined(F.relu(seen(m, x, band(x))).square() @ m.values(x)),
    "running": running,
    "fused_mask": lambda m, x: fused(m, x, band(x)),
    "fused_window": lambda m, x: fused(m, x, (behind(x) < 6) & triangle(x)),
}
ONE_FRAME: Written = {"blocks_of_the_past": lambda m, x: blocks(m, x, "triangle")}
LAYERS: Written = {  # the older exporter writes their length down, or fails
    "unfolded": unfolded,
    "layer": lambda m, x: m.plain(x, x, x, attn_mask=~band(x), need_weights=False)[0],
    "layer_with_learned_key": lambda m, x: m.learned(x, x, x, attn_mask=~band(x), need_weights=False)[0],
    "layer_with_zero_key": lambda m, x: m.zeros(x, x, x, attn_mask=~band(x), need_weights=False)[0],
}
REFUSED: Written = {
    "sink_and_all": lambda m, x: m.joined(
        torch.cat([s := m.scores(x), sink(m, s)], -1).softmax(-1)[..., :-1] @ m.values(x)
    ),
    "first_rows_see_all": lambda m, x: softened(
        m, x, seen(m, x, (behind(x).abs() < 5) | (torch.arange(x.shape[1])[:, None] < 2))
    ),
    "capped_behind_the_mask": lambda m, x: softened(m, x, torch.tanh(seen(m, x, band(x)) / 5) * 5),
    "fused_all": lambda m, x: fused(m, x, torch.ones(x.shape[1], x.shape[1]).bool()),
    "fused_all_by_stream": lambda m, x: fused(m, x, torch.ones(x.shape[0], 1, 1, x.shape[1]).bool()),
    "first_frames_and_bias": lambda m, x: softened(
        m,
        x,
        (m.scores(x) - m.slopes[:, None, None] * behind(x).abs()).masked_fill(
            ~(((behind(x) < 5) | (torch.arange(x.shape[1])[None] < 3)) & (behind(x) >= 0)), -math.inf
        ),
    ),
}
ALL = {**STREAMED, **ONE_FRAME, **LAYERS, **REFUSED}


@cache
def exported(exporter: str, name: str) -> onnx.ModelProto:
    return export(exporter, Layers(ALL[name]), (torch.randn(2, 13, WIDTH),), ["x"])
