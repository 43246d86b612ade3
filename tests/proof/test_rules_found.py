"""More graphs that streamed wrong without an error, where a rule took a size, a line or a table for granted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import pulsify
from tests.proof.judge import judge
from tests.proof.net import Net, Wire
from tests.selection import rotated


def scores(n: Net) -> tuple[Wire, Wire]:
    q = n.x.by(0, 2, 1)
    return n.where(n.near(), (q @ n.x) * 0.02, -1e9), q


def shaped_field(op: str) -> Callable[[Net], Wire]:
    def make(n: Net) -> Wire:
        s, q = scores(n)
        return n.op("Softmax", n.op(op, s, n.vector(1 + (n.T == 100).int(), 1, 1)), axis=-1) @ q

    return make


def bent(bias: Callable[[Net, Wire, Wire], Wire]) -> Callable[[Net], Wire]:
    def make(n: Net) -> Wire:
        i, j = n.grid()
        return n.attend(j <= i, bias(n, i, j))

    return make


def by_loop(n: Net) -> Wire:
    x = n.x
    body = n.body(
        lambda m, it, go, h: [go, (s := h * 0.5 + m.op("Gather", m.here(x), it, axis=2)), s],
        [("i", []), ("b", []), ("f", [1, 2])],
    )
    out: Wire = n.op("Loop", n.T - 3, None, n.const(np.zeros((1, 2), np.float32)), kind="f", outputs=2, body=body)[1]
    return out


def regrouped(n: Net) -> Wire:
    return n.x * n.pos.shaped(-1, 6).shaped(-1).float()


CASES: dict[str, tuple[Callable[[Net], Wire], int, list[int], dict[str, str]]] = {
    "known_regrouped": (regrouped, 4, [6, 12, 18, 60], {}),
    "known_regrouped_odd": (regrouped, 1, [6, 12, 18, 60], {}),
    "field_expand": (shaped_field("Expand"), 4, [99, 100], {}),
    "field_tile": (shaped_field("Tile"), 4, [99, 100], {}),
    "grow_relu": (
        bent(lambda n, i, j: (j - i).float() * 0.01 + n.op("Relu", (i - j).float() - 1000.0) * 0.1),
        16, [100, 1100], {"unbounded": "grow"},
    ),
    "grow_abs": (
        bent(lambda n, i, j: n.op("Abs", (i - j).float() - 1000.0) * 0.01), 16, [100, 1500], {"unbounded": "grow"},
    ),
    "grow_steps": (
        bent(lambda n, i, j: (j - i).float() * 0.001 + ((i - j) // 1000).float()),
        16, [100, 1010], {"unbounded": "grow"},
    ),
    "loop_less_than_none": (by_loop, 4, [2, 3, 4], {}),
    "mask_without_frames": (
        lambda n: n.op("Conv", n.x, n.weights(2, 2, 4)) * n.where(n.range(0, n.T - 3, 1) < n.T - 5, 2.0, 1.0),
        8, [10], {},
    ),
    "range_shorter_once": (
        lambda n: n.x + n.range(0, n.where(n.T == 700, n.T - 5, n.T), 1).float(), 16, [699, 700], {},
    ),
    "cut_meets_positions": (lambda n: n.x.cut(0, n.T - (n.T > 1000).int()) + n.pos.float(), 16, [1000, 1001], {}),
    "sums_that_round": (
        lambda n: n.x + (n.op("CumSum", n.filled(1025.0, n.T), 0) - (n.pos + 1).float() * 1025.0), 64, [100, 20000], {},
    ),
    "counts_that_round": (
        lambda n: n.x + (n.range(16777000.0, n.T.float() + 16777000.0, 1.0) - 16777000.0), 16, [100, 230], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", rotated(CASES, 2))
def test_never_wrong_again(name: str) -> None:
    make, pulse, lengths, options = CASES[name]
    net = Net()
    outcome = judge(net.model(make(net)), pulse, lengths, **options)
    assert outcome.kind in ("exact", "refused"), outcome


BATCHED: dict[str, Callable[[Net, Wire], Wire]] = {
    "is_one": lambda n, b: n.x * n.where(b == 1, 2.0, 1.0),
    "pad": lambda n, b: n.pad(n.x, 0, (b == 1).int()),
    "start": lambda n, b: n.x.cut(b),
    "window": lambda n, b: n.attend((n.grid()[1] <= n.grid()[0]) & (n.grid()[0] - n.grid()[1] <= b)),
    "folded": lambda n, b: n.x + n.range(0, b * n.T, 1).float().shaped(b, 1, n.T),
    "cut": lambda n, b: n.x.cut(0, 3, 0),
    "squeeze": lambda n, b: n.op("Squeeze", n.x),
    "back": lambda n, b: n.x.take(n.most(n.pos - (b == 1).int(), 0), 2),
}


@pytest.mark.parametrize("name", BATCHED)
def test_by_the_batch(name: str) -> None:
    net = Net()
    model: onnx.ModelProto = net.model(BATCHED[name](net, net.op("Shape", net.x).take(0)))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "B"
    stream, refusal = _tried(model)
    if refusal is not None:
        assert refusal.node
        assert "B" in refusal.hint
    if stream is None:
        return
    options = ort.SessionOptions()
    options.log_severity_level = 4
    batch = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for size in (1, 2, 3, 5):
        x = np.random.default_rng(size).integers(1, 5, (size, 2, 20)).astype(np.float32)
        session = stream.session(batch=size)
        made = np.concatenate([session.push(x), session.flush()], stream.outputs[0].axis)
        np.testing.assert_allclose(made, batch.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)


def _tried(model: onnx.ModelProto) -> tuple[pulsify.Stream | None, pulsify.NotStreamable | None]:
    try:
        return pulsify.stream(model, pulse=4, verify=False), None
    except pulsify.NotStreamable as problem:
        return None, problem
