"""Which numbers of a stream are computed in double, and which are only handed on as such."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from pulsify.backends.torch.types import complete
from pulsify.core.spec import Spec

MOVES = {
    "Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "ScatterND", "Shape", "Slice",
    "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip


def computes_double(model: ir.Model) -> bool:
    """Is there a node that computes in double? One that moves or converts numbers does not."""
    if not _has_double(model):
        return False
    typed = _completed(model)
    return any(_computes(node) and any(_is_double(v) for v in node.inputs) for node in typed.graph)


def made_of_floats(model: ir.Model, spec: Spec) -> dict[str, str]:
    """Outputs in double that nothing but float32 has come to."""
    doubles = [o.name for o in spec.outputs if o.dtype == np.float64]
    if not doubles:
        return {}
    graph = _completed(model).graph
    after = {s.name: s.after for s in spec.states}
    outputs = {v.name: v for v in graph.outputs}
    return {name: "float32" for name in doubles if _narrow(outputs[name], after, outputs)}


def _narrow(value: ir.Value, after: Mapping[str, str], outputs: Mapping[str | None, ir.Value]) -> bool:
    """Does all that it is made of come from numbers that are no doubles?"""
    queue, seen = [value], set[ir.Value]()
    while queue:
        found = queue.pop()
        node = found.producer()
        if found in seen or not _is_double(found) or found.is_initializer():
            continue
        seen.add(found)
        if node is None:
            if found.name not in after:
                return False  # an input
            queue.append(outputs[after[str(found.name)]])
        elif _computes(node):
            return False
        else:
            queue.extend(v for v in node.inputs if v is not None)
    return True


def _has_double(model: ir.Model) -> bool:
    """Is there any double that others could follow from?"""
    given = [*model.graph.inputs, *model.graph.initializers.values()]
    made = (a.value for node in model.graph for a in node.attributes.values() if a.name in ("to", "dtype"))
    constant = any(node.op_type == "Constant" for node in model.graph)
    return constant or any(map(_is_double, given)) or any(m == ir.DataType.DOUBLE for m in made)


def _computes(node: ir.Node) -> bool:
    return node.op_type not in MOVES


def _is_double(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.DOUBLE


def _completed(model: ir.Model) -> ir.Model:
    """A copy with all types."""
    made = model.clone()
    complete(made)
    return made
