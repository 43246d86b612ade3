"""`stream_attention` for cards, and for Triton's interpreter on the CPU: what is launched, with which blocks.

One program has all queries of a stream's head. Up to 128 columns are one tile; beyond that it goes over blocks of them
with a running maximum and sum, and where there are few programs the columns are shared among several, whose parts a
second, small kernel adds up. docs/kernels.md draws it.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton

from pulsify.kernels.stream_attention import triton_kernels
from pulsify.kernels.stream_attention.sizes import Sizes, sizes

Tensor = Any
ONE_TILE = 128  # columns
MOST_QUERIES = 64  # of one program
LEAST_SHARE = 256  # columns, of those that several programs share
FULL_SHARE = 1024  # the same, where every processor has a program anyway
SHARED = 160 * 1024  # bytes on chip for what is read ahead; there is more, but not for this alone
MANY = 4  # programs a processor from which on none of them waits alone
WAVES = 8  # so many programs a processor keep its memory busy
APART = (
    256  # queries of all streams from which on products with the table are made beforehand, with the table read once
)


@dataclass(frozen=True)
class Plan:
    """Of one launch: a tile's sizes, powers of two. split: how many programs share a stream's columns."""

    queries: int
    columns: int
    depth: int
    value_depth: int
    split: int
    warps: int
    stages: int


def stream_attention(
    q: Tensor, keys: Tensor, values: Tensor, *, scale: float = 1.0, bias: Tensor = None, mask: Tensor = None,
    fill: float = -math.inf, hollow: str = "nan", first: Tensor = None, last: Tensor = None, table: Tensor = None,
    shift: int = 0, u: Tensor = None, v: Tensor = None, start: Tensor = None, new_keys: Tensor = None,
    new_values: Tensor = None, read: Tensor = None, write: Tensor = None, plan: Plan | None = None,
) -> Tensor:  # fmt: skip
    """[B, H, Tq, Dv], in memory [B, Tq, H, Dv]. New frames are written to keys and values after all was read."""
    size = sizes(
        q, keys, values, bias=bias, mask=mask, fill=fill, hollow=hollow, first=first, last=last, table=table,
        shift=shift, u=u, v=v, start=start, new_keys=new_keys, new_values=new_values, read=read, write=write,
    )  # fmt: skip
    plan = plan or planned(size, q.element_size(), processors(q.device), table is not None)
    whole = (size.batch, size.heads, size.queries, size.columns)
    out = q.new_empty(size.batch, size.queries, size.heads, size.value_depth).transpose(1, 2)
    blocks = -(-size.queries // plan.queries)
    # A program that reads alone appends, too; else the second kernel does, when all have read.
    parts = _parts(size, plan, out) if plan.split > 1 or (blocks > 1 and new_keys is not None) else (None, None, None)
    start = None if size.width == 0 else start
    new = (new_keys, new_values)
    shared: dict[str, Any] = {
        "HEADS": size.heads, "DEPTH": size.depth, "VALUE_DEPTH": size.value_depth, "BLOCK_D": plan.depth,
        "BLOCK_V": plan.value_depth, "HOLLOW": hollow,
    }  # fmt: skip
    spread = None if bias is None else bias.expand(whole)
    shown = None if mask is None else mask.expand(whole).view(torch.uint8)
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
        triton_kernels.attend[(size.batch * size.heads, blocks, plan.split)](
            q, keys, values, *new, out, *parts, table, u, v, spread, shown, start, first, last, read, write,
            q.stride(), keys.stride(), values.stride(), _steps(new_keys, 4), _steps(new_values, 4), out.stride(),
            _steps(table, 3), _steps(u, 2), _steps(v, 2), _steps(spread, 4), _steps(shown, 4),
            size.queries, size.width, size.new, 0 if table is None else table.shape[1], shift, scale, fill,
            _share(size, plan), HIDDEN=fill == -math.inf, ONE_QUERY=size.queries == 1,
            ONE_TILE=size.columns <= plan.columns and plan.split == 1,
            FAR=_far(size, plan),
            CARRIED=_carried(size, plan) and table is not None, BLOCK_Q=plan.queries, BLOCK_C=plan.columns,
            BLOCK_N=_power(min(size.new, 64)), **shared,
            num_warps=plan.warps, num_stages=plan.stages,
        )  # fmt: skip
        if parts[0] is not None:
            triton_kernels.combine[(size.batch * size.heads, size.queries)](
                *parts, keys, values, *new, out, start, write, keys.stride(), values.stride(),
                _steps(new_keys, 4), _steps(new_values, 4), out.stride(), size.queries, size.width, size.new,
                plan.split, BLOCK_S=_power(plan.split, 2), BLOCK_N=_power(min(size.new, 64)), **shared, num_warps=4,
            )  # fmt: skip
    return out


def _far(size: Sizes, plan: Plan) -> bool:
    """Does a block read more offsets than it has columns?"""
    return min(size.queries, plan.queries) - 1 + min(size.columns, plan.columns) > plan.columns


def _carried(size: Sizes, plan: Plan) -> bool:
    """Are the last offsets of a block the first ones of the next?"""
    return _far(size, plan) and plan.queries == plan.columns and size.queries > 1


def planned(size: Sizes, bytes_each: int, processors: int, relative: bool = True) -> Plan:
    """By a small table, not by trying: float32 has no tensor cores here, so its tiles are smaller."""
    small, deep = bytes_each < 4, max(size.depth, size.value_depth) > 128
    queries = _power(min(size.queries, MOST_QUERIES if small else 16))
    depth, value_depth = _power(size.depth), _power(size.value_depth)
    if size.columns <= ONE_TILE and small and not deep:
        if (
            size.batch * size.heads >= MANY * processors and queries == 16
        ):  # memory is what counts: small tiles, read ahead
            return Plan(queries, 16, depth, value_depth, 1, 1, 2)
        return Plan(queries, _power(size.columns), depth, value_depth, 1, 8, 1)
    columns = min(_power(size.columns), (32 if deep else 64) if small else (16 if deep else 32))
    programs = size.batch * size.heads * -(-size.queries // queries)
    least = LEAST_SHARE if programs < processors else FULL_SHARE
    split = max(1, min(WAVES * processors // programs, size.columns // least))
    stage = bytes_each * (columns * (depth + value_depth) + relative * (columns + queries) * depth)
    held = 2 * bytes_each * queries * depth if queries > 32 else 0  # so many queries lie beside it, with either bias
    stages = max(1, min(4 if split == 1 else 3, (SHARED - held) // stage))
    return Plan(queries, columns, depth, value_depth, split, 8 if queries > 32 else 4, stages)


@cache
def processors(device: Any) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _parts(size: Sizes, plan: Plan, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where programs leave sums of values, maxima and sums of weights."""
    rows = (size.batch * size.heads, size.queries, plan.split)
    made = (out.new_empty(shape, dtype=torch.float32) for shape in ((*rows, size.value_depth), rows, rows))
    sums, most, total = made
    return sums, most, total


def _share(size: Sizes, plan: Plan) -> int:
    """Columns of a program, in whole blocks."""
    return -(-size.columns // (plan.split * plan.columns)) * plan.columns


def _steps(tensor: Tensor, rank: int) -> tuple[int, ...]:
    return (0,) * rank if tensor is None else tensor.stride()


def _power(size: int, least: int = 16) -> int:
    """The next power of two: tiles have no other sizes, and tensor cores take 16 at least."""
    return max(least, triton.next_power_of_2(size))
