"""The form one stream runs in: rows, tails, fewer nodes; it stays the batch model, and what was to fall away has."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pulsify
from tests.models import Array, close, frames, model, node, run_batch, run_stream, weights

C = 8  # channels: enough for windows over rows


def operators(stream: pulsify.Stream) -> Counter[str]:
    made = stream._program("single")
    return Counter(n.op_type for n in (made.steady or made.general).graph)


def exact(proto: onnx.ModelProto, pulse: int, x: Array, axis: int = 2) -> pulsify.Stream:
    """Equal to batch in the form sessions run, ragged, with NaN behind the end, and after a change of form."""
    stream = pulsify.stream(proto, pulse=pulse)
    want = run_batch(proto, x)["y"]
    close(run_stream(stream.session(padding=float("nan")), x, [pulse], axis), want)
    close(run_stream(stream.session(padding=float("nan")), x, [3, 0, 5 * pulse], axis), want)
    half = x.shape[axis] // 2
    first, second = np.split(x, [half], axis)
    for before, after in ((True, False), (False, True)):
        one, other = stream.session(portable=before), stream.session(portable=after)
        parts = [one.push(first)]
        other.restore(one.state())
        close(np.concatenate([*parts, other.push(second), other.flush()], stream.outputs[0].axis), want)
    return stream


def stack(
    *layers: onnx.NodeProto, constants: dict[str, Array], dims: tuple[int | str, ...] = (1, C, "T")
) -> onnx.ModelProto:
    return model(list(layers), {"x": list(dims)}, ["y"], constants)


def test_convolutions_over_rows() -> None:
    proto = stack(
        node("Conv", "x a b", "h", pads=[4, 0], dilations=[2]), node("Relu", "h", "r"),
        node("Conv", "r c", "z", pads=[1, 0]), node("Add", "x z", "y"),
        constants={"a": weights(C, C, 3), "b": weights(C), "c": weights(C, C, 2)},
    )  # fmt: skip
    stream = exact(proto, 4, frames(1, C, 43))
    places = stream._program("single").places
    assert {"x", "y"} <= {name for name, place in places.items() if place.rows}
    assert {n for n, place in places.items() if place.tail} == {s.name for s in stream.states}  # no state is cut out
    used = operators(stream)
    assert used["Gemm"] == 2
    assert not used["Conv"] and not used["Transpose"] and not used["Slice"]


def test_sums_of_products_are_one() -> None:
    """As skip connections are: every layer adds its own."""
    layers, constants, x, total = [], {}, "x", ""
    for i in range(4):
        constants |= {
            f"f{i}": weights(C, C, 2, seed=i),
            f"k{i}": weights(C, C, 1, seed=i + 9),
            f"b{i}": weights(C, seed=i),
        }
        layers += [node("Conv", f"{x} f{i}", f"h{i}", pads=[1, 0]), node("Conv", f"h{i} k{i} b{i}", f"s{i}")]
        if total:
            layers.append(node("Add", f"{total} s{i}", f"t{i}" if i < 3 else "y"))
        x, total = f"h{i}", f"t{i}" if i else "s0"
    used = operators(exact(stack(*layers, constants=constants), 4, frames(1, C, 30)))
    assert used["Gemm"] == 5  # four layers and one sum
    assert not used["Add"]


def test_a_norm_is_part_of_the_product() -> None:
    statistics = {
        "g": weights(C),
        "s": weights(C, seed=3),
        "m": weights(C, seed=4),
        "v": np.abs(weights(C, seed=5)) + 0.1,
    }
    proto = stack(
        node("Conv", "x a b", "h", pads=[2, 0]), node("BatchNormalization", "h g s m v", "n"), node("Tanh", "n", "y"),
        constants={"a": weights(C, C, 3), "b": weights(C, seed=2), **statistics},
    )  # fmt: skip
    assert not operators(exact(proto, 4, frames(1, C, 25)))["BatchNormalization"]
    proto = stack(
        node("ConvTranspose", "x a b", "h", strides=[2]), node("BatchNormalization", "h g s m v", "y"),
        constants={"a": weights(C, C // 2, 2), "b": weights(C, seed=2), **statistics},
    )  # fmt: skip
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("group", 2))
    assert not operators(exact(proto, 4, frames(1, C, 25)))["BatchNormalization"]


@pytest.mark.parametrize("pulse", [1, 6])
def test_every_channel_by_itself(pulse: int) -> None:
    """Between products, as in a conformer's convolution; over tokens [1, T, C]."""
    proto = model(
        [
            node("Transpose", "x", "t", perm=[0, 2, 1]), node("Conv", "t a", "h"),
            node("Conv", "h d e", "g", pads=[3, 0], group=C), node("Conv", "g c", "o"),
            node("Transpose", "o", "u", perm=[0, 2, 1]), node("Add", "x u", "y"),
        ],
        {"x": [1, "T", C]}, ["y"],
        {"a": weights(C, C, 1), "d": weights(C, 1, 4), "e": weights(C), "c": weights(C, C, 1, seed=2)},
    )  # fmt: skip
    stream = exact(proto, pulse, frames(1, 31, C), axis=1)
    used = operators(stream)
    assert used["Gemm"] == 2
    assert used["ReduceSum"] == (pulse == 1)
    assert any(place.tail for place in stream._program("single").places.values())


