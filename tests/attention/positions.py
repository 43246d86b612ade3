"""Position schemes: what is added to the scores, or done to queries and keys."""

from __future__ import annotations

import math

import numpy as np

from tests.attention.build import Array, Builder

LONGEST = 1024  # frames that tables are made for
REACH = 6  # of the tables clipped at some distance

BIASES = ("alibi", "chunk_bias", "clip", "t5")
ROPES = ("rope_half_table", "rope_half_arange", "rope_pair_table", "rope_pair_arange")
SHIFTS = tuple(
    f"xl_{form}_{table}" for form in ("nemo", "espnet", "xlnet", "legacy") for table in ("slice", "gather", "sin")
)
SCHEMES = ("none", "absolute", "sinusoid", "relative_key", *BIASES, *ROPES, *SHIFTS)


def bias(b: Builder, scheme: str, heads: int, sizes: tuple[str, str], chunk: int, steps: tuple[int, int]) -> str:
    """[heads, rows, cols], float."""
    i, j = (b.range(size) for size in sizes)
    i, j = (p if s == 1 else b.op("Mul", p, b.scalar(s)) for p, s in zip((i, j), steps, strict=True))
    i, j = b.unsqueeze(i, 1), b.unsqueeze(j, 0)
    if scheme == "alibi":
        slopes = b.const(2.0 ** -np.arange(1, heads + 1).reshape(-1, 1, 1))
        distance = b.op("Abs", b.cast(b.op("Sub", i, j), np.float32))
        return b.op("Mul", b.op("Neg", distance), slopes)
    if scheme == "chunk_bias":
        d = b.op("Sub", b.op("Div", i, b.scalar(chunk)), b.op("Div", j, b.scalar(chunk)))
        return _gathered(b, b.op("Clip", d, b.scalar(-2), b.scalar(2)), 2, 5, heads)
    if scheme == "clip":
        return _gathered(
            b, b.op("Clip", b.op("Sub", i, j), b.scalar(-REACH), b.scalar(REACH)), REACH, 2 * REACH + 1, heads
        )
    if scheme == "t5":
        return _gathered(b, _buckets(b, b.op("Sub", i, j)), 0, 8, heads)
    raise ValueError(scheme)


def _gathered(b: Builder, index: str, offset: int, rows: int, heads: int) -> str:
    index = b.op("Add", index, b.scalar(offset)) if offset else index
    return b.transpose(b.op("Gather", b.weight(rows, heads, scale=2.0), index), 2, 0, 1)


def _buckets(b: Builder, back: str) -> str:
    """T5's: exact up to 4, logarithmic up to 32, by how far back."""
    n = b.op("Max", back, b.scalar(0))
    ratio = b.op("Log", b.op("Div", b.cast(b.op("Max", n, b.scalar(1)), np.float32), b.const(4.0)))
    steps = b.op("Mul", ratio, b.const(4.0 / math.log(32 / 4)))
    large = b.op("Min", b.op("Add", b.cast(steps, np.int64), b.scalar(4)), b.scalar(7))
    return b.op("Where", b.op("Less", n, b.scalar(4)), n, large)


# ---- rotary


