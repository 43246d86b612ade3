"""Does a step compute with the number of streams? Followed through its graph.

Sizes may be targets of shapes and bounds of cuts; whatever meets frames as a number, or picks rows for them, may not.
"""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

Kind = Literal["constant", "size", "data"]
TARGETS = {  # inputs that say how large something is
    "Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Tile": (1,), "Slice": (1, 2, 3, 4), "Pad": (1,),
    "Split": (1,), "Resize": (2, 3), "Range": (0, 1, 2),
}  # fmt: skip
MEASURES = ("Shape", "Size")


def counts_streams(model: ir.Model) -> bool:
    """May an entry be another one with more streams beside it? What mixes streams is not seen."""
    kinds: dict[ir.Value, Kind] = dict.fromkeys(model.graph.inputs, "data")
    for node in model.graph:
        read = [kinds.get(v, "constant") for i, v in enumerate(node.inputs) if v is not None and not _target(node, i)]
        for body in (a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH):
            read += ["data", *(kinds.get(v, "constant") for n in body.all_nodes() for v in n.inputs if v is not None)]
        if "size" in read and "data" in read:
            return True
        made: Kind = "data" if "data" in read else "size" if "size" in read else "constant"
        if node.op_type in MEASURES and "data" in read:
            made = "size"
        kinds.update(dict.fromkeys(node.outputs, made))
    return any(kinds.get(v) == "size" for v in model.graph.outputs)


def _target(node: ir.Node, index: int) -> bool:
    return index in TARGETS.get(node.op_type, ())
