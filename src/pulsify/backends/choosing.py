"""Which back end runs one stream quickest here, by a rule that is told and not guessed.

A step as C is quicker up to some ten million multiply-adds (`python -m benchmarks`): a general runtime spends its time
between nodes then. Above that its products are as good, so ONNX Runtime takes them. It also takes models whose frames
say which row of a table is meant: it refuses a row that is not there, and C takes the nearest. Nothing is timed when a
session is opened.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from pulsify.core.spec import Spec
from pulsify.optimize.sized import ForStreams
from pulsify.optimize.views import sizes

MOST = 10_000_000  # multiply-adds of a step that is better as C
INDEXED = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND")  # the second input: places


def multiply_adds(model: ir.Model) -> int:
    """Of one step of one stream, in its products, convolutions and recurrent cells."""
    return sum(_of(node) for node in ForStreams(1)(model).model.graph)


def _of(node: ir.Node) -> int:
    taken = [() if v is None else sizes(v) or () for v in node.inputs]
    made = sizes(node.outputs[0]) or ()
    if node.op_type == "Conv":
        return math.prod(made) * math.prod(taken[1][1:])
    if node.op_type == "ConvTranspose":
        return math.prod(taken[0]) * math.prod(taken[1][1:])
    if node.op_type == "MatMul":
        return math.prod(made) * (taken[0][-1] if taken[0] else 0)
    if node.op_type == "Gemm":
        return math.prod(made) * (taken[0][0 if node.attributes.get_int("transA", 0) else -1] if taken[0] else 0)
    if node.op_type in ("GRU", "LSTM", "RNN"):
        return math.prod(taken[0][:2]) * (math.prod(taken[1]) + math.prod(taken[2]))
    if node.op_type == "STFT":
        return math.prod(made) * (taken[2][0] if len(taken) > 2 and taken[2] else 0)
    return 0


def small_enough(model: ir.Model, spec: Spec) -> bool:
    """Is it worth a try as C: fixed memory, and few multiply-adds?"""
    return not any(s.grows for s in spec.states) and multiply_adds(model) <= MOST


def never_asks_in_vain(model: ir.Model, spec: Spec) -> bool:
    """Is every row that is looked up there, whatever the frames are? So it is where places follow from the clock."""
    nodes = [node for node in model.graph.all_nodes() if node.op_type in INDEXED]
    return not any(_follows_frames(node.inputs[1], (spec.position, spec.length)) for node in nodes)


def _follows_frames(value: ir.Value | None, clock: tuple[str | None, ...]) -> bool:
    waiting, seen, bodies = [value], set[ir.Value](), (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    while waiting:
        value = waiting.pop()
        if value is None or value in seen or value.name in clock or value.const_value is not None:
            continue
        seen.add(value)
        node = value.producer()
        if node is None or any(a.type in bodies for a in node.attributes.values()):
            return True
        waiting += [] if node.op_type == "Shape" else node.inputs
    return False
