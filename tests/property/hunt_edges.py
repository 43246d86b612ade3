"""A hunt at the two ends of a stream: chains of operators that cut, pad or join there, in every order, at every length.

A seed says all: the operators, their attributes and the pulses. `python -m tests.property.hunt_edges 0 1000` goes
through many and prints those that are wrong.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

import pulsify
from tests.property.check import Batch, collect, data, difference, runs, valid
from tests.property.graph import LARGE, Array, Graph, Tensor

LENGTHS = range(1, 61)
PULSES = range(1, 13)
SLOWEST, FASTEST = Fraction(1, 12), Fraction(4)
COORDINATES = ("half_pixel", "asymmetric", "pytorch_half_pixel")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
Random = np.random.Generator
Piece = Callable[[Random, Graph, Tensor], Tensor]


def whole(rng: Random, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


def pick(rng: Random, *choices: str) -> str:
    return choices[int(rng.integers(len(choices)))]


# ---- the pieces


def pad(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    """Often in front or behind only; negative amounts cut."""
    mode = pick(rng, "constant", "edge", "reflect")
    low = -2 if rng.random() < 0.3 else 0
    before, after = (whole(rng, low, 4) if rng.random() < 0.7 else 0 for _ in range(2))
    value = [graph.const(np.array(whole(rng, -9, 9)), graph.dtype)] if mode == "constant" else []
    return x.but(graph.op("Pad", x, graph.ints(0, 0, before, 0, 0, after), *value, mode=mode))


def joined(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    """Constant frames, or the stream's own first frames, in front; constant frames behind."""
    front = [constant_frames(graph, x, whole(rng, 1, 3))] if rng.random() < 0.6 else []
    behind = [constant_frames(graph, x, whole(rng, 1, 3))] if not front or rng.random() < 0.5 else []
    if rng.random() < 0.2:
        front = [graph.op("Slice", x, graph.ints(0), graph.ints(whole(rng, 1, 3)), graph.ints(2))]
    return x.but(graph.op("Concat", *front, x, *behind, axis=2))


def constant_frames(graph: Graph, x: Tensor, count: int) -> str:
    """Constant frames, for every stream of the batch."""
    table = graph.weights(1, x.c, count, low=-9, high=10)
    if graph.batch == 1:
        return table
    return graph.op("Expand", table, graph.op("Concat", graph.batch_size(x), graph.ints(1, 1), axis=0))


