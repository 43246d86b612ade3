"""Operators that move elements about: most of them are the same memory, seen otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pulsify.backends.native.fuse import Chain, copy, dense, emit_loop, indented, literal
from pulsify.backends.native.scope import Kernel, Scope, Site
from pulsify.backends.native.table import op
from pulsify.backends.native.views import View, indices, loops
from pulsify.backends.padding import shown
from pulsify.backends.seam import Array

MOST_RUNS = 4  # pieces that are copied each by itself; more are looked up in a table


@op("Identity", "Dropout")
def same(n: Site) -> None:
    n.only(0)
    n.alias(n.x())


@op("Reshape", "Squeeze", "Unsqueeze", "Flatten")
def reshape(n: Site) -> None:
    n.alias(reshaped(n.scope, n.x(), n.gives()))


def reshaped(scope: Scope, view: View, shape: Sequence[int]) -> View:
    seen = view.reshaped(shape)
    if seen is None:
        seen = dense(scope, view).reshaped(shape)
    assert seen is not None
    return seen


@op("Transpose")
def transpose(n: Site) -> None:
    rank = len(n.sizes())
    n.alias(n.x().permuted(n.attr("perm", tuple(reversed(range(rank))))))


@op("Expand")
def expand(n: Site) -> None:
    n.alias(n.x().spread(n.gives()))


@op("Slice")
def cut(n: Site) -> None:
    view, sizes = n.x(), n.sizes()
    if n.opset < 10:
        starts, ends = list(n.attr("starts")), list(n.attr("ends"))
        axes = list(n.attr("axes", range(len(starts))))
        steps = [1] * len(starts)
    else:
        starts, ends = n.ints(1, "starts"), n.ints(2, "ends")
        axes = n.ints(3, "axes") if n.has(3) else list(range(len(starts)))
        steps = n.ints(4, "steps") if n.has(4) else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= len(sizes)
        first, last, by = slice(start, None if end < -sizes[axis] and step < 0 else end, step).indices(sizes[axis])
        view = view.cut(axis, first, len(range(first, last, by)), by)
    n.alias(view)


@op("Split")
def split(n: Site) -> None:
    view, axis, at = n.x(), n.axis(), 0
    for i, out in enumerate(n.node.outputs):
        size = n.scope.shape(out)[axis]
        n.alias(view.cut(axis, at, size), i)
        at += size


@op("Concat")
def concat(n: Site) -> None:
    """Parts that were written right where they belong are there already."""
    scope, axis, out = n.scope, n.axis(), n.node.outputs[0]
    parts = [(scope.shape(v)[axis], v) for v in n.node.inputs if v is not None]
    lying = [scope.view(v) for _, v in parts if v not in scope.constants and scope.view(v).size]
    order = max(lying, key=lambda v: v.size).order if lying else range(len(n.gives()))
    whole, at = scope.join(n.node, order), 0
    for size, value in parts:
        piece = whole.cut(axis, at, size)
        if size and scope.view(value) != piece:
            copy(scope, scope.view(value, whole.order), piece, "join")
        at += size
    scope.views[out] = whole


@op("Tile")
def tile(n: Site) -> None:
    """Every axis as (repeats, size), the first one repeated."""
    view, out = n.x(), n.out()
    shape: list[int] = []
    strides: list[int] = []
    steps: list[int] = []
    for size, times, s, t in zip(view.shape, n.ints(1, "repeats"), view.strides, out.strides, strict=True):
        shape += [times, size]
        strides += [0, s]
        steps += [t * size, t]
    target = View(out.buffer, tuple(shape), tuple(steps), out.offset)
    copy(n.scope, View(view.buffer, tuple(shape), tuple(strides), view.offset), target, "tile")


@op("Pad")
def pad(n: Site) -> None:
    mode, rank = n.text("mode", "constant"), len(n.sizes())
    if n.opset < 11:
        pads, value = list(n.attr("pads")), float(n.attr("value", 0.0))
    else:
        pads = n.ints(1, "pads")
        number = n.known(2, "value").reshape(-1) if n.has(2) else np.zeros(0)
        value = number[0] if number.size else 0.0
    axes = [a % rank for a in n.ints(3, "axes")] if n.has(3) else list(range(rank))
    low, high = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        low[axis], high[axis] = pads[i], pads[i + len(axes)]
    if mode == "constant":
        out = n.out(order=n.x().order)
        padded(n.scope, n.x(), out, low, high, literal(value, out.ctype))
        return
    view = n.x()
    for axis in range(rank):
        if low[axis] or high[axis]:
            view = taken(n.scope, view, axis, shown(view.shape[axis], low[axis], high[axis], mode))
    n.alias(view)


def padded(scope: Scope, view: View, out: View, low: Sequence[int], high: Sequence[int], value: str) -> None:
    """`view` in the middle of `out`; negative amounts cut off."""
    inner, target = view, out
    for axis, (a, b) in enumerate(zip(low, high, strict=True)):
        size = view.shape[axis] + min(a, 0) + min(b, 0)
        inner = inner.cut(axis, max(-a, 0), size)
        target = target.cut(axis, max(a, 0), size)
        for start, count in ((0, max(a, 0)), (max(a, 0) + size, max(b, 0))):
            if count and out.size:  # the border, axis by axis: corners belong to the first
                piece = out.cut(axis, start, count)
                for before in range(axis):
                    kept = view.shape[before] + min(low[before], 0) + min(high[before], 0)
                    piece = piece.cut(before, max(low[before], 0), kept)
                if piece.size:
                    emit_loop(scope, Chain((), value, ()), piece, "fill")
    if inner.size:
        copy(scope, inner, target, "pad")


def taken(scope: Scope, view: View, axis: int, places: Array) -> View:
    """Elements at these places of an axis: a view where they are evenly apart."""
    steps = np.diff(places)
    if places.size and (steps == (steps[0] if steps.size else 1)).all():
        return view.cut(axis, int(places[0]), places.size, int(steps[0]) if steps.size else 1)
    out = scope.work([places.size if a == axis else d for a, d in enumerate(view.shape)], view.ctype, view.order)
    pieces = runs(places)
    if len(pieces) > MOST_RUNS:
        _by_table(scope, view, axis, places, out)
        return out
    for at, size, step in pieces:
        copy(scope, view.cut(axis, int(places[at]), size, step), out.cut(axis, at, size), "take")
    return out


def runs(places: Array) -> list[tuple[int, int, int]]:
    """Pieces whose places are evenly apart: where they begin, how many, how far."""
    out, at = [], 0
    while at < places.size:
        end = at + 1
        while end < places.size and places[end] - places[end - 1] == (places[at + 1] - places[at]):
            end += 1
        out.append((at, end - at, int(places[at + 1] - places[at]) if end > at + 1 else 1))
        at = end
    return out


def _by_table(scope: Scope, view: View, axis: int, places: Array, out: View) -> None:
    table = scope.weights.put(places.astype(np.int32), "int32_t")
    rest = [a for a in out.order if a != axis]
    names = [f"i{a}" for a in rest]
    source, target = (indices(names, [v.strides[a] for a in rest]) for v in (view, out))
    lines = [
        f"for (int k = 0; k < {places.size}; k++) {{", *loops(names, [out.shape[a] for a in rest]),
        f"y[k * {out.strides[axis]} + {target}] = x[at[k] * {view.strides[axis]} + {source}];",
        *["}"] * (len(rest) + 1),
    ]  # fmt: skip
    params = (f"const {view.ctype} *restrict x", "const int32_t *restrict at", f"{view.ctype} *restrict y")
    scope.emit(Kernel("take", params, indented(lines)), (view, table, out))


@op("DepthToSpace", "SpaceToDepth")
def blocks(n: Site) -> None:
    size, block, view = n.sizes(), int(n.attr("blocksize")), n.x()
    batch, channels, height, width = size
    if n.op == "SpaceToDepth":
        parts, axes = (batch, channels, height // block, block, width // block, block), (0, 3, 5, 1, 2, 4)
    elif n.text("mode", "DCR") == "DCR":
        parts, axes = (batch, block, block, channels // block**2, height, width), (0, 3, 4, 1, 5, 2)
    else:
        parts, axes = (batch, channels // block**2, block, block, height, width), (0, 1, 4, 2, 5, 3)
    n.alias(reshaped(n.scope, reshaped(n.scope, view, parts).permuted(axes), n.gives()))


@op("Trilu")
def triangle(n: Site) -> None:
    view, out = n.x(), n.out()
    k, upper = (n.ints(1, "diagonal")[0] if n.has(1) else 0), int(n.attr("upper", 1))
    rows, columns = view.shape[-2:]
    kept = np.triu(np.ones((rows, columns), np.uint8), k) if upper else np.tril(np.ones((rows, columns), np.uint8), k)
    mask = n.scope.weights.put(kept, "uint8_t").spread(view.shape)
    zero = literal(0, view.ctype)
    lines = (f"const {view.ctype} v0 = x0[@0@];", "const uint8_t v1 = x1[@1@];")
    emit_loop(n.scope, Chain(lines, f"v1 ? v0 : {zero}", (view, mask)), out, "trilu")
