"""Any ONNX in, one settled `Model` out: functions inlined, constants lifted, identities gone."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from pulsify.core.constants import holding
from pulsify.core.custom import CUSTOM, WHOLE, Bodies, add_bodies, bodies
from pulsify.core.errors import InvalidModel
from pulsify.core.runner import given_out
from pulsify.core.spec import is_streaming
from pulsify.core.weights import check_places
from pulsify.frontend.flat_index import pick_by_each_index
from pulsify.frontend.lines import from_module
from pulsify.frontend.log_sums import scan_log_sums
from pulsify.frontend.loops import loops_to_scans
from pulsify.frontend.masked_writes import choose_by_mask
from pulsify.frontend.model import Body, Dim, Exporter, Model, Node, Port
from pulsify.frontend.newer import is_newer, write_newer
from pulsify.frontend.older import put_back, set_aside
from pulsify.frontend.placing import before, constant_before, instead
from pulsify.frontend.sequences import pick_pieces

DROPPED = {  # gone before any rule is asked, with what docs/operators.md says of them
    "Constant": "becomes a constant of the model",
    "Identity": "taken out; where it stays (an input given out again) the rule above holds",
    "Dropout": "taken out where it does not train",
    "Compress": "a Gather of the places its mask shows, which must not depend on the data",
}
OLDEST_OPSET = 13
HELD_TWICE = 256 << 20  # bytes of a model
OLDEST_IR = 8  # before 4, a default (the stream's length) could not be overridden
Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for garbage: of ten thousand nodes none is, and looking takes a third of the time."""
    looks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looks:
            gc.enable()


@_uncollected()
def load(source: Source) -> Model:
    """Read `source` and settle it. The source itself is never changed."""
    graph = read(source)
    if is_streaming(graph.metadata_props):
        raise InvalidModel("this model is a stream already: open it with pulsify.load, or convert its batch model")
    check_places(graph)
    _check(graph)
    graph = _raise_opset(graph)
    functions = bodies(graph)
    add_bodies(graph, {name: body for name, body in functions.items() if name not in WHOLE})
    passes: list[Any] = [
        common.InlinePass(criteria=lambda f: (f.domain, f.name) not in WHOLE),
        _lift_constants,
        _constants_to_initializers,
        write_newer,
        _constants_to_initializers,
        pick_pieces,
        _constants_to_initializers,
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.RemoveInitializersFromInputsPass(),
        _give_out_inputs,
        _compress_to_gather,
        choose_by_mask,
        pick_by_each_index,
        scan_log_sums,
        loops_to_scans,
        _constants_to_initializers,
        _drop_identities,
        common.RemoveUnusedNodesPass(),
        common.NameFixPass(),
    ]
    for step in passes:
        step(graph)
    return flatten(graph, source if not isinstance(source, os.PathLike) else os.fspath(source), functions)


def _constants_to_initializers(model: ir.Model) -> None:
    try:
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    except ValueError as error:
        raise InvalidModel(
            f"a Constant node holds no constant ({str(error)[:200]}); check the model with onnx.checker.check_model"
        ) from error


def read(source: Source) -> ir.Model:
    """The onnx_ir model behind a path, bytes, a ModelProto or an onnx_ir model (copied)."""
    try:
        if isinstance(source, ir.Model):
            return source.clone()
        if isinstance(source, onnx.ModelProto):
            own = onnx.ModelProto()  # passes rename tensors, which would be the caller's
            own.CopyFrom(source)
            return ir.from_proto(own)
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
        subject = repr(Path(source).name) if isinstance(source, (str, os.PathLike)) else "this"
        raise InvalidModel(
            f"{subject} is not a readable ONNX model ({type(error).__name__}: {str(error)[:120]}); "
            "check it with onnx.checker.check_model"
        ) from error


def runnable(source: Source) -> Source:
    """The model with the bodies of operators that were made known here, and in an opset that ONNX Runtime opens."""
    if _small(source) and is_newer(graph := read(source)):
        source = graph
        common.InlinePass()(source)
        _lift_constants(source)
        write_newer(source)
        common.NameFixPass()(source)
    if not any(custom.body is not None for custom in CUSTOM.values()):
        return source
    graph = read(source)
    own = {(f.domain, f.name) for f in graph.functions.values()}
    missing = {name: body for name, body in bodies(graph).items() if name not in own}
    if not missing:
        return source
    add_bodies(graph, missing)
    return graph


