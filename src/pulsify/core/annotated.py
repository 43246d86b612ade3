"""Do the arguments of a call have the types it is annotated with? Asked after the call has failed, to say why."""

from __future__ import annotations

import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

LOOKED_AT = 64  # entries of a list or a mapping


def misfit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The first argument that is not what its annotation says, in words; empty if all are, or nothing can be said."""
    signature = inspect.signature(function)
    own = inspect.unwrap(function)  # a decorator of another module has other names
    for name, value in _named(signature, signature.bind(*args, **kwargs).arguments):
        annotation = own.__annotations__.get(name)
        try:
            hint = eval(annotation, getattr(own, "__globals__", {})) if isinstance(annotation, str) else annotation
        except Exception:  # a name that only type checkers import
            continue
        if annotation is not None and not fits(value, hint):
            shown = repr(value)
            return f"{name}={shown if len(shown) <= 80 else shown[:77] + '...'}: expected {annotation}"
    return ""


def fits(value: Any, hint: Any) -> bool:
    """Is it a value of this type, as far as that can be told?"""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in inner)
    if origin is typing.Literal:
        return isinstance(value, str) and value in inner
    if origin is not None:
        return not isinstance(origin, type) or (isinstance(value, origin) and _holds(value, inner))
    if hint is int:
        return hasattr(value, "__index__") and _is_number(value, operator.index)
    if hint is float:
        return hasattr(value, "__float__") and _is_number(value, float)
    if hint is None or hint is type(None):
        return value is None
    try:
        return not isinstance(hint, type) or isinstance(value, hint)
    except TypeError:  # a protocol that cannot be asked
        return True


def _holds(value: Any, inner: tuple[Any, ...]) -> bool:
    """Its first entries; those of an iterator are not taken from it."""
    if isinstance(value, Mapping) and len(inner) == 2:
        return all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in islice(value.items(), LOOKED_AT))
    if isinstance(value, Sequence) and len(inner) == 1:
        return all(fits(v, inner[0]) for v in islice(value, LOOKED_AT))
    return True


def _is_number(value: Any, convert: Callable[[Any], Any]) -> bool:
    try:
        convert(value)
    except (TypeError, ValueError):
        return False
    return True


def _named(signature: inspect.Signature, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each argument with the name of its parameter."""
    for name, value in arguments.items():
        kind = signature.parameters[name].kind
        several: Iterable[Any] = [value]
        if kind is inspect.Parameter.VAR_POSITIONAL:
            several = value
        elif kind is inspect.Parameter.VAR_KEYWORD:
            several = value.values()
        for each in several:
            yield name, each
