"""What `stream_attention` means, in float64: plain, slow, obviously right.

    score(i, j) = ((q_i + u) . k_j  +  (q_i + v) . table[j - i + shift]) * scale  +  bias[i, j]
    result(i)   = sum over j of softmax_j(score(i, j)) * value_j

j counts the columns of a stream: first those of its window (column j lies at (start + j) mod W), then the new frames.

    invalid     j < first or j >= last: takes no part, whatever lies there
    hidden      mask[i, j] is False. fill = -inf: takes no part. A finite fill is its score, all else as ever
    hollow      a row in which nothing takes part. "nan": the softmax of -inf alone, as ONNX has it. "zero": no weights,
                as of graphs that select zeros for them afterwards. "quiet": zero, and so is every other row whose
                weights are NaN (a score that is NaN, or +inf): graphs that select zeros where weights are NaN
    -inf        in the bias is a score like any other: the weight is 0, and NaN if a row has no other scores (0 times a
                value that is NaN or infinite is NaN, as ever)

New frames are appended after all was read: frame i goes to column (start + i) mod W of row `write`, the last W of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pulsify.kernels.stream_attention.sizes import sizes

Array = npt.NDArray[Any]


def stream_attention(
    q: Array, keys: Array, values: Array, *, scale: float = 1.0, bias: Array | None = None, mask: Array | None = None,
    fill: float = -math.inf, hollow: str = "nan", first: Array | None = None, last: Array | None = None,
    table: Array | None = None, shift: int = 0, u: Array | None = None, v: Array | None = None,
    start: Array | None = None, new_keys: Array | None = None, new_values: Array | None = None,
    read: Array | None = None, write: Array | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The result, and keys and values as they are afterwards."""
    size = sizes(
        q, keys, values, bias=bias, mask=mask, fill=fill, hollow=hollow, first=first, last=last, table=table,
        shift=shift, u=u, v=v, start=start, new_keys=new_keys, new_values=new_values, read=read, write=write,
    )  # fmt: skip
    whole = (size.batch, size.heads, size.queries, size.columns)
    added = np.broadcast_to(np.zeros(()) if bias is None else bias.astype(float), whole)
    shown = np.broadcast_to(np.ones((), bool) if mask is None else mask, whole)
    kept_keys, kept_values = keys.copy(), values.copy()
    out = np.empty((size.batch, size.heads, size.queries, size.value_depth))
    for b in range(size.batch):
        row, sink = (b, b) if read is None or write is None else (int(read[b]), int(write[b]))
        begin = 0 if start is None else int(start[b])
        low = 0 if first is None else int(first[b])
        high = size.columns if last is None else int(last[b])
        places = [(begin + j) % size.width for j in range(size.width)]
        j = np.arange(size.columns)
        for h in range(size.heads):
            k, x = keys[row, h][places].astype(float), values[row, h][places].astype(float)
            if new_keys is not None and new_values is not None:
                k, x = np.concatenate([k, new_keys[b, h]]), np.concatenate([x, new_values[b, h]])
            for i in range(size.queries):
                query = q[b, h, i].astype(float)
                with np.errstate(invalid="ignore"):
                    score = (k * (query + (0.0 if u is None else u[h]))).sum(1)
                    if table is not None:
                        score += (table[h][j - i + shift] * (query + (0.0 if v is None else v[h]))).sum(1)
                    score = score * scale + added[b, h, i]
                part = (low <= j) & (j < high)
                if fill == -math.inf:
                    part = part & shown[b, h, i]
                else:
                    score = np.where(shown[b, h, i], score, fill)
                out[b, h, i] = attended(score[part], x[part], hollow)
        if new_keys is not None and new_values is not None and size.width:
            for i in range(max(0, size.new - size.width), size.new):
                kept_keys[sink, :, (begin + i) % size.width] = new_keys[b, :, i]
                kept_values[sink, :, (begin + i) % size.width] = new_values[b, :, i]
    return out, kept_keys, kept_values


def attended(score: Array, x: Array, hollow: str) -> Array:
    """One query over the columns that take part."""
    if not len(score):
        return np.full(x.shape[1], math.nan if hollow == "nan" else 0.0)
    with np.errstate(invalid="ignore"):
        weights = np.exp(score - score.max())
        if hollow == "quiet" and np.isnan(weights).any():
            return np.zeros(x.shape[1])
        return ((weights / weights.sum())[:, None] * x).sum(0)


ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def bound(inputs: Mapping[str, Any], dtype: str) -> float:
    """What a result may be off by: a few standard deviations of its roundings.

    Scores and sums are float32. Queries with a bias, weights and results are rounded to the type, and so are the
    positions and the bias where they are made in memory. What a score is off by, its column's weight is off by.
    """
    q, scale, unit, full = inputs["q"], abs(inputs.get("scale", 1.0)), ROUNDING[dtype], ROUNDING["float32"]
    off, table, u, v = full, inputs.get("table"), inputs.get("u"), inputs.get("v")
    read = inputs.get("read", slice(None))
    for keys in (inputs["keys"][read], inputs.get("new_keys")):
        if keys is not None and keys.size:
            off = max(off, _product_off(q, u, keys, 0.0 if u is None else unit) * scale)
    if table is not None:
        off += (_product_off(q, v, table[None], unit) + unit * _largest_product(q, v, table[None])) * scale
    off += 4 * unit * _largest(inputs.get("bias"))
    values = np.concatenate([inputs[name].ravel() for name in ("values", "new_values") if name in inputs])
    values = values[np.isfinite(values)]
    return float(2 * off * np.sqrt(np.mean(values**2)) + 2 * unit * _largest(values))


def _product_off(q: Array, added: Array | None, rows: Array, unit: float) -> float:
    """Of products of queries and rows: float32's roundings, and those of the queries once something was added."""
    squares = _clean(q, added) ** 2 @ np.swapaxes(_clean(rows) ** 2, -1, -2)
    whole = np.abs(_clean(q, added)) @ np.swapaxes(np.abs(_clean(rows)), -1, -2)
    return float(4 * unit * np.sqrt(squares.max()) + 4 * ROUNDING["float32"] * whole.max())


def _largest_product(q: Array, added: Array | None, rows: Array) -> float:
    return float(np.abs(_clean(q, added) @ np.swapaxes(_clean(rows), -1, -2)).max())


def _clean(rows: Array, added: Array | None = None) -> Array:
    rows = rows if added is None else rows + added[:, None]
    return np.where(np.isfinite(rows), rows, 0.0)


def _largest(array: Array | None) -> float:
    return 0.0 if array is None else float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
