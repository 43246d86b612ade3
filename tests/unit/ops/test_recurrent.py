"""LSTM, GRU and RNN: carried over time, frame by frame over any other axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.analysis.facts import Static
from pulsify.convert.emit import emit
from pulsify.plan.plan import execute
from tests.models import close, frames, model, node, run_batch, weights
from tests.unit.convert.contexts import Steps, made_by, planned, refused, run_window, wire_of

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(
    op: str = "LSTM", dims: Any = ("T", 1, 3), inputs: str = "x w r b", outputs: str = "y", **attrs: Any
) -> onnx.ModelProto:
    gates, sides = GATES[op], 2 if attrs.get("direction") == "bidirectional" else 1
    given = {
        "w": weights(sides, gates * 2, 3), "r": weights(sides, gates * 2, 2), "b": weights(sides, gates * 4),
        "h0": weights(1, 1, 2, seed=8), "zeros": np.zeros((1, 1, 2), np.float32), "lens": np.array([5], np.int32),
    }  # fmt: skip
    used = {n: v for n, v in given.items() if n in inputs.split()}
    made = node(op, inputs, outputs, hidden_size=2, **attrs)
    return model([made], {"x": dims}, [o for o in outputs.split() if o != "_"], used)


@pytest.mark.parametrize("op", GATES)
def test_over_time_every_frame_is_seen_once_and_the_state_goes_on(op: str) -> None:
    proto = recurrent(op)
    ctx, plan = planned(proto)
    assert plan.exact and plan.reads[0].reach.pointwise
    execute(ctx, made_by(ctx, "y"), plan)
    x = frames(10, 1, 3)
    out = run_window(ctx, wire_of(ctx, "y").take(ctx.windows["y"]), ctx.windows["y"], x, 10, axis=0)
    assert [s.kind for s in ctx.carries] == ["carry"] * (2 if op == "LSTM" else 1)
    close(out, run_batch(proto, x)["y"])


def test_it_starts_from_the_state_it_is_given() -> None:
    proto = recurrent("GRU", inputs="x w r b _ h0")
    ctx, plan = planned(proto)
    execute(ctx, made_by(ctx, "y"), plan)
    x = frames(6, 1, 3)
    out = run_window(ctx, wire_of(ctx, "y").take(ctx.windows["y"]), ctx.windows["y"], x, 6, axis=0)
    close(out, run_batch(proto, x)["y"])
    assert ctx.clock.position is not None, "it has to know whether the stream has begun"


def test_a_first_state_of_zeros_costs_nothing() -> None:
    ctx, plan = planned(recurrent("GRU", inputs="x w r b _ zeros"))
    execute(ctx, made_by(ctx, "y"), plan)
    assert emit(ctx).clock.position is None


def test_behind_a_delay_the_first_real_frame_comes_first() -> None:
    """A slice of the first three frames: frame 0 stands in the middle of a pulse."""
    w = {"w": weights(1, 8, 3), "r": weights(1, 8, 2), "a": np.array([3]), "e": np.array([1 << 40]), "z": np.array([0])}
    proto = model(
        [node("Slice", "x a e z", "h"), node("LSTM", "h w r", "y", hidden_size=2)], {"x": ["T", 1, 3]}, ["y"], w
    )
    ctx, plan = planned(proto)
    execute(ctx, made_by(ctx, "y"), plan)
    assert ctx.windows["y"].start == -3
    x = frames(11, 1, 3)
    out = run_window(ctx, wire_of(ctx, "y").take(ctx.windows["y"]), ctx.windows["y"], x, 8, axis=0)
    close(out, run_batch(proto, x)["y"])


def test_the_final_state_is_right_once_the_stream_has_ended() -> None:
    proto = recurrent("GRU", outputs="y last")
    ctx, plan = planned(proto)
    execute(ctx, made_by(ctx, "y"), plan)
    last = ctx.ask.facts["last"]
    assert isinstance(last, Static) and last.late[0].window == ctx.windows["y"]
    steps = Steps(ctx, {"last": last.recipe})
    x = frames(6, 1, 3)
    steps.step({"x": x[:4]})
    padded = np.concatenate([x[4:], np.full((2, 1, 3), 9, np.float32)])
    close(steps.step({"x": padded}, length=6)["last"], run_batch(proto, x)["last"])


def test_a_final_state_that_is_read_by_frames_is_refused() -> None:
    proto = recurrent("GRU", outputs="h last")
    proto.graph.node.append(node("Add", "h last", "y"))
    del proto.graph.output[:]
    proto.graph.output.append(onnx.ValueInfoProto(name="y"))
    problem = refused(proto)
    assert (problem.op, problem.node) == ("Add", "y")
    assert "known only when the stream has ended" in problem.reason


def test_over_another_axis_it_is_frame_by_frame_in_any_direction() -> None:
    _, plan = planned(recurrent("GRU", dims=(5, "T", 3), direction="bidirectional"))
    assert plan.reads[0].reach.pointwise and not plan.exact


def test_an_empty_sequence_is_none_for_a_gru() -> None:
    ctx, _ = planned(recurrent("GRU"))
    assert [all(c.met(s) for c in ctx.ask.ledger.conditions) for s in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (recurrent(direction="reverse"), "runs reverse over time"),
        (recurrent(direction="bidirectional"), "runs bidirectional over time"),
        (recurrent(inputs="x w r b lens"), "sequence lengths are data, or not the length of the stream"),
    ],
)
def test_what_reads_the_future_is_refused(proto: onnx.ModelProto, reason: str) -> None:
    problem = refused(proto)
    assert (problem.op, problem.node) == ("LSTM", "y")
    assert reason in problem.reason
