"""A fourth hunt: streams that were wrong with a free batch, and graphs that ended in an error of pulsify's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.backends.native import library
from pulsify.core.chunks import chunkings
from tests.models import Array, close, model, node, weights
from tests.side import Batch, streamed

RANGE = [node("Shape", "x", "s"), node("Gather", "s two", "n"), node("Range", "zero n one", "r")]
NUMBERS = {"zero": np.array(0), "one": np.array(1), "two": np.array(2)}


def exact(proto: onnx.ModelProto, streams: Sequence[int], pulse: int | None = 3) -> None:
    """At every short length, of one stream and of several in step."""
    stream, batch, rng = pulsify.stream(proto, pulse=pulse, verify=False), Batch(proto), np.random.default_rng(0)
    dims = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(proto.graph.input[0].type.tensor_type.elem_type)
    compared = 0
    for count in streams:
        for length in range(1, 14):
            x = rng.integers(-4, 5, [dims[0] or count, *dims[1:-1], length]).astype(dtype)
            wanted = batch.attempt({"x": x})
            for cuts in chunkings(length, stream.pulse, rng) if wanted is not None else ():
                have = streamed(stream, x, cuts)
                for name, want in (wanted or {}).items():
                    close(have[name], want)
                compared += 1
    assert compared > 10


def some_written(rows: int, batch: int | str) -> onnx.ModelProto:
    """The first channel of the first few streams is written to, in every frame."""
    nodes = [
        node("Tanh", "x", "h"),
        node("Shape", "h", "s"),
        node("Gather", "s two", "n"),
        node("Concat", "rows one n", "like", axis=0),
        node("Expand", "place like", "places"),
        node("Expand", "value like", "values"),
        node("ScatterElements", "h places values", "y", axis=1),
    ]
    given = {"two": np.array([2]), "one": np.array([1]), "rows": np.array([rows])}
    given |= {"place": np.zeros((1, 1, 1), np.int64), "value": weights(1, 1, 1)}
    return model(nodes, {"x": [batch, 2, "T"]}, ["y"], given, opset=18)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_write_into_some_streams_is_no_write_into_all(rows: int) -> None:
    with pytest.raises(pulsify.NotStreamable, match="some of the streams only") as caught:
        pulsify.stream(some_written(rows, "B"), pulse=3)
    assert (caught.value.node, caught.value.op) == ("y", "ScatterElements")
    exact(some_written(rows, 3), [3])


@pytest.mark.parametrize("mode", ["edge", "reflect", "constant"])
@pytest.mark.parametrize("pads", [(-1, 0), (0, -1), (-2, -1)])
@pytest.mark.parametrize("pulse", [None, 3, 6])
def test_positions_that_are_cut_by_a_pad_are_as_many_in_any_batch(
    mode: str, pads: tuple[int, int], pulse: int | None
) -> None:
    nodes = [*RANGE, node("Pad", "r pads", "p", mode=mode), node("GlobalAveragePool", "x", "g")]
    given = {**NUMBERS, "pads": np.array(pads)}
    proto = model(nodes, {"x": ["B", 4, "T"]}, ["p", "g"], given, dtypes={"p": np.int64}, opset=18)
    exact(proto, [1, 3], pulse)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_positions_shown_again_are_refused_where_each_stream_has_its_own(mode: str) -> None:
    given = {**NUMBERS, "pads": np.array([2, 0])}
    for batch in ("B", 1):
        proto = model(
            [*RANGE, node("Pad", "r pads", "p", mode=mode), node("Tanh", "x", "t")],
            {"x": [batch, 4, "T"]}, ["p", "t"], given, dtypes={"p": np.int64}, opset=18,
        )  # fmt: skip
        if batch == 1:
            exact(proto, [1])
        else:
            with pytest.raises(pulsify.NotStreamable):
                pulsify.stream(proto, pulse=3)


@pytest.mark.parametrize("outputs", [["last"], ["first", "last"]])
def test_the_last_part_of_a_split_may_be_an_output(outputs: list[str]) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s two", "n"),
        node("Sub", "n one", "rest"),
        node("Concat", "rest one", "sizes", axis=0),
        node("Split", "x sizes", "first last", axis=2),
    ]
    exact(model(nodes, {"x": ["B", 2, "T"]}, outputs, {"two": np.array([2]), "one": np.array([1])}), [1, 3])


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float64])
@pytest.mark.parametrize("upper", [0, 1])
def test_a_triangle_of_any_type(dtype: type, upper: int) -> None:
    types = {"x": dtype, "y": dtype}
    exact(model([node("Trilu", "x", "y", upper=upper)], {"x": [1, 3, 4, "T"]}, ["y"], dtypes=types), [1])


def test_a_loop_that_never_turns_is_nothing() -> None:
    float_, whole, truth = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL)
    port = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [node("Identity", "go", "goes"), node("Mul", "v half", "w")], "body",
        [port("turn", whole, []), port("go", truth, []), port("v", float_, None)],
        [port("goes", truth, []), port("w", float_, None)],
    )  # fmt: skip
    given = {"none": np.array(0), "half": np.array(0.5, np.float32), "w1": weights(3, 2, 3)}
    nodes = [node("Loop", "none _ x", "z", body=body), node("Conv", "z w1", "y", pads=[1, 1])]
    exact(model(nodes, {"x": [1, 2, "T"]}, ["y"], given), [1])


COMBINING = {
    "mean": [node("ReduceMean", "x", "m", axes=[0], keepdims=1), node("Sub", "x m", "y")],
    "joined": [node("Neg", "x", "m"), node("Concat", "x m", "y", axis=0)],
    "counted": [*RANGE[:1], node("Gather", "s zero", "n"), node("Cast", "n", "f", to=1), node("Mul", "x f", "y")],
    "summed": [node("CumSum", "x zero", "y")],
    "least": [node("ReduceMin", "x", "y", axes=[0], keepdims=0)],
}  # fmt: skip


@pytest.mark.skipif(not library.available(), reason="no C compiler")
@pytest.mark.parametrize("name", COMBINING)
def test_streams_that_are_combined_are_not_computed_one_by_one(name: str) -> None:
    proto = model(COMBINING[name], {"x": ["B", 2, "T"]}, ["y"], NUMBERS)
    stream, x = pulsify.stream(proto, pulse=3, verify=False), weights(3, 2, 8)
    want = Batch(proto).run({"x": x})["y"]
    assert np.allclose(stream.run(x), want, atol=1e-5)
    with pytest.raises(pulsify.NotSupported, match="combines the streams"):
        stream.run(x, backend="native")
    alone: Array = np.asarray(stream.run(x[:1], backend="native"))
    assert np.allclose(alone, Batch(proto).run({"x": x[:1]})["y"], atol=1e-5)


COUNT = [node("Shape", "x", "s"), node("Gather", "s zero", "b")]


def test_frames_in_front_that_know_the_number_of_streams_are_no_constants() -> None:
    nodes = [*COUNT, node("Cast", "b", "f", to=1), node("Pad", "x pads", "p"), node("Sub", "p f", "d")]
    nodes += [node("Conv", "d w", "y")]
    given = {**NUMBERS, "pads": np.array([0, 0, 2, 0, 0, 0]), "w": weights(2, 2, 3)}
    exact(model(nodes, {"x": ["B", 2, "T"]}, ["y"], given), [1, 2, 5])


def test_a_size_that_only_a_shape_reads_goes_with_the_batch_as_well() -> None:
    """A remainder that is zero for the three streams of a trace."""
    nodes = [*COUNT, node("Mod", "b three", "m"), node("Reshape", "m shape", "r")]
    nodes += [node("Concat", "none none none none none r", "pads", axis=0), node("Pad", "x pads", "longer")]
    nodes += [node("Shape", "longer", "like"), node("Expand", "value like", "y")]
    given = {**NUMBERS, "three": np.array(3), "shape": np.array([1]), "none": np.array([0]), "value": weights(1, 1, 1)}
    with pytest.raises(pulsify.NotStreamable, match="how many streams") as caught:
        pulsify.stream(model(nodes, {"x": ["B", 2, "T"]}, ["y"], given), pulse=3)
    assert caught.value.node == "longer"


@pytest.mark.parametrize("backend", ["ort", "torch"])
def test_what_follows_from_a_count_is_not_seen_by_streams_of_a_pool(backend: str) -> None:
    """Five streams and two are alike to it, and all others are not."""
    nodes = [*COUNT, node("Mod", "b three", "m"), node("Cast", "m", "f", to=1), node("Mul", "x f", "y")]
    proto = model(nodes, {"x": ["B", 2, "T"]}, ["y"], {**NUMBERS, "three": np.array(3)})
    pool = pulsify.Pool(pulsify.stream(proto, pulse=2, verify=False), 4, backend=backend)
    x, lanes = weights(3, 2, 8), [pool.open() for _ in range(3)]
    for lane, row in zip(lanes, x, strict=True):
        lane.push(row[None])
        lane.flush()
    for result, row in zip(pool.run().values(), x, strict=True):
        close(np.asarray(result), row[None])


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_channels_that_are_streams_are_no_free_batch(op: str) -> None:
    nodes = [node("Transpose", "x", "turned", perm=[1, 0, 2]), node(op, "turned w", "y")]
    proto = model(nodes, {"x": ["B", 1, "T"]}, ["y"], {"w": weights(2, 2, 3)})
    with pytest.raises(pulsify.NotStreamable, match="3 channels, and its weights are for 2"):
        pulsify.stream(proto, pulse=3)


def test_a_mask_without_rows_at_the_longest_length_seen_is_refused() -> None:
    nodes = [*RANGE, node("Less", "r two", "near"), node("Unsqueeze", "near first", "mask")]
    nodes += [node("Mod", "n seven", "k"), node("Mod", "k four", "m"), node("Add", "m one", "rows")]
    nodes += [node("Reshape", "rows single", "r1"), node("Concat", "r1 single", "times", axis=0)]
    nodes += [node("Tile", "mask times", "all"), node("Slice", "all single end first", "y"), node("Tanh", "x", "t")]
    given = {**NUMBERS, "seven": np.array(7), "four": np.array(4), "single": np.array([1]), "first": np.array([0])}
    given["end"] = np.array([1 << 31])
    proto = model(nodes, {"x": [1, 2, "T"]}, ["y", "t"], given, dtypes={"y": np.bool_})
    with pytest.raises(pulsify.NotStreamable):
        pulsify.stream(proto, pulse=3)


@pytest.mark.parametrize("op", ["GreaterOrEqual", "LessOrEqual"])
@pytest.mark.parametrize("opset", [12, 13, 15, 18])
def test_frames_are_compared_in_every_version(op: str, opset: int) -> None:
    nodes = [node(op, "x zero", "c"), node("Cast", "c", "y", to=1)]
    exact(model(nodes, {"x": [1, 2, "T"]}, ["y"], {"zero": np.zeros(1, np.float32)}, opset=opset), [1])


def test_positions_of_what_is_quantised_and_not_read() -> None:
    nodes = [node("QuantizeLinear", "x scale point", "q"), node("DequantizeLinear", "q scale point", "d")]
    nodes += [node("Hardmax", "d", "m", axis=1), node("Shape", "m", "s"), node("Gather", "s two", "n")]
    nodes += [node("Range", "zero n one", "r"), node("Mod", "r three", "k"), node("Tanh", "x", "t")]
    given = {**NUMBERS, "scale": np.array(0.5, np.float32), "point": np.array(3, np.uint8), "three": np.array(3)}
    exact(model(nodes, {"x": [1, 2, "T"]}, ["k", "t"], given, dtypes={"k": np.int64}), [1])


ACROSS = {
    "cumsum": [node("CumSum", "p zero", "y")],
    "softmax": [node("Softmax", "p", "y", axis=0)],
    "norm": [node("LpNormalization", "p", "y", axis=0)],
}


@pytest.mark.parametrize("name", ACROSS)
def test_padding_that_is_combined_across_streams_is_no_constant(name: str) -> None:
    given = {**NUMBERS, "pads": np.array([0, 0, 3, 0, 0, 0]), "fill": np.array(1, np.float32), "w": weights(2, 2, 2)}
    nodes = [node("Pad", "x pads fill", "p"), *ACROSS[name], node("Conv", "y w", "z")]
    with pytest.raises(pulsify.NotStreamable, match="combines the streams") as caught:
        pulsify.stream(model(nodes, {"x": ["B", 2, "T"]}, ["z"], given), pulse=3)
    assert caught.value.node == "y"
    exact(model(nodes, {"x": [3, 2, "T"]}, ["z"], given), [3])


@pytest.mark.parametrize("backend", ["ort", "torch"])
def test_streams_of_a_pool_are_alone_at_their_start_too(backend: str) -> None:
    """The first frames only are summed up across streams."""
    nodes = [*RANGE, node("Less", "r three", "early"), node("CumSum", "x zero", "c"), node("Where", "early c x", "y")]
    proto = model(nodes, {"x": ["B", 2, "T"]}, ["y"], {**NUMBERS, "three": np.array(3)})
    pool = pulsify.Pool(pulsify.stream(proto, pulse=2, verify=False), 4, backend=backend)
    x, lanes = weights(3, 2, 8), [pool.open() for _ in range(3)]
    for lane, row in zip(lanes, x, strict=True):
        lane.push(row[None])
        lane.flush()
    for result, row in zip(pool.run().values(), x, strict=True):
        close(np.asarray(result), Batch(proto).run({"x": row[None]})["y"])


def test_a_branch_by_the_number_of_frames_of_all_streams() -> None:
    """At the length of a trace all batches take one branch, and the shortest streams of three take it as well."""

    def branch(op: str, name: str) -> onnx.GraphProto:
        port = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        return onnx.helper.make_graph([node(op, "x half", name)], f"by_{name}", [], [port])

    nodes = [node("Size", "x", "n"), node("Greater", "n limit", "c")]
    nodes += [node("If", "c", "y", then_branch=branch("Mul", "a"), else_branch=branch("Add", "b"))]
    given = {"limit": np.array(40), "half": np.array(0.5, np.float32)}
    with pytest.raises(pulsify.NotStreamable, match="how many streams"):
        pulsify.stream(model(nodes, {"x": ["B", 2, "T"]}, ["y"], given), pulse=3)
    assert pulsify.stream(model(nodes, {"x": [6, 2, "T"]}, ["y"], given), pulse=3).spec.shortest == 4