def rotated(b: Builder, scheme: str, x: str, size: str, dim: int, step: int) -> str:
    """x [..., T, dim] with its pairs turned by angles that grow with the frame."""
    freqs = 100.0 ** (-np.arange(dim // 2) / (dim // 2))
    if scheme.endswith("table"):
        angles = np.arange(LONGEST)[:, None] * step * freqs
        cos, sin = (b.slice(b.const(f(angles)), 0, b.ints(0), b.vector(size)) for f in (np.cos, np.sin))
    else:
        p = b.cast(b.op("Mul", b.range(size), b.scalar(step)), np.float32)
        angle = b.op("Mul", b.unsqueeze(p, 1), b.const(freqs))
        cos, sin = b.op("Cos", angle), b.op("Sin", angle)
    last, half = b.ints(dim), dim // 2
    if scheme.startswith("rope_half"):
        one, two = b.slice(x, -1, b.ints(0), b.ints(half)), b.slice(x, -1, b.ints(half), last)
        return b.op("Concat", *_turned(b, one, two, cos, sin), axis=-1)
    one, two = b.slice(x, -1, b.ints(0), last, 2), b.slice(x, -1, b.ints(1), last, 2)
    pairs = b.op("Concat", *(b.unsqueeze(z, -1) for z in _turned(b, one, two, cos, sin)), axis=-1)
    return b.op("Reshape", pairs, b.op("Shape", x))


def _turned(b: Builder, one: str, two: str, cos: str, sin: str) -> tuple[str, str]:
    first = b.op("Sub", b.op("Mul", one, cos), b.op("Mul", two, sin))
    return first, b.op("Add", b.op("Mul", one, sin), b.op("Mul", two, cos))


# ---- Transformer-XL


def sinusoids(positions: Array, dim: int) -> Array:
    w = np.exp(-math.log(100.0) * np.arange(0, dim, 2) / dim)
    return np.concatenate([np.sin(positions[:, None] * w), np.cos(positions[:, None] * w)], 1).astype(np.float32)


def relative_table(b: Builder, scheme: str, size: str, dim: int, longest: int = LONGEST) -> str:
    """Rows for offsets j - i = -(T-1) ... (T-1), or ... 0 in the legacy form, or -T ... (T-1) for XLNet's."""
    _, form, kind = scheme.split("_")
    low = b.op("Neg", size) if form == "xlnet" else b.op("Sub", b.scalar(1), size)
    end = b.scalar(1) if form in ("legacy", "hf") else size
    whole = sinusoids(np.arange(-longest, longest), dim)
    if kind == "slice":
        start, stop = (b.vector(b.op("Add", n, b.scalar(longest))) for n in (low, end))
        return b.slice(b.const(whole), 0, start, stop)
    p = b.op("Range", low, end, b.scalar(1))
    if kind == "gather":
        return b.op("Gather", b.const(whole), b.op("Add", p, b.scalar(longest)))
    w = b.const(np.exp(-math.log(100.0) * np.arange(0, dim, 2) / dim))
    angle = b.op("Mul", b.unsqueeze(b.cast(p, np.float32), 1), w)
    return b.op("Concat", b.op("Sin", angle), b.op("Cos", angle), axis=1)


def shifted(b: Builder, scheme: str, raw: str, lead: list[int | str], size: str) -> str:
    """raw [*lead, T, offsets] -> [*lead, T, T], by the shift of each toolkit. `lead` are the sizes in front."""
    form, rank = scheme.split("_")[1], len(lead) + 2
    twice = b.op("Mul", size, b.scalar(2))
    if form == "nemo":
        pads = b.const(np.array([0] * (rank - 1) + [1] + [0] * rank))
        x = b.op("Pad", raw, pads)
        x = b.reshape(x, *lead, -1, size)
        x = b.slice(x, rank - 2, b.ints(1), b.ints(2**31))
        x = b.reshape(x, *lead, size, b.op("Sub", twice, b.scalar(1)))
        return b.slice(x, rank - 1, b.ints(0), b.vector(size))
    if form == "xlnet":
        x = b.reshape(raw, *lead, twice, size)
        x = b.slice(x, rank - 2, b.ints(1), b.ints(2**31))
        x = b.reshape(x, *lead, size, b.op("Sub", twice, b.scalar(1)))
        return b.op("Gather", x, b.range(size), axis=rank - 1)
    zeros = b.op("ConstantOfShape", b.shape(*lead, size, 1))
    x = b.op("Concat", zeros, raw, axis=rank - 1)
    width = b.size(raw, rank - 1)
    x = b.reshape(x, *lead, b.op("Add", width, b.scalar(1)), size)
    x = b.slice(x, rank - 2, b.ints(1), b.ints(2**31))
    x = b.op("Reshape", x, b.op("Shape", raw))
    if form == "legacy":
        return x
    half = b.op("Add", b.op("Div", width, b.scalar(2)), b.scalar(1))
    return b.slice(x, rank - 1, b.ints(0), b.vector(half))
