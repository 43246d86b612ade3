"""LSTM, GRU and RNN as ONNX has them, and loops of a known count."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_ir.passes.common import ShapeInferencePass

from pulsify.backends.torch.layers import gru_layer, lstm_layer
from tests.models import model, node, port, weights
from tests.unit.backends.torch.both import alike, by_torch, fed, same, small, written
from tests.unit.graphs import run

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
T, B, N, H = 5, 3, 4, 6


def layer(op: str, ways: int, inputs: str, states: str, time: int = T, **attributes: Any) -> ir.Model:
    """inputs: which of the optional ones are there; states: those that are not constant."""
    g = GATES[op]
    constants: dict[str, Any] = {
        "w": weights(ways, g * H, N), "r": weights(ways, g * H, H, seed=2) / 2, "b": weights(ways, 2 * g * H, seed=3),
        "p": weights(ways, 3 * H, seed=4),
    }  # fmt: skip
    dims: dict[str, Any] = {"x": [time, B, N], "n": [B], "h": [ways, B, H], "c": [ways, B, H]}
    outputs = "y yh yc" if op == "LSTM" else "y yh"
    made = node(op, inputs, outputs, hidden_size=H, **attributes)
    given = {k: v for k, v in dims.items() if k in ("x", *states.split())}
    return small([made], given, constants, outputs, dtypes={"n": np.int32}, opset=14)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("inputs", ["x w r", "x w r b", "x w r b n", "x w r b _ h", "x w r b n h"])
@pytest.mark.parametrize("before", [0, 1])
def test_layers(op: str, direction: str, inputs: str, before: int) -> None:
    if before and op != "GRU":
        pytest.skip("a GRU's own")
    ways = 2 if direction == "bidirectional" else 1
    extra = {"linear_before_reset": 1} if before else {}
    states = " ".join(k for k in ("n", "h") if k in inputs.split())
    made = layer(op, ways, inputs, states, direction=direction, **extra)
    feeds = {**fed(made), **({"n": np.array([5, 0, 3], np.int32)} if "n" in inputs.split() else {})}
    alike(made, feeds)


@pytest.mark.parametrize(
    ("op", "inputs", "settings"),
    [
        ("GRU", "x w r", {}), ("GRU", "x w r b _ h", {}), ("GRU", "x w r b", {"direction": "bidirectional"}),
        ("LSTM", "x w r b", {}), ("LSTM", "x w r b _ h c", {"direction": "bidirectional"}),
        ("LSTM", "x w r _ _ h c", {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("time", [1, T])
def test_in_one_call(op: str, inputs: str, settings: dict[str, Any], time: int) -> None:
    """Gates are turned into torch's order."""
    own = {"linear_before_reset": 1} if op == "GRU" else {}
    states = " ".join(k for k in "hc" if k in inputs.split())
    made = layer(op, 2 if settings else 1, inputs, states, time, **settings, **own)
    assert f"op.{op.lower()}_layer(x, [" in written(made).text
    alike(made)


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("time", [1, T])
def test_batch_first(op: str, both: bool, time: int) -> None:
    """The runtime has no such layout on the CPU: torch, with its own."""
    g, ways = GATES[op], 1 + both
    call = gru_layer if op == "GRU" else lstm_layer
    shapes = [(g * H, N), (g * H, H), (g * H,), (g * H,)] * ways
    given = [torch.from_numpy(weights(*d, seed=i)) for i, d in enumerate(shapes)]
    x, h = torch.from_numpy(weights(time, B, N, seed=7)), torch.from_numpy(weights(ways, B, H, seed=8))
    states = [h] if op == "GRU" else [h, h / 2]
    want = call(x, given, *states, both_ways=both)
    got = call(x.transpose(0, 1), given, *(s.transpose(0, 1) for s in states), both_ways=both, batch_first=True)
    torch.testing.assert_close(got[0], want[0].permute(2, 0, 1, 3))
    for mine, other in zip(got[1:], want[1:], strict=True):
        torch.testing.assert_close(mine, other.transpose(0, 1))


@pytest.mark.parametrize(
    ("op", "inputs", "settings"),
    [
        ("GRU", "x w r b", {}), ("GRU", "x w r b", {"linear_before_reset": 1, "clip": 0.5}),
        ("GRU", "x w r b", {"linear_before_reset": 1, "activations": ["Sigmoid", "Relu"]}),
        ("LSTM", "x w r b", {"direction": "reverse"}), ("LSTM", "x w r b _ h c p", {}),
        ("LSTM", "x w r b", {"input_forget": 1}), ("RNN", "x w r b", {}),
    ],
)  # fmt: skip
def test_what_torch_has_not_is_frame_by_frame(op: str, inputs: str, settings: dict[str, Any]) -> None:
    made = layer(op, 1, inputs, " ".join(k for k in "hc" if k in inputs.split()), **settings)
    assert f"op.{op.lower()}(x, " in written(made).text
    alike(made)


