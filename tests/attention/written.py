"""Attention as people write it in torch, in other ways than scores, mask, softmax, values; for both exporters.

proto = exported("dynamo", "heads_cut")      # x [B, T, 8] -> y
"""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import io
import logging
import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import onnx
import torch
from torch import Tensor, nn

WIDTH, HEADS, DIM = 8, 2, 4
CHUNK, PAST, AHEAD = 4, 5, 2


class Net(nn.Module):
    """A function of frames [B, T, C] with the parts of an attention layer at hand."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.positions = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("slopes", torch.tensor([0.5, 0.25]))
        self.written = forward

    def forward(self, *x: Tensor) -> Any:
        return self.written(self, *x)

    def heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], HEADS, DIM).transpose(1, 2)

    def scores(self, x: Tensor) -> Tensor:
        """[B, H, T, T]"""
        return self.heads(self.q(x)) @ self.heads(self.k(x)).transpose(2, 3) * DIM**-0.5

    def values(self, x: Tensor) -> Tensor:
        return self.heads(self.v(x))

    def joined(self, x: Tensor) -> Tensor:
        """Heads side by side again."""
        return torch.tanh(x.transpose(1, 2).flatten(2))

    def weights(self, x: Tensor) -> Tensor:
        return torch.softmax(self.scores(x).masked_fill(~band(x), -math.inf), -1)


def band(x: Tensor, past: int = PAST, ahead: int = AHEAD) -> Tensor:
    at = torch.arange(x.shape[1])
    behind = at[:, None] - at[None]
    return (behind <= past) & (behind >= -ahead)


def chunks(x: Tensor, left: int | None = None) -> Tensor:
    """The own chunk and `left` before it, or all."""
    at = torch.arange(x.shape[1]) // CHUNK
    behind = at[:, None] - at[None]
    return behind >= 0 if left is None else (behind >= 0) & (behind <= left)


def causal(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[1])
    return at[:, None] >= at[None]


def hidden(m: Net, x: Tensor, low: float = -math.inf) -> Tensor:
    return m.scores(x).masked_fill(~band(x), low)


# ---- heads


def heads_apart(m: Net, x: Tensor) -> Tensor:
    """Each half of the heads on its own."""
    w, v = m.weights(x), m.values(x)
    return m.joined(torch.cat([w[:, :1] @ v[:, :1], w[:, 1:] @ v[:, 1:]], 1))


# ---- written by hand


def by_hand(m: Net, x: Tensor) -> Tensor:
    """A softmax of exponentials and their sum."""
    e = torch.exp(m.scores(x)) * band(x).float()
    return m.joined(e / e.sum(-1, keepdim=True) @ m.values(x))


def by_hand_stable(m: Net, x: Tensor) -> Tensor:
    s = hidden(m, x)
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return m.joined(e / e.sum(-1, keepdim=True) @ m.values(x))


def by_log(m: Net, x: Tensor) -> Tensor:
    s = hidden(m, x)
    return m.joined(torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ m.values(x))


def divided_after(m: Net, x: Tensor) -> Tensor:
    """The sum is divided by behind the product with the values."""
    e = torch.exp(m.scores(x)).triu(-PAST).tril(AHEAD)
    return m.joined(e @ m.values(x) / e.sum(-1, keepdim=True))


def normalised(m: Net, x: Tensor) -> Tensor:
    """Linear attention, its weights divided by the sum of their sizes."""
    s = m.scores(x).triu(-PAST).tril()
    return m.joined(s / s.abs().sum(-1, keepdim=True).clamp(min=1) @ m.values(x))


def best_of(m: Net, x: Tensor) -> Tensor:
    """Only the three best of every row."""
    s = hidden(m, x)
    least = torch.topk(s, 3, -1).values[..., -1:]
    return m.joined(torch.softmax(s.masked_fill(s < least, -math.inf), -1) @ m.values(x))


def least_by_head(m: Net, x: Tensor) -> Tensor:
    """The smallest score, each head with a window of its own."""
    shown = torch.stack([band(x), band(x, 2, 0)])
    return m.scores(x).masked_fill(~shown, 1e9).amin(-1)


def raised(m: Net, x: Tensor) -> Tensor:
    """Rows that look at themselves alone, or not, as the data have it."""
    some = (x[..., 0] > 0)[:, None, None] & (torch.eye(x.shape[1]) > 0)
    s = torch.where(some, 1e4, m.scores(x)).masked_fill(~band(x), -math.inf)
    return m.joined(torch.softmax(s, -1) @ m.values(x))


# ---- a mask that is streamed, joined with the diagonal


def least_kept(m: Net, x: Tensor, keep: Tensor) -> Tensor:
    """The smallest score of those that are kept, and of the own."""
    shown = (band(x) & keep[:, None, None, :].bool()) | (torch.eye(x.shape[1]) > 0)
    return m.scores(x).masked_fill(~shown, 1e9).amin(-1)


def least_dropped(m: Net, x: Tensor, keep: Tensor) -> Tensor:
    """One that is dropped is the smallest, however far above the others it would be."""
    at = torch.arange(x.shape[1])
    far = (at[:, None] - at[None]).abs().float() * 2e4
    s = torch.where(keep[:, None, None, :].bool(), m.scores(x) + far, -math.inf)
    return s.masked_fill(~band(x), math.inf).amin(-1)


def kept_with_self(m: Net, x: Tensor, keep: Tensor) -> Tensor:
    own = torch.eye(x.shape[1]) > 0
    shown = (band(x) & keep[:, None, None, :].bool()) | own
    return m.joined(torch.softmax(m.scores(x).masked_fill(~shown, -1e4), -1) @ m.values(x))


def kept_with_self_added(m: Net, x: Tensor, keep: Tensor) -> Tensor:
    at = torch.arange(x.shape[1])
    own = at[:, None] == at[None]
    shown = band(x) & (keep[:, None, None, :].bool() | own)
    return m.joined(torch.softmax(m.scores(x) + (1.0 - shown.float()) * -1e9, -1) @ m.values(x))


# ---- relative positions


def sinusoids(x: Tensor) -> Tensor:
    """Of offsets T - 1 ... 1 - T, [2T - 1, C]."""
    at = torch.arange(x.shape[1] - 1, -x.shape[1], -1).float()
    angle = at[:, None] * torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(100.0) / WIDTH))[None]
    return torch.cat([torch.sin(angle), torch.cos(angle)], -1)


def offsets(m: Net, x: Tensor) -> Tensor:
    """Scores by offset, [B, H, T, 2T - 1]."""
    table = m.positions(sinusoids(x)).reshape(-1, HEADS, DIM).permute(1, 2, 0)
    return m.heads(m.q(x)) @ table


def gathered(m: Net, x: Tensor, shown: Tensor) -> Tensor:
    """Offsets picked by their place, of scores that are seen as [B * H, T, 2T - 1] in between."""
    t = x.shape[1]
    raw = offsets(m, x)
    at = torch.arange(t)
    place = at[None] - at[:, None] + t - 1
    raw = raw.reshape(-1, t, 2 * t - 1)
    moved = torch.gather(raw, 2, place[None].expand(raw.shape[0], -1, -1)).reshape(-1, HEADS, t, t)
    s = (m.scores(x) + moved).masked_fill(~shown, -math.inf)
    return m.joined(torch.softmax(s, -1) @ m.values(x))


def shifted(m: Net, x: Tensor, shown: Tensor) -> Tensor:
    """Transformer-XL's shift: pad, reshape, cut."""
    t = x.shape[1]
    raw = torch.nn.functional.pad(offsets(m, x), (1, 0))
    moved = raw.reshape(-1, HEADS, 2 * t, t)[:, :, 1:].reshape(-1, HEADS, t, 2 * t - 1)[..., :t]
    s = (m.scores(x) + moved).masked_fill(~shown, -math.inf)
    return m.joined(torch.softmax(s, -1) @ m.values(x))


