"""The handful of concrete lengths at which a model is looked at, chosen large enough by itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pulsify.core.errors import NotStreamable
from pulsify.core.progress import tell
from pulsify.frontend.model import Model
from pulsify.frontend.time import TimeSpec
from pulsify.trace.evaluate import Evaluator, Trace
from pulsify.trace.made import Made
from pulsify.trace.tied import tied
from pulsify.trace.traced import RECENT, CannotRun, Traced, known

SCALES = (64, 256, 1024, 8192, 65536, 1 << 20)
RESIDUES = 1024  # how many neighbouring lengths are tried where a model takes only some
BATCHES = (3, 2)  # two sizes, so that a batch axis shows; 3 is unlikely to be another dimension's factor by chance


@dataclass(eq=False)
class Tracer:
    """Traces one model at any length; traces are kept."""

    model: Model
    time: TimeSpec
    evaluator: Evaluator = field(init=False)
    made: Made = field(init=False)
    _kept: dict[tuple[int, int], Trace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(self.model)
        self.made = Made(self.evaluator)

    def at(self, length: int, batch: int = BATCHES[0]) -> Trace:
        batch = batch if self.time.batch else 1
        key = (length, batch)
        if key not in self._kept:
            tell(f"at {length} frames")
            self._kept[key] = self.evaluator.trace(self.inputs(length, batch), length, batch)
        return self._kept[key]

    def forget(self) -> None:
        """Let go of the traces so far: where frames meet frames they are large."""
        self._kept.clear()
        RECENT.clear()

    def works(self, length: int) -> bool:
        try:
            self.at(length)
        except CannotRun:
            return False
        return True

    def inputs(self, length: int, batch: int) -> dict[str, Traced]:
        out = {}
        for port in self.model.inputs:
            dims = self.time.dims(port, length, batch)
            if port.name in self.time.bound:
                out[port.name] = known(np.full(dims, length, port.dtype.numpy()))
            elif port.name in self.time.filled:
                value = np.array(self.time.filled[port.name][2], port.dtype.numpy())
                out[port.name] = known(np.broadcast_to(value, dims))
            else:
                out[port.name] = Traced(port.dtype, dims, False)
        return out


@dataclass(frozen=True, eq=False)
class Traces:
    """The traces all claims are read off and checked against, shortest first, and one of another batch size."""

    tracer: Tracer
    lengths: tuple[int, ...]
    step: int
    runs: tuple[Trace, ...]
    other_batch: Trace | None

    @property
    def longest(self) -> Trace:
        return self.runs[-1]


def choose(tracer: Tracer, at_least: int = 0) -> Traces:
    """Find lengths at which the model runs: near each other (residues), and far apart (growth).

        S0  S0+step                      S2 > 2 S0
        |   |                            |

    step is 1 unless the model takes only some lengths (multiples of a number, say).
    """
    lengths = tracer.time.lengths
    given = lengths.every
    at_least = max(at_least, lengths.least if lengths.least > 1 else 0)
    scales = [s for s in SCALES if s > at_least]
    scales = [max(at_least, SCALES[0]), *scales] if at_least > SCALES[0] or not scales else scales
    near = [s for s in scales if s <= 16 * scales[0]]
    if not tracer.works(lengths.next(scales[0] + 3)):
        refusal = tied(tracer.at, given, (*BATCHES, 1) if tracer.time.batch else (1,))
        if refusal is not None:
            raise refusal
    for scale in [*near, *_shorter(scales[0]), *scales[len(near) :]]:
        start = lengths.next(scale + 3)
        if all(tracer.works(s) for s in (start, start + given, _far(start, given))):
            return _traces(tracer, start, given)
    for scale in scales[:3]:
        start = lengths.next(scale + 3)
        base = next((s for s in range(start, start + RESIDUES * given, given) if tracer.works(s)), None)
        if base is None:
            continue
        for step in range(given, (RESIDUES + 1) * given, given):
            if all(tracer.works(s) for s in (base + step, base + 2 * step, base + 3 * step, _far(base, step))):
                return _traces(tracer, base, step)
    raise _no_length(tracer, scales[0])


def nearly_longest(traces: Traces) -> Traces | None:
    """The longest lengths of a model that takes none as long as wished for (a table of positions ends).

    As far apart as a fifth, where that shows the same axes growing: what a window of frames bounds shows as well.
    """
    tracer, step = traces.tracer, traces.step
    low, high = traces.lengths[-1] // step, 2 * traces.lengths[-1] // step
    rest = traces.lengths[-1] % step
    while tracer.works(high * step + rest):
        low, high = high, 2 * high
        if high * step > SCALES[-1]:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tracer.works(middle * step + rest) else (low, middle)
    base, far = (low - max(low // 5, 2)) * step + rest, low * step + rest
    if base <= traces.lengths[0] or not all(tracer.works(s) for s in (base, base + step)):
        return None
    other = tracer.at(base, BATCHES[1]) if tracer.time.batch else None
    lengths = (base, base + step, far)
    found = Traces(tracer, lengths, step, tuple(tracer.at(s) for s in lengths), other)
    return found if all(_grows(found, n) == _grows(traces, n) for n in traces.runs[0].values) else None


def _grows(traces: Traces, name: str) -> list[bool]:
    """Which axes of a value differ between the shortest and the longest trace."""
    return [x != y for x, y in zip(traces.runs[0][name].dims, traces.longest[name].dims, strict=True)]


def _shorter(scale: int) -> list[int]:
    """For models that take nothing so long (a short table of positions): half of it, a quarter, ..."""
    return [scale >> n for n in range(1, scale.bit_length() - 1)]


def _far(base: int, step: int) -> int:
    """More than twice as long, of the same residue."""
    return base + (base // step + 3) * step


def _traces(tracer: Tracer, base: int, step: int) -> Traces:
    lengths = (base, base + step, _far(base, step))
    other = tracer.at(base, BATCHES[1]) if tracer.time.batch else None
    return Traces(tracer, lengths, step, tuple(tracer.at(s) for s in lengths), other)


def _no_length(tracer: Tracer, scale: int) -> NotStreamable:
    try:
        tracer.at(scale)
    except CannotRun as problem:
        return NotStreamable(
            f"the model runs at no length tried up to {SCALES[-1]}: {problem.reason}",
            node=problem.node.name,
            op=problem.node.op,
            hint="check that the model runs in ONNX Runtime with a dynamic time axis; "
            'if it takes only multiples of some number, say so: set={"T": "8*n"}',
        )
    return NotStreamable("the model runs at single lengths only", hint="export it with a dynamic time axis")
