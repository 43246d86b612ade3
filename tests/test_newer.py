"""Operators of opset 27 and 28, and ONNX Runtime's own of the same names, which say what is right."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import pulsify
from pulsify.core.chunks import chunkings
from tests.models import frames, model, node, weights
from tests.side import Batch, streamed

OWN = "com.microsoft"
DOMAINS = [OWN, ""]
LENGTHS = (1, 2, 3, 5, 9)
BACKENDS = ("ort", "native", "torch", "reference")


def built(domain: str, nodes: Sequence[onnx.NodeProto], *args: Any, opset: int = 27) -> onnx.ModelProto:
    for n in nodes:
        n.domain = domain
    imports = [helper.make_opsetid(OWN, 1)]
    return model(nodes, *args, opset=21 if domain else opset, imports=imports if domain else [])


def attention(domain: str, rule: str, batch: int | str = 2, past: bool = False, **options: Any) -> onnx.ModelProto:
    """Four heads of queries on two of keys and values."""
    inputs: dict[str, Any] = {"q": [batch, "T", 16], "k": [batch, "T", 8], "v": [batch, "T", 6]}
    names = "q k v " + ("p" if past else "_")
    if past:
        inputs["p"] = [batch, 2, 4, 3]
    if "gated" in rule:
        inputs["g"] = [batch, "T", options.pop("decays", 2)]
    names += " g" if "gated" in rule else " _"
    if "delta" in rule:
        inputs["b"] = [batch, "T", options.pop("rates", 2)]
        names += " b"
    attributes = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule, **options}
    return built(domain, [node("LinearAttention", names, "y s", **attributes)], inputs, ["y", "s"])


def inputs_of(proto: onnx.ModelProto, length: int, rng: Any) -> dict[str, Any]:
    out = {}
    for port in proto.graph.input:
        dims = [{"T": length, "B": 3}.get(d.dim_param, d.dim_value) for d in port.type.tensor_type.shape.dim]
        x = rng.standard_normal(dims).astype(np.float32) * 0.5
        out[port.name] = -np.abs(x) if port.name == "g" else x  # a decay
    return out


def check(proto: onnx.ModelProto, truth: onnx.ModelProto, delays: Sequence[int], **options: Any) -> None:
    stream, batch, rng = pulsify.stream(proto, 2, time="T", **options), Batch(truth), np.random.default_rng(1)
    assert [o.delay for o in stream.outputs] == list(delays)
    for length in LENGTHS:
        feeds = inputs_of(proto, length, rng)
        want = batch.run(feeds)
        for cuts in chunkings(length, stream.pulse, rng):
            for backend in BACKENDS:
                got = streamed(stream, feeds, cuts, backend=backend, padding=math.nan)
                for name, array in want.items():
                    np.testing.assert_allclose(
                        got[name], array, atol=2e-6, rtol=1e-5, err_msg=f"{backend} {length} {cuts} {name}"
                    )


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention(domain: str, rule: str) -> None:
    check(attention(domain, rule), attention(OWN, rule), [0, 0])


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(
    "options",
    [{"past": True}, {"decays": 8}, {"rates": 1}, {"scale": 0.7}, {"batch": "B"}],
    ids=lambda o: next(iter(o)),
)
def test_linear_attention_with(domain: str, options: dict[str, Any]) -> None:
    check(attention(domain, "gated_delta", **options), attention(OWN, "gated_delta", **options), [0, 0])


def test_linear_attention_is_what_onnx_defines() -> None:
    """ONNX Runtime opens no model of opset 27; the reference of the onnx package does."""
    proto, rng = attention("", "gated_delta"), np.random.default_rng(4)
    feeds = inputs_of(proto, 7, rng)
    want = ReferenceEvaluator(proto).run(None, feeds)
    got = streamed(pulsify.stream(proto, 2, time="T"), feeds, [3, 4])
    for name, array in zip("ys", want, strict=True):
        np.testing.assert_allclose(got[name], array, atol=1e-5)


def conv(domain: str, past: bool, **options: Any) -> onnx.ModelProto:
    inputs: dict[str, Any] = {"x": [1, 3, "T"]} | ({"p": [1, 3, 3]} if past else {})
    nodes = [node("CausalConvWithState", "x w b" + (" p" if past else ""), "y s", **options)]
    return built(domain, nodes, inputs, ["y", "s"], {"w": weights(3, 1, 4), "b": weights(3)})


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_convolution_with_a_state(domain: str, past: bool, activation: str) -> None:
    check(conv(domain, past, activation=activation), conv(OWN, past, activation=activation), [0, 0])


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_swiglu(alpha: float) -> None:
    proto = model([node("SwiGLU", "a b", "y", alpha=alpha)], {"a": [1, "T", 3], "b": [1, "T", 3]}, ["y"], opset=28)
    stream = pulsify.stream(proto, 2)
    for length in LENGTHS:
        feeds = {"a": frames(1, length, 3), "b": frames(1, length, 3, seed=2)}
        (want,) = ReferenceEvaluator(proto).run(None, feeds)
        for backend in BACKENDS:
            np.testing.assert_allclose(stream.run(feeds, backend=backend), want, atol=1e-6)


@pytest.mark.parametrize("start", [None, 2])
def test_a_cache_written_at_constant_places(start: int | None) -> None:
    """Of other frames' channels, say: time is another axis."""
    given = {} if start is None else {"i": np.array([start, start], np.int64)}
    nodes = [node("TensorScatter", "c u" + (" i" if given else ""), "y", axis=1)]
    proto = model(nodes, {"c": [2, 6, "T"], "u": [2, 3, "T"]}, ["y"], given, opset=24)
    stream, batch = pulsify.stream(proto, 2), Batch(proto)
    for length in LENGTHS:
        feeds = {"c": frames(2, 6, length), "u": frames(2, 3, length, seed=2)}
        for backend in BACKENDS:
            np.testing.assert_array_equal(stream.run(feeds, backend=backend), batch.run(feeds)["y"])


