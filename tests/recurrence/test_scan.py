"""Scan and Loop: over time they carry their states from pulse to pulse, over other axes they are written out.

PULSIFY_EXAMPLES=2000 pytest -m slow tests/recurrence/test_scan.py: many, from a random seed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from onnx import helper

import pulsify
from pulsify.frontend import unroll
from pulsify.ops import scan as rule
from tests.attention.check import TOLERANCE, Batch
from tests.property.check import difference
from tests.recurrence.build import Builder, Built, Window, built
from tests.recurrence.check import check, compare, ragged, run_stream
from tests.recurrence.graphs import Case, stacked
from tests.recurrence.scans import (
    AHEAD,
    CAPTURED,
    ODD,
    STARTS,
    WIDTH,
    Body,
    Names,
    Scanned,
    Write,
    across,
    counted,
    gated,
    joined_list,
    listing_loop,
    loop,
    mapped,
    of_type,
    scan,
    scanned,
    script,
    smoothed,
    turned_often,
)
from tests.recurrence.test_property import MANY, few, same_windows, windows
from tests.recurrence.test_sessions import PULSE, TOTAL, Run, other_end

CENTRE, BEFORE, EVEN = Window(4, 1, 2), Window(3, 2, 0), Window(4, 1, 1, 2)
BOTH = {"written_out": 1 << 30, "as_scan": 0}  # how many nodes are written out at most
BATCHES = (1, "B", 2)
TYPES = ["float16", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]


@pytest.fixture(params=BOTH)
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "WRITTEN_OUT", BOTH[request.param])


@cache
def bare_delay(front: Window | None, back: Window | None, pulse: int) -> int:
    """Of the same convolutions without a scan."""
    return pulsify.stream(stacked(Case((), front=front, back=back)).model, pulse=pulse, verify=False).outputs[0].delay


def operators(stream: pulsify.Stream) -> set[str]:
    return {n.op_type for n in stream.model.graph}


# ---- over time


CASES = {
    "plain": Scanned(),
    "axis_1": Scanned(axes=(1,), out_axes=(1,), finals=True),
    "axis_2": Scanned(axes=(2,), out_axes=(2,), finals=True),
    "axes_from_the_end": Scanned(axes=(-1, -2, -3), out_axes=(-3, -1, -2), finals=True),
    "inputs_and_outputs": Scanned(("zero", "constant"), (0, 1, 2, -1), (2, 0, 1), front=AHEAD, finals=True),
    "only_final_states": Scanned(("zero", "computed"), (1,), (), front=AHEAD),
    **{f"start_{s}": Scanned((s,), (1,), (1,), front=AHEAD, finals=True) for s in STARTS},
    **{f"start_{s}_streams": Scanned((s,), (1,), (1,), front=CENTRE, finals=True, batch="B") for s in STARTS},
    "all_starts": Scanned(STARTS, (1,), (1, 0), front=AHEAD, finals=True, batch="B"),
    "two_bools": Scanned(("bool", "bool", "int"), (2,), (1, 1, 1), front=CENTRE, finals=True, batch=2),
    **{f"captured_{c}": Scanned(captured=c, front=AHEAD, finals=True) for c in CAPTURED if c},
    **{f"captured_{c}_streams": Scanned(("static",), captured=c, finals=True, batch="B") for c in CAPTURED if c},
    "no_look_ahead": Scanned(front=BEFORE, finals=True),
    "before_a_convolution": Scanned(("constant",), (2,), (2,), back=CENTRE, finals=True),
    "between_convolutions": Scanned(("constant", "int"), (2,), (2, 0), front=CENTRE, back=AHEAD, finals=True, batch=2),
    "lower_rate": Scanned(("constant", "bool"), (1,), (1,), front=EVEN, finals=True),
    "lower_rate_ahead": Scanned(("static",), (0,), (2,), front=Window(6, 1, 4, 2), back=AHEAD, finals=True, batch="B"),
    "shorter_than_the_stream": Scanned(("constant",), (2,), (2,), front=Window(4, 0, 0), finals=True),
    "two_rows": Scanned(("static", "constant"), (1,), (1,), front=AHEAD, finals=True, batch=2),
}


IN_TURN = [(n, (3, (1, 8, 2)[i % 3])[:: 1 - i % 2 * 2]) for i, n in enumerate(CASES)]


@pytest.mark.parametrize(("name", "pulses"), IN_TURN)
@pytest.mark.usefixtures("both_ways")
def test_over_time(name: str, pulses: tuple[int, int]) -> None:
    """At two pulses, one each way: an odd one that few delays are a multiple of, and one frame or many."""
    case, written = CASES[name], rule.WRITTEN_OUT > 0
    stream = check(scanned(case), pulses[written])
    assert ("Scan" in operators(stream)) != written
    if case.out_axes:
        assert stream.outputs[0].delay == bare_delay(case.front, case.back, stream.pulse)


@pytest.mark.parametrize("kernel", [3, 6])
@pytest.mark.usefixtures("both_ways")
def test_no_latency_of_its_own(kernel: int) -> None:
    """Behind any look-ahead, a multiple of the pulse or not, and no frame before the first is taken in."""
    made = scanned(Scanned(("constant", "int"), front=Window(kernel, 0, kernel - 1), finals=True))
    for pulse in (1, 2, 4, 5):
        stream = check(made, pulse, [1, pulse, 3 * pulse + kernel])
        assert stream.outputs[0].delay == kernel - 1


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("write", [smoothed(AHEAD), gated(AHEAD, 2)], ids=["smoothed", "gated"])
@pytest.mark.usefixtures("both_ways")
def test_cells(write: Write, batch: int | str) -> None:
    made = built(write, batch=batch)
    check(made, 4 if batch == 2 else 1)


@pytest.mark.usefixtures("both_ways")
def test_without_states() -> None:
    for batch in (1, 2):
        check(built(mapped, batch=batch, dtypes={"s_1": np.int64}), 3)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.usefixtures("both_ways")
def test_types(dtype: str) -> None:
    check(built(of_type(np.dtype(dtype)), dtypes={"s_h0": dtype, "s_0": dtype}), 4)


def test_few_turns_are_written_out() -> None:
    made = built(smoothed())
    found = ["Scan" in operators(pulsify.stream(made.model, pulse=p, verify=False)) for p in (1, 2, 64)]
    assert found == [False, False, True]


def test_state_is_what_is_carried() -> None:
    """However long the pulse; a truth value is kept as a byte. The count starts at 7, so the position is needed."""
    made = scanned(Scanned(("zero", "int", "bool")))
    sizes = {pulsify.stream(made.model, pulse=p, verify=False).state_bytes for p in (1, 4, 64)}
    assert sizes == {WIDTH * (4 + 8 + 1) + 4}


@pytest.mark.usefixtures("both_ways")
def test_saved_file_is_valid(tmp_path: Path) -> None:
    made = scanned(CASES["between_convolutions"])
    stream = pulsify.stream(made.model, pulse=4)
    stream.save(tmp_path / "stream.onnx")
    onnx.checker.check_model(str(tmp_path / "stream.onnx"), full_check=True)
    compare(made, pulsify.load(tmp_path / "stream.onnx"), [1, 11])


# ---- over other axes


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("kind", ["point", "conv", "ahead", "sum"])
def test_over_another_axis(kind: str, reverse: bool) -> None:
    """The body sees one band of all frames."""
    for batch, front, factor in ((1, AHEAD, 3), ("B", None, 4), (2, CENTRE, 1)):
        stream = check(built(across(kind, reverse, front), batch=batch), factor)
        ahead = (front.ahead if front else 0) + 4 * (kind == "ahead")
        assert stream.outputs[0].delay == ahead
        assert "Scan" not in operators(stream)


# ---- loops


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("use", ["none", "first", "mean"])
@pytest.mark.usefixtures("both_ways")
def test_loop_over_time(use: str, batch: int | str) -> None:
    made = built(counted(use, AHEAD, unsqueezed=use == "mean"), batch=batch)
    assert check(made, 3).outputs[0].delay == 2


@pytest.mark.parametrize("condition", ["passed", "identity", "constant", "none"])
def test_loop_that_never_ends_early(condition: str) -> None:
    check(built(counted("none", condition=condition)), 4)
    check(built(turned_often(3, condition=condition)), 4)


@pytest.mark.parametrize("new_axis", [0, 1], ids=["joined", "stacked"])
@pytest.mark.parametrize("twice", [False, True], ids=["one", "two"])
def test_lists(new_axis: int, twice: bool) -> None:
    for batch in BATCHES:
        check(built(joined_list(new_axis, twice, AHEAD), batch=batch), 3)


@pytest.mark.parametrize("count", [1, 4])
def test_fixed_number_of_turns(count: int) -> None:
    for batch in BATCHES:
        stream = check(built(turned_often(count), batch=batch), 3)
        assert not operators(stream) & {"Scan", "Loop"}


def test_loop_in_a_branch() -> None:
    """An If that the length decides; its branch loops over time."""

    def write(b: Builder) -> Names:
        x = b.input("x", 1, "T", WIDTH)
        inner = Body(b, "branch")

        def turn(body: Body, t: str, states: Names) -> tuple[Names, Names]:
            h = body.op("Add", body.op("Mul", states[0], body.const(0.5)), body.op("Gather", x, t, axis=1))
            return [h], [h]

        y = loop(inner, turn, inner.size(x, 1), [b.const(np.zeros((1, WIDTH)))])[1]
        taken = inner.graph({}, [inner.op("Identity", y)], [np.float32])
        other = Body(b, "other")
        others = other.graph({}, [other.transpose(x, 1, 0, 2)], [np.float32])
        yes = b.op("Greater", b.size(x, 1), b.scalar(0))
        b.nodes.append(helper.make_node("If", [yes], ["y"], name="choice", then_branch=taken, else_branch=others))
        return ["y"]

    check(built(write), 3)


# ---- by the way


@pytest.mark.parametrize("name", ODD)
@pytest.mark.usefixtures("both_ways")
def test_odd(name: str) -> None:
    write, options = ODD[name]
    for batch in (1,) if name == "one_number" else (1, "B"):
        check(built(write, batch=batch, **options), 3)


def test_table_ends() -> None:
    """A stream of more frames than the table has rows is turned down, as batch does."""
    made = built(ODD["from_a_table"][0])
    session = pulsify.stream(made.model, pulse=4, verify=False).session()
    with pytest.raises(pulsify.InvalidLength):
        session.push(made.feeds(310)["x"])


# ---- torch


def from_file(path: Path, batch: int, axis: int, channels: int) -> Built:
    model = onnx.load(path)

    def feeds(length: int) -> dict[str, Any]:
        dims = [batch, length, channels] if axis == 1 else [batch, channels, length]
        return {"x": np.random.default_rng(length).standard_normal(dims).astype(np.float32)}

    return Built(model, model, {"x": axis}, (), feeds)


@pytest.mark.parametrize("kind", ["stacked", "catted", "meant", "sliced", "two_lists"])
def test_torch_script(kind: str, tmp_path: Path) -> None:
    made = from_file(script(tmp_path / "model.onnx", kind), 3, 1, WIDTH)
    for pulse in (1, 4):
        stream = pulsify.stream(made.model, pulse=pulse, verify=False)
        compare(made, stream, ragged(stream, 1))


def test_torch_script_of_one_stream(tmp_path: Path) -> None:
    path = script(tmp_path / "model.onnx", "stacked")
    stream = pulsify.stream(path, pulse=4, set={"B": 1}, verify=False)
    compare(from_file(path, 1, 1, WIDTH), stream, ragged(stream, 1))


@pytest.mark.slow
def test_torch_scan(tmp_path: Path) -> None:
    """The newer exporter, in a process of its own."""
    path, root = tmp_path / "model.onnx", Path(__file__).parent.parent.parent
    command = [sys.executable, "-m", "tests.recurrence.scans", str(path)]
    subprocess.run(command, check=True, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    made = from_file(path, 1, 2, WIDTH)
    assert any(n.op_type == "Scan" for n in made.model.graph.node)
    for pulse in (1, 4):
        assert check(made, pulse).outputs[0].delay == 1


# ---- refused


def refusal(write: Write, batch: int | str = 1) -> pulsify.NotStreamable:
    with pytest.raises(pulsify.NotStreamable) as caught:
        pulsify.stream(built(write, batch=batch).model, pulse=4, verify=False)
    assert caught.value.hint
    return caught.value


def says(write: Write, reason: str, op: str = "Scan", node: str = "s", hint: str = "") -> None:
    for batch in (1, "B"):
        error = refusal(write, batch)
        assert (error.node, error.op) == (node, op), error
        assert reason in error.reason, error
        assert hint in error.hint, error


def decay(body: Body, h: str, u: str) -> str:
    return body.op("Add", body.op("Mul", h, body.const(0.5)), u)


def kept(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
    h = decay(body, states[0], frames[0])
    return [h], [h]


def start(b: Builder, x: str) -> str:
    return b.op("Expand", b.const(np.zeros((1, 1), np.float32)), b.shape(b.size(x, 0), WIDTH))


def over_frames(step: Any = kept, states: Callable[[Builder, str], Names] | None = None, **attributes: Any) -> Write:
    def write(b: Builder) -> Names:
        x = b.input("x", b.batch, "T", WIDTH)
        given = states(b, x) if states else [start(b, x)]
        return scan(b, step, given, [(x, 1)], [1], **attributes)

    return write


def looping(turn: Callable[..., tuple[Names, Names]], **options: Any) -> Write:
    """turn: (body, number, states, x, frames of x)."""

    def write(b: Builder) -> Names:
        x = b.input("x", b.batch, "T", WIDTH)
        frames = b.size(x, 1)
        return loop(b, lambda body, t, states: turn(body, t, states, x, frames), frames, [start(b, x)], **options)

    return write


def test_backwards() -> None:
    says(over_frames(scan_input_directions=[1]), "backwards over time", hint="forwards")
    says(over_frames(scan_output_directions=[1]), "from the last to the first", hint="forwards")


def test_reads_the_whole_stream() -> None:
    def write(b: Builder) -> Names:
        x = b.input("x", b.batch, "T", WIDTH)

        def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
            scores = body.op("MatMul", x, body.unsqueeze(frames[0], 2))
            h = body.op("Add", states[0], body.op("ReduceMax", scores, body.ints(1), keepdims=0))
            return [h], [h]

        return scan(b, step, [start(b, x)], [(x, 1)], [1])

    says(write, "reads all of 'x'", hint="scan input")


def test_carries_the_whole_stream() -> None:
    def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
        return [body.op("Add", states[0], body.unsqueeze(frames[0], 1))], [frames[0]]

    says(over_frames(step, lambda b, x: [b.op("Sub", x, x)]), "holds the whole stream", hint="fixed size")


@pytest.mark.parametrize(
    ("kind", "op", "reason"),
    [("written", "Scan", "holds the whole stream"), ("until", "Loop", "may end early")],
)
def test_torch_script_refused(kind: str, op: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(pulsify.NotStreamable, match=reason) as caught:
        pulsify.stream(script(tmp_path / "model.onnx", kind), pulse=4)
    assert caught.value.op == op and "Loop" in caught.value.node and caught.value.hint


def in_step(body: Body, t: str, states: Names, x: str, frames: str) -> tuple[Names, Names]:
    h = decay(body, states[0], body.op("Gather", x, t, axis=1))
    return [h], [h]


def low(body: Body, after: Names) -> str:
    return body.op("Less", body.op("ReduceMax", after[0], keepdims=0), body.const(9.0))


def test_may_end_early() -> None:
    says(looping(in_step, ends=low), "may end early", op="Loop")

    def a_few_times(trip: Callable[[Builder], str]) -> Write:
        def write(b: Builder) -> Names:
            x = b.input("x", b.batch, WIDTH, "T")

            def turn(body: Body, t: str, states: Names) -> tuple[Names, Names]:
                return [body.op("Mul", states[0], body.const(1.5))], []

            return loop(b, turn, trip(b), [x], ends=low)

        return write

    says(a_few_times(lambda b: b.scalar(3)), "may end early", op="Loop")
    says(a_few_times(lambda b: ""), "may end early", op="Loop")
    says(a_few_times(lambda b: b.scalar((1 << 63) - 1)), "may end early", op="Loop")


def test_turns_by_data() -> None:
    """As often as an input says that is not the stream's length."""

    def write(b: Builder) -> Names:
        x = b.input("x", b.batch, WIDTH, "T")
        count = b.input("n", dtype=np.int64)
        return loop(b, lambda body, t, states: ([body.op("Tanh", states[0])], []), count, [x])

    assert refusal(write).node == "s/Range"


