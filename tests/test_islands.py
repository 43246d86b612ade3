"""Nodes that torch does not have, wherever they are: the stream is the batch model, and the islands are listed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import pulsify
from pulsify.backends.torch.table import op
from pulsify.core.chunks import chunkings
from tests.attention.graphs import Case, build
from tests.attention.masks import Mask
from tests.models import Array, model, node, weights
from tests.side import Batch, streamed

pytest.importorskip("torch")

LIMIT = 1e-5  # of the output's scale
TWO = np.array([2])
CONV = {"w": weights(4, 2, 3), "v": weights(2, 2, 3, seed=2), "two": TWO, "four": np.array([4])}
X = {"x": [1, 2, "T"]}


def reversed_channels(inputs: str, outputs: str) -> onnx.NodeProto:
    """The first channels, the other way round: torch has no such operator."""
    made = node("ReverseSequence", inputs, outputs, batch_axis=0, time_axis=1)
    made.name = f"odd_{outputs}"
    return made


def in_the_middle() -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w", "h", pads=[1, 1]), reversed_channels("h four", "odd"),
        node("Conv", "odd u", "y", pads=[0, 2]),
    ]  # fmt: skip
    return model(nodes, X, ["y"], {**CONV, "u": weights(3, 4, 3)})


def at_the_start() -> onnx.ModelProto:
    return model([reversed_channels("x two", "odd"), node("Conv", "odd w", "y", pads=[1, 1])], X, ["y"], CONV)


def at_the_end() -> onnx.ModelProto:
    return model([node("Conv", "x w", "h", pads=[1, 1]), reversed_channels("h four", "y")], X, ["y"], CONV)


def everywhere() -> onnx.ModelProto:
    """At the start, in the middle of two branches, and at the end."""
    nodes = [
        reversed_channels("x two", "odd"), node("Conv", "odd v", "a", pads=[1, 1]), reversed_channels("a two", "odd_a"),
        node("Sigmoid", "a", "b"), node("Mul", "odd_a b", "c"), reversed_channels("c two", "y"),
    ]  # fmt: skip
    return model(nodes, X, ["y"], CONV)


def with_node(proto: onnx.ModelProto, wire: str, nodes: Sequence[onnx.NodeProto], made: str) -> onnx.ModelProto:
    """The same model, in which everybody who read `wire` reads `made`."""
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    at = next(i for i, n in enumerate(out.graph.node) if wire in n.output)
    for n in out.graph.node:
        n.input[:] = [made if i == wire else i for i in n.input]
    for n in reversed(nodes):
        out.graph.node.insert(at + 1, n)
    out.graph.initializer.extend(
        [numpy_helper.from_array(np.zeros((), np.float32), "nothing"), numpy_helper.from_array(TWO, "two")]
    )
    return out


def in_scores() -> onnx.ModelProto:
    """Between the scores and their mask: torch tells both infinities or none."""
    nodes = [node("IsInf", "scores", "odd", detect_negative=0), node("Where", "odd nothing scores", "chosen")]
    return with_node(attention(), "scores", nodes, "chosen")


def in_values() -> onnx.ModelProto:
    """Heads change places before they are joined."""
    return with_node(attention(), "values", [reversed_channels("values two", "odd")], "odd")


def attention() -> onnx.ModelProto:
    return build(Case(mask=Mask("chunk", 4, left=2))).model


def in_a_loop() -> onnx.ModelProto:
    """A Scan over time, with such a node in its body: frame by frame to the CPU and back."""
    body = helper.make_graph(
        [
            node("Add", "before frame", "sum"), node("IsInf", "sum", "odd", detect_negative=0),
            node("Where", "odd before sum", "kept"), node("Tanh", "kept", "after"), node("Identity", "after", "out"),
        ],
        "body",
        [helper.make_tensor_value_info(n, 1, [1, 2]) for n in ("before", "frame")],
        [helper.make_tensor_value_info(n, 1, [1, 2]) for n in ("after", "out")],
    )  # fmt: skip
    nodes = [
        node("Conv", "x v", "h", pads=[1, 1]), node("Transpose", "h", "t", perm=[2, 0, 1]),
        helper.make_node("Scan", ["zero", "t"], ["last", "all"], name="odd", body=body, num_scan_inputs=1),
        node("Transpose", "all", "back", perm=[1, 2, 0]), node("Conv", "back w", "y", pads=[1, 1]),
    ]  # fmt: skip
    return model(nodes, X, ["y"], {**CONV, "zero": np.zeros((1, 2), np.float32)})


MADE = (in_the_middle, at_the_start, at_the_end, everywhere, in_scores, in_values, in_a_loop)


@cache
def stream_of(name: str) -> tuple[pulsify.Stream, Batch]:
    proto = next(m for m in MADE if m.__name__ == name)()
    return pulsify.stream(proto, pulse=4, verify=False), Batch(proto)


def fed(stream: pulsify.Stream, length: int) -> Array:
    (port,) = stream.inputs
    dims = [length if axis == port.axis else int(d) for axis, d in enumerate(port.dims)]
    return np.random.default_rng(length).standard_normal(dims).astype(np.float32)


def compared(stream: pulsify.Stream, batch: Batch, lengths: Sequence[int], **options: Any) -> None:
    """At every length, cut in many ways, as saved and as sessions run it, with NaN behind the end."""
    rng = np.random.default_rng(1)
    for length in lengths:
        x = fed(stream, length)
        want = batch.run({stream.inputs[0].name: x})
        for i, cuts in enumerate(chunkings(length, stream.pulse, rng)):
            got = streamed(stream, x, cuts, backend="torch", options={"device": "cpu", **options}, portable=i == 0)
            for name, array in want.items():
                assert got[name].shape == array.shape and got[name].dtype == array.dtype
                assert np.abs(got[name] - array).max(initial=0) <= LIMIT * np.abs(array).max(initial=1)


@pytest.mark.parametrize("name", [m.__name__ for m in MADE])
def test_a_node_that_torch_does_not_have(name: str) -> None:
    stream, batch = stream_of(name)
    compared(stream, batch, (1, 7, 8, 21))
    session = stream.session(backend="torch", device="cpu")
    islands = [p for p in session.placement if p.reason]
    assert islands and all("odd" in p.node and p.device == "cpu" and p.nbytes > 0 for p in islands)
    assert {p.op for p in islands} <= {"ReverseSequence", "IsInf"}, "nothing else is left behind"
    assert {p.step for p in islands} == {p.step for p in session.placement}
    with pytest.raises(
        pulsify.InvalidArgument, match=r"would be on the CPU too: '.*odd.*' \((no expression for Rev|IsInf)"
    ):
        stream.session(backend="torch", device="cpu", allow_cpu=["another"])
    stream.session(backend="torch", device="cpu", allow_cpu=["odd"])


def test_torch_still_does_not_have_it() -> None:
    assert "ReverseSequence" not in op.table()


@pytest.mark.parametrize("name", ["in_the_middle", "in_scores", "in_a_loop"])
def test_node_by_node_with_islands(name: str) -> None:
    report = pulsify.compare_nodes(stream_of(name)[0], options={"device": "cpu"})
    assert report.ok and report.pulses["general"] > 0, report
    assert any("odd" in n.node and n.reason for n in report.nodes)


def test_streams_side_by_side_with_an_island() -> None:
    """The same nodes for three streams at once, and from one back end to the other."""
    proto = model(
        [node("Conv", "x w", "h", pads=[1, 1]), node("LpNormalization", "h", "odd", axis=1), node("Relu", "odd", "y")],
        {"x": ["B", 2, "T"]}, ["y"], CONV,
    )  # fmt: skip
    stream, x = pulsify.stream(proto, pulse=4, verify=False), np.random.default_rng(0).standard_normal((3, 2, 19))
    x = x.astype(np.float32)
    got = streamed(stream, x, [5, 14], backend="torch", options={"device": "cpu", "force_cpu": ["odd"]})["y"]
    np.testing.assert_allclose(got, Batch(proto).run({"x": x})["y"], atol=1e-5)
    pool = pulsify.Pool(stream, 2, backend="torch", options={"device": "cpu", "force_cpu": ["odd"]})
    lane = pool.open()
    lane.push(x[:1])
    lane.flush()
    np.testing.assert_allclose(pool.run()[lane], got[:1], atol=1e-5)
    assert {p.node for p in pool.placement if p.reason} == {"odd"}
