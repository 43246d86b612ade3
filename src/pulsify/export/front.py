"""A step whose ports all have their streams in front, one row each: what batches them need not know the model.

state [1, B, 8]     ─▶  [B, 1, 8]      moved                  a row of one stream is the same numbers in the same order
cache [4*B, 8]      ─▶  [B, 4, 8]      taken apart            as before, so whoever has one stream only reshapes it
count [B]           ─▶  [B, 1]         with an axis of its own
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from pulsify.backends.seam import stream_axis
from pulsify.core.spec import Dims, Spec
from pulsify.optimize.builder import Builder


def dims_by_port(spec: Spec) -> dict[str, Dims]:
    """Of all inputs and outputs of the step, the length's too."""
    out: dict[str, Dims] = {i.name: i.dims for i in spec.inputs} | {s.name: s.dims for s in spec.statics}
    out |= {s.name: s.shape for s in spec.states} | {s.after: s.shape for s in spec.states}
    out |= {o.name: o.dims for o in spec.outputs}
    if spec.length is not None:
        out[spec.length] = (spec.batch or 1, 1)
    return out


def row(dims: Dims) -> tuple[int, ...]:
    """What one stream has of it behind the axis of streams."""
    axis = stream_axis(dims)
    assert axis is not None
    each = _each(dims[axis])
    rest = [d for d in (*dims[:axis], *([each] if each > 1 else []), *dims[axis + 1 :]) if isinstance(d, int)]
    return tuple(rest) or (1,)


def streams_in_front(model: ir.Model, ports: Mapping[str, Dims]) -> ir.Model:
    """The same step, every port as [B, *row]. The model is left as it is."""
    made = model.clone()
    for value in list(made.graph.inputs):
        dims = ports[str(value.name)]
        if not _plain(dims):
            _enter(made.graph, value, dims)
    for value in list(made.graph.outputs):
        dims = ports[str(value.name)]
        if not _plain(dims):
            _leave(made.graph, value, dims)
    return made


def _plain(dims: Dims) -> bool:
    return stream_axis(dims) == 0 and _each(dims[0]) == 1 and len(dims) > 1


def _each(dim: int | str) -> int:
    factor, _, rest = str(dim).partition("*")
    return int(factor) if rest else 1


def _enter(graph: ir.Graph, inner: ir.Value, dims: Dims) -> None:
    """[B, *row] comes in: B goes to its place, and is one axis with what is folded there."""
    axis, name = stream_axis(dims), str(inner.name)
    assert axis is not None
    inner.name = f"{name}/inside"
    outer = ir.Value(name=name, shape=ir.Shape(["B", *row(dims)]), type=inner.type)
    graph.inputs[graph.inputs.index(inner)] = outer
    at = Builder(graph, graph[0])
    moved = _moved(at, outer, 0, axis, len(row(dims)) + 1) if len(dims) > 1 else outer
    sizes = at.ints(*(-1 if i == axis else int(d) for i, d in enumerate(dims)))
    inner.replace_all_uses_with(at.op("Reshape", [moved, sizes], None, inner.dtype, name=f"{name}/reshaped"))


def _leave(graph: ir.Graph, inner: ir.Value, dims: Dims) -> None:
    axis, name = stream_axis(dims), str(inner.name)
    assert axis is not None
    inner.name = f"{name}/inside"
    each = _each(dims[axis])
    apart = [int(d) for d in (*dims[:axis], -1, *([each] if each > 1 else []), *dims[axis + 1 :])]
    apart = [*apart, 1] if len(apart) == 1 else apart
    at = Builder(graph)
    opened = at.op("Reshape", [inner, at.ints(*apart)], None, inner.dtype, name=f"{name}/reshaped")
    moved = _moved(at, opened, axis, 0, len(apart))
    moved.name, moved.type, moved.shape = name, inner.type, ir.Shape(["B", *row(dims)])
    graph.outputs[graph.outputs.index(inner)] = moved


def _moved(at: Builder, value: ir.Value, source: int, target: int, rank: int) -> ir.Value:
    order = [i for i in range(rank) if i != source]
    order.insert(target, source)
    return at.op("Transpose", [value], None, value.dtype, name=f"{value.name}/moved", perm=order)