@pytest.mark.slow
def test_turns_by_data_over_frames() -> None:
    def write(b: Builder) -> Names:
        x = b.input("x", b.batch, "T", WIDTH)
        count = b.input("n", dtype=np.int64)
        return loop(b, lambda body, t, states: in_step(body, t, states, x, ""), count, [start(b, x)])

    assert refusal(write).node == "s/Slice"


def inner_loop(body: Body, h: str) -> str:
    def turn(inner: Body, t: str, states: Names) -> tuple[Names, Names]:
        return [inner.op("Tanh", states[0])], []

    return loop(body, turn, body.scalar(2), [h], called=f"{body.called}_inner")[0]


def inner_branch(body: Body, h: str) -> str:
    one, two = Body(body, "one"), Body(body, "two")
    branches = {
        "then_branch": one.graph({}, [one.op("Tanh", h)], [np.float32]),
        "else_branch": two.graph({}, [two.op("Neg", h)], [np.float32]),
    }
    positive = body.op("Greater", body.op("ReduceMax", h, keepdims=0), body.const(0.0))
    body.nodes.append(helper.make_node("If", [positive], ["chosen"], name="chosen", **branches))
    return "chosen"


def within(inner: Callable[[Body, str], str]) -> Write:
    """A loop over frames with another inside."""

    def turn(body: Body, t: str, states: Names, x: str, frames: str) -> tuple[Names, Names]:
        h = inner(body, decay(body, states[0], body.op("Gather", x, t, axis=1)))
        return [h], [h]

    return looping(turn)


