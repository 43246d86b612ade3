"""Streams that number their frames, and what comes out of them call by call, by the reference alone.

y    frame n of an output is n: -delay, ..., -1 are late, 0 is the first one      echo    the frames of an input
last how many pulses there were, which comes at the end
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import onnx_ir as ir

import pulsify
from pulsify.core.framing import left
from pulsify.core.length import Length
from pulsify.core.spec import Condition, Dims, Input, Output, Spec
from tests.models import Array
from tests.unit.graphs import graph
from tests.unit.specs import F32, a_state, a_stream

ERROR = None  # of a call that is refused
Call = dict[str, list[float]] | None


@dataclass(frozen=True)
class Case:
    """outputs: lengths, with frames that they are later than they must be. first: pulses of the first call.

    phase: frames by which the first pulse begins before the stream.
    """

    pulse: int
    outputs: tuple[tuple[Length, int], ...]
    rates: tuple[int, ...] = (1,)
    first: int = 1
    shortest: int = 1
    step: int = 1
    conditions: tuple[Condition, ...] = ()
    phase: int = 0

    @property
    def stream(self) -> pulsify.Stream:
        opening = None if self.first == 1 else pulsify.Stream(*_numbering(self, self.first))
        model, spec = _numbering(self, 1)
        return pulsify.Stream(model, spec, opening=opening)


def delay(length: Length, pulse: int, phase: int = 0) -> int:
    """The smallest: all frames that come out are there, however soon the stream ends."""
    frames = int(pulse * length.rate)
    steady = [n * frames - min(length.at(t) for t in range(n * pulse - phase, 9 * pulse)) for n in range(1, 8)]
    return max(0, *steady) if length.cap is None else int(phase * length.rate)


def _numbering(case: Case, pulses: int) -> tuple[ir.Model, Spec]:
    """The step of a case, or that of its first pulses."""
    nodes, constants = ["Add count many > new_count; Identity new_count > last"], {"many": _row(pulses)}
    inputs, outputs = [], []
    for i, rate in enumerate(case.rates):
        dims: Dims = ("B", rate * case.pulse * pulses)
        inputs.append(Input(f"x{i}", 1, Fraction(rate), F32, dims))
        late, length = case.phase * rate, Length(((rate, 0, 1),))
        outputs.append(Output(f"echo{i}", 1, Fraction(rate), late, rate * case.pulse, F32, dims, length))
        nodes.append(f"Identity x{i} > echo{i}")
    for i, (length, more) in enumerate(case.outputs):
        frames = int(case.pulse * length.rate)
        late = delay(length, case.pulse, case.phase) + more
        dims = ("B", frames * pulses)
        outputs.append(Output(f"y{i}", 1, length.rate, late, frames, F32, dims, length))
        constants |= {
            f"frames{i}": _row(frames),
            f"begin{i}": np.arange(frames * pulses, dtype=np.float32)[None] - late,
        }
        nodes.append(f"Mul count frames{i} > at{i}; Add at{i} begin{i} > y{i}")
    outputs.append(Output("last", None, Fraction(1), case.phase, case.pulse, F32, ("B", 1), Length()))
    ports = {p.name: list(p.dims) for p in inputs} | {"count": ["B", 1]}
    model = graph("; ".join(nodes), ports, " ".join([*(o.name for o in outputs), "new_count"]), constants)
    for value in model.graph.outputs:
        dims = next((o.dims for o in outputs if o.name == value.name), ("B", 1))
        value.shape = ir.Shape(dims)
    spec = a_stream(
        case.pulse * pulses, batch="B", inputs=tuple(inputs), outputs=tuple(outputs), shortest=case.shortest,
        step=case.step, states=(a_state("count", ("B", 1)),), conditions=case.conditions,
        opening=case.first if pulses == 1 and case.first > 1 else 0, phase=case.phase,
    )  # fmt: skip
    return model, spec


def _row(number: int) -> Array:
    return np.array([[number]], np.float32)


def expected(spec: Spec, pushes: list[list[int]]) -> list[Call]:
    """What comes of every push, and of flush: frames so far, less those of the calls before."""
    tables = [c for c in spec.conditions if c.at_most is not None]
    received, calls = [0] * len(spec.inputs), list[Call]()
    framing = spec.framing
    timed = [o for o in spec.outputs if o.axis is not None]
    for push in pushes:
        after = [a + b for a, b in zip(received, push)]
        if not all(c.length.at(_units(spec, after)) <= (c.at_most or 0) for c in tables):
            calls.append(ERROR)
            continue
        both = [framing.pulses(n) for n in (received, after)]
        calls.append({o.name: list(map(float, range(*map(o.framing.given, both)))) for o in timed})
        received = after
    total, pulses = _units(spec, received), framing.pulses(received)
    whole = all(n == total * i.rate for n, i in zip(received, spec.inputs))
    taken = total >= spec.shortest and total % spec.step == 0 and all(c.met(total) for c in spec.conditions)
    if not whole or (total and not taken):
        return [*calls, ERROR]
    ends = [max(o.length.at(total), 0) if total else 0 for o in spec.outputs]
    last = dict[str, list[float]]()
    for o, end in zip(spec.outputs, ends):
        if o.axis is not None:
            last[o.name] = list(map(float, range(o.framing.given(pulses), end)))
        elif total:
            padded = left(pulses, framing.needed(ends)) if pulses else max(framing.first, framing.needed(ends))
            last[o.name] = [float(pulses + padded)]
    return [*calls, last]


def _units(spec: Spec, received: list[int]) -> int:
    return min(n // int(i.rate) for n, i in zip(received, spec.inputs))


# ---- cases, and chunks for them

HALF, TWICE = Length(((1, 0, 2),)), Length(((2, 0, 1),))
FEWER = Length(((1, -3, 1),), floors=frozenset({0}))
CASES = {
    "plain": Case(3, ((Length(), 0), (Length(), 2), (Length(), 7))),
    "rates": Case(4, ((TWICE, 3), (HALF, 1), (Length(((3, 1, 2),)), 0)), rates=(1, 2)),
    "ends": Case(2, ((FEWER, 0), (FEWER, 4), (Length(((1, 2, 1),)), 1), (Length(short=(0, 0, 1)), 3))),
    "caps": Case(4, ((Length(cap=5), 0), (Length(cap=0), 2), (Length(((2, 0, 1),), cap=9), 3))),
    "lengths": Case(
        3, ((Length(), 1),), shortest=4, step=2, conditions=(Condition("n", Length(((1, 1, 3),)), multiple=2),)
    ),
    "table": Case(2, ((Length(), 3),), conditions=(Condition("t", Length(((1, 0, 2),)), at_most=3),)),
    "opens": Case(2, ((Length(), 0), (Length(), 3), (TWICE, 9), (Length(cap=3), 0)), first=3),
    "phase": Case(4, ((TWICE, 3), (HALF, 1), (Length(), 0)), rates=(1, 2), phase=3),
    "phase, ends": Case(3, ((FEWER, 0), (FEWER, 4), (Length(short=(0, 0, 1)), 3), (Length(cap=5), 0)), phase=1),
    "phase, table": Case(2, ((Length(), 3),), conditions=(Condition("t", Length(), at_most=8),), phase=1),
    "phase, opens": Case(3, ((Length(), 0), (Length(), 3), (TWICE, 9)), first=3, phase=2),
}  # fmt: skip


def chunks(case: Case, seed: int) -> Iterator[list[list[int]]]:
    """Frames of each input, push by push: lengths from none to a few pulses, cut anyhow."""
    rng, spec = np.random.default_rng(seed), case.stream.spec
    for total in range(4 * case.pulse * max(case.first, 1) // (1 if case.first == 1 else 2) + 2):
        pushes = list[list[int]]()
        done = 0
        while done < total:
            size = int(rng.integers(0, min(total - done, 2 * case.pulse) + 1))
            pushes.append([size * int(i.rate) for i in spec.inputs])
            done += size
        yield pushes


def uneven(case: Case, seed: int) -> Iterator[list[list[int]]]:
    """Inputs at their own paces; the last stream lacks a frame."""
    rng, spec = np.random.default_rng(seed), case.stream.spec
    for total in range(4 * case.pulse):
        pushes = list[list[int]]()
        for i, port in enumerate(spec.inputs):
            frames = total * int(port.rate)
            cuts = np.diff([0, *sorted(rng.integers(0, frames + 1, 3)), frames - (total == 4 * case.pulse - 1)])
            pushes += [[max(int(n), 0) if i == k else 0 for k in range(len(spec.inputs))] for n in cuts]
        order = rng.permutation(len(pushes))
        yield [pushes[k] for k in order]
