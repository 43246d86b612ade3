"""Node by node: the one that departs is named, and so is what leaves its range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.core.errors import InvalidArgument
from pulsify.core.traits import traits
from pulsify.verify.nodes import LOW, Seen, compare_nodes
from tests.models import causal, look_ahead, model, node, valid, weights, with_length
from tests.zoo.manifest import load

pytest.importorskip("torch")

from pulsify.backends.torch import ops_elementwise

CPU: Any = {"device": "cpu"}
NAN, INF = np.nan, np.inf


def stream(proto: Any, **options: Any) -> pulsify.Stream:
    return pulsify.stream(proto, pulse=4, verify=False, **options)


def gated() -> pulsify.Stream:
    """Sigmoid and tanh far out, where they are 1."""
    nodes = [
        node("Mul", "x hundred", "far"), node("Sigmoid", "far", "gate"), node("Tanh", "far", "bent"),
        node("Softmax", "far", "share", axis=1), node("Mul", "gate bent", "h"), node("Mul", "h share", "c"),
        node("Conv", "c w", "y", pads=[1, 1]),
    ]  # fmt: skip
    constants = {"hundred": np.array(100, np.float32), "w": weights(3, 2, 3)}
    return stream(model(nodes, {"x": [1, 2, "T"]}, ["y"], constants))


# ---- a wire


@pytest.mark.parametrize(
    ("got", "want", "largest"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.5),
        ([NAN, 1.0], [NAN, 1.0], 0.0),
        ([NAN, 1.0], [2.0, 1.0], INF),
        ([-INF, 1.0], [np.finfo(np.float32).min, 1.0], 0.0),  # a fill, in a type that does not go so far
        ([INF, 1.0], [7e4, 1.0], INF),
        ([1.0], [1.0, 1.0], INF),
    ],
)
def test_how_far_a_wire_is(got: list[float], want: list[float], largest: float) -> None:
    seen = Seen()
    seen.look(np.array(got, np.float32), np.array(want, np.float32), 3)
    assert seen.largest == largest and seen.pulse == (3 if largest else 0)


def test_the_scale_is_that_of_all_pulses() -> None:
    seen = Seen()
    for pulse, value in enumerate((0.5, -8.0, 1.0)):
        seen.look(np.array(value + 0.25 * (pulse == 2), np.float32), np.array(value, np.float32), pulse)
    assert (seen.scale, seen.largest, seen.pulse, seen.least, seen.most) == (8.0, 0.25, 2, -8.0, 1.25)


# ---- a stream


@pytest.mark.parametrize("proto", [look_ahead("B"), causal("B"), with_length("B")])
@pytest.mark.parametrize("batch", [1, 2])
def test_every_node_of_both_steps_is_looked_at(proto: Any, batch: int) -> None:
    made = stream(proto)
    report = compare_nodes(made, options=CPU, batch=batch)
    placed = made.session(backend="torch", device="cpu", batch=batch).placement
    assert report.ok and report.first is None and report.outside == () and report.low is None
    seen = [(n.step, n.node) for n in report.nodes]  # as they are written: what a session runs may be fewer
    assert len({*seen}) == len(seen) and {(p.step, p.node) for p in placed} <= {*seen}
    assert set(report.pulses) == {p.step for p in placed} and all(report.pulses.values())
    errors = [n.error for n in report.worst]
    assert errors == sorted(errors, reverse=True) and errors[0] < 1e-6


@pytest.mark.parametrize("force", [[], ["Conv"]])
def test_the_first_that_departs_is_named_with_what_it_reads(monkeypatch: pytest.MonkeyPatch, force: list[str]) -> None:
    monkeypatch.setitem(ops_elementwise.FUSED, "Relu", "torch.relu({x}) * 1.01")
    report = compare_nodes(stream(look_ahead()), options={**CPU, "force_cpu": force})
    first = report.first
    assert first is not None and not report.ok
    assert (first.op, first.node, first.step, first.inputs) == ("Relu", "r", "general", ("h.2",))
    assert first.error == pytest.approx(0.01, rel=1e-3) and first.tolerance == 1e-4
    assert "Relu 'r' of 'h.2' (general step, on cpu): relative error 0.01" in str(first)
    assert {n.node for n in report.nodes if n.departs} >= {"r", "y.2"}, "and all that read it"
    assert {n.node for n in report.nodes if n.departs}.isdisjoint({"h", "x/full"})
    assert "first to depart" in str(report)
    assert compare_nodes(stream(look_ahead()), options=CPU, tolerance=0.1).ok


def test_a_count_that_is_one_off_departs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers and truths are equal, or wrong."""
    monkeypatch.setitem(ops_elementwise.FUSED, "Less", "{x} <= {y}")
    first = compare_nodes(stream(look_ahead()), options=CPU).first
    assert first is not None and first.op == "Less" and first.tolerance == 0 and first.error == 1


@pytest.mark.parametrize(
    ("op", "text"), [("Sigmoid", "torch.sigmoid({x}) * 1.00001"), ("Tanh", "torch.tanh({x}) - 1e-5")]
)
def test_what_leaves_its_range_is_told_though_it_is_near(monkeypatch: pytest.MonkeyPatch, op: str, text: str) -> None:
    assert compare_nodes(gated(), options=CPU).ok
    monkeypatch.setitem(ops_elementwise.FUSED, op, text)
    report = compare_nodes(gated(), options=CPU)
    assert report.first is None and not report.ok
    assert {n.op for n in report.outside} == {op}
    least, most = report.outside[0].outside or (0.0, 0.0)
    low, high = traits(op).range or (0.0, 0.0)
    assert least < low or most > high
    assert "out of range" in str(report)


@pytest.mark.parametrize("dtype", LOW)
def test_a_lower_type_is_near_and_its_error_is_told(dtype: str) -> None:
    report = compare_nodes(stream(look_ahead()), options={**CPU, "dtype": dtype})
    assert report.ok and report.low == dtype
    assert 1e-5 < report.worst[0].error < LOW[dtype] == report.worst[0].tolerance
    counts = [n for n in report.nodes if n.op in ("Less", "Add")]
    assert counts and all(n.error == 0 for n in counts), "clocks are exact"


def test_a_cache_that_grows() -> None:
    entry = next(e for e in load() if e.name == "attn_full_causal")
    made = pulsify.stream(entry.fixture("legacy"), pulse=4, unbounded="grow", verify=False)
    report = compare_nodes(made, options=CPU)
    assert report.ok and sum(report.pulses.values()) > 3


def test_inputs_that_a_logarithm_takes() -> None:
    proto = model([node("Log", "x", "l"), node("Conv", "l w", "y")], {"x": [1, 2, "T"]}, ["y"], {"w": weights(3, 2, 3)})
    report = compare_nodes(stream(proto), options=CPU)
    assert report.ok and any(0 < n.error < 1e-6 for n in report.nodes), "numbers were compared"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "ort", "options": {}}, "'ort' does not show what its nodes compute; backend='torch' does"),
        ({"backend": "gpu"}, "there are ort, reference"),
        ({"options": {"speed": "9"}}, r"unknown: \['speed'\]"),
        ({"length": 4, "options": CPU}, "length=4: the model does not take so many frames"),
    ],
)
def test_what_cannot_be_compared(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        compare_nodes(stream(valid()), **options)
    with pytest.raises(InvalidArgument, match="expected a stream"):
        compare_nodes("stream.onnx")  # type: ignore[arg-type]
