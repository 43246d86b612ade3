"""Wire by wire: a step on a back end beside the very same graph on ONNX Runtime, every operator as it is written.

Over a stream with a start and an end. Both sides get the reference's states at every pulse, so that a difference is the
pulse's own: it adds up along the graph, and not from pulse to pulse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from pulsify.backends.registry import backend as back_end
from pulsify.backends.seam import Own, StepProgram, Wired, lower_type
from pulsify.core.arrays import Array, Arrays
from pulsify.core.boundary import public
from pulsify.core.chunks import check_seed
from pulsify.core.errors import InvalidArgument
from pulsify.core.framing import pad_front
from pulsify.core.report import NodeDeviation, NodeReport
from pulsify.core.runner import open_model, run_model
from pulsify.core.spec import Spec, concrete
from pulsify.core.status_line import watched
from pulsify.core.traits import traits
from pulsify.verify.check import WARM, valid_length
from pulsify.verify.distance import TOLERANCE
from pulsify.verify.inputs import random_array

if TYPE_CHECKING:
    from pulsify.verify.subject import Subject

LOW = {"float16": 2e-2, "bfloat16": 1e-1}  # relative to a wire's scale, where such a type stands for float32
FARTHEST = float(np.finfo(np.float32).max)


@dataclass
class Seen:
    """A wire over all pulses so far. least, most: of what the back end gave."""

    scale: float = 0.0
    largest: float = 0.0
    pulse: int = 0
    least: float = np.inf
    most: float = -np.inf

    def look(self, got: Array, want: Array, pulse: int) -> None:
        if got.shape != want.shape:
            self.largest, self.pulse = np.inf, pulse
            return
        x, y = _plain(got), _plain(want)
        with np.errstate(invalid="ignore"):
            off = np.abs(x - y)
        off[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
        off[np.isnan(off)] = np.inf
        if (worst := float(off.max(initial=0.0))) > self.largest:
            self.largest, self.pulse = worst, pulse
        self.scale = max(self.scale, float(np.abs(y).max(initial=0.0, where=np.isfinite(y))))
        self.least = min(self.least, float(x.min(initial=np.inf, where=~np.isnan(x))))
        self.most = max(self.most, float(x.max(initial=-np.inf, where=~np.isnan(x))))


def _plain(array: Array) -> Array:
    """What stands for infinity is infinite: a fill of the least float32 is that in float16."""
    made = np.atleast_1d(array).astype(np.float64)
    if array.dtype == np.float32:
        made[np.abs(made) >= FARTHEST] *= np.inf
    return made


@dataclass(frozen=True, eq=False)
class Sides:
    """A step in both ways, and what was seen of its wires."""

    name: str
    wired: Wired
    reference: Reference
    seen: dict[str, Seen] = field(default_factory=dict)
    pulses: list[int] = field(default_factory=list)

    def run(self, feeds: Arrays, pulse: int) -> Arrays:
        """What the reference gives."""
        want, got = self.reference.run(feeds), self.wired.run(feeds)
        self.pulses.append(pulse)
        for wire in self.wired.places:
            if wire in want and wire in got:
                self.seen.setdefault(wire, Seen()).look(got[wire], want[wire], pulse)
        return want


class Reference:
    """A step on ONNX Runtime that gives all wires."""

    def __init__(self, wired: Wired) -> None:
        model = wired.model.clone()
        have = {v.name for v in model.graph.outputs}
        model.graph.outputs.extend(
            v for n in model.graph for v in n.outputs if v.name in wired.places and v.name not in have and v.dtype
        )
        self._takes = [str(v.name) for v in model.graph.inputs]
        self._runner = open_model(model, optimize=False)

    def run(self, feeds: Arrays) -> Arrays:
        return run_model(self._runner, {name: feeds[name] for name in self._takes})


@public
@watched("comparing nodes")
def compare_nodes(
    stream: Subject,
    *,
    backend: str = "torch",
    options: Mapping[str, Own] | None = None,
    length: int | None = None,
    batch: int = 1,
    tolerance: float | None = None,
    seed: int = 0,
) -> NodeReport:
    """Every node of a stream's steps on a back end beside ONNX Runtime: which departs first? Nothing is raised.

    backend, options: as for `Stream.session`. length: of the stream, in frames; by itself as long as it takes to see
    both steps. tolerance: relative to a wire's scale, instead of what its type allows.
    """
    if not hasattr(stream, "wired"):
        raise InvalidArgument(f"expected a stream made by pulsify.stream or pulsify.load, got {type(stream).__name__}")
    check_seed(seed)
    low = lower_type(back_end(backend), options or {})
    program, steps = stream.wired(backend, batch, options)
    if not steps:
        raise InvalidArgument(f"the back end {backend!r} does not show what its nodes compute; backend='torch' does")
    frames = _length(stream, program.since, length)
    references = {name: Reference(wired) for name, wired in steps.items()}
    for positive in (False, True):
        sides = {name: Sides(name, wired, references[name]) for name, wired in steps.items()}
        finite = _walk(sides, program, stream.spec, _inputs(stream.spec, frames, batch, seed, positive), frames, batch)
        if finite:
            break
    nodes = tuple(found for side in sides.values() for found in _judged(side, low, tolerance))
    return NodeReport(backend, frames, {s.name: len(s.pulses) for s in sides.values()}, nodes, low)


def _length(stream: Subject, since: int, wished: int | None) -> int:
    """Frames of a stream that begins, goes on for a few pulses and ends within one."""
    p = stream.spec.pulse
    tried = [min(since * p, WARM) + 3 * p + p // 2 + 1, 2 * p + 1, 1] if wished is None else [wished]
    found = next((n for w in tried if (n := valid_length(stream, w)) is not None), None)
    if found is None or wished not in (None, found):
        raise InvalidArgument(f"length={wished}: the model does not take so many frames")
    return found


def _inputs(spec: Spec, frames: int, batch: int, seed: int, positive: bool) -> Arrays:
    """positive: others may make NaN (of a logarithm, say), which tells nothing."""
    rng = np.random.default_rng(seed)
    made = {}
    for i in spec.inputs:
        dims = list(concrete(i.dims, batch))
        dims[i.axis] = int(frames * i.rate)
        made[i.name] = random_array(dims, i.dtype, rng)
    made |= {s.name: random_array(concrete(s.dims, batch), s.dtype, rng) for s in spec.statics}
    return {n: np.abs(a) + a.dtype.type(0.1) if positive and a.dtype.kind == "f" else a for n, a in made.items()}


def _walk(
    sides: Mapping[str, Sides], program: StepProgram, spec: Spec, inputs: Arrays, frames: int, batch: int
) -> bool:
    """All pulses, as a session runs them. Are all outputs finite?"""
    states: dict[str, Array] = {s.name: np.zeros(concrete(s.shape, batch), s.dtype) for s in spec.states}
    fixed = {s.name: inputs[s.name] for s in spec.statics}
    finite = True
    for n, chunk in enumerate(_chunks(spec, inputs, frames)):
        ended = (n + 1) * spec.pulse - spec.phase > frames
        steady = "steady" in sides and not ended and n >= program.since
        if spec.position is not None and not steady:  # steady pulses may not count
            states[spec.position] = np.full_like(states[spec.position], n * spec.pulse)
        if spec.length:
            fixed[spec.length] = np.full((batch, 1), frames if ended else spec.unknown_length, np.int32)
        made = sides["steady" if steady else "general"].run({**chunk, **states, **fixed}, n)
        states = {s.name: made.get(s.after, states[s.name]) for s in spec.states}
        outs = [made[o.name] for o in spec.outputs if o.name in made]
        finite = finite and all(np.isfinite(a).all() for a in outs if a.dtype.kind == "f")
    return finite


def _chunks(spec: Spec, inputs: Arrays, frames: int) -> Iterator[dict[str, Array]]:
    """Pulses until all frames have come out; zero behind the end."""
    late = max((o.delay // max(o.frames, 1) for o in spec.outputs), default=0) + 1
    for n in range((frames + spec.phase) // spec.pulse + 1 + late):
        yield pulse_of(spec, inputs, n)


def pulse_of(spec: Spec, inputs: Mapping[str, Array], n: int) -> dict[str, Array]:
    """The frames of a pulse; zero in front of the stream and behind its end."""
    chunk = {}
    for i, ahead in zip(spec.inputs, spec.ahead, strict=True):
        first = n * i.frames - ahead
        piece = inputs[i.name][(slice(None),) * i.axis + (slice(max(first, 0), first + i.frames),)]
        front = max(-first, 0)
        missing = i.frames - front - piece.shape[i.axis]
        chunk[i.name] = np.pad(piece, [(front, missing) if a == i.axis else (0, 0) for a in range(piece.ndim)])
        pad_front(chunk[i.name], i.axis, front)
    return chunk


def _judged(side: Sides, low: str | None, tolerance: float | None) -> Iterator[NodeDeviation]:
    for node in side.wired.model.graph:
        found = [_wire(side, node, str(v.name), v.dtype, low, tolerance) for v in node.outputs if v.name in side.seen]
        if found:
            outside = next((f.outside for f in found if f.outside), None)
            yield replace(max(found, key=lambda f: f.error), outside=outside)


def _wire(
    side: Sides, node: ir.Node, wire: str, kind: ir.DataType | None, low: str | None, tolerance: float | None
) -> NodeDeviation:
    seen, placed = side.seen[wire], side.wired.places[wire]
    name = "" if kind is None else str(kind.numpy())
    allowed = LOW[low] if low and name == "float32" else TOLERANCE.get(name, 0.0)
    inputs = tuple(str(v.name) for v in node.inputs if v is not None)
    least, most = traits(node.op_type, node.domain).range or (-np.inf, np.inf)
    left = seen.least <= seen.most and not least <= seen.least <= seen.most <= most
    return NodeDeviation(
        placed.node, placed.op, side.name, placed.device, placed.reason, inputs, wire,
        seen.largest / seen.scale if seen.scale and name.startswith(("float", "bfloat")) else seen.largest,
        seen.largest, allowed if tolerance is None else tolerance, seen.pulse,
        (seen.least, seen.most) if left else None,
    )  # fmt: skip
