"""Frames in, pulses, frames out: whatever the chunks, the delay and the end."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pulsify
from pulsify.core.errors import InvalidChunk, InvalidLength
from pulsify.core.length import Length
from pulsify.core.spec import Condition, Output, Proof, Spec
from pulsify.runtime.framer import SHORT, Framer, finite, ports
from tests import models
from tests.models import Array, frames
from tests.unit.specs import FAR, a_stream, an_input, an_output


def framer(spec: Spec, padding: float = -1.0, check: bool = True) -> Framer:
    return Framer(ports(spec, 1), padding, check)


def in_line(f: Framer) -> dict[str, int]:
    return {name: backlog.frames for name, backlog in f.backlog.items()}


def numbered(length: int, start: int = 1) -> Array:
    """[1, 2, frames]: frame n is n in both channels, counted from 1."""
    return np.tile(np.arange(start, start + length, dtype=np.float32), (1, 2, 1))


class Handing:
    """A session on a model that hands the frames of `x` on, as late as its outputs are."""

    def __init__(self, spec: Spec) -> None:
        self.framer = framer(spec)
        self.pulses: list[Array] = []
        self.inputs = {i.name: np.zeros((1, *map(int, i.dims[1:])), i.dtype) for i in spec.inputs}

    def push(self, chunk: Array) -> Any:
        f = self.framer
        pieces = f.checked(chunk, {})
        f.received = f.counted(pieces)
        f.queue(pieces)
        self.compute(None)
        f.own(pieces)
        return self.given_out(final=False)

    def flush(self) -> Any:
        if total := self.framer.ending():
            self.compute(total)
            assert not self.framer.unfinished(total)
        return self.given_out(final=True)

    def compute(self, total: int | None) -> None:
        f = self.framer
        for _ in range(f.due(total)):
            whole = f.ready()
            f.load(self.inputs, padded=not whole)
            self.pulses.append(self.inputs["x"].copy())
            f.collect({o.name: self.made(o) for o in f.spec.outputs}, None if whole else total)

    def made(self, o: Output) -> Array:
        if o.axis is None:
            return np.full((1,), len(self.pulses), np.float32)
        late = np.concatenate([np.zeros((1, 2, o.delay), np.float32), *self.pulses], -1)
        return late[..., (len(self.pulses) - 1) * o.frames :][..., : o.frames]

    def given_out(self, final: bool) -> Any:
        parts, self.framer.parts = self.framer.parts, self.framer.no_parts()
        return self.framer.joined(parts, final)


def streamed(spec: Spec, chunks: list[Array]) -> tuple[Array, Framer]:
    """Everything that comes out, pushed and flushed."""
    session = Handing(spec)
    return np.concatenate([*map(session.push, chunks), session.flush()], -1), session.framer


# ---- any chunks, any delay, any end


@given(
    pulse=st.integers(1, 6),
    more=st.integers(0, 20),
    sizes=st.lists(st.integers(0, 15), max_size=8),
    fewer=st.integers(0, 5),
)
@settings(max_examples=80, deadline=None)
def test_all_frames_come_out_once_in_order_however_they_are_cut(
    pulse: int, more: int, sizes: list[int], fewer: int
) -> None:
    """Of an output of `fewer` frames than the stream, which is at least as late, the last are none."""
    length = Length().then(add=-fewer, floor=True)
    spec = a_stream(pulse, outputs=(an_output(dims=(1, 2, pulse), delay=fewer + more, length=length),))
    x = numbered(sum(sizes))
    got, f = streamed(spec, np.split(x, np.cumsum(sizes)[:-1], -1) if sizes else [])
    np.testing.assert_array_equal(got, x[..., : max(sum(sizes) - fewer, 0)])
    assert f.received == {"x": sum(sizes)} and not f.waits


@given(pulse=st.integers(1, 5), delay=st.integers(0, 9), cap=st.integers(0, 12), length=st.integers(0, 25))
@settings(max_examples=60, deadline=None)
def test_of_an_output_with_a_cap_no_more_frames_come_out(pulse: int, delay: int, cap: int, length: int) -> None:
    spec = a_stream(pulse, outputs=(an_output(dims=(1, 2, pulse), delay=delay, length=Length(cap=cap)),))
    got, _ = streamed(spec, [numbered(length)])
    np.testing.assert_array_equal(got, numbered(min(length, cap)))


def test_a_stream_without_a_frame_gives_outputs_without_frames() -> None:
    for chunks in ([], [numbered(0)], [numbered(0)] * 3):
        got, f = streamed(a_stream(), chunks)
        assert got.shape == (1, 2, 0) and got.dtype == np.float32 and f.pulses == 0


def test_a_pulse_waits_for_its_last_frame() -> None:
    f = framer(a_stream(4))
    f.queue({"x": numbered(3)})
    assert not f.ready() and f.due(None) == 0
    f.queue({"x": numbered(1)})
    assert f.ready() and f.due(None) == 1
    f.queue({"x": numbered(9)})
    assert f.due(None) == 3


def test_the_last_pulse_is_filled_up_with_the_padding() -> None:
    f = framer(a_stream(4), padding=9.0)
    f.queue({"x": numbered(1)})
    into = {"x": np.zeros((1, 2, 4), np.float32)}
    f.load(into, padded=True)
    np.testing.assert_array_equal(into["x"][0, 0], [1, 9, 9, 9])
    assert not f.waits and not f.backlog["x"].pieces


def test_whole_numbers_are_filled_up_with_a_real_one() -> None:
    """They may be indices: minus one, or a NaN cast to one, is none."""
    f = framer(a_stream(inputs=(an_input(dims=(1, 4), dtype=np.int64),)))
    f.queue({"x": np.array([[5, 7]])})
    into = {"x": np.full((1, 4), 3)}
    f.load(into, padded=True)
    np.testing.assert_array_equal(into["x"], [[5, 7, 7, 7]])
    f.load(into, padded=True)
    np.testing.assert_array_equal(into["x"], [[5, 7, 7, 7]], "without a frame the last ones stay")


def test_a_pulse_is_put_together_from_pieces_and_pieces_are_cut() -> None:
    f = framer(a_stream(4))
    for n in (1, 0, 2, 6):
        f.queue({"x": numbered(n, start=10 * n + 1)})
    into = {"x": np.zeros((1, 2, 4), np.float32)}
    f.load(into, padded=False)
    np.testing.assert_array_equal(into["x"][0, 0], [11, 21, 22, 61])
    f.load(into, padded=False)
    np.testing.assert_array_equal(into["x"][0, 0], [62, 63, 64, 65])
    np.testing.assert_array_equal(f.waiting_frames()["x"][0, 0], [66])


def test_what_is_left_of_a_chunk_is_copied_and_a_pulse_that_was_taken_can_wait_again() -> None:
    f, chunk = framer(a_stream(4)), numbered(6)
    f.queue({"x": chunk})
    into = {"x": np.zeros((1, 2, 4), np.float32)}
    f.load(into, padded=False)
    f.own({"x": chunk})
    chunk[...] = 0  # the caller's memory
    np.testing.assert_array_equal(f.waiting_frames()["x"][0, 0], [5, 6])
    f.unload(into)
    into["x"][...] = 0  # the model's memory
    np.testing.assert_array_equal(f.waiting_frames()["x"][0, 0], [1, 2, 3, 4, 5, 6])
    assert in_line(f) == {"x": 6}


# ---- what is turned down; nothing is taken then


def refused(f: Framer, chunk: Any, says: str, **chunks: Any) -> None:
    before = f.counts(), in_line(f)
    with pytest.raises(InvalidChunk, match=says):
        f.checked(chunk, chunks)
    assert (f.counts(), in_line(f)) == before


@pytest.mark.parametrize(
    ("chunk", "says"),
    [
        (np.zeros((1, 2, 4)), r"takes float32, got float64: convert it with .astype\(np.float32\)"),
        (np.zeros((2, 4), np.float32), r"shape \[1, 2, time\] \(time is axis 2\), got \[2, 4\]"),
        (np.zeros((1, 3, 4), np.float32), r"got \[1, 3, 4\]"),
        (np.zeros((2, 2, 4), np.float32), r"got \[2, 2, 4\]"),
        ([[1, 2], [3]], "takes an array of float32, and this is none"),
        ({"y": numbered(1)}, r"no streamed input is called \['y'\]; they are \['x'\]"),
        (np.array([[[0, np.nan], [np.inf, 0]]], np.float32), "an infinite number at frame 7 of the stream"),
        (np.array([[[0, 0, np.nan], [0, 0, 0]]], np.float32), "NaN at frame 9 of the stream; nothing was taken"),
    ],
)
def test_a_chunk_that_does_not_fit_says_what_would(chunk: Any, says: str) -> None:
    f = framer(a_stream())
    f.received = {"x": 7}
    refused(f, chunk, says)


def test_what_is_not_finite_passes_where_it_is_not_looked_for() -> None:
    chunk = np.full((1, 2, 3), np.nan, np.float32)
    assert framer(a_stream(), check=False).checked(chunk, {})["x"] is chunk


def test_several_inputs_are_pushed_by_name_alone_or_in_part() -> None:
    two = a_stream(inputs=(an_input("a"), an_input("b")))
    f = framer(two)
    refused(f, numbered(1), r"several inputs: push a dict with \['a', 'b'\]")
    assert set(f.checked({"a": numbered(1)}, {"b": numbered(2)})) == {"a", "b"}
    assert set(f.checked(None, {"b": numbered(2)})) == {"b"} and f.checked(None, {}) == {}


@pytest.mark.parametrize("size", [0, 1, SHORT, SHORT + 1])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found_wherever_it_stands(size: int, odd: float) -> None:
    array = np.zeros(size, np.float32)
    assert finite(array)
    for at in {0, size // 2, size - 1} if size else ():
        array[at] = odd
        assert not finite(array)
        array[at] = 0


def test_a_whole_pulse_goes_straight_into_the_model_and_anything_else_does_not() -> None:
    f, into = framer(a_stream()), np.zeros((1, 2, 4), np.float32)
    flat = into.reshape(-1)
    assert f.fits(numbered(4), into, flat) and (into == numbered(4)).all()
    assert f.fits(np.full((1, 2, 4), np.inf, np.float32), into, None)
    assert not f.fits(np.full((1, 2, 4), np.inf, np.float32), into, flat)
    for other in (numbered(3), numbered(4).astype(np.float64), numbered(4).tolist(), None, {"x": numbered(4)}):
        assert not f.fits(other, into, flat)


# ---- the end


def test_inputs_that_end_at_different_places_are_refused() -> None:
    spec = a_stream(inputs=(an_input("slow"), an_input("fast", (1, 2, 16), rate=4)))
    f = framer(spec)
    for received, fine in (((3, 12), True), ((0, 0), True), ((3, 13), False), ((2, 12), False), ((3, 11), False)):
        f.received = dict(zip(("slow", "fast"), received, strict=True))
        if fine:
            assert f.ending() == received[0]
        else:
            with pytest.raises(InvalidLength, match="the inputs have not the same length"):
                f.ending()


@pytest.mark.parametrize(
    ("fields", "total", "says"),
    [
        ({"shortest": 5}, 4, "4 frames are too few: this model needs at least 5. Push more"),
        ({"step": 4}, 6, "at least 1 and a multiple of 4"),
        (
            {"conditions": (Condition("cut", Length(), multiple=3),)},
            4,
            r"does not take: .* a multiple of 3 \(node 'cut'\)",
        ),
        ({"proof": Proof(limit=3)}, 4, "exact up to 3, and this stream has 4"),
    ],
)
def test_a_length_the_model_does_not_take_is_said_to_be_none(fields: dict[str, Any], total: int, says: str) -> None:
    f = framer(a_stream(**fields))
    f.received = {"x": total}
    with pytest.raises(InvalidLength, match=says):
        f.ending()
    f.received = {"x": 0}
    assert f.ending() == 0, "nothing at all is no length"


@pytest.mark.parametrize(("node", "says"), [("", "at most 6 frames were"), ("table", "node 'table' goes no further")])
def test_a_table_that_runs_out_is_said_before_anything_is_taken(node: str, says: str) -> None:
    f = framer(a_stream(conditions=(Condition(node, Length(), at_most=6),)))
    f.received = f.counted({"x": numbered(6)})
    with pytest.raises(InvalidLength, match=says):
        f.counted({"x": numbered(1)})
    assert f.received == {"x": 6}


def test_what_has_no_time_axis_comes_out_at_the_end_only() -> None:
    last = replace(an_output("n"), axis=None, dims=(1,), frames=0, rate=Fraction(0))
    spec = a_stream(2, dims=(1, 2, 2), outputs=(an_output(dims=(1, 2, 2)), last))
    session = Handing(spec)
    early = session.push(numbered(3))
    assert set(early) == {"y"} and early["y"].shape == (1, 2, 2)
    late = session.flush()
    np.testing.assert_array_equal(late["n"], [2])
    assert late["y"].shape == (1, 2, 1)


# ---- counters


def test_counters_are_set_back_by_multiples_and_what_is_relative_with_them() -> None:
    f = framer(a_stream(4, position="position", rebase=24))
    assert f.rebase() == 0 and f.relative(None) is None and f.relative(9) == 9
    f.pulses = f.until
    back = f.rebase()
    assert back > 0 and back % 24 == 0 and f.position == 4 * f.pulses - back
    assert f.relative(4 * f.pulses + 3) == f.position + 3
    assert f.rebase() == 0, "once is enough"
    assert f.until > f.pulses


def test_positions_that_count_are_said_to_run_out() -> None:
    f = framer(a_stream(4, position="position", rebase=0))
    f.pulses = FAR // 2 // 4
    assert f.rebase() == 0
    f.pulses = FAR // 4 - 1
    with pytest.raises(InvalidLength, match="counts absolute positions in 32 bits"):
        f.rebase()


def test_without_a_position_nothing_is_set_back() -> None:
    f = framer(a_stream(4))
    f.pulses = FAR
    assert f.rebase() == 0


# ---- snapshots and forks


def test_a_fork_has_the_same_frames_and_goes_its_own_way() -> None:
    f = framer(a_stream(4))
    f.queue({"x": numbered(3)})
    f.received, f.pulses = {"x": 11}, 2
    other = f.fork()
    assert other.counts() == f.counts()
    other.queue({"x": numbered(2)})
    np.testing.assert_array_equal(f.waiting_frames()["x"], numbered(3))
    assert in_line(other) == {"x": 5} and in_line(f) == {"x": 3}


@pytest.mark.parametrize("waiting", [0, 3])
def test_a_stream_goes_on_from_its_counters_and_what_waited(waiting: int) -> None:
    f = framer(a_stream(4, position="position", rebase=4))
    f.queue({"x": numbered(waiting)})
    f.received, f.pulses, f.rebased, f.closed = {"x": 8 + waiting}, 2, 4, True
    other = framer(f.spec)
    other.queue({"x": numbered(7)})
    other.restore(f.waiting_frames(), f.counts())
    assert other.counts() == f.counts() and other.position == f.position == 4
    assert in_line(other) == {"x": waiting} and other.closed and other.until == f._next_rebase()
    np.testing.assert_array_equal(other.waiting_frames()["x"], numbered(waiting))
    other.reset()
    assert other.counts() == framer(f.spec).counts()


def test_lengths_inside_of_a_model_are_not_told_as_the_streams() -> None:
    """Five samples a frame, three frames a row: 15 to 19 samples are one row, and 20 are no multiple of anything."""
    nodes = [models.node("Conv", "x w", "h", strides=[5]), models.node("Reshape", "h to", "y")]
    constants = {"w": models.weights(2, 1, 5), "to": np.array([1, 2, -1, 3])}
    stream = pulsify.stream(models.model(nodes, {"x": [1, 1, "T"]}, ["y"], constants), verify=False)
    for length, taken in [(14, False), (15, True), (19, True), (20, False), (29, False), (30, True)]:
        session = stream.session()
        session.push(frames(1, 1, length))
        if taken:
            session.flush()
            continue
        with pytest.raises(pulsify.InvalidLength) as refused:
            session.flush()
        assert "a multiple of" not in str(refused.value)
        assert f"the next is {15 if length < 15 else 30}" in str(refused.value)