def test_neighbours_laid_out_are_a_convolution() -> None:
    """Unfold over frequency, then a convolution of one tap: [1, 2, T, F] -> [1, 6, T, F]."""
    places = np.arange(5)[None] + np.arange(3)[:, None]
    proto = model(
        [
            node("Pad", "x pads", "p"), node("Gather", "p places", "g", axis=3),
            node("Transpose", "g", "t", perm=[0, 1, 3, 2, 4]), node("Reshape", "t flat", "f"),
            node("Conv", "f k b", "y"),
        ],
        {"x": [1, 2, "T", 5]}, ["y"],
        {
            "pads": np.array([0, 0, 0, 1, 0, 0, 0, 1]), "places": places, "flat": np.array([1, 6, -1, 5]),
            "k": weights(4, 6, 1, 1), "b": weights(4),
        },
    )  # fmt: skip
    used = operators(exact(proto, 1, frames(1, 2, 9, 5)))
    assert used["Conv"] == 1
    assert not used["Gather"] and not used["Pad"]


def test_a_transposed_convolution_without_a_stride_is_a_convolution() -> None:
    for pads, group in (([1, 1], 1), ([2, 0], 2), ([0, 0], 1)):
        proto = stack(
            node("ConvTranspose", "x a b", "y", pads=pads, group=group, kernel_shape=[3]),
            constants={"a": weights(C, 4, 3), "b": weights(4 * group)},
        )
        stream = exact(proto, 4, frames(1, C, 22))
        assert not [n for n in stream.model.graph if n.op_type == "ConvTranspose"]
        assert stream.outputs[0].delay == pads[0]  # frames it cuts off in front are looked ahead to


def test_what_does_nothing_falls_away() -> None:
    constants = {"one": np.ones((1, C, 1), np.float32), "yes": np.array([True]), "zero": np.array(0, np.float32)}
    proto = stack(
        node("Mul", "x one", "a"), node("Where", "yes a zero", "b"), node("Conv", "b k", "y", pads=[1, 0]),
        constants={**constants, "k": weights(C, C, 2)},
    )  # fmt: skip
    used = operators(exact(proto, 4, frames(1, C, 19)))
    assert not used["Mul"] and not used["Where"]


# ---- found by looking for trouble


def test_a_static_input_between_convolutions() -> None:
    """It is turned where it is needed, and not turned back for the one who turns it."""
    proto = model(
        [node("Conv", "x a", "h", pads=[2, 0]), node("Mul", "h scale", "m"), node("Conv", "m a", "y", pads=[2, 0])],
        {"x": [1, C, "T"], "scale": [1, C, 1]}, ["y"], {"a": weights(C, C, 3)},
    )  # fmt: skip
    x, scale = frames(1, C, 21), frames(1, C, 1, seed=7)
    stream = pulsify.stream(proto, pulse=4)
    close(run_stream(stream.session(scale=scale), x, [4, 9]), run_batch(proto, {"x": x, "scale": scale})["y"])


@pytest.mark.parametrize("pulse", [1, 2, 3, 4])
def test_rows_in_one_form_only(pulse: int) -> None:
    proto = stack(
        node("Pad", "x pads", "p"), node("Slice", "p one end two", "s"), node("Conv", "s a", "h"),
        node("Conv", "h b", "y", pads=[2, 2]),
        constants={
            "pads": np.array([0, 0, 0, 0, 0, 1]), "one": np.array([1]), "end": np.array([1 << 40]),
            "two": np.array([2]), "a": weights(C, C, 1), "b": weights(2, C, 5),
        },
    )  # fmt: skip
    exact(proto, pulse, frames(1, C, 30))


def test_every_fourth_frame_by_itself() -> None:
    proto = stack(
        node("Conv", "x a", "h"), node("Conv", "h d", "g", group=C, strides=[4]), node("Conv", "g a", "y"),
        constants={"a": weights(C, C, 1), "d": weights(C, 1, 2)},
    )  # fmt: skip
    stream = pulsify.stream(proto, pulse=4)
    x = frames(1, C, 33)
    close(run_stream(stream.session(padding=float("nan")), x, [4, 7]), run_batch(proto, x)["y"])


@pytest.mark.parametrize("op", ["Softmax", "LayerNormalization"])
def test_axes_counted_from_the_front(op: str) -> None:
    extra = " g" if op == "LayerNormalization" else ""
    proto = model(
        [node("MatMul", "x a", "h"), node(op, f"h{extra}", "s", axis=2), node("MatMul", "s a", "y")],
        {"x": [1, "T", C]}, ["y"], {"a": weights(C, C), **({"g": weights(C)} if extra else {})},
    )  # fmt: skip
    exact(proto, 4, frames(1, 18, C), axis=1)


