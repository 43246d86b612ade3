"""Numbers that follow from the length, as the streaming graph works them out when the stream has ended."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from pulsify.core.errors import NotStreamable
from pulsify.plan.at_end import at_end, told
from tests.models import model, node
from tests.unit.convert.contexts import Steps, opened

SIZE = [node("Shape", "x", "dims"), node("Gather", "dims one", "t", axis=0)]


def number(*nodes: onnx.NodeProto, **given: np.ndarray) -> onnx.ModelProto:
    used = {n for k in nodes for n in k.input}
    kept = {n: v for n, v in {"one": np.array(1), "two": np.array(2), **given}.items() if n in used | {"one"}}
    return model([*SIZE, *nodes, node("Relu", "x", "y")], {"x": [1, "T", 2]}, ["y", "n"], kept)


@pytest.mark.parametrize(
    ("nodes", "value"),
    [
        ([node("Identity", "t", "n")], lambda t: t),
        ([node("Div", "t two", "n")], lambda t: t // 2),
        ([node("Cast", "t", "f", to=1), node("Sqrt", "f", "n")], np.sqrt),
        ([node("Cast", "t", "f", to=1), node("Reciprocal", "f", "n")], lambda t: 1 / t),
        ([node("Range", "zero t one", "p"), node("Cast", "p", "f", to=1), node("Mul", "f nought", "z"),
          node("Add", "z unit", "ones"), node("ReduceSum", "ones", "n", keepdims=0)], lambda t: t),
        ([node("Slice", "dims one two", "n")], lambda t: t),
    ],
)  # fmt: skip
def test_right_once_the_length_is_known(nodes: list[onnx.NodeProto], value: object) -> None:
    given = {"zero": np.array(0), "nought": np.array(0, np.float32), "unit": np.array(1, np.float32)}
    given |= {"one": np.array([1]), "two": np.array([2])} if nodes[0].op_type == "Slice" else {}
    proto = number(*nodes, **given)
    if nodes[0].op_type == "Slice":
        del proto.graph.node[1]
    for length in (1, 7, 30):
        ctx = opened(proto)
        found = at_end(ctx, "n")
        assert found.late and found.last_seen_by is None and not found.recipe.fixed
        made = Steps(ctx, {"n": found.recipe}).step({}, length)["n"]
        assert ctx.clock.absolute
        np.testing.assert_allclose(made.item(), value(length), rtol=1e-6)  # type: ignore[operator]


def test_a_number_of_frames_tells_its_length() -> None:
    ctx = opened(number(node("Div", "t two", "n")))
    length = told(ctx, "n")
    assert length is not None and [length.at(s) for s in (7, 8)] == [3, 4]
    assert told(opened(number(node("Cast", "t", "n", to=1))), "n") is None


def test_what_is_no_number_of_frames_is_refused() -> None:
    nodes = [node("Range", "zero t one", "p"), node("Cast", "p", "f", to=1), node("Sin", "f", "s"),
             node("ReduceSum", "s", "n", keepdims=0)]  # fmt: skip
    with pytest.raises(NotStreamable):
        at_end(opened(number(*nodes, zero=np.array(0))), "n")