# ---- heads folded into the batch


def folded(m: Net, x: Tensor) -> Tensor:
    """[B * H, T, T], each head with a bias and a window of its own."""
    q, k, v = (m.heads(part(x)).reshape(-1, x.shape[1], DIM) for part in (m.q, m.k, m.v))
    at = torch.arange(x.shape[1])
    distance = (at[:, None] - at[None]).abs().float()
    bias = -m.slopes[:, None, None] * distance[None]
    shown = torch.stack([band(x), band(x, 2, 0)])
    each = bias.masked_fill(~shown, -math.inf).repeat(x.shape[0], 1, 1)
    w = torch.softmax(torch.bmm(q, k.transpose(1, 2)) * DIM**-0.5 + each, -1)
    return m.joined(torch.bmm(w, v).reshape(-1, HEADS, x.shape[1], DIM))


def folded_chunks(m: Net, x: Tensor) -> Tensor:
    """The same with chunks, which pulses cut in another way each."""
    q, k, v = (m.heads(part(x)).reshape(-1, x.shape[1], DIM) for part in (m.q, m.k, m.v))
    shown = torch.stack([chunks(x, 1), chunks(x, 2)])
    s = torch.bmm(q, k.transpose(1, 2)).reshape(x.shape[0], HEADS, x.shape[1], x.shape[1])
    s = s.masked_fill(~shown, -math.inf).reshape(-1, x.shape[1], x.shape[1])
    return m.joined(torch.bmm(torch.softmax(s, -1), v).reshape(-1, HEADS, x.shape[1], DIM))


# ---- without bound


def grown(m: Net, x: Tensor, shown: Tensor) -> Tensor:
    return m.joined(torch.softmax(m.scores(x).masked_fill(~shown, -math.inf), -1) @ m.values(x))


def edge(x: Tensor) -> Tensor:
    return torch.cat([x[:, :1].expand(-1, 3, -1), x], 1)


