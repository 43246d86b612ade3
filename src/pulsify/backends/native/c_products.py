"""Products of matrices: constants are packed, data are taken as they lie."""

from __future__ import annotations

import numpy as np

from pulsify.backends.native.c_shapes import reshaped
from pulsify.backends.native.fuse import Chain, copy, emit_loop, literal
from pulsify.backends.native.scope import Site
from pulsify.backends.native.table import op
from pulsify.backends.native.tiles import Axis, loose, product
from pulsify.backends.native.views import View
from pulsify.backends.seam import Array
from pulsify.backends.site import Uncovered


def float_only(n: Site, *which: int) -> None:
    for i in which or (0,):
        if n.kind(i) != "float":
            raise Uncovered(f"of {n.kind(i)}")


@op("MatMul")
def matmul(n: Site) -> None:
    float_only(n, 0, 1)
    a, right, out = n.x(0), n.const(1), n.gives()
    if right is not None and right.ndim == 2 and len(a.shape) >= 2:
        y = n.out()
        m = [Axis(d, a.strides[i], 0, y.strides[i]) for i, d in enumerate(a.shape[:-1])]
        product(n.scope, a, right[None], None, y, m, [Axis(a.shape[-1], a.strides[-1])], y.strides[-1], hint="matmul")
        return
    left = n.const(0)
    if left is not None and left.ndim == 2 and right is None and len(n.sizes(1)) >= 2:
        _from_the_left(n, left)
        return
    b = n.x(1)
    whole = n.out()
    y = View(whole.buffer, whole.shape, whole.strides, whole.offset)
    if len(a.shape) == 1:
        a = View(a.buffer, (1, *a.shape), (0, *a.strides), a.offset)
        y = View(y.buffer, (*y.shape[:-1], 1, *y.shape[-1:]), (*y.strides[:-1], 0, *y.strides[-1:]), y.offset)
    if len(b.shape) == 1:
        b = View(b.buffer, (*b.shape, 1), (*b.strides, 0), b.offset)
        y = View(y.buffer, (*y.shape, 1), (*y.strides, 1), y.offset)
    lead = y.shape[:-2]
    a, b = a.spread((*lead, *a.shape[-2:])), b.spread((*lead, *b.shape[-2:]))
    axes = [Axis(d, a.strides[i], b.strides[i], y.strides[i]) for i, d in enumerate(lead)]
    if len(out) and not a.shape[-1]:
        emit_loop(n.scope, Chain((), "0.0f", ()), whole, "zero")
        return
    rows = Axis(a.shape[-2], a.strides[-2], 0, y.strides[-2])
    while rows.size == 1 and axes and axes[-1].b == 0:  # heads that share their right side are rows
        last = axes.pop()
        rows = Axis(last.size, last.a, 0, last.y)
    loose(
        n.scope, a, b, y, axes, rows, Axis(a.shape[-1], a.strides[-1], b.strides[-2]),
        Axis(b.shape[-1], 0, b.strides[-1], y.strides[-1]),
    )  # fmt: skip


def _from_the_left(n: Site, left: Array) -> None:
    """constant @ data: the columns of the data are rows of the transposed product."""
    b = n.x(1)
    rank = len(b.shape)
    y = n.out(order=(*range(rank - 2), rank - 1, rank - 2))
    m = [Axis(d, b.strides[i], 0, y.strides[i]) for i, d in enumerate(b.shape) if i != rank - 2]
    product(n.scope, b, left.T[None], None, y, m, [Axis(b.shape[-2], b.strides[-2])], y.strides[-2], hint="matmul")


