"""Numbers that positions are compared with: how far one must look to see a mask's bound, if it has one."""

from __future__ import annotations

from itertools import combinations

from pulsify.frontend.model import Node
from pulsify.trace.lengths import Traces

COMPARE = frozenset(["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Clip", "Min", "Max"])
LARGEST = 1 << 24  # beyond: stands for infinity


def thresholds(traces: Traces) -> tuple[int, ...]:
    """Whole numbers behind comparisons of positions, and their products (so many chunks of so many frames)."""
    model, run = traces.tracer.model, traces.runs[0]
    found: set[int] = set()
    seen: set[str] = set()

    def collect(name: str) -> None:
        if not name or name in seen or not run[name].known:
            return
        seen.add(name)
        if name in model.constants:
            tensor = model.constants[name]
            if tensor.size == 1:
                value = abs(float(tensor.numpy().item()))
                found.update([int(value)] if value == int(min(value, LARGEST)) else [])
            return
        node = model.producers.get(name)
        for i in node.inputs if node is not None and node.op not in ("Shape", "Size") else ():
            collect(i)

    for node in model.nodes:
        if node.op in COMPARE and _of_positions(node, traces):
            for name in node.inputs:
                collect(name)
    own = sorted(v for v in found if 1 < v < LARGEST)
    return tuple(sorted({*own, *(a * b for a, b in combinations(own, 2) if a * b < LARGEST)}))


def _of_positions(node: Node, traces: Traces) -> bool:
    """It is known, and there is more of it the longer the stream is."""
    name = node.outputs[0]
    short, long = traces.runs[0][name], traces.longest[name]
    return short.known and short.dims != long.dims
