"""Every operator that NumPy stands in for, against ONNX Runtime: all types, odd values, axes, missing inputs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from pulsify.core import by_numpy as under_test
from pulsify.core.by_numpy import OPERATORS, by_numpy
from pulsify.core.one_node import NoKernel, OneNode
from tests.models import Array

TYPES = (
    "float16",
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
)
INEXACT = ("Exp", "Log", "Sin", "Cos", "Tan", "Atan", "Pow")  # NumPy's last digits are its own


def values(dtype: str, seed: int = 0, shape: tuple[int, ...] = (3, 1, 5)) -> Array:
    """Of both signs, with zeros, ends of the type, infinities and NaN."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind == "f":
        out = np.round(rng.standard_normal(shape) * 4, 1).astype(kind)
        odd = [np.inf, -np.inf, np.nan, 0, -0.0, 2.5][: out.size]
        out.reshape(-1)[: len(odd)] = odd
        return out
    info = np.iinfo(kind)
    out = rng.integers(max(info.min, -9), 9, shape).astype(kind)
    out.reshape(-1)[:3] = [info.max, info.min, 0]
    return out


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


UNARY = [
    "Abs",
    "Neg",
    "Not",
    "Floor",
    "Ceil",
    "Round",
    "Sqrt",
    "Reciprocal",
    "Exp",
    "Log",
    "Sin",
    "Cos",
    "Tan",
    "Atan",
    "Identity",
    "NonZero",
    "Transpose",
    "Flatten",
    "Squeeze",
]
BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Mod",
    "Pow",
    "Less",
    "LessOrEqual",
    "Greater",
    "GreaterOrEqual",
    "Equal",
    "And",
    "Or",
    "Xor",
    "Max",
    "Min",
]
TO = [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL]
TO += [TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT16]
# operator, inputs after the first, attributes
FORMS: list[tuple[str, list[Any], dict[str, Any]]] = [
    *((op, [], {}) for op in UNARY),
    *((op, ["same"], {}) for op in BINARY),
    *((op, ["self"], {}) for op in ("Sub", "Div", "Mod")),
    *((op, ["safe"], {}) for op in ("Div", "Mod")),
    ("Mod", ["safe"], {"fmod": 1}),
    *(("Cast", [], {"to": to}) for to in TO),
    ("Max", [], {}), ("Min", ["same", "self"], {}),
    ("Transpose", [], {"perm": [2, 0, 1]}),
    *(("Flatten", [], {"axis": axis}) for axis in (0, 1, 3, -1, -2)),
    *(("Squeeze", [axes], {}) for axes in (ints(1), ints(-2), ints(0), None)),
    *(("Unsqueeze", [axes], {}) for axes in (ints(0), ints(-1), ints(1, -1), ints(3, 0), ints(1, 1), ints(9))),
    *(("Reshape", [ints(*s)], {}) for s in ((15,), (0, -1), (5, 3), (-1, 0, 1), (4, 4), (-1, -1), (0, 0, 0, 1))),
    ("Reshape", [ints(0, 15)], {"allowzero": 1}),
    *(("Concat", [other], {"axis": axis}) for axis in (0, 1, -1, 2) for other in ("same", "self")),
    *(("Slice", [ints(a), ints(b), ints(axis), ints(s)], {}) for a, b, axis, s in itertools.product(
        (0, -2, 9, -9), (3, -1, 1 << 62, -9), (0, -1), (1, 2, -1))),
    ("Slice", [ints(0, 1), ints(2, 9)], {}), ("Slice", [ints(1), ints(4), None, None], {}),
    ("Slice", [ints(1), ints(4), ints(-1)], {}), ("Slice", [ints(0, 1), ints(2, 3), ints(2, 2)], {}),
    ("Slice", [np.array([1], np.int32), np.array([3], np.int32), np.array([2], np.int32)], {}),
    *(("Gather", [np.array(i)], {"axis": axis}) for axis in (0, -1) for i in (0, -1, [0, 2], [[1, -1]], 7, -7)),
    ("Gather", [np.array([0, 1], np.int32)], {}),
    *(("Expand", [ints(*s)], {}) for s in ((3, 4, 5), (2, 3, 4, 5), (1,), (3, 1, 1), (4, 1, 1), (0, 1, 1))),
    *(("Tile", [ints(*r)], {}) for r in ((2, 1, 3), (1, 1, 1), (0, 1, 1))),
    *(("Pad", [ints(0, 1, 2, 0, 0, 3), fill], {}) for fill in (None, "fill")),
    ("Pad", [ints(0, 1, -1, 0, 0, 3)], {}),
    ("Pad", [ints(0, 0, 2, 0, 0, 2)], {"mode": "edge"}), ("Pad", [ints(0, 0, 2, 0, 0, 2)], {"mode": "reflect"}),
    *(("Trilu", [k], {"upper": u}) for k in (np.array(1), np.array(-1), None) for u in (0, 1)),
    *(("CumSum", [axis], {"exclusive": e, "reverse": r}) for axis in (np.array(0), np.array(-1), np.array([2]))
      for e in (0, 1) for r in (0, 1)),
    *((op, [axes], {"keepdims": k}) for op in ("ReduceSum",) for axes in (ints(0), ints(-1, 0), None) for k in (0, 1)),
    ("ReduceSum", [ints(-1)], {}), ("ReduceSum", [], {"noop_with_empty_axes": 1}),
    *((op, [], {"axes": [a], "keepdims": k}) for op in ("ReduceMax", "ReduceMin") for a in (0, -1) for k in (0, 1)),
    ("ReduceMax", [], {}),
]  # fmt: skip


