"""Shapes that inference does not know or gets wrong, and those the runtime would not take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pulsify.core.errors import NotStreamable
from pulsify.core.refusal import Kind
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.trace.traced import Array, CannotRun, Traced

COORDINATES = "coordinate_transformation_mode"
SAME_SHAPE = ("MeanVarianceNormalization", "GroupNormalization")  # as their input; inference does not know them


def pooled(node: Node, ins: list[Traced | None], dims: tuple[int, ...]) -> tuple[int, ...]:
    """With ceil_mode, shape inference counts a window that starts past the end; the runtime does not."""
    if not node.op.endswith("Pool") or not node.attr("ceil_mode", 0) or ins[0] is None:
        return dims
    n, sizes = len(dims) - 2, ins[0].dims[2:]
    strides, pads = node.attr("strides", (1,) * n), node.attr("pads", (0,) * (2 * n))
    kept = [d - ((d - 1) * s >= size + p) for d, s, size, p in zip(dims[2:], strides, sizes, pads, strict=False)]
    return (*dims[:2], *kept)


def check_shapes(node: Node, ins: list[Traced | None]) -> None:
    """What shape inference lets pass and the runtime does not."""
    if traits(node.op, node.domain).elementwise:
        try:
            np.broadcast_shapes(*(v.dims for v in ins if v is not None))
        except ValueError as error:
            raise CannotRun(node, str(error)[:200]) from error
    elif node.op == "Concat":
        axis = node.attr("axis")
        kept = {tuple(d for i, d in enumerate(v.dims) if i != axis % len(v.dims)) for v in ins if v is not None}
        if len(kept) > 1:
            raise CannotRun(node, f"the parts differ in shape: {sorted(kept)}")
    elif node.op in ("Gather", "GatherND"):
        x, index = ins[0], ins[1]
        if x is not None and index is not None and index.known and index.array.size:
            for size, places in _indexed(node, x.dims, index.array):
                if not -size <= places.min() <= places.max() < size:
                    raise CannotRun(node, f"an index is outside of its table of {size}")
    elif node.op in ("Conv", "MaxPool", "AveragePool", "LpPool") and ins[0] is not None:
        _check_kernel(node, ins[0], ins[1].dims[2:] if node.op == "Conv" and ins[1] else node.attr("kernel_shape"))
    elif node.op == "STFT":
        for what, v in (("hop", ins[1]), ("frame length", ins[3] if len(ins) > 3 else None)):
            if v is not None and v.known and v.array.min(initial=1) < 1:  # the runtime divides by it: the process ends
                raise CannotRun(node, f"its {what} is {int(v.array.min())}")
    elif node.op == "Pad" and node.attr("mode", "constant") == "reflect":
        x, pads = ins[0], ins[1]
        if x is not None and pads is not None and pads.known and len(ins) < 4:
            amounts = pads.array.reshape(2, -1)
            if any(int(a) >= max(d, 1) for row in amounts for a, d in zip(row, x.dims, strict=True)):
                raise CannotRun(node, "it reflects more frames than there are")


def _indexed(node: Node, dims: tuple[int, ...], index: Array) -> list[tuple[int, Array]]:
    """Sizes of the axes that an index is for, each with the places along it."""
    if node.op == "GatherND":
        front = node.attr("batch_dims", 0)
        if not 0 <= front <= len(dims) - index.shape[-1]:
            raise CannotRun(node, f"batch_dims={front} and {index.shape[-1]} columns of an index, of {len(dims)} axes")
        return [(dims[front + column], index[..., column]) for column in range(index.shape[-1])]
    axis = node.attr("axis", 0)
    if not -len(dims) <= axis < len(dims):
        raise CannotRun(node, f"it takes axis {axis} of {len(dims)} axes")
    return [(dims[axis], index)]


def own_shape(node: Node, ins: list[Traced | None]) -> tuple[int, ...] | None:
    """Shapes that inference does not know, or gets wrong."""
    x = ins[0]
    if x is not None and node.op in ("Resize", "Upsample"):
        return _scaled(node, x, ins[1:])
    if x is not None and node.op == "ConvTranspose" and node.attr("output_shape") and ins[1] is not None:
        fixed = tuple(node.attr("output_shape"))[2 - len(x.dims) :]
        return (x.dims[0], ins[1].dims[1] * node.attr("group", 1), *fixed)
    if x is not None and node.op == "ConvTranspose" and node.attr("auto_pad", "").startswith("SAME"):
        assert ins[1] is not None
        return _transposed(node, x.dims, ins[1].dims)
    if x is None or node.op not in (*SAME_SHAPE, "STFT"):
        return None
    if node.op in SAME_SHAPE:
        return x.dims
    hop, window, size = ins[1], ins[2] if len(ins) > 2 else None, ins[3] if len(ins) > 3 else None
    if hop is None or not hop.known or (size is not None and not size.known):
        raise NotStreamable(
            "its hop or frame length depends on the data",
            node=node.name,
            op=node.op,
            hint="make them constants",
            kind=Kind.DATA,
        )
    frame = int(size.array.reshape(-1)[0]) if size is not None else window.dims[0] if window is not None else 0
    if x.dims[1] < frame:
        raise CannotRun(node, f"its frame of {frame} is longer than its input of {x.dims[1]}")
    frames = (x.dims[1] - frame) // int(hop.array.reshape(-1)[0]) + 1
    return (x.dims[0], frames, frame // 2 + 1 if node.attr("onesided", 1) else frame, 2)


def _transposed(node: Node, dims: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[int, ...]:
    """SAME makes stride times the input, where the kernel makes so many; inference adds output_padding once more."""
    n = len(dims) - 2
    strides, dilations, more = (
        node.attr(k) or (d,) * n for k, d in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    made = [
        min((size - 1) * s + (k - 1) * d + 1 + e, size * s)
        for size, k, s, d, e in zip(dims[2:], kernel[2:], strides, dilations, more, strict=True)
    ]
    return (dims[0], kernel[1] * node.attr("group", 1), *made)


def _scaled(node: Node, x: Traced, ins: list[Traced | None]) -> tuple[int, ...] | None:
    """Sizes by scales are worked out in float32; inference does it in double, and finds one frame fewer at times."""
    at = 0 if node.op == "Upsample" else 1
    scales = ins[at] if len(ins) > at else None
    if scales is None or not scales.known or not scales.array.size or "crop" in node.attr(COORDINATES, ""):
        return None
    out = list(x.dims)
    for axis, scale in zip(node.attr("axes") or range(len(out)), scales.array.reshape(-1), strict=True):
        out[axis] = int(np.float32(out[axis]) * np.float32(scale))
    if min(out) <= 0:
        raise CannotRun(node, f"the output would have shape {out}")
    return tuple(out)


def _check_kernel(node: Node, x: Traced, kernel: Sequence[int]) -> None:
    """Inference rounds towards zero, and so finds a frame where the kernel is longer than its input."""
    n = len(kernel)
    if len(x.dims) != n + 2:
        raise CannotRun(node, f"its input has {len(x.dims)} axes, and its kernel {n}")
    if node.attr("auto_pad", "NOTSET").startswith("SAME") or node.attr("ceil_mode", 0):
        return
    pads, dilations = node.attr("pads", (0,) * (2 * n)), node.attr("dilations", (1,) * n)
    if len(pads) != 2 * n or len(dilations) != n:
        raise CannotRun(node, f"its pads or dilations are not those of {n} axes")
    for i, (size, k) in enumerate(zip(x.dims[2:], kernel, strict=True)):
        if size + pads[i] + pads[i + n] < (k - 1) * dilations[i] + 1:
            raise CannotRun(node, f"its kernel is longer than its input of {size}")


def no_larger(node: Node, ins: list[Traced | None]) -> bool:
    """Its output has no more elements than its inputs: no shape has to be inferred to say so."""
    own = traits(node.op, node.domain)
    if not own.elementwise:
        one = node.op == "Gather" and ins[1] is not None and math.prod(ins[1].dims) <= 1
        kept = node.op in ("Slice", "Transpose", "ScatterND", "ScatterElements")
        return one or kept or own.regroups or own.keeps_size
    largest = max((v.dims for v in ins if v is not None), key=math.prod)
    return all(v is None or _fits(v.dims, largest) for v in ins)


def _fits(dims: tuple[int, ...], into: tuple[int, ...]) -> bool:
    """Does it broadcast to the other shape, which stays as it is?"""
    return len(dims) <= len(into) and all(d in (1, n) for d, n in zip(reversed(dims), reversed(into), strict=False))
