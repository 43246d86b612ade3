"""A long stream where a value is carried, and what batch itself rounds: lengths, what is told, what is allowed."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.errors import Mismatch
from pulsify.core.spec import Proof
from pulsify.ops import cumulative
from pulsify.report.figures import verified_figures
from pulsify.verify.check import quick, verify
from pulsify.verify.distance import Run, Seen
from pulsify.verify.double import Double
from pulsify.verify.inputs import make_inputs
from pulsify.verify.long import Budget, carries, long_batch, mean_of
from pulsify.verify.rounding import ROUNDINGS, own_error, with_room
from tests.models import Array, causal, model, node, run_batch, weights
from tests.recurrence.test_long_sums import moving_mean, running_variance, sums
from tests.unit.specs import a_stream, an_output


def beside(ctx: Any, node: Any, wire: Any, sizes: Any, x: Any, window: Any, over: Any) -> Any:
    """A pulse summed up by itself, and what is carried added: right, but it rounds otherwise than batch."""
    b, time = ctx.builder, wire.layout.axis
    so_far = cumulative.carry(ctx, node.name, wire.dtype, sizes, None, window)
    out = b.op("Add", b.op("CumSum", x, over.value), so_far.value)
    so_far.keep(b.slice(out, time, window.frames - 1, window.frames))
    return out


def leaking(ctx: Any, node: Any, wire: Any, sizes: Any, x: Any, window: Any, over: Any) -> Any:
    """A thousandth of what is carried is lost with every pulse."""
    b, time = ctx.builder, wire.layout.axis
    so_far = cumulative.carry(ctx, node.name, wire.dtype, sizes, None, window)
    less = b.op("Mul", so_far.value, b.constant(np.float32(1 - 1e-6)))
    out = b.op("Add", b.op("CumSum", x, over.value), less)
    so_far.keep(b.slice(out, time, window.frames - 1, window.frames))
    return out


# ---- which streams, and how long


def test_a_long_stream_is_run_where_a_value_is_carried_and_nowhere_else() -> None:
    summed = pulsify.stream(sums([1, 2, "T"]), 16, verify=False)
    plain = pulsify.stream(causal("B"), 4, verify=False)
    assert carries(summed) and not carries(plain)
    assert max(quick(sums([1, 2, "T"]), summed).lengths) == 512 * 16
    assert max(verify(sums([1, 2, "T"]), summed).lengths) == 1 << 17
    assert max(verify(causal("B"), plain).lengths) < 100


def test_whole_numbers_do_not_round() -> None:
    assert not carries(pulsify.stream(sums([1, 2, "T"], dtype=np.int64), 16, verify=False))


def test_lengths_that_are_asked_for_are_all_there_is() -> None:
    stream = pulsify.stream(sums([1, 2, "T"]), 16, verify=False)
    report = verify(sums([1, 2, "T"]), stream, lengths=[5, 40])
    assert report.lengths == (5, 40) and report.outputs["y"].from_double is None


def test_the_inputs_of_a_long_stream_have_a_mean() -> None:
    class Ports:
        def get_inputs(self) -> list[Any]:
            return [type("Port", (), {"name": "x"})]

    stream = pulsify.stream(sums([1, 2, "T"]), 16, verify=False)
    still, moved = (make_inputs(Ports(), stream, 500, np.random.default_rng(0), mean=m)["x"] for m in (0, 10))
    np.testing.assert_allclose(moved, still + 10, rtol=1e-6)


def test_gates_of_recurrent_cells_are_not_saturated() -> None:
    held = {"wi": weights(1, 6, 2), "wh": weights(1, 6, 2)}
    cell = model([node("GRU", "x wi wh", "y", hidden_size=2)], {"x": ["T", 1, 2]}, ["y"], held)
    assert mean_of(pulsify.stream(cell, 4, verify=False)) == 1
    assert mean_of(pulsify.stream(sums([1, 2, "T"]), 16, verify=False)) == 10


def ladder(budget: Budget, most: int = 1 << 30, finite: bool = True, **fields: Any) -> tuple[list[int], int | None]:
    """The lengths at which batch was run, and the one that was taken."""
    seen = list[int]()
    subject: Any = type("Only", (), {"spec": a_stream(pulse=4, **fields)})

    def batch(length: int) -> tuple[int, dict[str, Array], dict[str, Array]] | None:
        seen.append(length)
        out = np.ones(3, np.float32) if finite else np.array([1, np.inf], np.float32)
        return (length, {}, {"y": out}) if length <= most else None

    found = long_batch(subject, budget, 10, batch, lambda length, feeds: None)
    return seen, None if found is None else found[0]


def test_it_gets_longer_by_four_up_to_frames_and_pulses() -> None:
    assert ladder(Budget(6400, 10**6, math.inf)) == ([100, 400, 1600, 6400], 6400)
    assert ladder(Budget(10**6, 1600, math.inf)) == ([100, 400, 1600, 6400], 6400)
    assert ladder(Budget(6400, 10**6, math.inf), exact_up_to=640) == ([10, 40, 160, 640], 640)
    assert ladder(Budget(6400, 10**6, math.inf), proof=Proof(limit=640)) == ([10, 40, 160, 640], 640)


def test_it_ends_where_the_budget_or_the_model_does() -> None:
    assert ladder(Budget(6400, 10**6, -1.0)) == ([100], 100)
    assert ladder(Budget(6400, 10**6, math.inf), most=500) == ([100, 400, 1600], 400)
    assert ladder(Budget(6400, 10**6, math.inf), most=50) == ([100], None)
    assert ladder(Budget(8, 10**6, math.inf)) == ([10], None), "no longer than what was run already"
    assert ladder(Budget(6400, 10**6, math.inf), finite=False)[1] is None


# ---- float64


def test_the_model_in_double_is_numpy_in_double() -> None:
    x = (np.random.default_rng(0).standard_normal((1, 2, 5000)) + 10).astype(np.float32)
    double = Double(running_variance().SerializeToString())
    made = double.run({"x": x})["y"]
    wide, count = x.astype(np.float64), np.arange(1, 5001)
    want = (wide**2).cumsum(-1) / count - (wide.cumsum(-1) / count) ** 2
    assert made.dtype == np.float64 and not double.why
    np.testing.assert_allclose(made, want, rtol=0, atol=1e-9)


def test_constants_casts_and_bodies_are_double_as_well() -> None:
    third = np.float32(1 / 3)
    scalar, one = onnx.numpy_helper.from_array(third), onnx.numpy_helper.from_array(third[None])
    helper = onnx.helper
    out = helper.make_tensor_value_info("inner", 1, None)
    body = helper.make_graph(
        [node("Mul", "s h", "inner")], "body", [], [out], [helper.make_tensor("h", 1, [], [third])]
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value_float=float(third)), node("Mul", "x c", "a"),
        node("Cast", "a", "whole", to=7), node("Cast", "whole", "back", to=1), node("Sub", "a back", "r"),
        node("Shape", "r", "dims"), node("ConstantOfShape", "dims", "k", value=one), node("Add", "r k", "t"),
        helper.make_node("Constant", [], ["d"], value=scalar), node("Add", "t d", "s"),
        node("If", "yes", "y", then_branch=body, else_branch=body),
    ]  # fmt: skip
    x = np.random.default_rng(0).standard_normal((1, 2, 9)).astype(np.float32)
    double = Double(model(nodes, {"x": [1, 2, "T"]}, ["y"], {"yes": np.array(True)}).SerializeToString())
    made = double.run({"x": x})
    assert not double.why
    a = x.astype(np.float64) * np.float64(third)
    want = (a - np.trunc(a) + 2 * np.float64(third)) * np.float64(third)
    np.testing.assert_allclose(made["y"], want, rtol=1e-14)


@pytest.mark.parametrize(
    ("proto", "says"),
    [
        (model([node("RandomNormalLike", "x", "y")], {"x": [1, "T"]}, ["y"]), "RandomNormalLike"),
        (sums([1, 2, "T"], dtype=np.float64), "no output of it is float32"),
        (model([node("Cast", "x", "h", to=10), node("Cast", "h", "y", to=1)], {"x": [1, "T"]}, ["y"]), "half"),
    ],
)
def test_where_there_is_no_model_in_double_it_is_said_why(proto: onnx.ModelProto, says: str) -> None:
    double = Double(proto.SerializeToString())
    assert double.run({"x": np.zeros((1, 2, 9), np.float32)}) == {}
    assert says in double.why


def test_operators_without_such_a_kernel_are_as_in_batch_and_what_follows_is_double() -> None:
    nodes = [
        node("Conv", "x w", "h", pads=[2, 0]), node("Erf", "h", "e"), node("Gelu", "e", "g"),
        node("Transpose", "g", "t", perm=[2, 0, 1]), node("GRU", "t wi wh", "s", hidden_size=2),
        node("CumSum", "s axis", "y"),
    ]  # fmt: skip
    held = {"w": weights(2, 2, 3), "wi": weights(1, 6, 2), "wh": weights(1, 6, 2), "axis": np.array(0)}
    before = model(nodes[:-1], {"x": [1, 2, "T"]}, ["s"], {k: v for k, v in held.items() if k != "axis"}, opset=20)
    whole = model(nodes, {"x": [1, 2, "T"]}, ["y"], held, opset=20)
    x = weights(1, 2, 900, seed=3)
    double = Double(whole.SerializeToString())
    made = double.run({"x": x})
    assert double.single == ("Conv", "Erf", "GRU", "Gelu") and not double.why
    want = run_batch(before, x)["s"].astype(np.float64).cumsum(0)
    np.testing.assert_allclose(made["y"], want, rtol=0, atol=1e-5)
    assert np.abs(run_batch(whole, x)["y"] - want).max() > 0


def behind(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The same of a convolution, which rounds otherwise on other back ends."""
    for n in graph.graph.node:
        n.input[:] = ["h" if name == "x" else name for name in n.input]
    graph.graph.node.insert(0, node("Conv", "x w", "h", pads=[4, 0]))
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.abs(weights(2, 2, 5)) / 5, "w"))
    return graph


