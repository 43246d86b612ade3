"""Rows: convolutions over few frames as matrix products, one frame a row, for a single stream.

channels first   [1, C, T]     Conv          8 columns for a product whose weights are read anew
rows             [T, C]        Gemm          the weights are packed once, a frame is a piece of memory

A window is then a stretch of memory, and the new state of a buffer the end of it (see `aliased`). Values are turned
only where an operator that knows no rows takes them; ports of the graph are rows from the start (the session copies
into them as they are).
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import InvariantError, PassResult

from pulsify.backends.ort.row_ops import (
    Work,
    as_rows,
    conv_of,
    convolved,
    frames_of,
    merge_sums,
    passed,
    passes,
    turned_back,
    turned_from,
)
from pulsify.core.spec import Spec
from pulsify.optimize.rewriting import Copy, one_stream
from pulsify.optimize.sized import ForStreams


@dataclass
class Rows(PassResult):
    """The model, and which of its ports are rows."""

    ports: frozenset[str] = frozenset()


def row_form(model: ir.Model, spec: Spec, apart: frozenset[str], like: Rows | None = None) -> Rows | None:
    """The model with its convolutions over rows (see `OverRows`); None if it stays as it is."""
    if not any(n.op_type in ("Conv", "MatMul") for n in model.graph):
        return None
    made = OverRows(spec, apart, like)(model)
    return made if made.modified else None


class OverRows(Copy[Rows]):
    """A copy with convolutions over rows; as it was if there are none, or too much would be turned.

    apart: states that stay as they are. like: another form of the same model; the ports must come out the same.
    Requires: a model for one stream. Ensures: ports that are rows are [T, C]; nodes stand behind what they read.
    """

    def __init__(self, spec: Spec, apart: frozenset[str] = frozenset(), like: Rows | None = None) -> None:
        self.spec, self.apart, self.like = spec, apart, like

    def requires(self, model: ir.Model) -> None:
        one_stream(model)

    def call(self, model: ir.Model) -> Rows:
        copy = model.clone()
        ports = self._convert(copy)
        if ports is None:
            return Rows(model.clone(), False)  # the first copy is half way
        for v in copy.graph.inputs:
            if v.name in ports and (v.shape is None or len(v.shape) != 2):
                raise InvariantError(f"{v.name} should be rows, and is {v.shape}")
        return Rows(copy, True, ports)

    def _convert(self, model: ir.Model) -> frozenset[str] | None:
        """In place; the ports that are rows then, or None if it does not pay."""
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        like = self.like
        work = Work(model, _free_ports(model, self.spec) - self.apart if like is None else like.ports)
        wanted = _wanted(model)
        done = [node for node in list(model.graph) if _convert(work, node, wanted)]
        if not work.convs:
            return None
        _settle_outputs(work, self.spec)
        for node in reversed(done):
            for out in node.outputs:
                if out.uses() or out in model.graph.outputs:
                    turned_back(work, out)
            model.graph.remove(node, safe=True)
        for value in [v for v, rows in work.rows.items() if rows in model.graph.inputs and v.uses()]:
            turned_back(work, value)  # others take it too
        if work.turned > work.convs + work.spared or (like is not None and work.ports != like.ports):
            return None
        merge_sums(work)
        RemoveUnusedNodesPass()(model)
        return frozenset(work.ports)


ForOneStream = ForStreams  # of one: its default


def _free_ports(model: ir.Model, spec: Spec) -> frozenset[str]:
    names = {i.name for i in spec.inputs} | {s.name for s in spec.states} | {o.name for o in spec.outputs}
    ports = (*model.graph.inputs, *model.graph.outputs)
    return frozenset(str(v.name) for v in ports if v.name in names and frames_of(v) is not None)


def _wanted(model: ir.Model) -> set[ir.Value]:
    """Values that a convolution takes, or what passes frames on to one."""
    wanted: set[ir.Value] = set()
    for node in reversed(list(model.graph)):
        if conv_of(node) is not None or (passes(node) and any(o in wanted for o in node.outputs)):
            wanted.update(v for v in node.inputs if v is not None and frames_of(v) is not None)
    return wanted


def _convert(work: Work, node: ir.Node, wanted: set[ir.Value]) -> bool:
    """Does a node work on rows from now on? Convolutions do; others if that turns nothing that was not turned."""
    conv = conv_of(node)
    if conv is not None and (not conv.alone or node.inputs[0] in work.rows):
        work.rows[node.outputs[0]] = convolved(work, node, conv)
        return True
    if not passes(node):
        return False
    data = [v for v in node.inputs if v is not None and v.const_value is None]
    turns = [v for v in data if frames_of(v) not in (None, (1, 1))]  # a single number is a row as it is
    ready = [v in work.rows or v.name in work.free or turned_from(v) is not None for v in turns]
    offered = any(v in work.rows and v.producer() is not None for v in data)
    if offered or (ready and all(ready) and any(o in wanted for o in node.outputs)):
        work.rows.update(zip(node.outputs, passed(work, node), strict=True))
        return True
    return False


def _settle_outputs(work: Work, spec: Spec) -> None:
    """States are rows on both sides or on none; outputs are, if they have become so."""
    states = {s.after: s.name for s in spec.states}
    for i, out in enumerate(list(work.graph.outputs)):
        name = str(out.name)
        is_rows = states[name] in work.ports if name in states else name in work.free and out in work.rows
        if not is_rows:
            continue
        work.at = None  # behind whatever makes the output
        made = as_rows(work, out)
        made = work.op("Identity", [made], made.shape, made.dtype) if made.producer() is None else made
        out.name, made.name = f"{name}/columns", name
        work.graph.outputs[i] = made
        work.ports.add(states.get(name, name))
