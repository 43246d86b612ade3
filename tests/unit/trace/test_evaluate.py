"""What is known of every value at one length: its shape always, its entries if they follow from the length alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from pulsify.core import custom
from pulsify.core.custom import Shaped
from pulsify.core.errors import NotStreamable
from pulsify.frontend.load import load
from pulsify.trace import evaluate
from pulsify.trace.evaluate import Evaluator, Trace
from pulsify.trace.traced import CannotRun, Recent, Traced, known, lazy, same, unknown
from tests.models import Array, Dims, frames, model, node, run_batch, weights
from tests.unit.build import traced
from tests.unit.graphs import parsed


def at(
    text: str | list[onnx.NodeProto],
    length: int = 7,
    constants: dict[str, Array] | None = None,
    inputs: dict[str, Dims] | None = None,
    **options: Any,
) -> Trace:
    """x is [1, 2, T] unless said otherwise; all that is made is given out, so that nothing is left out."""
    nodes = parsed(text) if isinstance(text, str) else text
    outputs = [o for n in nodes for o in n.output if o]
    proto = model(nodes, inputs or {"x": [1, 2, "T"]}, outputs, constants or {}, **options)
    return traced(proto, time="T").at(length)


# ---- known and shaped


def test_what_follows_from_the_length_is_computed_and_data_is_only_shaped() -> None:
    made = at(
        "Shape x > dims; Gather dims two > t axis=0; Range zero t one > r; Cast r > f to=1; Mul x f > m; Relu m > y",
        constants={"two": np.array(2), "zero": np.array(0), "one": np.array(1)},
    )
    np.testing.assert_array_equal(made["dims"].array, [1, 2, 7])
    np.testing.assert_array_equal(made["r"].array, np.arange(7))
    assert made["f"].known and made["f"].dtype == ir.DataType.FLOAT
    assert not made["m"].known and made["y"].dims == (1, 2, 7) and "nothing" not in made


def test_a_length_input_is_known_by_its_value() -> None:
    proto = model(
        parsed("Add length one > more; Relu x > y"), {"x": [1, 2, "T"], "length": [1]}, ["y", "more"],
        {"one": np.array([1])}, dtypes={"length": np.int64, "more": np.int64},
    )  # fmt: skip
    np.testing.assert_array_equal(traced(proto).at(11)["more"].array, [12])


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("Shape x > d", [1, 2, 7]),
        ("Shape x > d start=1", [2, 7]),
        ("Shape x > d start=-2 end=-1", [2]),
        ("Size x > d", 14),
    ],
)
def test_shapes_and_sizes_of_data_are_known(text: str, want: Any) -> None:
    found = at(text, dtypes={"d": np.int64})["d"]
    assert found.known and found.array.dtype == np.int64
    np.testing.assert_array_equal(found.array, want)


def test_noise_is_data_though_nothing_goes_in() -> None:
    made = at("RandomNormalLike c > n; Add x n > y", constants={"c": np.zeros((1, 2, 1), np.float32)})
    assert not made["n"].known and made["n"].dims == (1, 2, 1)


def test_optional_inputs_left_out_do_not_count() -> None:
    made = at("Clip c _ high > k; Add x k > y", constants={"c": weights(2, 1), "high": np.array(0, np.float32)})
    np.testing.assert_array_equal(made["k"].array, np.minimum(weights(2, 1), 0))


# ---- large values


def test_a_large_value_is_shaped_at_once_and_computed_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "EAGER_ELEMENTS", 600)
    made = at(
        "Shape x > dims; Gather dims two > t axis=0; Range zero t one > r; Unsqueeze r axis > c; Less c r > y",
        length=600,
        constants={"two": np.array(2), "zero": np.array(0), "one": np.array(1), "axis": np.array([1])},
        dtypes={"y": np.bool_},
    )["y"]
    assert made.known and made.dims == (600, 600) and made._array is None
    np.testing.assert_array_equal(made.array, np.tril(np.ones((600, 600), bool), -1).T)
    assert made.array is made.array, "the last ones used are kept"


def test_arrays_used_long_ago_make_room_and_the_last_one_stays_whatever_its_size() -> None:
    recent = Recent(100)
    keys = [Traced(ir.DataType.UINT8, (60,), True) for _ in range(3)]
    for key in keys[:2]:
        recent.put(key, np.zeros(60, np.uint8))
    assert recent.get(keys[0]) is None and recent.get(keys[1]) is not None
    recent.put(keys[2], np.zeros(1000, np.uint8))
    assert recent.get(keys[1]) is None and recent.get(keys[2]) is not None
    recent.clear()
    assert recent.get(keys[2]) is None


def test_one_that_is_asked_for_again_is_not_the_oldest() -> None:
    recent = Recent(100)
    one, two, three = (Traced(ir.DataType.UINT8, (40,), True) for _ in range(3))
    for key in (one, two):
        recent.put(key, np.zeros(40, np.uint8))
    recent.get(one)
    recent.put(three, np.zeros(40, np.uint8))
    assert recent.get(two) is None and recent.get(one) is not None


def test_constants_are_not_read_before_their_values_are_needed() -> None:
    read: list[str] = []

    def thunk() -> Array:
        read.append("read")
        return np.zeros(3, np.float32)

    value = lazy(ir.DataType.FLOAT, (3,), thunk)
    assert value.known and value.dims == (3,) and not read
    assert value.array is value.array and read == ["read"], "a small one is kept"


def test_what_is_too_large_to_look_at_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "MOST_ELEMENTS", 8)
    with pytest.raises(CannotRun, match="Add 'y': it would be too large to look at"):
        at("Add c c > y", constants={"c": np.zeros(9, np.float32)})


def test_numbers_that_are_drawn_are_not_known() -> None:
    made = at([helper.make_node("RandomNormal", [], ["r"], shape=[1, 2, 1]), node("Add", "x r", "y")])
    assert not made["r"].known and made["r"].dims == (1, 2, 1)


# ---- shapes inference gets wrong, against the runtime

WRONG = [
    ("MaxPool x > y kernel_shape=[2] strides=[3] ceil_mode=1", {}),
    ("AveragePool x > y kernel_shape=[3] strides=[4] pads=[1,1] ceil_mode=1", {}),
    ("Resize x _ s > y mode='nearest'", {"s": np.array([1, 1, 1.1], np.float32)}),
    ("Resize x _ s > y mode='linear'", {"s": np.array([1, 1, 0.7], np.float32)}),
    ("Conv x w > y strides=[3] pads=[2,1]", {"w": weights(3, 2, 4)}),
    ("Squeeze x a > h; STFT h hop _ size > y", {"a": np.array([0]), "hop": np.array(3), "size": np.array(4)}),
    ("Expand x d > y", {"d": np.array([3, 1, 1])}),
]


@pytest.mark.parametrize(("text", "constants"), WRONG)
@given(length=st.integers(1, 40))
@settings(max_examples=12, deadline=None)
def test_a_length_gives_the_runtimes_shape_or_cannot_run(text: str, constants: dict[str, Array], length: int) -> None:
    proto = model(parsed(text), {"x": [1, 2, "T"]}, ["y"], constants)
    try:
        want = run_batch(proto, frames(1, 2, length))["y"].shape
    except Exception:
        want = ()
    if 0 in want:
        want = ()
    try:
        got = traced(proto).at(length)["y"].dims
    except CannotRun:
        got = ()
    assert got == want


@pytest.mark.parametrize(
    ("text", "constants", "length", "says"),
    [
        ("Conv x w > y", {"w": weights(1, 2, 5)}, 4, "its kernel is longer than its input of 4"),
        ("Conv x w > y dilations=[3]", {"w": weights(1, 2, 3)}, 6, "its kernel is longer than its input of 6"),
        ("MaxPool x > y kernel_shape=[9]", {}, 8, "its kernel is longer"),
        ("Add x c > y", {"c": weights(5)}, 4, "shape mismatch"),
        ("Concat x c > y axis=1", {"c": weights(1, 1, 5)}, 4, r"the parts differ in shape: \[\(1, 4\), \(1, 5\)\]"),
        ("Reshape x s > y", {"s": np.array([1, -1, 4])}, 5, "incompatible shapes"),
        ("Reshape x s > y", {"s": np.array([1, 2, 4])}, 5, r"its input of shape \[1, 2, 5\] has no shape \[1, 2, 4\]"),
        (
            "Pad x p > y mode='reflect'",
            {"p": np.array([0, 0, 4, 0, 0, 0])},
            4,
            "it reflects more frames than there are",
        ),
        ("Slice x i j a > y", {"i": np.array([4]), "j": np.array([9]), "a": np.array([2])}, 4, "would have shape"),
    ],
)
def test_a_length_that_is_none_names_the_node_and_says_why(
    text: str, constants: dict[str, Array], length: int, says: str
) -> None:
    with pytest.raises(CannotRun, match=says) as refused:
        at(text, length, constants)
    assert refused.value.node.name == "y" and str(refused.value).startswith(f"{refused.value.node.op} 'y': ")


@pytest.mark.parametrize("length", [3, 4])
def test_an_index_outside_of_its_table_cannot_run(length: int) -> None:
    text = "Shape x > d; Gather d two > t axis=0; Gather table t > g axis=0; Add x g > y"
    constants = {"two": np.array(2), "table": weights(4, 1)}
    if length == 3:
        assert at(text, length, constants)["g"].dims == (1,)
    else:
        with pytest.raises(CannotRun):
            at(text, length, constants)


def test_expanding_to_no_frames_or_to_what_does_not_fit_cannot_run() -> None:
    for shape in (np.array([-1, 2]), np.array([3])):
        with pytest.raises(CannotRun, match=r"would have shape|shape mismatch"):
            at("Expand c s > e; Add x e > y", constants={"c": weights(2), "s": shape})


def test_a_repeated_value_is_a_view() -> None:
    made = at("Expand c s > e; Relu x > y", constants={"c": weights(1, 2), "s": np.array([500, 2])})["e"]
    assert made.array.strides[0] == 0 and made.array.shape == (500, 2)


# ---- operators of other domains


def test_an_operator_nobody_knows_is_refused_by_name() -> None:
    boost = helper.make_node("Boost", ["x"], ["y"], name="boost", domain="acme")
    with pytest.raises(NotStreamable, match="operator acme::Boost is not known") as refused:
        at([boost], imports=[helper.make_opsetid("acme", 1)])
    assert refused.value.node == "boost" and "pulsify.extend" in refused.value.hint


def test_an_operator_made_known_has_the_shapes_it_was_registered_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        custom.CUSTOM,
        ("acme", "Halve"),
        custom.Custom(lambda attrs, ins: [Shaped(ins[0].dtype, (*ins[0].dims[:-1], ins[0].dims[-1] // attrs["by"]))]),  # type: ignore[union-attr]
    )
    halve = helper.make_node("Halve", ["x"], ["y"], name="halve", domain="acme", by=2)
    assert at([halve], 8, imports=[helper.make_opsetid("acme", 1)])["y"].dims == (1, 2, 4)


def test_a_value_whose_size_depends_on_data_is_refused() -> None:
    with pytest.raises((NotStreamable, CannotRun)) as refused:
        at("NonZero x > y", dtypes={"y": np.int64})
    assert "NonZero" in str(refused.value)


# ---- values


def test_a_value_without_an_axis_has_the_others() -> None:
    value = known(np.zeros((2, 3, 4), np.float32))
    assert unknown(value).dims == (2, 3, 4) and unknown(value, without=1).dims == (2, 4)
    assert not unknown(value).known and unknown(value).dtype == ir.DataType.FLOAT


@pytest.mark.parametrize(
    ("x", "y", "equal"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), True),
        (np.array([1.0]), np.array([1.0], np.float32), False),
        (np.array([1, 2]), np.array([[1, 2]]), False),
        (np.array([1, 2]), np.array([1, 3]), False),
        (np.broadcast_to(np.arange(3), (9, 3)), np.broadcast_to(np.arange(3), (9, 3)), True),
        (np.broadcast_to(np.arange(3), (9, 3)), np.tile(np.arange(3), (9, 1)), True),
        (np.broadcast_to(np.arange(3), (9, 3)), np.broadcast_to(np.arange(3)[::-1], (9, 3)), False),
        (np.broadcast_to(np.arange(3), (9, 3)), np.broadcast_to(np.arange(3), (8, 3)), False),
        (np.array(["a"]), np.array(["a"]), True),
    ],
)
def test_equal_is_equal_in_type_shape_and_entries(x: Array, y: Array, equal: bool) -> None:
    assert same(x, y) is equal


def test_runners_are_kept_for_other_lengths() -> None:
    tracer = Evaluator(load(model(parsed("Neg c > n; Add x n > y"), {"x": [1, "T"]}, ["y"], {"c": weights(1)})))
    for length in (3, 4):
        tracer.trace({"x": Traced(ir.DataType.FLOAT, (1, length), False)}, length, 1)
    assert [op for _, op, *_ in tracer._runners] == ["Neg"]


def test_nodes_that_do_the_same_share_a_runner() -> None:
    """Python loops write thousands of them."""
    nodes = [
        *parsed("Slice c a b > s; Slice c b e > t"),
        *(node("Concat", parts, name, axis=0) for name, parts in (("u", "s t"), ("v", "t s"))),
        *parsed("Add u u > w; Add u v > z; Mul x w > p; Mul p z > y"),
    ]
    ends = {n: np.array([i]) for i, n in enumerate("abe")}
    tracer = Evaluator(load(model(nodes, {"x": [1, "T"]}, ["y"], {"c": weights(4), **ends})))
    made = tracer.trace({"x": Traced(ir.DataType.FLOAT, (1, 2), False)}, 2, 1)
    assert [op for _, op, *_ in tracer._runners] == ["Slice", "Concat", "Add", "Add"]  # of itself, and of two
    c = weights(4)
    np.testing.assert_array_equal(made["w"].array, 2 * c[:2])
    np.testing.assert_array_equal(made["z"].array, c[:2] + c[1::-1])


def test_the_runtime_computes_what_the_reference_has_no_implementation_of() -> None:
    gelu = helper.make_node("FastGelu", ["c"], ["g"], name="g", domain="com.microsoft")
    with pytest.raises(NotStreamable):  # no shape is known of it as data
        at([helper.make_node("FastGelu", ["x"], ["y"], name="y", domain="com.microsoft")],
           imports=[helper.make_opsetid("com.microsoft", 1)])  # fmt: skip
    made = at([gelu, node("Add", "x g", "y")], constants={"c": np.zeros(1, np.float32)},
              imports=[helper.make_opsetid("com.microsoft", 1)])  # fmt: skip
    np.testing.assert_array_equal(made["g"].array, [0])


def test_rows_of_a_large_value_are_computed_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "EAGER_ELEMENTS", 16)
    monkeypatch.setattr(evaluate, "AT_ONCE", 64)
    text = "Shape x > n; Gather n two > t; Range zero t one > r; Unsqueeze r last > c; Sub c r > d; Mul d d > y"
    given = {"two": np.array(2), "zero": np.array(0), "one": np.array(1), "last": np.array([1])}
    run = at(text, 40, given)
    want = np.subtract.outer(np.arange(40), np.arange(40)) ** 2
    assert (run["y"].cut(0, slice(3, 9)) == want[3:9]).all() and (run["y"].cut(1, slice(3, 9)) == want[:, 3:9]).all()
    assert (run["y"].cut(None, slice(3, 9)) == want).all() and (run["y"].array == want).all()
