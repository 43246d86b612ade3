"""The specification against ONNX Runtime, where a graph says the same, and against itself where frames are appended."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from pulsify.kernels.stream_attention import cases
from pulsify.kernels.stream_attention.specification import bound, stream_attention

GRAPH = """
    <ir_version: 10, opset_import: ["" : 17]>
    attention (double[B,H,T,D] q, double[B,H,C,D] k, double[B,H,C,D] x, double[B,H,T,C] b, bool[B,H,T,C] m) => (y) {{
        s = Constant <value: tensor = double {{{scale}}}> ()
        f = Constant <value: tensor = double {{{fill}}}> ()
        turned = Transpose <perm: ints = [0, 1, 3, 2]> (k)
        product = MatMul (q, turned)
        scaled = Mul (product, s)
        score = Add (scaled, b)
        shown = Where (m, score, f)
        weights = Softmax <axis: int = -1> (shown)
        y = MatMul (weights, x)
    }}"""


def in_onnx(made: Any, fill: float) -> Any:
    model = onnx.parser.parse_model(GRAPH.format(scale=1, fill=1).replace("\n", " "))
    for node, number in zip(model.graph.node[:2], (made["scale"], fill), strict=True):
        node.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.array(number)))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"q": made["q"], "k": made["keys"], "x": made["values"], "b": made["bias"], "m": made["mask"]}
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("fill", [-math.inf, -2.0, -1e4])
@pytest.mark.parametrize("hollow", [False, True])
def test_it_is_what_onnx_gives_for_the_graph(fill: float, hollow: bool) -> None:
    made = cases.bias(cases.inputs(cases.Shape()))
    made = cases.hollow(made, "nan") if hollow else cases.mask(made)
    got, *_ = stream_attention(**made, fill=fill)
    want = in_onnx(made, fill)
    assert np.isnan(want).any() == (hollow and fill == -math.inf)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


def test_minus_infinity_in_the_bias_is_what_onnx_gives() -> None:
    made = cases.lowered(cases.mask(cases.inputs(cases.Shape())), slice(1, 2))
    made["mask"][:] = True
    np.testing.assert_allclose(stream_attention(**made)[0], in_onnx(made, -math.inf), rtol=1e-12, atol=1e-13)


def test_positions_are_the_skewed_product() -> None:
    """As Transformer-XL writes it: the products with all offsets, shifted row by row."""
    made = cases.inputs(cases.Shape(relative=True, biased=True))
    t, c, scale = 4, 12, made["scale"]
    products = (made["q"] + made["v"][:, None]) @ np.swapaxes(made["table"], 1, 2)
    skewed = np.stack([products[:, :, i, made["shift"] - i :][..., :c] for i in range(t)], 2)
    plain = {name: made[name] for name in ("q", "keys", "values", "scale", "u")}
    want, *_ = stream_attention(**plain, bias=skewed * scale)
    np.testing.assert_allclose(stream_attention(**made)[0], want, rtol=1e-12, atol=1e-13)


def test_pulse_by_pulse_is_all_at_once() -> None:
    """A window that moves on: each pulse reads what the last ones appended."""
    rng = np.random.default_rng(0)
    frames, width, pulse = rng.standard_normal((1, 1, 30, 8)), 7, 3
    keys = values = np.zeros((1, 1, width, 8))
    for n in range(0, 30, pulse):
        new = frames[:, :, n : n + pulse]
        got, keys, values = stream_attention(
            new, keys, values, new_keys=new, new_values=new, start=np.array([n % width]),
            first=np.array([max(0, width - n)]),
        )  # fmt: skip
        seen = frames[:, :, max(0, n - width) : n + pulse]
        np.testing.assert_allclose(got, stream_attention(new, seen, seen)[0], rtol=1e-12, atol=1e-13)


def test_the_bound_grows_with_the_scores_and_the_type() -> None:
    made = cases.inputs(cases.Shape())
    assert bound(made, "float32") < 1e-5 < bound(made, "float16") < bound(made, "bfloat16") < 0.1
    assert bound(cases.scored(made, 1e4), "float32") > 1000 * bound(made, "float32")