def around(inner: Callable[[Body, str], str]) -> Write:
    """A loop that turns three times over all frames, with another inside."""

    def write(b: Builder) -> Names:
        x = b.input("x", b.batch, WIDTH, "T")
        return loop(b, lambda body, t, states: ([inner(body, states[0])], []), b.scalar(3), [x])

    return write


@pytest.mark.parametrize("outer", [within, around])
def test_a_loop_inside_a_loop_is_written_out(outer: Callable[[Callable[[Body, str], str]], Write]) -> None:
    for batch in (1, "B"):
        check(built(outer(inner_loop), batch=batch), 4)


def test_a_branch_on_data_inside_a_loop_over_frames() -> None:
    check(built(within(inner_branch), batch=1), 4)


def test_a_branch_on_the_whole_stream_inside_a_loop() -> None:
    assert "known only when the stream has ended" in refusal(around(inner_branch)).reason


def by_turn(choose: Callable[[Body, str, str, str], str], every: int | None = None) -> Write:
    """The state starts anew in the first turn, or in every so many."""

    def turn(body: Body, t: str, states: Names, x: str, frames: str) -> tuple[Names, Names]:
        frame = body.op("Gather", x, t, axis=1)
        place = t if every is None else body.op("Mod", t, body.const(every, np.int64))
        h = choose(body, body.op("Equal", place, body.const(0, np.int64)), frame, decay(body, states[0], frame))
        return [h], [h]

    return looping(turn)