def _small(source: Source) -> bool:
    """May it be held twice for a moment, to look at it?"""
    if isinstance(source, bytes):
        return len(source) < HELD_TWICE
    return not isinstance(source, (str, os.PathLike)) or os.path.getsize(source) < HELD_TWICE


def dynamic(source: Source, time: Mapping[str, int]) -> bool:
    """Does the model declare no fixed size for these axes of its inputs?"""
    return not any(_fixed_axes(read(source), time))


def _fixed_axes(graph: ir.Model, time: Mapping[str, int]) -> Iterator[tuple[ir.Value, int]]:
    for value in graph.graph.inputs:
        axis = time.get(str(value.name))
        if axis is not None and value.shape is not None and isinstance(value.shape[axis], int):
            yield value, axis


def undeclared(source: Source, time: Mapping[str, int] | None = None) -> ir.Model:
    """The model without the shapes that it declares for what its nodes make: exporters get some of them wrong.

    time: axes by input that are made symbolic, if they are fixed.
    """
    graph = read(source)
    for value, axis in _fixed_axes(graph, time or {}):
        dims = list(value.shape or ())
        dims[axis] = ir.SymbolicDim(f"{value.name}.time")
        value.shape = ir.Shape(dims)
    for node in graph.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    return graph


def with_log_sums(source: Source) -> ir.Model | None:
    """The model as it is streamed where running sums of exponentials are scans; None if it has none."""
    graph = read(source)
    _lift_constants(graph)
    if not scan_log_sums(graph):
        return None
    common.NameFixPass()(graph)
    return graph


def _check(graph: ir.Model) -> None:
    """What the rest takes for granted: there are nodes, and whatever is read was made before."""
    main = graph.graph
    if not len(main) or not main.outputs:
        raise InvalidModel(f"the model has no {'outputs' if len(main) else 'nodes'}; export it again")
    _check_graph(main, set())


def _check_graph(graph: ir.Graph, around: set[ir.Value]) -> None:
    """around: what was made outside of a body, which its nodes may read, but which it cannot give out."""
    made = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in made and value not in around:
                raise InvalidModel(
                    f"node '{node.name}' reads '{value.name}', which no node before it makes; "
                    "check the model with onnx.checker.check_model"
                )
        for attr in node.attributes.values():
            if attr.type == ir.AttributeType.GRAPH and isinstance(attr.value, ir.Graph):
                _check_graph(attr.value, around | made)
        made.update(node.outputs)
    for value in graph.outputs:
        if value not in made:
            raise InvalidModel(f"no node makes output '{value.name}'; check the model with onnx.checker.check_model")


def _raise_opset(graph: ir.Model) -> ir.Model:
    version = graph.opset_imports.get("", graph.opset_imports.get("ai.onnx", 0))
    if version == 0 and any(node.domain in ("", "ai.onnx") for node in graph.graph):
        raise InvalidModel("the model does not say which version of ONNX's operators it uses; export it again")
    if 0 < version < OLDEST_OPSET:
        from onnx import version_converter

        set_aside(graph)
        try:
            raised = ir.from_proto(version_converter.convert_version(ir.to_proto(graph), OLDEST_OPSET))
        except Exception as error:
            raise InvalidModel(
                f"opset {version} is too old and ONNX could not convert it to {OLDEST_OPSET} "
                f"({str(error)[:120]}); export the model again with opset 17"
            ) from error
        put_back(raised)
        return raised
    return graph


def _lift_constants(graph: ir.Model) -> None:
    """Constants of the main graph. The pass does so too, in many times the time: there may be thousands."""
    main = graph.graph
    for node in [n for n in main if n.op_type == "Constant" and n.domain == ""]:
        made, attr = node.outputs[0], node.attributes.get("value")
        if attr is None or made.is_graph_output():
            continue
        tensor = attr.value
        held = holding(str(made.name), tensor)
        main.initializers.add(held)
        for user, index in made.uses():
            user.replace_input_with(index, held)
        main.remove(node)


def _give_out_inputs(graph: ir.Model) -> None:
    """An input that is an output too comes out under a name of its own."""
    main = graph.graph
    for i, value in enumerate(main.outputs):
        if value.is_graph_input():
            made = ir.Node("", "Identity", [value], name=given_out(str(value.name)))
            made.outputs[0].name = given_out(str(value.name))
            made.outputs[0].shape, made.outputs[0].type = value.shape, value.type
            main.append(made)
            main.outputs[i] = made.outputs[0]


