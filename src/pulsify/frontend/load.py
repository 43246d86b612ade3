"""Any ONNX in, one settled `Model` out: functions inlined, constants lifted, identities gone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from pulsify.errors import InvalidModel
from pulsify.frontend.model import Dim, Model, Node, Port

OLDEST_OPSET = 13
Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


def load(source: Source) -> Model:
    """Read `source` and settle it. The source itself is never changed."""
    graph = read(source)
    graph = _settle_opset(graph)
    passes: list[Any] = [
        common.InlinePass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.RemoveInitializersFromInputsPass(),
        common.IdentityEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.NameFixPass(),
    ]
    for step in passes:
        step(graph)
    return flatten(graph, source if not isinstance(source, os.PathLike) else os.fspath(source))


def read(source: Source) -> ir.Model:
    """The onnx_ir model behind a path, bytes, a ModelProto or an onnx_ir model (copied)."""
    try:
        if isinstance(source, ir.Model):
            return source.clone()
        if isinstance(source, onnx.ModelProto):
            return ir.from_proto(source)
        if isinstance(source, bytes):
            return ir.from_proto(onnx.load_from_string(source))
        if not isinstance(source, (str, os.PathLike)):
            raise InvalidModel(
                f"expected a path, bytes, an onnx.ModelProto or an onnx_ir.Model, got {type(source).__name__}"
                " (a torch.nn.Module also works: pass example=)"
            )
        path = Path(source)
        if not path.is_file():
            raise InvalidModel(f"no such model file: {path.name!r}")
        return ir.load(path)
    except InvalidModel:
        raise
    except Exception as error:  # protobuf and onnx_ir raise many types for a corrupt file
        raise InvalidModel(
            f"this is not a readable ONNX model ({type(error).__name__}: {str(error)[:120]}); "
            "check it with onnx.checker.check_model"
        ) from error


def _settle_opset(graph: ir.Model) -> ir.Model:
    version = graph.opset_imports.get("", graph.opset_imports.get("ai.onnx", 0))
    if version == 0 and not any(True for _ in graph.graph):
        raise InvalidModel("the model has no nodes")
    if 0 < version < OLDEST_OPSET:
        from onnx import version_converter

        try:
            return ir.from_proto(version_converter.convert_version(ir.to_proto(graph), OLDEST_OPSET))
        except Exception as error:
            raise InvalidModel(
                f"opset {version} is too old and ONNX could not convert it to {OLDEST_OPSET} "
                f"({str(error)[:120]}); export the model again with opset 17"
            ) from error
    return graph


def flatten(graph: ir.Model, source: Any) -> Model:
    """onnx_ir's graph as plain nodes. Nodes with subgraphs keep them in `attrs` and `proto`."""
    main = graph.graph
    opsets = dict(graph.opset_imports)
    version = opsets.get("", 0)
    return Model(
        nodes=tuple(plain_node(n, opsets.get(n.domain, version)) for n in main),
        inputs=tuple(_port(v) for v in main.inputs),
        outputs=tuple(str(v.name) for v in main.outputs),
        constants={str(k): v.const_value for k, v in main.initializers.items() if v.const_value is not None},
        opset_imports=opsets,
        ir_version=graph.ir_version or 10,
        source=source,
    )


def plain_node(n: ir.Node, version: int, rename: dict[str, str] | None = None) -> Node:
    rename = rename or {}

    def names(values: Iterable[ir.Value | None]) -> tuple[str, ...]:
        return tuple("" if v is None or not v.name else rename.get(v.name, v.name) for v in values)

    proto = ir.to_proto(n)
    inputs, outputs = names(n.inputs), names(n.outputs)
    del proto.input[:], proto.output[:]
    proto.input.extend(inputs)
    proto.output.extend(outputs)
    attrs = {k: a.value for k, a in n.attributes.items() if isinstance(a, ir.Attr)}
    domain = "" if n.domain == "ai.onnx" else n.domain
    return Node(n.name or f"{n.op_type}_{outputs[0]}", n.op_type, domain, version, inputs, outputs, attrs, proto)


def _port(value: ir.Value) -> Port:
    if value.dtype is None or value.shape is None:
        raise InvalidModel(f"input '{value.name}' has no declared type or shape; export it with both")
    dims: list[Dim] = []
    for d in value.shape:
        dims.append(d if isinstance(d, int) else d.value)
    return Port(str(value.name), value.dtype, tuple(dims))
