"""`stream_attention` in torch's own operators, on any device: the bias is made in memory, the ring is put in order.

Lower types without a mask take torch's fused attention. All else is written out in float32: the fused one is not all
float32 on a card, and cannot keep NaN in a hidden cell from the rows that do not see it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from pulsify.kernels.stream_attention.sizes import Sizes, sizes

Tensor = Any


def stream_attention(
    q: Tensor, keys: Tensor, values: Tensor, *, scale: float = 1.0, bias: Tensor = None, mask: Tensor = None,
    fill: float = -math.inf, hollow: str = "nan", first: Tensor = None, last: Tensor = None, table: Tensor = None,
    shift: int = 0, u: Tensor = None, v: Tensor = None, start: Tensor = None, new_keys: Tensor = None,
    new_values: Tensor = None, read: Tensor = None, write: Tensor = None,
) -> Tensor:  # fmt: skip
    """[B, H, Tq, Dv], in memory [B, Tq, H, Dv]. New frames are written to keys and values after all was read."""
    size = sizes(
        q, keys, values, bias=bias, mask=mask, fill=fill, hollow=hollow, first=first, last=last, table=table,
        shift=shift, u=u, v=v, start=start, new_keys=new_keys, new_values=new_values, read=read, write=write,
    )  # fmt: skip
    k, x = _in_order(size, keys, read, start, new_keys), _in_order(size, values, read, start, new_values)
    valid = _valid(size, first, last, q.device)
    if valid is not None:  # what lies there reaches nothing
        k, x = k.masked_fill(~valid.mT, 0), x.masked_fill(~valid.mT, 0)
    moved = _moved(size, q, table, shift, v)
    asked = q if u is None else q + u[:, None]
    if q.dtype == torch.float32 or mask is not None or hollow == "quiet":
        made = _written_out(asked, k, x, scale, bias, mask, fill, moved, valid, hollow)
    else:
        made = _fused(asked, k, x, scale, bias, moved, valid)
    seen = _seen(mask if fill == -math.inf else None, valid)
    if seen is not None:
        made = torch.where(seen, made, math.nan if hollow == "nan" else 0.0)
    if new_keys is not None and size.width:
        _append(size, keys, write, start, new_keys)
        _append(size, values, write, start, new_values)
    return made.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2)


def _in_order(size: Sizes, cache: Tensor, read: Tensor, start: Tensor, new: Tensor) -> Tensor:
    """All columns as they follow one another, [B, H, W + N, depth]."""
    if start is not None and size.width:
        rows = torch.arange(size.batch, device=cache.device) if read is None else read
        cache = cache[rows[:, None], :, _places(size, start, 0, size.width, cache)].transpose(1, 2)
    elif read is not None:
        cache = cache[read]
    return cache if new is None else torch.cat([cache, new], 2)


def _places(size: Sizes, start: Tensor, begin: int, end: int, like: Tensor) -> Tensor:
    """Where columns begin to end of a ring lie, [B, end - begin]."""
    j = torch.arange(begin, end, device=like.device)
    return ((0 if start is None else start[:, None]) + j).expand(size.batch, end - begin) % size.width


def _append(size: Sizes, cache: Tensor, write: Tensor, start: Tensor, new: Tensor) -> None:
    begin = max(0, size.new - size.width)
    rows = torch.arange(size.batch, device=cache.device) if write is None else write
    cache[rows[:, None], :, _places(size, start, begin, size.new, cache)] = new[:, :, begin:].transpose(1, 2)


def _valid(size: Sizes, first: Tensor, last: Tensor, device: Any) -> Tensor:
    """[B, 1, 1, columns], or None: all are."""
    if first is None and last is None:
        return None
    j = torch.arange(size.columns, device=device)[None, None, None]
    low = True if first is None else j >= first[:, None, None, None]
    high = True if last is None else j < last[:, None, None, None]
    return low & high


def _seen(mask: Tensor, valid: Tensor) -> Tensor:
    """Rows in which a column takes part; None: all of them."""
    if mask is None and valid is None:
        return None
    cells = valid if mask is None else mask if valid is None else mask & valid
    return cells.any(-1, keepdim=True)


def _moved(size: Sizes, q: Tensor, table: Tensor, shift: int, v: Tensor) -> Tensor:
    """The relative part of the scores: a product with the whole table, read along the diagonal."""
    if table is None:
        return None
    products = (q if v is None else q + v[:, None]).float() @ table.float().mT
    i, j = (torch.arange(n, device=q.device) for n in (size.queries, size.columns))
    at = j[None, :] - i[:, None] + shift
    return products.gather(3, at.expand(size.batch, size.heads, size.queries, size.columns))


def _fused(q: Tensor, k: Tensor, x: Tensor, scale: float, bias: Tensor, moved: Tensor, valid: Tensor) -> Tensor:
    added = None if moved is None else moved * scale
    if bias is not None:
        added = bias.float() if added is None else added + bias
    if valid is not None:
        zero = torch.zeros((), device=q.device) if added is None else added
        added = torch.where(valid, zero, -math.inf)
    if added is None:
        return F.scaled_dot_product_attention(q, k, x, scale=scale)
    # its own memory, all of it: torch's kernels take no bias that begins anywhere
    whole = added.to(q.dtype).expand(*q.shape[:3], k.shape[2]).contiguous()
    made = F.scaled_dot_product_attention(q, k, x, attn_mask=whole, scale=scale)
    dead = (whole == -math.inf).all(-1, keepdim=True)  # zeros or NaN, as the kernel likes
    return torch.where(dead, math.nan, made)


def _written_out(
    q: Tensor, k: Tensor, x: Tensor, scale: float, bias: Tensor, mask: Tensor, fill: float, moved: Tensor,
    valid: Tensor, hollow: str,
) -> Tensor:  # fmt: skip
    q, k, x = q.float(), k.float(), x.float()
    score = q @ k.mT
    score = (score if moved is None else score + moved) * scale
    score = score if bias is None else score + bias
    if mask is not None:
        score = score.masked_fill(~mask, fill)
    if valid is not None:
        score = score.masked_fill(~valid, -math.inf)
    weights = score.softmax(-1)
    if mask is None or fill != -math.inf:
        made = weights @ x
    else:
        made = weights @ x.nan_to_num(0, 0, 0) + _unbounded(weights, mask.expand_as(score), x)
    lost = weights.isnan().any(-1, keepdim=True) if hollow == "quiet" else None
    return made if lost is None else made.masked_fill(lost, 0)


def _unbounded(weights: Tensor, shown: Tensor, x: Tensor) -> Tensor:
    """What NaN and infinities among the values are to the rows that see them; the others' weights never touch them."""
    seen, lost = (shown & (weights != 0)).float(), (shown & (weights == 0)).float()
    nan, more, less = x.isnan(), x == math.inf, x == -math.inf
    out = torch.zeros((), device=x.device)
    for count, means in (
        (seen @ more.float(), math.inf),
        (seen @ less.float(), -math.inf),
        ((seen + lost) @ nan.float() + lost @ (more | less).float(), math.nan),
    ):
        out = out + torch.where(count > 0, means, 0.0)
    return out
