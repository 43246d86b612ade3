"""Recurrent cells, whole: what comes from the input is one product for all frames, the rest goes frame by frame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pulsify.backends.native.c_products import float_only
from pulsify.backends.native.fuse import Chain, copy, dense, emit_loop, indented, literal
from pulsify.backends.native.scope import Kernel, Site
from pulsify.backends.native.table import op
from pulsify.backends.native.tiles import Axis, product, product_kernel
from pulsify.backends.native.views import View
from pulsify.backends.seam import Array
from pulsify.backends.site import Uncovered

GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
USUAL = {"GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "RNN": ["Tanh"]}
CALLS = {"sigmoid": "p_sigmoid", "tanh": "p_tanh", "relu": "p_relu", "softplus": "p_softplus"}
LARGEST = float(np.finfo(np.float32).max)


def activation(name: str, x: str) -> str:
    if name.lower() not in CALLS:
        raise Uncovered(f"with {name}")
    return f"{CALLS[name.lower()]}({x})"


@op("GRU", "LSTM", "RNN")
def recurrent(n: Site) -> None:
    float_only(n)
    if n.attr("input_forget", 0) or (n.op == "LSTM" and n.has(7)):
        raise Uncovered("with coupled gates or peepholes")
    direction, turned = n.text("direction", "forward"), int(n.attr("layout", 0))
    ways = ["forward", "reverse"] if direction == "bidirectional" else [direction]
    x = n.x(0).permuted((1, 0, 2)) if turned else n.x(0)
    hidden = n.known(2, "weights").shape[-1]
    names = [a.decode() if isinstance(a, bytes) else a for a in n.attr("activations", USUAL[n.op] * len(ways))]
    frames, batch, _ = x.shape
    shapes = {0: (frames, len(ways), batch, hidden), 1: (len(ways), batch, hidden), 2: (len(ways), batch, hidden)}
    made = {}
    for i in range(3 if n.op == "LSTM" else 2):
        if n.wanted(i):
            own = n.out(i)
            made[i] = own.permuted((1, 2, 0, 3) if i == 0 else (1, 0, 2)) if turned else own
        else:
            made[i] = n.scope.work(shapes[i], "float")
    for d, way in enumerate(ways):
        per = len(USUAL[n.op])
        _way(n, x, d, way == "reverse", names[d * per : (d + 1) * per], made, bool(turned))


def _way(n: Site, x: View, d: int, reverse: bool, names: Sequence[str], made: dict[int, View], turned: bool) -> None:
    weights, inner = n.known(1, "weights")[d], n.known(2, "weights")[d]
    gates, hidden = GATES[n.op], inner.shape[-1]
    bias = n.known(3, "bias")[d] if n.has(3) else np.zeros(2 * gates * hidden, np.float32)
    outer, own = bias[: gates * hidden], bias[gates * hidden :]
    frames, batch, _ = x.shape
    late = n.op == "GRU" and not n.attr("linear_before_reset", 0)
    given = n.scope.work((frames, batch, gates * hidden), "float")
    m = [Axis(frames, x.strides[0], 0, given.strides[0]), Axis(batch, x.strides[1], 0, given.strides[1])]
    product(n.scope, x, weights.T[None], outer, given, m, [Axis(x.shape[2], x.strides[2])], 1, hint="cell_input")
    starts = [_start(n, i, d, made[1], turned) for i in ((5, 6) if n.op == "LSTM" else (5,))]
    rows = [Axis(batch, hidden, 0, gates * hidden)]
    first = inner[: 2 * hidden] if late else inner
    kernel, pack = product_kernel(
        first.T[None], own[: first.shape[0]], rows, [Axis(hidden, 1)], 1, hint="cell_product", turns=True
    )
    put = n.scope.weights.put
    args, params = [given, put(pack, "float")], ["const float *restrict xg", "const float *restrict w"]
    kernels = [kernel]
    if late:
        second, pack = product_kernel(
            inner[2 * hidden :].T[None], own[2 * hidden :], rows, [Axis(hidden, 1)], 1, hint="cell_product",
            turns=True,
        )  # fmt: skip
        kernels.append(second)
        args.append(put(pack, "float"))
        params.append("const float *restrict w2")
    lens = _lengths(n, frames, reverse)
    if lens is not None:
        args.append(lens)
        params.append("const int32_t *restrict lens")
    scratch = [n.scope.work((batch, gates * hidden), "float")]
    scratch += [n.scope.work((batch, hidden), "float")] if late else []
    y = made[0].cut(1, d, 1)
    states = [*starts]
    params += ["float *restrict g", *(["float *restrict rh"] if late else []), "float *restrict h"]
    params += ["float *restrict c"] if n.op == "LSTM" else []
    params.append("float *restrict y")
    body = _body(n, frames, batch, hidden, reverse, names, late, lens, y)
    writes = [*scratch, *states, y]
    n.emit(Kernel(n.op.lower(), tuple(params), indented(body), tuple(kernels)), (*args, *writes), len(writes))
    for i, state in enumerate(states):
        last = made[1 + i].cut(0, d, 1)
        copy(n.scope, View(state.buffer, last.shape, (0, *state.strides), state.offset), last, "last")


def _start(n: Site, i: int, d: int, like: View, turned: bool) -> View:
    """The state before the first frame, in memory of its own."""
    _, batch, hidden = like.shape
    own = n.scope.work((batch, hidden), "float")
    if not n.has(i):
        emit_loop(n.scope, Chain((), "0.0f", ()), own, "start")
        return own
    view = n.x(i).permuted((1, 0, 2)) if turned else n.x(i)
    part = view.cut(0, d, 1)
    copy(n.scope, View(part.buffer, part.shape[1:], part.strides[1:], part.offset), own, "start")
    return own


def _lengths(n: Site, frames: int, reverse: bool) -> View | None:
    if not n.has(4):
        return None
    known: Array | None = n.const(4)
    if known is not None and (known >= frames).all():
        return None
    if reverse:
        raise Uncovered("backwards over sequences of several lengths")
    return dense(n.scope, n.x(4))


def _body(
    n: Site, frames: int, batch: int, hidden: int, reverse: bool, names: Sequence[str], late: bool, lens: View | None,
    y: View,
) -> list[str]:  # fmt: skip
    gates, h = GATES[n.op], hidden
    most = n.attr("clip", None if n.op == "RNN" else LARGEST)  # the runtime always clips gates
    clip = "p_clip" if n.op != "RNN" and n.has(3) else "p_clip_number"  # NaN becomes `most` where it adds a bias

    def applied(name: str, x: str, bound: bool = True) -> str:
        if most is not None and bound:
            x = f"{clip}({x}, {literal(most, 'float')})"
        return activation(name, x)

    lines = [
        f"for (int s = 0; s < {frames}; s++) {{",
        f"const int t = {frames - 1} - s;" if reverse else "const int t = s;",
    ]
    lines.append("@0@(h, w, g, s & 1);")
    row = [f"const float *const x = xg + (t * {batch} + b) * {gates * h};", f"float *const v = g + b * {gates * h};"]
    row += [f"float *const hb = h + b * {h};", f"float *const o = y + t * {y.strides[0]} + b * {y.strides[2]};"]
    step = y.strides[3]
    skip: list[str] = []
    if lens is not None:
        rest = f"for (int j = 0; j < {h}; j++) o[j * {step}] = 0.0f;"
        skip = ["if (t >= lens[b]) {", rest, "continue;", "}"]
    head = f"for (int b = 0; b < {batch}; b++) {{"
    each = f"for (int j = 0; j < {h}; j++) {{"
    end = [f"o[j * {step}] = n;", "hb[j] = n;", "}", "}"]
    if n.op == "RNN":
        lines += [head, *row, *skip, each, f"const float n = {applied(names[0], 'x[j] + v[j]')};", *end]
    elif n.op == "LSTM":  # gate by gate: chains that wait for each other would leave the processor idle
        lines += [head, *row, f"float *const cb = c + b * {h};", *skip]
        lines.append(f"for (int j = 0; j < {3 * h}; j++) v[j] = {applied(names[0], 'x[j] + v[j]')};")
        new = applied(names[1], f"x[{3 * h} + j] + v[{3 * h} + j]")
        lines.append(f"for (int j = 0; j < {h}; j++) cb[j] = v[{2 * h} + j] * cb[j] + v[j] * {new};")
        lines += [each, f"const float n = v[{h} + j] * {applied(names[2], 'cb[j]', False)};", *end]
    elif not late:
        new = applied(names[1], f"x[{2 * h} + j] + v[{h} + j] * v[{2 * h} + j]")
        lines += [head, *row, *skip]
        lines.append(f"for (int j = 0; j < {2 * h}; j++) v[j] = {applied(names[0], 'x[j] + v[j]')};")
        lines += [each, f"const float a = {new};", "const float n = (1.0f - v[j]) * a + v[j] * hb[j];", *end]
    else:
        r = applied(names[0], f"x[{h} + j] + v[{h} + j]")
        z, new = applied(names[0], "x[j] + v[j]"), applied(names[1], f"x[{2 * h} + j] + v[{2 * h} + j]")
        lines += [head, *row[:3], each, f"rh[b * {h} + j] = {r} * hb[j];", f"v[j] = {z};", "}", "}"]
        lines += [f"@1@(rh, w2, g + {2 * h}, s & 1);", head, *row, *skip, each, f"const float a = {new};"]
        lines += ["const float n = (1.0f - v[j]) * a + v[j] * hb[j];", *end]
    return [*lines, "}"]
