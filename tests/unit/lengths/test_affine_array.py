"""Arrays over time: what a Spread says of places it never looked at must be so.

Random programs over the length T and the positions i (rows) and j (columns) are followed. Then a place is moved: all
coordinates behind some gap, by the period. If the gap is wider than all that is near across it, the deviation from the
slope must be the same, and it must lie between lo and hi.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.analysis.values.follow import Fixed, Follower
from pulsify.frontend.load import load
from pulsify.frontend.time import find_time
from pulsify.lengths.affine_array import ORIGIN, Spread, T, pair
from pulsify.lengths.series import LONGEST, Unsure, length_itself
from pulsify.trace.lengths import Tracer
from tests.models import model, node
from tests.selection import turns

Array = np.ndarray[Any, Any]
OPERATORS = (
    *("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Abs", "Neg", "Where", "Trilu"),
    *("Less", "LessOrEqual", "Equal", "GreaterOrEqual", "And", "Or", "Not"),
)
Entry = Callable[[Array, Array, Array], Array]  # (T, i, j) -> the value there


def _trunc(x: Array, by: int) -> Array:
    return np.sign(x) * np.sign(by) * (np.abs(x) // abs(by))


class Program:
    """Nodes over T, i and j, and how to compute each of their values at any place."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes = [
            node("Shape", "x", "dims"), node("Gather", "dims at", "t", axis=0), node("Range", "zero t unit", "p"),
            node("Unsqueeze", "p last", "i"), node("Unsqueeze", "p first", "j"),
        ]  # fmt: skip
        self.constants: dict[str, Array] = {
            "at": np.array(2), "zero": np.array(0), "unit": np.array(1), "last": np.array([1]), "first": np.array([0]),
        }  # fmt: skip
        self.numbers: dict[str, Entry] = {"t": lambda t, i, j: t, "i": lambda t, i, j: i, "j": lambda t, i, j: j}
        self.flags: dict[str, Entry] = {}
        for n in range(self.random.randint(2, 8)):
            self._more(f"v{n}")

    def _constant(self, value: int) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(value)
        return name

    def _operand(self) -> tuple[str, Entry]:
        r = self.random
        if r.random() < 0.4:
            value = r.choice([r.randint(-9, 9), r.randint(-50, 60), r.choice([100, 150])])
            return self._constant(value), lambda t, i, j: np.full_like(t, value)
        name = r.choice(list(self.numbers))
        return name, self.numbers[name]

    def _more(self, out: str) -> None:
        r = self.random
        op = r.choice(OPERATORS)
        (a, f), (b, g) = self._operand(), self._operand()
        if op in ("Less", "LessOrEqual", "Equal", "GreaterOrEqual"):
            how = {"Less": np.less, "LessOrEqual": np.less_equal, "Equal": np.equal, "GreaterOrEqual": np.greater_equal}
            self._add(self.flags, op, [a, b], out, lambda t, i, j: how[op](f(t, i, j), g(t, i, j)))
        elif op in ("And", "Or", "Not"):
            if not self.flags:
                return
            x, y = r.choice(list(self.flags)), r.choice(list(self.flags))
            p, q = self.flags[x], self.flags[y]
            if op == "Not":
                self._add(self.flags, op, [x], out, lambda t, i, j: ~p(t, i, j))
            else:
                both = np.logical_and if op == "And" else np.logical_or
                self._add(self.flags, op, [x, y], out, lambda t, i, j: both(p(t, i, j), q(t, i, j)))
        elif op == "Where":
            if not self.flags:
                return
            x = r.choice(list(self.flags))
            p = self.flags[x]
            self._add(self.numbers, op, [x, a, b], out, lambda t, i, j: np.where(p(t, i, j), f(t, i, j), g(t, i, j)))
        elif op in ("Div", "Mod", "Mul"):
            k = r.choice([2, 3, 4, 7]) if op != "Mul" else r.choice([-2, -1, 2, 3])
            how_k = {"Div": _trunc, "Mod": np.mod, "Mul": np.multiply}[op]
            self._add(self.numbers, op, [a, self._constant(k)], out, lambda t, i, j: how_k(f(t, i, j), k))
        elif op in ("Abs", "Neg"):
            one = np.abs if op == "Abs" else np.negative
            self._add(self.numbers, op, [a], out, lambda t, i, j: one(f(t, i, j)))
        elif op == "Trilu":
            k = r.randint(-5, 20)
            self.nodes += [node("Add", "i j", f"{out}/z"), node("Sub", f"{out}/z {out}/z", f"{out}/0")]
            self.nodes.append(node("Add", f"{a} {out}/0", f"{out}/full"))
            keep = self._constant(k)
            how_t = lambda t, i, j: np.where(j - i <= k, f(t, i, j), 0)  # noqa: E731
            self._add(self.numbers, "Trilu", [f"{out}/full", keep], out, how_t, upper=0)
        else:
            two = {"Add": np.add, "Sub": np.subtract, "Min": np.minimum, "Max": np.maximum}[op]
            self._add(self.numbers, op, [a, b], out, lambda t, i, j: two(f(t, i, j), g(t, i, j)))

    def _add(self, kind: dict[str, Entry], op: str, inputs: list[str], out: str, entry: Entry, **attrs: int) -> None:
        self.nodes.append(node(op, " ".join(inputs), out, **attrs))
        kind[out] = entry

    def model(self) -> onnx.ModelProto:
        constants = {k: v.astype(np.int64) for k, v in self.constants.items()}
        types = {**dict.fromkeys(self.numbers, np.int64), **dict.fromkeys(self.flags, bool)}
        return model(self.nodes, {"x": (1, 2, "T")}, list(types), constants, dtypes=types, opset=18)


