"""Do the metadata of a file fit its graph? Asked of files without a checksum, which may have been edited by hand."""

from __future__ import annotations

import onnx_ir as ir

from pulsify.core.errors import InvalidModel
from pulsify.core.spec import Input, Output, Spec, State, Static


def check_ports(model: ir.Model, spec: Spec) -> None:
    """Raises InvalidModel that names the port at which metadata and graph differ."""
    takes = {v.name: v for v in model.graph.inputs}
    gives = {v.name: v for v in model.graph.outputs}
    facts: list[Input | Static | State] = [*spec.inputs, *spec.statics, *spec.states]
    for fact in facts:
        _check(fact, takes.get(fact.name))
    for output in spec.outputs:
        _check(output, gives.get(output.name))
    named = {s.after: gives for s in spec.states} | {n: takes for n in (spec.length, spec.position) if n is not None}
    for name, ports in named.items():
        if name not in ports:
            raise _damaged(name, "is not in the graph")
    order = [*(o.name for o in spec.outputs), *(s.after for s in spec.states)]
    if order != [v.name for v in model.graph.outputs]:
        raise _damaged(order[0], "and the others are not the graph's outputs, in its order")
    if not spec.inputs or min(spec.pulse, spec.granularity, spec.step) < 1 or spec.pulse % spec.granularity:
        raise InvalidModel("the metadata give no pulse that a stream can have; convert the model again")


def _check(fact: Input | Static | Output | State, value: ir.Value | None) -> None:
    """One port: name, type, sizes, and where its frames are."""
    if value is None:
        raise _damaged(fact.name, "is not in the graph")
    dims = fact.shape if isinstance(fact, State) else fact.dims
    if value.dtype is not None and value.dtype.numpy() != fact.dtype:
        raise _damaged(fact.name, f"is {value.dtype.name} in the graph")
    sizes = None if value.shape is None else list(value.shape)
    if sizes is not None and (
        len(sizes) != len(dims)
        or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(sizes, dims, strict=True))
    ):
        raise _damaged(fact.name, f"has sizes {list(map(str, sizes))} in the graph")
    if isinstance(fact, (Input, Output)) and fact.axis is not None:
        if not 0 <= fact.axis < len(dims) or fact.rate <= 0:
            raise _damaged(fact.name, "has no such time axis")
        if isinstance(fact, Output) and (dims[fact.axis] != fact.frames or fact.delay < 0):
            raise _damaged(fact.name, "has another number of frames, or a delay below 0")


def _damaged(name: str, what: str) -> InvalidModel:
    return InvalidModel(f"metadata and graph of this stream differ: '{name}' {what}; convert the model again")
