"""Windows over known values (convolutions, pools): their sizes, and what is known of their entries."""

from __future__ import annotations

from dataclasses import replace

from pulsify.analysis.values.follow import Fixed, Follower, Value
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import FAR
from pulsify.lengths.series import Unsure, constant
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
    """Windows over axes that are no time axes, stream by stream: any function of what they show."""
    v, others = f.spread(ins[0]), [x for x in ins[1:] if x is not None]
    mixed = set(range(1, v.rank))
    if mixed & {*v.times, *v.uses, *v.slope} or not all(isinstance(x, Fixed) for x in others) or len(node.outputs) > 1:
        raise Unsure("its windows go over an axis along which it changes")
    sizes = windowed_sizes(f, node, [f.spread(x).sizes if x is not None else () for x in ins])
    result = replace(many.exactly(v), sizes=sizes, lo=-FAR, hi=FAR, hide=None, rises=False, apart=0.0)
    return replace(result, limit=min([result.limit, *(x.limit for x in others if isinstance(x, Fixed))]))
