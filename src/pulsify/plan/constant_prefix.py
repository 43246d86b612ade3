"""The constant prefix: first frames that are the same in every stream, so they are never computed.

"Pad once in front, then unpadded convolutions": each layer's first frames are made of the padding alone.

    pad 4     0 0 0 0 | x0 x1 x2 ...        pulse 0 holds frames 4 ... of it, not 0 ...
    conv      k k | y2 y3 ...               y2 is made of 0 0 x0: frames 0 and 1 are known
    state     [k k)                         what a buffer holds before the first pulse

The frames are read off the batch model, run once on two inputs that differ: whatever the rules took for known must
come out the same. A buffer finds them in the place of its state at pulse 0, and nothing is left of that later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from pulsify.analysis.facts import Layout
from pulsify.core.arrays import Array
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.refusal import Kind
from pulsify.core.runner import IN_MEMORY, open_model, run_model
from pulsify.emit.buffer import history_of, known_part

if TYPE_CHECKING:
    from pulsify.plan.context import Context

TRIES = 4096  # lengths, until one meets all conditions


def holds(layout: Layout) -> bool:
    """Can a state of such frames begin with some that are the same for all streams?"""
    return not layout.folded and min(layout.sizes) >= -1


def at_least(length: Length) -> int:
    """The fewest frames that any stream has."""
    seen = range(1, len(length.short) + (length.table.period if length.table else 1) + 1)
    return max(int(length.each(seen).min()), 0)


def frames_of(ctx: Context, wanted: dict[str, int]) -> dict[str, Array]:
    """The first frames of batch wires, so many of each: along time, for one stream."""
    if not wanted:
        return {}
    traces = ctx.ask.traces
    tracer, length = traces.tracer, _taken(ctx)
    runner = open_model(_part(ctx, list(wanted)), optimize=False)
    used = {i.name for i in runner.get_inputs()}
    runs = []
    for seed, streams in ((0, 1), (1, 1), (2, 2))[: 3 if tracer.time.batch else 2]:
        rng = np.random.default_rng(seed)
        feeds = {
            n: _noise(rng, v.dims, v.dtype) if not v.known else v.array
            for n, v in tracer.inputs(length, streams).items()
        }
        runs.append(run_model(runner, {n: a for n, a in feeds.items() if n in used}))
    found = {}
    axes = {stored.wire: stored.layout.axis for stored in ctx.stored.values()}
    for name, frames in wanted.items():
        axis = axes[name]
        first, again, *beside = (run[name].take(range(frames), axis) for run in runs)
        if not np.array_equal(first, again, equal_nan=first.dtype.kind == "f"):
            node = ctx.ask.model.producers[name]
            raise NotStreamable(
                f"the first {frames} frames of '{name}' should be the same in every stream, and are not",
                node=node.name,
                op=node.op,
                hint="please report this model: pulsify has misread it",
                kind=Kind.BUG,
            )
        if beside and not _alike(first, beside[0]):
            ctx.ask.refuse(
                ctx.ask.model.producers[name],
                f"it combines the streams of a batch, so that the first frames of '{name}' differ by stream",
                ctx.ask.fix_batch(),
                kind=Kind.BATCH,
            )
        found[name] = first
    return found


def _alike(one: Array, several: Array) -> bool:
    """Has every stream these frames? But for rounding, which goes with the size of a batch."""
    if one.dtype.kind not in "fc":
        return bool((one == several).all())
    far = 1e-3 * np.abs(one[np.isfinite(one)]).max(initial=0)
    return np.allclose(one, several, rtol=0, atol=far, equal_nan=True)


def _taken(ctx: Context) -> int:
    """A length that the model takes, by all that is known: shapes alone do not say so of every operator."""
    traces, conditions = ctx.ask.traces, ctx.ask.ledger.conditions
    some = range(traces.lengths[0], traces.lengths[0] + TRIES * traces.step, traces.step)
    return next((s for s in some if all(c.met(s) for c in conditions)), traces.lengths[0])


def _noise(rng: np.random.Generator, dims: tuple[int, ...], dtype: ir.DataType) -> Array:
    kind = dtype.numpy()
    return rng.standard_normal(dims).astype(kind) if dtype.is_floating_point() else np.zeros(dims, kind)


def _part(ctx: Context, names: list[str]) -> onnx.ModelProto:
    """The part of the batch model that makes these wires."""
    model = ctx.ask.model
    nodes, todo, read = set(), list(names), set()
    while todo:
        name = todo.pop()
        if not name or name in read:
            continue
        read.add(name)
        if (node := model.producers.get(name)) is not None:
            nodes.add(node)
            todo += node.reads
    graph = onnx.GraphProto(name="start")
    graph.node.extend(n.proto for n in model.nodes if n in nodes)
    graph.input.extend(  # of any size: a time axis may be declared as fixed
        onnx.helper.make_tensor_value_info(p.name, int(p.dtype), [None] * len(p.dims))
        for p in model.inputs
        if p.name in read
    )
    graph.initializer.extend(_named(n, t) for n, t in model.constants.items() if n in read)
    graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    opsets = [onnx.helper.make_opsetid(k, v) for k, v in model.opset_imports.items()]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)


def _named(name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    proto = (
        onnx.numpy_helper.from_array(tensor.numpy(), name)
        if isinstance(tensor, ir.ExternalTensor)
        else ir.to_proto(tensor)
    )
    proto.name = name
    return proto


def fits(ctx: Context) -> bool:
    """Is the batch model small enough to be run at conversion, or to be held twice?"""
    return sum(t.nbytes for t in ctx.ask.model.constants.values()) <= IN_MEMORY


def wishes(ctx: Context) -> dict[str, int]:
    """Batch wires whose buffers begin with known frames, and how many are wanted of each."""
    wanted: dict[str, int] = {}
    for name, stored in ctx.stored.items():
        first, last = known_part(stored, history_of(stored, ctx.demands.get(name, ())))
        if first < last:
            wanted[stored.wire] = max(wanted.get(stored.wire, 0), stored.offset + last)
    return wanted
