"""A choice between two lines by a third that is the lesser, or the larger, of the two."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

from pulsify.analysis.proof.numbers import follower
from pulsify.analysis.proof.values import known_at
from pulsify.analysis.values.choices import as_extreme
from tests.models import model, node
from tests.unit.build import asked

COMPARED = {"Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal}


@pytest.mark.parametrize("op", sorted(COMPARED))
def test_what_is_said_is_so_and_what_could_be_is_said(op: str) -> None:
    """Where(i op c, a - 2 i, i + b): all small numbers."""
    i, said = np.arange(-40, 40), set[str | None]()
    for c, a, b in itertools.product((-1, 0, 2), range(-3, 4), (-1, 0, 1)):
        nodes = [
            node("Shape", "x", "t", start=1, end=2),
            node("Squeeze", "t", "n"),
            node("Range", "zero n one", "i"),
            node(op, "i c", "is"),
            node("Mul", "i two", "twice"),
            node("Sub", "a twice", "first"),
            node("Add", "i b", "second"),
            node("Where", "is first second", "y"),
            node("Relu", "x", "z"),
        ]
        numbers = {"zero": 0, "one": 1, "two": 2, "c": c, "a": a, "b": b}
        given = {n: np.array(v) for n, v in numbers.items()}
        ask = asked(model(nodes, {"x": [1, "T"]}, ["y", "z"], given, dtypes={"y": np.int64}), proof="sampled")
        found = as_extreme(follower(ask), ask.model.producers["y"])
        first, second = a - 2 * i, i + b
        made = np.where(COMPARED[op](i, c), first, second)
        is_ = {"least": np.minimum(first, second), "largest": np.maximum(first, second)}
        assert (found is None) == (not any(np.array_equal(made, v) for v in is_.values()))
        assert found is None or np.array_equal(made, is_[found])
        said.add(found)
    assert said >= {None, "largest" if op.startswith("Less") else "least"}


@pytest.mark.parametrize("inner", ["Min", "Max"])
@pytest.mark.parametrize("op", ["Less", "GreaterOrEqual"])
@pytest.mark.parametrize("at", [1, 2])
def test_a_choice_between_a_line_and_the_lesser_or_the_larger_of_two(op: str, inner: str, at: int) -> None:
    """Where(i op 0, a - i, Min(i, d + grown * n - i)), and the other way round: what is said is so at every length."""
    said = set[str | None]()
    for a, d, grown in itertools.product((-1, 0, 3), (-3, -1, 0, 2), (-2, 0, 2)):
        nodes = [
            node("Shape", "x", "t", start=1, end=2),
            node("Squeeze", "t", "n"),
            node("Range", "low n one", "i"),
            node(op, "i zero", "is"),
            node("Sub", "a i", "line"),
            node("Mul", "n grown", "more"),
            node("Add", "more d", "end"),
            node("Sub", "end i", "far"),
            node(inner, "i far", "two"),
            node("Where", "is two line" if at == 1 else "is line two", "y"),
            node("Shape", "y", "s"),
            node("Relu", "x", "z"),
        ]
        numbers = {"low": -9, "zero": 0, "one": 1, "a": a, "d": d, "grown": grown}
        given = {n: np.array(v) for n, v in numbers.items()}
        ask = asked(model(nodes, {"x": [1, "T"]}, ["s", "z"], given, dtypes={"s": np.int64}), proof="sampled")
        found = as_extreme(follower(ask), ask.model.producers["y"])
        said.add(found)
        for n in range(1, 30) if found else ():
            i = np.arange(-40, 40)
            line, two = a - i, (np.minimum if inner == "Min" else np.maximum)(i, d + grown * n - i)
            is_ = COMPARED[op](i, 0)
            made = np.where(is_, two, line) if at == 1 else np.where(is_, line, two)
            assert np.array_equal(made, (np.minimum if found == "least" else np.maximum)(line, two)), (found, a, d, n)
    rises = (op == "Less") == (at == 2)  # the line is taken below zero, where it is the larger one
    assert said == ({None, "largest" if rises else "least"} if rises == (inner == "Min") else {None})


def test_of_what_is_true_or_false_nothing_is_chosen_by_size() -> None:
    """Where(i < 0, -1 - i, i) is the larger of the two; as booleans it is not: at -1 it is false, and -1 is true."""
    nodes = [
        node("Shape", "x", "t", start=1, end=2),
        node("Squeeze", "t", "n"),
        node("Range", "low n one", "i"),
        node("Less", "i zero", "is"),
        node("Sub", "low i", "first"),
        node("Cast", "first", "first_is", to=onnx.TensorProto.BOOL),
        node("Cast", "i", "second_is", to=onnx.TensorProto.BOOL),
        node("Where", "is first_is second_is", "y"),
        node("Relu", "x", "z"),
    ]
    numbers = {"low": np.array(-1), "zero": np.array(0), "one": np.array(1)}
    ask = asked(model(nodes, {"x": [1, "T"]}, ["y", "z"], numbers, dtypes={"y": np.bool_}), proof="sampled")
    truth = known_at(ask, "y", 9).array
    assert not np.array_equal(truth, known_at(ask, "first_is", 9).array | known_at(ask, "second_is", 9).array)
    assert as_extreme(follower(ask), ask.model.producers["y"]) is None
