"""Operators that look elements up, put them somewhere, or say where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pulsify.backends.native.c_shapes import taken
from pulsify.backends.native.fuse import copy, dense, indented, literal
from pulsify.backends.native.scope import Kernel, Site
from pulsify.backends.native.table import op
from pulsify.backends.native.views import View, indices, loops, row_major
from pulsify.backends.site import Uncovered


@op("Gather")
def gather(n: Site) -> None:
    """Known places are a view if they are evenly apart; those that are worked out are made to fit."""
    axis, places, view = n.axis(), n.const(1), n.x()
    size = view.shape[axis]
    if places is not None:
        found = taken(n.scope, view, axis, (places.reshape(-1) % max(size, 1)).astype(np.int64))
        before, after = found.shape[:axis], found.shape[axis + 1 :]
        if places.ndim == 1:
            n.alias(found)
        elif places.ndim == 0:
            drop = [a for a in range(len(found.shape)) if a != axis]
            n.alias(found.permuted(drop))
        else:
            seen = found.reshaped((*before, *places.shape, *after))
            assert seen is not None
            n.alias(seen)
        return
    where, out = dense(n.scope, n.x(1)), n.flat()
    count = where.size
    middle = out.reshaped((*view.shape[:axis], count, *view.shape[axis + 1 :]))
    assert middle is not None
    rest = [a for a in range(len(view.shape)) if a != axis]
    names = [f"i{a}" for a in rest]
    lines = [
        f"for (int k = 0; k < {count}; k++) {{", f"const int p = (int)p_place(at[k], {size});",
        *loops(names, [view.shape[a] for a in rest]),
        f"y[k * {middle.strides[axis]} + {indices(names, [middle.strides[a] for a in rest])}] = "
        f"x[p * {view.strides[axis]} + {indices(names, [view.strides[a] for a in rest])}];",
        *["}"] * (len(rest) + 1),
    ]  # fmt: skip
    params = (f"const {view.ctype} *restrict x", f"const {where.ctype} *restrict at", f"{view.ctype} *restrict y")
    n.emit(Kernel("gather", params, indented(lines)), (view, where, middle))


@op("GatherElements")
def gather_elements(n: Site) -> None:
    axis, view, where, out = n.axis(), n.x(), n.x(1), n.out()
    names = [f"i{a}" for a in range(len(out.shape))]
    steps = [s for a, s in enumerate(view.strides) if a != axis]
    lines = [
        *loops(names, out.shape),
        f"const int p = (int)p_place(at[{indices(names, where.strides)}], {view.shape[axis]});",
        f"y[{indices(names, out.strides)}] = "
        f"x[p * {view.strides[axis]} + {indices([m for a, m in enumerate(names) if a != axis], steps)}];",
        *["}"] * len(names),
    ]  # fmt: skip
    params = (f"const {view.ctype} *restrict x", f"const {where.ctype} *restrict at", f"{view.ctype} *restrict y")
    n.emit(Kernel("gather_elements", params, indented(lines)), (view, where, out))


def _each_place(where: View, view: View, pointer: str) -> tuple[list[str], list[str], int]:
    """The heads of loops over places that have several coordinates, and over all that lies at one, `v`.

    Then the names of the inner loops, and how many places there are. pointer: what `v` points into, with its type.
    """
    depth = where.shape[-1]
    count, names = where.size // max(depth, 1), [f"i{a}" for a in range(depth, len(view.shape))]
    steps = (f"(int)p_place(w[{d}], {view.shape[d]}) * {view.strides[d]}" for d in range(depth))
    kind, _, base = pointer.rpartition("*")
    lines = [
        f"for (int k = 0; k < {count}; k++) {{", f"const {where.ctype} *const w = at + k * {depth};",
        f"{kind}*const v = {base} + {' + '.join(steps) or '0'};", *loops(names, view.shape[depth:]),
    ]  # fmt: skip
    return lines, names, count


@op("GatherND")
def gather_nd(n: Site) -> None:
    view, where, out = n.x(), dense(n.scope, n.x(1)), n.flat()
    shared = int(n.attr("batch_dims", 0))
    outer, inner = view.shape[:shared], view.shape[shared:]
    rows, cells = math.prod(where.shape[shared:]), math.prod(out.shape[shared:])
    axes = [f"b{a}" for a in range(shared)]
    apart = replace(view, shape=inner, strides=view.strides[shared:])
    one = replace(where, shape=where.shape[shared:], strides=where.strides[shared:])
    head, names, _ = _each_place(one, apart, f"const {view.ctype} *x_row")
    each = row_major(inner[where.shape[-1] :])
    row = indices(axes, row_major(outer))
    lines = [
        *loops(axes, outer), f"const {view.ctype} *const x_row = x + {indices(axes, view.strides[:shared])};",
        f"const {where.ctype} *const at = every + ({row}) * {rows};", *head,
        f"y[({row}) * {cells} + k * {math.prod(inner[where.shape[-1] :])} + {indices(names, each)}] = "
        f"v[{indices(names, apart.strides[where.shape[-1] :])}];", *["}"] * (len(names) + 1 + shared),
    ]  # fmt: skip
    params = (f"const {view.ctype} *restrict x", f"const {where.ctype} *restrict every", f"{view.ctype} *restrict y")
    n.emit(Kernel("gather_nd", params, indented(lines)), (view, where, out))


@op("ScatterND")
def scatter_nd(n: Site) -> None:
    how = n.text("reduction", "none")
    if how not in ("none", "add"):
        raise Uncovered(f"reduction {how}")
    view, where, given, out = n.x(), dense(n.scope, n.x(1)), n.x(2), n.out()
    copy(n.scope, view, out, "scatter_start")
    depth, rows = where.shape[-1], dense(n.scope, given)
    head, names, _ = _each_place(where, out, f"{view.ctype} *y")
    each = row_major(view.shape[depth:])
    sign = "+=" if how == "add" else "="
    lines = [
        *head, f"v[{indices(names, out.strides[depth:])}] {sign} "
        f"u[k * {math.prod(view.shape[depth:])} + {indices(names, each)}];", *["}"] * (len(names) + 1),
    ]  # fmt: skip
    params = (f"const {where.ctype} *restrict at", f"const {view.ctype} *restrict u", f"{view.ctype} *restrict y")
    n.emit(Kernel("scatter_nd", params, indented(lines)), (where, rows, out))


@op("ScatterElements")
def scatter_elements(n: Site) -> None:
    how = n.text("reduction", "none")
    if how not in ("none", "add"):
        raise Uncovered(f"reduction {how}")
    axis, view, where, given, out = n.axis(), n.x(), n.x(1), n.x(2), n.out()
    copy(n.scope, view, out, "scatter_start")
    names = [f"i{a}" for a in range(len(out.shape))]
    others = [m for a, m in enumerate(names) if a != axis]
    steps = [s for a, s in enumerate(out.strides) if a != axis]
    lines = [
        *loops(names, where.shape),
        f"const int p = (int)p_place(at[{indices(names, where.strides)}], {out.shape[axis]});",
        f"y[p * {out.strides[axis]} + {indices(others, steps)}] {'+=' if how == 'add' else '='} "
        f"u[{indices(names, given.strides)}];",
        *["}"] * len(names),
    ]  # fmt: skip
    params = (f"const {where.ctype} *restrict at", f"const {view.ctype} *restrict u", f"{view.ctype} *restrict y")
    n.emit(Kernel("scatter_elements", params, indented(lines)), (where, given, out))


def _in_rows(n: Site, axis: int) -> tuple[View, int, int]:
    view = n.x()
    order = [a for a in range(len(view.shape)) if a != axis] + [axis]
    rows = dense(n.scope, view.permuted(order))
    size = view.shape[axis]
    return rows, rows.size // max(size, 1), size


@op("ArgMax", "ArgMin")
def extreme(n: Site) -> None:
    axis = n.axis()
    rows, count, size = _in_rows(n, axis)
    sign = ">" if n.op == "ArgMax" else "<"
    better = f"x[k] {sign}{'=' if n.attr('select_last_index', 0) else ''} x[best]"
    out = n.flat()
    lines = [
        f"for (int i = 0; i < {count}; i++) {{", f"const {rows.ctype} *const x = x0 + i * {size};", "int best = 0;",
        f"for (int k = 1; k < {size}; k++) best = {better} ? k : best;", "y[i] = best;", "}",
    ]  # fmt: skip
    n.emit(
        Kernel(n.op.lower(), (f"const {rows.ctype} *restrict x0", "int64_t *restrict y"), indented(lines)), (rows, out)
    )


@op("TopK")
def top(n: Site) -> None:
    """By choosing the best that is left, of equal ones the earlier first."""
    axis, (k,) = n.axis(default=-1), n.ints(1, "count")
    rows, count, size = _in_rows(n, axis)
    sign = ">" if n.attr("largest", 1) else "<"
    order = [a for a in range(len(n.sizes())) if a != axis] + [axis]
    back = [order.index(a) for a in range(len(order))]
    shape = [n.gives()[a] for a in order]
    values, places = n.scope.work(shape, rows.ctype), n.scope.work(shape, "int64_t")
    lines = [
        f"for (int i = 0; i < {count}; i++) {{", f"const {rows.ctype} *const x = x0 + i * {size};",
        f"for (int r = 0; r < {k}; r++) {{", "int best = -1;", f"for (int j = 0; j < {size}; j++) {{", "int used = 0;",
        f"for (int q = 0; q < r; q++) used |= at[i * {k} + q] == j;",
        f"if (!used && (best < 0 || x[j] {sign} x[best])) best = j;", "}",
        f"y[i * {k} + r] = x[best];", f"at[i * {k} + r] = best;", "}", "}",
    ]  # fmt: skip
    params = (f"const {rows.ctype} *restrict x0", f"{rows.ctype} *restrict y", "int64_t *restrict at")
    n.emit(Kernel("top", params, indented(lines)), (rows, values, places), 2)
    n.alias(values.permuted(back), 0)
    n.alias(places.permuted(back), 1)


@op("OneHot")
def one_hot(n: Site) -> None:
    (depth,), axis, where = n.ints(1, "depth"), int(n.attr("axis", -1)), n.x()
    rank, out = len(where.shape), n.out()
    axis = axis + rank + 1 if axis < 0 else axis
    off, on = (literal(v, n.makes()) for v in n.known(2, "values").reshape(-1))
    names = [f"i{a}" for a in range(rank)]
    others: Sequence[int] = [s for a, s in enumerate(out.strides) if a != axis]
    lines = [
        *loops(names, where.shape), f"const int64_t w = (int64_t)at[{indices(names, where.strides)}];",
        f"const int64_t p = w < 0 ? w + {depth} : w;", f"for (int k = 0; k < {depth}; k++) {{",
        f"y[k * {out.strides[axis]} + {indices(names, others)}] = p == k ? {on} : {off};", "}", *["}"] * rank,
    ]  # fmt: skip
    params = (f"const {where.ctype} *restrict at", f"{out.ctype} *restrict y")
    n.emit(Kernel("one_hot", params, indented(lines)), (where, out))


@op("Hardmax")
def hard_max(n: Site) -> None:
    """One at the first of the greatest, zero elsewhere."""
    if n.opset < 13:
        raise Uncovered("over several axes at once, as it was before opset 13")
    axis = n.axis(default=-1)
    rows, count, size = _in_rows(n, axis)
    order = [a for a in range(len(n.sizes())) if a != axis] + [axis]
    made, kind = n.scope.work(rows.shape, rows.ctype), rows.ctype
    lines = [
        f"for (int i = 0; i < {count}; i++) {{", f"const {kind} *const x = x0 + i * {size};", "int best = 0;",
        f"for (int k = 1; k < {size}; k++) best = x[k] > x[best] ? k : best;",
        f"for (int k = 0; k < {size}; k++) y[i * {size} + k] = ({kind})(k == best);", "}",
    ]  # fmt: skip
    n.emit(Kernel("hardmax", (f"const {kind} *restrict x0", f"{kind} *restrict y"), indented(lines)), (rows, made))
    n.alias(made.permuted([order.index(a) for a in range(len(order))]))


@op("ReverseSequence")
def reverse_sequence(n: Site) -> None:
    """The first few of an axis, how many for every stream, from the last to the first."""
    time, batch, x = n.axis("time_axis", 0), n.axis("batch_axis", 1), n.x()
    lens, y = dense(n.scope, n.x(1)), n.out(order=x.order)
    names = [f"i{a}" for a in range(len(x.shape))]
    others = [a for a in range(len(x.shape)) if a != time]
    lines = [
        *loops(names, x.shape), f"const int len = (int)lens[i{batch}];",
        f"const int t = i{time} < len ? len - 1 - i{time} : i{time};",
        f"y[{indices(names, y.strides)}] = "
        f"x[t * {x.strides[time]} + {indices([names[a] for a in others], [x.strides[a] for a in others])}];",
        *["}"] * len(names),
    ]  # fmt: skip
    params = (f"const {x.ctype} *restrict x", f"const {lens.ctype} *restrict lens", f"{x.ctype} *restrict y")
    n.emit(Kernel("reverse", params, indented(lines)), (x, lens, y))