@op("Gemm")
def gemm(n: Site) -> None:
    float_only(n, 0, 1)
    a, right = n.x(0), n.const(1)
    alpha, beta = float(n.attr("alpha", 1.0)), float(n.attr("beta", 1.0))
    a = a.permuted((1, 0)) if n.attr("transA", 0) else a
    y = n.out()
    bias = n.const(2) if n.has(2) else np.zeros(1, np.float32)
    m, k = [Axis(a.shape[0], a.strides[0], 0, y.strides[0])], Axis(a.shape[1], a.strides[1])
    if right is not None and bias is not None and (bias.ndim < 2 or bias.shape[0] == 1):
        weights = (right.T if n.attr("transB", 0) else right) * np.float32(alpha)
        row = np.broadcast_to(bias.reshape(-1) * np.float32(beta), (y.shape[1],))
        product(n.scope, a, weights[None], row, y, m, [k], y.strides[1], hint="gemm")
        return
    if alpha != 1.0:
        raise Uncovered("alpha is not 1 and its right side is no constant")
    b = n.x(1)
    b = b.permuted((1, 0)) if n.attr("transB", 0) else b
    target = n.scope.work(y.shape, "float") if n.has(2) else y
    loose(
        n.scope, a, b, target, [], Axis(m[0].size, m[0].a, 0, target.strides[0]), Axis(k.size, k.a, b.strides[0]),
        Axis(b.shape[1], 0, b.strides[1], target.strides[1]),
    )  # fmt: skip
    if n.has(2):
        lines = ("const float v0 = x0[@0@];", "const float v1 = x1[@1@];")
        result = f"v0 + {literal(beta, 'float')} * v1"
        emit_loop(n.scope, Chain(lines, result, (target, n.x(2).spread(y.shape))), y, "gemm_add")


@op("Einsum")
def einsum(n: Site) -> None:
    """Two operands: what both have and the result too comes in front, what only both have is summed over."""
    equation = n.text("equation", "").replace(" ", "")
    if "..." in equation or "->" not in equation or len(n.node.inputs) != 2:
        raise Uncovered(f"the equation {equation}")
    float_only(n, 0, 1)
    (left, right), result = equation.split("->")[0].split(","), equation.split("->")[1]
    if any(len(set(t)) != len(t) for t in (left, right, result)):
        raise Uncovered(f"the equation {equation}")
    lead = [c for c in result if c in left and c in right]
    rows, columns = ([c for c in result if c in t and c not in lead] for t in (left, right))
    summed = [c for c in left if c in right and c not in result]
    if len(lead + rows + columns) != len(result) or len(set(left + right)) != len(result) + len(summed):
        raise Uncovered(f"the equation {equation}")
    a = n.x(0).permuted([left.index(c) for c in lead + rows + summed])
    b = n.x(1).permuted([right.index(c) for c in lead + summed + columns])
    out = n.out()
    y = out.permuted([result.index(c) for c in lead + rows + columns])
    i, j = len(lead), len(lead) + len(rows)
    size = a.shape

    def count(dims: tuple[int, ...]) -> int:
        return int(np.prod(dims, dtype=np.int64))

    shapes = (count(size[i:j]), count(size[j:]), count(b.shape[i + len(summed) :]))
    a3 = reshaped(n.scope, a, (*size[:i], shapes[0], shapes[1]))
    b3 = reshaped(n.scope, b, (*size[:i], shapes[1], shapes[2]))
    seen = y.reshaped((*size[:i], shapes[0], shapes[2]))
    y3 = n.scope.work((*size[:i], shapes[0], shapes[2]), "float") if seen is None else seen
    axes = [Axis(d, a3.strides[q], b3.strides[q], y3.strides[q]) for q, d in enumerate(size[:i])]
    loose(
        n.scope, a3, b3, y3, axes, Axis(shapes[0], a3.strides[-2], 0, y3.strides[-2]),
        Axis(shapes[1], a3.strides[-1], b3.strides[-2]), Axis(shapes[2], 0, b3.strides[-1], y3.strides[-1]),
    )  # fmt: skip
    if seen is None:
        back = y3.reshaped(y.shape)
        assert back is not None
        copy(n.scope, back, y)
