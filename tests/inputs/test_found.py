"""Faults that were found once, each as small as it gets."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import pulsify
from tests.models import frames, model, node
from tests.side import Batch


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("output", ["scaled", "y"])
def test_places_counted_from_a_mask_of_ones_with_a_free_batch(output: str, streams: int) -> None:
    """Streams and time were both left open in one Reshape: ONNX Runtime's own error came out."""
    nodes = [
        node("CumSum", "attention_mask one", "places"),
        node("Cast", "places", "as_float", to=1),
        node("Unsqueeze", "as_float last", "by_frame"),
        node("Mul", "x by_frame", "scaled"),
        node("ReduceSum", "scaled ones", "y", keepdims=0),
    ]
    inputs = {"x": ["B", "T", 3], "attention_mask": ["B", "T"]}
    known = {"one": np.array(1), "last": np.array([2]), "ones": np.array([1])}
    proto = model(nodes, inputs, [output], known, dtypes={"attention_mask": np.int64})
    stream = pulsify.stream(proto, pulse=4, bind={"attention_mask": "ones"})
    for length in (1, 4, 9, 21):
        x, session = frames(streams, length, 3), stream.session(batch=streams)
        parts = [session.push(x[:, n : n + 5]) for n in range(0, length, 5)] + [session.flush()]
        got = np.concatenate(parts, 1) if output == "scaled" else parts[-1]
        mask = np.ones((streams, length), np.int64)
        np.testing.assert_allclose(
            got, Batch(proto).run({"x": x, "attention_mask": mask})[output], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("batch", [1, "B"])
def test_a_shape_does_not_tell_of_counters_that_were_set_back(batch: int | str) -> None:
    nodes = [node("Pad", "x pads", "z"), node("Shape", "z", "y")]
    known = {"pads": np.array([0, 2, 0, 0, 2, 0])}
    proto = model(nodes, {"x": [batch, "T", 3]}, ["y", "z"], known, dtypes={"y": np.int64})
    assert pulsify.stream(proto, pulse=4, verify=False).spec.rebase == 0


def test_the_mean_of_frames_under_an_expanded_mask_with_a_free_batch() -> None:
    """One number a stream was reshaped to all channels, where it had to be spread over them."""
    nodes = [
        node("Unsqueeze", "attention_mask last", "m"),
        node("Cast", "m", "mf", to=1),
        node("Shape", "x", "s"),
        node("Expand", "mf s", "me"),
        node("Mul", "x me", "xm"),
        node("ReduceSum", "xm one", "sum", keepdims=0),
        node("ReduceSum", "me one", "n", keepdims=0),
        node("Div", "sum n", "y"),
    ]
    inputs = {"x": ["B", "T", 3], "attention_mask": ["B", "T"]}
    known = {"last": np.array([2]), "one": np.array([1])}
    proto = model(nodes, inputs, ["y"], known, dtypes={"attention_mask": np.int64})
    stream = pulsify.stream(proto, pulse=4, bind={"attention_mask": "ones"})
    for streams, length in ((1, 9), (3, 10)):
        x, session = frames(streams, length, 3), stream.session(batch=streams)
        session.push(x)
        np.testing.assert_allclose(session.flush(), x.mean(1), rtol=1e-5, atol=1e-6)


def test_noise_beside_what_is_none_excuses_nothing() -> None:
    """Two channels of rounding hid a third that was wrong."""

    def noisy(gain: float) -> onnx.ModelProto:
        nodes = [
            node("Add", "x much", "a"),
            node("Sub", "a much", "b"),
            node("Sub", "b x", "noise"),
            node("Mul", "x gain", "plain"),
            node("Concat", "noise noise plain", "y", axis=1),
        ]
        known = {"much": np.array(1e7, np.float32), "gain": np.array(gain, np.float32)}
        return model(nodes, {"x": [1, 1, "T"]}, ["y"], known)

    stream = pulsify.stream(noisy(1e-4), pulse=4, verify=False)
    with pytest.raises(pulsify.Mismatch):
        pulsify.verify(noisy(2e-4), stream)


def reduced_mask(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """The largest over time of a flag that is made of a mask."""
    behind = [node("Cast", "flag", "f", to=1), node("ReduceMax", "f", "y", axes=[1]), node("Relu", "x", "z")]
    inputs = {"x": ["B", "T", 3], "attention_mask": ["B", "T"]}
    known = {"two": np.array(2)} if any("two" in n.input for n in nodes) else {}
    return model([*nodes, *behind], inputs, ["y", "z"], known, dtypes={"attention_mask": np.int64})


def test_what_follows_from_the_number_of_streams_by_a_bound_input_is_refused() -> None:
    proto = reduced_mask(node("Mod", "attention_mask two", "rest"), node("Equal", "rest two", "flag"))
    with pytest.raises(pulsify.NotStreamable, match="number of streams") as caught:
        pulsify.stream(proto, pulse=4, bind={"attention_mask": "ones"})
    assert "fixed batch" in caught.value.hint


def test_a_flag_of_a_mask_is_the_same_for_every_number_of_streams() -> None:
    proto = reduced_mask(node("Cast", "attention_mask", "b", to=9), node("Not", "b", "flag"))
    stream = pulsify.stream(proto, pulse=4, bind={"attention_mask": "ones"})
    for streams in (1, 3):
        x = frames(streams, 9, 3)
        got = stream.run(x)
        want = Batch(proto).run({"x": x, "attention_mask": np.ones((streams, 9), np.int64)})
        np.testing.assert_array_equal(got["y"], want["y"])
        np.testing.assert_array_equal(got["z"], want["z"])


@pytest.mark.parametrize("op", ["Identity", "Cast"])
def test_a_known_output_has_a_row_for_every_stream(op: str) -> None:
    """A value that is the same for all streams came out once for three of them."""
    made = node(op, "attention_mask", "mask", **({"to": 7} if op == "Cast" else {}))
    inputs = {"x": ["B", "T", 3], "attention_mask": ["B", "T"]}
    dtypes = {"attention_mask": np.int64, "mask": np.int64}
    proto = model([made, node("Relu", "x", "y")], inputs, ["mask", "y"], {}, dtypes=dtypes)
    stream = pulsify.stream(proto, pulse=4, bind={"attention_mask": "ones"})
    got = stream.run(frames(3, 10, 3), 4)["mask"]
    np.testing.assert_array_equal(got, np.ones((3, 10), np.int64))


@pytest.mark.parametrize("outputs", [["sizes"], ["sizes", "first"], ["first", "sizes"]])
def test_a_shape_of_first_frames_that_are_given_out_too(outputs: list[str]) -> None:
    """Of streams shorter than that there are fewer."""
    nodes = [node("Slice", "x zero five one", "first"), node("Shape", "first", "sizes")]
    known = {"zero": np.array([0]), "five": np.array([5]), "one": np.array([1])}
    proto = model(nodes, {"x": [1, "T", 3]}, outputs, known, dtypes={"sizes": np.int64})
    stream = pulsify.stream(proto, pulse=2)
    for length in (1, 2, 4, 5, 9):
        got = stream.run(frames(1, length, 3), 2)
        sizes = got["sizes"] if isinstance(got, dict) else got
        assert list(sizes) == [1, min(length, 5), 3]


RESIZED = {  # scales, attributes, what is said of it; all others are exact
    "grows at last": ((1, 1, 1.25, 1), {"mode": "linear"}, None),
    "grows late": ((1, 1, 1.125, 1), {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}, None),
    "both, up": ((1, 1, 3, 2), {"mode": "linear"}, None),
    "both, down": ((1, 1, 1.5, 0.5), {"mode": "linear"}, None),
    "both, by halves": (
        (1, 1, 0.5, 2),
        {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
        None,
    ),
    "symmetric": ((1, 1, 2, 1), {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}, None),
    "symmetric by a fraction": (
        (1, 1, 1.5, 1),
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
        "places depend on the total length",
    ),
    "one row": (
        (1, 1, 0.5, 0.25),
        {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
        "a rule of its own for an axis of one",
    ),
}


@pytest.mark.parametrize("case", RESIZED)
def test_resizes_that_were_wrong(case: str) -> None:
    """Time twice where another axis was resized too; interpolated where the runtime gives its input as it is."""
    scales, attributes, refusal = RESIZED[case]
    proto = model(
        [node("Resize", "x _ scales", "r", **attributes), node("ReduceMax", "r last", "m"), node("Neg", "r", "y")],
        {"x": [1, 2, "T", 4]}, ["y", "m"], {"scales": np.array(scales, np.float32), "last": np.array([2])}, opset=19,
    )  # fmt: skip
    if refusal is not None:
        with pytest.raises(pulsify.NotStreamable, match=refusal):
            pulsify.stream(proto, pulse=8)
        return
    stream, batch, compared = pulsify.stream(proto, pulse=8, verify=False), Batch(proto), 0
    for length in (*range(1, 18), 40):
        x = frames(1, 2, length, 4, seed=length)
        wanted, session = batch.attempt({"x": x}), stream.session(padding=np.nan)
        try:
            parts = [session.push(x[:, :, n : n + 5]) for n in range(0, length, 5)] + [session.flush()]
        except pulsify.InvalidLength:
            assert length < 8, "no more than the runtime's own short lengths are turned down"
            continue
        assert wanted is not None
        got = np.concatenate([p["y"] for p in parts], 2)
        np.testing.assert_allclose(got, wanted["y"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(parts[-1]["m"], wanted["m"], rtol=1e-5, atol=1e-5)
        compared += 1
    assert compared > 8


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_frames_repeated_and_shifted_with_streams_behind_time(streams: int) -> None:
    """[T, B, C]: the step was made for as many streams as had been looked at."""
    nodes = [
        node("Shape", "x", "s"), node("Slice", "s one three", "rest"), node("Concat", "minus rest", "shape", axis=0),
        node("Unsqueeze", "x one", "u"), node("Expand", "u twice", "e"), node("Reshape", "e shape", "r"),
        node("Slice", "r zero minus zero", "cut"), node("Neg", "cut", "y"),
    ]  # fmt: skip
    known = {"one": np.array([1]), "three": np.array([3]), "minus": np.array([-1]), "zero": np.array([0]),
             "twice": np.array([1, 2, 1, 1])}  # fmt: skip
    proto = model(nodes, {"x": ["T", "B", 4]}, ["y"], known)
    stream = pulsify.stream(proto, pulse=2)
    for length in (1, 2, 3, 7, 20):
        x, session = frames(length, streams, 4), stream.session(batch=streams)
        parts = [session.push(x[n : n + 3]) for n in range(0, length, 3)] + [session.flush()]
        np.testing.assert_array_equal(np.concatenate(parts, 0), Batch(proto).run({"x": x})["y"])


def test_a_mask_of_floats_is_left_a_stream() -> None:
    """It was taken for a length, which is an integer."""
    nodes = [node("Unsqueeze", "attention_mask last", "m"), node("Mul", "x m", "y")]
    inputs = {"x": ["B", "T", 3], "attention_mask": ["B", "T"]}
    proto = model(nodes, inputs, ["y"], {"last": np.array([2])})
    stream = pulsify.stream(proto, pulse=4, bind={"attention_mask": None})
    given = {"x": frames(2, 9, 3), "attention_mask": frames(2, 9)}
    np.testing.assert_allclose(stream.run(given), Batch(proto).run(given)["y"], rtol=1e-6)
