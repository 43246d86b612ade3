"""Programs that torch.export made (`.pt2` files), as ONNX. Which axes are free was said when they were exported."""

from __future__ import annotations

import io
import os
import re
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.errors import InvalidArgument, InvalidModel
from pulsify.core.named import install_hint
from pulsify.core.progress import tell
from pulsify.frontend.lines import keep_lines
from pulsify.frontend.torch_call import Axes, Call, Slot, as_array, close
from pulsify.frontend.torch_exporters import clean, name_by_module, own_weights, source_lines
from pulsify.frontend.torch_judge import Untested, WrongLength, check_equal
from pulsify.frontend.torch_manners import keep_log, quiet, short
from pulsify.frontend.torch_time import units_of

SUFFIX = ".pt2"


def is_program(source: object) -> bool:
    """A file of torch.export, or what it holds?"""
    if isinstance(source, (str, os.PathLike)):
        return Path(source).suffix.lower() == SUFFIX
    return type(source).__name__ == "ExportedProgram" and type(source).__module__.startswith("torch.export")


def as_onnx(source: Any) -> ir.Model:
    """The program as a model: exported, and equal to it on the example it holds."""
    try:
        import torch
    except ImportError as error:
        raise InvalidArgument(f"a torch.export program needs torch itself: {install_hint('pulsify[torch]')}") from error
    program, name = source, "the program"
    if isinstance(source, (str, os.PathLike)):
        name = repr(Path(source).name)
        if not Path(source).is_file():
            raise InvalidModel(f"no such model file: {name}")
        try:
            program = torch.export.load(source)
        except Exception as error:  # whatever is in the file
            raise InvalidModel(f"{name} is no program that torch.export.load reads ({short(error)})") from error
    tell("exporting with torch.onnx")
    log = io.StringIO()
    with quiet(log):
        try:
            made = torch.onnx.export(program, dynamo=True, verbose=False)
        except Exception as error:  # an exporter may raise anything
            printed = "\n".join([log.getvalue(), *traceback.format_exception(error)])
            problem = InvalidModel(f"torch could not turn {name} into ONNX ({short(error)}){keep_log(printed)}")
            problem.log = printed
            raise problem from error
        assert made is not None
        model: ir.Model = made.model
        name_by_module(model)
        lines = source_lines(model)
        own_weights(model)
        keep_lines(clean(model), lines)
        _check_free(model, name)
        _check_equal(model, program, name)
    return model


def _check_free(model: ir.Model, name: str) -> None:
    """Some axis must be free, or there is nothing to stream along."""
    if all(isinstance(dim, int) for v in model.graph.inputs for dim in (v.shape or ())):
        raise InvalidModel(
            f"all sizes of {name} are fixed, so it has no time axis; export it with one that is free: "
            'torch.export.export(module, args, dynamic_shapes={"x": {2: torch.export.Dim("T")}})'
        )


def _check_equal(model: ir.Model, program: Any, name: str) -> None:
    """On the example the program was exported with, if it is kept there, and at other sizes of its free axes."""
    import torch

    from pulsify.core.runner import open_model

    if program.example_inputs is None:
        return
    args, kwargs = program.example_inputs
    module = program.module()
    with torch.no_grad():
        wanted = [t for t in torch.utils._pytree.tree_leaves(module(*args, **kwargs)) if isinstance(t, torch.Tensor)]
    given = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    names = [str(v.name) for v in model.graph.inputs]
    got = open_model(model).run(None, dict(zip(names, map(as_array, given), strict=True)))
    for value, ours, theirs in zip(model.graph.outputs, got, wanted, strict=True):
        if np.shape(ours) != tuple(theirs.shape) or not close(ours, as_array(theirs)):
            raise InvalidModel(
                f"output '{value.name}' of the export is not the program's own; convert the module, for "
                "which another exporter is tried: pulsify.stream(module, example=...)"
            )
    if kwargs or any(not isinstance(a, torch.Tensor) for a in args):
        return
    call = Call(module, dict(zip(names, args, strict=True)), (tuple(map(Slot, names)), {}), len(wanted))
    for axes in _free(model):
        units = units_of(call, axes)
        with suppress(Untested):
            try:
                check_equal(model, call, units, units.unit)
            except WrongLength as error:
                raise InvalidModel(f"torch turned {name} into another model: {error}") from error


def _free(model: ir.Model) -> list[Axes]:
    """The axes that share a symbol, of every symbol."""
    axes: dict[str, Axes] = {}
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            for symbol in dict.fromkeys(re.findall(r"[A-Za-z_]\w*", "" if isinstance(dim, int) else str(dim.value))):
                axes.setdefault(symbol, {})[str(value.name)] = axis
    return list(axes.values())
