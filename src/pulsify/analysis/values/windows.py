"""Windows over known values (convolutions, pools): their sizes, and what is known of their entries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from pulsify.analysis.values.follow import Fixed, Follower, Value
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import FAR, Spread
from pulsify.lengths.float_limits import binary, common, step_of
from pulsify.lengths.indexing import placed
from pulsify.lengths.joining import framed
from pulsify.lengths.series import Series, Unsure, constant
from pulsify.lengths.sizes import Sizes, whole_item


def windowed_sizes(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    size = sizes[0]
    n = len(size) - 2
    kernel = node.attr("kernel_shape") or [whole_item(s) for s in sizes[1][2:]]
    strides, dilations = (node.attr(k) or (1,) * n for k in ("strides", "dilations"))
    pads = node.attr("pads") or (0,) * (2 * n)
    if str(node.attr("auto_pad", "NOTSET")) not in ("NOTSET", "VALID") or node.attr("ceil_mode", 0):
        raise Unsure("its padding is worked out from the size")
    channels = sizes[1][0] if len(node.inputs) > 1 else size[1]
    out = [size[0], channels]
    for i in range(n):
        more = pads[i] + pads[i + n] - (kernel[i] - 1) * dilations[i] - 1
        steps = one.divide(one.add(size[i + 2], constant(more, f.unit)), constant(strides[i], f.unit))
        out.append(one.add(steps, constant(1, f.unit)))
    return tuple(out)


def windowed(f: Follower, node: Node, ins: list[Value]) -> Value:
    """Windows over the axes behind the channels: any function of what they show, but along time a sum of products."""
    return _windowed(f, node, ins, _exact_sums)


def largest_windowed(f: Follower, node: Node, ins: list[Value]) -> Value:
    """The largest entry of every window; padding never is."""
    return _windowed(f, node, ins, lambda f, v, ins: v)


def _windowed(
    f: Follower, node: Node, ins: list[Value], along_time: Callable[[Follower, Spread, list[Value]], Spread]
) -> Value:
    v, others = f.spread(ins[0]), [x for x in ins[1:] if x is not None]
    if 1 in {*v.times, *v.uses, *v.slope} or not all(isinstance(x, Fixed) for x in others) or len(node.outputs) > 1:
        raise Unsure("its windows go over an axis along which it changes")
    sizes = windowed_sizes(f, node, [f.spread(x).sizes if x is not None else () for x in ins])
    over = [a for a in range(2, v.rank) if a in v.times]
    if set(range(2, v.rank)).difference(over) & {*v.uses, *v.slope}:
        raise Unsure("its windows go over an axis along which it changes")
    sums = along_time(f, v, ins) if over else None
    for a in over:
        v = _windows_along(v, a, _Steps.of(node, a - 2, f.spread(ins[1]).sizes if others else ()), sizes[a])
    limit = min([v.limit, *(x.limit for x in others if isinstance(x, Fixed))])
    result = replace(many.exactly(v), sizes=sizes, lo=-FAR, hi=FAR, hide=None, rises=False, apart=0.0, limit=limit)
    return result if sums is None else replace(result, lo=sums.lo, hi=sums.hi, grain=sums.grain)


@dataclass(frozen=True)
class _Steps:
    """How windows go along one axis."""

    kernel: int
    stride: int
    dilation: int
    front: int  # padding
    behind: int

    @staticmethod
    def of(node: Node, i: int, weights: Sizes) -> _Steps:
        """i: of the axes that windows go over."""
        kernel = (node.attr("kernel_shape") or [whole_item(s) for s in weights[2:]])[i]
        stride, dilation = ((node.attr(k) or (1,) * (i + 1))[i] for k in ("strides", "dilations"))
        pads = node.attr("pads") or (0,) * (2 * (i + 1))
        return _Steps(kernel, stride, dilation, pads[i], pads[i + len(pads) // 2])


def _windows_along(v: Spread, axis: int, steps: _Steps, count: Series) -> Spread:
    """What a window of entries along an axis is near to: whatever any of the entries is near to."""
    if v.slope:
        raise Unsure("its windows go over an axis along which it grows")
    if steps.front or steps.behind:
        size = one.add(v.sizes[axis], constant(steps.front + steps.behind, count.unit))
        padded = (*v.sizes[:axis], size, *v.sizes[axis + 1 :])
        v = framed(v, axis, padded, steps.front, steps.behind, [])
    sizes = (*v.sizes[:axis], count, *v.sizes[axis + 1 :])
    to = {c: c for c in range(v.rank) if c != axis}
    slope = {axis: Fraction(steps.stride)}
    places = [Spread(sizes, slope, j, j, uses=frozenset({axis})) for j in _ends(steps)]
    return many.joint(sizes, *(placed(v, axis, p, to) for p in places), lo=v.lo, hi=v.hi)


def _ends(steps: _Steps) -> tuple[float, float]:
    """The first and the last place of a window: what is near to those is near to all between them."""
    return 0.0, float((steps.kernel - 1) * steps.dilation)


def _exact_sums(f: Follower, v: Spread, ins: list[Value]) -> Spread:
    """Between what sums of products lie, if none of them is rounded: where a window is alike, so are they."""
    if len(ins) < 2:
        raise Unsure("its windows are means over time")
    weights = f.fixed(ins[1]).astype(np.float64)
    bias = f.fixed(ins[2]).astype(np.float64) if len(ins) > 2 and ins[2] is not None else np.zeros(1)
    each = np.abs(weights).reshape(len(weights), -1).sum(1)
    step, most = v.step, float((many.most(v) * each + np.abs(bias)).max())
    own, other = step_of(f.fixed(ins[1])), step_of(bias)
    grain = common(step * own, other) if step is not None and own is not None else None
    if not v.drift.none or not math.isfinite(most) or most > binary(grain) * 2.0**v.drift.digits:
        raise Unsure("its windows are sums that are rounded")
    return replace(v, lo=-most, hi=most, grain=grain)