def test_a_norm_of_some_channels() -> None:
    statistics = {
        "g": weights(4),
        "s": weights(4, seed=3),
        "m": weights(4, seed=4),
        "v": np.abs(weights(4, seed=5)) + 0.1,
    }
    proto = stack(
        node("ConvTranspose", "x a", "h", strides=[2]), node("Slice", "h zero four one", "c"),
        node("BatchNormalization", "c g s m v", "y"),
        constants={
            "a": weights(C, C, 2), "zero": np.array([0]), "four": np.array([4]), "one": np.array([1]), **statistics,
        },
    )  # fmt: skip
    exact(proto, 4, frames(1, C, 19))


def test_the_same_place_twice_is_no_window() -> None:
    places = np.tile(np.arange(5), (2, 1))
    proto = model(
        [
            node("Gather", "x places", "g", axis=3), node("Transpose", "g", "t", perm=[0, 1, 3, 2, 4]),
            node("Reshape", "t flat", "f"), node("Conv", "f k", "y"),
        ],
        {"x": [1, 2, "T", 5]}, ["y"],
        {"places": places, "flat": np.array([1, 4, -1, 5]), "k": weights(3, 4, 1, 1)},
    )  # fmt: skip
    exact(proto, 1, frames(1, 2, 9, 5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_a_bias_behind_a_product(dtype: type, beta: float) -> None:
    proto = model(
        [
            node("Reshape", "x flat", "r"), node("Gemm", "r a", "g", beta=beta), node("Add", "g b", "s"),
            node("Split", "s", "p q", axis=1), node("Tanh", "p", "u"), node("Sigmoid", "q", "v"),
            node("Mul", "u v", "o"),
            node("Reshape", "o back", "y"),
        ],
        {"x": [1, "T", C]}, ["y"],
        {
            "flat": np.array([-1, C]), "a": weights(C, C).astype(dtype), "b": weights(C).astype(dtype),
            "back": np.array([1, -1, C // 2]),
        },
        dtypes={"x": dtype, "y": dtype},
    )  # fmt: skip
    exact(proto, 4, frames(1, 18, C).astype(dtype), axis=1)


def test_a_transposed_convolution_that_does_not_say_its_kernel() -> None:
    proto = stack(node("ConvTranspose", "x a", "y", dilations=[2]), constants={"a": weights(C, 4, 3)})
    exact(proto, 4, frames(1, C, 18))


LAYERS = ("conv", "wide", "alone", "unit", "gate", "skip", "norm", "split", "last", "mask")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(LAYERS), min_size=2, max_size=7), st.sampled_from([1, 2, 4]), st.integers(0, 99))
def test_random_stacks(kinds: list[str], pulse: int, seed: int) -> None:
    """Whatever stands between convolutions: the form for one stream is the batch model."""
    rng, nodes, constants, x = np.random.default_rng(seed), list[onnx.NodeProto](), dict[str, Array](), "x"
    for i, kind in enumerate([*kinds, "conv"]):
        y = f"v{i}"
        constants |= {f"w{i}": weights(C, C, 3, seed=seed + i) / 4, f"u{i}": weights(C, C, 1, seed=i) / 2}
        constants |= {f"d{i}": weights(C, 1, 3, seed=i), f"c{i}": weights(1, C, 1, seed=i), f"b{i}": weights(C, seed=i)}
        ahead = int(rng.integers(0, 3))
        if kind == "conv":
            nodes.append(node("Conv", f"{x} w{i} b{i}", y, pads=[2 - ahead, ahead]))
        elif kind == "wide":
            nodes.append(node("Conv", f"{x} w{i}", y, pads=[6, 0], dilations=[3]))
        elif kind == "alone":
            nodes.append(node("Conv", f"{x} d{i} b{i}", y, pads=[2 - ahead, ahead], group=C))
        elif kind == "unit":
            nodes.append(node("Conv", f"{x} u{i} b{i}", y))
        elif kind == "gate":
            nodes += [node("Sigmoid", x, f"g{i}"), node("Mul", f"{x} g{i}", y)]
        elif kind == "skip":
            nodes += [node("Conv", f"{x} u{i}", f"a{i}"), node("Add", f"{x} a{i}", y)]
        elif kind == "norm":
            nodes += [
                node("Transpose", x, f"a{i}", perm=[0, 2, 1]), node("LayerNormalization", f"a{i} b{i}", f"n{i}"),
                node("Transpose", f"n{i}", y, perm=[0, 2, 1]),
            ]  # fmt: skip
        elif kind == "split":
            nodes += [node("Split", x, f"p{i} q{i}", axis=1), node("Concat", f"q{i} p{i}", y, axis=1)]
        elif kind == "last":
            nodes += [node("ReduceMean", x, f"a{i}", axes=[1]), node("Sub", f"{x} a{i}", y)]
        else:
            nodes.append(node("Mul", f"{x} c{i}", y))
        x = y
    nodes[-1].output[0] = "y"
    proto = stack(*nodes, constants={k: v for k, v in constants.items() if any(k in n.input for n in nodes)})
    exact(proto, pulse, frames(1, C, 29, seed=seed))
