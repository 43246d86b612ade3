"""A torch module with its example inputs: calling it with other tensors in their place."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pulsify.core.arrays import is_dense
from pulsify.core.errors import InvalidArgument
from pulsify.frontend.torch_manners import short

BATCH = "B"  # what a batch that is free is called (and "N" where that is taken)
SHOW_EXAMPLE = (
    "pulsify.stream(module, example=torch.randn(1, 80, 200)), or a tuple of tensors, or a dict by argument name"
)
CLOSE = {"float16": 2e-2, "float32": 1e-3, "float64": 1e-6}  # of the output's scale

Axes = dict[str, int]  # input -> its time axis


@dataclass(frozen=True, eq=False)
class Call:
    """A module and what it is called with.

    tensors: by name, in the order of its arguments. layout: what becomes the arguments again if every tensor's name is
    replaced by a tensor: positional arguments, and arguments by name. outputs: how many tensors it returns. bind: the
    inputs of which the user said whether they are the stream's length (a name of its dimension, or None).
    """

    module: Any
    tensors: Mapping[str, Any]
    layout: tuple[tuple[Any, ...], dict[str, Any]]
    outputs: int = 1
    bind: Mapping[str, str | None] = field(default_factory=dict)

    def __call__(self, tensors: Mapping[str, Any]) -> list[Any]:
        """The module's output tensors, flat. Whatever the module raises is raised."""
        import torch

        copies = {n: t.detach().clone() for n, t in tensors.items()}  # a module may write into its inputs
        with torch.no_grad():
            return self.flat(copies)

    def flat(self, tensors: Mapping[str, Any]) -> list[Any]:
        args, kwargs = _filled(self.layout, tensors)
        return _leaves(self.module(*args, **kwargs))


@dataclass(frozen=True)
class Slot:
    """Where a tensor stands among the arguments."""

    name: str


def _filled(layout: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(layout, Slot):
        return tensors[layout.name]
    if isinstance(layout, dict):
        return {k: _filled(v, tensors) for k, v in layout.items()}
    if isinstance(layout, (tuple, list)):
        parts = [_filled(v, tensors) for v in layout]
        return type(layout)(*parts) if hasattr(layout, "_fields") else type(layout)(parts)
    return layout


def _leaves(result: Any) -> list[Any]:
    """All tensors of a result, in order."""
    import torch
    from torch.utils import _pytree

    out: list[Any] = []
    for leaf in _pytree.tree_leaves(result):
        if isinstance(leaf, torch.Tensor):
            out.append(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            out += [t for f in dataclasses.fields(leaf) for t in _leaves(getattr(leaf, f.name))]
    return out


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


# ---- the example


def called(module: Any, example: Any) -> Call:
    if example is None:
        raise InvalidArgument(f"a torch module needs example inputs: {SHOW_EXAMPLE}")
    by_name = isinstance(example, Mapping)
    several = isinstance(example, (tuple, list))
    inputs: dict[Any, Any] = dict(example) if by_name else dict(enumerate(example if several else (example,)))
    if not inputs:
        raise InvalidArgument(f"example is empty: {SHOW_EXAMPLE}")
    parameters = _parameters(module.forward)
    if by_name:
        free = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        unknown = [n for n in inputs if n not in parameters]
        if unknown and not free:
            raise InvalidArgument(
                f"example: forward has no argument {unknown}; its arguments are {list(parameters)} (for one that is a "
                "dict itself, pass a tuple that holds it)"
            )
        inputs = {n: inputs[n] for n in [*(n for n in parameters if n in inputs), *unknown]}
    else:
        inputs = dict(zip(_positional_names(parameters, len(inputs)), inputs.values(), strict=True))
    tensors: dict[str, Any] = {}
    layout = {n: _slots(n, value, tensors) for n, value in inputs.items()}
    if not tensors:
        kinds = ", ".join(f"{n!r} is {type(v).__name__}" for n, v in inputs.items())
        raise InvalidArgument(f"example: {kinds}, expected a tensor: {SHOW_EXAMPLE}")
    return Call(module, tensors, ((), layout) if by_name else (tuple(layout.values()), {}))


def _parameters(forward: Any) -> Mapping[str, inspect.Parameter]:
    """Of a module's forward; that of `torch.jit.trace` has no signature in Python."""
    try:
        return inspect.signature(forward).parameters
    except ValueError:
        own = [argument.name for argument in forward.schema.arguments[1:]]
        return {name: inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in own}


def _slots(name: str, value: Any, tensors: dict[str, Any]) -> Any:
    """An argument with a slot for every tensor in it; dicts, lists and tuples are looked into."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.is_complex():
            raise InvalidArgument(
                f"example: '{name}' is complex; a stream takes real numbers: pass torch.view_as_real({name}), and "
                "begin forward with torch.view_as_complex"
            )
        tensors[name] = value
        return Slot(name)
    if isinstance(value, Mapping):
        return {k: _slots(f"{name}_{k}", v, tensors) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_slots(f"{name}_{i}", v, tensors) for i, v in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if not isinstance(value, (int, float, bool, str, type(None), torch.dtype, torch.device)):
        raise InvalidArgument(f"example: {name!r} is {type(value).__name__}, expected a tensor: {SHOW_EXAMPLE}")
    return value


def _positional_names(parameters: Mapping[str, inspect.Parameter], count: int) -> list[str]:
    names: list[str] = []
    for name, p in parameters.items():
        if p.kind is p.VAR_POSITIONAL:
            names += [f"{name}{i}" for i in range(count - len(names))]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(name)
    if len(names) < count:
        raise InvalidArgument(f"example has {count} values, forward takes {len(names)}: {list(parameters)}")
    return names[:count]


def check_runs(call: Call) -> Call:
    """The same, with the number of its outputs known."""
    import torch

    if other := [name for name, tensor in call.tensors.items() if not is_dense(tensor)]:
        raise InvalidArgument(f"example: {other} must be dense tensors, not sparse, nested, quantised or meta tensors")
    try:
        found = call(call.tensors)
    except Exception as error:
        shapes = {n: list(t.shape) for n, t in call.tensors.items()}
        raise InvalidArgument(
            f"the module does not run on the example {shapes} ({short(error)}); pass example inputs that it takes"
        ) from error
    if not found:
        raise InvalidArgument("the module returns no tensor; it must return a tensor, or a tuple or dict of tensors")
    if any(t.is_complex() for t in found):
        raise InvalidArgument(
            "the module returns a complex tensor; a stream gives real numbers: return torch.view_as_real(...) of it"
        )
    if any(t.dtype == torch.bfloat16 for t in (*found, *call.tensors.values())):
        raise InvalidArgument("the module works in bfloat16, which numpy does not have; convert module.float()")
    return dataclasses.replace(call, outputs=len(found))


def as_array(tensor: Any) -> np.ndarray[Any, Any]:
    return np.asarray(tensor.detach().cpu().numpy())


def close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if a.dtype.kind not in "fc":
        return bool(np.array_equal(a, b))
    finite = np.abs(b[np.isfinite(b)])
    return bool(
        np.allclose(a, b, rtol=0, atol=CLOSE.get(str(b.dtype), 0) * (finite.max(initial=0) or 1), equal_nan=True)
    )
