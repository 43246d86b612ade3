"""A torch module with its example inputs: calling it at other lengths, quietly and in eval mode."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pulsify.core.errors import InvalidArgument

BATCH = "B"  # what a batch that is free is called (and "N" where that is taken)
SHOW_EXAMPLE = (
    "pulsify.stream(module, example=torch.randn(1, 80, 200)), or a tuple of tensors, or a dict by argument name"
)
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


# ---- the example


def called(module: Any, example: Any) -> Call:
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


def check_runs(call: Call) -> None:
    try:
        found = call(call.tensors)
    except Exception as error:
        shapes = {n: list(t.shape) for n, t in call.tensors.items()}
        raise InvalidArgument(
            f"the module does not run on the example {shapes} ({short(error)}); pass example inputs that it takes"
        ) from error
    if not found:
        raise InvalidArgument("the module returns no tensor; it must return a tensor, or a tuple or dict of tensors")


def as_array(tensor: Any) -> np.ndarray[Any, Any]:
    return np.asarray(tensor.detach().cpu().numpy())


def close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if a.dtype.kind not in "fc":
        return bool(np.array_equal(a, b))
    finite = np.abs(b[np.isfinite(b)])
    return bool(
        np.allclose(a, b, rtol=0, atol=CLOSE.get(str(b.dtype), 0) * (finite.max(initial=0) or 1), equal_nan=True)
    )


# ---- manners


@contextlib.contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Eval mode, and afterwards every submodule in the mode it was in."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


@contextlib.contextmanager
def quiet() -> Iterator[None]:
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


def short(error: BaseException) -> str:
    """The first line of the root cause, without paths."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = str(error).strip().partition("\n")[0]
    line = re.sub(r"(?:/[\w.+-]+){2,}", "...", line)
    return f"{type(error).__name__}: {line[:160]}" if line else type(error).__name__