def test_sums_behind_a_convolution_are_held_to_what_batch_makes_of_them() -> None:
    stream = pulsify.stream(behind(moving_mean()), 1000, verify=False)
    report = verify(behind(moving_mean()), stream, backend="native")
    seen = report.outputs["y"]
    assert report.ok and seen.error > 1e-4 and seen.from_double is not None and seen.batch_from_double is not None
    assert seen.from_double < 2 * seen.batch_from_double
    assert [n for n in report.notes if "(Conv in float32 there as well)" in n]


# ---- what is told, and what is allowed


@pytest.mark.parametrize("graph", [moving_mean, running_variance])
def test_a_batch_model_that_is_off_itself_is_told_so(graph: Any) -> None:
    """The stream has its bits: nothing is allowed it, and it needs nothing."""
    report = verify(graph(), pulsify.stream(graph(), 1000, verify=False))
    seen = report.outputs["y"]
    assert report.error == 0 and report.tolerance == 1e-4
    assert seen.from_double == seen.batch_from_double and seen.from_double is not None and seen.from_double > 1e-4
    assert [n for n in report.notes if "the batch model itself is off by" in n and "of length 131072" in n]
    assert f"from float64: stream {seen.from_double:.2g}, batch {seen.from_double:.2g}" in str(report)


