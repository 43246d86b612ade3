"""A torch module and example inputs in, an ONNX model with a dynamic time axis out.

The time axis is found by running the module: an axis is time if the module also takes other sizes of it. The
exporter is chosen by its result: torch's new one first, the older one if that fails, and whatever comes out must
equal the module at other lengths than the example's. An example of one stream leaves the batch free, if the
module keeps streams apart and an exporter does so; otherwise the batch size stays the example's.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.errors import InvalidArgument, InvalidModel
from pulsify.frontend.torch_call import (
    Call,
    Units,
    as_array,
    batch_symbol,
    called,
    check_runs,
    close,
    evaluating,
    quiet,
    short,
)
from pulsify.frontend.torch_time import batched, found_axes, given_axes, other_lengths, resized, shown

SYMBOL = "T"
LEGACY_OPSET = 17


def export(module: Any, example: Any, time: str | Mapping[str, int] | None) -> tuple[ir.Model, str]:
    """The module as an onnx_ir model, and the name of its time dimension.

    example: a tensor, a tuple of tensors, or a dict of tensors by argument name. time: None (found by itself, asked
    for if there is more than one answer), the axis by argument name ({"x": 2}), or a name for the axis that is found.
    """
    try:
        import torch
    except ImportError as error:
        raise InvalidArgument("a torch module needs torch itself: pip install 'pulsify[torch]'") from error
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgument(f"expected a torch.nn.Module, got {type(module).__name__}: pass the module and example=")
    if time is not None and not isinstance(time, Mapping) and not (isinstance(time, str) and time.isidentifier()):
        raise InvalidArgument(f"time={time!r}: expected an axis by argument ({{'x': 2}}), or a word to call it by")
    call = called(module, example)
    with evaluating(module), quiet():
        check_runs(call)
        units = given_axes(call, time) if isinstance(time, Mapping) else found_axes(call)
        symbol = time if isinstance(time, str) else SYMBOL
        return _export(call, units, symbol), symbol


def _export(call: Call, units: Units, symbol: str) -> ir.Model:
    """With the batch free where that can be had."""
    if (wide := batched(call, units)) is not None:
        try:
            return _exported(*wide, symbol)
        except InvalidModel:  # something of the example's batch is baked in
            pass
    return _exported(call, units, symbol)


def _exported(call: Call, units: Units, symbol: str) -> ir.Model:
    """The first export that is right at other lengths too."""
    lengths = other_lengths(call, units)
    reasons = []
    exporters: dict[str, Callable[[Call, Units, str], ir.Model]] = {"dynamo": _dynamo, "legacy": _legacy}
    for name, exporter in exporters.items():
        try:
            model = clean(exporter(call, units, symbol))
            _check_dims(model, units, symbol)
            _check_equal(model, call, units, lengths)
            return model
        except Exception as error:  # an exporter may raise anything; the next one gets its chance
            reasons.append(f"{name}: {short(error)}")
    raise InvalidModel(
        f"torch could not export the module with {shown(call, units.axes)} as a dynamic time axis "
        f"({'; '.join(reasons)}); export it to ONNX yourself and pass the file"
    )


def _dynamo(call: Call, units: Units, symbol: str) -> ir.Model:
    import torch

    dim = torch.export.Dim(symbol, min=2, max=1 << 20)
    shapes: dict[str, Any] = dict.fromkeys(call.tensors)
    streams = torch.export.Dim(batch_symbol(symbol), min=2, max=1 << 16)
    for name in {**units.axes, **units.batch}:
        shapes[name] = {units.batch[name]: streams} if name in units.batch else {}
        if name in units.axes:
            per = units.per[name]
            shapes[name][units.axes[name]] = dim if per == 1 else per * dim
    args, kwargs = call.arguments(call.tensors)
    program = torch.onnx.export(
        call.module,
        args,
        kwargs=kwargs or None,
        dynamo=True,
        dynamic_shapes=shapes if call.by_name else _positional_shapes(call, shapes),
        verbose=False,
        **_names(call),
    )
    model: ir.Model = program.model
    name_by_module(model)
    own_weights(model)
    return model


def own_weights(model: ir.Model) -> None:
    """Copies: until then they are the module's, which may go on changing."""
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.const_value = ir.Tensor(np.array(value.const_value.numpy()), name=value.name)