def also(kind: Any, first: Array) -> Array | None:
    if not isinstance(kind, str):
        return kind  # type: ignore[no-any-return]
    if kind == "self":
        return first
    if kind == "fill":
        return np.array(3).astype(first.dtype)
    other = values(first.dtype.name, 7, (1, 1, 5) if first.ndim == 3 else first.shape)
    return np.where(other == 0, np.array(2).astype(other.dtype), other) if kind == "safe" else other


def alone(op: str, count: list[bool], attributes: dict[str, Any], opset: int = 17) -> OneNode:
    names = [f"i{n}" if there else "" for n, there in enumerate(count)]
    proto = helper.make_node(op, names, ["y"], **attributes)
    attrs = {a.name: ir.serde.deserialize_attribute(a).value for a in proto.attribute}
    return OneNode(proto, attrs, {"": opset}, 8)


def by_runtime(one: OneNode, given: list[Array | None]) -> list[Array] | None:
    try:
        return one._by_runtime({n: a for n, a in zip(one.node.input, given, strict=True) if a is not None})
    except Exception:  # it has no kernel, or does not take these values
        return None


def compare(op: str, given: list[Array | None], attributes: dict[str, Any], opset: int = 17) -> bool:
    """Did NumPy answer? Then as ONNX Runtime does, or ONNX Runtime does not run it at all."""
    one = alone(op, [a is not None for a in given], attributes, opset)
    try:
        got = by_numpy(op, one.attrs, given)
    except Exception:  # as ONNX Runtime, it does not take it
        assert by_runtime(one, given) is None
        return False
    want = by_runtime(one, given)
    if got is None or want is None:
        assert got is None or not all(a is None or a.dtype in under_test.NUMBERS for a in given), "NumPy takes more"
        return False
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if op in INEXACT:
            eps = float(np.finfo(a.dtype).eps)
            np.testing.assert_allclose(a, b, rtol=4 * eps, atol=4 * eps)
        else:
            np.testing.assert_array_equal(a, b)
    return True


@pytest.mark.parametrize("op", sorted({op for op, *_ in FORMS}))
def test_numpy_makes_what_the_runtime_makes(op: str) -> None:
    answered = 0
    for kind, inputs, attributes in FORMS:
        for dtype, rows in itertools.product(TYPES if kind == op else (), (slice(None), slice(1, None))):
            first = values(dtype)[rows]  # the odd ones are in front
            answered += compare(op, [first, *(also(i, first) for i in inputs)], attributes)
    assert answered, "NumPy is never asked"


