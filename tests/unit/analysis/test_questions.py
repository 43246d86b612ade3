"""What can be asked about a model while it is converted, and the filing of wires."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.analysis.facts import Awaited, Deferred, FirstFrames, Layout, Static, Varying, Window
from pulsify.analysis.questions import Unclear
from pulsify.convert.audit import check_states
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.emit.state import State
from pulsify.plan.audit import check_wire
from pulsify.plan.context import Misaligned
from tests.models import model, node
from tests.unit.convert.contexts import made_by, opened, wire_model, wire_of

SIZES = model(
    [
        node("Shape", "x", "dims"), node("Gather", "dims time", "t", axis=0), node("Range", "n0 t n1", "p"),
        node("Cast", "p", "f", to=1), node("Add", "x f", "h"), node("Transpose", "h", "turned", perm=[0, 2, 1]),
        node("MatMul", "turned h", "scores"), node("ReduceSum", "scores", "y", keepdims=0),
    ],
    {"x": ["B", 2, "T"]}, ["y"], {"time": np.array(2), "n0": np.array(0), "n1": np.array(1)},
)  # fmt: skip


def test_time_axes_are_those_that_grow() -> None:
    ask = opened(SIZES).ask
    assert [ask.time_axes(n) for n in ("x", "turned", "p", "t", "scores")] == [[2], [1], [0], [], [1, 2]]


def test_sizes_show_the_batch_and_time() -> None:
    ask = opened(SIZES).ask
    assert ask.sizes("x", 2) == (-1, 2, 0)
    assert ask.sizes_static("dims") == (3,)
    assert ask.layout(made_by(opened(SIZES), "h"), "h") == Layout((-1, 2, 0), 2)


def test_several_entries_of_every_stream_on_one_axis_are_counted() -> None:
    ctx = opened(model([node("Tile", "x by", "y")], {"x": ["B", 4, "T"]}, ["y"], {"by": np.array([2, 1, 1])}))
    assert ctx.ask.sizes("y", 2) == (-2, 4, 0)


def test_values_are_known_if_they_follow_from_the_length() -> None:
    ask = opened(SIZES).ask
    assert ask.known("x") is None and ask.known("scores") is None
    found = ask.known("t")
    assert found is not None and [int(v) for v in found] == list(ask.traces.lengths)


def test_a_layout_takes_exactly_one_time_axis() -> None:
    ctx = opened(SIZES)
    for name, count in (("scores", "2 time axes"), ("y", "no time axis")):
        with pytest.raises(Unclear, match=count) as caught:
            ctx.ask.layout(made_by(ctx, name), name)
        assert caught.value.node == name and caught.value.hint


@pytest.mark.parametrize("kind", ["wire", "varying", "final", "prefix"])
def test_what_is_no_fixed_value_is_refused_where_one_is_needed(kind: str) -> None:
    ctx = opened(wire_model())
    wire, value = wire_of(ctx, "x"), Deferred(lambda: ctx.builder.ints(1))
    final = Static(value, (Awaited(Length(), Window(4, 0, 4), made_by(ctx, "y")),))
    ctx.ask.facts["v"] = {"wire": wire, "varying": Varying("v"), "final": final, "prefix": FirstFrames(wire, 2)}[kind]
    reason = {
        "wire": "varies over time", "varying": "depends on the length of the whole stream",
        "final": "known only when the stream has ended", "prefix": "the first frames of the stream",
    }[kind]  # fmt: skip
    with pytest.raises(NotStreamable, match=reason) as caught:
        ctx.ask.operand(made_by(ctx, "y"), "v")
    assert (caught.value.node, caught.value.op) == ("y", "Neg") and caught.value.hint


def test_a_fixed_value_is_handed_out_and_an_absent_one_is_none() -> None:
    ctx = opened(wire_model())
    value = Deferred(lambda: ctx.builder.ints(1))
    ctx.ask.facts["v"] = Static(value)
    assert ctx.ask.operand(made_by(ctx, "y"), "v") is value
    assert ctx.ask.operand(made_by(ctx, "y"), "") is None and ctx.ask.wire("") is None


def test_facts_are_looked_for_once() -> None:
    ctx = opened(wire_model())
    asked: list[str] = []

    def find(name: str) -> Varying:
        asked.append(name)
        return Varying(name)

    ctx.ask.find = find
    assert ctx.ask.fact("new") is ctx.ask.fact("new") and asked == ["new"]
    ctx.release()
    assert not ctx.ask.facts, "and let go of in the end"


def test_a_rate_must_give_whole_frames() -> None:
    ctx = opened(wire_model(), pulse=6)
    assert ctx.frames(Fraction(1, 3)) == 2
    with pytest.raises(Misaligned) as caught:
        ctx.frames(Fraction(3, 4))
    assert caught.value.multiple == 4 and ctx.ask.ledger.denominators >= {3, 4}


def test_a_wire_that_is_filed_is_shared_and_checked() -> None:
    ctx = opened(wire_model())
    value = Deferred(lambda: ctx.builder.ints(1))
    stored = ctx.file_wire("y", "y", value, Layout((1, 1, 0), 2), Length(), Window(4, -1, 3))
    made = wire_of(ctx, "y")
    assert ctx.windows["y"] == stored.window == Window(4, -1, 3) and made.end == 3
    assert not made.clean, "its operator makes frames before the first"
    with pytest.raises(NotStreamable, match="were expected"):
        ctx.file_wire("y", "y", value, Layout((1, 1, 0), 2), Length().then(2), Window(8, 0, 8))


def test_strings_cannot_be_kept() -> None:
    proto = model([node("Identity", "x", "y")], {"x": [1, "T"]}, ["y"], dtypes={"x": np.str_, "y": np.str_})
    with pytest.raises(NotStreamable, match="stream of strings"):
        opened(proto)


def test_a_wire_has_as_many_frames_as_were_traced() -> None:
    ctx = opened(wire_model())
    check_wire(ctx.ask.traces, "x", "x", Layout((1, 1, 0), 2), Length())
    with pytest.raises(NotStreamable, match="were expected") as caught:
        check_wire(ctx.ask.traces, "x", "x", Layout((1, 1, 0), 2), Length().then(add=1))
    assert "report" in caught.value.hint


def test_states_come_in_pairs() -> None:
    before, after = (ir.val(n, ir.DataType.FLOAT, ir.Shape([1, 2])) for n in ("s", "new_s"))
    graph = ir.Graph([before], [after], nodes=[ir.Node("", "Identity", [before], outputs=[after])])
    check_states(graph, [State("n", "carry", ir.DataType.FLOAT, (1, 2), before, after)])
    with pytest.raises(AssertionError):
        check_states(graph, [State("n", "carry", ir.DataType.FLOAT, (1, 2), after, before)])
