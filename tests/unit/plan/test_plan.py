"""From a plan to windows: when a frame can be had, and what has to be true of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.analysis.facts import Layout, Window, Wire
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.reach import POINTWISE, Reach, shift
from pulsify.plan.boundary import Fill, mirrored_wire
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read, execute, settled
from tests.models import model, node
from tests.unit.convert.contexts import made_by, opened, wire_of

P = 4
AVERAGE = model([node("AveragePool", "x", "y", kernel_shape=[1])], {"x": [1, 1, "T"]}, ["y"])


def planned(ctx: Context, reach: Reach, length: Length, fill: Fill | None = None, **more: Any) -> Plan:
    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        return (ctx.builder.op("Neg", values[0]),)

    layout = wire_of(ctx, "x").layout
    return Plan((Read(wire_of(ctx, "x"), reach, fill),), (layout,), length, emit, **more)


@pytest.mark.parametrize(
    ("reach", "window"),
    [
        (POINTWISE, Window(P, 0, 4)),
        (Reach(lo=-2, hi=0), Window(P, 0, 4)),
        (Reach(lo=-1, hi=1), Window(P, -1, 3)),  # one frame ahead: one late
        (Reach(lo=0, hi=6), Window(P, -6, -2)),
    ],
)
def test_a_window_ends_where_all_it_reads_is_there(reach: Reach, window: Window) -> None:
    ctx = opened(AVERAGE, P)
    execute(ctx, made_by(ctx, "y"), planned(ctx, reach, Length(), Fill()))
    assert ctx.windows["y"] == window


def test_frames_in_front_of_the_stream_are_known_and_the_window_is_no_wider_than_the_pulse() -> None:
    proto = model([node("Pad", "x pads", "y")], {"x": [1, 1, "T"]}, ["y"], {"pads": np.array([0, 0, 2, 0, 0, 0])})
    ctx = opened(proto, P)
    execute(ctx, made_by(ctx, "y"), planned(ctx, shift(-2), Length().then(add=2), Fill()))
    assert ctx.windows["y"] == Window(P, 2, 6)
    assert wire_of(ctx, "y").known == 2 and ctx.stored["y"].begun is None


def test_first_frames_that_show_others_are_made_apart_from_the_window() -> None:
    constants = {"pads": np.array([0, 0, 2, 0, 0, 0]), "w": np.ones((1, 1, 2), np.float32)}
    nodes = [node("Pad", "x pads", "m", mode="reflect"), node("Conv", "m w", "y")]
    ctx = opened(model(nodes, {"x": [1, 1, "T"]}, ["y"], constants), P)
    for name in ("m", "y"):
        ctx.node_rule(ctx, made_by(ctx, name))
    assert ctx.windows["y"] == Window(P, 1, 5)
    assert wire_of(ctx, "y").known == 0 and ctx.stored["y"].begun is not None


def test_an_operator_with_a_state_sees_every_frame_once() -> None:
    ctx = opened(AVERAGE, P)
    wide = replace(wire_of(ctx, "x"), end=P)
    ctx.ask.facts["x"] = wide
    execute(ctx, made_by(ctx, "y"), planned(ctx, Reach(lo=0, hi=1), Length(), Fill(), exact=True))
    assert ctx.windows["y"] == Window(P, -1, 3)


def test_across_time_folded_with_another_axis_nothing_is_read() -> None:
    ctx = opened(AVERAGE, P)
    folded = replace(wire_of(ctx, "x"), layout=Layout((0, 1), 0, (2, 2)))
    plan = replace(planned(ctx, shift(1), Length()), reads=(Read(folded, shift(1)),))
    with pytest.raises(NotStreamable, match="merged with another axis"):
        execute(ctx, made_by(ctx, "y"), plan)


def test_what_does_not_wait_for_data_is_made_for_any_window() -> None:
    ctx = opened(AVERAGE, P)
    known = replace(wire_of(ctx, "x"), end=None, length=None)
    plan = replace(planned(ctx, POINTWISE, Length()), reads=(Read(known),), length=None)
    execute(ctx, made_by(ctx, "y"), plan)
    y = wire_of(ctx, "y")
    assert y.end is None and "y" not in ctx.stored
    assert y.take(Window(P, 0, 2)) is y.take(Window(P, 0, 2)), "once for every window"
    assert y.take(Window(P, 0, 2)) is not y.take(Window(P, 1, 2))


def test_a_copy_is_made_from_its_inputs_buffer() -> None:
    ctx = opened(AVERAGE, P)
    execute(ctx, made_by(ctx, "y"), planned(ctx, POINTWISE, Length(), copies=True))
    y = wire_of(ctx, "y")
    assert y.copies and y.end == P and "y" not in ctx.stored


def test_a_table_that_ends_bounds_the_stream() -> None:
    ctx = opened(AVERAGE, P)
    x = wire_of(ctx, "x")
    table = Wire("table", x.layout, x.dtype, None, None, x.take, table_rows=100)
    plan = planned(ctx, POINTWISE, Length())
    execute(ctx, made_by(ctx, "y"), replace(plan, reads=(*plan.reads, Read(table))))
    (condition,) = ctx.ask.ledger.conditions
    assert condition.at_most == 100 and [condition.met(s) for s in (100, 101)] == [True, False]


def test_a_mirror_is_put_behind_what_is_frame_by_frame() -> None:
    """Nobody waits for mirrored frames that are only negated."""
    nodes = [node("Pad", "x pads", "h", mode="reflect"), node("Neg", "h", "y")]
    ctx = opened(model(nodes, {"x": [1, 1, "T"]}, ["y"], {"pads": np.array([0, 0, 3, 0, 0, 0])}), P)
    for n in ctx.ask.model.nodes:
        ctx.node_rule(ctx, n)
    y = wire_of(ctx, "y")
    assert y.mirror is not None and y.mirror.source.name == "y#source" and y.mirror.before == 3


def test_a_mirrored_wire_is_settled_late_enough() -> None:
    ctx = opened(AVERAGE, P)
    again = mirrored_wire(ctx, "again", wire_of(ctx, "x"), 3, 0, "reflect", Length().then(add=3))
    held = settled(ctx, made_by(ctx, "y"), again)
    assert held.mirror is None and held.end is not None and again.end is not None and held.end <= again.end