def branch(body: Body, first: str, frame: str, other: str) -> str:
    one, two = Body(body, "one"), Body(body, "two")
    branches = {
        "then_branch": one.graph({}, [one.op("Tanh", frame)], [np.float32]),
        "else_branch": two.graph({}, [two.op("Neg", other)], [np.float32]),
    }
    body.nodes.append(helper.make_node("If", [first], ["chosen"], name="chosen", **branches))
    return "chosen"


@pytest.mark.parametrize("every", [None, 3])
def test_a_branch_by_the_turn_streams_and_so_does_a_choice_by_it(every: int | None) -> None:
    for batch in (1, "B"):
        check(built(by_turn(branch, every), batch=batch), 4)
    chosen = by_turn(lambda body, first, frame, other: body.op("Where", first, frame, other), every)
    for batch in (1, "B"):
        check(built(chosen, batch=batch), 4)


def one_before(body: Body, t: str, frames: str) -> str:
    return body.op("Max", body.op("Sub", t, body.scalar(1)), body.scalar(0))


def from_the_end(body: Body, t: str, frames: str) -> str:
    return body.op("Sub", body.op("Sub", frames, body.scalar(1)), t)


@pytest.mark.parametrize("index", [one_before, from_the_end])
def test_other_frames(index: Callable[[Body, str, str], str]) -> None:
    def turn(body: Body, t: str, states: Names, x: str, frames: str) -> tuple[Names, Names]:
        h = decay(body, states[0], body.op("Gather", x, index(body, t, frames), axis=1))
        return [h], [h]

    says(looping(turn), "reads all of 'x'")