def followed(program: Program) -> Iterator[tuple[str, Entry, Spread]]:
    """Every value of a program that can be followed, as a Spread over rows and columns."""
    loaded = load(program.model())
    time = find_time(loaded)
    tracer = Tracer(loaded, time)
    first = tracer.at(67)
    follower = Follower(
        loaded, tracer.evaluator, 1, lambda name: (first_sizes(first, name)), lambda name, s: tracer.at(s)[name],
        first=lambda name: first[name],
    )  # fmt: skip
    for name, entry in {**program.numbers, **program.flags}.items():
        try:
            value = follower.value(name)
            if not isinstance(value, Fixed):
                yield name, entry, follower.spread(value)
        except Unsure:
            continue


def first_sizes(first: Any, name: str) -> tuple[Any, ...]:
    from pulsify.lengths.series import constant

    assert name == "x"
    return constant(1), constant(2), length_itself()


def places(v: Spread, r: random.Random, count: int) -> Iterator[tuple[dict[int, int], dict[int, int]]]:
    """Pairs of places that must look alike."""
    wide = max([1.0, *(g for g in v.near.values() if g < LONGEST)])
    axes = [a for a in (0, 1) if a < v.rank and a in v.times]
    for _ in range(count):
        x = {a: r.randint(0, int(3 * wide) + 3 * v.period) for a in axes}
        x[T] = max([*x.values(), 0]) + 1 + r.randint(0, int(2 * wide) + 2 * v.period)
        order = sorted([ORIGIN, *x], key=lambda c: 0 if c == ORIGIN else x[c])
        at = r.randint(1, len(order) - 1)
        low, high = order[:at], order[at:]
        gap = x[high[0]] - (0 if low[-1] == ORIGIN else x[low[-1]])
        if gap > max((v.near.get(pair(a, b), 0.0) for a in low for b in high), default=0.0):
            yield x, {c: n + (v.period if c in high else 0) for c, n in x.items()}


def deviation(v: Spread, entry: Entry, place: dict[int, int]) -> float:
    t, i, j = (np.array([place.get(c, 0)]) for c in (T, 0, 1))
    value = float(entry(t, i, j)[0])
    return value - float(sum(q * place[c] for c, q in v.slope.items()))


