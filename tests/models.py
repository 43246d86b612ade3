"""Small ONNX models for the tests, built by hand: no exporter, no files.

proto = model([node("Conv", "x w", "y", pads=[1, 1])], {"x": [1, 2, "T"]}, ["y"], {"w": weights(3, 2, 3)})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]
Dims = Sequence[int | str | None]
OPSET = 17


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node; names are separated by spaces, '_' leaves an optional input out, the first output names the node."""
    names = ["" if n == "_" else n for n in inputs.split()]
    return helper.make_node(op, names, outputs.split(), name=outputs.split()[0], **attributes)


def port(name: str, dims: Dims | None, dtype: Any = np.float32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Dims],
    outputs: Sequence[str],
    weights: Mapping[str, Array] | None = None,
    *,
    dtypes: Mapping[str, Any] | None = None,
    opset: int = OPSET,
    **options: Any,
) -> onnx.ModelProto:
    """A model; inputs by name with their dimensions. `dtypes` are those of inputs and outputs that are not float32."""
    types = dtypes or {}
    graph = helper.make_graph(
        list(nodes),
        "model",
        [port(n, dims, types.get(n, np.float32)) for n, dims in inputs.items()],
        [port(n, None, types.get(n, np.float32)) for n in outputs],
        [numpy_helper.from_array(w, n) for n, w in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *options.pop("imports", [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, **options)


def weights(*dims: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)


def frames(*dims: int, seed: int = 1) -> npt.NDArray[np.float32]:
    """Random input."""
    return weights(*dims, seed=seed)


# ---- one idea each; x is [1, 2, T] unless said otherwise


def look_ahead(batch: int | str = 1, opset: int = OPSET) -> onnx.ModelProto:
    """Two padded convolutions: a delay, both boundaries, a counter."""
    return model(
        [
            node("Conv", "x w1", "h", pads=[1, 1]),
            node("Relu", "h", "r"),
            node("Conv", "r w2", "y", pads=[2, 2]),
        ],
        {"x": [batch, 2, "T"]},
        ["y"],
        {"w1": weights(4, 2, 3), "w2": weights(3, 4, 5)},
        opset=opset,
    )


def causal(batch: int | str = 1) -> onnx.ModelProto:
    """A convolution padded before: no delay, no counter."""
    return model([node("Conv", "x w", "y", pads=[2, 0])], {"x": [batch, 2, "T"]}, ["y"], {"w": weights(3, 2, 3)})


def blocks(ahead: int = 1, block: int = 8, batch: int | str = 1) -> onnx.ModelProto:
    """A convolution that looks ahead, then blocks of frames with their maximum taken off: pulses at a phase."""
    return model(
        [
            node("Conv", "x w", "c", pads=[ahead, ahead]),
            node("Reshape", "c s", "b"),
            node("ReduceMax", "b", "m", axes=[3]),
            node("Sub", "b m", "d"),
            node("Reshape", "d t", "y"),
        ],
        {"x": [batch, 2, "T"]},
        ["y"],
        {"w": weights(2, 2, 2 * ahead + 1), "s": np.array([0, 2, -1, block]), "t": np.array([0, 2, -1])},
    )


def whole_blocks(batch: int | str = 1) -> onnx.ModelProto:
    """The same of whole numbers [B, T], which are divisors."""
    return model(
        [
            node("Pad", "x n one", "p"),
            node("Slice", "p n1 far n1", "h"),
            node("Div", "big h", "q"),
            node("Reshape", "q s", "b"),
            node("ReduceMax", "b", "m", axes=[2]),
            node("Sub", "b m", "d"),
            node("Reshape", "d t", "y"),
        ],
        {"x": [batch, "T"]},
        ["y"],
        {
            "n": np.array([0, 0, 0, 1]), "one": np.array(1), "n1": np.array([1]), "far": np.array([1 << 40]),
            "big": np.array(1000), "s": np.array([0, -1, 4]), "t": np.array([0, -1]),
        },
        dtypes={"x": np.int64, "y": np.int64},
    )  # fmt: skip


def mirrored(batch: int | str = 1, channels: int = 2) -> onnx.ModelProto:
    """Two causal convolutions of five frames, four mirrored in front of each: the start shows later frames."""
    nodes, given = _mirrored("y", channels)
    return model(nodes, {"x": [batch, 2, "T"]}, ["y"], given)


def mirrored_lstm(batch: int | str = 1) -> onnx.ModelProto:
    """As a codec has it: `mirrored`, and two LSTMs behind; frames y [B, T, 4] and the last state h [1, B, 4]."""
    nodes, given = _mirrored("c", 2)
    nodes += [
        node("Transpose", "c", "turned", perm=[2, 0, 1]),
        node("LSTM", "turned w r", "l1", hidden_size=4),
        node("Squeeze", "l1 one", "s1"),
        node("LSTM", "s1 v u", "l2 h", hidden_size=4),
        node("Squeeze", "l2 one", "s2"),
        node("Transpose", "s2", "y", perm=[1, 0, 2]),
    ]
    given |= {n: weights(1, 16, 3 if n == "w" else 4, seed=i) for i, n in enumerate("wrvu")}
    return model(nodes, {"x": [batch, 2, "T"]}, ["y", "h"], {**given, "one": np.array([1])})


def _mirrored(out: str, channels: int) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    nodes = [
        node("Pad", "x before", "p1", mode="reflect"),
        node("Conv", "p1 w1", "c1"),
        node("Tanh", "c1", "t"),
        node("Pad", "t before", "p2", mode="reflect"),
        node("Conv", "p2 w2", out),
    ]
    return nodes, {"w1": weights(channels, 2, 5), "w2": weights(3, channels, 5), "before": np.array([0, 0, 4, 0, 0, 0])}


def valid() -> onnx.ModelProto:
    """A convolution of five frames, not padded: shorter streams do not exist."""
    return model([node("Conv", "x w", "y")], {"x": [1, 2, "T"]}, ["y"], {"w": weights(3, 2, 5)})


def strided() -> onnx.ModelProto:
    """Every fourth frame: the pulse must be a multiple of 4."""
    return model(
        [node("Conv", "x w", "h", pads=[1, 1], strides=[2]), node("Conv", "h v", "y", pads=[1, 1], strides=[2])],
        {"x": [1, 2, "T"]},
        ["y"],
        {"w": weights(4, 2, 3), "v": weights(3, 4, 3)},
    )


def two_rates() -> onnx.ModelProto:
    """`slow` [1, 2, T] and `fast` [1, 2, 4*T]: four frames for every one; two outputs at both rates."""
    return model(
        [
            node("Conv", "slow w", "s", pads=[1, 1]),
            node("Conv", "fast v", "f", pads=[1, 1], strides=[4]),
            node("Add", "s f", "sum"),
            node("Neg", "fast", "negative"),
        ],
        {"slow": [1, 2, "T"], "fast": [1, 2, "4*T"]},
        ["sum", "negative"],
        {"w": weights(3, 2, 3), "v": weights(3, 2, 3, seed=2)},
    )


def conditioned(batch: int | str = 1) -> onnx.ModelProto:
    """A static input `scale` [batch, 3, 1] beside the streamed one."""
    return model(
        [node("Conv", "x w", "h", pads=[1, 1]), node("Mul", "h scale", "y")],
        {"x": [batch, 2, "T"], "scale": [batch, 3, 1]},
        ["y"],
        {"w": weights(3, 2, 3)},
    )


def tokens() -> onnx.ModelProto:
    """Integers in: an embedding and a convolution."""
    return model(
        [
            node("Gather", "table x", "e", axis=0),
            node("Transpose", "e", "t", perm=[0, 2, 1]),
            node("Conv", "t w", "y", pads=[1, 1]),
        ],
        {"x": [1, "T"]},
        ["y"],
        {"table": weights(7, 2), "w": weights(3, 2, 3)},
        dtypes={"x": np.int64},
    )


def with_length(batch: int | str = 1, name: str = "length") -> onnx.ModelProto:
    """`length` is the stream's length; `encoded_lengths` is what remains of it after a stride of 2."""
    return model(
        [
            node("Conv", "x w", "y", pads=[1, 1], strides=[2]),
            node("Add", f"{name} one", "more"),
            node("Div", "more two", "encoded_lengths"),
        ],
        {"x": [batch, 2, "T"], name: [batch]},
        ["y", "encoded_lengths"],
        {"w": weights(3, 2, 3), "one": np.array([1]), "two": np.array([2])},
        dtypes={name: np.int64, "encoded_lengths": np.int64},
    )


# ---- running them


def run_batch(proto: onnx.ModelProto, inputs: Mapping[str, Array] | Array) -> dict[str, Array]:
    """The whole input at once, on ONNX Runtime. A single array is the first input."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = inputs if isinstance(inputs, Mapping) else {session.get_inputs()[0].name: inputs}
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(feeds)), strict=True))


def run_stream(session: Any, x: Array, cuts: Sequence[int], axis: int = -1) -> Array:
    """All output frames of a stream with one input and one output (axis -1 of both), cut as told; then flushed."""
    parts = [session.push(chunk) for chunk in np.split(x, np.cumsum(cuts), axis)]
    return np.concatenate([*parts, session.flush()], axis)


def close(got: Array, wanted: Array) -> None:
    """Equal but for the order of additions."""
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * max(1.0, float(np.abs(wanted).max(initial=0))))


def long_memory() -> onnx.ModelProto:
    """Two convolutions that remember 192 frames."""
    nodes = [node("Conv", "x k", "h", dilations=[64], pads=[192, 0]), node("Tanh", "h", "t")]
    nodes += [node("Conv", "t m", "y", dilations=[64], pads=[192, 0])]
    return model(nodes, {"x": [1, 2, "T"]}, ["y"], {"k": weights(4, 2, 4), "m": weights(3, 4, 4)})
