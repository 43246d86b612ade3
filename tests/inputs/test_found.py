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


def test_what_follows_from_the_number_of_streams_by_a_bound_input_is_refused() -> None:
    nodes = [
        node("Cast", "attention_mask", "b", to=9),
        node("Not", "b", "hidden"),
        node("Cast", "hidden", "f", to=1),
        node("ReduceMax", "f", "y", axes=[1]),
        node("Relu", "x", "z"),
    ]
    inputs = {"x": ["B", "T", 3], "attention_mask": ["B", "T"]}
    proto = model(nodes, inputs, ["y", "z"], {}, dtypes={"attention_mask": np.int64})
    with pytest.raises(pulsify.NotStreamable, match="number of streams") as caught:
        pulsify.stream(proto, pulse=4, bind={"attention_mask": "ones"})
    assert "fixed batch" in caught.value.hint


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
