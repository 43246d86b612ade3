"""Scan over time: what it carries goes on, few turns written out, many as a Scan."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.analysis.facts import Static
from pulsify.plan.plan import execute
from tests.models import close, frames, model, node, port, run_batch
from tests.unit.convert.contexts import made_by, planned, refused, run_window, wire_of


def body(*nodes: onnx.NodeProto, carried: list[Any] | None = None) -> onnx.GraphProto:
    """(h, f) -> (h2, g): g = h2 = tanh(h + f), unless told otherwise."""
    steps = nodes or (node("Add", "h f", "s"), node("Tanh", "s", "h2"), node("Identity", "h2", "g"))
    dims = carried or [1, 3]
    return onnx.helper.make_graph(
        list(steps), "body", [port("h", dims), port("f", [1, 3])], [port("h2", None), port("g", None)]
    )


def scan(inner: onnx.GraphProto | None = None, start: float = 0.5, outputs: str = "last y", **attrs: Any) -> Any:
    made = node("Scan", "h0 x", outputs, body=inner or body(), num_scan_inputs=1, **attrs)
    given = {"h0": np.full((1, 3), start, np.float32)}
    return model([made], {"x": ["T", 1, 3]}, [o for o in outputs.split() if o != "_"], given)


@pytest.mark.parametrize(("pulse", "op"), [(4, "Tanh"), (16, "Scan")])
@pytest.mark.parametrize("start", [0.0, 0.5])
def test_what_it_carries_goes_on_from_pulse_to_pulse(pulse: int, op: str, start: float) -> None:
    """A few turns are written out, many stay a Scan; a start of zero needs no clock."""
    proto = scan(start=start, outputs="unread y")
    del proto.graph.output[0]
    ctx, plan = planned(proto, pulse=pulse)
    assert plan.exact and plan.merges
    execute(ctx, made_by(ctx, "y"), plan)
    x = frames(3 * pulse - 1, 1, 3)
    window = ctx.windows["y"]
    out = run_window(ctx, wire_of(ctx, "y").take(window), window, x, len(x), axis=0)
    close(out, run_batch(proto, x)["y"])
    assert {n.op_type for n in ctx.builder.nodes} >= {op} and [s.kind for s in ctx.carries] == ["carry"]
    assert (ctx.clock.position is None) == (start == 0)


def test_its_last_state_waits_for_the_end() -> None:
    ctx, plan = planned(scan())
    execute(ctx, made_by(ctx, "y"), plan)
    last = ctx.ask.facts["last"]
    assert isinstance(last, Static) and last.late
    assert [all(c.met(s) for c in ctx.ask.ledger.conditions) for s in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (scan(scan_input_directions=[1]), "runs backwards over time"),
        (scan(scan_output_directions=[1]), "from the last to the first"),
    ],
)
def test_what_reads_the_future_is_refused(proto: onnx.ModelProto, reason: str) -> None:
    problem = refused(proto)
    assert problem.op == "Scan" and problem.node == "last"
    assert reason in problem.reason


def test_a_scan_along_another_axis_turns_a_fixed_number_of_times() -> None:
    """[5, T, 3], scanned along the first: it is written out before any rule sees it."""
    inner = onnx.helper.make_graph(
        [node("Add", "h f", "h2"), node("Identity", "h2", "g")], "body",
        [port("h", ["T", 3]), port("f", ["T", 3])], [port("h2", None), port("g", None)],
    )  # fmt: skip
    nodes = [
        node("Gather", "x first", "h0", axis=0),
        node("Scan", "h0 x", "last y", body=inner, num_scan_inputs=1),
    ]
    proto = model(nodes, {"x": [5, "T", 3]}, ["y"], {"first": np.array(0)})
    ctx, plan = planned(proto)
    assert all(n.op != "Scan" for n in ctx.ask.model.nodes)
    assert all(r.reach.pointwise for r in plan.reads) and not plan.exact
