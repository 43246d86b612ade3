"""Convolutions over rows: ports turned, products instead of convolutions, and the same frames come out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import PreconditionError

from pulsify.backends.ort.row_ops import FEWEST, MOST
from pulsify.backends.ort.rows import ForOneStream, OverRows, Rows, row_form
from pulsify.core.spec import PAST, Spec
from tests.models import Array, close, weights
from tests.unit.graphs import graph, made_up, ops, run
from tests.unit.specs import a_state, a_stream, an_input, an_output

C, T, KEPT = 8, 4, 2
CONSTANTS: dict[str, Array] = {
    "w": weights(C, C, 3), "v": weights(C, C, 1, seed=2), "bias": weights(C, seed=3), "d": weights(C, 1, 3, seed=4),
    "m": weights(C, C, seed=5), "n": np.abs(weights(C, seed=6)) + 1, "column": weights(C, 1, seed=7),
    "i": np.array([T]), "j": np.array([T + KEPT]), "a": np.array([2]), "one": np.array([1]), "zero": np.array([0]),
    "half": np.array(0.5, np.float32), "flat": np.array([C, T]), "five": np.array([5]),
}  # fmt: skip
BUFFER = "Concat s x > full axis=2; Slice full i j a one > cut; Identity cut > new_s; "


def step(text: str, outputs: str = "y new_s", frames: int = T) -> ir.Model:
    """x [1, C, T] and a state [1, C, 2]."""
    read = set(text.replace(";", " ").split())
    constants = {n: c for n, c in CONSTANTS.items() if n in read}
    return graph(text, {"x": [1, C, frames], "s": [1, C, KEPT]}, outputs, constants)


def spec(out: int = C, frames: int = T) -> Spec:
    return a_stream(
        T,
        inputs=(an_input(dims=(1, C, T)),),
        outputs=(an_output(dims=(1, out, frames)),),
        states=(a_state(shape=(1, C, KEPT)),),
    )


def same(before: ir.Model, made: Rows) -> None:
    """Ports that are rows are fed and read as such. A state is rows on both sides."""
    feeds = made_up(before)
    want = run(before, feeds)
    got = run(made.model, {n: a[0].T.copy() if n in made.ports else a for n, a in feeds.items()})
    assert want.keys() == got.keys()
    for name, array in got.items():
        rows = name.removeprefix("new_") in made.ports
        close(array.T[None] if rows else array, want[name])


def converted(text: str, outputs: str = "y new_s") -> Rows:
    model = step(text, outputs)
    made = OverRows(spec())(model)
    assert made.modified
    same(model, made)
    return made


def test_a_convolution_is_a_product_of_windows_and_its_buffer_a_stretch_of_rows() -> None:
    made = converted(BUFFER + "Conv full w bias > c; Relu c > r; Identity r > y")
    assert made.ports == {"x", "s", "y"}
    assert "Conv" not in ops(made.model) and "Transpose" not in ops(made.model)
    shapes = {str(v.name): list(v.shape or ()) for v in (*made.model.graph.inputs, *made.model.graph.outputs)}
    assert shapes == {"x": [T, C], "s": [KEPT, C], "y": [T, C], "new_s": [KEPT, C]}


@pytest.mark.parametrize(
    "text",
    [
        "Conv full v bias > c",  # one tap
        "Conv full w > c strides=[2]",
        "Conv full w > c dilations=[2]",
        "MatMul m full > c",  # a product with a constant in front mixes channels
        "Conv full v > c0; BatchNormalization c0 n bias bias n > c",  # part of the product
        "Conv full v bias > c0; Mul c0 half > c1; BatchNormalization c1 n bias bias n > c",  # not behind it
        "Conv full v > c0; Conv c0 d bias > c group=8",  # every channel by itself
        "Conv full v > c0; Split c0 > c1 c2 axis=1; Concat c2 c1 > c axis=1",
        "Conv full v > c0; Mul c0 column > c",
        "Conv full v > c0; Slice c0 one five a one > c",
        "Conv full v > c0; Conv full v bias > c1; Add c0 c1 > c",  # a sum of products is one
        "Conv full v > c0; Conv full v bias > c1; Add c0 c1 > c2; Add c2 full > c",
        "Conv full v > c0; Transpose c0 > c1 perm=[0,2,1]; Relu c1 > c2; Transpose c2 > c perm=[0,2,1]",
    ],
)
def test_rows_compute_the_same(text: str) -> None:
    converted(f"{BUFFER}{text}; Identity c > y")


def test_a_sum_of_products_is_one_product() -> None:
    text = "Conv full v > c0; Conv full v bias > c1; Conv full v > c2; Add c0 c1 > c3; Add c3 c2 > c; Identity c > y"
    made = converted(BUFFER + text)
    assert ops(made.model).count("Gemm") == 1 and "Add" not in ops(made.model)


@pytest.mark.parametrize(
    "text",
    [
        "Conv full v > c0; Conv full v bias > c1; Add c0 c1 > c; Identity c > y",  # two products, nothing joined
        "Conv full v > c0; Conv full v > c1; Add c0 c1 > c2; Add c2 full > c; Identity c > y",
        "Conv full v > c0; Add c0 full > c; Identity c > y",  # no bias: there is room for something else
    ],
)
def test_products_add_what_they_are_added_to(text: str) -> None:
    made = ops(converted(BUFFER + text).model)
    assert made.count("Concat") == 1 and "Add" not in made  # the buffer's


def test_one_frame_of_channels_by_themselves_is_a_sum_of_rows() -> None:
    text = "Conv x v > c0; Slice c0 zero three a one > c1; Conv c1 d > c group=8; Identity c > y"
    constants = {n: CONSTANTS[n] for n in ("v", "zero", "a", "one", "d")}
    model = graph(text, {"x": [1, C, T]}, "y", {**constants, "three": np.array([3])})
    made = OverRows(replace(spec(frames=1), states=()))(model)
    assert made.modified and "ReduceSum" in ops(made.model) and "Conv" not in ops(made.model)
    same(model, made)


def test_what_others_take_as_columns_is_turned_back() -> None:
    made = converted(BUFFER + "Conv full w > c; Softmax c > p axis=-1; Identity p > y")
    assert "y" not in made.ports and "Softmax" in ops(made.model)


def test_outputs_given_out_without_a_node_of_their_own_are_rows_too() -> None:
    text = BUFFER.replace("cut; Identity cut > new_s", "new_s") + "Conv full w bias > y"
    assert converted(text).ports == {"x", "s", "y"}


def test_a_state_made_behind_the_last_convolution_is_turned_behind_its_maker() -> None:
    """The convolution reads the old state alone, and the new one is made later, of what has no rows."""
    text = "Conv s v > c; Softmax c > y axis=1; Softmax x > z axis=1; Concat s z > f axis=2; Slice f i j a one > new_s"
    constants = {"v": weights(1, 1, 1), **{n: CONSTANTS[n] for n in ("i", "j", "a", "one")}}
    model = graph(text, {"x": [1, 1, T], "s": [1, 1, KEPT]}, "y new_s", constants)
    own = replace(spec(1, KEPT), inputs=(an_input(dims=(1, 1, T)),), states=(a_state(shape=(1, 1, KEPT)),))
    made = OverRows(own)(model)
    assert made.modified and "s" in made.ports
    same(model, made)


def test_an_input_given_out_as_it_is_keeps_both_names() -> None:
    made = converted(BUFFER + "Conv full w > c; Identity c > y; Identity x > z", "y new_s z")
    assert [v.name for v in made.model.graph.outputs] == ["y", "new_s", "z"]


def test_states_that_live_elsewhere_stay_as_they_are() -> None:
    model = step(BUFFER + "Conv full w > c; Identity c > y")
    made = OverRows(spec(), apart=frozenset({"s"}))(model)
    assert made.modified and made.ports == {"y"}
    same(model, made)


@pytest.mark.parametrize(
    "text",
    [
        "Relu full > c",  # nothing to multiply
        "Conv full w > c pads=[1,1]",
        "Reshape x flat > r; Unsqueeze r zero > u; Softmax u > c0 axis=2; Conv c0 v > c1; Softmax c1 > c axis=1",
    ],
)
def test_what_does_not_pay_is_left_as_it_is(text: str) -> None:
    model = step(f"{BUFFER}{text}; Identity c > y")
    before = ops(model)
    made = OverRows(spec())(model)
    assert not made.modified and not made.ports and ops(made.model) == before
    assert row_form(model, spec(), frozenset()) is None


@pytest.mark.parametrize(
    ("channels", "frames", "pays"), [(FEWEST, MOST, True), (FEWEST - 1, MOST, False), (FEWEST, MOST + 1, False)]
)
def test_few_channels_and_many_frames_stay_columns(channels: int, frames: int, pays: bool) -> None:
    kernel = weights(channels, channels, 3)
    model = graph("Conv x w > c; Identity c > y", {"x": [1, channels, frames + 2]}, "y", {"w": kernel})
    own = a_stream(inputs=(an_input(dims=(1, channels, frames + 2)),), outputs=(an_output(dims=(1, channels, frames)),))
    made = row_form(model, own, frozenset())
    assert (made is not None) == pays
    if made is not None:
        same(model, made)


def test_another_form_of_the_model_has_the_same_ports_or_there_is_none() -> None:
    general = converted(BUFFER + "Conv full w > c; Relu c > r; Identity r > y")
    model = step(BUFFER + "Conv full w > c; Identity c > y")
    like = OverRows(spec(), like=general)(model)
    assert like.modified and like.ports == general.ports
    same(model, like)
    fewer = OverRows(spec(), like=replace(general, ports=frozenset({"x", "s"})))(model)
    assert fewer.ports == {"x", "s"}, "an output that is columns there is columns here"
    same(model, fewer)
    columns = step(BUFFER + "Conv full w > c; Softmax c > p axis=-1; Identity p > y")
    assert not OverRows(spec(), like=general)(columns).modified


def test_a_free_batch_is_turned_down() -> None:
    model = graph("Conv x w > c; Identity c > y", {"x": ["B", C, T]}, "y", {"w": CONSTANTS["w"]})
    with pytest.raises(PreconditionError):
        OverRows(spec())(model)


# ---- one stream


def test_one_stream_has_every_size_but_that_of_a_growing_cache() -> None:
    model = graph(
        "Relu x > a; Relu y > b; Relu z > c",
        {"x": ["B", 2], "y": ["4*B", 2], "z": ["B", PAST]},
        "a b c",
        {},
    )
    made = ForOneStream()(model).model
    assert [list(map(str, v.shape or ())) for v in made.graph.inputs] == [["1", "2"], ["4", "2"], ["1", PAST]]
    assert [str(v.shape) for v in model.graph.inputs] == ["[B,2]", "[4*B,2]", "[B,past]"], "a copy was changed"