@pytest.mark.parametrize("dtype", TYPES)
def test_where_and_numbers(dtype: str) -> None:
    which, x = values("bool", 3), values(dtype)
    compare("Where", [which, x, values(dtype, 5)], {})
    compare("Where", [which, x, x[0, 0, 3:4].reshape(())], {})
    for start, limit, step in ((0, 7, 1), (7, 0, -2), (3, 3, 1), (5, 0, 1), (0, 5, 0)):
        if dtype.startswith("u") or dtype == "bool":
            continue
        compare("Range", [np.array(n).astype(dtype) for n in (start, limit, step)], {})
    for shape in (ints(2, 3), ints(), ints(0, 2)):
        value = numpy_helper.from_array(np.array([1]).astype(dtype))
        compare("ConstantOfShape", [shape], {"value": value})
        assert compare("ConstantOfShape", [shape], {})


def test_axes_of_later_opsets() -> None:
    x = values("float32")
    assert compare("Pad", [x, ints(1, 2), None, ints(-1)], {}, opset=18)
    assert compare("ReduceMax", [values("int64"), ints(-1)], {"keepdims": 0}, opset=18)
    assert compare("Pad", [x, ints(0, 0, 1, 0, 0, 2)], {"mode": "wrap"}, opset=19) is False


def test_every_operator_is_compared() -> None:
    assert OPERATORS.keys() == {op for op, *_ in FORMS} | {"Where", "Range", "ConstantOfShape"}


@pytest.mark.parametrize("x", [np.array(3.0), np.zeros((0, 2), np.float32), np.zeros((2, 0), np.int64), np.array(True)])
@pytest.mark.parametrize("op", UNARY)
def test_single_numbers_and_empty_arrays(op: str, x: Array) -> None:
    compare(op, [x], {})


# ---- what NumPy does not hold


def test_types_that_numpy_does_not_know_go_through_the_runtime() -> None:
    short = ir.DataType.BFLOAT16.numpy()
    x = np.array([1.0, -2.5, 3.0078125], np.float32)
    one = alone("Cast", [True], {"to": TensorProto.BFLOAT16})
    (made,) = one.run([x])
    assert made.dtype == short
    np.testing.assert_array_equal(made.astype(np.float32), x.astype(short).astype(np.float32))
    (back,) = alone("Cast", [True], {"to": TensorProto.FLOAT}).run([made])
    np.testing.assert_array_equal(back, made.astype(np.float32))


def test_weights_of_four_bits_are_read() -> None:
    small = ir.DataType.INT4.numpy()
    weights = np.array([[-8, 7, 0], [1, -1, 3]]).astype(small)
    one = alone("DequantizeLinear", [True, True], {}, opset=21)
    one.ir_version = 10
    (made,) = one.run([weights, np.array(0.5, np.float32)])
    np.testing.assert_array_equal(made, weights.astype(np.float32) / 2)


def test_what_the_runtime_has_no_kernel_for_is_said_at_any_length() -> None:
    for frames in (1, 5):
        with pytest.raises(NoKernel, match="Type Error"):
            alone("Sin", [True], {}).run([np.zeros(frames, np.int8)])


def test_sessions_are_kept_by_type_and_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    one = alone("Sigmoid", [True], {})
    monkeypatch.setattr(one, "_open", lambda feeds, real=one._open: (opened.append(1), real(feeds))[1])
    for x in (np.zeros(3, np.float32), np.ones(9, np.float32), np.zeros((1, 2), np.float32), np.zeros(3)):
        assert one.run([x])[0].dtype == x.dtype
    assert len(opened) == 3


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("Squeeze", [np.ones((2, 1, 4), np.float32), ints(-2, 1)]),
        ("ReduceSum", [np.ones((2, 3), np.int64), ints(0, -2)]),
        ("ReduceSum", [np.array(-4), ints(0)]),
        (
            "ReduceSum",
            [np.ones((0, 2), np.int64), ints(-2)],
        ),  # seed 1 of a search: nothing is dropped, for axes below 0
        ("Gather", [np.ones((0, 3), np.float32), ints(7)]),
    ],
)
def test_axes_given_twice_and_empty_tables_are_left_to_the_runtime(op: str, given: list[Array | None]) -> None:
    """It takes the axes, and an index of an empty table it checks all the same."""
    one = alone(op, [True, True], {"axis": 1} if op == "Gather" else {"keepdims": 0} if op == "ReduceSum" else {})
    assert by_numpy(op, one.attrs, given) is None
    want = by_runtime(one, given)
    assert (want is None) == (op == "Gather")
    if want is not None:
        np.testing.assert_array_equal(one.run(given)[0], want[0])