def test_starts_with_the_last_frame() -> None:
    error = refusal(over_frames(states=lambda b, x: [b.op("Gather", x, b.scalar(-1), axis=1, called="last")]))
    assert (error.node, error.op) == ("s", "Scan")
    assert "Gather 'last'" in error.reason and "known only when the stream has ended" in error.reason


def test_shape_that_changes() -> None:
    """A Loop may start with a single number and go on with as many as there are channels."""

    def write(b: Builder) -> Names:
        x = b.input("x", 1, "T", WIDTH)
        turn = lambda body, t, states: in_step(body, t, states, x, "")  # noqa: E731
        return loop(b, turn, b.size(x, 1), [b.const(np.zeros((1, 1), np.float32))])

    error = refusal(write)
    assert (error.node, error.op) == ("s", "Scan")
    assert "changes its shape from [1, 1] to [1, 3]" in error.reason


def test_knows_the_length() -> None:
    def turn(body: Body, t: str, states: Names, x: str, frames: str) -> tuple[Names, Names]:
        h = decay(body, states[0], body.op("Gather", x, t, axis=1))
        return [h], [body.op("Div", h, body.cast(frames, np.float32))]

    says(looping(turn), "depends on the length of the whole stream")


def test_reads_no_frame() -> None:
    def turn(body: Body, t: str, states: Names, x: str, frames: str) -> tuple[Names, Names]:
        h = body.op("Add", states[0], body.const(1.0))
        return [h], [h]

    says(looping(turn), "without reading any")


