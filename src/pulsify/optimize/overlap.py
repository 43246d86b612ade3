"""Overlap-add of which only some is read: every block that is read is a window of frames times the kernel's pieces.

frames  a b c d -ConvTranspose-> [ a | a+b | a+b+c | a+b+c+d | b+c+d | c+d | d ] -Slice-> [ a+b+c+d ]

                                 = a Conv of four taps over a b c d, with as many channels as the stride
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.optimize.builder import Builder
from pulsify.optimize.rewriting import NodeChange
from pulsify.optimize.views import constant, cut_of, only_reader, sizes, small_weights

Array = np.ndarray[Any, Any]


class ReadOverlap(NodeChange):
    """A cut of a transposed convolution, whole strides of it and at most half of what is made: a convolution.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        bounds, made = cut_of(node), node.inputs[0] if node.op_type == "Slice" else None
        back = made.producer() if made is not None and only_reader(made) else None
        if bounds is None or back is None or back.op_type != "ConvTranspose" or not small_weights(back.inputs[1]):
            return
        frames, weights = sizes(back.inputs[0]), constant(back.inputs[1])
        biases = [constant(v) for v in back.inputs[2:]]
        if frames is None or weights is None or weights.ndim != 3 or frames[0] != 1 or any(a is None for a in biases):
            return
        if not _plain(back) or bounds[0] != 2:
            return
        stride = back.attributes.get_ints("strides", (1,))[0]
        first, last = (place + back.attributes.get_ints("pads", (0, 0))[0] for place in bounds[1:])
        taps, blocks = weights.shape[2] // stride, (last - first) // stride
        since = first // stride - taps + 1  # the first frame that is read
        if first % stride or last % stride or since < 0 or last // stride > frames[2] or 2 * blocks > frames[2]:
            return
        if weights.shape[2] % stride:  # zeros in place of what lacks would spread what is not finite
            return
        x, end = back.inputs[0], last // stride
        assert x is not None
        if (since, end) != (0, frames[2]):
            dims = (1, frames[1], end - since)
            x = b.op("Slice", [x, *(b.ints(n) for n in (since, end, 2))], dims, x.dtype)
        kernel = _windows(weights, stride, taps)
        inputs = [x, b.constant(f"{back.name}/window", kernel)]
        inputs += [b.constant(f"{back.name}/bias", np.repeat(a, stride)) for a in biases if a is not None]
        shape, out = (1, len(kernel), blocks), node.outputs[0]
        found = b.op("Conv", inputs, shape, out.dtype, name=f"{back.name}/read", kernel_shape=[taps])
        if blocks > 1:
            apart = (1, weights.shape[1], stride, blocks)
            found = b.op("Transpose", [b.reshaped(found, apart)], (*apart[:2], *apart[:1:-1]), out.dtype, perm=_SWAP)
        b.replace(out, b.reshaped(found, (1, weights.shape[1], blocks * stride)))


_SWAP = [0, 1, 3, 2]


def _plain(node: ir.Node) -> bool:
    """One group, nothing between the taps, amounts of padding given."""
    return (
        node.attributes.get_int("group", 1) == 1
        and node.attributes.get_ints("dilations", (1,))[0] == 1
        and node.attributes.get_string("auto_pad", "NOTSET") == "NOTSET"
        and "output_shape" not in node.attributes
    )


def _windows(weights: Array, stride: int, taps: int) -> Array:
    """Weights [C, N, K] of a frame to what comes of it, as [N * stride, C, taps]: of a window to what ends with it."""
    channels, outputs, _ = weights.shape
    pieces = weights.reshape(channels, outputs, taps, stride)[:, :, ::-1]  # the newest frame begins
    return pieces.transpose(1, 3, 0, 2).reshape(outputs * stride, channels, taps)


class SumBlocks(NodeChange):
    """A product with a matrix of blocks that are each the identity or nothing: a sum of pieces of every row.

    That is overlap-add without a window, as `ReadOverlap` leaves it. fewest: columns; a product of less is as quick.
    Requires and ensures what every `NodeChange` does.
    """

    def __init__(self, fewest: int = 16) -> None:
        self.fewest = fewest

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        rows, shape, x = sizes(node.inputs[0]), sizes(node.outputs[0]), node.inputs[0]
        if node.op_type != "Gemm" or len(node.inputs) != 2 or not set(node.attributes) <= {"transB"}:
            return
        weights = constant(node.inputs[1]) if small_weights(node.inputs[1]) else None
        if weights is None or rows is None or shape is None or x is None:
            return
        weights = weights.T if node.attributes.get_int("transB", 0) else weights
        inputs, size = weights.shape
        if size < self.fewest or inputs % size or np.count_nonzero(weights) > inputs:
            return
        blocks = weights.reshape(-1, size, size)
        read = np.flatnonzero(blocks.any((1, 2)))
        if not read.size or not (blocks[read] == np.eye(size, dtype=weights.dtype)).all():
            return
        apart = b.reshaped(x, (rows[0], len(blocks), size))
        places = b.constant(f"{node.name}/blocks", read)
        found = b.op("Gather", [apart, places], (rows[0], len(read), size), x.dtype, axis=1)
        b.replace(node.outputs[0], b.op("ReduceSum", [found, b.ints(1)], shape, x.dtype, keepdims=0))
