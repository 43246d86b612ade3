"""Sums and the like over axes, running sums, softmax. What makes the elements is worked out where they are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pulsify.backends.native.fuse import Chain, chain, dense, indented, literal
from pulsify.backends.native.scope import Kernel, Site
from pulsify.backends.native.table import op
from pulsify.backends.native.views import FLOATING, NUMPY, View, indices, loops, merged
from pulsify.backends.site import Uncovered

SUMS = {
    "ReduceSum": ("0", "{s} += {x}", "s"),
    "ReduceMean": ("0", "{s} += {x}", "s / {n}"),
    "ReduceL1": ("0", "{s} += {abs}({x})", "s"),
    "ReduceL2": ("0", "{s} += {x} * {x}", "{sqrt}(s)"),
    "ReduceLogSum": ("0", "{s} += {x}", "{log}(s)"),
    "ReduceSumSquare": ("0", "{s} += {x} * {x}", "s"),
    "ReduceProd": ("1", "{s} *= {x}", "s"),
    "ReduceMax": ("first", "{s} = {x} > {s} || {x} != {x} ? {x} : {s}", "s"),
    "ReduceMin": ("first", "{s} = {x} < {s} || {x} != {x} ? {x} : {s}", "s"),
}  # fmt: skip  the start, a step, the end


def axes_of(n: Site) -> list[int]:
    rank = len(n.sizes())
    if n.attr("axes") is not None:
        given = [int(a) for a in n.attr("axes")]
    elif n.has(1):
        given = n.ints(1, "axes")
    else:
        given = []
    if not given and n.attr("noop_with_empty_axes", 0):
        return []
    return sorted(a % rank for a in given) if given else list(range(rank))


@op(*SUMS)
def reduce(n: Site) -> None:
    value, kind = n.given(0), n.kind()
    axes, shape = axes_of(n), n.sizes()
    found = chain(n.scope, value, n.scope.members)
    keep = [a for a in range(len(shape)) if a not in axes]
    lying = next((leaf for leaf in found.leaves if 0 not in leaf.strides), None)
    full = [shape[a] if a in keep else 1 for a in range(len(shape))]
    out = n.out(order=None if len(n.gives()) != len(shape) or lying is None else lying.order)
    seen = out.reshaped(full)
    assert seen is not None
    _reduced(n, found, seen, keep, axes, kind)


def _reduced(n: Site, found: Chain, seen: View, keep: Sequence[int], axes: Sequence[int], kind: str) -> None:
    start, step, end = SUMS[n.op]
    shape = n.sizes()
    count = int(np.prod([shape[a] for a in axes], dtype=np.int64))
    first = literal(-np.inf if n.op == "ReduceMax" else np.inf, kind) if kind in FLOATING else None
    if start == "first" and first is None:
        ends = np.iinfo(NUMPY[kind])
        first = literal(ends.min if n.op == "ReduceMax" else ends.max, kind)
    begin = first if start == "first" else literal(int(start), kind)
    suffix = "f" if kind == "float" else ""
    log = "p_log" if kind == "float" else "log"
    words = {"abs": f"fabs{suffix}", "sqrt": f"sqrt{suffix}", "log": log, "n": literal(count, kind)}
    if kind not in FLOATING and n.op not in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"):
        raise Uncovered(f"of {kind}")
    outer = [v.permuted(list(keep)) for v in (*found.leaves, seen)]
    inner = [v.permuted(list(axes)) for v in found.leaves]
    rows, row_steps = merged(tuple(shape[a] for a in keep), [v.strides for v in outer])
    sums, sum_steps = merged(tuple(shape[a] for a in axes), [v.strides for v in inner])
    names, inside = [f"i{k}" for k in range(len(rows))], [f"k{k}" for k in range(len(sums))]
    lines = list(loops(names, rows))
    places = [f"{indices(names, a)} + {indices(inside, b)}" for a, b in zip(row_steps, sum_steps, strict=False)]
    lanes = sums[-1] >= 16 and kind == "float" if sums else False
    body = _filled(found.lines, places)
    if lanes:
        lines += _in_lanes(begin or "0", step.format(s="e[q]", x=found.result, **words), body, sums, inside, n.op)
    else:
        lines += [f"{kind} s = {begin};", *loops(inside, sums), *body]
        lines += [step.format(s="s", x=found.result, **words) + ";", *["}"] * len(sums)]
    lines.append(f"y[{indices(names, row_steps[-1])}] = {end.format(**words)};")
    lines += ["}"] * len(rows)
    params = (*(f"const {v.ctype} *restrict x{i}" for i, v in enumerate(found.leaves)), f"{kind} *restrict y")
    n.emit(Kernel(n.op.lower(), params, indented(lines)), (*found.leaves, seen))


def _filled(lines: Sequence[str], places: Sequence[str]) -> list[str]:
    out = []
    for line in lines:
        for i, place in enumerate(places):
            line = line.replace(f"@{i}@", place)
        out.append(line)
    return out


def _in_lanes(
    begin: str, lane: str, body: Sequence[str], sums: Sequence[int], inside: Sequence[str], name_of_op: str
) -> list[str]:
    """Eight sums side by side: quicker, and nearer to the truth."""
    size, name = sums[-1], inside[-1]
    whole = size // 8 * 8
    lines = [f"float e[8] = {{{', '.join([begin] * 8)}}};", *loops(inside[:-1], sums[:-1])]
    lines += [f"for (int o = 0; o < {whole}; o += 8) {{", "for (int q = 0; q < 8; q++) {", f"const int {name} = o + q;"]
    lines += [*body, f"{lane};", "}", "}"]
    if whole < size:
        lines += [
            f"for (int {name} = {whole}; {name} < {size}; {name}++) {{",
            "const int q = 0;",
            *body,
            f"{lane};",
            "}",
        ]
    lines += ["}"] * (len(sums) - 1)
    if name_of_op in ("ReduceMax", "ReduceMin", "ReduceProd"):
        word = {"ReduceMax": "p_max", "ReduceMin": "p_min"}.get(name_of_op)
        join = "s = {w}(s, e[q])" if word else "s *= e[q]"
        lines += ["float s = e[0];", f"for (int q = 1; q < 8; q++) {join.format(w=word)};"]
    else:
        lines.append("float s = ((e[0] + e[4]) + (e[2] + e[6])) + ((e[1] + e[5]) + (e[3] + e[7]));")
    return lines


@op("ReduceLogSumExp")
def log_sum_exp(n: Site) -> None:
    if n.kind() != "float":
        raise Uncovered(f"of {n.kind()}")
    axes, view = axes_of(n), n.x()
    shape = view.shape
    keep = [a for a in range(len(shape)) if a not in axes]
    moved = dense(n.scope, view.permuted([*keep, *axes]))
    size = int(np.prod([shape[a] for a in axes], dtype=np.int64))
    out = n.flat()
    body = [
        f"for (int i = 0; i < {out.size}; i++) {{", f"const float *const x = x0 + i * {size};",
        "float top = -INFINITY, s = 0.0f;", f"for (int k = 0; k < {size}; k++) top = p_max(x[k], top);",
        "const float base = top - top == 0.0f ? top : 0.0f;",
        f"for (int k = 0; k < {size}; k++) s += p_exp(x[k] - base);", "y[i] = p_log(s) + base;", "}",
    ]  # fmt: skip
    n.emit(Kernel("log_sum_exp", ("const float *restrict x0", "float *restrict y"), indented(body)), (moved, out))


@op("Softmax", "LogSoftmax")
def softmax(n: Site) -> None:
    if n.kind() != "float":
        raise Uncovered(f"of {n.kind()}")
    view, rank = n.x(), len(n.sizes())
    axis = n.axis(default=-1 if n.opset >= 13 else 1)
    if n.opset < 13 and axis != rank - 1:  # all axes from there on are one
        rows = dense(n.scope, view)
        made, last = n.flat(), int(np.prod(view.shape[axis:]))
        seen = [v.reshaped((rows.size // max(last, 1), last)) for v in (rows, made)]
        assert seen[0] is not None and seen[1] is not None
        _softmax(n, seen[0], seen[1], 1)
        return
    out = n.out(order=(*(a for a in view.order if a != axis), axis))
    _softmax(n, view, out, axis)


def _softmax(n: Site, view: View, out: View, axis: int) -> None:
    keep = [a for a in range(len(view.shape)) if a != axis]
    rows, steps = merged(tuple(view.shape[a] for a in keep), [v.permuted(keep).strides for v in (view, out)])
    names, size = [f"i{k}" for k in range(len(rows))], view.shape[axis]
    at, to = view.strides[axis], out.strides[axis]
    x, y = (f"[{'' if s == 1 else f'{s} * '}k]" for s in (at, to))
    lines = [
        *loops(names, rows),
        f"const float *const x = x0 + {indices(names, steps[0])};",
        f"float *const z = y + {indices(names, steps[1])};",
        "float top = -INFINITY;",
        "{",
        *_lanes(size, f"e[q] = x{x} > e[q] ? x{x} : e[q];", "-INFINITY"),
        "for (int q = 0; q < 8; q++) top = e[q] > top ? e[q] : top;",
        "}",
        *_rest(size, f"top = x{x} > top ? x{x} : top;"),
    ]  # fmt: skip  what is not a number shows in the sum
    if n.op == "Softmax":
        lines += [
            f"for (int k = 0; k < {size}; k++) z{y} = p_exp_below(x{x} - top);", "{",
            *_lanes(size, f"e[q] += z{y};", "0.0f"),
            "float s = ((e[0] + e[4]) + (e[2] + e[6])) + ((e[1] + e[5]) + (e[3] + e[7]));",
            *_rest(size, f"s += z{y};"), "const float by = 1.0f / s;",
            f"for (int k = 0; k < {size}; k++) z{y} *= by;", "}",
        ]  # fmt: skip
    else:
        lines += [
            "float s = 0.0f;", f"for (int k = 0; k < {size}; k++) s += p_exp(x{x} - top);",
            "const float by = p_log(s);", f"for (int k = 0; k < {size}; k++) z{y} = (x{x} - top) - by;",
        ]  # fmt: skip
    lines += ["}"] * len(rows)
    params = ("const float *restrict x0", "float *restrict y")
    n.emit(Kernel(n.op.lower(), params, indented(lines)), (view, out))


def _lanes(size: int, what: str, start: str) -> list[str]:
    """Eight results side by side, `e`, of all k below size but for those that are left over."""
    lines = [f"float e[8] = {{{', '.join([start] * 8)}}};"]
    if size >= 8:
        lines += [f"for (int o = 0; o < {size // 8 * 8}; o += 8) {{", "for (int q = 0; q < 8; q++) {"]
        lines += ["const int k = o + q;", what, "}", "}"]
    return lines


def _rest(size: int, what: str) -> list[str]:
    """Those, one by one."""
    return [f"for (int k = {size // 8 * 8}; k < {size}; k++) {what}"] * (size % 8 > 0)


@op("CumSum", "CumProd")
def running(n: Site) -> None:
    view, kind = n.x(), n.kind()
    axis = n.ints(1, "axis")[0] % len(view.shape)
    exclusive, reverse = int(n.attr("exclusive", 0)), int(n.attr("reverse", 0))
    out = n.out(order=view.order)
    keep = [a for a in range(len(view.shape)) if a != axis]
    rows, steps = merged(tuple(view.shape[a] for a in keep), [v.permuted(keep).strides for v in (view, out)])
    names, size = [f"i{k}" for k in range(len(rows))], view.shape[axis]
    at = f"({size - 1} - k)" if reverse else "k"
    zero = "0" if exclusive or kind not in ("float", "double") else "-0.0"  # the first frame as it is, sign and all
    sign, first = ("+", zero) if n.op == "CumSum" else ("*", "1")
    add, put = f"s {sign}= x[{at} * {view.strides[axis]}];", f"z[{at} * {out.strides[axis]}] = s;"
    lines = [
        *loops(names, rows), f"const {kind} *const x = x0 + {indices(names, steps[0])};",
        f"{kind} *const z = y + {indices(names, steps[1])};", f"{kind} s = {first};",
        f"for (int k = 0; k < {size}; k++) {{", *([put, add] if exclusive else [add, put]), "}", *["}"] * len(rows),
    ]  # fmt: skip
    params = (f"const {kind} *restrict x0", f"{kind} *restrict y")
    n.emit(Kernel(n.op.lower(), params, indented(lines)), (view, out))
