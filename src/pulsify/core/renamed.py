"""`Stream.report` was the result of the check, which is `Stream.verification` now; `report` is a method."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, ParamSpec, TypeVar, cast

from pulsify.core.report import Report

P = ParamSpec("P")
R = TypeVar("R")
OF_A_REPORT = frozenset(name for name in {*dir(Report), *Report.__dataclass_fields__} if not name.startswith("_"))


class _Bound:
    """The method, on one stream; what used to be read off the value is read, with a warning."""

    def __init__(self, method: Callable[..., Any], stream: Any) -> None:
        self._method, self._stream = method, stream
        update_wrapper(cast(Any, self), method.__get__(stream))

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._method(self._stream, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name not in OF_A_REPORT:
            raise AttributeError(f"Stream.report is a method and has no attribute {name!r}")
        return getattr(self._value(), name)

    def __bool__(self) -> bool:
        return self._value() is not None

    def __str__(self) -> str:
        return str(self._value())

    def _value(self) -> Report | None:
        warnings.warn(
            "Stream.report is a method that writes a page; the result of the check is Stream.verification",
            DeprecationWarning, stacklevel=3,
        )  # fmt: skip
        return cast("Report | None", self._stream.verification)


class _Method:
    """A method whose name used to be that of a Report."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        update_wrapper(cast(Any, self), method)

    def __get__(self, stream: Any, owner: type) -> Any:
        return self._method if stream is None else _Bound(self._method, stream)


def was_a_report(method: Callable[P, R]) -> Callable[P, R]:
    """Reads of the old attribute work as before, with a DeprecationWarning; type checkers see the method alone."""
    return cast("Callable[P, R]", _Method(method))
