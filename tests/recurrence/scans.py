"""Scans and loops node by node, and as torch writes them.

python -m tests.recurrence.scans FILE: torch's own scan, by the newer exporter, in a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.attention.build import Array
from tests.recurrence.build import Builder, Built, Window, built

WIDTH = 3
AHEAD = Window(3, 0, 2)
STARTS = ("zero", "constant", "computed", "static", "of_static", "int", "bool")
CAPTURED = ("", "constant", "computed", "static", "of_static")
Names = list[str]
Write = Callable[[Builder], Names]
Step = Callable[["Body", Names, Names], tuple[Names, Names]]  # states, frames -> states, what is collected
Turn = Callable[["Body", str, Names], tuple[Names, Names]]  # number, states -> states, what is collected


class Body(Builder):
    """The inside of a Scan or a Loop: its constants are the outer graph's."""

    def __init__(self, outer: Builder, called: str) -> None:
        super().__init__(outer.batch)
        self.constants, self.rng, self.called = outer.constants, outer.rng, called

    def op(self, kind: str, *inputs: str, called: str = "", **attributes: Any) -> str:
        name = f"{self.called}_{called or kind.lower()}_{len(self.nodes)}"
        return super().op(kind, *inputs, called=name, **attributes)

    def cast(self, x: str, dtype: Any) -> str:
        return self.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def graph(self, inputs: dict[str, Any], outputs: Names, dtypes: Sequence[Any]) -> onnx.GraphProto:
        """Every output gets a node of its own."""
        made = [self.op("Identity", o) for o in outputs]
        into = [_port(n, t, [] if n.endswith(("_t", "_going")) else None) for n, t in inputs.items()]
        out = [_port(n, t) for n, t in zip(made, dtypes, strict=True)]
        return helper.make_graph(self.nodes, self.called, into, out)


