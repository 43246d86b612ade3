"""From a module at one example to an ONNX model: by torch's older exporter, which traces, or by its newer one.

The older exporter keeps recurrent layers and scripted functions whole and sizes symbolic, takes little time, and no
complex numbers: it runs under a mode that makes pairs of real ones of them. The newer one takes Python numbers made of
sizes, and unrolls recurrences.
"""

from __future__ import annotations

import ast
import io
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from pulsify.frontend.folding import fold_constants
from pulsify.frontend.lines import keep_lines
from pulsify.frontend.torch_call import Call, Units, batch_symbol
from pulsify.frontend.torch_manners import masks_kept, packs_in_order, quiet

if TYPE_CHECKING:
    from pulsify.frontend.complex_tensors.sites import Site

OPSET = 17
WRAPPER = "module"  # what a user's module is called within `Flat`


@dataclass
class Trace:
    """What an exporter did: what it printed, the torch functions it passed, and numbers that became constants."""

    log: io.StringIO = field(default_factory=io.StringIO)
    functions: Mapping[str, Any] = field(default_factory=dict)  # by name, the first line that called it
    fixed: list[Any] = field(default_factory=list)
    lines: Mapping[str, Any] = field(default_factory=dict)  # of the user's module, by the node that is from there
    is_complex: bool = False
    is_scripted: bool = False

    @property
    def is_recurrent(self) -> bool:
        return any(n in self.functions for n in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


def flat_module(call: Call) -> Any:
    """A module of tensors only: all inputs are positional, all outputs one tuple."""
    import torch

    class Flat(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = call.module

        def forward(self, *tensors: Any) -> Any:
            out = call.flat(dict(zip(call.tensors, tensors, strict=True)))
            return tuple(out) if len(out) > 1 else out[0]

    return Flat().eval()


def copies(call: Call) -> tuple[Any, ...]:
    return tuple(t.detach().clone() for t in call.tensors.values())


def traced(call: Call, units: Units, symbol: str, trace: Trace, opset: int = OPSET) -> ir.Model:
    """By the older exporter."""
    import torch

    from pulsify.frontend.complex_tensors.mode import real_numbers
    from pulsify.frontend.complex_tensors.sites import recording

    with tempfile.TemporaryDirectory() as folder:  # beyond 2 GB the weights lie beside the model
        path = Path(folder) / "model.onnx"
        with (
            quiet(trace.log, descriptors=True), recording() as fixed, real_numbers() as mode, masks_kept(),
            packs_in_order(), torch.no_grad(),
        ):  # fmt: skip
            trace.fixed, trace.functions = fixed, mode.functions
            trace.is_scripted = _has_scripts(call.module)
            try:
                torch.onnx.export(
                    _traceable(call), copies(call), os.fspath(path), dynamo=False, opset_version=opset,
                    do_constant_folding=False, dynamic_axes=units.names(symbol), verbose=True, **_names(call),
                )  # fmt: skip
            finally:
                trace.is_complex = mode.is_complex
                torch._C._jit_set_onnx_log_enabled(False)
        model = ir.external_data.load_to_model(ir.load(path))
    for node in model.graph.all_nodes():
        node.name = _by_module(node)
        for value in node.outputs:
            value.name = (value.name or "").removeprefix(f"/{WRAPPER}/") or None
    trace.lines = source_lines(model)
    clean(model)
    fold_constants(model)
    keep_lines(model, trace.lines)
    return model


def _traceable(call: Call) -> Any:
    """The exporter's own tracer takes scripted functions, not scripted modules; `torch.jit.trace` takes both."""
    import torch

    flat = flat_module(call)
    scripted = any(isinstance(part, torch.jit.ScriptModule) for part in call.module.modules())
    return torch.jit.trace(flat, copies(call), check_trace=False) if scripted else flat


def source_lines(model: ir.Model) -> dict[str, Site]:
    """By the stacks that `verbose` writes into the doc strings, or that the newer exporter keeps."""
    from pulsify.frontend.complex_tensors.sites import site_in

    out: dict[str, Site] = {}
    for node in reversed(list(model.graph.all_nodes())):
        site = site_in(node.doc_string or node.metadata_props.get("pkg.torch.onnx.stack_trace", ""))
        readers = (out.get(use.node.name or "") for v in node.outputs for use in v.uses())
        site = site or next((each for each in readers if each is not None), None)
        if site is not None and node.name:
            out[node.name] = site
    return out


def _has_scripts(module: Any) -> bool:
    """Scripted submodules, or scripted functions that a module has or calls."""
    import torch

    kinds = (torch.jit.ScriptModule, torch.jit.ScriptFunction)
    for part in module.modules():
        methods = [f for kind in type(part).__mro__ for f in vars(kind).values() if isinstance(f, FunctionType)]
        called = [
            f.__globals__.get(n)
            for f in methods
            if not str(f.__module__).startswith("torch.")
            for n in f.__code__.co_names
        ]
        if any(isinstance(value, kinds) for value in (part, *vars(part).values(), *called)):
            return True
    return False


def numbers_fixed(call: Call) -> list[Any]:
    """The numbers that become constants at this example's length; nothing is exported."""
    import torch

    from pulsify.frontend.complex_tensors.mode import real_numbers
    from pulsify.frontend.complex_tensors.sites import recording

    with quiet(), recording() as fixed, real_numbers(), masks_kept(), packs_in_order(), torch.no_grad():
        torch.jit.trace(flat_module(call), copies(call), check_trace=False)
    return fixed


def dynamo(call: Call, units: Units, symbol: str, trace: Trace) -> ir.Model:
    """By the newer exporter."""
    import torch

    dim = torch.export.Dim(symbol, min=2, max=1 << 20)
    streams = torch.export.Dim(batch_symbol(symbol), min=2, max=1 << 16)
    shapes: list[Any] = []
    for name in call.tensors:
        axes: dict[int, Any] = {units.batch[name]: streams} if name in units.batch else {}
        if name in units.axes:
            per = units.per[name]
            axes[units.axes[name]] = dim if per == 1 else per * dim
        shapes.append(axes or None)
    with quiet(trace.log, descriptors=True), masks_kept(), torch.no_grad():
        program = torch.onnx.export(
            flat_module(call), copies(call), dynamo=True, dynamic_shapes=(tuple(shapes),), verbose=False, **_names(call)
        )
    model: ir.Model = program.model
    name_by_module(model)
    trace.lines = source_lines(model)
    own_weights(model)
    keep_lines(clean(model), trace.lines)
    return model


def _names(call: Call) -> dict[str, list[str]]:
    return {"input_names": list(call.tensors), "output_names": output_names(call)}


def output_names(call: Call) -> list[str]:
    """y, or y0, y1, ...; not to be mixed up with an input of that name."""
    count = call.outputs
    stem = "y" if not any(re.fullmatch(r"y\d*", n) for n in call.tensors) else "output"
    return [stem] if count == 1 else [f"{stem}{i}" for i in range(count)]


# ---- tidying up what they wrote


def own_weights(model: ir.Model) -> None:
    """Copies: until then they are the module's, which may go on changing."""
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.const_value = ir.Tensor(np.array(value.const_value.numpy()), name=value.name)


def _by_module(node: ir.Node) -> str:
    """'/module/layers.0/layers.0.1/Conv' as 'layers.0.1/Conv': a list repeats what it is in."""
    *scopes, last = (node.name or node.op_type).strip("/").split("/")
    path: list[str] = []
    for scope in scopes:
        if path and scope.startswith(f"{path[-1]}."):
            path.pop()
        path.append(scope)
    whole = ".".join(path)
    whole = "" if whole == WRAPPER else whole.removeprefix(f"{WRAPPER}.")
    return f"{whole}/{last}" if whole else last


def name_by_module(model: ir.Model) -> None:
    """Nodes after the submodule they come from: 'encoder.layers.0/Conv'."""
    taken: dict[str, int] = {}
    for node in model.graph:
        scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
        path = scopes[-2] if len(scopes) > 1 else ""
        path = path.removeprefix(WRAPPER).removeprefix(".")
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
