"""The mode under which a module runs with pairs instead of complex tensors: it sees every function of torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from pulsify.frontend.complex_tensors import arithmetic, elementary, moving, recurrences, spectra
from pulsify.frontend.complex_tensors.pair import (
    REAL_OF,
    ComplexPair,
    apply,
    constant,
    is_complex,
    name_of,
    parts,
    rule,
    uncovered,
)
from pulsify.frontend.complex_tensors.rewrites import REWRITES, rewritten
from pulsify.frontend.complex_tensors.sites import Site, record, user_site

FAMILIES = (arithmetic, elementary, moving, recurrences, spectra)  # of rules and rewrites, which register themselves
ALWAYS = {"stft", "istft", "complex", "polar", "view_as_complex", "cfloat", "cdouble", "chalf"}  # of real tensors too
NOT_TRANSFORMS = {"fft_fftfreq", "fft_rfftfreq", "fft_fftshift", "fft_ifftshift"}
READS = {  # tensors as numbers of Python
    "__index__": "an index",
    "__int__": "an int",
    "__float__": "a float",
    "__bool__": "a condition",
    "item": "a number",
    "tolist": "numbers",
    "numpy": "an array",
    "__array__": "an array",
    "__len__": "a length",
}
HANDLED = {"has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"}
LISTS = {"__iter__": "a loop over frames", "unbind": "a list of frames", "split": "a list of frames"}
LISTS |= {"chunk": "a list of frames", "tensor_split": "a list of frames"}


class RealNumbers(TorchFunctionMode):  # type: ignore[misc]
    """Complex tensors become pairs; numbers that Python reads off tensors are recorded with their lines.

    functions: those that were called, by name, with the first line that did so. is_complex: was any of them complex?
    """

    def __init__(self) -> None:
        super().__init__()
        self.functions: dict[str, Site | None] = {}
        self.is_complex = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if name not in self.functions:
            self.functions[name] = user_site()
        if name in ALWAYS or (name.startswith("fft_") and name not in NOT_TRANSFORMS) or _any_complex(args, kwargs):
            self.is_complex = True
            return apply(func, args, kwargs)
        if (body := _body(func)) is not None and name not in REWRITES:
            with self:
                return body(*args, **kwargs)
        result = rewritten(name, func)(*args, **kwargs)
        if (purpose := READS.get(name)) is not None and not isinstance(result, torch.Tensor):
            record(purpose, result if isinstance(result, (int, float)) else float(np.abs(np.asarray(result)).sum()))
        elif isinstance(result, (list, tuple)) and name in LISTS:
            record(LISTS[name], len(result))
        elif isinstance(result, torch.Tensor) and result.dtype in REAL_OF and not isinstance(result, ComplexPair):
            if any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values())):
                raise uncovered(name)
            return constant(result)
        return result


@functools.cache
def _body(func: Any) -> Any:
    """A function of torch in Python, without the question whether a mode wants it: what it calls is seen as well."""
    if not isinstance(func, FunctionType) or not HANDLED.intersection(func.__code__.co_names):
        return None
    own = {name: (lambda *_: False) for name in HANDLED}
    copy = FunctionType(func.__code__, {**func.__globals__, **own}, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _any_complex(args: Any, kwargs: Any) -> bool:
    return any(
        is_complex(value)
        or (isinstance(value, torch.dtype) and value in REAL_OF)
        or (isinstance(value, (list, tuple)) and any(map(is_complex, value)))
        for value in (*args, *kwargs.values())
    )


@contextmanager
def real_numbers() -> Iterator[RealNumbers]:
    """Complex tensors as pairs; and math.ceil, math.floor, round of a size stay tensors."""
    rounded = {n: f for n, f in ROUNDED.items() if not hasattr(torch.Tensor, n)}
    for name, function in rounded.items():
        setattr(torch.Tensor, name, function)
    try:
        with RealNumbers() as mode:
            yield mode
    finally:
        for name in rounded:
            delattr(torch.Tensor, name)


def _rounding(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(x).to(torch.int64) if x.is_floating_point() else x


ROUNDED = {
    "__ceil__": _rounding(torch.ceil),
    "__floor__": _rounding(torch.floor),
    "__trunc__": _rounding(torch.trunc),
    "__round__": _rounding(torch.round),  # halves to even, as Python's
}


# ---- tensors from nothing


@rule("ones_like", "full_like", "new_ones", "new_full")
def _filled_like(func: Any, x: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
    if dtype is not None and dtype not in REAL_OF:
        return func(parts(x)[0], *args, dtype=dtype, **kwargs)
    if dtype is not None:
        kwargs["dtype"] = REAL_OF[dtype]
    if (value := kwargs.pop("fill_value", None)) is not None:
        args = (*args, value)
    size, fill = (args[:-1], args[-1]) if "full" in func.__name__ else (args, 1.0)
    zeros = torch.zeros_like if "like" in func.__name__ else torch.Tensor.new_zeros
    base = zeros(parts(x)[0], *size, **kwargs)
    re, im = parts(fill)
    return ComplexPair(base + re, base + (0.0 if im is None else im))


@rule("zeros", "ones", "empty", "full", "eye", "arange", "linspace")
def _factory(func: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
    real = REAL_OF.get(dtype, dtype)
    if func.__name__ == "full":
        fill = kwargs.pop("fill_value", args[-1])
        re, im = parts(fill)
        base = torch.zeros(args[0] if args else kwargs.pop("size"), dtype=real or torch.get_default_dtype(), **kwargs)
        return ComplexPair(base + re, base + (0.0 if im is None else im))
    whole = func(*args, dtype=real, **kwargs)
    return ComplexPair(whole, torch.zeros_like(whole))


@rule("tensor", "as_tensor", "scalar_tensor", "asarray")
def _tensor(func: Any, data: Any, **kwargs: Any) -> Any:
    if isinstance(data, ComplexPair):
        return data
    if isinstance(data, torch.Tensor):
        return torch.Tensor.to(data, kwargs["dtype"]) if "dtype" in kwargs else data
    return constant(func(data, **kwargs))
