"""The boundary of the public API: whatever leaves it is a PulsifyError.

    @public                                     a function or method of the API
    except BaseException as error:              the same in its body, where no call may stand between a result and
        if (outward := converted(error)):       its caller (docs/design/runtime.md)
            raise outward from error
        raise
    with processing(node):                      wherever nodes are processed: names the node in an unforeseen error
    with foreign("the rule of 'acme::Boost'"):  code that is not pulsify's own: its exceptions pass through unchanged

An unforeseen exception of a call with an argument of the wrong type is InvalidArgument (core/annotated.py).
ONNX Runtime's own errors are InvalidModel, unless whoever calls it knows better. KeyboardInterrupt, SystemExit,
MemoryError and warnings that are raised as errors pass through.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import ParamSpec, Protocol, TypeVar

from pulsify.core.annotated import misfit
from pulsify.core.errors import FileFailed, InternalError, InvalidArgument, InvalidModel, PulsifyError

P = ParamSpec("P")
T = TypeVar("T")
FOREIGN, NODE = "_pulsify_foreign", "_pulsify_node"  # attributes of exceptions on their way to the boundary
NULL_IN_PATH = ("embedded null byte", "embedded null character")  # what Python says of one
PACKAGES = ("pulsify", "onnx", "onnx-ir", "onnxruntime", "numpy", "torch")


def public(function: Callable[P, T]) -> Callable[P, T]:
    """A function of the public API."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            trace = error.__traceback__
            if trace is not None and trace.tb_next is None and isinstance(error, TypeError):
                raise  # Python's own complaint about the call
            outward = converted(error)
            if isinstance(outward, InternalError) and (wrong := misfit(function, args, kwargs)):
                outward = InvalidArgument(wrong)
            if outward is not None:
                raise outward from error
            raise

    return guarded


def converted(error: BaseException) -> PulsifyError | None:
    """What stands for an exception outside of pulsify; None if it passes through as it is."""
    if type(error).__name__ == "PassError" and error.__cause__ is not None:  # onnx_ir's, around what failed in a pass
        cause = error.__cause__
        if (outward := cause if isinstance(cause, PulsifyError) else converted(cause)) is not None:
            return outward
    if not isinstance(error, Exception) or isinstance(error, (PulsifyError, MemoryError, Warning)):
        return None
    if getattr(error, FOREIGN, False) or getattr(error.__cause__, FOREIGN, False):
        return None
    if isinstance(error, OSError) and error.errno is not None:
        return FileFailed(error.errno, error.strerror, error.filename)
    if isinstance(error, ValueError) and str(error) in NULL_IN_PATH:
        return InvalidArgument("a path has a null byte in it, which no file system takes")
    if type(error).__module__.startswith("onnxruntime"):
        from pulsify.core.runner import error_text

        return InvalidModel(
            f"ONNX Runtime does not run the model ({error_text(error)}); if it runs the batch model on its own, "
            "this is a bug in pulsify: report it with the model"
        )
    name, op = node_of(error)
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return InternalError(text[:MOST], node=name, op=op, versions=_versions())


def node_of(error: BaseException) -> tuple[str, str]:
    """Name and operator of the node that was being processed when it was raised; empty if that is not known."""
    return next((node for each in _chain(error) if (node := getattr(each, NODE, None)) is not None), ("", ""))


class Named(Protocol):
    """A node of any of the graphs here."""

    @property
    def name(self) -> str | None: ...


class processing:
    """Work on one node: an unforeseen error in it is reported with the node's name."""

    __slots__ = ("node",)

    def __init__(self, node: Named) -> None:
        self.node = node

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, PulsifyError) and not hasattr(error, NODE):
            op = getattr(self.node, "op", None) or getattr(self.node, "op_type", "")
            with suppress(AttributeError, TypeError):  # an exception that takes no attributes
                setattr(error, NODE, (self.node.name or "", op))


class foreign:
    """Code that a caller brought along: what it raises is the caller's, with a note on where it was raised."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, PulsifyError):
            with suppress(AttributeError, TypeError):
                setattr(error, FOREIGN, True)
            error.add_note(f"raised by {self.what}, which is not part of pulsify")


MOST = 400  # characters of an unforeseen error's text that are repeated; all of it is its cause


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and those it came from."""
    out: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in out:
        out.append(current)
        current = current.__cause__ or current.__context__
    return out


def _versions() -> str:
    listed = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            listed.append(f"{package} {version(package)}")
    return ", ".join(listed)
