"""Neighbours laid side by side, then mixed: that is a convolution, and need not be laid out.

x [C, F] -Pad-> -Gather(f, f+1, f+2)-> [C, 3, F] -> [3C, F] -Conv 1-> [N, F]        =        x -Conv 3-> [N, F]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.optimize.builder import Builder
from pulsify.optimize.rewriting import NodeChange
from pulsify.optimize.views import constant, sizes, source

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Unfolded:
    """`value`, [.., C, .., F], of which every place f shows f, f + dilation, ... (`taps` of them), zeros around it."""

    value: ir.Value
    taps: int
    dilation: int
    pads: tuple[int, int]


class FoldUnfold(NodeChange):
    """A convolution of one tap over neighbours laid side by side becomes one with as many taps.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        if node.op_type != "Conv" or any(v is None for v in node.inputs):
            return
        weights, dims = constant(node.inputs[1]), sizes(node.inputs[0])
        found = _unfolded(node.inputs[0])
        if weights is None or dims is None or found is None or not _plain(node, weights):
            return
        outputs, inputs = weights.shape[:2]
        before, rank = sizes(found.value), len(dims)
        channels = dims[1] // found.taps
        if before is None or dims[0] != 1 or math.prod(dims[2:-1]) != 1 or inputs % found.taps:
            return
        width = before[-1]
        if channels * found.taps != dims[1] or math.prod(before) != channels * width:
            return
        if width + sum(found.pads) - found.dilation * (found.taps - 1) != dims[-1]:
            return
        ones, zeros = (1,) * (rank - 3), (0,) * (rank - 3)
        kernel = weights.reshape(outputs, inputs // found.taps, *ones, found.taps)
        x = b.reshaped(found.value, (1, channels, *ones, width))
        name = f"{node.name}/window"
        out = node.outputs[0]
        made = b.op(
            "Conv", [x, b.constant(name, kernel), *node.inputs[2:]], sizes(out), out.dtype,
            group=node.attributes.get_int("group", 1), kernel_shape=[*ones, found.taps],
            dilations=[*ones, found.dilation], pads=[*zeros, found.pads[0], *zeros, found.pads[1]],
        )  # fmt: skip
        b.replace(out, made)


def _plain(node: ir.Node, weights: Array) -> bool:
    """One tap, no stride, no padding."""
    return (
        weights.dtype == np.float32
        and math.prod(weights.shape[2:]) == 1
        and not any(node.attributes.get_ints("pads", ()))
        and set(node.attributes.get_ints("strides", (1,))) == {1}
        and node.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    )


def _unfolded(value: ir.Value | None) -> Unfolded | None:
    gather = None if value is None else source(value).producer()
    if gather is None or gather.op_type != "Gather" or gather.inputs[0] is None:
        return None
    places, dims = constant(gather.inputs[1]), sizes(gather.inputs[0])
    if places is None or places.ndim != 2 or dims is None or places.shape[0] < 2:
        return None
    taps, width = places.shape
    dilation = int(places[1, 0] - places[0, 0])
    if dilation < 1:
        return None
    regular = np.arange(width)[None] + dilation * np.arange(taps)[:, None]
    if gather.attributes.get_int("axis", 0) % len(dims) != len(dims) - 1 or not np.array_equal(places, regular):
        return None
    inner = source(gather.inputs[0])
    pad = inner.producer()
    if pad is not None and (pads := _zeros_around(pad)) is not None and pad.inputs[0] is not None:
        return Unfolded(pad.inputs[0], taps, dilation, pads)
    return Unfolded(inner, taps, dilation, (0, 0))


def _zeros_around(pad: ir.Node) -> tuple[int, int] | None:
    """How many zeros a Pad adds before and after, if only on the last axis."""
    if pad.op_type != "Pad" or pad.attributes.get_string("mode", "constant") != "constant" or len(pad.inputs) > 3:
        return None
    amounts = constant(pad.inputs[1])
    fill = constant(pad.inputs[2]) if len(pad.inputs) > 2 and pad.inputs[2] is not None else np.zeros(1)
    if amounts is None or fill is None or fill.any():
        return None
    rank = len(amounts) // 2
    before, after = amounts[:rank], amounts[rank:]
    if before[:-1].any() or after[:-1].any() or min(before[-1], after[-1]) < 0:
        return None
    return int(before[-1]), int(after[-1])
