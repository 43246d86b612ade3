"""Types and sizes that onnx's inference does not find: the runtime knows them, since it runs the graph."""

from __future__ import annotations

import re

import onnx
import onnx_ir as ir

from pulsify.core.runner import open_model

KINDS = {"float": "FLOAT", "double": "DOUBLE"}  # where the runtime's word is not onnx's


def complete(model: ir.Model) -> None:
    """In place. Nothing happens if all types are known."""
    missing = [v for node in model.graph for v in node.outputs if v.name and v.dtype is None]
    if not missing:
        return
    whole = ir.external_data.load_to_model(model.clone())
    proto = ir.to_proto(whole)
    for value in missing:
        if not value.is_graph_output():
            proto.graph.output.append(onnx.ValueInfoProto(name=value.name))
    found = {o.name: o for o in open_model(proto, optimize=False).get_outputs()}
    for value in missing:
        given = found[value.name]
        kind = re.fullmatch(r"tensor\((\w+)\)", given.type)
        if kind is None:  # a list of tensors, say
            continue
        value.dtype = ir.DataType[KINDS.get(kind[1], kind[1].upper())]
        if value.shape is None:
            value.shape = ir.Shape([d if isinstance(d, int) else None for d in given.shape])