def _port(name: str, dtype: Any, dims: list[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims)


def scan(
    b: Builder,
    step: Step,
    states: Sequence[str],
    scanned: Sequence[tuple[str, int]],
    out_axes: Sequence[int] = (0,),
    *,
    called: str = "s",
    dtypes: Sequence[Any] = (),
    kinds: Sequence[Any] = (),
    out_kinds: Sequence[Any] = (),
    **attributes: Any,
) -> Names:
    """A Scan: its final states and what it collects. dtypes: of the states; kinds, out_kinds: of frames in and out."""
    body = Body(b, f"{called}_body")
    state_types = dtypes or [np.float32] * len(states)
    frame_types = kinds or [np.float32] * len(scanned)
    before = [f"{called}_before_{i}" for i in range(len(states))]
    frames = [f"{called}_frame_{i}" for i in range(len(scanned))]
    after, out = step(body, before, frames)
    inputs = dict(zip([*before, *frames], [*state_types, *frame_types], strict=True))
    types = [*state_types, *(out_kinds or [np.float32] * len(out))]
    graph = body.graph(inputs, [*after, *out], types)
    names = [f"{called}_h{i}" for i in range(len(states))] + [f"{called}_{i}" for i in range(len(out))]
    if any(a for _, a in scanned):
        attributes["scan_input_axes"] = [a for _, a in scanned]
    if any(out_axes[: len(out)]):
        attributes["scan_output_axes"] = list(out_axes[: len(out)])
    attributes |= {"body": graph, "num_scan_inputs": len(scanned)}
    b.nodes.append(helper.make_node("Scan", [*states, *(n for n, _ in scanned)], names, name=called, **attributes))
    return names


def loop(
    b: Builder,
    turn: Turn,
    trip: str,
    states: Sequence[str],
    *,
    called: str = "s",
    dtypes: Sequence[Any] = (),
    out_kinds: Sequence[Any] = (),
    condition: str = "passed",
    ends: Callable[[Body, Names], str] | None = None,
) -> Names:
    """A Loop: its final states and what it collects, along axis 0.

    condition: how "always" is written: passed on, by an Identity, a constant, or not given at all.
    ends: instead, goes on as long as that holds.
    """
    body = Body(b, f"{called}_body")
    types = list(dtypes or [np.float32] * len(states))
    number, going, before = f"{called}_t", f"{called}_going", [f"{called}_before_{i}" for i in range(len(states))]
    after, out = turn(body, number, before)
    always = b.const(np.array(True))
    on = going
    if ends is not None:
        on = ends(body, after)
    elif condition == "identity":
        on = body.op("Identity", going)
    elif condition == "constant":
        on = body.op("Identity", always)
    inputs = {number: np.int64, going: np.bool_, **dict(zip(before, types, strict=True))}
    graph = body.graph(inputs, [on, *after, *out], [np.bool_, *types, *(out_kinds or [np.float32] * len(out))])
    names = [f"{called}_h{i}" for i in range(len(states))] + [f"{called}_{i}" for i in range(len(out))]
    given = "" if condition == "none" else always
    b.nodes.append(helper.make_node("Loop", [trip, given, *states], names, name=called, body=graph))
    return names


# ---- scans by case


@dataclass(frozen=True)
class Scanned:
    """x [B, C, T], a convolution, a Scan over time, a convolution.

    states: how each one starts; int counts frames, bool remembers one. axes, out_axes: where the scan inputs and
    outputs have time, of three axes. captured: what the body reads of the outer graph, beside its weights.
    """

    states: tuple[str, ...] = ("zero",)
    axes: tuple[int, ...] = (0,)
    out_axes: tuple[int, ...] = (0,)
    captured: str = ""
    front: Window | None = None
    back: Window | None = None
    finals: bool = False
    batch: int | str = 1

    @property
    def shortest(self) -> int:
        return next(n for n in range(1, 99) if self._frames(n) > 0)

    def _frames(self, length: int) -> int:
        for window in (self.front, self.back):
            length = window.frames(length) if window is not None and length > 0 else length
        return length


def scanned(case: Scanned) -> Built:
    dtypes = {f"s_h{i}": dtype_of(s) for i, s in enumerate(case.states)}
    made = built(lambda b: _scanned(b, case), batch=case.batch, shortest=case.shortest, dtypes=dtypes)
    return replace(made, feeds=lambda length: eighths(made.feeds(length)))


def eighths(feeds: dict[str, Array]) -> dict[str, Array]:
    """Sums of them are exact in any order, so what is compared with zero is on the same side everywhere."""
    return {n: np.round(x * 8) / 8 if x.dtype.kind == "f" else x for n, x in feeds.items()}


def dtype_of(start: str) -> Any:
    return {"int": np.int64, "bool": np.bool_}.get(start, np.float32)


def turned(axis: int) -> list[int]:
    """[B, C, T] with time on this axis, the others in order."""
    perm = [0, 1]
    perm.insert(axis % 3, 2)
    return perm


def _scanned(b: Builder, case: Scanned) -> Names:
    x = b.input("x", b.batch, WIDTH, "T")
    if case.front is not None:
        x = exact_conv(b, x, case.front)
    inputs = [b.transpose(b.op("Mul", x, b.const(float(i + 1))), *turned(a)) for i, a in enumerate(case.axes)]
    starts = [_start(b, x, kind, i) for i, kind in enumerate(case.states)]
    outer = _captured(b, case.captured)

    def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
        u = frames[0]
        for f in frames[1:]:
            u = body.op("Sub", f, u)
        after: Names = []
        for kind, h in zip(case.states, states, strict=True):
            after.append(_next(body, kind, h, u, after, outer))
        shown = [body.cast(h, np.float32) for h in after]
        out = []
        for i, _ in enumerate(case.out_axes):
            y = body.op("Mul", frames[i % len(frames)], body.const(0.5))
            for h in shown[i:] or shown[-1:]:
                y = body.op("Add", y, h)
            out.append(y)
        return after, out

    types = [dtype_of(k) for k in case.states]
    names = scan(b, step, starts, list(zip(inputs, case.axes, strict=True)), case.out_axes, dtypes=types)
    outputs, back = [], len(case.states)
    for i, axis in enumerate(case.out_axes):
        y = b.transpose(names[back + i], *(turned(axis).index(k) for k in (0, 1, 2)))
        y = b.conv(y, case.back, WIDTH, WIDTH) if case.back is not None else y
        outputs.append(b.op("Identity", y, called=f"y{i}"))
    return [*outputs, *names[:back]] if case.finals or not outputs else outputs


def exact_conv(b: Builder, x: str, window: Window) -> str:
    w = b.const((np.round(b.rng.standard_normal((WIDTH, WIDTH, window.kernel)) * 4) / 4).astype(np.float32))
    return b.op("Conv", x, w, pads=[window.before, window.ahead], strides=[window.stride])


def _start(b: Builder, x: str, kind: str, i: int) -> str:
    dims = (b.shape(b.size(x, 0), WIDTH)) if isinstance(b.batch, str) else b.ints(b.batch, WIDTH)
    if kind == "static" or kind == "of_static":
        given = b.input(f"h{i}", b.batch, WIDTH)
        return given if kind == "static" else b.op("Tanh", given)
    if kind == "computed":
        return b.op("Expand", b.op("Tanh", b.weight(1, WIDTH)), dims)
    value = {"int": np.array(7, np.int64), "bool": np.array(i % 2 == 1), "zero": np.float32(0)}.get(kind)
    fill = b.weight(1, WIDTH) if value is None else b.const(np.full((1, 1), value))
    if isinstance(b.batch, str):
        return b.op("Expand", fill, dims)
    return b.const(np.broadcast_to(b.constants[fill], (b.batch, WIDTH)).copy())


def _captured(b: Builder, kind: str) -> str:
    if kind in ("static", "of_static"):
        given = b.input("scale", b.batch, WIDTH)
        return given if kind == "static" else b.op("Sigmoid", given)
    if kind == "computed":
        return b.op("Exp", b.op("Neg", b.op("Abs", b.weight(1, WIDTH))))
    return b.weight(1, WIDTH, scale=0.5) if kind == "constant" else ""


def _next(body: Body, kind: str, h: str, u: str, before: Names, outer: str) -> str:
    if kind == "int":  # frames above zero, counted
        return body.op("Add", h, body.cast(body.op("Greater", u, body.const(0.0)), np.int64))
    if kind == "bool":  # was there a low one, an odd number of times?
        return body.op("Xor", h, body.op("Less", u, body.const(-0.5)))
    z = body.op("Add", body.op("MatMul", u, body.weight(WIDTH, WIDTH, scale=0.5)), body.op("Mul", h, body.const(0.6)))
    if outer:
        z = body.op("Add", z, body.op("Mul", h, outer))
    for other in before[-1:]:
        z = body.op("Add", z, body.op("Mul", body.cast(other, np.float32), body.const(0.1)))
    return body.op("Tanh", z)


# ---- one by one


def _x(b: Builder, front: Window | None) -> str:
    """[B, T, C], perhaps behind a convolution."""
    x = b.input("x", b.batch, WIDTH, "T")
    return b.transpose(exact_conv(b, x, front) if front else x, 0, 2, 1)


def _zero(b: Builder, x: str) -> str:
    return b.op("Expand", b.const(np.zeros((1, 1), np.float32)), b.shape(b.size(x, 0), WIDTH))


def smoothed(front: Window | None = None) -> Write:
    """Exponential smoothing of x [B, T, C] along axis 1."""

    def write(b: Builder) -> Names:
        def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
            h = body.op("Mul", states[0], body.const(0.9))
            h = body.op("Add", h, body.op("Mul", frames[0], body.const(0.1)))
            return [h], [h]

        x = _x(b, front)
        return scan(b, step, [_zero(b, x)], [(x, 1)], [1])

    return write


def gated(front: Window | None = None, layers: int = 1) -> Write:
    """A GRU cell written out, a scan each layer."""

    def write(b: Builder) -> Names:
        x, out = _x(b, front), []

        def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
            (h,), (u,) = states, frames

            def gate(kind: str, state: str) -> str:
                both = body.op("Concat", u, state, axis=-1)
                return body.op(kind, body.op("Gemm", both, body.weight(2 * WIDTH, WIDTH), body.weight(WIDTH)))

            z, r = gate("Sigmoid", h), gate("Sigmoid", h)
            n = gate("Tanh", body.op("Mul", r, h))
            keep = body.op("Sub", body.const(1.0), z)
            h = body.op("Add", body.op("Mul", keep, n), body.op("Mul", z, h))
            return [h], [h]

        for i in range(layers):
            h, x = scan(b, step, [_zero(b, x)], [(x, -2)], [-2], called=f"s{i}")
            out.append(h)
        return [x, *out]

    return write


def mapped(b: Builder) -> Names:
    """No state at all, two rows of integers and of numbers, and one output left out."""

    def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
        x, k = frames
        return [], [body.op("Add", x, body.cast(k, np.float32)), body.op("Neg", k), body.op("Neg", x)]

    inputs = [(b.input("x", "T", 2, b.batch), 0), (b.input("k", 2, "T", b.batch, dtype=np.int64), -2)]
    kinds = [np.float32, np.int64]
    return scan(b, step, [], inputs, [0, 1, 2], kinds=kinds, out_kinds=[*kinds, np.float32])[:2]


def of_type(dtype: Any) -> Write:
    """A running maximum that starts at 1, of numbers of this type, behind a look-ahead."""

    def write(b: Builder) -> Names:
        def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
            u = body.cast(frames[0], dtype)
            wide = np.float32 if np.dtype(dtype).kind == "f" else np.int32
            both = [body.cast(v, wide) for v in (states[0], u)]
            h = body.cast(body.op("Max", *both), dtype)
            return [h], [h]

        x = b.op("Mul", b.op("Round", b.op("Abs", _x(b, Window(3, 0, 2)))), b.const(2.0))
        start = b.const(np.ones((1, WIDTH)), dtype)
        return scan(b, step, [start], [(x, 1)], [1], dtypes=[dtype], out_kinds=[dtype])

    return write


def across(kind: str, reverse: bool = False, front: Window | None = None) -> Write:
    """A scan over four bands; its body reads all frames of one: point by point, by a convolution, by a sum."""

    def write(b: Builder) -> Names:
        x = b.input("x", b.batch, WIDTH, "T")
        x = exact_conv(b, x, front) if front else x
        bands = b.op("Mul", b.unsqueeze(x, 1), b.weight(1, 4, 1, 1))  # [B, 4, C, T]

        def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
            h = body.op("Add", body.op("Mul", states[0], body.const(0.5)), frames[0])
            if kind == "conv":
                h = body.conv(h, Window(3, 2, 0), WIDTH, WIDTH)
            elif kind == "ahead":
                h = body.conv(h, Window(2, 0, 1), WIDTH, WIDTH)
            elif kind == "sum":
                h = body.op("CumSum", h, body.scalar(2))
            h = body.op("Tanh", h)
            return [h], [h]

        more = {"scan_input_directions": [1], "scan_output_directions": [1]} if reverse else {}
        return scan(b, step, [b.op("Neg", x)], [(bands, 1)], [-2], **more)

    return write


# ---- loops


def counted(use: str, front: Window | None = None, condition: str = "passed", unsqueezed: bool = False) -> Write:
    """A Loop over the frames of x [B, T, C]; the body uses its counter: to start anew, to take the mean, not at all."""

    def write(b: Builder) -> Names:
        x = _x(b, front)

        def turn(body: Body, t: str, states: Names) -> tuple[Names, Names]:
            if unsqueezed:
                u = body.op("Squeeze", body.op("Gather", x, body.unsqueeze(t, 0), axis=1), body.ints(1))
            else:
                u = body.op("Gather", x, t, axis=1)
            h = body.op("Add", body.op("Mul", states[0], body.const(0.75)), u)
            if use == "first":
                h = body.op("Where", body.op("Equal", t, body.scalar(0)), u, h)
            elif use == "mean":
                h = body.op("Add", states[0], u)
                count = body.op("Add", body.cast(t, np.float32), body.const(1.0))
                return [h], [body.op("Div", h, count)]
            return [h], [body.op("Mul", h, u)]

        return loop(b, turn, b.size(x, 1), [_zero(b, x)], condition=condition)

    return write


def joined_list(new_axis: int, twice: bool = False, front: Window | None = None) -> Write:
    """Frames appended to a list, then stacked (1), or joined along an axis of size one that each has (0)."""

    def write(b: Builder) -> Names:
        x = _x(b, front)
        empty = b.op("SequenceEmpty", dtype=1)

        def turn(body: Body, t: str, states: Names) -> tuple[Names, Names]:
            h = body.op("Add", body.op("Mul", states[0], body.const(0.5)), body.op("Gather", x, t, axis=1))
            y = body.op("Tanh", h)
            lists = [
                body.op("SequenceInsert", s, v if new_axis else body.unsqueeze(v, 1))
                for s, v in zip(states[1:], (y, h), strict=False)
            ]
            return [h, *lists], []

        count = 2 if twice else 1
        names = listing_loop(b, turn, b.size(x, 1), [_zero(b, x)], [empty] * count)
        how = {"axis": 1, "new_axis": new_axis}
        return [*(b.op("ConcatFromSequence", n, **how, called=f"y{i}") for i, n in enumerate(names[1:])), names[0]]

    return write


def listing_loop(b: Builder, turn: Turn, trip: str, states: Names, lists: Names, called: str = "s") -> Names:
    """As `loop`, with lists carried behind the states."""
    body, count = Body(b, f"{called}_body"), len(states) + len(lists)
    before = [f"{called}_before_{i}" for i in range(count)]
    number, going = f"{called}_t", f"{called}_going"
    after, _ = turn(body, number, before)
    graph = body.graph({number: np.int64, going: np.bool_}, [going, *after], [np.bool_] + [np.float32] * count)
    ports = [_port(n, np.float32) for n in before[: len(states)]] + [_list(n) for n in before[len(states) :]]
    graph.input.extend(ports)
    for i in range(len(lists)):
        graph.output[1 + len(states) + i].CopyFrom(_list(graph.output[1 + len(states) + i].name))
    names = [f"{called}_h{i}" for i in range(count)]
    node = helper.make_node("Loop", [trip, b.const(np.array(True)), *states, *lists], names, name=called, body=graph)
    b.nodes.append(node)
    return names


def _list(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, onnx.TensorProto.FLOAT, None)


def turned_often(count: int, counter: bool = True, condition: str = "identity") -> Write:
    """A Loop of a fixed number of turns: each one sees the whole stream, and a row of a table by its number."""

    def write(b: Builder) -> Names:
        x = b.input("x", b.batch, WIDTH, "T")
        table = b.weight(count, 1, WIDTH, 1)

        def turn(body: Body, t: str, states: Names) -> tuple[Names, Names]:
            h = body.conv(states[0], Window(2, 1, 0), WIDTH, WIDTH)
            h = body.op("Add", h, body.op("Gather", table, t))
            if counter:
                h = body.op("Div", h, body.op("Add", body.cast(t, np.float32), body.const(2.0)))
            return [body.op("Tanh", h)], [h]

        return loop(b, turn, b.scalar(count), [x], condition=condition)

    return write


# ---- by the way


def _decay(body: Body, h: str, u: str) -> str:
    return body.op("Add", body.op("Mul", h, body.const(0.5)), u)


def handed_on(b: Builder) -> Names:
    """States that change places or are a frame; outputs that are a state, a frame, an outer value, the same twice."""
    x = _x(b, AHEAD)
    k = b.op("Expand", b.weight(1, WIDTH), b.shape(b.size(x, 0), WIDTH))

    def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
        one, two, last = states
        return [two, one, frames[0]], [one, frames[0], k, last, last, body.op("Add", frames[0], k)]

    return scan(b, step, [_zero(b, x), k, _zero(b, x)], [(x, 1)], [1, 0, 1, 2, 1, 1])


def truths(b: Builder) -> Names:
    """Scanned, carried and collected."""
    x = _x(b, AHEAD)
    start = b.op("Expand", b.const(np.ones((1, 1), np.bool_)), b.shape(b.size(x, 0), WIDTH))

    def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
        h = body.op("Xor", states[0], frames[0])
        return [h], [h, body.op("Not", frames[0])]

    kinds: dict[str, Any] = {"dtypes": [np.bool_], "kinds": [np.bool_], "out_kinds": [np.bool_] * 2}
    h, y, other = scan(b, step, [start], [(b.op("Greater", x, b.const(0.0)), 1)], [1, 2], **kinds)
    return [b.conv(b.transpose(b.cast(y, np.float32), 0, 2, 1), AHEAD, WIDTH, WIDTH), other, h]


def not_of_data(b: Builder) -> Names:
    """Scanned beside data: what is the same at every frame, and positions."""
    x = _x(b, AHEAD)
    same, at = b.op("Expand", b.weight(1, 1, WIDTH, scale=0.4), b.op("Shape", x)), b.range(b.size(x, 1))

    def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
        h = body.op("Add", body.op("Mul", states[0], frames[1]), frames[0])
        h = body.op("Add", h, body.op("Sin", frames[2]))
        return [h], [h]

    return scan(b, step, [_zero(b, x)], [(x, 1), (same, 1), (b.cast(at, np.float32), 0)], [1])


def alike_inside(b: Builder) -> Names:
    """Two scans whose bodies use the same names; both have something that no turn changes."""
    x, out = _x(b, AHEAD), []

    def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
        body.called = "same"
        h = body.op("Add", body.op("Mul", states[0], body.op("Exp", body.const(-0.5))), frames[0])
        return [h], [h]

    for called in ("one", "two"):
        h, x = scan(b, step, [_zero(b, x)], [(x, 1)], [1], called=called)
        out += [h, x]
    return out


def looked_up(b: Builder) -> Names:
    """Tokens, looked up in the body."""
    x = b.input("x", b.batch, "T", dtype=np.int64)

    def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
        h = _decay(body, states[0], body.op("Gather", body.weight(19, WIDTH), frames[0]))
        return [h], [h]

    return scan(b, step, [_zero(b, x)], [(x, 1)], [1], kinds=[np.int64])


def one_number(b: Builder) -> Names:
    """The stream has no other axis, the state none at all."""

    def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
        h = _decay(body, states[0], frames[0])
        return [h], [h]

    return scan(b, step, [b.const(np.float32(1.5))], [(b.input("x", "T"), 0)])


def a_number_each(b: Builder) -> Names:
    """Of every stream, beside a truth value."""
    x = b.input("x", b.batch, "T")
    x = b.op("Squeeze", b.op("Conv", b.unsqueeze(x, 1), b.weight(1, 1, 3), pads=[0, 2]), b.ints(1))
    ones = b.op("Expand", b.const(np.ones(1)), b.vector(b.size(x, 0)))

    def step(body: Body, states: Names, frames: Names) -> tuple[Names, Names]:
        h = _decay(body, states[0], frames[0])
        return [h, body.op("Not", states[1])], [h]

    return scan(b, step, [ones, b.cast(ones, np.bool_)], [(x, 1)], [1], dtypes=[np.float32, np.bool_])


def in_a_loop(turn: Callable[[Body, str, Names, str], tuple[Names, Names]], trip: str = "frames") -> Write:
    """Over the frames of x, of all but one, or of as many as an input `length` says."""

    def write(b: Builder) -> Names:
        x = _x(b, AHEAD if trip == "frames" else None)
        count = b.size(x, 1)
        if trip == "all_but_one":
            count = b.op("Sub", count, b.scalar(1))
        elif trip == "given":
            count = b.op("Gather", b.input("length", b.batch, dtype=np.int64), b.scalar(0))
        return loop(b, lambda body, t, states: turn(body, t, states, x), count, [_zero(b, x), _zero(b, x)])

    return write


def several(body: Body, t: str, states: Names, x: str) -> tuple[Names, Names]:
    """One stream picked three times, in three ways; the number itself collected."""
    u, w = body.op("Gather", x, t, axis=1), body.op("Gather", x, body.cast(t, np.int32), axis=-2)
    v = body.op("Squeeze", body.op("Gather", x, body.unsqueeze(t, 0), axis=-2), body.ints(1))
    h = _decay(body, states[0], body.op("Sub", body.op("Mul", u, v), w))
    return [h, states[0]], [h, body.cast(t, np.float32), states[1]]


def from_a_table(body: Body, t: str, states: Names, x: str) -> tuple[Names, Names]:
    """A row for every frame, of so many as there are."""
    u = body.op("Add", body.op("Gather", x, t, axis=1), body.op("Gather", body.weight(300, WIDTH), t))
    h = _decay(body, states[0], u)
    return [h, states[0]], [h]


def without_a_name(b: Builder) -> Names:
    names = counted("mean", AHEAD)(b)
    b.nodes[-1].name = ""
    return names


ODD: dict[str, tuple[Write, dict[str, Any]]] = {
    "handed_on": (handed_on, {}),
    "truths": (truths, {"dtypes": {"s_1": np.bool_, "s_h0": np.bool_}}),
    "not_of_data": (not_of_data, {}),
    "alike_inside": (alike_inside, {}),
    "looked_up": (looked_up, {}),
    "one_number": (one_number, {}),
    "a_number_each": (a_number_each, {"dtypes": {"s_h1": np.bool_}}),
    "several": (in_a_loop(several), {}),
    "from_a_table": (in_a_loop(from_a_table), {}),
    "all_but_one": (in_a_loop(several, "all_but_one"), {"shortest": 2}),
    "length_given": (in_a_loop(several, "given"), {}),
    "without_a_name": (without_a_name, {}),
}


# ---- torch


def script(path: Any, kind: str) -> Any:
    """A loop over the frames of x [B, T, 3], by torch.jit.script and the older exporter."""
    import warnings

    import torch

    def stacked(x):  # type: ignore[no-untyped-def]
        h, out = x.new_zeros(x.shape[0], x.shape[2]), []
        for t in range(x.shape[1]):
            h = 0.9 * h + 0.1 * x[:, t]
            out.append(h)
        return torch.stack(out, 1), h

    def catted(x):  # type: ignore[no-untyped-def]
        h, out = x.new_zeros(x.shape[0], x.shape[2]), []
        for t in range(x.size(1)):
            h = torch.tanh(0.5 * h + x[:, t])
            out.append(h.unsqueeze(1))
        return torch.cat(out, dim=1), h

    def meant(x):  # type: ignore[no-untyped-def]
        h, out = x.new_zeros(x.shape[0], x.shape[2]), []
        for t in range(x.shape[1]):
            h = h + x[:, t]
            out.append(h / (t + 1))
        return torch.stack(out, dim=1), h

    def sliced(x):  # type: ignore[no-untyped-def]
        h, out = x.new_zeros(x.shape[0], 1, x.shape[2]), []
        for t in range(x.shape[1]):
            h = 0.5 * h + x[:, t : t + 1]
            out.append(h)
        return torch.cat(out, dim=1), h

    def two_lists(x):  # type: ignore[no-untyped-def]
        h, c, out, more = x.new_zeros(x.shape[0], x.shape[2]), x.new_ones(x.shape[0], x.shape[2]), [], []
        for t in range(x.shape[1]):
            h, c = torch.tanh(x[:, t] + 0.5 * c), torch.sigmoid(h)
            out.append(h * c)
            more.append(c)
        return torch.stack(out, 1) + torch.stack(more, 1), c

    def written(x):  # type: ignore[no-untyped-def]
        h, y = x.new_zeros(x.shape[0], x.shape[2]), torch.zeros_like(x)
        for t in range(x.shape[1]):
            h = 0.9 * h + 0.1 * x[:, t]
            y[:, t] = h
        return y, h

    def until(x):  # type: ignore[no-untyped-def]
        h, out = x.new_zeros(x.shape[0], x.shape[2]), []
        for t in range(x.shape[1]):
            h = h + x[:, t]
            out.append(h)
            if bool(h.sum() > 100.0):
                break
        return torch.stack(out, 1), h

    forms = {f.__name__: f for f in (stacked, catted, meant, sliced, two_lists, written, until)}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loop = torch.jit.script(forms[kind])

        def forward(self, x: Any) -> Any:
            return self.loop(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Model(), (torch.randn(2, 6, WIDTH),), path, dynamo=False, input_names=["x"], output_names=["y", "h"],
            dynamic_axes={"x": {0: "B", 1: "T"}}, opset_version=17,
        )  # fmt: skip
    return path


def torch_scan(path: str) -> None:
    """Torch's scan behind a convolution, by the newer exporter."""
    import torch
    from torch._higher_order_ops.scan import scan as run

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front, self.inner = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1), torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            def step(h: Any, u: Any) -> Any:
                h = torch.tanh(self.inner(u) + 0.5 * h)
                return h, h * 2

            h, y = run(step, x.new_ones(1, WIDTH), self.front(x).transpose(1, 2), dim=1)
            return y, h

    torch.manual_seed(1)
    frames = {2: torch.export.Dim("T", min=2, max=4000)}
    torch.onnx.export(
        Model().eval(), (torch.randn(1, WIDTH, 6),), path, dynamo=True, input_names=["x"], output_names=["y", "h"],
        dynamic_shapes=(frames,), verbose=False, external_data=False,
    )  # fmt: skip


if __name__ == "__main__":
    torch_scan(sys.argv[1])
