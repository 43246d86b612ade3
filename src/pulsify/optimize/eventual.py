"""What follows from the clock alone becomes a line of the pulse's number, once a stream is warm.

pulse n          0  1  2  3  4 ...
max(n - 2, 0)    0  0  0  1  2 ...        slope 1, start -2, from n = 2 on
n - 2 < 0        1  1  0  0  0 ...        slope 0, start 0, from n = 2 on

While the end is unknown the length is a constant far out. Nothing is matched: every operator works on slopes and
starts, and says from which pulse on its answer holds, up to the last pulse before the counter is set back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.one_node import NoKernel
from pulsify.core.spec import Spec
from pulsify.optimize.constants import evaluator

Array = np.ndarray[Any, Any]
MOVES = (
    "Concat", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Line:
    """slope * n + start, for pulses n from `since` on, both of the type that the graph has."""

    slope: Array
    start: Array
    since: int = 0

    @property
    def flat(self) -> bool:
        return not self.slope.any()

    def at(self, n: Array | int) -> Array:
        return np.asarray(self.slope.astype(np.int64) * n + self.start)


def flat(value: Array, since: int = 0) -> Line:
    return Line(np.zeros_like(value), value, since)


def lines(model: ir.Model, nodes: Sequence[ir.Node], spec: Spec, batch: int) -> dict[ir.Value, Line]:
    """Of every value these nodes make of position, length and constants, as far as it becomes a line."""
    far = spec.unknown_length // 2 // spec.pulse
    found: dict[ir.Value, Line] = {}
    for value in {v for n in nodes for v in n.inputs if v is not None}:
        if value.name == spec.position:
            found[value] = Line(np.full((batch, 1), spec.pulse, np.int32), np.zeros((batch, 1), np.int32))
        elif value.name == spec.length:
            found[value] = flat(np.full((batch, 1), spec.unknown_length, np.int32))
        elif value.const_value is not None:
            found[value] = flat(value.const_value.numpy())
    for node in nodes:
        ins = [found.get(v) if v is not None else None for v in node.inputs]
        if any(v is not None and line is None for v, line in zip(node.inputs, ins, strict=True)):
            continue
        given = [line for line in ins if line is not None]
        try:
            made = _line(model, node, given, far)
        except NoKernel:
            made = None
        if made is not None:
            found.update(zip(node.outputs, made, strict=True))
    return found


def _line(model: ir.Model, node: ir.Node, given: list[Line], far: int) -> list[Line] | None:
    since = max((g.since for g in given), default=0)
    if all(g.flat for g in given):
        return [flat(array, since) for array in _run(model, node, [g.start for g in given])]
    if node.op_type == "Shape":
        return [flat(array, since) for array in _run(model, node, [g.start for g in given])]
    if node.op_type in MOVES and all(g.flat for g in given[1:] if node.op_type != "Concat"):
        others = [g.start for g in given[1:]] if node.op_type != "Concat" else []
        moved = given if node.op_type == "Concat" else given[:1]
        both = [g.slope for g in moved], [g.start for g in moved]
        slopes, starts = (_run(model, node, [*of, *others]) for of in both)
        return [Line(a, b, since) for a, b in zip(slopes, starts, strict=True)]
    rule = RULES.get(node.op_type)
    if rule is None or any(g.start.dtype.kind not in "biu" for g in given):
        return None
    made = rule(node, given, far)
    return None if made is None else [Line(made.slope, made.start, max(made.since, since))]


def _run(model: ir.Model, node: ir.Node, arrays: Sequence[Array]) -> list[Array]:
    """The node on arrays."""
    inputs = [v for v in node.inputs if v is not None]
    given: Mapping[ir.Value, Array] = dict(zip(inputs, arrays, strict=True))
    return evaluator(model.graph, node)(given)


# ---- arithmetic


def _sum(node: ir.Node, given: list[Line], far: int) -> Line | None:
    a, b = given
    sign = -1 if node.op_type == "Sub" else 1
    return Line(a.slope + sign * b.slope, a.start + sign * b.start)


def _negative(node: ir.Node, given: list[Line], far: int) -> Line | None:
    return Line(-given[0].slope, -given[0].start)


def _product(node: ir.Node, given: list[Line], far: int) -> Line | None:
    a, b = given
    if not b.flat:
        a, b = b, a
    return Line(a.slope * b.start, a.start * b.start) if b.flat else None


def _divided(node: ir.Node, given: list[Line], far: int) -> Line | None:
    """Towards zero, which is down as soon as it is not negative."""
    a, b = given
    if not b.flat or (b.start <= 0).any() or (a.slope % b.start).any():
        return None
    since = _from(lambda n: a.at(n) >= 0, 0, far)
    return None if since is None else Line(a.slope // b.start, a.start // b.start, since)


def _remainder(node: ir.Node, given: list[Line], far: int) -> Line | None:
    a, b = given
    whole = node.attributes.get_int("fmod", 0) == 0
    if not whole or not b.flat or (b.start <= 0).any() or (a.slope % b.start).any():
        return None
    return flat(np.broadcast_to(a.start % b.start, np.broadcast_shapes(a.start.shape, b.start.shape)))


# ---- where it bends


def _from(holds: Callable[[Array], Array], low: int, far: int) -> int | None:
    """The first pulse from which on something holds everywhere; once it does, it goes on. None if it never does."""
    shape = holds(np.array(far)).shape
    if not holds(np.array(far)).all():
        return None
    below, above = np.full(shape, low - 1), np.full(shape, far)
    while (above - below > 1).any():
        middle = (below + above) // 2
        met = holds(middle)
        below, above = np.where(met, below, middle), np.where(met, middle, above)
    return int(above.max(initial=low))


def _extreme(node: ir.Node, given: list[Line], far: int) -> Line | None:
    out = given[0]
    wins = -1 if node.op_type == "Min" else 1
    for other in given[1:]:
        apart = Line(out.slope - other.slope, out.start - other.start)
        side = np.where(apart.at(far) * wins >= 0, wins, -wins)
        since = _from(lambda n, apart=apart, side=side: apart.at(n) * side >= 0, 0, far)  # type: ignore[misc]
        if since is None:
            return None
        first = side == wins
        since = max(out.since, other.since, since)
        out = Line(np.where(first, out.slope, other.slope), np.where(first, out.start, other.start), since)
    return out


def _absolute(node: ir.Node, given: list[Line], far: int) -> Line | None:
    (x,) = given
    sign = np.where(x.at(far) >= 0, 1, -1).astype(x.start.dtype)
    since = _from(lambda n: x.at(n) * sign >= 0, 0, far)
    return None if since is None else Line(x.slope * sign, x.start * sign, since)


def _compared(node: ir.Node, given: list[Line], far: int) -> Line | None:
    a, b = given
    apart = Line(a.slope - b.slope, a.start - b.start)
    how = COMPARISONS[node.op_type]
    answer = how(np.sign(apart.at(far)))
    seen = np.sign if node.op_type == "Equal" else how  # two lines that cross are equal once: not from there on
    last = seen(np.sign(apart.at(far)))
    since = _from(lambda n: seen(np.sign(apart.at(n))) == last, 0, far)
    return None if since is None else flat(answer, since)


def _chosen(node: ir.Node, given: list[Line], far: int) -> Line | None:
    which, a, b = given
    if not which.flat:
        return None
    return Line(np.where(which.start, a.slope, b.slope), np.where(which.start, a.start, b.start))


def _cast(node: ir.Node, given: list[Line], far: int) -> Line | None:
    to = ir.DataType(node.attributes.get_int("to"))
    if to not in (ir.DataType.INT32, ir.DataType.INT64):
        return None
    return Line(given[0].slope.astype(to.numpy()), given[0].start.astype(to.numpy()))


COMPARISONS: dict[str, Callable[[Array], Array]] = {
    "Less": lambda sign: sign < 0,
    "LessOrEqual": lambda sign: sign <= 0,
    "Greater": lambda sign: sign > 0,
    "GreaterOrEqual": lambda sign: sign >= 0,
    "Equal": lambda sign: sign == 0,
}
RULES: dict[str, Callable[[ir.Node, list[Line], int], Line | None]] = {
    "Add": _sum, "Sub": _sum, "Neg": _negative, "Mul": _product, "Div": _divided, "Mod": _remainder,
    "Min": _extreme, "Max": _extreme, "Abs": _absolute, "Where": _chosen, "Cast": _cast,
    **dict.fromkeys(COMPARISONS, _compared),
}  # fmt: skip
