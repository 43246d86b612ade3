"""A torch module and example inputs in, an ONNX model with a dynamic time axis out.

The time axis is found by running the module: an axis is time if the module also takes other sizes of it. The
exporter is chosen by its result: torch's new one first, the older one if that fails, and whatever comes out must
equal the module at other lengths than the example's. An example of one stream leaves the batch free, if the
module keeps streams apart and an exporter does so; otherwise the batch size stays the example's.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import itertools
import logging
import math
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.errors import InvalidArgument, InvalidModel
from pulsify.frontend.time import LENGTH_NAMES

SYMBOL = "T"
BATCH = "B"  # what a batch that is free is called (and "N" where that is taken)
SHOW_EXAMPLE = (
    "pulsify.stream(module, example=torch.randn(1, 80, 200)), or a tuple of tensors, or a dict by argument name"
)
LEGACY_OPSET = 17
MOST_CHOICES = 256  # ways to choose one axis per input that are tried before asking
CLOSE = {"float16": 2e-2, "float32": 1e-3, "float64": 1e-6}  # of the output's scale

Axes = dict[str, int]  # input -> its time axis


@dataclass(frozen=True, eq=False)
class Call:
    """A module and the tensors it is called with, in the order of its arguments."""

    module: Any
    tensors: Mapping[str, Any]
    by_name: bool

    def __call__(self, tensors: Mapping[str, Any]) -> list[Any]:
        """The module's output tensors, flat. Whatever the module raises is raised."""
        import torch
        from torch.utils import _pytree

        args, kwargs = self.arguments(tensors)
        with torch.no_grad():
            result = self.module(*args, **kwargs)
        return [t for t in _pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]

    def arguments(self, tensors: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments. Copies: a module may write into its inputs."""
        copies = {n: t.detach().clone() for n, t in tensors.items()}
        return ((), copies) if self.by_name else (tuple(copies.values()), {})


@dataclass(frozen=True)
class Units:
    """How the length enters each input: `per[name]` frames on `axes[name]` for every unit; the example has `unit`."""

    axes: Axes
    per: dict[str, int]
    unit: int
    batch: Axes = field(default_factory=dict)  # the axes of a batch that is free

    def names(self, symbol: str) -> dict[str, dict[int, str]]:
        """The symbolic dimensions: {"x": {0: "B", 2: "T"}, "y": {1: "4*T"}}."""
        out: dict[str, dict[int, str]] = {n: {a: batch_symbol(symbol)} for n, a in self.batch.items()}
        for n, a in self.axes.items():
            out.setdefault(n, {})[a] = symbol if self.per[n] == 1 else f"{self.per[n]}*{symbol}"
        return out


def batch_symbol(time: str) -> str:
    return BATCH if time != BATCH else "N"


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
    call = _call(module, example)
    with _evaluating(module), _quiet():
        _check_runs(call)
        units = _given(call, time) if isinstance(time, Mapping) else _find(call)
        symbol = time if isinstance(time, str) else SYMBOL
        return _export(call, units, symbol), symbol


# ---- the example


def _call(module: Any, example: Any) -> Call:
    import torch

    if example is None:
        raise InvalidArgument(f"a torch module needs example inputs: {SHOW_EXAMPLE}")
    by_name = isinstance(example, Mapping)
    several = isinstance(example, (tuple, list))
    given: dict[Any, Any] = dict(example) if by_name else dict(enumerate(example if several else (example,)))
    for key, value in given.items():
        if not isinstance(value, torch.Tensor):
            raise InvalidArgument(f"example: {key!r} is {type(value).__name__}, expected a tensor: {SHOW_EXAMPLE}")
    if not given:
        raise InvalidArgument(f"example is empty: {SHOW_EXAMPLE}")
    parameters = inspect.signature(module.forward).parameters
    if not by_name:
        names = _positional_names(parameters, len(given))
        return Call(module, dict(zip(names, given.values(), strict=True)), False)
    free = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [n for n in given if n not in parameters]
    if unknown and not free:
        raise InvalidArgument(f"example: forward has no argument {unknown}; its arguments are {list(parameters)}")
    order = [n for n in parameters if n in given] + unknown
    return Call(module, {n: given[n] for n in order}, True)


def _positional_names(parameters: Mapping[str, inspect.Parameter], count: int) -> list[str]:
    names: list[str] = []
    for name, p in parameters.items():
        if p.kind is p.VAR_POSITIONAL:
            names += [f"{name}{i}" for i in range(count - len(names))]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(name)
    if len(names) < count:
        raise InvalidArgument(f"example has {count} tensors, forward takes {len(names)}: {list(parameters)}")
    return names[:count]


def _check_runs(call: Call) -> None:
    try:
        found = call(call.tensors)
    except Exception as error:
        shapes = {n: list(t.shape) for n, t in call.tensors.items()}
        raise InvalidArgument(
            f"the module does not run on the example {shapes} ({_short(error)}); pass example inputs that it takes"
        ) from error
    if not found:
        raise InvalidArgument("the module returns no tensor; it must return a tensor, or a tuple or dict of tensors")


# ---- which axis is time


def _given(call: Call, time: Mapping[str, int]) -> Units:
    """The axes the user named."""
    if not time:
        raise InvalidArgument('time={} names no input; pass for example time={"x": 2}')
    axes: Axes = {}
    for name, axis in time.items():
        if name not in call.tensors:
            raise InvalidArgument(
                f"time: forward has no argument '{name}' in the example; there is {list(call.tensors)}"
            )
        rank = call.tensors[name].dim()
        if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
            raise InvalidArgument(f"time: input '{name}' has {rank} axes, there is no axis {axis!r}")
        axes[name] = axis % rank
    units = _units(call, axes)
    if not _lengths(call, units):
        raise InvalidArgument(
            f"the module runs at no other length of {_shown(call, axes)}; name another axis with time="
        )
    return units


def _find(call: Call) -> Units:
    """The one set of axes that can be time, or a question."""
    found = _candidates(call)
    later = [axes for axes in found if any(axes.values())]
    first = [axes for axes in found if not any(axes.values())]
    if not found:
        shapes = {n: list(t.shape) for n, t in call.tensors.items()}
        raise InvalidArgument(
            f"the module runs at no other size of any axis of the example {shapes}: there is no time axis in it, or "
            f'the example is too short; pass a longer example, or name the axis with time={{"{next(iter(shapes))}": 2}}'
        )
    if not later and len(first) == 1:
        return _units(call, first[0])
    # An axis 0 along which nothing mixes is the batch; where it does mix, it may well be time.
    if len(later) == 1 and all(_separate(call, _units(call, axes)) for axes in first):
        return _units(call, later[0])
    listed = "; ".join(f"time={axes} ({_shown(call, axes)})" for axes in [*later, *first])
    raise InvalidArgument(f"several axes could be time: {listed}; say which")


def _candidates(call: Call) -> list[Axes]:
    """The smallest sets of axes, at most one of each input, that the module takes at another length."""
    choices: list[list[int | None]] = [
        [None, *(a for a in range(t.dim()) if t.shape[a] > 1 and not _is_length(n, t))] for n, t in call.tensors.items()
    ]
    if math.prod(map(len, choices)) > MOST_CHOICES:
        raise InvalidArgument(
            f"{len(choices)} inputs are too many to find the time axis by trying; name it with time={{...}}, "
            f"for example time={{'{next(iter(call.tensors))}': 1}}"
        )
    sets = [
        {n: a for n, a in zip(call.tensors, chosen, strict=True) if a is not None}
        for chosen in itertools.product(*choices)
    ]
    found: list[Axes] = []
    for axes in sorted(filter(None, sets), key=len):
        contained = any(smaller.items() <= axes.items() for smaller in found)
        if not contained and _lengths(call, _units(call, axes)):
            found.append(axes)
    return found


def _is_length(name: str, tensor: Any) -> bool:
    """An integer input that holds the length, by the rule the ONNX frontend has for it."""
    return tensor.dim() <= 1 and not tensor.is_floating_point() and LENGTH_NAMES.search(name) is not None


def _units(call: Call, axes: Axes) -> Units:
    sizes = {n: int(call.tensors[n].shape[a]) for n, a in axes.items()}
    unit = math.gcd(*sizes.values())
    if unit == 0:
        raise InvalidArgument(f"the example is empty along {_shown(call, axes)}; pass one with some frames")
    return Units(axes, {n: size // unit for n, size in sizes.items()}, unit)


def _lengths(call: Call, units: Units) -> list[int]:
    """Other lengths the module takes: longer ones, or a shorter one if there is no longer one."""
    u = units.unit
    longer = [n for n in (u + 1, u + 3, 2 * u) if _runs(call, units, n)]
    return longer or [n for n in (u // 2,) if n > 1 and _runs(call, units, n)]  # a size of 1 may be repeated


def _runs(call: Call, units: Units, length: int) -> bool:
    try:
        call(_resized(call, units, length))
    except Exception:  # a module may raise anything at a size it does not take
        return False
    return True


def _resized(call: Call, units: Units, length: int) -> dict[str, Any]:
    """The example at another length: its frames, and again from the last to the first as far as needed."""
    import torch

    out = {}
    for name, tensor in call.tensors.items():
        if name in units.axes:
            axis, frames = units.axes[name], units.per[name] * length
            while tensor.shape[axis] < frames:
                tensor = torch.cat([tensor, tensor.flip(axis)], axis)
            out[name] = tensor.narrow(axis, 0, frames)
        elif _is_length(name, tensor):
            out[name] = torch.full_like(tensor, length)
        else:
            out[name] = tensor
    return out


def _separate(call: Call, units: Units) -> bool:
    """Are two halves computed as if each were alone? Then the axis is a batch (or time does not matter at all)."""
    import torch

    mirrored = {n: t.flip(units.axes[n]) if n in units.axes else t for n, t in call.tensors.items()}
    if not _runs(call, units, 2 * units.unit):
        return False
    both = call(_resized(call, units, 2 * units.unit))
    for whole, one, two in zip(both, call(call.tensors), call(mirrored), strict=True):
        axis = next((a for a in range(whole.dim()) if whole.shape[a] != one.shape[a]), None)
        if axis is None:
            return False
        pair = torch.cat([one, two], axis)
        if pair.shape != whole.shape or not _close(_array(whole), _array(pair)):
            return False
    return True


def _batched(call: Call, units: Units) -> tuple[Call, Units] | None:
    """Three streams for the example's one, if the module computes each as if it were alone."""
    import torch

    axes = {n: 1 if units.axes.get(n) == 0 else 0 for n, t in call.tensors.items() if t.dim()}
    if not axes or any(call.tensors[n].dim() <= a or call.tensors[n].shape[a] != 1 for n, a in axes.items()):
        return None
    rows = [call.tensors, *(dict(call.tensors) for _ in range(2))]
    for name, axis in units.axes.items():
        tensor = call.tensors[name]
        rows[1] = {**rows[1], name: tensor.flip(axis)}
        rows[2] = {**rows[2], name: -tensor if tensor.is_floating_point() else tensor}
    wide = {n: torch.cat([r[n] for r in rows], axes[n]) if n in axes else t for n, t in call.tensors.items()}
    try:
        whole, alone = call(wide), [call(r) for r in rows]
    except Exception:  # a module may raise anything at a size it does not take
        return None
    for out, *parts in zip(whole, *alone, strict=True):
        along = next((a for a in range(out.dim()) if out.shape[a] != parts[0].shape[a]), None)
        joined = None if along is None else torch.cat(parts, along)
        if joined is None or joined.shape != out.shape or not _close(_array(out), _array(joined)):
            return None
    return replace(call, tensors=wide), replace(units, batch=axes)


def _shown(call: Call, axes: Axes) -> str:
    return ", ".join(f"axis {a} of {n}, size {call.tensors[n].shape[a]}" for n, a in axes.items())


# ---- exporting


def _export(call: Call, units: Units, symbol: str) -> ir.Model:
    """With the batch free where that can be had."""
    if (wide := _batched(call, units)) is not None:
        try:
            return _exported(*wide, symbol)
        except InvalidModel:  # something of the example's batch is baked in
            pass
    return _exported(call, units, symbol)


def _exported(call: Call, units: Units, symbol: str) -> ir.Model:
    """The first export that is right at other lengths too."""
    lengths = _lengths(call, units)
    reasons = []
    exporters: dict[str, Callable[[Call, Units, str], ir.Model]] = {"dynamo": _dynamo, "legacy": _legacy}
    for name, exporter in exporters.items():
        try:
            model = _clean(exporter(call, units, symbol))
            _check_dims(model, units, symbol)
            _check_equal(model, call, units, lengths)
            return model
        except Exception as error:  # an exporter may raise anything; the next one gets its chance
            reasons.append(f"{name}: {_short(error)}")
    raise InvalidModel(
        f"torch could not export the module with {_shown(call, units.axes)} as a dynamic time axis "
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
    _name_by_module(model)
    for value in model.graph.initializers.values():  # they still are the module's own weights, which may go on changing
        if value.const_value is not None:
            value.const_value = ir.Tensor(np.array(value.const_value.numpy()), name=value.name)
    return model


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


def _name_by_module(model: ir.Model) -> None:
    """Nodes after the submodule they come from: 'encoder.layers.0/Conv'."""
    taken: dict[str, int] = {}
    for node in model.graph:
        scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
        path = scopes[-2] if len(scopes) > 1 else ""
        name = f"{path}/{node.op_type}" if path else node.op_type
        taken[name] = count = taken.get(name, -1) + 1
        node.name = f"{name}_{count}" if count else name


def _clean(model: ir.Model) -> ir.Model:
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
        feeds = _resized(call, units, length)
        if negative and units.batch:  # another number of streams
            feeds = {n: t.narrow(units.batch[n], 0, 2) if n in units.batch else t for n, t in feeds.items()}
        if negative:
            feeds = {n: -t if t.is_floating_point() else t for n, t in feeds.items()}
        wanted = [_array(t) for t in call(feeds)]
        got = session.run(None, {n: _array(t) for n, t in feeds.items()})
        for name, ours, theirs in zip([v.name for v in model.graph.outputs], got, wanted, strict=True):
            if ours.shape != theirs.shape or not _close(ours, theirs):
                raise InvalidModel(
                    f"output '{name}' is not the module's at length {length}: something of the example is baked in, "
                    "or the module is random"
                )


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    return np.asarray(tensor.detach().cpu().numpy())


def _close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if a.dtype.kind not in "fc":
        return bool(np.array_equal(a, b))
    finite = np.abs(b[np.isfinite(b)])
    return bool(
        np.allclose(a, b, rtol=0, atol=CLOSE.get(str(b.dtype), 0) * (finite.max(initial=0) or 1), equal_nan=True)
    )


# ---- manners


@contextlib.contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """Eval mode, and afterwards every submodule in the mode it was in."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No chatter of the exporters on the user's terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _short(error: BaseException) -> str:
    """The first line of the root cause, without paths."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = str(error).strip().partition("\n")[0]
    line = re.sub(r"(?:/[\w.+-]+){2,}", "...", line)
    return f"{type(error).__name__}: {line[:160]}" if line else type(error).__name__
