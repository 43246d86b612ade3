"""The handful of concrete lengths at which a model is looked at, chosen large enough by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice, pairwise
from typing import Any

import numpy as np

from pulsify.core.errors import NotStreamable
from pulsify.core.progress import tell
from pulsify.core.refusal import Kind, as_remedies
from pulsify.frontend.model import Model
from pulsify.frontend.time import TimeSpec
from pulsify.trace.evaluate import Evaluator, Trace
from pulsify.trace.made import Made
from pulsify.trace.tied import one_batch, sizes_read, tied, without_entries
from pulsify.trace.traced import RECENT, CannotRun, Empty, Traced, known
from pulsify.trace.window import export_again, windowed

SCALES = (64, 256, 1024, 8192, 65536, 1 << 20)
MOST_NODES = 60_000  # that are evaluated in vain to find a length that the model takes
LIKELY = 64  # lengths that are tried before all others
RESIDUES = 1024  # how many neighbouring lengths are tried where a model takes only some
LARGE = 1 << 22  # bytes of known values: traces that only tell whether the model runs are kept up to this size
BATCHES = (3, 2)  # two sizes, so that a batch axis shows; 3 is unlikely to be another dimension's factor by chance


@dataclass(eq=False)
class Tracer:
    """Traces one model at any length; traces are kept."""

    model: Model
    time: TimeSpec
    evaluator: Evaluator = field(init=False)
    made: Made = field(init=False)
    spans: dict[Any, Any] = field(default_factory=dict)  # what rows of attention look at: by node and length
    cells: int = 0  # that were looked at for that, in all
    nodes: int = 0  # that were evaluated at lengths which the model does not take, in all
    failed: dict[int, CannotRun] = field(default_factory=dict)  # lengths that it does not take, and why
    taken: set[int] = field(default_factory=set)  # lengths that it takes; not all traces are kept
    _kept: dict[tuple[int, int], Trace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(self.model)
        self.made = Made(self.evaluator)

    def at(self, length: int, batch: int = BATCHES[0]) -> Trace:
        batch = batch if self.time.batch else 1
        key = (length, batch)
        if key not in self._kept:
            tell(f"tracing at {length} frames")
            self._kept[key] = self.evaluator.trace(self.inputs(length, batch), length, batch)
        return self._kept[key]

    def forget(self) -> None:
        """Let go of the traces so far: where frames meet frames they are large."""
        self._kept.clear()
        RECENT.clear()

    def works(self, length: int) -> bool:
        return self.problem(length) is None

    def problem(self, length: int) -> CannotRun | None:
        """Why the model does not run at a length."""
        if length in self.failed or length in self.taken:
            return self.failed.get(length)
        try:
            trace = self.at(length)
        except CannotRun as problem:
            self.failed[length] = problem.with_traceback(None)  # frames hold on to arrays
            self.nodes += next((i for i, n in enumerate(self.model.nodes) if n.name == problem.node.name), 0) + 1
            return problem
        self.taken.add(length)
        if trace.nbytes > LARGE:
            del self._kept[length, trace.batch]
        return None

    @property
    def affordable(self) -> bool:
        """Is there anything left for trying further lengths? Counted, so that it is the same on every machine."""
        return self.nodes < MOST_NODES

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
    given, tracer.nodes = lengths.every, 0
    at_least = max(at_least, lengths.least if lengths.least > 1 else 0)
    scales = [s for s in SCALES if s > at_least]
    scales = [max(at_least, SCALES[0]), *scales] if at_least > SCALES[0] or not scales else scales
    near = [s for s in scales if s <= 16 * scales[0]]
    if not tracer.works(lengths.next(scales[0] + 3)):
        if isinstance(problem := tracer.problem(lengths.next(scales[0] + 3)), Empty):
            refusal = without_entries(problem, tracer.problem(lengths.next(SCALES[-2] + 3)))
            if refusal is not None:
                raise refusal
        batches = (*BATCHES, 1) if tracer.time.batch else (1,)
        refusal = windowed(tracer.at, tracer.model, tracer.time)
        if refusal is not None:
            raise refusal
        refusal = tied(tracer.at, given, batches, tracer.time.batch, tracer.model.exporter)
        if refusal is not None:
            if tracer.time.window is not None and refusal.kind is Kind.EXPORT:
                refusal.remedies = as_remedies(export_again(tracer.model, tracer.time))
            raise refusal
    for scale in [*near, *_shorter(scales[0]), *scales[len(near) :]]:
        start = lengths.next(scale + 3)
        if all(tracer.works(s) for s in (start, start + given, _far(start, given))):
            return _traces(tracer, start, given)
    for scale in scales[:3]:
        start = lengths.next(scale + 3)
        found = _every_few(tracer, start, given)
        if found is not None:
            return _traces(tracer, *found)
    raise _no_length(tracer, scales[0])


def _every_few(tracer: Tracer, start: int, given: int) -> tuple[int, int] | None:
    """(a length it takes, how far apart those are), of a model that takes only some lengths.

    Likely ones come first: where sizes that go with the length become multiples of sizes that do not. Then all others,
    as long as that takes no more than `MOST_NODES` nodes.
    """
    likely = _likely(tracer, start, given)
    neighbours = range(start, start + RESIDUES * given, given)
    lengths = dict.fromkeys([*(start + offset for offset, _ in likely), *neighbours])
    base = next((s for s in lengths if tracer.affordable and tracer.works(s)), None)
    if base is None:
        return None
    for step in dict.fromkeys([*sorted(s for _, s in likely), *range(given, (RESIDUES + 1) * given, given)]):
        if not tracer.affordable:
            return None
        if _takes_every(tracer, base, step):
            smaller = (d for d in range(given, step, given) if step % d == 0 and _takes_every(tracer, base, d))
            step = next(smaller, step)
            first = base - (base - start) // step * step
            return (first if _takes_every(tracer, first, step) and tracer.works(first) else base), step
    return None


def _takes_every(tracer: Tracer, base: int, step: int) -> bool:
    return all(tracer.works(s) for s in (base + step, base + 2 * step, base + 3 * step, _far(base, step)))


def _likely(tracer: Tracer, start: int, given: int) -> list[tuple[int, int]]:
    """(so much longer than `start`, so far apart): a size of the node that fails divides what goes with the length."""
    lengths = (start, _far(start, given), _far(_far(start, given), given))
    failures = [tracer.problem(s) for s in lengths]
    found: dict[tuple[int, int], None] = {}
    for (s, a), (far, b) in pairwise(zip(lengths, failures, strict=True)):
        if a is None or b is None or a.node.name != b.node.name:
            continue
        sizes = list(zip(sizes_read(a), sizes_read(b), strict=False))
        fixed = {x for x, y in sizes if x == y and 1 < x <= RESIDUES}
        for x, rate in {(x, Fraction(y - x, far - s)) for x, y in sizes if y > x}:
            found |= dict.fromkeys(p for size in fixed for p in _multiples(x, rate, size, s - start, given))
    return list(found)[:LIKELY]


def _multiples(x: int, rate: Fraction, size: int, ahead: int, given: int) -> Iterator[tuple[int, int]]:
    """Where x, which grows at that rate from `ahead` on, is a multiple of a size; and after how much it is so again."""
    width = math.ceil(1 / rate)  # lengths that share a size
    turn = size * width if width > 1 else size // math.gcd(size, round(rate))
    first = (t for t in range(turn) if (x + math.floor(rate * t)) % size == 0)
    for t in islice(first, 1):
        for offset in range(t - width + 1, t + width):
            for away in (0, turn):
                if (found := (ahead + offset) % turn + away) % given == turn % given == 0:
                    yield found, turn


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
    other = _other_batch(tracer, base)
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
    other = _other_batch(tracer, base)
    return Traces(tracer, lengths, step, tuple(tracer.at(s) for s in lengths), other)


def _other_batch(tracer: Tracer, length: int) -> Trace | None:
    """At another number of streams, if that is free."""
    symbol = tracer.time.batch
    if symbol is None:
        return None
    if (refusal := one_batch(tracer.at, length, BATCHES[1], symbol)) is not None:
        raise refusal
    return tracer.at(length, BATCHES[1])


def _no_length(tracer: Tracer, scale: int) -> NotStreamable:
    problem = tracer.problem(scale)
    if (refusal := without_entries(problem, tracer.problem(2 * scale))) is not None:
        return refusal
    if problem is not None:
        return NotStreamable(
            f"the model runs at none of {len(tracer.failed)} lengths tried, from {min(tracer.failed)} to "
            f"{max(tracer.failed)} frames: {problem.reason}",
            node=problem.node.name,
            op=problem.node.op,
            hint="export it with a dynamic time axis, and check that it runs in ONNX Runtime at several lengths",
            kind=Kind.EXPORT,
        )
    return NotStreamable(
        "the model runs at single lengths only", hint="export it with a dynamic time axis", kind=Kind.EXPORT
    )
