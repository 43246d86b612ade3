"""A hunt behind mirrored starts: pads that show later frames in front, convolutions, recurrences and sums behind them.

A seed says all: `python -m tests.property.hunt_opening 0 1000` goes through many and prints those that are wrong.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from tests.property import hunt_edges, hunt_start
from tests.property.graph import Graph, Tensor
from tests.property.hunt_edges import Piece, Random, pick, whole

PULSES = range(1, 9)


def mirrored(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    """Frames shown again in front, sometimes behind, and a convolution that looks back as far, or less, or further."""
    kernel, dilation = whole(rng, 2, 4), whole(rng, 1, 2)
    stride = 2 if rng.random() < 0.2 else 1
    span = (kernel - 1) * dilation
    before = span + (whole(rng, -1, 1) if rng.random() < 0.3 else 0)
    after = whole(rng, 1, 2) if rng.random() < 0.2 else 0
    mode = "edge" if rng.random() < 0.25 else "reflect"
    padded = graph.op("Pad", x, graph.ints(0, 0, before, 0, 0, after), mode=mode)
    made = graph.op("Conv", padded, graph.weights(2, x.c, kernel), dilations=[dilation], strides=[stride])
    return x.but(made, c=2, rate=x.rate / stride)


def residual(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    """A mirrored convolution beside its input."""
    kernel = whole(rng, 2, 4)
    padded = graph.op("Pad", x, graph.ints(0, 0, kernel - 1, 0, 0, 0), mode="reflect")
    return x.but(graph.op("Add", x, graph.op("Conv", padded, graph.weights(x.c, x.c, kernel))))


def recurrent(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    """LSTM or GRU, from zero or from a state of its own."""
    op, gates = (("LSTM", 4), ("GRU", 3))[whole(rng, 0, 1)]
    size = 2
    weights = [graph.const(rng.normal(size=(1, gates * size, n)), graph.dtype) for n in (x.c, size)]
    first = []
    if graph.batch == 1 and rng.random() < 0.4:
        first = ["", "", *(graph.const(rng.normal(size=(1, 1, size)), graph.dtype) for _ in range(gates - 2))]
        first = first[: 3 + (op == "LSTM")]
    turned = graph.op("Transpose", x, perm=[2, 0, 1])
    made = graph.ops(op, 1, turned, *weights, *first, hidden_size=size)[0]
    flat = graph.op("Squeeze", made, graph.ints(1))
    return x.but(graph.op("Transpose", flat, perm=[1, 2, 0]), c=size)


def summed(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    """What has been summed up so far."""
    return x.but(graph.op("CumSum", x, graph.int(2), exclusive=whole(rng, 0, 1)))


def eased(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    return x.but(graph.op(pick(rng, "Relu", "Abs", "Neg"), x))


MIRRORED: tuple[Piece, ...] = (mirrored, residual)
WINDOWED: tuple[Piece, ...] = (
    mirrored, mirrored, mirrored, residual, residual, hunt_start.caused, hunt_start.front, hunt_start.shortcut,
)  # fmt: skip
PIECES: tuple[Piece, ...] = (
    mirrored, mirrored, mirrored, residual, residual, recurrent, summed, eased, hunt_edges.joined, hunt_edges.cut,
    hunt_start.caused, hunt_start.front, hunt_start.shortcut, hunt_edges.pad,
)  # fmt: skip


def chain(seed: int, pieces: Sequence[Piece] = PIECES) -> tuple[Graph, Tensor]:
    """A mirrored start, and one to four pieces behind it."""
    return hunt_edges.begun(seed, mirrored, pieces, (1, 4), one=0.6)


def hunt(seed: int, pulses: int = 3) -> Counter[str]:
    return hunt_edges.hunted(seed, *chain(seed), pulses, PULSES)


if __name__ == "__main__":
    hunt_edges.main(int(sys.argv[1]), int(sys.argv[2]), hunt)