def test_final_state_used() -> None:
    def write(b: Builder) -> Names:
        h, y = over_frames()(b)
        return [b.op("Add", y, b.unsqueeze(h, 1))]

    for batch in (1, "B"):
        assert "known only when the stream has ended" in refusal(write, batch).reason


def test_list_from_the_end() -> None:
    def write(b: Builder) -> Names:
        x = b.input("x", b.batch, "T", WIDTH)

        def turn(body: Body, t: str, states: Names) -> tuple[Names, Names]:
            return [body.op("SequenceInsert", states[0], body.op("Gather", x, t, axis=1), body.scalar(0))], []

        names = listing_loop(b, turn, b.size(x, 1), [], [b.op("SequenceEmpty", dtype=1)])
        return [b.op("ConcatFromSequence", names[0], axis=1, new_axis=1)]

    says(write, "not merely appended to", op="Loop", hint="stack")


def test_too_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroll, "MOST_NODES", 20)
    says(turned_often(9), "turns 9 times", hint="fewer")


def test_streams_folded_into_time() -> None:
    def write(b: Builder) -> Names:
        x = b.reshape(b.input("x", b.batch, "T", WIDTH), -1, 1, WIDTH)
        return scan(b, kept, [b.const(np.zeros((1, WIDTH)))], [(x, 0)])

    check(built(write), 3)
    error = refusal(write, "B")
    assert (error.node, error.op) == ("s", "Scan")
    assert "by itself" in error.hint


# ---- sessions


SESSIONS: dict[str, Callable[[], Built]] = {
    "all_starts": lambda: scanned(CASES["all_starts"]),
    "static": lambda: scanned(CASES["two_rows"]),
    "gated": lambda: built(gated(AHEAD), batch="B"),
    "loop": lambda: built(counted("first", AHEAD), batch="B"),
    "bands": lambda: built(across("conv", True, AHEAD)),
}


@cache
def opened(name: str) -> tuple[Built, pulsify.Stream]:
    made = SESSIONS[name]()
    return made, pulsify.stream(made.model, pulse=PULSE, verify=False)


@pytest.mark.parametrize("at", [1, 6, 17])
@pytest.mark.parametrize("name", SESSIONS)
def test_fork(name: str, at: int) -> None:
    made, stream = opened(name)
    feeds = made.feeds(TOTAL)
    one, two = Run(made, stream, feeds), Run(made, stream, other_end(made, feeds, at, TOTAL + 5))
    one.push(0, at)
    two.push(0, 3)  # whatever the second has read before
    two.session.restore(one.session.state())
    two.parts = {n: list(p) for n, p in one.parts.items()}
    for first in range(at, TOTAL + 5, 3):
        one.push(min(first, TOTAL), min(first + 3, TOTAL))
        two.push(first, min(first + 3, TOTAL + 5))
    one.check()
    two.check()


@pytest.mark.parametrize("name", SESSIONS)
def test_go_back_and_reset(name: str) -> None:
    made, stream = opened(name)
    feeds = made.feeds(TOTAL)
    run = Run(made, stream, feeds)
    run.push(0, 11)
    blob, parts = run.session.state(), {n: list(p) for n, p in run.parts.items()}
    run.push(11, TOTAL)
    run.session.flush()
    run.session.restore(blob)
    run.parts, run.feeds = parts, other_end(made, feeds, 11, TOTAL)
    run.push(11, TOTAL)
    run.check()
    run.session.reset()
    run.parts = {n: [] for n in run.parts}
    run.push(0, TOTAL)
    run.check()