Written = dict[str, Callable[..., Any]]
BOUNDED: Written = {
    "heads_cut": lambda m, x: m.joined(m.weights(x)[:, :1] @ m.values(x)),
    "head_picked": lambda m, x: m.weights(x)[:, 1] @ m.v(x),
    "heads_by_table": lambda m, x: m.joined(m.weights(x)[:, torch.tensor([1, 0])] @ m.values(x)),
    "heads_apart": heads_apart,
    "heads_mean": lambda m, x: m.weights(x).mean(1) @ m.v(x),
    "band": lambda m, x: m.joined(m.scores(x).triu(-PAST).tril(AHEAD) @ m.values(x)),
    "band_of_weights": lambda m, x: m.joined(m.weights(x).tril() @ m.values(x)),
    "row_sum": lambda m, x: m.scores(x).triu(-PAST).tril(AHEAD).sum(-1),
    "row_sum_of_masked": lambda m, x: (m.scores(x) * band(x)).sum(-1),
    "row_max": lambda m, x: hidden(m, x).amax(-1),
    "row_max_of_weights": lambda m, x: m.weights(x).amax(-1),
    "row_min": lambda m, x: (-hidden(m, x)).amin(-1, keepdim=True),
    "row_log_sum": lambda m, x: torch.logsumexp(hidden(m, x), -1),
    "row_norm": lambda m, x: torch.linalg.vector_norm(m.weights(x), dim=-1),
    "row_best": lambda m, x: hidden(m, x).argmax(-1),
    "row_best_of_low": lambda m, x: hidden(m, x, -1e9).argmax(-1),
    "row_max_of_both": lambda m, x: hidden(m, x).max(-1)[0] + hidden(m, x).max(-1)[1],
    "row_top": lambda m, x: torch.topk(hidden(m, x), 3, -1).values,
    "entropy": lambda m, x: -(m.weights(x) * torch.log(m.weights(x).clamp(min=1e-9))).sum(-1),
    "column_of_weights": lambda m, x: (m.weights(x).transpose(2, 3) * m.values(x)[..., :1]).sum(2),
    "by_hand": by_hand,
    "by_hand_stable": by_hand_stable,
    "by_log": by_log,
    "divided_after": divided_after,
    "normalised": normalised,
    "best_of": best_of,
    "least_by_head": least_by_head,
    "raised": raised,
    "gathered": lambda m, x: gathered(m, x, band(x)),
    "gathered_chunks": lambda m, x: gathered(m, x, chunks(x, 1)),
    "shifted": lambda m, x: shifted(m, x, band(x)),
    "folded": folded,
    "folded_chunks": folded_chunks,
}
JOINED: Written = {
    "kept_with_self": kept_with_self,
    "kept_with_self_added": kept_with_self_added,
    "least_kept": least_kept,
    "least_dropped": least_dropped,
}
GROWING: Written = {
    "linear": lambda m, x: m.joined(m.scores(x).tril() @ m.values(x)),
    "causal_by_hand": lambda m, x: m.joined(_of_sum(torch.exp(m.scores(x)).tril()) @ m.values(x)),
    "chunks": lambda m, x: grown(m, x, chunks(x)),
    "chunks_shifted": lambda m, x: shifted(m, x, chunks(x)),
    "causal_shifted": lambda m, x: shifted(m, x, causal(x)),
    "causal_gathered": lambda m, x: gathered(m, x, causal(x)),
    "edge": lambda m, x: grown(m, edge(x), causal(edge(x))),
    "edge_chunks": lambda m, x: grown(m, edge(x), chunks(edge(x))),
    "edge_shifted": lambda m, x: shifted(m, edge(x), chunks(edge(x))),
}


def _of_sum(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True)


REFUSED: Written = {  # what is taken off again is not known to be nothing
    "difference": lambda m, x: m.joined((m.scores(x).tril(AHEAD) - m.scores(x).tril(-PAST)) @ m.values(x)),
}
ALL = {**BOUNDED, **JOINED, **GROWING, **REFUSED}


@cache
def exported(exporter: str, name: str) -> onnx.ModelProto:
    """x [B, T, 8], with `keep` [B, T] for those that take a mask."""
    example: tuple[Tensor, ...] = (torch.randn(2, 13, WIDTH),)
    names = ["x"]
    if name in JOINED:
        example, names = (*example, torch.rand(2, 13).round()), ["x", "keep"]
    return export(exporter, Net(ALL[name]), example, names)


def export(exporter: str, net: nn.Module, example: tuple[Tensor, ...], names: list[str]) -> onnx.ModelProto:
    """Batch and time are free in all inputs."""
    free = {0: "B", 1: "T"}
    how: dict[str, Any] = {"dynamo": False, "dynamic_axes": dict.fromkeys(names, free), "opset_version": 17}
    if exporter == "dynamo":
        how = {"dynamo": True, "dynamic_shapes": ((free,) * len(names),), "opset_version": 18, "verbose": False}
    file = io.BytesIO()
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            made = torch.onnx.export(net.eval(), example, input_names=names, **how)
            logging.disable(logging.NOTSET)
            assert made is not None
            return made.model_proto
        torch.onnx.export(net.eval(), example, file, input_names=names, **how)
    logging.disable(logging.NOTSET)
    return onnx.load_from_string(file.getvalue())
