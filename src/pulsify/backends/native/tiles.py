"""Products: the innermost loop runs over outputs, a few rows at a time, with sums kept in registers.

packed     y[m, n] = w[0, n] + sum_k a[m, k] * w[1 + k, n]      constants, in blocks of outputs: [block][1 + k][8 * v]
over rows  the same with rows innermost, where there are few outputs and rows lie side by side
loose      y[m, n] = sum_k a[m, k] * b[k, n]                    both are data, b's outputs lie side by side
dots       the same where b's and a's summands lie side by side
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pulsify.backends.native.fuse import copy, indented
from pulsify.backends.native.scope import Kernel, Scope
from pulsify.backends.native.views import View, indices, loops
from pulsify.backends.seam import Array

LANES = 8
MORE = 2  # vectors that a block of one row may have beyond its size


@dataclass(frozen=True)
class Axis:
    """A loop of a product: its size, and how far a step is in a, b and y."""

    size: int
    a: int = 0
    b: int = 0
    y: int = 0


def tidied(axes: Sequence[Axis]) -> list[Axis]:
    """Without loops of one; those that lie together become one."""
    out: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if out and all(getattr(out[-1], s) == getattr(axis, s) * axis.size for s in "aby"):
            last = out.pop()
            axis = Axis(last.size * axis.size, axis.a, axis.b, axis.y)
        out.append(axis)
    return out


def tile(rows: int, vectors: int) -> tuple[int, int]:
    """Rows and vectors of outputs at a time, so that sums stay in 16 registers."""
    if rows >= 4:
        if vectors == 1:
            return min(rows, 8), 1
        if rows % 6 == 0 and rows % 4 and vectors % 2 == 0:
            return 6, 2
        return 4, 3 if vectors % 3 == 0 or vectors > 5 else 2
    most = {1: 8, 2: 4, 3: 4}[rows]
    best = min(range(max(most // 2, 1), most + 1), key=lambda v: (-(-vectors // v), v))
    return rows, min(best, vectors)


def blocks(count: int, vectors: int, rows: int = 1) -> list[tuple[int, int]]:
    """Outputs in blocks: (where it begins, vectors). One or two that are left join the last block, if that is one row.

    A sum alone has to wait for itself.
    """
    total = -(-count // LANES)
    full, rest = divmod(total, vectors)
    sizes = [vectors] * full + [rest] * (rest > 0)
    if rows == 1 and full and 0 < rest <= MORE:
        sizes = [*sizes[:-2], vectors + rest]
    return [(sum(sizes[:i]) * LANES, size) for i, size in enumerate(sizes)]


def packed(weights: Array, bias: Array | None, vectors: int, rows: int = 1) -> Array:
    """[..., K, N] in blocks of outputs, the bias in front of each."""
    lead, (count, outputs) = weights.shape[:-2], weights.shape[-2:]
    row = np.zeros((*lead, 1, outputs), np.float32) if bias is None else bias.reshape(*lead, 1, outputs)
    whole = np.concatenate([row, weights], axis=-2).astype(np.float32)
    room = -(-outputs // LANES) * LANES
    whole = np.concatenate([whole, np.zeros((*lead, count + 1, room - outputs), np.float32)], axis=-1)
    parts = [whole[..., at : at + v * LANES].reshape(*lead, -1) for at, v in blocks(outputs, vectors, rows)]
    return np.concatenate(parts, axis=-1)


def rows_last(m: Sequence[Axis]) -> tuple[list[Axis], Axis]:
    """Loops over rows, and the longest of them apart: that one is done a few at a time."""
    axes = tidied(m)
    if not axes:
        return [], Axis(1)
    longest = max(range(len(axes)), key=lambda i: axes[i].size)
    return axes[:longest] + axes[longest + 1 :], axes[longest]


def product(
    scope: Scope, a: View, weights: Array, bias: Array | None, y: View, m: Sequence[Axis], k: Sequence[Axis], step: int,
    groups: Axis | None = None, hint: str = "product",
) -> None:  # fmt: skip
    """y = bias + a @ weights, for weights [G, K, N] that are constants. step: from output to output in y."""
    kernel, pack = product_kernel(weights, bias, m, k, step, groups, hint)
    scope.emit(kernel, (a, scope.weights.put(pack, "float"), y))


def product_kernel(
    weights: Array, bias: Array | None, m: Sequence[Axis], k: Sequence[Axis], step: int, groups: Axis | None = None,
    hint: str = "product", turns: bool = False,
) -> tuple[Kernel, Array]:  # fmt: skip
    """The kernel (a, w, y), and the weights as it reads them.

    turns: it has one more argument, whether to go from the last outputs to the first. Who calls it again and again does
    so every other time: the weights that were read last are still near then.
    """
    _, _, outputs = weights.shape
    outer, inner = rows_last(m)
    if outputs < LANES and inner.size >= LANES and inner.a == 1 and not turns:
        return _over_rows(weights, bias, outer, inner, tidied(k), step, groups, hint)
    vectors = -(-outputs // LANES)
    height, wide = tile(inner.size, vectors)
    pack = packed(weights, None if bias is None else bias.reshape(weights.shape[0], -1), wide, height)
    lines = [*["(void)back;"] * turns, *_group_head(groups, pack.shape[-1])]
    names = [f"m{i}" for i in range(len(outer))]
    sums = tidied(k)
    depth = math.prod(axis.size for axis in k)
    at = 0
    # blocks of the same width are one loop
    parts = blocks(outputs, wide, height)
    full = [p for p in parts if p[1] == wide and p[0] + wide * LANES <= outputs]
    rest = [p for p in parts if p not in full]
    runs = [(full[0][0], len(full), wide)] if full else []
    runs += [(p[0], 1, p[1]) for p in rest]
    for start, times, v in runs:
        size = (depth + 1) * v * LANES
        lines.append(f"for (int q = 0; q < {times}; q++) {{")
        lines.append(f"const int n = back ? {times - 1} - q : q;" if turns and times > 1 else "const int n = q;")
        lines.append(f"const float *const wn = w + {at} + n * {size};")
        lines.append(f"float *const yn = y + ({start} + n * {v * LANES}) * {step};")
        lines += loops(names, [axis.size for axis in outer])
        lines.append(f"const float *const am = a + {indices(names, [x.a for x in outer])};")
        lines.append(f"float *const ym = yn + {indices(names, [x.y for x in outer])};")
        lines += _tiles(inner, height, v, sums, min(outputs - start, v * LANES) if times == 1 else v * LANES, step)
        lines += ["}"] * (len(outer) + 1)
        at += times * size
    lines += ["}"] * (groups is not None)
    params = ("const float *restrict a", "const float *restrict w", "float *restrict y", *["int back"] * turns)
    return Kernel(hint, params, indented(lines)), pack


def _group_head(groups: Axis | None, size: int) -> Iterator[str]:
    if groups is not None:
        yield f"for (int g = 0; g < {groups.size}; g++, a += {groups.a}, w += {size}, y += {groups.y}) {{"


def _tiles(inner: Axis, height: int, vectors: int, k: Sequence[Axis], outputs: int, step: int) -> Iterator[str]:
    """All rows of the inner loop for one block of outputs."""
    whole = inner.size // height
    if whole:
        yield "{" if whole == 1 else f"for (int i = 0; i < {whole * height}; i += {height}) {{"
        yield from _tile("0" if whole == 1 else "i", inner, height, vectors, k, outputs, step)
        yield "}"
    if inner.size % height:
        yield "{"
        yield from _tile(str(whole * height), inner, inner.size % height, vectors, k, outputs, step)
        yield "}"


def _tile(at: str, inner: Axis, rows: int, vectors: int, k: Sequence[Axis], outputs: int, step: int) -> Iterator[str]:
    grid = [(r, v) for r in range(rows) for v in range(vectors)]
    yield f"const float *p = wn + {vectors * LANES};"
    for r in range(rows):
        yield f"const float *const a{r} = am + ({at} + {r}) * {inner.a};"
    for r, v in grid:
        yield f"p_vec s{r}_{v} = p_load(wn + {v * LANES});"
    names = [f"k{i}" for i in range(len(k))]
    yield from loops(names, [axis.size for axis in k])
    place = indices(names, [axis.a for axis in k])
    for v in range(vectors):
        yield f"const p_vec b{v} = p_load(p + {v * LANES});"
    for r in range(rows):
        yield f"const float x{r} = a{r}[{place}];"
        for v in range(vectors):
            yield f"P_MADD(s{r}_{v}, b{v}, x{r});"
    yield f"p += {vectors * LANES};"
    yield from ["}"] * len(k)
    for r, v in grid:
        count = min(LANES, outputs - v * LANES)
        target = f"ym + ({at} + {r}) * {inner.y} + {v * LANES * step}"
        yield from stored(target, f"s{r}_{v}", count, step)


def stored(target: str, value: str, count: int, step: int) -> Iterator[str]:
    if step == 1 and count == LANES:
        yield f"p_store({target}, {value});"
    elif step == 1:
        yield f"p_some({target}, {value}, {count});"
    else:
        put = f"for (int e = 0; e < {count}; e++) ({target})[e * {step}] = f[e];"  # not a name that the target has
        yield f"{{ float f[8]; p_store(f, {value}); {put} }}"


def _over_rows(
    weights: Array, bias: Array | None, outer: Sequence[Axis], inner: Axis, k: Sequence[Axis], step: int,
    groups: Axis | None, hint: str,
) -> tuple[Kernel, Array]:  # fmt: skip
    """Few outputs, many rows side by side: eight rows are a vector; the last eight may overlap those before."""
    outputs = weights.shape[-1]
    row = np.zeros((weights.shape[0], 1, outputs)) if bias is None else bias.reshape(weights.shape[0], 1, outputs)
    pack = np.concatenate([row, weights], axis=1).astype(np.float32).reshape(weights.shape[0], -1)
    lines = list(_group_head(groups, pack.shape[-1]))
    names = [f"m{i}" for i in range(len(outer))]
    lines += loops(names, [axis.size for axis in outer])
    lines.append(f"const float *const am = a + {indices(names, [x.a for x in outer])};")
    lines.append(f"float *const ym = y + {indices(names, [x.y for x in outer])};")
    lines.append(f"for (int b = 0; b < {-(-inner.size // LANES)}; b++) {{")
    lines.append(f"const int i = b * {LANES} < {inner.size - LANES} ? b * {LANES} : {inner.size - LANES};")
    lines.append(f"const float *p = w + {outputs};")
    lines += [f"p_vec s{o} = P_SPLAT(w[{o}]);" for o in range(outputs)]
    sums = [f"k{i}" for i in range(len(k))]
    lines += loops(sums, [axis.size for axis in k])
    lines.append(f"const p_vec v = p_load(am + i + {indices(sums, [axis.a for axis in k])});")
    lines += [f"P_MADD(s{o}, v, p[{o}]);" for o in range(outputs)]
    lines += [f"p += {outputs};", *["}"] * len(k)]
    for o in range(outputs):
        lines += stored(f"ym + i * {inner.y} + {o * step}", f"s{o}", LANES, inner.y)
    lines += ["}"] * (len(outer) + 1 + (groups is not None))
    params = ("const float *restrict a", "const float *restrict w", "float *restrict y")
    return Kernel(f"{hint}_rows", params, indented(lines)), pack


# ---- both sides are data


def loose(scope: Scope, a: View, b: View, y: View, lead: Sequence[Axis], m: Axis, k: Axis, n: Axis) -> None:
    """y = a @ b for every index of `lead`."""
    if k.b == 1 and n.b != 1 and m.size >= LANES and n.size >= LANES:  # many rows: turning b over pays
        b, lead, k, n = _turned(scope, b, lead, k, n)
    outer = tidied(lead)
    names = [f"l{i}" for i in range(len(outer))]
    lines = list(loops(names, [axis.size for axis in outer]))
    for name, step in (("a", "a"), ("b", "b"), ("y", "y")):
        kind = "float" if name == "y" else "const float"
        lines.append(f"{kind} *const {name}l = {name} + {indices(names, [getattr(x, step) for x in outer])};")
    if k.a == 1 and k.b == 1 and not (n.b == 1 and n.size >= LANES):
        lines += _dots(m, k, n)
        hint = "dots"
    elif n.b == 1 and n.size >= LANES:
        lines += _outer(m, k, n)
        hint = "product"
    else:
        lines += _plain(m, k, n)
        hint = "product"
    lines += ["}"] * len(outer)
    params = ("const float *restrict a", "const float *restrict b", "float *restrict y")
    scope.emit(Kernel(hint, params, indented(lines)), (a, b, y))


def _turned(scope: Scope, b: View, lead: Sequence[Axis], k: Axis, n: Axis) -> tuple[View, list[Axis], Axis, Axis]:
    """b with its outputs side by side, and the loops as they are then."""
    shared = [axis if axis.b else Axis(1) for axis in lead]
    shape = (*(axis.size for axis in shared), k.size, n.size)
    made = scope.work(shape, "float")
    copy(scope, View(b.buffer, shape, (*(axis.b for axis in shared), k.b, n.b), b.offset), made, "turn")
    steps = [s if axis.b else 0 for axis, s in zip(lead, made.strides, strict=False)]
    axes = [Axis(axis.size, axis.a, s, axis.y) for axis, s in zip(lead, steps, strict=True)]
    return made, axes, Axis(k.size, k.a, n.size), Axis(n.size, 0, 1, n.y)


def _dots(m: Axis, k: Axis, n: Axis) -> Iterator[str]:
    yield f"for (int i = 0; i < {m.size}; i++) {{"
    yield f"const float *const ai = al + i * {m.a};"
    whole, four = k.size // LANES * LANES, n.size // 4 * 4
    for start, stop, wide in ((0, four, 4), (four, n.size, 1)):
        if start == stop:
            continue
        yield f"for (int j = {start}; j < {stop}; j += {wide}) {{"
        for c in range(wide):
            yield f"const float *const b{c} = bl + (j + {c}) * {n.b};"
            yield f"p_vec v{c} = P_SPLAT(0.0f);"
        if whole:
            yield f"for (int q = 0; q < {whole}; q += {LANES}) {{"
            yield "const p_vec x = p_load(ai + q);"
            for c in range(wide):
                yield f"p_madd(&v{c}, x, p_load(b{c} + q));"
            yield "}"
        for c in range(wide):
            yield f"float s{c} = p_sum(v{c});"
        if whole < k.size:
            yield f"for (int q = {whole}; q < {k.size}; q++) {{"
            for c in range(wide):
                yield f"s{c} += ai[q] * b{c}[q];"
            yield "}"
        for c in range(wide):
            yield f"yl[i * {m.y} + (j + {c}) * {n.y}] = s{c};"
        yield "}"
    yield "}"


def _outer(m: Axis, k: Axis, n: Axis) -> Iterator[str]:
    """Blocks of outputs; the last one may overlap the one before."""
    height = min(m.size, 4)
    vectors = max(v for v in range(1, (2 if height >= 4 else 4) + 1) if v * LANES <= n.size)
    span = vectors * LANES
    yield f"for (int c = 0; c < {-(-n.size // span)}; c++) {{"
    yield f"const int j = c * {span} < {n.size - span} ? c * {span} : {n.size - span};"
    for start, stop, rows in (
        (0, m.size // height * height, height),
        (m.size // height * height, m.size, m.size % height),
    ):
        if start == stop:
            continue
        yield f"for (int i = {start}; i < {stop}; i += {rows}) {{"
        for r in range(rows):
            yield f"const float *const a{r} = al + (i + {r}) * {m.a};"
            for v in range(vectors):
                yield f"p_vec s{r}_{v} = P_SPLAT(0.0f);"
        yield f"for (int q = 0; q < {k.size}; q++) {{"
        for v in range(vectors):
            yield f"const p_vec b{v} = p_load(bl + q * {k.b} + j + {v * LANES});"
        for r in range(rows):
            yield f"const float x{r} = a{r}[q * {k.a}];"
            for v in range(vectors):
                yield f"P_MADD(s{r}_{v}, b{v}, x{r});"
        yield "}"
        for r in range(rows):
            for v in range(vectors):
                yield from stored(f"yl + (i + {r}) * {m.y} + (j + {v * LANES}) * {n.y}", f"s{r}_{v}", LANES, n.y)
        yield "}"
    yield "}"


def _plain(m: Axis, k: Axis, n: Axis) -> Iterator[str]:
    yield from loops(["i", "j"], [m.size, n.size])
    yield "float s = 0.0f;"
    yield f"for (int q = 0; q < {k.size}; q++) s += al[i * {m.a} + q * {k.a}] * bl[q * {k.b} + j * {n.b}];"
    yield f"yl[i * {m.y} + j * {n.y}] = s;"
    yield "}"
    yield "}"