def _positional_shapes(call: Call, shapes: Mapping[str, Any]) -> Any:
    """As torch wants them: a tuple, in which what *args takes is a tuple of its own."""
    parameters = inspect.signature(call.module.forward).parameters
    plain = [n for n in shapes if n in parameters]
    rest = tuple(shapes[n] for n in shapes if n not in plain)
    return (*(shapes[n] for n in plain), *([rest] if rest else []))


def _legacy(call: Call, units: Units, symbol: str) -> ir.Model:
    import torch

    with tempfile.TemporaryDirectory() as folder:  # beyond 2 GB the weights lie beside the model
        path = Path(folder) / "model.onnx"
        args, kwargs = call.arguments(call.tensors)
        torch.onnx.export(
            call.module,
            args,
            os.fspath(path),
            kwargs=kwargs or None,
            dynamo=False,
            opset_version=LEGACY_OPSET,
            dynamic_axes=units.names(symbol),
            **_names(call),
        )
        return ir.external_data.load_to_model(ir.load(path))


def _names(call: Call) -> dict[str, list[str]]:
    """Inputs after the arguments of forward, outputs y, or y0, y1, ..."""
    count = len(call(call.tensors))
    stem = "y" if not any(re.fullmatch(r"y\d*", n) for n in call.tensors) else "output"
    return {
        "input_names": list(call.tensors),
        "output_names": [stem] if count == 1 else [f"{stem}{i}" for i in range(count)],
    }


def name_by_module(model: ir.Model) -> None:
    """Nodes after the submodule they come from: 'encoder.layers.0/Conv'."""
    taken: dict[str, int] = {}
    for node in model.graph:
        scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
        path = scopes[-2] if len(scopes) > 1 else ""
        name = f"{path}/{node.op_type}" if path else node.op_type
        taken[name] = count = taken.get(name, -1) + 1
        node.name = f"{name}_{count}" if count else name


def clean(model: ir.Model) -> ir.Model:
    """Without the exporter's notes (source locations among them), and without inferred shapes: some are baked in."""
    model.doc_string = model.graph.doc_string = None
    model.producer_version = (model.producer_version or "").partition("+")[0]
    model.metadata_props.clear()
    for graph in [model.graph, *(f.graph for f in model.functions.values())]:
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.doc_string = None
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
                value.doc_string = None
                value.shape = None
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
        value.doc_string = None
    return model


def _check_dims(model: ir.Model, units: Units, symbol: str) -> None:
    shapes = {str(v.name): v.shape for v in model.graph.inputs}
    for name, dims in units.names(symbol).items():
        for axis, dim in dims.items():
            shape = shapes.get(name)
            if shape is None or str(shape[axis]) != dim:
                raise InvalidModel(f"the length of input '{name}', or its batch, is baked in")


def _check_equal(model: ir.Model, call: Call, units: Units, lengths: list[int]) -> None:
    """The export must be the module, on data and at lengths that are not the example's."""
    from pulsify.core.runner import open_model

    session = open_model(model)
    for length, negative in itertools.product(lengths, (False, True)):
        feeds = resized(call, units, length)
        if negative and units.batch:  # another number of streams
            feeds = {n: t.narrow(units.batch[n], 0, 2) if n in units.batch else t for n, t in feeds.items()}
        if negative:
            feeds = {n: -t if t.is_floating_point() else t for n, t in feeds.items()}
        wanted = [as_array(t) for t in call(feeds)]
        got = session.run(None, {n: as_array(t) for n, t in feeds.items()})
        for name, ours, theirs in zip([v.name for v in model.graph.outputs], got, wanted, strict=True):
            if ours.shape != theirs.shape or not close(ours, theirs):
                raise InvalidModel(
                    f"output '{name}' is not the module's at length {length}: something of the example is baked in, "
                    "or the module is random"
                )
