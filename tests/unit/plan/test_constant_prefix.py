"""First frames that are the same in every stream: how many, what they are, and that they really are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from pulsify.analysis.facts import Layout, Window
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length, Table
from pulsify.plan.constant_prefix import at_least, frames_of, holds, wishes
from pulsify.plan.context import Context
from pulsify.plan.plan import execute
from tests.models import model, node, weights
from tests.unit.convert.contexts import made_by, opened, planned, wire_of

P = 4
PADS = np.array([0, 0, 5, 0, 0, 0])


def padded() -> onnx.ModelProto:
    """5 frames of 0.5 in front, then a convolution of 3: of its frames, 0 to 2 are made of those alone."""
    nodes = [node("Pad", "x pads half", "m"), node("Conv", "m w", "y"), node("Conv", "y v", "z")]
    constants = {"pads": PADS, "half": np.array(0.5, np.float32), "w": weights(2, 1, 3), "v": weights(1, 2, 2)}
    return model(nodes, {"x": ["B", 1, "T"]}, ["z"], constants)


def ruled() -> Context:
    ctx = opened(padded(), P)
    for name in ("m", "y", "z"):
        ctx.node_rule(ctx, made_by(ctx, name))
    return ctx


@pytest.mark.parametrize(
    ("length", "fewest"),
    [
        (Length(), 1),
        (Length().then(add=5), 6),
        (Length().then(add=-3, floor=True), 0),
        (Length(short=(0, 4, 2)).then(), 2),
        (Length(table=Table(2, 2, (3, 1))), 1),
    ],
)
def test_no_stream_has_fewer_frames(length: Length, fewest: int) -> None:
    assert at_least(length) == fewest
    assert all(max(length.at(s), 0) >= fewest for s in range(1, 50))


def test_only_states_of_one_row_a_stream_can_begin_with_the_same_frames() -> None:
    assert holds(Layout((-1, 3, 0), 2)) and holds(Layout((1, 3, 0), 2))
    assert not holds(Layout((-2, 3, 0), 2)), "two rows a stream"
    assert not holds(Layout((0, 3), 0, (3, 2))), "time folded with the batch"


def test_windows_move_on_by_a_pulse_and_begin_with_known_frames() -> None:
    ctx = ruled()
    assert [wire_of(ctx, n).known for n in ("m", "y", "z")] == [5, 3, 2]
    assert [ctx.windows[n] for n in ("y", "z")] == [Window(P, 3, 7), Window(P, 2, 6)]
    assert wishes(ctx) == {"y": 3}, "what is padded is cut out of the input's own buffer, filled in"


def test_known_frames_are_those_of_the_batch_model() -> None:
    ctx = ruled()
    found = frames_of(ctx, wishes(ctx))
    taps = weights(2, 1, 3).sum((1, 2)) * 0.5
    assert np.allclose(found["y"], np.repeat(taps[None, :, None], 3, 2), atol=1e-6)


def test_frames_that_differ_between_streams_are_never_taken_for_known() -> None:
    ctx = ruled()
    with pytest.raises(NotStreamable, match="the first 4 frames of 'y' should be the same in every stream"):
        frames_of(ctx, {"y": 4})


def test_what_reads_the_length_or_an_input_is_not_known() -> None:
    """Frames of padding, times a constant and times an input without time."""
    nodes = [node("Pad", "x pads half", "m"), node("Conv", "m w", "y"), node("Mul", "y k", "z")]
    constants = {"pads": PADS, "half": np.array(0.5, np.float32), "w": weights(2, 1, 3)}
    known = {}
    for kind, given, more in (("constant", {}, {"k": weights(1, 2, 1)}), ("input", {"k": [1, 2, 1]}, {})):
        ctx = opened(model(nodes, {"x": [1, 1, "T"], **given}, ["z"], constants | more), P)
        for name in ("m", "y", "z"):
            ctx.node_rule(ctx, made_by(ctx, name))
        known[kind] = wire_of(ctx, "z").known
    assert known == {"constant": 3, "input": 0}


@pytest.mark.parametrize(("ends", "known"), [(False, 3), (True, 0)])
def test_what_is_made_with_a_look_at_the_end_is_not_known(ends: bool, known: int) -> None:
    ctx, plan = planned(padded(), "y", P)
    execute(ctx, made_by(ctx, "y"), replace(plan, ends=ends))
    assert wire_of(ctx, "y").known == known
