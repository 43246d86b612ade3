"""What follows from the number of streams: it grows with the batch, or is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.analysis.options import Options
from pulsify.analysis.proof.batches import by_batch, check_batches
from pulsify.analysis.questions import Questions
from pulsify.core.errors import NotStreamable
from tests.models import Array, model, node
from tests.unit.convert.contexts import opened

GIVEN: dict[str, Array] = {
    "zero": np.array(0), "one": np.array(1), "two": np.array(2), "three": np.array(3), "z1": np.array([0]),
    "t1": np.array([3]), "row": np.array([1]), "five": np.array(5),
}  # fmt: skip
SIZE = [node("Shape", "x", "dims"), node("Gather", "dims zero", "b", axis=0)]


def asked(*nodes: onnx.NodeProto, batch: Any = "B", out: str = "y") -> Questions:
    used = {k: v for k, v in GIVEN.items() if any(k in n.input for n in nodes)}
    return opened(model(list(nodes), {"x": [batch, 2, "T"]}, [out], used)).ask


def beside(*nodes: onnx.NodeProto, batch: Any = "B") -> Questions:
    """v is worked out from the batch b and added to the stream."""
    return asked(*SIZE, *nodes, node("Cast", "v", "f", to=1), node("Add", "x f", "y"), batch=batch)


def test_a_number_made_of_the_batch_follows_from_it() -> None:
    ask = beside(node("Mul", "b two", "v"))
    assert by_batch(ask, "b") and by_batch(ask, "v")
    assert not by_batch(ask, "two")


def test_with_a_fixed_batch_nothing_does() -> None:
    ask = beside(node("Mul", "b two", "v"), batch=2)
    assert not by_batch(ask, "v")
    check_batches(ask, list(ask.model.nodes))
    assert not ask.ledger.sampled


def test_what_grows_with_the_batch_is_fine() -> None:
    ask = beside(node("Mul", "b two", "v"))
    check_batches(ask, list(ask.model.nodes))
    assert not ask.ledger.sampled


@pytest.mark.parametrize("op", [node("Mod", "b five", "m"), node("Min", "b five", "m")])
def test_what_changes_otherwise_is_refused_or_noted(op: onnx.NodeProto) -> None:
    """Read by an Unsqueeze, which is not computed anew in the stream as elementwise operators are."""
    nodes = (op, node("Unsqueeze", "m z1", "v"))
    ask = beside(*nodes)
    with pytest.raises(NotStreamable, match="how many streams there are") as caught:
        check_batches(ask, list(ask.model.nodes))
    assert 'set={"B": 1}' in caught.value.hint
    ask.options = Options(proof="sampled")
    check_batches(ask, list(ask.model.nodes))
    assert ask.ledger.sampled


def test_a_cut_of_the_batch_is_no_multiple_of_it() -> None:
    ask = asked(node("Slice", "x z1 t1 z1", "h"), node("Neg", "h", "y"))
    with pytest.raises(NotStreamable, match="how many streams there are") as caught:
        check_batches(ask, list(ask.model.nodes))
    assert caught.value.node == "h"


def test_a_squeeze_of_all_axes_would_take_the_axis_of_one_stream() -> None:
    ask = asked(node("Squeeze", "x", "y"))
    with pytest.raises(NotStreamable, match="an axis of one stream would go"):
        check_batches(ask, list(ask.model.nodes))
