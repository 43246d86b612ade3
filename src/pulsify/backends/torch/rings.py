"""Caches of an attention that stay where they are: rings, which the kernel reads in any order and writes to.

linear   [ f1 f2 f3 f4 )  ->  [ f2 f3 f4 f5 )      joined, then cut: the window is copied twice a pulse
ring     [ f1 f2 f3 f4 )  ->  [ f5 f2 f3 f4 )      the kernel appends what is new over the oldest

A ring is [rows, H, past, d], a row a stream (or a slot of a pool), whatever the order of axes in the file. How often
frames were written to it says where it begins: `turn` pulses of `new` frames each. Only the steady step runs on rings;
the one for both ends of a stream gets its caches in order, and gives them back so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from pulsify.core.spec import Spec
from pulsify.optimize.attention import Apart, Attention
from pulsify.optimize.views import cut_of, only_reader, sizes

Tensor = Any
PER_STREAM = READ, WRITE, TURN = "ring_read", "ring_write", "ring_turn"  # what a step on rings takes, each [streams]


@dataclass(frozen=True)
class Ring:
    """One cache. swapped: the file has [..., d, frames]; heads: 0 if the file has no such axis."""

    state: str
    after: str
    heads: int
    past: int
    new: int
    depth: int
    swapped: bool

    @property
    def row(self) -> tuple[int, int, int]:
        """Of one stream."""
        return max(self.heads, 1), self.past, self.depth

    @property
    def start(self) -> str:
        """Where it begins, in source."""
        return f"ring_start_{self.past}_{self.new}"


@dataclass(frozen=True, eq=False)
class Found:
    """The cache behind one side of an attention. nodes: that join and cut it."""

    ring: Ring
    join: ir.Node
    nodes: tuple[ir.Node, ...]


def both(found: Attention, spec: Spec, streams: int) -> tuple[Found, Found]:
    """The caches of keys and values, or `Apart` with the reason why they are joined instead."""
    keys = _cache(found.keys, found.scores, spec, swapped=True)
    values = _cache(found.values, found.last, spec, swapped=False)
    lead = {(sizes(v) or ())[:-2] for v in (found.keys, found.values, found.last.outputs[0])}
    if len(lead) != 1 or next(iter(lead))[:1] != (streams,):
        raise Apart("keys and values are not of as many streams and heads as the result")
    if (keys.ring.past, keys.ring.new) != (values.ring.past, values.ring.new):
        raise Apart("keys and values are not kept alike")
    return keys, values


def _cache(value: ir.Value, reader: ir.Node, spec: Spec, swapped: bool) -> Found:
    """value: [..., d, columns] if swapped, else [..., columns, d]."""
    join, kinds = value.producer(), {s.name: s for s in spec.states}
    dims = sizes(value)
    if join is None or join.op_type != "Concat" or dims is None or len(join.inputs) != 2 or len(dims) < 3:
        raise Apart("its caches are not just joined with what is new")
    axis = len(dims) - (1 if swapped else 2)
    state, fresh = join.inputs
    own = None if state is None else kinds.get(str(state.name))
    if own is None or state is None or fresh is None or join.attributes["axis"].as_int() % len(dims) != axis:
        raise Apart("its caches are not just joined with what is new")
    keep = [use.node for use in value.uses() if use.node is not reader]
    kept, came = sizes(state), sizes(fresh)
    if len(keep) != 1 or kept is None or came is None or not only_reader(state) or value.is_graph_output():
        raise Apart("something else reads its caches too")
    past, new = kept[axis], came[axis]
    if cut_of(keep[0]) != (axis, new, new + past) or own.grows or past == 0:
        raise Apart("its caches are cut otherwise")
    end, nodes = keep[0].outputs[0], [keep[0], join]
    if only_reader(end) and (out := next(iter(end.uses())).node).op_type == "Identity":
        end, nodes = out.outputs[0], [out, *nodes]
    if str(end.name) != own.after or not end.is_graph_output() or list(end.uses()):
        raise Apart("something else reads its caches too")
    depth = dims[-2] if swapped else dims[-1]
    heads = dims[1] if len(dims) == 4 else 0
    return Found(Ring(own.name, own.after, heads, past, new, depth, swapped), join, tuple(nodes))


def starts(rings: Sequence[Ring]) -> list[str]:
    """Lines of a step: where each kind of ring begins."""
    kinds = dict.fromkeys((r.start, r.new, r.past) for r in rings)
    return [f"{name} = {TURN} * {new} % {past}" for name, new, past in kinds]


# ---- in order, and back


def _columns(ring: Ring, turn: Tensor) -> Tensor:
    """Where frames lie, the oldest first: [streams, past]."""
    return (turn[:, None] * ring.new + torch.arange(ring.past, device=turn.device)) % ring.past


def in_order(ring: Ring, memory: Tensor, rows: Tensor, turn: Tensor) -> Tensor:
    """Some rows as the file has them: [streams, ...]."""
    frames = memory[rows[:, None], :, _columns(ring, turn)].transpose(1, 2)
    frames = frames.transpose(2, 3) if ring.swapped else frames
    return frames if ring.heads else frames.squeeze(1)


def put_back(ring: Ring, memory: Tensor, rows: Tensor, turn: Tensor, frames: Tensor) -> None:
    """The way back, for rings that stand at `turn`."""
    frames = frames if ring.heads else frames.unsqueeze(1)
    frames = frames.transpose(2, 3) if ring.swapped else frames
    memory[rows[:, None], :, _columns(ring, turn)] = frames.transpose(1, 2).to(memory.dtype)