def test_lstm_with_all_its_inputs() -> None:
    made = layer("LSTM", 1, "x w r b n h c p", "n h c")
    alike(made, {**fed(made), "n": np.array([5, 1, 3], np.int32)})


def test_gates_that_are_coupled() -> None:
    alike(layer("LSTM", 1, "x w r b _ h c", "h c", input_forget=1))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, T), min_size=B, max_size=B), st.sampled_from(["GRU", "LSTM"]), st.integers(0, 99))
def test_streams_of_any_length(lengths: list[int], op: str, seed: int) -> None:
    made = layer(op, 2, "x w r b n h", "n h", direction="bidirectional")
    alike(made, {**fed(made, seed), "n": np.array(lengths, np.int32)})


@pytest.mark.parametrize("clip", [0.3, 2.0])
def test_clipped(clip: float) -> None:
    for op in ("GRU", "RNN", "LSTM"):
        alike(layer(op, 1, "x w r b", "", clip=clip))


def test_other_activations() -> None:
    alike(layer("GRU", 1, "x w r b", "", activations=["HardSigmoid", "Softsign"], activation_alpha=[0.3]))
    alike(layer("LSTM", 1, "x w r b", "", activations=["Sigmoid", "Relu", "Tanh"]))
    alike(layer("RNN", 2, "x w r b", "", activations=["Relu", "Tanh"], direction="bidirectional"))


@pytest.mark.parametrize("name", ["Affine", "ThresholdedRelu", "ScaledTanh", "LeakyRelu", "Elu", "HardSigmoid"])
@pytest.mark.parametrize("numbers", [{}, {"activation_alpha": [0.7]}])
def test_numbers_of_activations_that_are_not_written(name: str, numbers: dict[str, list[float]]) -> None:
    """As the runtime has them: `Affine`, `ThresholdedRelu` and `ScaledTanh` begin with zeros."""
    alike(layer("RNN", 1, "x w r b", "", activations=[name], **numbers))


def test_in_a_low_type_sums_are_in_float32() -> None:
    made = layer("GRU", 1, "x w r b", "")
    feeds = fed(made)
    got = by_torch(made, feeds, low="bfloat16")
    for name, want in run(made, feeds).items():
        same(got[name], want, 3e-2)


# ---- loops


def body(nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, Any]) -> onnx.GraphProto:
    kinds = {"i": np.int64, "go": bool, "on": bool}
    return helper.make_graph(
        nodes, "body", [port(k, d, kinds.get(k, np.float32)) for k, d in inputs.items()],
        [port(k, d, kinds.get(k, np.float32)) for k, d in outputs.items()],
    )  # fmt: skip


@pytest.mark.parametrize("backwards", [0, 1])
def test_scan(backwards: int) -> None:
    """The body reads a weight and a value from outside."""
    inner = body(
        [node("Mul", "s w", "m"), node("Add", "m row", "n"), node("Add", "n outer", "o")],
        {"s": [3], "row": [3]}, {"n": [3], "o": [3]},
    )  # fmt: skip
    scan = node("Scan", "z x", "last all", body=inner, num_scan_inputs=1, scan_input_directions=[backwards],
                scan_input_axes=[1], scan_output_axes=[1])  # fmt: skip
    nodes = [node("Relu", "z", "outer"), scan]
    proto = model(nodes, {"x": [3, 4], "z": [3]}, ["last", "all"], {"w": weights(3)})
    made = ShapeInferencePass()(ir.from_proto(proto)).model
    alike(made)
    assert "def last_body(" in written(made).text


def test_loop_of_a_known_count() -> None:
    inner = body(
        [node("Identity", "go", "on"), node("Cast", "i", "f", to=1), node("Mul", "s w", "m"), node("Add", "m f", "n")],
        {"i": [], "go": [], "s": [3]}, {"on": [], "n": [3], "m": [3]},
    )  # fmt: skip
    loop = node("Loop", "count true x", "last all", body=inner)
    constants = {"w": weights(3), "count": np.array(4), "true": np.array(True)}
    made = ShapeInferencePass()(ir.from_proto(model([loop], {"x": [3]}, ["last", "all"], constants))).model
    alike(made)


def test_a_loop_that_data_ends_stays_with_the_runtime_with_all_it_reads() -> None:
    inner = body(
        [node("ReduceMax", "s", "top", keepdims=0), node("Less", "top limit", "on"), node("Add", "s outer", "n")],
        {"i": [], "go": [], "s": [3]}, {"on": [], "n": [3]},
    )  # fmt: skip
    loop = node("Loop", "count true x", "last", body=inner)
    constants = {"count": np.array(50), "true": np.array(True), "limit": np.array(9, np.float32)}
    nodes = [node("Exp", "x", "outer"), loop, node("Neg", "last", "y")]
    made = ShapeInferencePass()(ir.from_proto(model(nodes, {"x": [3]}, ["y"], constants))).model
    source = written(made)
    assert [n.op_type for part in source.plan.islands for n in part.nodes] == ["Loop"]
    feeds = fed(made)
    same(by_torch(made, feeds)["y"], run(made, feeds)["y"])