def test_a_stream_is_not_written_into_a_cache() -> None:
    proto = model(
        [node("TensorScatter", "c u i", "y", axis=1)],
        {"c": [2, 10, 3], "u": [2, "T", 3], "i": [2]},
        ["y"],
        opset=24,
        dtypes={"i": np.int64},
    )
    began = time.process_time()
    with pytest.raises(pulsify.NotStreamable, match="writes frames into a cache of fixed size") as refused:
        pulsify.stream(proto, 2, bind={"i": None})
    assert (refused.value.node, refused.value.op) == ("y", "TensorScatter")
    assert time.process_time() - began < 5


def test_files_of_a_newer_opset(tmp_path: Any) -> None:
    path = tmp_path / "newer.onnx"
    onnx.save(attention("", "gated"), path)
    stream = pulsify.stream(path, 2, time="T")
    assert not pulsify.verify(path, stream).wrong


def test_a_model_of_the_newest_opset() -> None:
    """Range and Cast have later versions, which take more types."""
    nodes = [
        node("Shape", "x", "n", start=1, end=2), node("Squeeze", "n", "count"), node("Range", "zero count one", "i"),
        node("Cast", "i", "places", to=1), node("Unsqueeze", "places axes", "rows"), node("Add", "x rows", "y"),
    ]  # fmt: skip
    numbers = {"zero": np.array(0), "one": np.array(1), "axes": np.array([1])}
    newest, older = (model(nodes, {"x": [1, "T", 3]}, ["y"], numbers, opset=opset) for opset in (28, 21))
    x = frames(1, 9, 3)
    np.testing.assert_array_equal(pulsify.stream(newest, 2).run(x), Batch(older).run({"x": x})["y"])


def test_what_is_newer_than_onnx_runtime_is_named() -> None:
    nodes = [node("SpaceToDepth", "x", "blocks", blocksize=2, mode="CRD")]
    proto = model(nodes, {"x": [1, 2, "T", 4]}, ["blocks"], opset=28)
    with pytest.raises(pulsify.InvalidModel, match=r"SpaceToDepth node 'blocks' is of opset 28.*up to 26"):
        pulsify.stream(proto, 2)
