"""Batch models one behind the other, as one batch model: samples to features, features to tokens.

a:  audio, audio_length ─▶ features, features_length
b:                          audio_signal, length ─▶ outputs, encoded_lengths
a then b:  audio, audio_length ─▶ outputs, encoded_lengths
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from pulsify.core.boundary import public
from pulsify.core.errors import InvalidArgument
from pulsify.frontend.load import Source, read


@public
def chain(*models: Source, connect: Mapping[str, str] | None = None) -> ir.Model:
    """The batch model that runs `models` one after the other; give it to `pulsify.stream`.

    Inputs of a model are fed by the outputs of the one before: by name (`connect` says which output feeds an input of
    another name), else in the order in which both are declared. Whatever is left over stays an input.
    """
    if len(models) < 2:
        raise InvalidArgument("chain takes at least two models, in the order in which they run")
    joined = read(models[0])
    unused = dict(connect or {})
    for number, source in enumerate(models[1:], 2):
        following = read(source)
        ShapeInferencePass()(joined)  # outputs are often declared without sizes
        wires = _wires(joined, following, unused)
        joined = _join(joined, following, wires, f"model_{number}")
    if unused:
        raise InvalidArgument(f"connect={unused}: no model of the chain has such inputs and outputs side by side")
    return joined


def _wires(a: ir.Model, b: ir.Model, connect: dict[str, str]) -> dict[ir.Value, ir.Value]:
    """Inputs of b by the outputs of a that feed them. Takes what it uses out of `connect`."""
    outputs = {str(v.name): v for v in a.graph.outputs}
    inputs = {str(v.name): v for v in b.graph.inputs if v.name not in b.graph.initializers}
    wires: dict[ir.Value, ir.Value] = {}
    for given, made in [(i, o) for i, o in connect.items() if i in inputs and o in outputs]:
        wires[inputs[given]] = outputs[made]
        del connect[given]
    if not wires:
        wires = {v: outputs[name] for name, v in inputs.items() if name in outputs}
    if not wires:
        wires = dict(zip(inputs.values(), outputs.values(), strict=False))
    for into, out in wires.items():
        if not _fit(into, out):
            raise InvalidArgument(
                f"'{out.name}' ({_shown(out)}) cannot feed '{into.name}' ({_shown(into)})",
                advice=f'pass which outputs feed which inputs, e.g. connect={{"{into.name}": "..."}}; '
                f"the outputs are {sorted(outputs)}",
            )
    return wires


def _fit(into: ir.Value, out: ir.Value) -> bool:
    """Same type, same number of axes, and no sizes that contradict each other (what is not declared fits)."""
    if None not in (into.dtype, out.dtype) and into.dtype != out.dtype:
        return False
    if into.shape is None or out.shape is None:
        return True
    pairs = zip(into.shape, out.shape, strict=False)
    return len(into.shape) == len(out.shape) and all(
        x == y for x, y in pairs if isinstance(x, int) and isinstance(y, int)
    )


def _shown(value: ir.Value) -> str:
    dims = "?" if value.shape is None else [d if isinstance(d, int) else str(d) for d in value.shape]
    return f"{value.dtype.name.lower() if value.dtype else 'any type'} {dims}"


def _join(a: ir.Model, b: ir.Model, wires: dict[ir.Value, ir.Value], prefix: str) -> ir.Model:
    a, b, wires = _same_opset(a, b, wires)
    _rename(a, b, prefix)
    for into, out in wires.items():
        into.replace_all_uses_with(out, replace_graph_outputs=True)
    first, second = a.graph, b.graph
    inputs = [*first.inputs, *(v for v in second.inputs if v not in wires)]
    outputs, nodes = list(second.outputs), [*first, *second]
    weights = [*first.initializers.values(), *second.initializers.values()]
    for graph in (first, second):
        graph.inputs.clear()
        graph.outputs.clear()
        graph.initializers.clear()
        graph.remove(list(graph))
    opsets = {**b.opset_imports, **a.opset_imports}
    graph = ir.Graph(
        inputs, outputs, nodes=nodes, initializers=weights, opset_imports=opsets, name=f"{first.name} {second.name}"
    )
    functions = [*a.functions.values(), *b.functions.values()]
    version = max(a.ir_version or 0, b.ir_version or 0)
    return ir.Model(graph, ir_version=version, functions=functions, producer_name="pulsify")


def _same_opset(
    a: ir.Model, b: ir.Model, wires: dict[ir.Value, ir.Value]
) -> tuple[ir.Model, ir.Model, dict[ir.Value, ir.Value]]:
    """The older model is lifted to the newer one's operators."""
    versions = [m.opset_imports.get("", 0) for m in (a, b)]
    if versions[0] == versions[1]:
        return a, b, wires
    from onnx import version_converter

    names = {str(i.name): str(o.name) for i, o in wires.items()}
    try:
        lifted = [
            m if v == max(versions) else ir.from_proto(version_converter.convert_version(ir.to_proto(m), max(versions)))
            for m, v in zip((a, b), versions, strict=True)
        ]
    except Exception as error:
        raise InvalidArgument(
            f"the models use operators of versions {versions} and ONNX could not lift the older one "
            f"({str(error)[:120]}); export both with the same opset"
        ) from error
    outputs = {str(v.name): v for v in lifted[0].graph.outputs}
    inputs = {str(v.name): v for v in lifted[1].graph.inputs}
    return lifted[0], lifted[1], {inputs[i]: outputs[o] for i, o in names.items()}


def _rename(a: ir.Model, b: ir.Model, prefix: str) -> None:
    """Names that both models use get a prefix in the second; its outputs keep theirs."""
    kept = set(b.graph.outputs)
    taken = _names(a.graph)
    for value in _values(a.graph):
        if value.name in {v.name for v in kept}:
            value.name = f"{prefix}_before/{value.name}"
    for value in _values(b.graph):
        if value.name in taken and value not in kept:
            tensor = value.const_value
            if isinstance(tensor, ir.TensorProtoTensor):  # the caller's own, whose name must stay
                value.const_value = ir.LazyTensor(_giving(tensor), dtype=tensor.dtype, shape=tensor.shape)
            value.name = f"{prefix}/{value.name}"
    nodes = {n.name for n in a.graph.all_nodes()}
    for node in b.graph.all_nodes():
        if node.name in nodes:
            node.name = f"{prefix}/{node.name}"


def _giving(tensor: ir.TensorProtocol) -> Callable[[], ir.TensorProtocol]:
    return lambda: tensor


def _values(graph: ir.Graph) -> list[ir.Value]:
    inner = [v for n in graph.all_nodes() for v in n.outputs]
    subgraphs = [v for g in graph.subgraphs() for v in (*g.inputs, *g.initializers.values())]
    return list(dict.fromkeys([*graph.inputs, *graph.initializers.values(), *inner, *subgraphs]))


def _names(graph: ir.Graph) -> set[str | None]:
    return {v.name for v in _values(graph)}