def cut(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    """From the front, from behind, every n-th."""
    start = whole(rng, 0, 4) if rng.random() < 0.6 else 0
    stop = -whole(rng, 1, 4) if rng.random() < 0.5 else LARGE
    step = whole(rng, 1, 3)
    made = graph.op("Slice", x, graph.ints(start), graph.ints(stop), graph.ints(2), graph.ints(step))
    return x.but(made, rate=x.rate / step)


def _taps(rng: Random, graph: Graph, deep: bool = True) -> dict[str, object]:
    kernel, stride = whole(rng, 1, 5), whole(rng, 1, 3)
    attrs: dict[str, object] = {"kernel_shape": [kernel], "strides": [stride]}
    if rng.random() < 0.25:
        if stride > 1:
            graph.may_refuse.append("SAME pads with a stride")
        return {**attrs, "auto_pad": pick(rng, "SAME_UPPER", "SAME_LOWER")}
    dilation = whole(rng, 1, 2) if deep else 1
    span = (kernel - 1) * dilation + 1
    return {
        **attrs,
        "dilations": [dilation] if deep else None,
        "pads": [whole(rng, 0, min(span, kernel) - 1) for _ in range(2)],
    }


def conv(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    attrs = _taps(rng, graph)
    (kernel,), (stride,) = attrs["kernel_shape"], attrs["strides"]  # type: ignore[misc]
    return x.but(graph.op("Conv", x, graph.weights(2, x.c, kernel), **attrs), c=2, rate=x.rate / stride)


def pool(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    op = pick(rng, "MaxPool", "AveragePool", "LpPool")
    attrs = _taps(rng, graph, deep=op == "MaxPool")
    (stride,) = attrs["strides"]  # type: ignore[misc]
    if op == "LpPool":
        attrs["p"] = 1
    if op == "AveragePool":
        attrs["count_include_pad"] = whole(rng, 0, 1)
    if rng.random() < 0.3:
        attrs["ceil_mode"] = 1
    graph.loose = True  # it takes streams shorter than the kernel
    return x.but(graph.op(op, x, **attrs), rate=x.rate / stride)


def transposed(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    kernel, stride = whole(rng, 1, 5), whole(rng, 1, 3)
    pads = [whole(rng, 0, kernel - 1) for _ in range(2)]
    extra = [whole(rng, 0, stride - 1)]
    weight = graph.weights(x.c, 2, kernel)
    made = graph.op("ConvTranspose", x, weight, strides=[stride], pads=pads, output_padding=extra)
    return x.but(made, c=2, rate=x.rate * stride)


def resized(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    """By factors that float32 holds exactly: then no length is rounded."""
    factor = Fraction(pick(rng, "2", "3", "1/2", "3/2", "1/4"))
    coordinates = pick(rng, *COORDINATES[: 3 if factor > 1 else 2])  # a single frame is known at the end only
    attrs = {"mode": pick(rng, "nearest", "linear"), "coordinate_transformation_mode": coordinates}
    if attrs["mode"] == "nearest":
        attrs["nearest_mode"] = pick(rng, *NEAREST)
    made = graph.op("Resize", x, "", graph.const(np.array([1, 1, float(factor)]), np.float32), **attrs)
    return x.but(made, rate=x.rate * factor)


def unary(rng: Random, graph: Graph, x: Tensor) -> Tensor:
    return x.but(graph.op(pick(rng, "Neg", "Abs", "Relu"), x))


PIECES: tuple[Piece, ...] = (pad, pad, pad, joined, joined, cut, cut, conv, conv, pool, transposed, resized, unary)


# ---- one graph


def chain(seed: int) -> tuple[Graph, Tensor]:
    """2 to 4 pieces; those that leave nothing of a long stream, or that ONNX Runtime does not take, are drawn anew."""
    rng = np.random.default_rng(seed)
    while True:
        graph = Graph(opset=18, batch=1 if rng.random() < 0.8 else "B")
        x = graph.input
        for _ in range(whole(rng, 2, 4)):
            x = PIECES[int(rng.integers(len(PIECES)))](rng, graph, x)
        if SLOWEST <= x.rate <= FASTEST and any(runs(graph, [x], n) for n in (48, 49, 50)):
            return graph, x


def hunt(seed: int, pulses: int = 3) -> Counter[str]:
    """Look for a fault of one graph at some pulses; how many pulses and lengths were compared."""
    return hunted(seed, *chain(seed), pulses)


def begun(seed: int, first: Piece, pieces: Sequence[Piece], count: tuple[int, int], one: float) -> tuple[Graph, Tensor]:
    """A chain that begins with a certain piece and has so many others behind it. one: how often the batch is one."""
    rng = np.random.default_rng(seed)
    while True:
        graph = Graph(opset=18, batch=1 if rng.random() < one else "B")
        x = first(rng, graph, graph.input)
        for _ in range(whole(rng, *count)):
            x = pieces[int(rng.integers(len(pieces)))](rng, graph, x)
        if x.rate >= SLOWEST and any(runs(graph, [x], n) for n in (48, 49, 50)):
            return graph, x


def hunted(seed: int, graph: Graph, made: Tensor, pulses: int = 3, of: range = PULSES) -> Counter[str]:
    """At so many pulses of a range, which the seed draws."""
    drawn = np.random.default_rng(seed).permutation(of)
    return check_lengths(graph, made, [int(p) for p in drawn], pulses)


def check_lengths(graph: Graph, made: Tensor, pulses: Sequence[int], most: int = len(PULSES)) -> Counter[str]:
    """The first `most` pulses that fit, at every length: taken just where batch takes it, and equal to batch."""
    model = graph.model([made])
    batch, size, seen = Batch(model), 1 if graph.batch == 1 else 2, Counter[str]()
    inputs = {n: data(graph, n, size) for n in LENGTHS}
    expected = {n: batch.run(x) for n, x in inputs.items()}
    for pulse in pulses:
        try:
            stream = pulsify.stream(model, pulse=pulse, verify=False)
        except pulsify.InvalidPulse:
            continue
        except pulsify.NotStreamable as error:
            if graph.may_refuse:
                return Counter(refused=1)
            raise AssertionError(f"refused: {error}\n{graph!r}") from error
        seen["pulses"] += 1
        seen["lengths"] += _check_pulse(graph, stream, inputs, expected)
        if seen["pulses"] == most:
            break
    return seen + Counter(graphs=1)


def _check_pulse(
    graph: Graph, stream: pulsify.Stream, inputs: dict[int, Array], expected: dict[int, dict[str, Array] | None]
) -> int:
    count, (out,) = 0, stream.outputs
    rng = np.random.default_rng(stream.pulse)
    batch = len(inputs[1]) if stream.spec.batch else None
    sessions = [stream.session(padding=math.nan, batch=batch, portable=portable) for portable in (True, False)]
    for n, want in expected.items():
        where = f"pulse {stream.pulse} length {n}"
        if not valid(stream, n):
            nothing = want is None or not want[out.name].size
            assert nothing or graph.loose, f"{where} is turned down, batch takes it\n{graph!r}"
            continue
        assert want is not None, f"{where} is taken, batch does not take it\n{graph!r}"
        parts: dict[str, list[Array]] = {out.name: []}
        session, at = sessions[n % 2], 0
        session.reset()
        while at < n:
            step = int(rng.integers(0, 2 * stream.pulse + 2))
            collect(parts, session.push(inputs[n][..., at : at + step]))
            at += step
        collect(parts, session.flush())
        problem = difference(np.concatenate(parts[out.name], out.axis), want[out.name], out.axis, 1e-6)
        assert not problem, f"{where}: {problem}\n{graph!r}"
        count += 1
    return count


def main(first: int, last: int, hunt: Callable[[int], Counter[str]] = hunt) -> None:
    total, faults = Counter[str](), 0
    for seed in range(first, last):
        try:
            total += hunt(seed)
        except Exception as error:  # what it is does not matter: none may come
            faults += 1
            print(f"seed {seed}: {type(error).__name__} {error}\n", flush=True)
    print(f"seeds {first} to {last - 1}: {faults} faults, {dict(total)}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
