"""What leaves the public API."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest

from pulsify.core.boundary import converted, foreign, processing, public
from pulsify.core.errors import FileFailed, InternalError, InvalidArgument, InvalidModel

NODE: Any = SimpleNamespace(name="h", op="Conv")


@public
def failing(error: BaseException) -> None:
    raise error


def test_a_surprise_is_an_internal_error_with_its_cause() -> None:
    error = KeyError("x")
    with pytest.raises(InternalError, match="this is a bug in pulsify: KeyError: 'x'") as caught:
        failing(error)
    assert caught.value.__cause__ is error and not caught.value.node


@pytest.mark.parametrize(
    "error",
    [InvalidArgument("x"), KeyboardInterrupt(), SystemExit(1), MemoryError(), UserWarning("x"), GeneratorExit()],
)
def test_others_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        failing(error)
    assert caught.value is error and caught.value.__cause__ is None


def test_what_the_system_says_stays_what_it_is() -> None:
    with pytest.raises(OSError, match=r"a\.onnx: No space left") as caught:
        failing(OSError(errno.ENOSPC, "No space left on device", "a.onnx"))
    error = caught.value
    assert isinstance(error, FileFailed)
    assert (error.errno, error.strerror, error.filename) == (errno.ENOSPC, "No space left on device", "a.onnx")
    with pytest.raises(InternalError):
        failing(OSError("of no kind"))


def test_what_onnx_runtime_does_not_run_is_said_to_be_that() -> None:
    with pytest.raises(InvalidModel, match=r"ONNX Runtime does not run the model.*a bug in pulsify"):
        public(lambda: ort.InferenceSession(b"no model"))()


def test_the_innermost_node_counts() -> None:
    def work() -> None:
        with processing(SimpleNamespace(name="outer", op="If")):  # type: ignore[arg-type]
            try:
                with processing(NODE):
                    raise IndexError
            except IndexError as error:
                raise RuntimeError("a pass failed") from error

    with pytest.raises(InternalError, match="at If node 'outer'"):
        public(work)()

    def plain() -> None:
        try:
            with processing(NODE):
                raise IndexError
        except IndexError as error:
            raise RuntimeError("a pass failed") from error

    with pytest.raises(InternalError, match="at Conv node 'h': RuntimeError: a pass failed"):
        public(plain)()


def test_refusals_are_not_touched_by_the_node() -> None:
    with pytest.raises(InvalidArgument) as caught, processing(NODE):
        raise InvalidArgument("x")
    assert not hasattr(caught.value, "_pulsify_node")


def test_foreign_errors_pass_with_a_note() -> None:
    @public
    def work() -> None:
        with foreign("the rule of 'a::B'"):
            raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        work()
    assert caught.value.__notes__ == ["raised by the rule of 'a::B', which is not part of pulsify"]


def test_wrong_calls_are_pythons() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        failing()  # type: ignore[call-arg]

    def inner() -> None:
        failing()  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="missing"):
        inner()
    with pytest.raises(InternalError, match="TypeError"):
        public(lambda: len(7))()  # type: ignore[arg-type]


def test_a_wrong_argument_is_the_callers() -> None:
    @public
    def largest(values: Sequence[int], most: float | None = None) -> float:
        return min(max(values), most or 10)

    assert largest([1, 2]) == 2
    for wrong in (7, ["a", 1], None):
        with pytest.raises(InvalidArgument, match=r"expected Sequence\[int\]"):
            largest(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"most='x': expected float \| None"):
        largest([1], most="x")  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="empty"):
        largest([])


def test_a_cycle_of_causes_ends() -> None:
    one, two = KeyError("1"), KeyError("2")
    one.__cause__, two.__cause__ = two, one
    assert isinstance(converted(one), InternalError)
