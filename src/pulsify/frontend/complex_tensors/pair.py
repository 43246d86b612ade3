"""`ComplexPair`: answers as a complex tensor does, and holds two real ones.

It is a `torch.Tensor` by class only, so `isinstance` holds and every function and method of torch comes to
`__torch_function__`, which looks its rule up by name. A rule computes with the parts, so an exporter that records
operators sees real ones only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch

from pulsify.frontend.complex_tensors.rewrites import with_item
from pulsify.frontend.complex_tensors.sites import user_site

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}  # name of a torch function -> what it does with pairs
REAL_OF = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
COMPLEX_OF = {real: whole for whole, real in REAL_OF.items()}
DUNDERS = {  # operators by the function they are
    "__truediv__": "div", "true_divide": "div", "divide": "div", "__matmul__": "matmul", "__rdiv__": "__rtruediv__",
    "subtract": "sub", "multiply": "mul", "absolute": "abs", "negative": "neg", "not_equal": "ne", "arg": "angle",
    "concat": "cat", "concatenate": "cat", "conj_physical": "conj",
}  # fmt: skip
OPERATORS = ("add", "sub", "mul", "div", "pow", "eq", "ne", "abs", "neg", "pos", "matmul")


class Uncovered(NotImplementedError):
    """A function of torch that has no rule for complex tensors, with the user's line."""


class ComplexPair(torch.Tensor):  # type: ignore[misc]
    """re + i·im.

    view_of: the pair and the index that this one was taken at: what is written into it is written there too.
    is_owned: the parts are nobody else's, so they can be written into. is_real: im is known to be zero.
    """

    re: Any
    im: Any
    view_of: tuple[ComplexPair, Any] | None
    is_owned: bool
    is_real: bool

    @staticmethod
    def __new__(cls, re: Any, im: Any, view_of: tuple[ComplexPair, Any] | None = None) -> ComplexPair:
        whole = torch.Tensor._make_wrapper_subclass(cls, (0,), dtype=COMPLEX_OF.get(re.dtype, torch.complex64))
        whole.re, whole.im, whole.view_of, whole.is_owned, whole.is_real = re, im, view_of, False, False
        return whole

    @property
    def real(self) -> Any:
        return self.re

    @real.setter
    def real(self, value: Any) -> None:
        assign(self, ComplexPair(torch.zeros_like(self.re) + value, self.im))

    @property
    def imag(self) -> Any:
        return self.im

    @imag.setter
    def imag(self, value: Any) -> None:
        assign(self, ComplexPair(self.re, torch.zeros_like(self.im) + value))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return apply(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise uncovered(str(func))


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def apply(func: Any, args: Any, kwargs: Any) -> Any:
    """The rule of a function, or of the one it does in place."""
    name = name_of(func)
    if kwargs.get("out") is not None:
        raise uncovered(f"{name}(out=)")
    kwargs = {k: v for k, v in kwargs.items() if k != "out"}
    if (direct := RULES.get(name)) is not None:
        return direct(func, *args, **kwargs)
    base = _without_in_place(name)
    if base is not None and (pure := RULES.get(base)) is not None:
        return assign(args[0], pure(getattr(torch, base, func), *args, **kwargs))
    raise uncovered(name)


def name_of(func: Any) -> str:
    """'abs', '__getitem__', 'real.get', ...: without the module or class it is taken from."""
    name = str(getattr(func, "__name__", func))
    if name in ("__get__", "__set__"):
        return f"{func.__self__.__name__}.{name.strip('_')}"
    name = DUNDERS.get(name, name)
    bare = name.strip("_")
    return bare if name.startswith("__") and bare in OPERATORS else name


def _without_in_place(name: str) -> str | None:
    if name.startswith("__i") and (base := name[3:].rstrip("_")) in ("add", "sub", "mul", "div", "truediv", "pow"):
        return base.removeprefix("true")
    return DUNDERS.get(name[:-1], name[:-1]) if name.endswith("_") and not name.startswith("__") else None


def uncovered(what: str) -> Uncovered:
    site = user_site()
    where = "" if site is None else f" at {site}"
    return Uncovered(
        f"{what} of a complex tensor{where} is not supported; compute it from .real and .imag (or .abs() and .angle())"
    )


# ---- values


def parts(value: Any) -> tuple[Any, Any]:
    """Real and imaginary part; the latter is None for what is real."""
    if isinstance(value, ComplexPair):
        return value.re, value.im
    if isinstance(value, torch.Tensor) and value.dtype in REAL_OF:
        value = constant(value)
        return value.re, value.im
    return (value.real, value.imag) if isinstance(value, complex) else (value, None)


def is_complex(value: Any) -> bool:
    return isinstance(value, (ComplexPair, complex)) or (isinstance(value, torch.Tensor) and value.dtype in REAL_OF)


def both(value: Any) -> tuple[Any, Any]:
    """Real and imaginary part, the latter zeros for what is real."""
    re, im = parts(value)
    if im is None:
        im = torch.zeros_like(re) if isinstance(re, torch.Tensor) else 0.0
    return re, im


def pair(value: Any, like: Any = None) -> ComplexPair:
    """Any value as a pair; numbers become tensors of the kind of `like`."""
    re, im = both(value)
    if not isinstance(re, torch.Tensor):
        kind = {} if like is None else {"dtype": parts(like)[0].dtype}
        re, im = torch.tensor(float(re), **kind), torch.tensor(float(im), **kind)
    elif not re.is_floating_point():
        re, im = re.to(torch.get_default_dtype()), im.to(torch.get_default_dtype())
    return ComplexPair(re, im)


def constant(value: Any) -> ComplexPair:
    """A complex tensor that is none of the trace's (a parameter, a buffer), as constants of it."""
    with untraced():
        whole = value.detach().resolve_conj()
        return ComplexPair(whole.real.clone(), whole.imag.clone())


@contextmanager
def untraced() -> Any:
    """What is computed here is not recorded."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        torch._C._set_tracing_state(state)


def assign(target: Any, value: Any) -> Any:
    """Write into a pair, and into the one it is a part of."""
    if not isinstance(target, ComplexPair):
        raise uncovered("writing a complex value into a real tensor")
    target.re, target.im = both(value)
    target.is_owned = target.is_real = False
    if target.view_of is not None:
        parent, index = target.view_of
        write(parent, index, target)
    return target


def write(target: Any, index: Any, value: Any) -> None:
    """`target[index] = value`."""
    if not isinstance(target, ComplexPair):
        raise uncovered("writing a complex value into a real tensor")
    target.is_real = False
    re, im = parts(value)
    whole = with_item(target.re, index, re), with_item(target.im, index, 0.0 if im is None else im)
    if whole[0] is not None and whole[1] is not None:
        target.re, target.im, target.is_owned = *whole, True
    else:
        if not target.is_owned:
            target.re, target.im, target.is_owned = target.re.clone(), target.im.clone(), True
        target.re[index] = re
        target.im[index] = 0.0 if im is None else im
    if target.view_of is not None:
        parent, place = target.view_of
        write(parent, place, target)
