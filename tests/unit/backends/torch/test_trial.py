"""A node that torch has no kernel for, with these types on this device, is found before it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulsify.backends.torch.source import function, source
from pulsify.backends.torch.table import Reason, op, written
from pulsify.backends.torch.tensors import Weights, to_array, to_wire
from pulsify.backends.torch.trial import Trial
from tests.unit.backends.torch.both import alike, same, small
from tests.unit.backends.torch.both import written as text_of
from tests.unit.graphs import run
from tests.unit.specs import a_stream


def boom(*_: Any, **__: Any) -> Any:
    raise RuntimeError("\"boom\" not implemented for 'Float'")


def test_what_torch_does_not_have_becomes_an_island(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch, "erf", boom)
    model, weights = small("Relu x > h; Erf h > e; Neg e > y", {"x": [3, 4]}), Weights("cpu")
    made = source(model, a_stream(), 1, "cpu", fault=Trial(weights).fault)
    (part,) = made.plan.islands
    assert [n.op_type for n in part.nodes] == ["Erf"] and "not implemented for" in made.text
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    (y,) = function(made, weights)(to_wire(x, "float32", "cpu"))
    same(to_array(y, None), run(model, {"x": x})["y"])


def test_other_troubles_with_zeros_say_nothing() -> None:
    """A division of integers by zero."""
    model = small("Div x z > y", {"x": [3], "z": [3]}, dtypes=dict.fromkeys("xzy", np.int32))
    assert not source(model, a_stream(), 1, "cpu", fault=Trial(Weights("cpu")).fault).islands


def test_the_same_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    calls: list[int] = []
    monkeypatch.setattr(torch, "relu", lambda x: calls.append(1) or x.clamp(min=0))
    trial = Trial(Weights("cpu"))
    for _ in range(3):
        source(small("Relu x > h; Relu h > y", {"x": [3, 4]}), a_stream(), 1, "cpu", fault=trial.fault)
    assert len(calls) == 1


def test_a_function_that_fails_leaves_its_node_to_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("Erf x > y", {"x": [3]})
    alike(model)
    monkeypatch.setitem(dict(op.table()) and op.entered, "Erf", lambda n: {}["nothing"])
    scope = text_of(small("Relu x > y", {"x": [3]})).scope
    found = written(next(iter(model.graph)), scope)
    assert isinstance(found, Reason) and "KeyError" in found.text
