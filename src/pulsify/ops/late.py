"""Frames joined with values of the whole stream, where a sum over time follows: attentive pooling, variances.

    sum(softmax(a) * x)              weights that grow with the largest score so far; what was summed before shrinks
    mean((x - mean(x)) ** 2)         moments about a centre that moves along, put right for the true one at the end
    mean(log_softmax(x))             the same about the largest so far, as batch takes that off first

Nothing is emitted until the sum asks: then what it is made of is carried along, each frame seen once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from pulsify.analysis.axes import reduced_axes
from pulsify.analysis.facts import Deferred, Fact, Late, Layout, Static, Window, Wire, deferred
from pulsify.analysis.proof.claims import fixed, fixed_value
from pulsify.core.facet import Facet
from pulsify.emit.builder import Builder
from pulsify.emit.carry import per_stream
from pulsify.emit.fold import DOUBLE, SHORT, Fold
from pulsify.emit.frames import aligned
from pulsify.emit.state import Sizes
from pulsify.frontend.model import Node
from pulsify.ops.fold import Scores, finished, over_all, scores, sizes_of
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, check_known

LateLaw = Callable[[Context, Node, "list[Fact | None]"], "Late | Plan | None"]  # None: nothing is known of it
LATE = Facet[LateLaw](
    "late",
    "what it makes of frames that are joined with a value of the whole stream",
    default=lambda t: _moved if t.copies else None,
)


def reads_late(ctx: Context, node: Node) -> bool:
    return any(isinstance(ctx.ask.facts.get(n), Late) for n in node.reads)


def late_rule(ctx: Context, node: Node) -> Plan | None:
    """What may be done with frames that are joined with a value of the whole stream, until they are summed up."""
    facts = [ctx.ask.facts.get(n) or ctx.ask.fact(n) if n else None for n in node.inputs]
    law = LATE.of(node)
    result = None if law is None else law(ctx, node, facts)
    if isinstance(result, Plan):
        return result
    if result is None:
        ctx.ask.operand(node, next(n for n in node.reads if isinstance(ctx.ask.facts.get(n), Late)))
    assert result is not None
    ctx.ask.facts[node.outputs[0]] = result
    return None


def _moved(ctx: Context, node: Node, facts: list[Fact | None]) -> Late | None:
    """Entries moved about: scores are moved instead, as long as nothing else has come to them."""
    late = facts[0]
    if not isinstance(late, Late) or late.logits is None or late.value is not None or late.factors or late.scales:
        return None
    name, given = node.outputs[0], node.inputs[0]
    ctx.ask.facts[given] = late.logits
    try:
        ctx.node_rule(ctx, node)
        moved = ctx.ask.facts[name]
    finally:
        ctx.ask.facts[given] = late
    return replace(late, logits=moved) if isinstance(moved, Wire) and not moved.layout.folded else None


def raised(ctx: Context, node: Node, facts: list[Fact | None]) -> Late | None:
    """To the power of two."""
    power = node.inputs[1]
    if ctx.ask.known(power) is None or not fixed(ctx.ask, node, power):
        return None
    value = fixed_value(ctx.ask, node, power, "power")
    return _squared(facts[0]) if value.size == 1 and float(value.item()) == 2 else None


def divided(ctx: Context, node: Node, facts: list[Fact | None]) -> Late | None:
    left, right = facts
    return _scaled(node, left, right) if isinstance(left, Late) and isinstance(right, Static) else None


def multiplied(ctx: Context, node: Node, facts: list[Fact | None]) -> Late | None:
    left, right = facts
    if node.inputs[0] == node.inputs[1]:
        return _squared(left)
    if isinstance(right, Late) and not isinstance(left, Late):
        left, right = right, left
    if not isinstance(left, Late):
        return None
    if isinstance(right, Static):
        return _scaled(node, left, right)
    if not isinstance(right, (Late, Wire)) or not _aligned(ctx, node):
        return None
    if isinstance(right, Wire):
        return _times(left, _unfolded(ctx, node, left, right))
    return _product(left, right)


def _scaled(node: Node, late: Late, by: Static) -> Late:
    return replace(late, scales=(*late.scales, (node.op, by)))


def _aligned(ctx: Context, node: Node) -> bool:
    """Does time stand on the same axis of both?"""
    rank = len(ctx.ask.dims(node.outputs[0]))
    axes = {a + rank - len(ctx.ask.dims(n)) for n in node.inputs for a in ctx.ask.time_axes(n)}
    return len(axes) == 1


def exponential(ctx: Context, node: Node, facts: list[Fact | None]) -> Late | None:
    """exp(x - max(x)), as a softmax or a log-sum-exp is written by hand."""
    (late,) = facts
    plain = isinstance(late, Late) and late.power == 1 and not late.factors and not late.scales and late.logits is None
    if not plain or not isinstance(late, Late) or late.value is None:
        return None
    if late.log:  # weights again, however large the scores were
        return Late(late.node, late.fold, logits=late.value)
    if late.centre is None:
        return None
    return Late(late.node, late.fold, logits=late.value, shift=late.centre)


def _squared(late: Fact | None) -> Late | None:
    if not isinstance(late, Late) or late.power != 1 or late.value is None or late.logits is not None:
        return None
    return replace(late, power=2, factors=late.factors * 2, scales=late.scales * 2)


def _unfolded(ctx: Context, node: Node, late: Late, wire: Wire) -> Wire:
    """A clock has the streams in front of time: brought to where the product has them."""
    data = late.logits or late.value
    if wire.end is not None or not wire.layout.folded or data is None or data.length is None:
        return wire
    check_known(ctx, node, wire, data.length)
    target = ctx.ask.layout(node, node.outputs[0])
    rest = len(target.sizes) - wire.layout.rank
    own = (*(1,) * rest, *wire.layout.sizes)
    sizes = tuple(0 if i == target.axis else -1 if i == target.batch else s for i, s in enumerate(own))

    def take(window: Window) -> Deferred:
        x = wire.take(window)
        return deferred(lambda: aligned(ctx, wire, x.value, target, window), x)

    return replace(
        wire,
        name=f"{wire.name}#streams",
        length=data.length,
        layout=Layout(sizes, target.axis),
        take=take,
    )


def _times(late: Late, wire: Wire) -> Late | None:
    if wire.layout.folded or not wire.dtype.is_floating_point():
        return None
    if late.value is None:
        return replace(late, value=wire)
    return replace(late, factors=(*late.factors, wire))


def _product(a: Late, b: Late) -> Late | None:
    """Of weights and something else; of two that were made of the same frames there is only the square."""
    if a.value is not None:
        a, b = b, a
    if a.value is not None or (a.logits is not None and b.logits is not None):
        return None
    return replace(
        b,
        logits=a.logits or b.logits,
        shift=a.shift or b.shift,
        factors=(*a.factors, *b.factors),
        scales=(*a.scales, *b.scales),
    )


# ---- sums

Contract = Callable[[Fold, "ir.Value | None", "ir.Value | None"], ir.Value]


@dataclass(frozen=True, eq=False)
class Pooled:
    """A sum over time of frames joined with values of the whole stream. sizes: of the sum, time having one entry."""

    ctx: Context
    node: Node
    late: Late
    contract: Contract  # the sum of weights times values in a pulse; either may be absent
    sizes: Sizes

    @property
    def wires(self) -> list[Wire]:
        own = (self.late.logits, self.late.value, *self.late.factors)
        return list(dict.fromkeys(w for w in own if w is not None))

    @property
    def beside(self) -> list[Static]:
        """Values without time that go into it."""
        own = (self.late.centre, self.late.shift, *(s for _, s in self.late.scales))
        return [s for s in own if s is not None]

    def make(self, fold: Fold, values: list[ir.Value]) -> ir.Value:
        """The sum, in double precision."""
        late, b = self.late, self.ctx.builder
        dtype = _computed(late)
        given = {w: fold.cast(v, w.dtype, dtype) for w, v in zip(self.wires, values, strict=True)}
        found, norm = None, None
        if late.logits is not None:
            axes = {late.logits.layout.axis}
            found = scores(fold, given[late.logits], late.logits.layout, dtype, axes)
            if late.shift is None:
                part = fold.reduced("ReduceSum", found.weights, axes)
                norm = fold.total("norm", part, dtype, sizes_of(late.logits.layout, axes), found.worth)
        weights = self._weights(fold, given, found, dtype)
        if late.centre is None and late.power == 1 and not late.log:
            total = self._plain(fold, given, weights, found, dtype)
        else:
            total = self._moments(fold, given, weights, found, dtype)
        if found is not None and late.shift is not None:
            shift = _double(b, late.shift, self.ctx.ask.dtype(self.node.outputs[0]))
            total = b.op("Mul", total, b.op("Exp", b.op("Sub", fold.cast(found.top, dtype, DOUBLE), shift)))
        elif norm is not None:
            total = b.op("Div", total, norm)
        for op, scale in late.scales:
            total = b.op(op, total, _double(b, scale, self.ctx.ask.dtype(self.node.outputs[0])))
        return total

    def _weights(
        self, fold: Fold, given: dict[Wire, ir.Value], found: Scores | None, dtype: ir.DataType
    ) -> ir.Value | None:
        weights = None if found is None else found.weights
        for factor in self.late.factors:
            x = fold.only(given[factor], factor.layout, dtype, 0)
            weights = x if weights is None else self.ctx.builder.op("Mul", weights, x)
        return weights

    def _plain(
        self,
        fold: Fold,
        given: dict[Wire, ir.Value],
        weights: ir.Value | None,
        found: Scores | None,
        dtype: ir.DataType,
    ) -> ir.Value:
        value = self.late.value
        x = None if value is None else fold.only(given[value], value.layout, dtype, 0)
        part = self.contract(fold, weights, x)
        return fold.total("sum", part, dtype, self.sizes, None if found is None else found.worth)

    def _moments(
        self,
        fold: Fold,
        given: dict[Wire, ir.Value],
        weights: ir.Value | None,
        found: Scores | None,
        dtype: ir.DataType,
    ) -> ir.Value:
        """Sums of w, w (x - c) and w (x - c)^2 about a centre c, the mean so far: it moves, and they are moved along.

        Of a log-softmax it is the largest so far: batch takes that off, and then the logarithm of the sum.

            sum w (x - c')   = sum w (x - c) - d sum w                        d = c' - c
            sum w (x - c')^2 = sum w (x - c)^2 - 2 d sum w (x - c) + d^2 sum w

        At the end they are moved to the model's own centre. Nothing large is ever taken from something large.
        """
        b, late, value = self.ctx.builder, self.late, self.late.value
        assert value is not None
        x = fold.cast(fold.only(given[value], value.layout, dtype, 0), dtype, DOUBLE)
        about = self._top(fold, given[value], value, dtype) if late.log else self._centre(fold, x, value)
        weights = None if weights is None else fold.cast(weights, dtype, DOUBLE)
        ones = b.op("Cast", b.op("Equal", x, x), to=int(DOUBLE))  # (of what is no number no sum is one either)
        ones = fold.only(ones, value.layout, DOUBLE, 0)
        off = fold.only(b.op("Sub", x, about.now), value.layout, DOUBLE, 0)
        parts = [self.contract(fold, weights, y) for y in (ones, off, b.op("Mul", off, off))]
        sums = [fold.running(f"moment{i}", DOUBLE, self.sizes) for i in range(3)]
        before = [s.value if found is None else b.op("Mul", s.value, found.worth) for s in sums]
        after = [b.op("Add", x, y) for x, y in zip(_about(b, before, about.moved), parts, strict=True)]
        for carried, kept in zip(sums, after, strict=True):
            carried.keep(kept)
        if about.beyond is not None:
            shift = about.beyond
        elif late.centre is None:
            shift = b.op("Neg", about.now)
        else:
            shift = b.op("Sub", _double(b, late.centre, self.ctx.ask.dtype(self.node.outputs[0])), about.now)
        return _about(b, after, shift)[late.power]

    def _centre(self, fold: Fold, x: ir.Value, value: Wire) -> Centre:
        """The mean of all frames so far, whatever their weights."""
        b, axis = self.ctx.builder, value.layout.axis
        sizes = sizes_of(value.layout, {axis})
        carried = fold.running("centre", DOUBLE, sizes)
        count = fold.count(sizes)
        here = fold.reduced("ReduceSum", b.op("Cast", fold.real(), to=int(DOUBLE)), [1])
        here = per_stream(self.ctx, here, sizes)
        off = b.op("Sub", fold.reduced("ReduceSum", x, [axis]), b.op("Mul", here, carried.value))
        some = b.op("Max", count, b.constant(np.array(1, np.float64), "one"))
        moved = b.op("Div", off, some)
        now = b.op("Add", carried.value, moved)
        carried.keep(now)
        return Centre(now, moved)

    def _top(self, fold: Fold, x: ir.Value, value: Wire, dtype: ir.DataType) -> Centre:
        """The largest of all frames so far, and the logarithm of what exponentials sum up to beside its own."""
        axes = {value.layout.axis}
        found = scores(fold, x, value.layout, dtype, axes)
        part = fold.reduced("ReduceSum", found.weights, axes)
        total = fold.total("exponentials", part, dtype, sizes_of(value.layout, axes), found.worth)
        now, moved = (fold.cast(v, dtype, DOUBLE) for v in (found.top, found.moved))
        return Centre(now, moved, self.ctx.builder.op("Log", total))


@dataclass(frozen=True, eq=False)
class Centre:
    now: ir.Value
    moved: ir.Value  # since the last pulse
    beyond: ir.Value | None = None  # how far from it the model's own centre lies, if that is worked out here


def _about(b: Builder, sums: Sequence[ir.Value], d: ir.Value) -> list[ir.Value]:
    """Moments about a centre that lies d further on."""
    s0, s1, s2 = sums
    two = b.constant(np.array(2, np.float64), "two")
    first = b.op("Sub", s1, b.op("Mul", d, s0))
    second = b.op("Add", b.op("Sub", s2, b.op("Mul", b.op("Mul", two, d), s1)), b.op("Mul", b.op("Mul", d, d), s0))
    return [s0, first, second]


def _double(b: Builder, fact: Static, dtype: ir.DataType) -> ir.Value:
    return fact.value if dtype == DOUBLE else b.op("Cast", fact.value, to=int(DOUBLE))


def _computed(late: Late) -> ir.DataType:
    wire = late.logits or late.value
    assert wire is not None
    return SHORT.get(wire.dtype, wire.dtype)


def _broadcast(wires: Sequence[Wire], rank: int) -> Sizes:
    """Sizes of what wires make together, time having one entry."""
    out = [1] * rank
    for wire in wires:
        for axis, size in enumerate(wire.layout.sizes):
            at = axis + rank - wire.layout.rank
            if axis != wire.layout.axis and size != 1:
                out[at] = size
    return tuple(out)


def summed(ctx: Context, node: Node, facts: list[Fact | None]) -> Plan:
    """A sum or mean over time, perhaps over other axes too."""
    name = node.inputs[0]
    late = ctx.ask.facts.get(name)
    times, axes = ctx.ask.time_axes(name), reduced_axes(ctx.ask, node)
    if not isinstance(late, Late) or not set(times) <= axes or any(ctx.ask.sizes_static(name)[a] < 0 for a in axes):
        ctx.ask.operand(node, name)
    assert isinstance(late, Late)
    (time,) = times
    rank, full = len(ctx.ask.dims(name)), ctx.ask.sizes_static(name)

    def contract(fold: Fold, weights: ir.Value | None, x: ir.Value | None) -> ir.Value:
        given = [v for v in (weights, x) if v is not None]
        product = given[0] if len(given) == 1 else ctx.builder.op("Mul", *given)
        return fold.reduced("ReduceSum", product, [time - rank])

    pooled = Pooled(ctx, node, late, contract, ())
    pooled = replace(pooled, sizes=_broadcast(pooled.wires, _rank(pooled.wires)))

    def make(fold: Fold, values: list[ir.Value]) -> Sequence[ir.Value]:
        b, total = ctx.builder, pooled.make(fold, values)
        others = axes - {time}
        dims = [1 if i == time or s < 0 else s for i, s in enumerate(full)]
        total = b.op("Expand", total, b.ints(*dims))
        total = fold.reduced("ReduceSum", total, others) if others else total
        if node.op == "ReduceMean":
            each = math.prod(full[a] for a in others)
            sizes = tuple(1 if i in axes else s for i, s in enumerate(full))
            total = b.op("Div", total, b.op("Mul", fold.count(sizes), b.constant(np.array(each, np.float64), "each")))
        return (finished(ctx, node, total, DOUBLE, axes, bool(node.attr("keepdims", 1))),)

    return over_all(ctx, node, pooled.wires, make, pooled.beside)


def _rank(wires: Sequence[Wire]) -> int:
    return max(w.layout.rank for w in wires)


def contracted(ctx: Context, node: Node, facts: list[Fact | None]) -> Plan:
    """Weights times values, summed over time by a product of matrices."""
    at = next(i for i, f in enumerate(facts) if isinstance(f, Late))
    late, other = facts[at], facts[1 - at]
    assert isinstance(late, Late)
    ranks = [len(ctx.ask.dims(n)) for n in node.inputs]
    over_time = [ctx.ask.time_axes(n) == [r + c] for n, r, c in zip(node.inputs, ranks, (-1, -2), strict=True)]
    plain = isinstance(other, Wire) and not other.layout.folded and late.value is None and late.logits is not None
    if min(ranks) < 2 or not all(over_time) or not plain:
        ctx.ask.operand(node, node.inputs[at])
    assert isinstance(other, Wire)

    def contract(fold: Fold, weights: ir.Value | None, x: ir.Value | None) -> ir.Value:
        assert weights is not None and x is not None
        return ctx.builder.op("MatMul", *((weights, x) if at == 0 else (x, weights)), name=node.name)

    pooled = Pooled(ctx, node, replace(late, value=other), contract, ctx.ask.sizes_static(node.outputs[0]))

    def make(fold: Fold, values: list[ir.Value]) -> Sequence[ir.Value]:
        return (finished(ctx, node, pooled.make(fold, values), DOUBLE, set(), True),)

    return over_all(ctx, node, pooled.wires, make, pooled.beside)
