"""Floats and large whole numbers: what is said of them must be what float32 and int64 do, as long as it is said.

Random programs of large constants, binary fractions, casts and cuts are followed, and computed with numpy in the types
of the model. A Series must be the number, to the last digit while it `fits` and nearly so behind that. Places of a
Spread that look alike must have the same deviation, however far out they are.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.analysis.values.follow import Few, Fixed, Follower, Value
from pulsify.frontend.load import load
from pulsify.frontend.time import find_time
from pulsify.lengths.affine_array import ORIGIN, Spread, T, pair
from pulsify.lengths.float_limits import Drift, common, step_of
from pulsify.lengths.series import LONGEST, Series, Unsure
from pulsify.trace.lengths import Tracer
from tests.models import model, node
from tests.selection import turns
from tests.unit.lengths.test_affine_array import first_sizes

Array = np.ndarray[Any, Any]
Entry = Callable[[Array, Array, Array], Array]  # (T, i, j) -> the value there
REALS = (0.5, 0.25, 1 / 1024, 1023 / 1024, 3.0, 0.1, 10.0, 1e-9, 1.0, 2.5, 100.0, 2000.5, 2096152.25, 16776216.0, 1e8)
WHOLES = (1, 2, 3, -1, 7, 97, 512, 1000, 2**31, 2**40 + 1, 2**53, 2**53 + 1, 2**61, 2**62, 2**63 - 1000)
KINDS: dict[str, Any] = {"i": np.int64, "f": np.float32, "b": np.bool_}
TWO = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Min": np.minimum, "Max": np.maximum}
TESTS = {"Less": np.less, "LessOrEqual": np.less_equal, "Equal": np.equal, "Greater": np.greater}
CUTS = {"Floor": np.floor, "Ceil": np.ceil, "Round": np.round}


class Program:
    """Nodes over the length t and (unless `alone`) the rows i and columns j, and how to compute each of them."""

    def __init__(self, seed: int, alone: bool) -> None:
        self.random = random.Random(seed)
        self.nodes = [
            node("Shape", "x", "dims"), node("Gather", "dims at", "t", axis=0), node("Range", "zero t unit", "p"),
            node("Unsqueeze", "p last", "i"), node("Unsqueeze", "p first", "j"),
        ]  # fmt: skip
        self.constants: dict[str, Array] = {
            "at": np.array(2), "zero": np.array(0), "unit": np.array(1), "last": np.array([1]), "first": np.array([0]),
        }  # fmt: skip
        self.values: dict[str, tuple[str, Entry]] = {"t": ("i", lambda t, i, j: t)}
        if not alone:
            self.values |= {"i": ("i", lambda t, i, j: i), "j": ("i", lambda t, i, j: j)}
        for n in range(self.random.randint(3, 9)):
            self._more(f"v{n}")

    def _pick(self, kind: str, constants: float = 0.5) -> tuple[str, Entry] | None:
        """A value of a kind, or a constant."""
        r = self.random
        if r.random() < constants and kind != "b":
            number = np.array(r.choice(REALS if kind == "f" else (*WHOLES, r.randint(-50, 50))), KINDS[kind])
            name = f"c{len(self.constants)}"
            self.constants[name] = number
            return name, lambda t, i, j: np.full(t.shape, number)
        names = [n for n, (k, _) in self.values.items() if k == kind]
        if not names:
            return None
        name = r.choice(names[-3:])
        return name, self.values[name][1]

    def _more(self, out: str) -> None:
        r = self.random
        op = r.choice(("float", "float", "int", *TWO, "Div", "Mod", *TESTS, *CUTS, "Where", "Abs", "Neg", "Not"))
        kind = "f" if op in CUTS or r.random() < 0.7 else "i"
        a, b = self._pick("b" if op == "Not" else kind, 0.0), self._pick(kind)
        if op in ("float", "int"):
            a, to = self._pick("i" if op == "float" else "f", 0.0), "f" if op == "float" else "i"
            if a is not None:
                f = a[1]
                code = onnx.TensorProto.FLOAT if to == "f" else onnx.TensorProto.INT64
                self._add(to, "Cast", [a[0]], out, lambda t, i, j: f(t, i, j).astype(KINDS[to]), to=code)
            return
        if a is None or b is None:
            return
        f, g = a[1], b[1]
        if op in TWO:
            self._add(kind, op, [a[0], b[0]], out, lambda t, i, j: TWO[op](f(t, i, j), g(t, i, j)))
        elif op in TESTS:
            self._add("b", op, [a[0], b[0]], out, lambda t, i, j: TESTS[op](f(t, i, j), g(t, i, j)))
        elif op in CUTS:
            self._add("f", op, [a[0]], out, lambda t, i, j: CUTS[op](f(t, i, j)))
        elif op in ("Div", "Mod"):
            self._divide(kind, op, a, out)
        elif op == "Where":
            if (c := self._pick("b", 0.0)) is not None:
                h = c[1]
                names = [c[0], a[0], b[0]]
                self._add(kind, op, names, out, lambda t, i, j: np.where(h(t, i, j), f(t, i, j), g(t, i, j)))
        else:
            one = {"Abs": np.abs, "Neg": np.negative, "Not": np.logical_not}[op]
            self._add("b" if op == "Not" else kind, op, [a[0]], out, lambda t, i, j: one(f(t, i, j)))

    def _divide(self, kind: str, op: str, a: tuple[str, Entry], out: str) -> None:
        name, by, f = f"c{len(self.constants)}", self.random.choice((2, 3, 7, 10, 1024)), a[1]
        number = self.constants[name] = np.array(by, KINDS[kind])

        def entry(t: Array, i: Array, j: Array) -> Array:
            x = f(t, i, j)
            if op == "Mod":
                return np.asarray(np.fmod(x, number) if kind == "f" else np.mod(x, number))
            return np.asarray(x / number if kind == "f" else np.sign(x) * (np.abs(x) // number))

        self._add(kind, op, [a[0], name], out, entry, **({"fmod": 1} if op == "Mod" and kind == "f" else {}))

    def _add(self, kind: str, op: str, inputs: list[str], out: str, entry: Entry, **attrs: int) -> None:
        self.nodes.append(node(op, " ".join(inputs), out, **attrs))
        self.values[out] = (kind, entry)

    def followed(self) -> Iterator[tuple[str, Entry, Value, Follower]]:
        """Every value that can be followed."""
        types = {n: KINDS[k] for n, (k, _) in self.values.items()}
        given = model(self.nodes, {"x": (1, 2, "T")}, list(types), self.constants, dtypes=types, opset=18)
        loaded = load(given)
        tracer = Tracer(loaded, find_time(loaded))
        first = tracer.at(67)
        follower = Follower(
            loaded, tracer.evaluator, 1, lambda name: first_sizes(first, name), lambda name, s: tracer.at(s)[name],
            first=lambda name: first[name],
        )  # fmt: skip
        for name, (_, entry) in self.values.items():
            try:
                value = follower.value(name)
            except Unsure:
                continue
            yield name, entry, value, follower


def check_number(seed: int) -> int:
    """How many numbers of a program were looked at."""
    looked = 0
    for name, entry, value, _ in Program(seed, alone=True).followed():
        if not isinstance(value, Few) or not isinstance(value.cells.item(), Series):
            continue
        s: Series = value.cells.item()
        r = random.Random(seed)
        far = [r.randint(1, 1 << r.randint(1, 29)) for _ in range(200)]
        edges = [s.limit, s.limit - 1, s.drift.fits, s.drift.fits + 1, s.settled, s.settled - 1]
        lengths = np.array([n for n in (*range(1, 65), *far, *edges) if 1 <= n <= min(s.limit, LONGEST)])
        with np.errstate(all="ignore"):
            have = entry(lengths, lengths, lengths)
        told = f"seed {seed}, {name}: {s}"
        for n, x in zip(lengths.tolist(), have.tolist(), strict=True):
            off = float(s.drift.off(n)) if s.floating and n > s.drift.fits else 0.0
            slack = abs(float(x)) * 1e-12 + off * 1e-3 if s.floating else 0.0
            same = abs(x - s.at(n)) <= off + slack or x == s.at(n)
            assert same, f"{told}\nat {n}: {x} instead of {s.at(n)}"
        looked += 1
    return looked


def places(v: Spread, r: random.Random, count: int) -> Iterator[tuple[dict[int, int], dict[int, int]]]:
    """Pairs of places that must look alike, far apart."""
    wide = max([1.0, *(g for g in v.near.values() if g < LONGEST)])
    axes = [a for a in (0, 1) if a < v.rank and a in v.times]
    for _ in range(count):
        x = {a: r.randint(0, int(2 * wide) + 2 * v.period) for a in axes}
        x[T] = max([*x.values(), 0]) + 1 + r.randint(0, int(wide) + 2 * v.period)
        order = sorted([ORIGIN, *x], key=lambda c: 0 if c == ORIGIN else x[c])
        at = r.randint(1, len(order) - 1)
        low, high = order[:at], order[at:]
        gap = x[high[0]] - (0 if low[-1] == ORIGIN else x[low[-1]])
        further = v.period * r.randint(1, max((1 << r.randint(1, 24)) // v.period, 1))
        y = {c: n + (further if c in high else 0) for c, n in x.items()}
        if gap > max((v.near.get(pair(a, b), 0.0) for a in low for b in high), default=0.0) and y[T] <= v.limit:
            yield x, y


def check_spread(seed: int, count: int = 120) -> int:
    program, r, looked = Program(seed, alone=False), random.Random(seed), 0
    for name, entry, value, follower in program.followed():
        if isinstance(value, Fixed):
            continue
        try:
            v = follower.spread(value)
        except Unsure:
            continue
        if v.period > 100_000:
            continue
        for x, y in places(v, r, count):
            values = []
            for p in (x, y):
                with np.errstate(all="ignore"):
                    found = entry(*(np.array([p.get(c, 0)]) for c in (T, 0, 1)))[0].item()
                slope = float(sum(q * p[c] for c, q in v.slope.items()))
                values.append((found - slope, _off(v, p[T]) + abs(slope) * 1e-12))
            (here, off), (there, more) = values
            told = f"seed {seed}, {name}: {v}\n{x} {y}"
            if np.isfinite([here, there]).all():
                assert abs(here - there) <= off + more + 1e-12, f"{told}: {here} is not {there}"
                assert v.lo - off - 1e-9 <= here <= v.hi + off + 1e-9, f"{told}: {here} is not in [{v.lo}, {v.hi}]"
            looked += 1
    return looked


def _off(v: Spread, length: int) -> float:
    if not v.floating or length <= v.drift.fits:
        return 0.0
    return float(v.drift.off(length)) if v.slope or not v.rough else float("inf")


@pytest.mark.parametrize("block", [pytest.param(n, marks=turns(n, 4)) for n in range(8)])
def test_numbers_are_what_their_type_holds(block: int) -> None:
    assert sum(check_number(seed) for seed in range(25 * block, 25 * block + 25)) > 10


@pytest.mark.parametrize("block", [pytest.param(n, marks=turns(n, 4)) for n in range(8)])
def test_values_over_time_are_what_their_type_holds(block: int) -> None:
    assert sum(check_spread(seed) for seed in range(25 * block, 25 * block + 25)) > 300


@pytest.mark.slow
def test_many_programs_of_numbers_at_their_limits() -> None:
    many = int(os.environ.get("PULSIFY_EXAMPLES", "3000"))
    assert sum(check_number(seed) + check_spread(seed) for seed in range(1000, 1000 + many)) > many


def test_steps_are_found() -> None:
    assert step_of(np.array([0.75, 3.0])) == 0.25
    assert step_of(np.array([1024.0, 4096.0])) == 1024
    assert step_of(np.array([np.inf])) is None
    assert common(step_of(np.array([6])), step_of(np.array([4]))) == 2
    assert Drift().rounded(1 << 14, 1.0, 1.0).fits == 1 << 14