def test_a_batch_model_that_computes_well_gets_no_note() -> None:
    report = verify(sums([1, 2, "T"]), pulsify.stream(sums([1, 2, "T"]), 1000, verify=False))
    seen = report.outputs["y"]
    assert report.notes == () and seen.batch_from_double is not None and 0 < seen.batch_from_double < 1e-4


def test_a_stream_that_rounds_otherwise_is_as_near_to_float64_as_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cumulative, "_running", beside)
    report = verify(running_variance(), pulsify.stream(running_variance(), 16, verify=False))
    seen = report.outputs["y"]
    assert report.ok and seen.length == 1 << 17 and 1e-4 < seen.error <= seen.tolerance
    assert seen.from_double is not None and seen.batch_from_double is not None
    assert seen.from_double < ROUNDINGS * seen.batch_from_double
    assert [n for n in report.notes if f"a stream is allowed {ROUNDINGS} times as much" in n]


def test_a_stream_that_is_wrong_far_out_is_no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cumulative, "_running", leaking)
    stream = pulsify.stream(sums([1, 2, "T"]), 16, verify=False)
    with pytest.raises(Mismatch) as caught:
        verify(sums([1, 2, "T"]), stream)
    assert caught.value.report is not None and caught.value.report.worst.length == 1 << 17
    assert verify(sums([1, 2, "T"]), stream, lengths=[1, 200]).ok, "short streams do not show it"


