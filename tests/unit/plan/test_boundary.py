"""Boundaries at both ends, run pulse by pulse, against numpy's pad. Behind the end of the stream there is NaN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.analysis.facts import Layout, Window, Wire
from pulsify.core.length import Length
from pulsify.core.reach import POINTWISE, Reach, shift
from pulsify.emit.frames import along, gather_frames, real_frames
from pulsify.plan.boundary import Fill, bounded_wire, fill, mirrored_wire, overrun, ready
from pulsify.plan.context import Context
from tests.models import Array, frames
from tests.unit.convert.contexts import Steps, emitting, opened, run_window, wire_model, wire_of, written

P = 4


def context(dims: tuple[int | str, ...] = (1, 2, "T")) -> tuple[Context, Wire]:
    ctx = opened(wire_model(dims), P)
    return ctx, wire_of(ctx, "x")


def padded(x: Array, before: int, after: int, how: Fill) -> Array:
    pads = [(0, 0), (0, 0), (before, after)]
    if how.mode == "constant":
        return np.pad(x, pads, constant_values=how.value)
    return np.pad(x, pads, mode=how.mode)  # type: ignore[call-overload]


FILLS = [Fill(), Fill(value=2.5), Fill("edge"), Fill("reflect")]


@pytest.mark.parametrize("how", FILLS, ids=lambda f: f"{f.mode} {f.value}")
@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 3), (3, 3), (5, 2)])
@pytest.mark.parametrize("length", [6, 8, 13])
def test_frames_outside_the_stream_are_filled_in(how: Fill, before: int, after: int, length: int) -> None:
    """Output frame k reads frame k - before: a pad."""
    ctx, wire = context()
    made = Length().then(add=before + after)
    window = Window(P, -6, -2)  # late enough for what is mirrored in front to have come
    assert ready(wire, shift(-before), how, window) and made.latest_end(P) >= window.end
    value = fill(ctx, wire, shift(-before), how, window, made)
    x = frames(1, 2, length)
    out = run_window(ctx, value, window, x, length + before + after)
    np.testing.assert_array_equal(out, padded(x, before, after, how))


def test_zeros_in_front_are_the_state_the_stream_starts_with() -> None:
    ctx, wire = context()
    value = fill(ctx, wire, Reach(lo=-2, hi=0), Fill(), Window(P, 0, P), Length())
    assert ctx.zeroed == {"x"}
    steps = Steps(ctx, {"out": value})
    assert ctx.clock.position is None and ctx.clock.length is None, "nothing has to be counted"
    np.testing.assert_array_equal(steps.step({"x": np.ones((1, 2, P), np.float32)})["out"][0, 0], [0, 0, 1, 1, 1, 1])


def test_other_numbers_in_front_need_the_clock() -> None:
    ctx, wire = context()
    Steps(ctx, {"out": fill(ctx, wire, Reach(lo=-2, hi=0), Fill(value=1), Window(P, 0, P), Length())})
    assert ctx.clock.position is not None and not ctx.zeroed


def test_a_wire_whose_first_frames_come_from_an_operator_is_masked_in_front() -> None:
    ctx, wire = context()
    Steps(ctx, {"out": fill(ctx, replace(wire, clean=False), Reach(lo=-2, hi=0), Fill(), Window(P, 0, P), Length())})
    assert ctx.clock.position is not None and not ctx.zeroed


def test_what_never_looks_outside_is_the_wire_itself() -> None:
    ctx, wire = context()
    window = Window(P, 0, P)
    values = [fill(ctx, wire, POINTWISE, how, window, Length()) for how in (None, Fill("edge"))]
    emission = written(ctx, *values)
    assert {v.value for v in values} == {emission.buffers["x"].value} and emission.clock.position is None


def test_frames_touched_with_no_weight_are_finite_all_the_same() -> None:
    ctx, wire = context()
    value = fill(ctx, wire, POINTWISE, Fill("edge", past=1), Window(P, 0, P), Length())
    x = frames(1, 2, 6)
    out = run_window(ctx, value, Window(P, 0, P), x, 8)
    np.testing.assert_array_equal(out, padded(x, 0, 2, Fill("edge")))


@pytest.mark.parametrize(
    ("reach", "made", "past"),
    [
        (POINTWISE, Length(), 0),
        (Reach(lo=-1, hi=1), Length(), 1),
        (Reach(lo=0, hi=2), Length().then(add=-2), 0),  # a convolution that is not padded
        (Reach(2, 1, 0, 2), Length().then(1, 1, 2), 2),  # of an odd number of frames the last one and two more
        (Reach(2, 1, 0, 1), Length().then(1, 0, 2), 0),
        (Reach(1, 2, 0, 1), Length().then(2), 1),
    ],
)
def test_overrun_is_how_far_past_the_end_anything_looks(reach: Reach, made: Length, past: int) -> None:
    assert overrun(reach, Length(), made) == past
    furthest = max(reach.last(made.at(s) - 1) - s + 1 for s in range(8, 40))
    assert past == max(furthest, 0)


def test_overrun_counts_short_streams_with_ways_of_their_own() -> None:
    made = replace(Length(), short=(0, 3))  # of one frame it makes three
    assert overrun(POINTWISE, Length(), made) == 2


@pytest.mark.parametrize(("mode", "latest"), [("constant", 4), ("edge", 4), ("reflect", 0)])
def test_mirrored_frames_must_be_there_when_they_are_shown(mode: str, latest: int) -> None:
    """With three frames in front, output frame 0 reflects frame 3, which is not there in the first pulse."""
    _, wire = context()
    wire = replace(wire, end=3)
    ends = [e for e in range(-4, 5) if ready(wire, shift(-3), Fill(mode), Window(P, min(e - P, 0), e))]
    assert max(ends) == latest


@pytest.mark.parametrize(("mode", "before", "after"), [("edge", 2, 1), ("reflect", 2, 2), ("reflect", 0, 3)])
def test_a_mirrored_wire_shows_frames_again_at_both_ends(mode: str, before: int, after: int) -> None:
    ctx, wire = context()
    made = Length().then(add=before + after)
    again = mirrored_wire(ctx, "again", wire, before, after, mode, made)
    assert again.end is not None and (again.mirror is not None) == (before > 0)
    window = Window(P, -4, 0)
    x = frames(1, 2, 9)
    out = run_window(ctx, again.take(window), window, x, 9 + before + after)
    np.testing.assert_array_equal(out, padded(x, before, after, Fill(mode)))


@pytest.mark.parametrize("length", [1, 2, 9])
def test_the_first_frames_once_more_in_front(length: int) -> None:
    """Fewer, if the stream has fewer."""
    ctx, wire = context()
    made = Length(((1, 3, 1),), short=(0, 2, 4, 6))
    again = mirrored_wire(ctx, "again", wire, 3, 0, "repeat", made)
    window = Window(P, -4, 0)
    x = frames(1, 2, length)
    out = run_window(ctx, again.take(window), window, x, made.at(length))
    np.testing.assert_array_equal(out, np.concatenate([x[..., :3], x], -1))


def test_a_bounded_wire_is_zero_outside_the_stream() -> None:
    ctx, wire = context()
    bounded = bounded_wire(ctx, wire)
    assert bounded.clean and bounded is bounded_wire(ctx, wire), "one for all who ask"
    window = Window(P, -2, P)
    x = frames(1, 2, 6)
    out = run_window(ctx, bounded.take(window), window, x, 8)
    np.testing.assert_array_equal(out, padded(x, 0, 2, Fill()))


def test_a_wire_without_a_length_has_nothing_to_bound() -> None:
    ctx, wire = context()
    endless = replace(wire, name="endless", length=None)
    assert bounded_wire(ctx, endless) is endless


def test_real_frames_lie_between_the_start_and_the_end() -> None:
    ctx = emitting(wire_model((1, 2, "T")), P)
    window = Window(P, -2, 3)
    outputs = {
        "both": real_frames(ctx, window, Length(), starts=True),
        "start": real_frames(ctx, window, None, starts=True),
        "end": real_frames(ctx, window, Length(), starts=False),
    }
    made = Steps(ctx, outputs).step({}, length=1)
    assert made["both"].tolist() == [[False, False, True, False, False]]
    assert made["start"].tolist() == [[False, False, True, True, True]]
    assert made["end"].tolist() == [[True, True, True, False, False]]


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Layout((-1, 3, 0), 2), (2, 1, 4)),
        (Layout((0, -1, 3), 0), (4, 2, 1)),  # the batch behind time
        (Layout((-3, 0, 5), 1), (6, 4, 1)),  # three entries a stream
        (Layout((0, -3), 0), (4, 6)),
        (Layout((1, 0), 1), (1, 4)),  # one entry for all streams
        (Layout((0, 5), 0, (3, 2)), (8, 1)),  # streams folded in front of time
    ],
)
def test_flags_are_laid_out_to_meet_a_tensor(layout: Layout, shape: tuple[int, ...]) -> None:
    ctx = emitting(wire_model(("B", 2, "T")), P)
    flags = ctx.builder.input("flags", ir.DataType.FLOAT, ["B", P])
    out = along(ctx, flags, layout, P)
    given = np.arange(2 * P, dtype=np.float32).reshape(2, P)
    made = Steps(ctx, {"out": out}).step({"flags": given})["out"]
    assert made.shape == shape
    if layout.folded:
        np.testing.assert_array_equal(made.reshape(2, P), given)
        return
    if layout.batch is None:
        np.testing.assert_array_equal(made[0], given[0])
        return
    per = -layout.sizes[layout.batch]
    by_stream = np.moveaxis(made, (layout.batch, layout.axis), (0, 1)).reshape(2 * per, P)
    np.testing.assert_array_equal(by_stream, np.repeat(given, per, 0))


def test_every_stream_gathers_at_its_own_places() -> None:
    ctx = emitting(wire_model(("B", 2, "T")), P)
    place = ctx.builder.input("place", ir.DataType.INT32, ["B", 3])
    out = gather_frames(ctx, ctx.builder.inputs["x"], place, wire_of(ctx, "x").layout, 3)
    x = frames(2, 2, P)
    made = Steps(ctx, {"out": out}).step({"x": x, "place": np.array([[0, 0, 3], [2, 1, 1]], np.int32)})["out"]
    np.testing.assert_array_equal(made, np.stack([x[0][:, [0, 0, 3]], x[1][:, [2, 1, 1]]]))
