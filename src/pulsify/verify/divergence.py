"""Finds the first wire whose stream is not the batch model's, wire by wire in the model's own order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from pulsify.core.arrays import Array
from pulsify.core.runner import open_model, run_model
from pulsify.core.spec import concrete
from pulsify.verify.distance import error, limit
from pulsify.verify.inputs import make_inputs
from pulsify.verify.nodes import pulse_of

if TYPE_CHECKING:
    from pulsify.verify.subject import Subject

Pieces = dict[str, list[tuple[int, Array]]]  # by wire: frames of it, and the number of the first


@dataclass(frozen=True)
class Seen:
    """How far the frames of one batch wire were from the stream's, relative to its scale, and by how much they may."""

    wire: str
    error: float
    limit: float


def first_departure(source: Any, stream: Subject, length: int, rng: np.random.Generator) -> str | None:
    """The name of a batch wire, or None if the stream does not know where its wires come from (it was loaded)."""
    return next((s.wire for s in departures(source, stream, length, rng) if s.error > s.limit), None)


def departures(source: Any, stream: Subject, length: int, rng: np.random.Generator) -> Iterator[Seen]:
    """Wire by wire in the model's own order; none if the stream does not know where its wires come from."""
    if not stream.probes:
        return
    proto = _proto(source)
    order = [o for n in proto.graph.node for o in n.output if o in stream.probes]
    batch = open_model(_with_outputs(proto, order).SerializeToString(), optimize=False)
    feeds = make_inputs(batch, stream, length, rng)
    whole = run_model(batch, feeds)
    pulses = _run_pulses(stream, feeds, length, order)
    for name in order:
        axis, worst, allowed = stream.probes[name][2], 0.0, limit(whole[name], None)
        for lo, piece in pulses[name]:
            first, last = max(lo, 0), min(lo + piece.shape[axis], whole[name].shape[axis])
            if last <= first:
                continue
            want = whole[name][(slice(None),) * axis + (slice(first, last),)]
            got = piece[(slice(None),) * axis + (slice(first - lo, last - lo),)]
            off = float(error(got, want).max(initial=0)) if got.shape == want.shape else float("inf")
            worst = max(worst, off)
        yield Seen(name, worst, allowed)


def _proto(source: Any) -> onnx.ModelProto:
    if isinstance(source, str):
        return onnx.load(source)
    return onnx.load_from_string(source) if isinstance(source, bytes) else ir.to_proto(source)


def _with_outputs(proto: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    have = {o.name for o in out.graph.output}
    out.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in have)
    return out


def _run_pulses(stream: Subject, feeds: Mapping[str, Array], length: int, order: list[str]) -> Pieces:
    """Every tapped wire at every call, until all frames have come out: its opening first, then pulse by pulse."""
    spec, out = stream.spec, Pieces()
    state = {s.name: np.zeros(concrete(s.shape, 1), s.dtype) for s in spec.states}
    if stream.opening is not None:
        state = _run(
            stream.opening, feeds, length, [n for n in order if n in stream.opening.probes], range(1), state, out
        )
    extra = max((o.delay // max(o.frames, 1) for o in spec.outputs), default=0) + 2
    _run(
        stream,
        feeds,
        length,
        order,
        range(spec.opening, max(-(-(length + spec.phase) // spec.pulse), spec.opening) + extra),
        state,
        out,
    )
    return out


def _run(
    stream: Subject,
    feeds: Mapping[str, Array],
    length: int,
    order: list[str],
    pulses: range,
    state: dict[str, Array],
    out: Pieces,
) -> dict[str, Array]:
    """Add what these pulses make to `out`. The states after them."""
    spec = stream.spec
    tapped = {name: str(stream.probes[name][0].name) for name in order}
    proto = _with_outputs(ir.to_proto(stream.model), sorted(set(tapped.values())))
    runner = open_model(proto.SerializeToString(), optimize=False)
    fixed: dict[str, Array] = {s.name: feeds[s.name] for s in spec.statics}
    if spec.length:
        fixed[spec.length] = np.full((1, 1), length, np.int32)
    for n in pulses:
        got = run_model(runner, {**pulse_of(spec, feeds, n), **state, **fixed})
        state = {s.name: got[s.after] for s in spec.states}
        for name, tap in tapped.items():
            window = stream.probes[name][1]
            out.setdefault(name, []).append((n * window.p + window.start, got[tap]))
    return state