def test_figures_have_both_distances() -> None:
    report = verify(moving_mean(), pulsify.stream(moving_mean(), 1000, verify=False))
    (output,) = json.loads(json.dumps(verified_figures(report)))["outputs"]
    assert output["from_double"] == output["batch_from_double"] == report.outputs["y"].from_double
    short = verified_figures(verify(moving_mean(), pulsify.stream(moving_mean(), 8, verify=False), lengths=[20]))
    assert short["outputs"][0]["from_double"] is None


# ---- the room of an output


class Batch:
    """Gives the same, but for a last digit that depends on the input's."""

    def __init__(self, *off: float) -> None:
        self._off = np.array(off, np.float32)[None, :, None]

    def get_inputs(self) -> list[Any]:
        return [type("Port", (), {"name": "x"})]

    def get_outputs(self) -> list[Any]:
        return [type("Port", (), {"name": "y"})]

    def run(self, names: Any, feeds: dict[str, Array]) -> list[Array]:
        x = feeds["x"]
        return [np.float32(1) + np.sign(x - np.float32(1)) * self._off * np.ones_like(x)]


def a_run(length: int, long: bool = False) -> Run:
    ones = np.ones((1, 3, length), np.float32)
    return Run(length, {"x": ones}, {"y": ones.copy()}, long)


def test_room_is_by_channel_and_only_where_most_frames_are_off() -> None:
    rooms = with_room(Batch(1e-2, 0, 1e-3), Double(b""), {"y": 2}, [a_run(50), a_run(7)], 0)
    room = rooms.runs[0].room["y"]
    np.testing.assert_allclose(room[0, :, 0], [ROUNDINGS * 1e-2, 1e-4, ROUNDINGS * 1e-2], rtol=0.05)
    assert "nothing but rounding" in rooms.notes[0] and "no float64 reference is available" in rooms.notes[0]
    assert with_room(Batch(1e-6, 0, 1e-7), Double(b""), {"y": 2}, [a_run(50)], 0).notes == ()


def test_a_long_run_is_no_excuse_for_short_ones() -> None:
    double = {"y": np.ones((1, 3, 400)) * 1.01}
    runs = [a_run(5), Run(**{**vars(a_run(400, long=True)), "double": double})]
    short, long = with_room(Batch(0, 0, 0), Double(b""), {"y": 2}, runs, 0).runs
    assert not short.room and (long.room["y"] > 1e-2).all()
    assert own_error(long, "y", 2) == pytest.approx(0.01 / 1.01, rel=0.05) and own_error(short, "y", 2) == 0


def test_what_jumps_in_a_few_frames_gives_no_room() -> None:
    made = np.ones((1, 3, 400))
    made[..., ::9] = 2
    run = Run(**{**vars(a_run(400, long=True)), "double": {"y": made}})
    assert with_room(Batch(0, 0, 0), Double(b""), {"y": 2}, [run], 0).notes == ()


def test_the_worst_is_what_is_nearest_to_its_own_limit() -> None:
    seen = Seen((10, 20))
    outputs = [an_output("y")]
    noisy = Run(20, {}, {"y": np.ones((1, 1, 20), np.float32)}, room={"y": np.full((1, 1, 1), 0.5)})
    got = np.ones((1, 1, 20), np.float32)
    got[..., 3] = 1.01
    seen.compare(outputs, {"y": got}, noisy, "whole")
    assert (seen.report.worst.error, seen.report.worst.tolerance) == (pytest.approx(0.01, rel=1e-3), 0.5)
    off = np.ones((1, 1, 10), np.float32)
    off[..., 7:] = 1.001
    seen.compare(outputs, {"y": off}, Run(10, {}, {"y": np.ones((1, 1, 10), np.float32)}), "whole")
    worst = seen.report.worst
    assert (worst.length, worst.frame, worst.tolerance) == (10, 7, 1e-4) and not worst.ok