def check_sides(v: Spread, entry: Entry, r: random.Random, told: str) -> None:
    """Far from the diagonal it lies where its sides say, and is one number where they say so."""
    for (axes, after), side in v.beyond.items():
        assert axes == (0, 1)
        seen = set[float]()
        for _ in range(8):
            apart, low = math.floor(side.reach) + r.randint(1, 40), r.randint(0, 60)
            i, j = (low, low + apart) if after else (low + apart, low)
            t = low + apart + 1 + r.randint(0, 30)
            value = float(entry(*(np.array([n]) for n in (t, i, j)))[0])
            seen.add(value)
            line = side.slope * apart
            assert side.lo + line <= value <= side.hi + line, f"{told}: {value} at {i}, {j} of {t}: {side}"
        assert len(seen) == 1 or not side.same, f"{told}: {seen} of {side}"


def check(seed: int, count: int = 150) -> int:
    program, r, looked = Program(seed), random.Random(seed), 0
    for name, entry, v in followed(program):
        if v.period > 100_000:
            continue
        check_sides(v, entry, random.Random(seed), f"seed {seed}, {name}: {v}")
        for x, y in places(v, r, count):
            here, there = deviation(v, entry, x), deviation(v, entry, y)
            told = f"seed {seed}, {name}: {v}\n{x} {y}"
            assert abs(here - there) < 1e-6, f"{told}: {here} is not {there}"
            assert v.lo - 1e-6 <= here <= v.hi + 1e-6, f"{told}: {here} is not in [{v.lo}, {v.hi}]"
            looked += 1
    return looked


@pytest.mark.parametrize("block", [pytest.param(n, marks=turns(n, 4)) for n in range(12)])
def test_nothing_new_shows_at_places_never_looked_at(block: int) -> None:
    assert sum(check(seed) for seed in range(25 * block, 25 * block + 25)) > 500


WRITTEN: dict[str, tuple[list[onnx.NodeProto], Callable[[Array], Array]]] = {
    "a frame": ([node("Identity", "c", "at0")], lambda t: np.full_like(t, 5)),
    "the last": ([node("Sub", "t unit", "at0")], lambda t: t - 1),
    "one before the end": ([node("Sub", "t c", "at0")], lambda t: np.where(t < 5, 2 * t - 5, t - 5)),
    "counted from the end": ([node("Neg", "c", "at0")], lambda t: t - 5),
    "in the middle": ([node("Div", "t two", "at0")], lambda t: t // 2),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_entries_that_are_written(name: str) -> None:
    """Five at one place, and beside it what counts on, from as many frames on as there must be."""
    nodes, place = WRITTEN[name]
    program = Program(0)
    program.numbers, program.flags = {"y": lambda t, i, j: np.where(i == place(t), 5, i % 3)}, {}
    program.nodes = [
        *program.nodes[:3], *nodes, node("Reshape", "at0 pair", "index"), node("Mod", "p three", "rest"),
        node("ScatterND", "rest index five", "y"),
    ]  # fmt: skip
    numbers = {"c": 5, "two": 2, "three": 3, "five": [5], "pair": [1, 1]}
    program.constants = {k: program.constants[k] for k in ("at", "zero", "unit")}
    program.constants |= {
        k: np.array(v) for k, v in numbers.items() if k in {i for n in program.nodes for i in n.input}
    }
    (_, entry, v), r = next(iter(followed(program))), random.Random(0)
    for x, y in places(v, r, 2000):
        if x[T] > 5 and y[T] > 5:
            here, there = deviation(v, entry, x), deviation(v, entry, y)
            assert here == there and v.lo <= here <= v.hi, (v, x, y)
    assert all(map(math.isfinite, v.near.values())) == (name != "in the middle")


@pytest.mark.slow
def test_nothing_new_shows_in_many_programs() -> None:
    import os

    many = int(os.environ.get("PULSIFY_EXAMPLES", "3000"))
    assert sum(check(seed) for seed in range(1000, 1000 + many)) > 20 * many
