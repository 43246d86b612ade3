"""A hunt at the start: frames put in front once, then operators that use them up, shortcuts past them, and more pads.

A seed says all: `python -m tests.property.hunt_start 0 1000` goes through many and prints those that are wrong.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np

from tests.property import hunt_edges
from tests.property.graph import LARGE, Graph, Tensor
from tests.property.hunt_edges import Piece, Random, whole


def front(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    """Constant frames in front: a pad, or joined."""
    count = whole(rng, 1, 18)
    if rng.random() < 0.3:
        table = hunt_edges.constant_frames(graph, x, count)
        return x.but(graph.op("Concat", table, x, axis=2))
    value = graph.const(np.array(whole(rng, -3, 3)), graph.dtype)
    return x.but(graph.op("Pad", x, graph.ints(0, 0, count, 0, 0, 0), value))


def unpadded(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    kernel, dilation = whole(rng, 1, 4), whole(rng, 1, 3)
    stride = 2 if rng.random() < 0.15 else 1
    bias = graph.weights(2)
    weight = graph.weights(2, x.c, kernel)
    made = graph.op("Conv", x, weight, bias, dilations=[dilation], strides=[stride])
    return x.but(graph.op("Relu", made), c=2, rate=x.rate / stride)


def shortcut(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    """An unpadded convolution, and its input past it with the first frames left out."""
    kernel, dilation = whole(rng, 2, 4), whole(rng, 1, 3)
    span = (kernel - 1) * dilation
    made = graph.op("Conv", x, graph.weights(x.c, x.c, kernel), graph.weights(x.c), dilations=[dilation])
    rest = graph.op("Slice", x, graph.ints(span), graph.ints(LARGE), graph.ints(2))
    return x.but(graph.op("Add", made, rest))


def counted(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    """Each frame's own number, a few of them told apart, is added."""
    size = graph.op("Gather", graph.op("Shape", x), graph.const(np.array(2), np.int64), axis=0)
    ends = [graph.const(np.array(n), np.int64) for n in (0, 1)]
    places = graph.op("Range", ends[0], size, ends[1])
    low = graph.op("Min", places, graph.const(np.array(whole(rng, 2, 9)), np.int64))
    dtype = graph.op("Cast", low, to=1)
    return x.but(graph.op("Add", x, dtype))


def caused(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    """A convolution with a pad of its own in front."""
    kernel = whole(rng, 2, 4)
    return x.but(graph.op("Conv", x, graph.weights(2, x.c, kernel), pads=[kernel - 1, 0]), c=2)


PIECES: tuple[Piece, ...] = (
    front, unpadded, unpadded, unpadded, shortcut, shortcut, counted, caused, hunt_edges.pad, hunt_edges.cut,
    hunt_edges.unary,
)  # fmt: skip


def chain(seed: int) -> tuple[Graph, Tensor]:
    """A front, and two to five pieces behind it."""
    return hunt_edges.begun(seed, front, PIECES, (2, 5), one=0.7)


def hunt(seed: int, pulses: int = 3) -> Counter[str]:
    return hunt_edges.hunted(seed, *chain(seed), pulses)


if __name__ == "__main__":
    hunt_edges.main(int(sys.argv[1]), int(sys.argv[2]), hunt)