def test_state_moves_between_forms() -> None:
    """What was written out and what stayed a Scan keep the same states."""
    made = scanned(CASES["all_starts"])
    streams = []
    for most in BOTH.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rule, "WRITTEN_OUT", most)
            streams.append(pulsify.stream(made.model, pulse=PULSE, verify=False))
    feeds = made.feeds(TOTAL)
    one, two = (run_stream(s, made, feeds, [5, 13, 11]) for s in streams)
    for o in streams[0].outputs:
        assert not difference(one[o.name], two[o.name], o.axis, TOLERANCE)
    assert streams[0].state_bytes == streams[1].state_bytes


def test_final_states_begin_the_next_stream() -> None:
    made = scanned(Scanned(("static", "static"), (2,), (2,), finals=True))
    stream, feeds = pulsify.stream(made.model, pulse=PULSE, verify=False), made.feeds(TOTAL)
    wanted = Batch(made.model).run(feeds)
    first = run_stream(stream, made, {**feeds, "x": feeds["x"][..., :13]}, [13])
    begun = {f"h{i}": first[f"s_h{i}"] for i in (0, 1)}
    second = run_stream(stream, made, {"x": feeds["x"][..., 13:], **begun}, [5, 11])
    assert not difference(np.concatenate([first["y0"], second["y0"]], 2), wanted["y0"], 2, TOLERANCE)
    for name in ("s_h0", "s_h1"):
        assert not difference(second[name], wanted[name], None, TOLERANCE)


# ---- at random


@st.composite
def cases(draw: st.DrawFn) -> Scanned:
    axes = st.integers(-3, 2)
    return Scanned(
        states=tuple(draw(st.lists(st.sampled_from(STARTS), min_size=1, max_size=4))),
        axes=tuple(draw(st.lists(axes, min_size=1, max_size=3))),
        out_axes=tuple(draw(st.lists(axes, max_size=3))),
        captured=draw(st.sampled_from(CAPTURED)),
        front=draw(st.one_of(st.none(), same_windows(), windows(strides=3))),
        back=draw(st.one_of(st.none(), windows(strides=2))),
        finals=draw(st.booleans()),
        batch=draw(st.sampled_from(BATCHES)),
    )


@st.composite
def others(draw: st.DrawFn) -> Built:
    batch, front = draw(st.sampled_from(BATCHES)), draw(st.one_of(st.none(), same_windows()))
    conditions = st.sampled_from(("passed", "identity", "constant", "none"))
    use, inside = draw(st.sampled_from(("", "first", "mean"))), draw(st.sampled_from(("point", "conv", "ahead", "sum")))
    kind, write = draw(
        st.sampled_from(
            [
                ("smoothed", smoothed(front)),
                ("gated", gated(front, draw(st.integers(1, 3)))),
                ("across", across(inside, draw(st.booleans()), front)),
                ("counted", counted(use, front, draw(conditions), draw(st.booleans()))),
                ("list", joined_list(draw(st.integers(0, 1)), draw(st.booleans()), front)),
                ("often", turned_often(draw(st.integers(1, 5)), draw(st.booleans()), draw(conditions))),
            ]
        )
    )
    note(f"{kind} {front} batch={batch!r}")
    return built(write, batch=batch)


def run(made: Built, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, 9), label="granules a pulse")
    extra = data.draw(st.lists(st.integers(0, 40), min_size=3, max_size=3), label="frames beyond the shortest")
    most = data.draw(st.sampled_from((*BOTH.values(), 48)), label="written out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "WRITTEN_OUT", most)
        check(made, factor, [made.shortest + n for n in extra])


@few(12)
@given(cases(), st.data())
def test_any_scan(case: Scanned, data: st.DataObject) -> None:
    note(repr(case))
    run(scanned(case), data)


@few(12)
@given(others(), st.data())
def test_any_other(made: Built, data: st.DataObject) -> None:
    run(made, data)


@pytest.mark.slow
@MANY
@given(cases(), st.data())
def test_many_scans(case: Scanned, data: st.DataObject) -> None:
    note(repr(case))
    run(scanned(case), data)


@pytest.mark.slow
@MANY
@given(others(), st.data())
def test_many_others(made: Built, data: st.DataObject) -> None:
    run(made, data)