def _compress_to_gather(graph: ir.Model) -> None:
    """What a mask keeps is what its places show."""
    for node in [n for n in graph.graph.all_nodes() if n.op_type == "Compress" and n.domain in ("", "ai.onnx")]:
        x, mask = node.inputs
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else None
        if axis is None:
            x = before(node, "Reshape", [x, constant_before(node, np.array([-1]))])
        places = before(node, "Squeeze", [before(node, "NonZero", [mask]), constant_before(node, np.array([0]))])
        instead(node, before(node, "Gather", [x, places], [ir.AttrInt64("axis", axis or 0)]))


def _drop_identities(graph: ir.Model) -> None:
    """Remove nodes that hand on their input. Outputs keep their names, and two outputs stay two."""
    main = graph.graph
    for node in list(main):
        if not _hands_on(node):
            continue
        x, y = node.inputs[0], node.outputs[0]
        assert x is not None
        if y.is_graph_output():
            if x.is_graph_input() or x.is_initializer() or x.is_graph_output():
                continue
            name, y.name = y.name, None
            main.outputs[list(main.outputs).index(y)] = x
            x.name = name
        ir.convenience.replace_all_uses_with(y, x)
        main.remove(node, safe=True)


def _hands_on(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    inference = len(node.inputs) < 3 and len(node.outputs) == 1  # a dropout that is not told to train
    return node.op_type == "Identity" or (node.op_type == "Dropout" and inference)


def flatten(graph: ir.Model, source: Any, functions: Bodies | None = None) -> Model:
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
        ir_version=max(graph.ir_version or 10, OLDEST_IR),
        source=source,
        bodies=functions or {},
        exporter=_exporter(graph),
    )


def _exporter(graph: ir.Model) -> Exporter:
    if from_module(graph):
        return "torch.nn"
    if graph.producer_name != "pytorch":
        return ""
    newer = any(key.startswith("pkg.torch") for key in graph.graph.metadata_props)
    newer = newer or any("namespace" in node.metadata_props for node in graph.graph)
    return "torch.export" if newer else "torch.jit"


def plain_node(n: ir.Node, version: int, rename: dict[str, str] | None = None) -> Node:
    rename = rename or {}

    def names(values: Iterable[ir.Value | None]) -> tuple[str, ...]:
        return tuple("" if v is None or not v.name else rename.get(v.name, v.name) for v in values)

    inputs, outputs = names(n.inputs), names(n.outputs)

    def proto() -> onnx.NodeProto:
        made = ir.to_proto(n)
        del made.input[:], made.output[:]
        made.input.extend(inputs)
        made.output.extend(outputs)
        return made

    attrs = {k: a.value for k, a in n.attributes.items() if isinstance(a, ir.Attr)}
    domain = "" if n.domain == "ai.onnx" else n.domain
    name = n.name or f"{n.op_type}_{outputs[0]}"
    body = _body(attrs["body"], name, version, rename) if domain == "" and n.op_type in ("Scan", "Loop") else None
    return Node(name, n.op_type, domain, version, inputs, outputs, attrs, proto, body, rename)


def _body(graph: ir.Graph, name: str, version: int, outer: dict[str, str]) -> Body:
    """A body in names of its own; whatever else it reads is captured."""
    inner = [*graph.inputs, *(v for n in graph for v in n.outputs)]
    own = {str(v.name): f"{name}/{v.name}" for v in inner if v.name}
    nodes = tuple(replace(plain_node(n, version, outer | own), name=f"{name}/{n.name}") for n in graph)
    made = {*own.values(), ""}
    captured = dict.fromkeys(i for n in nodes for i in n.reads if i not in made)
    inputs, outputs = (
        tuple(own.get(str(v.name), outer.get(str(v.name), str(v.name))) for v in values)
        for values in (graph.inputs, graph.outputs)
    )
    captured |= dict.fromkeys(o for o in outputs if o not in made)
    return Body(inputs, outputs, nodes, tuple(captured))


def _port(value: ir.Value) -> Port:
    if value.dtype is None or value.shape is None:
        raise InvalidModel(f"input '{value.name}' has no declared type or shape; export it with both")
    dims: list[Dim] = []
    for d in value.shape:
        dims.append(d if isinstance(d, int) else d.value or None)  # some exporters write an empty name
    return Port(str(value.name), value.dtype, tuple(dims))
