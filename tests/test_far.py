"""Numbers in a model beyond the lengths that are looked at, and frames that are none: never a guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.models import close, frames, model, node, run_batch, run_stream, weights

Nodes = list[onnx.NodeProto]
LIMIT = np.array([3000], np.int64)
TIME = np.array([2], np.int64)


def made(nodes: Nodes, constants: dict[str, Any], **options: Any) -> onnx.ModelProto:
    return model(nodes, {"x": (1, 2, "T")}, ["y"], {"limit": LIMIT, "time": TIME, **constants}, **options)


def size() -> Nodes:
    """The number of frames, [1]."""
    return [node("Shape", "x", "dims"), node("Gather", "dims time", "size")]


def gru(inputs: str) -> tuple[Nodes, dict[str, Any]]:
    turned = [node("Transpose", "x", "turned", perm=[2, 0, 1])]
    given = {"W": weights(1, 9, 2), "R": weights(1, 9, 3, seed=1)}
    return [*turned, node("GRU", f"turned W R {inputs}", "y", hidden_size=3)], given


def cut() -> onnx.ModelProto:
    zero = np.zeros(1, np.int64)
    nodes = [*size(), node("Min", "size limit", "end"), node("Slice", "x zero end time", "y")]
    return made(nodes, {"zero": zero})


def plainly_cut() -> onnx.ModelProto:
    return made([node("Slice", "x zero limit time", "y")], {"zero": np.zeros(1, np.int64)})


def capped_lengths() -> onnx.ModelProto:
    nodes, given = gru("_ lens")
    nodes[-1].input[3] = ""
    lens = [node("Min", "size limit", "least"), node("Cast", "least", "lens", to=6)]
    return made([*size(), *lens, *nodes], given)


def another_start() -> onnx.ModelProto:
    """The first state is one, but only of streams longer than 3000 frames."""
    nodes, given = gru("_ _ h0")
    nodes[-1].input[3] = nodes[-1].input[4] = ""
    start = [
        node("Greater", "size limit", "long"), node("Cast", "long", "one", to=1),
        node("Reshape", "one cube", "small"), node("Expand", "small shape", "h0"),
    ]  # fmt: skip
    constants = {"cube": np.ones(3, np.int64), "shape": np.array([1, 1, 3], np.int64)}
    return made([*size(), *start, *nodes], {**given, **constants})


@pytest.mark.parametrize("build", [cut, plainly_cut])
def test_a_stream_goes_on_past_the_frames_that_are_cut_off(build: Callable[[], onnx.ModelProto]) -> None:
    proto = build()
    stream = pulsify.stream(proto, pulse=4)
    for length in (1, 7, 2999, 3000, 3001, 3002, 4000):
        x = frames(1, 2, length)
        close(run_stream(stream.session(), x, [5, length // 2, length - length // 2 - 5] if length > 10 else [length]),
              run_batch(proto, x)["y"])  # fmt: skip


@pytest.mark.parametrize("build", [capped_lengths, another_start])
def test_a_limit_far_out_is_seen(build: Callable[[], onnx.ModelProto]) -> None:
    with pytest.raises(pulsify.NotStreamable) as caught:
        pulsify.stream(build(), pulse=4)
    assert caught.value.node and caught.value.reason and caught.value.hint


def test_the_callers_model_stays_as_it_is() -> None:
    proto = another_start()
    before = proto.SerializeToString(deterministic=True)
    with pytest.raises(pulsify.NotStreamable):
        pulsify.stream(proto, pulse=4)
    assert proto.SerializeToString(deterministic=True) == before


def test_a_gru_needs_a_frame() -> None:
    """The runtime ends the process on an empty sequence: neither the check nor a session must try."""
    nodes, given = gru("")
    nodes = [node("Slice", "x two end time", "later"), *nodes]
    nodes[1].input[0] = "later"
    proto = made(nodes, {**given, "two": np.array([2], np.int64), "end": np.array([1 << 40], np.int64)})
    session = pulsify.stream(proto, pulse=1).session()
    session.push(frames(1, 2, 2))
    with pytest.raises(pulsify.InvalidLength, match="at least 3"):
        session.flush()


def test_frames_that_are_none_divide_by_nothing() -> None:
    """A running mean of whole numbers behind a shift: its divisor would be zero before the first frame."""
    nodes = [
        node("Slice", "x two end time", "later"), node("CumSum", "later axis", "sums"), node("Shape", "later", "dims"),
        node("Gather", "dims axis", "size"), node("Range", "none size one", "count"), node("Add", "count one", "many"),
        node("Div", "sums many", "y"),
    ]  # fmt: skip
    constants = {
        "two": np.array([2], np.int64), "end": np.array([1 << 40], np.int64), "axis": np.array(2, np.int64),
        "none": np.array(0, np.int64), "one": np.array(1, np.int64),
    }  # fmt: skip
    proto = made(nodes, constants, dtypes={"x": np.int64, "y": np.int64})
    x = np.random.default_rng(0).integers(-50, 50, (1, 2, 23))
    session = pulsify.stream(proto, pulse=4).session()
    np.testing.assert_array_equal(run_stream(session, x, [5, 9, 9]), run_batch(proto, x)["y"])


def test_an_index_out_of_the_table_is_none_of_ours() -> None:
    """x - 100 is a row of the table for every real frame, and for no other."""
    nodes = [node("Sub", "x hundred", "row"), node("Gather", "table row", "y")]
    table = weights(7)
    proto = made(nodes, {"hundred": np.array(100, np.int64), "table": table}, dtypes={"x": np.int64})
    x = np.random.default_rng(0).integers(100, 107, (1, 2, 11))
    close(run_stream(pulsify.stream(proto, pulse=4, verify=False).session(), x, [3, 8]), run_batch(proto, x)["y"])
