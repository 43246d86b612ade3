"""Graph fragments by operator family. A fragment draws its attributes, adds nodes and returns the tensor it made.

Fragments take [B, C, T] in any order of axes and may leave another order behind. `graph.may_refuse` is filled where
no exact stream exists for some of the attributes drawn; any other refusal is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tests.property.check import runs
from tests.property.graph import DTYPES, LARGE, Graph, Tensor

Draw = Callable[..., Any]
Fragment = Callable[[Draw, Graph, Tensor], Tensor]
FASTEST = Fraction(8)  # no wire has more frames than this per frame of the input


def whole(draw: Draw, low: int, high: int) -> int:
    return int(draw(st.integers(low, high)))


def pick(draw: Draw, *choices: Any) -> Any:
    return draw(st.sampled_from(choices))


def flag(draw: Draw) -> bool:
    return bool(draw(st.booleans()))


# ---- convolutions


def taps(draw: Draw, graph: Graph, sizes: int, t: int, deep: bool = True, same: bool = True) -> dict[str, Any]:
    """kernel, strides, dilations and pads (or auto_pad) of a window over `sizes` axes, the t-th of which is time."""
    kernel = [whole(draw, 1, 5) if i == t else whole(draw, 1, 2) for i in range(sizes)]
    strides = [whole(draw, 1, 3) if i == t else 1 for i in range(sizes)]
    dilations = [whole(draw, 1, 3) if i == t and deep else 1 for i in range(sizes)]
    auto = pick(draw, "NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER") if same else "NOTSET"
    out: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    if deep:
        out["dilations"] = dilations
    if auto != "NOTSET":
        if auto == "VALID":
            kernel[:] = [k if i == t else 1 for i, k in enumerate(kernel)]
        elif strides[t] > 1:
            graph.may_refuse.append("SAME pads with a stride")
        return {**out, "auto_pad": auto}
    span = (kernel[t] - 1) * dilations[t] + 1
    before = [whole(draw, 0, span - 1) if i == t else k - 1 for i, k in enumerate(kernel)]
    after = [whole(draw, 0, span - 1) if i == t else 0 for i, k in enumerate(kernel)]
    return {**out, "pads": [*before, *after]}


def slower(x: Tensor, by: int) -> Fraction:
    return x.rate / by


def spatial(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """Time on one of one or two spatial axes."""
    return graph.to(x, pick(draw, "BCT", "BCT", "BCFT", "BCTF"))


def conv(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = spatial(draw, graph, x)
    n, t = len(x.layout) - 2, x.axis - 2
    attrs = taps(draw, graph, n, t)
    groups = pick(draw, 1, 1, x.c)
    channels = groups * whole(draw, 1, 2)
    weight = graph.weights(channels, x.c // groups, *attrs["kernel_shape"])
    bias = [graph.weights(channels)] if flag(draw) else []
    made = graph.op("Conv", x, weight, *bias, group=groups, **attrs)
    return x.but(made, c=channels, rate=slower(x, attrs["strides"][t]))


def same_conv(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """A convolution that keeps the length."""
    x = graph.to(x, "BCT")
    kernel, dilation = whole(draw, 1, 4), whole(draw, 1, 2)
    before = whole(draw, 0, (kernel - 1) * dilation)
    pads = [before, (kernel - 1) * dilation - before]
    made = graph.op("Conv", x, graph.weights(2, x.c, kernel), pads=pads, dilations=[dilation])
    return x.but(made, c=2)


def conv_transpose(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = spatial(draw, graph, x)
    n, t = len(x.layout) - 2, x.axis - 2
    attrs = taps(draw, graph, n, t, same=False)
    if flag(draw):
        attrs["strides"][t] = whole(draw, 1, 4)
    stride, dilation = attrs["strides"][t], attrs["dilations"][t]
    assume(x.rate * stride <= FASTEST)
    attrs["pads"] = [p if i % n == t else 0 for i, p in enumerate(attrs["pads"])]
    attrs["output_padding"] = [whole(draw, 0, max(stride, dilation) - 1) if i == t else 0 for i in range(n)]
    groups = pick(draw, 1, 1, x.c)
    per = whole(draw, 1, 2)
    weight = graph.weights(x.c, per, *attrs["kernel_shape"])
    bias = [graph.weights(per * groups)] if flag(draw) else []
    made = graph.op("ConvTranspose", x, weight, *bias, group=groups, **attrs)
    f = x.f + (attrs["kernel_shape"][x.layout.index("F") - 2] - 1 if n == 2 else 0)
    return x.but(made, c=per * groups, f=f, rate=x.rate * stride)


# ---- weights that are zero at their ends


def ends(draw: Draw, size: int) -> tuple[int, int]:
    front = whole(draw, 0, min(size - 1, 3))
    return front, whole(draw, 0, min(size - 1 - front, 3))


def hollow_conv(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = spatial(draw, graph, x)
    n, t = len(x.layout) - 2, x.axis - 2
    attrs = taps(draw, graph, n, t)
    groups = pick(draw, 1, 1, x.c)
    front, back = ends(draw, attrs["kernel_shape"][t])
    dims = (x.c, x.c // groups, *attrs["kernel_shape"])
    made = graph.op("Conv", x, graph.hollow(*dims, axis=t + 2, front=front, back=back), group=groups, **attrs)
    return x.but(made, rate=slower(x, attrs["strides"][t]))


def hollow_conv_transpose(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, "BCT")
    kernel, stride, dilation = whole(draw, 2, 6), whole(draw, 1, 4), whole(draw, 1, 2)
    assume(x.rate * stride <= FASTEST)
    front, back = ends(draw, kernel)
    span = (kernel - 1) * dilation + 1
    pads = [whole(draw, 0, (span - 1) // 2), whole(draw, 0, (span - 1) // 2)]
    weight = graph.hollow(x.c, 2, kernel, axis=2, front=front, back=back)
    more = whole(draw, 0, max(stride, dilation) - 1)
    made = graph.op(
        "ConvTranspose", x, weight, strides=[stride], dilations=[dilation], pads=pads, output_padding=[more]
    )
    return x.but(made, c=2, rate=x.rate * stride)


def windowed_frames(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """Frames cut by an index table, a kernel of ones or slices, with half a frame more at both ends; then a product."""
    x = graph.to(x, "BCT")
    size, hop = whole(draw, 2, 6), whole(draw, 1, 3)
    front, back = ends(draw, size)
    x = x.but(graph.op("Pad", x, graph.ints(0, 0, size // 2, 0, 0, size // 2)))
    frames = graph.frames(x)
    how = pick(draw, "gather", "slices", "ones")
    if how == "ones":
        x = x.but(graph.op("MatMul", graph.weights(1, x.c), x), c=1)
        eye = graph.const(np.eye(size)[:, None], graph.dtype)
        framed = x.but(graph.op("Conv", x, eye, strides=[hop]), c=size, rate=slower(x, hop))
        framed = framed.but(graph.op("Transpose", framed, perm=[0, 2, 1]), layout="BTC")
        channels = size
    else:
        channels = x.c
        last = graph.op("Sub", frames, graph.ints(size - 1))
        if how == "slices":
            parts = [
                graph.op(
                    "Slice", x, graph.ints(k), graph.op("Add", last, graph.ints(k)), graph.ints(2), graph.ints(hop)
                )
                for k in range(size)
            ]
            table = graph.op("Concat", *(graph.op("Unsqueeze", p, graph.ints(3)) for p in parts), axis=3)
        else:
            starts = graph.op("Range", graph.int(0), graph.scalar(last), graph.int(hop))
            places = graph.op("Add", graph.op("Unsqueeze", starts, graph.ints(1)), graph.const(np.arange(size)[None]))
            table = graph.op("Gather", x, places, axis=2)
        framed = x.but(table, layout="BCTF", f=size, rate=slower(x, hop))
    graph.least = max(graph.least, size)  # a range or a slice of fewer frames turns round
    if flag(draw):
        basis = graph.hollow(size, 2, axis=0, front=front, back=back)
        made = graph.op("MatMul", framed, basis)
    else:
        scaled = graph.op("Mul", framed, graph.hollow(size, axis=0, front=front, back=back))
        made = graph.op("MatMul", scaled, graph.weights(size, 2))
    if how == "ones":
        return framed.but(made, c=2)
    return graph.to(framed.but(made, c=channels, f=2), "BCT")


def interpolated(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    n = pick(draw, 2, 4)
    assume(x.rate * n <= FASTEST)
    return interpolation(graph, graph.to(x, "BCT"), n)


def interpolation(graph: Graph, x: Tensor, n: int) -> Tensor:
    """As torch.onnx.export(dynamo=True) writes F.interpolate(mode="linear")."""
    frames = graph.scalar(graph.frames(x))
    count = graph.op("Range", graph.int(0), graph.op("Mul", frames, graph.int(n)), graph.int(1))
    half, scale, none = (graph.const(np.array(v), np.float32) for v in (0.5, 1 / n, 0.0))
    middle = graph.op("Add", graph.op("Cast", count, to=1), half)
    place = graph.op("Clip", graph.op("Sub", graph.op("Mul", middle, scale), half), none)
    left = graph.op("Cast", place, to=7)
    last = graph.op("Sub", frames, graph.int(1))
    right = graph.op("Clip", graph.op("Add", left, graph.int(1)), "", last)
    share = graph.op("Clip", graph.op("Sub", place, graph.op("Cast", left, to=1)), none)
    share = graph.op("Cast", share, to=DTYPES[graph.dtype])
    before, after = (graph.op("Gather", x, i, axis=2) for i in (left, right))
    made = graph.op("Add", before, graph.op("Mul", graph.op("Sub", after, before), share))
    return x.but(made, rate=x.rate * n, exact=False)


# ---- pools


def max_pool(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    return _pool(draw, graph, x, "MaxPool", deep=True)


def average_pool(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    extra = {"count_include_pad": int(flag(draw))}
    return _pool(draw, graph, x, "AveragePool", deep=graph.opset >= 19 and flag(draw), **extra)


def lp_pool(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    return _pool(draw, graph, x, "LpPool", deep=graph.opset >= 18 and flag(draw), p=pick(draw, 1, 2))


def _pool(draw: Draw, graph: Graph, x: Tensor, op: str, deep: bool, **extra: Any) -> Tensor:
    x = spatial(draw, graph, x)
    n, t = len(x.layout) - 2, x.axis - 2
    attrs = taps(draw, graph, n, t, deep=deep)
    attrs["kernel_shape"] = [k if i == t else 1 for i, k in enumerate(attrs["kernel_shape"])]
    graph.loose = True  # the number of windows is rounded towards zero, also if it is negative
    if attrs.get("auto_pad", "").startswith("SAME"):
        assume(not deep or attrs["dilations"][t] == 1)  # ONNX Runtime leaves the dilation out of SAME pads
        assume(attrs["kernel_shape"][t] >= attrs["strides"][t])  # and fails where they would be negative
    if "pads" in attrs:  # less than the kernel
        most = attrs["kernel_shape"][t] - 1
        attrs["pads"] = [min(p, most) if i % n == t else 0 for i, p in enumerate(attrs["pads"])]
        if op != "LpPool" or graph.opset >= 18:
            attrs["ceil_mode"] = int(flag(draw))
    made = graph.op(op, x, **attrs, **extra)
    return x.but(made, rate=slower(x, attrs["strides"][t]), exact=x.exact and op == "MaxPool")


# ---- frames in front, behind, cut


def any_layout(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    return graph.to(x, pick(draw, "BCT", "BTC", "TBC", "BCFT", "BCTF"))


def pad(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = any_layout(draw, graph, x)
    mode = pick(draw, "constant", "constant", "edge", "reflect")
    before, after = whole(draw, -3, 4), whole(draw, -3, 4)
    rank = len(x.layout)
    given = mode == "constant" and flag(draw)
    value = [graph.const(np.array(pick(draw, 0.0, 3.0)))] if given else []
    if graph.opset >= 18 and flag(draw):
        axes = graph.ints(x.axis - (rank if flag(draw) else 0))
        return x.but(graph.op("Pad", x, graph.ints(before, after), *(value or [""]), axes, mode=mode))
    amounts = [0] * (2 * rank)
    amounts[x.axis], amounts[x.axis + rank] = before, after
    return x.but(graph.op("Pad", x, graph.ints(*amounts), *value, mode=mode))


def pad_to_multiple(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """(-T) mod n frames behind, computed by the model."""
    x = graph.to(x, pick(draw, "BCT", "BTC"))
    n = whole(draw, 2, 4)
    rest = graph.op("Mod", graph.op("Neg", graph.frames(x)), graph.ints(n))
    zeros = [0] * 3
    parts = [graph.ints(*zeros, *zeros[: x.axis]), rest]
    if x.axis < 2:
        parts.append(graph.ints(*zeros[x.axis + 1 :]))
    return x.but(graph.op("Pad", x, graph.op("Concat", *parts, axis=0), mode=pick(draw, "constant", "edge")))


def slice_(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = any_layout(draw, graph, x)
    start, step = whole(draw, 0, 5), whole(draw, 1, 3)
    how = pick(draw, "open", "from the end", "computed", "multiple")
    end = graph.ints(LARGE if how == "open" else -whole(draw, 1, 4))
    if how == "computed":
        end = graph.op("Sub", graph.frames(x), graph.ints(whole(draw, 0, 3)))
    if how == "multiple":
        n = graph.ints(whole(draw, 2, 3))
        end = graph.op("Mul", graph.op("Div", graph.frames(x), n), n)
    axis = x.axis - (len(x.layout) if flag(draw) else 0)
    c = x.c
    if x.c > 1 and how == "open" and flag(draw):  # time and channels at once
        at = x.layout.index("C")
        args = graph.ints(start, 1), graph.ints(LARGE, LARGE), graph.ints(axis, at), graph.ints(step, 1)
        c -= 1
    else:
        args = graph.ints(start), end, graph.ints(axis), graph.ints(step)
    return x.but(graph.op("Slice", x, *args), c=c, rate=slower(x, step))


def concat_frames(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """Constant frames, or the first frames of the stream once more, in front; constant frames behind."""
    x = graph.to(x, pick(draw, "BCT", "BTC", "BCFT"))
    assume(graph.batch == 1)

    def frames(count: int) -> str:
        return graph.weights(*({"B": 1, "C": x.c, "F": x.f, "T": count}[a] for a in x.layout))

    front = [frames(whole(draw, 1, 3)) for _ in range(whole(draw, 0, 2))]
    if not front and flag(draw):
        front = [graph.op("Slice", x, graph.ints(0), graph.ints(whole(draw, 1, 3)), graph.ints(x.axis))]
    behind = [frames(whole(draw, 1, 3)) for _ in range(whole(draw, 0, 2))]
    return x.but(graph.op("Concat", *front, x, *behind, axis=x.axis))


def concat_channels(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, pick(draw, "BCT", "BTC", "BCFT"))
    at = x.layout.index("C")
    other = graph.op("Neg", x)
    if flag(draw):  # a constant, repeated at every frame
        frame = graph.weights(*(x.c if a == "C" else 1 for a in x.layout))
        other = graph.op("Expand", frame, graph.op("Shape", x))
    pair = [x.name, other] if flag(draw) else [other, x.name]
    return x.but(graph.op("Concat", *pair, axis=at), c=2 * x.c)


def split(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, pick(draw, "BCT", "BTC"))
    if x.c > 1 and flag(draw):
        at = x.layout.index("C")
        first, rest = graph.ops("Split", 2, x, graph.ints(1, x.c - 1), axis=at)
        return x.but(graph.op("Mul", first, rest), c=x.c - 1, exact=False)
    k = whole(draw, 1, 4)
    sizes = graph.op("Concat", graph.ints(k), graph.op("Sub", graph.frames(x), graph.ints(k)), axis=0)
    return x.but(graph.ops("Split", 2, x, sizes, axis=x.axis)[1])


# ---- gathered frames


def gather_unfold(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """Overlapping frames by an index table: Range * hop + Range."""
    x = graph.to(x, "BCT")
    size, hop = whole(draw, 1, 5), whole(draw, 1, 3)
    last = graph.op("Div", graph.op("Sub", graph.frames(x), graph.ints(size)), graph.ints(hop))
    count = graph.scalar(graph.op("Add", last, graph.ints(1)))
    starts = graph.op("Mul", graph.op("Range", graph.int(0), count, graph.int(1)), graph.int(hop))
    column = graph.op("Unsqueeze", starts, graph.ints(1))
    table = graph.op("Add", column, graph.const(np.arange(size)[None]))
    made = x.but(graph.op("Gather", x, table, axis=2), layout="BCTF", f=size, rate=slower(x, hop))
    if size > 2 and flag(draw):
        return made.but(graph.op("ReduceMax", made, *reduce_axes(graph, 3)[0], **reduce_axes(graph, 3)[1]), f=1)
    return made


def gather_shift(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """One frame per output frame: repeated, thinned out, shifted and held at the ends."""
    x = graph.to(x, pick(draw, "BCT", "BTC"))
    frames = graph.scalar(graph.frames(x))
    how = pick(draw, "repeat", "thin", "back", "ahead")
    n = whole(draw, 2, 3)
    rate = x.rate
    if how == "repeat":
        rate *= n
        assume(rate <= FASTEST)
        count = graph.op("Range", graph.int(0), graph.op("Mul", frames, graph.int(n)), graph.int(1))
        index = graph.op("Div", count, graph.int(n))
    elif how == "thin":
        rate /= n
        index = graph.op("Range", graph.int(whole(draw, 0, 2)), frames, graph.int(n))
    else:
        count = graph.op("Range", graph.int(0), frames, graph.int(1))
        if how == "back":
            index = graph.op("Max", graph.op("Sub", count, graph.int(n)), graph.int(0))
        else:
            index = graph.op("Min", graph.op("Add", count, graph.int(n)), graph.op("Sub", frames, graph.int(1)))
    return x.but(graph.op("Gather", x, index, axis=x.axis), rate=rate)


def gather_channels(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, pick(draw, "BCT", "BTC"))
    index = [whole(draw, -x.c, x.c - 1) for _ in range(whole(draw, 1, 3))]
    return x.but(graph.op("Gather", x, graph.ints(*index), axis=x.layout.index("C")), c=len(index))


# ---- reshapes


def stack_frames(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """n frames side by side; takes multiples of n only, so the length may be cut first."""
    x = graph.to(x, "BTC")
    n = whole(draw, 2, 3)
    if flag(draw):
        by = graph.ints(n)
        end = graph.op("Mul", graph.op("Div", graph.frames(x), by), by)
        x = x.but(graph.op("Slice", x, graph.ints(0), end, graph.ints(1)))
    assume(x.c * n <= 12)
    return x.but(graph.op("Reshape", x, graph.ints(0, -1, x.c * n)), c=x.c * n, rate=slower(x, n))


def pixel_shuffle(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """Channels laid out in time."""
    x = graph.to(x, "BTC")
    n = pick(draw, *(d for d in range(1, x.c + 1) if x.c % d == 0))
    assume(x.rate * n <= FASTEST)
    return x.but(graph.op("Reshape", x, graph.ints(0, -1, x.c // n)), c=x.c // n, rate=x.rate * n)


def fold_batch(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """[B, T, C] to [B*T, C], something there, and back."""
    x = graph.to(x, "BTC")
    flat = graph.op("Reshape", x, graph.ints(-1, x.c))
    c = x.c
    if flag(draw):
        c = 2
        flat = graph.op("Gemm", flat, graph.weights(c, x.c), graph.weights(c), transB=1)
    else:
        flat = graph.op("Add", flat, graph.weights(x.c))
    size = graph.batch_size(x)
    shape = graph.op("Concat", size, graph.ints(-1, c), axis=0)
    return x.but(graph.op("Reshape", flat, shape), c=c)


def fold_conv(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """[B, T, C] to [B*T, 1, C], a convolution along the channels, and back."""
    x = graph.to(x, "BTC")
    flat = graph.op("Reshape", x, graph.ints(-1, 1, x.c))
    flat = graph.op("Conv", flat, graph.weights(1, 1, 2), pads=[1, 0])
    shape = graph.op("Concat", graph.batch_size(x), graph.ints(-1, x.c), axis=0)
    return x.but(graph.op("Reshape", flat, shape))


def transpose(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    layout = pick(draw, "BCT", "BTC", "TBC", "CTB", "BCFT", "FTCB", "TFBC")
    return graph.to(graph.to(x, layout), pick(draw, layout, "BCT"))


def repeat_interleave(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """Unsqueeze, Expand (or Tile), Reshape."""
    x = graph.to(x, "BTC")
    n = whole(draw, 2, 3)
    assume(x.rate * n <= FASTEST)
    wide = graph.op("Unsqueeze", x, graph.ints(2))
    kind = pick(draw, "Expand", "Tile")
    wide = graph.op(kind, wide, graph.ints(1, 1, n, 1))
    return x.but(graph.op("Reshape", wide, graph.ints(0, -1, x.c)), rate=x.rate * n)


def tile_channels(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, pick(draw, "BCT", "BTC"))
    n = whole(draw, 1, 2)
    return x.but(graph.op("Tile", x, graph.ints(*(n if a == "C" else 1 for a in x.layout))), c=x.c * n)


def squeeze(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, pick(draw, "BCT", "BTC"))
    at = whole(draw, 0, 3)
    wide = graph.op("Unsqueeze", x, graph.ints(at))
    if flag(draw):
        wide = graph.op("Expand", wide, graph.ints(*(2 if i == at else 1 for i in range(4))))
        axes, attrs = reduce_axes(graph, at)
        return x.but(graph.op("ReduceMax", wide, *axes, **{**attrs, "keepdims": 0}))
    return x.but(graph.op("Squeeze", graph.op("Relu", wide), graph.ints(at)))


def reduce_axes(graph: Graph, *axes: int) -> tuple[list[str], dict[str, Any]]:
    """Axes as an input from opset 18 on, as an attribute before."""
    return ([graph.ints(*axes)], {"keepdims": 1}) if graph.opset >= 18 else ([], {"axes": list(axes), "keepdims": 1})


def depth_to_space(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, pick(draw, "BCFT", "BCTF"))
    assume(x.rate * 2 <= FASTEST and x.c * x.f <= 4)
    wide = x.but(graph.op("Tile", x, graph.ints(1, 4, 1, 1)), c=4 * x.c)
    made = graph.op("DepthToSpace", wide, blocksize=2, mode=pick(draw, "DCR", "CRD"))
    return x.but(made, f=2 * x.f, rate=2 * x.rate)


def space_to_depth(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, pick(draw, "BCFT", "BCTF"))
    assume(x.c * x.f <= 4)
    wide = graph.op("Tile", x, graph.ints(*(2 if a == "F" else 1 for a in x.layout)))
    return x.but(graph.op("SpaceToDepth", wide, blocksize=2), c=4 * x.c, rate=slower(x, 2))


# ---- resize


def resize(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    mode = pick(draw, "nearest", "linear", "cubic")
    x = graph.to(x, pick(draw, "BCFT", "BCTF") if mode == "cubic" else pick(draw, "BCT", "BCT", "BCFT"))
    factor = pick(draw, Fraction(2), Fraction(3), Fraction(1, 2), Fraction(3, 2), Fraction(2, 3), Fraction(5, 4))
    assume(x.rate * factor <= FASTEST)
    attrs: dict[str, Any] = {"mode": mode}
    attrs["coordinate_transformation_mode"] = pick(draw, "half_pixel", "asymmetric", "pytorch_half_pixel")
    if mode == "nearest":
        attrs["nearest_mode"] = pick(draw, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    if mode == "cubic":
        attrs["cubic_coeff_a"] = pick(draw, -0.75, -0.5)
    if mode != "nearest":
        graph.rounds = 20.0  # batch computes places in float32, the worse the further from the start
    if 1 < factor < 2:
        graph.least = 48  # an output as long as the input is just a copy, whatever the factor
    if factor < 1 and attrs["coordinate_transformation_mode"] == "pytorch_half_pixel":
        graph.least = max(graph.least, 48)  # an output of one frame is placed by a rule of its own: turned down
    made = x.but("", rate=x.rate * factor, exact=x.exact and mode == "nearest")
    if factor.denominator == 1 and flag(draw):  # to a computed size
        size = graph.op("Mul", graph.frames(x), graph.ints(int(factor)))
        others = graph.op("Shape", x)
        parts = [size if a == "T" else graph.op("Gather", others, graph.ints(i)) for i, a in enumerate(x.layout)]
        return made.but(graph.op("Resize", x, "", "", graph.op("Concat", *parts, axis=0), **attrs))
    scales = np.array([float(factor) if a == "T" else 1.0 for a in x.layout], np.float32)
    return made.but(graph.op("Resize", x, "", graph.const(scales, np.float32), **attrs))


# ---- frame by frame


def products(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    how = pick(draw, "right", "left", "einsum", "bias")
    c = whole(draw, 1, 3)
    if how == "left":
        x = graph.to(x, "BCT")
        return x.but(graph.op("MatMul", graph.weights(c, x.c), x), c=c)
    if how == "einsum":
        x = graph.to(x, pick(draw, "BCT", "BTC"))
        terms = x.layout.lower()
        equation = f"{terms},dc->{terms.replace('c', 'd')}"
        return x.but(graph.op("Einsum", x, graph.weights(c, x.c), equation=equation), c=c)
    x = graph.to(x, pick(draw, "BTC", "TBC"))
    made = graph.op("MatMul", x, graph.weights(x.c, c))
    return x.but(graph.op("Add", made, graph.weights(c)) if how == "bias" else made, c=c)


def unary(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    smooth = "Tanh", "Sigmoid", "Sin", "Cos", "Softplus", "Erf", "LeakyRelu", "HardSigmoid"
    op = pick(draw, "Abs", "Neg", "Relu", *smooth)
    return x.but(graph.op(op, x), exact=x.exact and op in ("Abs", "Neg", "Relu"))


def starts_high(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """Functions that are not zero at zero: what lies before the first frame must not be taken for one."""
    op = pick(draw, "Exp", "Cos", "Sigmoid", "Add", "Reciprocal", "Log")
    if op == "Add":
        return x.but(graph.op("Add", x, graph.const(np.array(5.0))))
    if op in ("Reciprocal", "Log"):  # infinite at zero, which no real frame is
        positive = graph.op("Add", graph.op("Abs", graph.op("Tanh", x)), graph.const(np.array(0.5)))
        return x.but(graph.op(op, graph.op("Sub", positive, graph.const(np.array(0.25)))), exact=False)
    return x.but(graph.op(op, graph.op("Tanh", x)), exact=False)


def binary(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    op = pick(draw, "Add", "Sub", "Mul", "Max", "Min", "PRelu")
    at = x.layout.index("C")
    shapes = [(1,), tuple(x.c if i == at else 1 for i in range(len(x.layout)))]
    shapes.append(shapes[1][at:])
    shape = pick(draw, *shapes)
    const = graph.weights(*shape)
    swap = op != "PRelu" and flag(draw)
    return x.but(graph.op(op, *((const, x) if swap else (x, const))))


def choose(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    zero = graph.const(np.array(0.0))
    how = pick(draw, "Where", "Clip", "Cast", "mask")
    if how == "Where":
        jump = x.exact and flag(draw)  # rounding must not decide between two different values
        other = graph.const(np.array(7.0)) if jump else graph.op("Neg", x)
        return x.but(graph.op("Where", graph.op("Greater", x, zero), x, other))
    if how == "Clip":
        return x.but(graph.op("Clip", x, graph.const(np.array(-2.0)), graph.const(np.array(3.0))))
    if how == "Cast":
        wide = graph.op("Cast", x, to=11)
        return x.but(graph.op("Cast", wide, to={"float32": 1, "float16": 10, "float64": 11}[graph.dtype.name]))
    mask = graph.op("Not", graph.op("Less", x, zero))
    return x.but(graph.op("Mul", graph.op("CastLike", mask, x), x))


def batch_norm(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, pick(draw, "BCT", "BCFT"))
    positive = graph.weights(x.c, low=1, high=4)
    args = [positive, graph.weights(x.c), graph.weights(x.c), positive]
    return x.but(graph.op("BatchNormalization", x, *args), exact=False)


def layer_norm(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, pick(draw, "BTC", "TBC"))
    args = [graph.weights(x.c), graph.weights(x.c)] if flag(draw) else [graph.weights(x.c)]
    graph.rounds = max(graph.rounds, 20.0)  # two channels nearly alike: the division magnifies the last bit
    return x.but(graph.op("LayerNormalization", x, *args, axis=-1, epsilon=0.1), exact=False)


def local_response(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """Neighbouring channels, or neighbouring frames in their place. ONNX Runtime takes four axes and odd sizes."""
    assume(graph.dtype == np.float32)
    x = graph.to(x, pick(draw, "BTCF", "BTFC", "BCTF"))
    attrs = {"size": pick(draw, 1, 3, 5), "alpha": 0.5, "beta": pick(draw, 0.5, 0.75)}
    graph.rounds = max(graph.rounds, 20.0)  # squares, and a power of their sum
    return x.but(graph.op("LRN", x, **attrs), exact=False)


def reverse_channels(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """The first few of them; how many is said for every stream."""
    x = graph.to(x, pick(draw, "BCT", "CBT"))
    count = graph.op("Expand", graph.ints(whole(draw, 1, x.c)), graph.batch_size(x))
    at = {"time_axis": x.layout.index("C"), "batch_axis": x.layout.index("B")}
    return x.but(graph.op("ReverseSequence", x, count, **at))


def over_channels(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, pick(draw, "BCT", "BTC"))
    at = x.layout.index("C")
    op = pick(draw, "Softmax", "LogSoftmax", "ReduceMean", "ReduceMax", "ReduceSum", "ReduceL1")
    if op.endswith("Softmax"):
        return x.but(graph.op(op, x, axis=at - (3 if flag(draw) else 0)), exact=False)
    if op == "ReduceSum":
        return x.but(graph.op(op, x, graph.ints(at), keepdims=1), c=1)
    axes, attrs = reduce_axes(graph, at)
    return x.but(graph.op(op, x, *axes, **attrs), c=1, exact=x.exact and op != "ReduceMean")


def discrete_choice(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """ArgMax and TopK: only of whole numbers, where rounding cannot change the order."""
    assume(x.exact)
    x = graph.to(x, pick(draw, "BCT", "BTC"))
    at = x.layout.index("C")
    if flag(draw):
        index = graph.op("ArgMax", x, axis=at, keepdims=1)
        return x.but(graph.op("CastLike", index, x), c=1)
    k = whole(draw, 1, x.c)
    values, index = graph.ops("TopK", 2, x, graph.ints(k), axis=at)
    return x.but(graph.op("Add", values, graph.op("CastLike", index, x)), c=k)


def quantize(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """To eight bits, a product or a convolution there, and back."""
    assume(x.exact and graph.dtype == np.float32)
    x = graph.to(x, "BCT")
    kind = pick(draw, np.uint8, np.int8)
    point = graph.const(np.array(whole(draw, 0, 9)), kind)
    scale = graph.const(np.array(0.5), np.float32)
    q = graph.op("QuantizeLinear", x, scale, point)
    how = pick(draw, "back", "QLinearConv", "ConvInteger", "MatMulInteger")
    if how == "back":
        return x.but(graph.op("DequantizeLinear", q, scale, point))
    if how == "MatMulInteger":
        row = graph.op("Transpose", q, perm=[0, 2, 1])
        made = graph.op("MatMulInteger", row, graph.weights(x.c, 2, dtype=np.uint8, low=1), point)
        return x.but(graph.op("Cast", made, to=1), c=2, layout="BTC")
    size, before, after, stride = whole(draw, 1, 4), whole(draw, 0, 3), whole(draw, 0, 3), whole(draw, 1, 2)
    pads = [min(before, size - 1), min(after, size - 1)]
    weight = graph.weights(2, x.c, size, dtype=np.uint8, low=1)
    zero = graph.const(np.array(0), np.uint8)
    attrs = {"pads": pads, "strides": [stride]}
    if how == "ConvInteger":
        assume(kind == np.uint8)
        made = graph.op("Cast", graph.op("ConvInteger", q, weight, point, zero, **attrs), to=1)
    else:
        assume(kind == np.uint8)
        one = graph.const(np.array(1.0), np.float32)
        q = graph.op("QLinearConv", q, scale, point, weight, one, zero, scale, point, **attrs)
        made = graph.op("DequantizeLinear", q, scale, point)
    return x.but(made, c=2, rate=slower(x, stride))


# ---- positions


def positions(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, pick(draw, "BCT", "BTC", "TBC"))
    frames = graph.scalar(graph.frames(x))
    how = pick(draw, "sine", "phase", "table", "gathered", "decay")
    if how in ("table", "gathered"):
        x = graph.to(x, "BTC")
        table = graph.const(np.random.default_rng(0).integers(-3, 4, (1, 5000, x.c)).astype(graph.dtype))
        if how == "table":
            rows = graph.op("Slice", table, graph.ints(0), graph.frames(x), graph.ints(1))
        else:
            rows = graph.op("Gather", table, graph.op("Range", graph.int(0), frames, graph.int(1)), axis=1)
        return x.but(graph.op("Add", x, rows))
    count = graph.op("Range", graph.int(0), frames, graph.int(1))
    shape = graph.ints(*(-1 if a == "T" else 1 for a in x.layout))
    if how == "phase":
        even = graph.op("Equal", graph.op("Mod", count, graph.int(whole(draw, 2, 3))), graph.int(0))
        even = graph.op("Reshape", even, shape)
        return x.but(graph.op("Where", even, x, graph.op("Neg", x)))
    value = graph.op("Cast", count, to={"float32": 1, "float16": 10, "float64": 11}[graph.dtype.name])
    value = graph.op("Reshape", value, shape)
    if how == "sine":
        value = graph.op("Sin", graph.op("Mul", value, graph.const(np.array(0.25))))
        return x.but(graph.op("Add", x, value), exact=False)
    value = graph.op("Add", value, graph.const(np.array(1.0)))
    return x.but(graph.op(pick(draw, "Mul", "Div"), x, value), exact=False)


FAMILIES: dict[str, list[Fragment]] = {
    "conv": [conv],
    "conv_transpose": [conv_transpose],
    "zero_ends": [hollow_conv, hollow_conv_transpose, windowed_frames],
    "interpolate": [interpolated],
    "max_pool": [max_pool],
    "average_pool": [average_pool],
    "lp_pool": [lp_pool],
    "pad": [pad, pad, pad_to_multiple],
    "slice": [slice_],
    "concat": [concat_frames, concat_channels],
    "split": [split],
    "gather": [gather_unfold, gather_shift, gather_channels],
    "reshape": [stack_frames, pixel_shuffle, fold_batch, fold_conv],
    "transpose": [transpose],
    "expand": [repeat_interleave, tile_channels, squeeze],
    "blocks": [depth_to_space, space_to_depth],
    "resize": [resize],
    "products": [products],
    "elementwise": [unary, binary, choose, starts_high],
    "norms": [batch_norm, layer_norm],
    "local_response": [local_response],
    "over_channels": [over_channels, discrete_choice, reverse_channels],
    "quantize": [quantize],
    "positions": [positions],
}
WINDOWS = ("zero_ends", "interpolate")  # several nodes each, between convolutions only
FRAGMENTS = [f for name, fragments in FAMILIES.items() if name not in WINDOWS for f in dict.fromkeys(fragments)]
KEEPS_LENGTH = [same_conv, unary, binary, choose, starts_high, transpose, products, layer_norm, positions]


@st.composite
def empty_graphs(draw: Draw, batches: tuple[int | str, ...] = (1,), dtypes: tuple[Any, ...] = (np.float32,)) -> Graph:
    return Graph(pick(draw, 18, 17, 19), pick(draw, *dtypes), pick(draw, *batches), channels=2)


@st.composite
def alone(draw: Draw, family: str, **options: Any) -> tuple[Graph, list[Tensor]]:
    """One fragment and nothing else."""
    graph = draw(empty_graphs(**options))
    made = pick(draw, *FAMILIES[family])(draw, graph, graph.input)
    assume(graph.nodes and runs(graph, [made]))
    return graph, [made]


@st.composite
def sandwiched(draw: Draw, family: str, **options: Any) -> tuple[Graph, list[Tensor]]:
    """A fragment between two convolutions, so that delays and misalignment arise."""
    graph = draw(empty_graphs(**options))
    x = pick(draw, conv, same_conv, starts_high)(draw, graph, graph.input)
    x = pick(draw, *FAMILIES[family])(draw, graph, x)
    x = pick(draw, conv, same_conv)(draw, graph, x)
    assume(runs(graph, [x]))
    return graph, [x]


@st.composite
def residual(draw: Draw, family: str, **options: Any) -> tuple[Graph, list[Tensor]]:
    """A fragment, then two branches of equal length that meet again."""
    graph = draw(empty_graphs(**options))
    x = pick(draw, *FAMILIES[family])(draw, graph, graph.input)
    made = merge(draw, graph, branch(draw, graph, x), branch(draw, graph, x))
    assume(runs(graph, [made]))
    return graph, [made]


def branch(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    for _ in range(whole(draw, 0, 2)):
        x = pick(draw, *KEEPS_LENGTH)(draw, graph, x)
    return x


def merge(draw: Draw, graph: Graph, a: Tensor, b: Tensor) -> Tensor:
    """Add or concatenate. Channels are made to fit, lengths are not."""
    a, b = graph.to(a, "BCT"), graph.to(b, "BCT")
    exact = a.exact and b.exact
    if flag(draw):
        return a.but(graph.op("Concat", a, b, axis=1), c=a.c + b.c, exact=exact)
    if a.c != b.c:
        b = b.but(graph.op("MatMul", graph.weights(a.c, b.c), b), c=a.c)
    return a.but(graph.op(pick(draw, "Add", "Mul", "Max"), a, b), exact=exact)


@st.composite
def compositions(draw: Draw, most: int = 7, **options: Any) -> tuple[Graph, list[Tensor]]:
    """A few fragments in a row, some branching and merging, some given out on the way."""
    graph = draw(empty_graphs(**options))
    x, outputs = graph.input, []
    for _ in range(whole(draw, 2, most)):
        if whole(draw, 0, 3) == 0:
            x = merge(draw, graph, *_branches(draw, graph, x))
        else:
            x = pick(draw, *FRAGMENTS)(draw, graph, x)
        assume(x.c * x.f <= 12 and x.rate >= Fraction(1, 12))
        if whole(draw, 0, 4) == 0 and graph.nodes:
            outputs.append(x)
    outputs.append(x)
    assume(graph.nodes and runs(graph, outputs))
    return graph, outputs


def _branches(draw: Draw, graph: Graph, x: Tensor) -> tuple[Tensor, Tensor]:
    if flag(draw):
        return branch(draw, graph, x), branch(draw, graph, x)
    a = pick(draw, *FRAGMENTS)(draw, graph, x)  # any fragment: kept only if it happens to fit
    b = pick(draw, *FRAGMENTS)(draw, graph, x) if flag(draw) else branch(draw, graph, x)
    assume(a.rate == b.rate)
    return a, b
