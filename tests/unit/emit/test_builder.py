"""Nodes and constants being collected: nothing is said twice, and no name is given twice."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.core.constants import CHOSEN_AS
from pulsify.emit.builder import Builder, choose, read_by
from tests.models import Array
from tests.unit.convert.contexts import Steps, emitting, wire_model

FLOAT, INT = ir.DataType.FLOAT, ir.DataType.INT64


def x(b: Builder) -> ir.Value:
    return b.input("x", FLOAT, ["B", 3])


def test_the_same_operator_on_the_same_inputs_is_one_node() -> None:
    b = Builder()
    v = x(b)
    assert b.op("Relu", v) is b.op("Relu", v)
    assert b.op("Transpose", v, perm=[1, 0]) is b.op("Transpose", v, perm=[1, 0])
    assert b.op("Transpose", v, perm=[1, 0]) is not b.op("Transpose", v, perm=[0, 1])
    assert [n.op_type for n in b.nodes] == ["Relu", "Transpose", "Transpose"]


def test_an_attribute_of_none_is_no_attribute() -> None:
    b = Builder()
    v = x(b)
    made = b.op("Flatten", v, axis=None)
    assert made is b.op("Flatten", v)
    assert not b.nodes[0].attributes


def test_equal_constants_are_one_unless_type_or_shape_differs() -> None:
    b = Builder()
    assert b.constant(np.array([1, 2])) is b.ints(1, 2)
    different = [np.array(1), np.array([1]), np.array(1, np.int32), np.array(1, np.float32)]
    assert len({b.constant(a) for a in different}) == len(different)
    scalar = b.constant(np.array(1))
    assert scalar.shape is not None and not len(scalar.shape), "a number stays one without an axis"


def test_constants_of_small_types_with_the_same_bits_are_not_one() -> None:
    b = Builder()
    types = [ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ]
    made = [b.constant(np.array([1, 2], np.uint8).view(t.numpy())) for t in types]
    assert [v.dtype for v in made] == types


def test_names_are_given_once() -> None:
    b = Builder()
    assert [b.unique("y"), b.unique("y"), b.unique("y")] == ["y", "y.2", "y.3"]
    given = [b.unique(n) for n in ("z.2", "z", "z", "z", "z.2", "z.3")]
    assert len(set(given)) == len(given), "somebody may be called so already"


def test_names_of_outputs_are_kept_for_them() -> None:
    b = Builder()
    b.reserve(["y"])
    assert b.op("Relu", x(b), name="y").name != "y"


def test_a_body_shares_constants_and_names_but_not_nodes() -> None:
    b = Builder()
    inner = b.inside()
    number = b.ints(7)
    assert inner.ints(7) is number
    inner.op("Relu", x(b), name="step")
    assert not b.nodes and b.unique("step") != "step"


def test_a_node_reads_what_its_bodies_capture() -> None:
    b = Builder()
    outer, own = x(b), ir.val("own", FLOAT, ir.Shape([3]))
    sum_ = ir.Node("", "Add", [own, outer])
    body = ir.Graph([own], list(sum_.outputs), nodes=[sum_], name="body")
    scan = ir.Node("", "Scan", [outer], [ir.AttrGraph("body", body)])
    assert read_by(scan) == [outer, outer]


@pytest.mark.parametrize("dtype", [*CHOSEN_AS, FLOAT, INT])
def test_a_choice_keeps_every_value_of_its_type(dtype: ir.DataType) -> None:
    ctx = emitting(wire_model())
    b = ctx.builder
    kind = dtype.numpy()
    if np.issubdtype(kind, np.integer):
        a: Array = np.array([np.iinfo(kind).min, np.iinfo(kind).max, 1], kind)
    else:
        a = np.array([0, 1, 1]).astype(kind)
    other = a[::-1].copy()
    picks = b.constant(np.array([True, False, True]))
    out = choose(b, picks, b.constant(a), b.constant(other), dtype)
    if dtype == ir.DataType.BFLOAT16:  # numpy's own check of it goes by float
        out = b.op("Cast", out, to=int(FLOAT))
        a, other = a.astype(np.float32), other.astype(np.float32)
    (made,) = Steps(ctx, {"out": out}).step({}).values()
    np.testing.assert_array_equal(made, np.where([True, False, True], a, other))
