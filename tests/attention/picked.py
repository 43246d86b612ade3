"""Attention whose masks and positions are picked by indices of streams, rows and columns, as libraries build them.

proto = exported("dynamo", "sliding_packed")      # x [B, T, 8] (and "attention_mask" [B, T] of ones) -> y
"""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
import torch
from torch import Tensor
from torch.nn.functional import conv1d, max_pool1d, pad

from tests.attention.written import CHUNK, DIM, WIDTH, Net, export

BACK = 5  # frames of a window


@dataclass(frozen=True)
class Places:
    """Of every cell of the scores [B, 1, T, T]: its stream, its row and its column."""

    stream: Tensor
    row: Tensor
    column: Tensor


Seen = Callable[[Places, Tensor], Tensor]  # of places, and what was picked by them


def places(x: Tensor) -> Places:
    streams, frames = torch.arange(x.shape[0]), torch.arange(x.shape[1])
    return Places(streams[:, None, None, None], frames[None, None, :, None], frames[None, None, None, :])


def attended(m: Net, x: Tensor, seen: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    s = torch.where(seen.expand(x.shape[0], -1, x.shape[1], x.shape[1]), m.scores(x) + bias, -math.inf)
    return m.joined(torch.softmax(s, -1) @ m.values(x))


def window(p: Places) -> Tensor:
    return (p.column <= p.row) & (p.column > p.row - BACK)


def both_sides(p: Places) -> Tensor:
    return (p.row - p.column).abs() <= 2


def chunk_of(p: Places, left: Tensor) -> Tensor:
    """Chunks counted from where each stream begins."""
    begin = left[p.stream]
    chunks = [torch.div(at - begin, CHUNK, rounding_mode="floor") for at in (p.row, p.column)]
    return (chunks[0] == chunks[1]) & (p.column <= p.row)


def real(p: Places, mask: Tensor) -> Tensor:
    """Columns that are no padding."""
    return mask[p.stream, p.column]


def ones(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool)


def positions(x: Tensor) -> Tensor:
    """The same in all streams."""
    return torch.arange(x.shape[1]).unsqueeze(0).expand(x.shape[0], -1)


def numbered(at: Tensor) -> Tensor:
    """Which of several sequences in a row a frame belongs to: a new one begins where positions do not go on by one."""
    whole = torch.cat([at[:, :1] - 1, at], -1)
    return (whole[:, 1:] - whole[:, :-1] != 1).long().cumsum(-1)


def packed(p: Places, at: Tensor, mask: Callable[[Places], Tensor]) -> Tensor:
    """A mask of positions within sequences, each of which sees itself only."""
    number = numbered(at)
    alone = number[p.stream, p.row] == number[p.stream, p.column]
    return alone & mask(Places(p.stream, at[p.stream, p.row], at[p.stream, p.column]))


def blocks(p: Places, of: Tensor) -> Tensor:
    row, column = of[p.stream, p.row], of[p.stream, p.column]
    return (row == column) & (row >= 0)


# ---- masks that go through layers first


def widened(mask: Tensor) -> Tensor:
    """Frames whose window has one that counts."""
    whole = pad(mask, (4, 0))[:, None].float()
    return conv1d(whole, torch.ones(1, 1, 5))[:, 0] > 0


def pooled(mask: Tensor) -> Tensor:
    return max_pool1d(mask[:, None].float(), 3, stride=1, padding=1)[:, 0] > 0.5


# ---- relative positions


def shaw(m: Net, x: Tensor, far: int = 3) -> Tensor:
    """Clipped distances, in the keys and in the values."""
    at = torch.arange(x.shape[1])
    distance = (at[None] - at[:, None]).clamp(-far, far) + far
    table = m.positions.weight[: 2 * far + 1, :DIM]
    keys, values = table[distance], table.flip(0)[distance]
    s = m.scores(x) + torch.einsum("bhtd,tsd->bhts", m.heads(m.q(x)), keys)
    w = torch.softmax(s.masked_fill(~window(places(x)), -math.inf), -1)
    return m.joined(w @ m.values(x) + torch.einsum("bhts,tsd->bhtd", w, values))


def sines(at: Tensor) -> Tensor:
    angles = at[..., None].float() * torch.tensor([1.0, 0.3, 0.1, 0.03])
    return torch.cat([angles.sin(), angles.cos()], -1)


def xl(m: Net, x: Tensor, table: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Transformer-XL: rows T - 1 ... 0 of a table of distances, put in their place by a shift."""
    b, t, _ = x.shape
    r = m.positions(table(sines(torch.arange(600)), t)).reshape(t, 2, DIM)
    s = torch.einsum("bhid,jhd->bhij", m.heads(m.q(x)), r)
    s = pad(s, (1, 0)).reshape(b, 2, t + 1, t)[:, :, 1:].reshape(b, 2, t, t)
    return attended(m, x, window(places(x)), s)


def buckets(m: Net, x: Tensor) -> Tensor:
    """T5: near distances one by one, those further away by their logarithm."""
    p = places(x)
    distance = (p.row - p.column)[0, 0].clamp(min=0)
    far = 2 + (torch.log(distance.clamp(min=1).float() / 2) / math.log(4) * 2).long()
    bucket = torch.where(distance < 2, distance, far.clamp(max=5))
    bias = m.positions.weight[:6, :2][bucket].permute(2, 0, 1)[None]
    return attended(m, x, window(p), bias)


def added(m: Net, x: Tensor) -> Tensor:
    """Positions of every stream, looked up in a table of sines."""
    return attended(m, x + sines(positions(x)), window(places(x)))


def looked_up(m: Net, x: Tensor) -> Tensor:
    return attended(m, x + sines(torch.arange(600))[positions(x)], window(places(x)))


def turned(m: Net, x: Tensor) -> Tensor:
    """Rotary positions [B, T], as Hugging Face has them."""
    angles = positions(x)[..., None].float() * torch.tensor([1.0, 0.1])
    angles = torch.cat([angles, angles], -1)[:, None]
    cos, sin = angles.cos(), angles.sin()

    def rotated(z: Tensor) -> Tensor:
        return z * cos + torch.cat([-z[..., 2:], z[..., :2]], -1) * sin

    s = rotated(m.heads(m.q(x))) @ rotated(m.heads(m.k(x))).transpose(2, 3)
    s = s.masked_fill(~window(places(x)), -math.inf)
    return m.joined(torch.softmax(s, -1) @ m.values(x))


Written = dict[str, Callable[..., Any]]
ALONE: Written = {
    "sliding_ones": lambda m, x: attended(m, x, window(p := places(x)) & real(p, ones(x))),
    "sliding_packed": lambda m, x: attended(m, x, packed(places(x), positions(x), window)),
    "both_sides_packed": lambda m, x: attended(m, x, packed(places(x), positions(x), both_sides)),
    "chunked": lambda m, x: attended(m, x, chunk_of(places(x), torch.zeros(x.shape[0], dtype=torch.int64))),
    "blocks": lambda m, x: attended(m, x, blocks(places(x), torch.div(positions(x), CHUNK, rounding_mode="floor"))),
    "padded": lambda m, x: attended(m, x, window(p := places(x)) & real(p, pad(ones(x), (0, 3)))),
    "shaw": shaw,
    "xl_flipped": lambda m, x: xl(m, x, lambda rows, t: rows[:t].flip(0)),
    "buckets": buckets,
    "added": added,
    "looked_up": looked_up,
    "turned": turned,
}  # fmt: skip
MASKED: Written = {
    "sliding_mask": lambda m, x, mask: attended(m, x, window(p := places(x)) & real(p, mask)),
    "both_sides_mask": lambda m, x, mask: attended(m, x, both_sides(p := places(x)) & real(p, mask)),
    "chunked_mask": lambda m, x, mask: attended(
        m, x, chunk_of(p := places(x), (~mask).sum(-1)) & real(p, mask)
    ),
    "padded_mask": lambda m, x, mask: attended(m, x, window(p := places(x)) & real(p, pad(mask, (0, 3)))),
    "widened_mask": lambda m, x, mask: attended(m, x, window(p := places(x)) & real(p, widened(mask))),
    "pooled_mask": lambda m, x, mask: attended(m, x, window(p := places(x)) & real(p, pooled(mask))),
}  # fmt: skip
REFUSED: Written = {
    "all_packed": lambda m, x: attended(m, x, packed(places(x), positions(x), lambda p: p.row >= 0)),
    "halves": lambda m, x: attended(m, x, packed(places(x), positions(x) % (x.shape[1] // 2 + 1), window)),
    "xl_not_flipped": lambda m, x: xl(m, x, lambda rows, t: rows[:t]),
}  # fmt: skip
ALL = {**ALONE, **MASKED, **REFUSED}


@cache
def exported(exporter: str, name: str) -> onnx.ModelProto:
    example, names = (torch.randn(2, 13, WIDTH),), ["x"]
    masks = (torch.ones(2, 13, dtype=torch.bool),) if name in MASKED else ()
    return export(exporter, Net(ALL[name]), (*example, *masks), [*names, *(["attention_mask"] * len(masks))])
