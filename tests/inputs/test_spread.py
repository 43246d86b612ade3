"""Frames that no input has a part in (positions, constants, static inputs spread over time), as they were found wrong:
folded with several streams, put in front of themselves, read by a recurrence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.verify import check as verification
from tests.inputs.check import check
from tests.models import Array, model, node, weights

CHANNELS = 2
SIZES = [  # of x: T [1], B [1], and the shapes [B, T, 2], [1, T, 1]
    node("Shape", "x", "dims"),
    node("Gather", "dims zero", "B", axis=0),
    node("Gather", "dims one", "T", axis=0),
    node("Concat", "B T two", "all", axis=0),
    node("Concat", "one T one", "line", axis=0),
    node("Concat", "B minus two", "unfolded", axis=0),
]
KNOWN: dict[str, Array] = {
    "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "minus": np.array([-1]), "scalar": np.array(0),
    "first": np.array(1), "flat": np.array([-1, CHANNELS]), "ends": np.array([0, 2]), "w": weights(2, 2),
    "frame": weights(1, 1, 2), "table": weights(200, 2), "half": np.array(0.5, np.float32),
    "front": np.array([0, 1, 0, 0, 0, 0]), "shifted": np.array([0, 1, 0, 0, -1, 0]),
}  # fmt: skip
POSITIONS = [
    node("Squeeze", "T", "count"), node("Range", "scalar count first", "places"), node("Cast", "places", "p", to=1),
]  # fmt: skip


def made(nodes: list[onnx.NodeProto], batch: int | str = "B", static: list[Any] | None = None) -> onnx.ModelProto:
    inputs: Mapping[str, Any] = {"x": [batch, "T", CHANNELS], **({"s": static} if static else {})}
    return model([*SIZES, *nodes], inputs, ["y"], KNOWN)


def folded(value: str, join: str = "Add") -> list[onnx.NodeProto]:
    """[B, T, 2] beside the data as [B*T, 2]."""
    more = {"axis": 1} if join == "Concat" else {}
    return [
        node("Reshape", "x flat", "xf"), node("Reshape", f"{value} flat", "ef"), node(join, "xf ef", "sum", **more),
        node("Reshape", "sum unfolded" if join != "Concat" else "sum wide", "y"),
    ]  # fmt: skip


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_frames_shown_again_below_a_fold(mode: str, streams: int) -> None:
    """Gathered along the folded axis, every stream had frames of the first."""
    nodes = [
        node("Pad", "x front", "padded", mode=mode), node("Slice", "padded zero minus one", "cut"),
        node("Reshape", "cut flat", "rows"), node("MatMul", "rows w", "made"), node("Reshape", "made unfolded", "back"),
        node("Mul", "back x", "y"),
    ]  # fmt: skip
    check(made(nodes), 3, range(1, 12), batch=streams)


@pytest.mark.parametrize("streams", [1, 3])
def test_positions_in_a_shape_that_is_written_out(streams: int) -> None:
    """[T] read as [1, T, 1] beside [B, T, 2]: every length was turned down."""
    nodes = [*POSITIONS, node("Reshape", "p line", "places_in_line"), node("Add", "x places_in_line", "y")]
    check(made(nodes), 2, range(1, 9), batch=streams)


SOURCES: dict[str, tuple[list[onnx.NodeProto], list[Any] | None]] = {
    "constant": ([node("Expand", "frame all", "e")], None),
    "one for all": ([node("Expand", "s all", "e")], [1, 1, 2]),
    "one each": ([node("Expand", "s all", "spread"), node("Tanh", "spread", "e")], ["B", 1, 2]),
    "positions of each": (
        [*POSITIONS, node("Reshape", "p line", "at"), node("Mul", "at s", "m"), node("Expand", "m all", "e")],
        ["B", 1, 2],
    ),
    "latch": (
        [node("Slice", "x zero one one", "l"), node("Expand", "l all", "spread"), node("Tanh", "spread", "e")],
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("join", ["Add", "Concat"])
@pytest.mark.parametrize("source", SOURCES)
def test_what_is_spread_over_time_and_folded(source: str, join: str, streams: int) -> None:
    """Several streams failed inside the runtime, and nothing had said so before."""
    nodes, static = SOURCES[source]
    wide = [node("Concat", "B minus four", "wide", axis=0), node("Add", "two two", "four")]
    check(made([*wide[::-1], *nodes, *folded("e", join)], static=static), 2, range(1, 8), batch=streams)


FRONTS: dict[str, tuple[list[onnx.NodeProto], list[Any] | None]] = {
    "static": ([node("Expand", "s line", "e")], [1, 1, 2]),
    "positions": ([*POSITIONS, node("Reshape", "p line", "at"), node("Mul", "at s", "e")], [1, 1, 2]),
    "table": (
        [node("Slice", "table zero T", "t"), node("Unsqueeze", "t zero", "u"), node("Mul", "u s", "e")],
        [1, 1, 2],
    ),
    "latch": ([node("Slice", "x zero one one", "l"), node("Expand", "l line", "e")], None),
}


@pytest.mark.parametrize("first", [2, 3])
@pytest.mark.parametrize("source", FRONTS)
def test_first_frames_of_no_data_put_in_front_of_them(source: str, first: int) -> None:
    """Streams shorter than that gave frames that batch does not have."""
    nodes, static = FRONTS[source]
    cut = [node("Slice", "e zero many one", "begin"), node("Concat", "begin e", "y", axis=1)]
    given: Mapping[str, Any] = {"x": [1, "T", CHANNELS], **({"s": static} if static else {})}
    proto = model(
        [*SIZES, *nodes, *cut, node("Neg", "x", "z")], given, ["y", "z"], {**KNOWN, "many": np.array([first])}
    )
    check(proto, 2, range(1, 9))


@pytest.mark.parametrize("op", ["RNN", "Scan"])
def test_a_recurrence_over_frames_of_no_data_is_refused_with_a_way_out(op: str) -> None:
    """They are made anew for whoever reads them: the state was carried more than once."""
    with pytest.raises(pulsify.NotStreamable, match="carries a state over frames that no input has a part in") as why:
        pulsify.stream(_recurrence(op, "e"), pulse=2)
    assert why.value.op == op and "times zero" in str(why.value)
    check(_recurrence(op, "with"), 2, range(1, 9))


def _recurrence(op: str, reads: str) -> onnx.ModelProto:
    """A static input spread over time and shifted, then a recurrence, then a convolution."""
    nodes = [
        node("Expand", "s line", "spread"), node("Pad", "spread shifted half", "e"), node("Mul", "x nothing", "none"),
        node("Add", "e none", "with"), node("Transpose", reads, "t", perm=[1, 0, 2]),
        node("RNN", "t ww r", "out last", hidden_size=2) if op == "RNN" else _scan(),
        node("Squeeze", "out one", "o") if op == "RNN" else node("Identity", "out", "o"),
        node("Transpose", "o", "turned", perm=[1, 2, 0]), node("Conv", "turned kernel", "made", pads=[2, 0]),
        node("Transpose", "made", "y", perm=[0, 2, 1]), node("Neg", "x", "z"),
    ]  # fmt: skip
    more = {"nothing": np.array(0, np.float32), "ww": weights(1, 2, 2), "r": weights(1, 2, 2),
            "kernel": weights(2, 2, 3), "begun": np.zeros((1, 2), np.float32)}  # fmt: skip
    return model([*SIZES, *nodes], {"x": [1, "T", 2], "s": [1, 1, 2]}, ["y", "z"], {**KNOWN, **more})


def _scan() -> onnx.NodeProto:
    one = [("s0", "s1"), ("f", "o")]
    info = {n: onnx.helper.make_tensor_value_info(n, 1, [1, 2]) for pair in one for n in pair}
    nodes = [onnx.helper.make_node("Add", ["s0", "f"], ["s1"]), onnx.helper.make_node("Identity", ["s1"], ["o"])]
    body = onnx.helper.make_graph(nodes, "b", [info["s0"], info["f"]], [info["s1"], info["o"]])
    return onnx.helper.make_node("Scan", ["begun", "t"], ["last", "out"], "scan", body=body, num_scan_inputs=1)


# ---- lengths that are worked out


@pytest.mark.parametrize("then", ["conv", "max", "last"])
@pytest.mark.parametrize("every", [5, 6, 9])
def test_five_frames_of_six(every: int, then: str) -> None:
    """(5 S + 5) // 6: five times the length that stands for an unknown one ran over, and became negative."""
    ends = {
        "conv": [node("Transpose", "kept", "t", perm=[0, 2, 1]), node("Conv", "t kernel", "y", pads=[1, 1])],
        "max": [node("ReduceMax", "kept", "y", axes=[1])],
        "last": [node("Slice", "kept minus many one", "y")],
    }
    nodes = [
        *POSITIONS, node("Mod", "places every", "phase"), node("Equal", "phase left_out", "gone"),
        node("Not", "gone", "stays"), node("Compress", "x stays", "kept", axis=1), *ends[then],
    ]  # fmt: skip
    known = {"every": np.array(every), "left_out": np.array(every - 1), "kernel": weights(2, 2, 3),
             "many": np.array([1 << 40])}  # fmt: skip
    proto = model([*SIZES, *nodes], {"x": [1, "T", CHANNELS]}, ["y"], {**KNOWN, **known}, opset=17)
    check(proto, every, range(2, 40))


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize(("made_of", "each"), [(147, 160), (160, 147)])
def test_frames_by_a_table_of_a_long_period(made_of: int, each: int, clipped: bool) -> None:
    """At a pulse of one frame the table was looked at for less than its period: numpy's own error came out."""
    nodes = [
        node("Mul", "T many", "scaled"), node("Div", "scaled over", "N"), node("Squeeze", "N", "frames"),
        node("Range", "scalar frames first", "at"), node("Mul", "at over_one", "up"), node("Div", "up many_one", "i"),
        node("Squeeze", "T", "end"), node("Sub", "end first", "last"), node("Min", "i last", "inside"),
        node("Gather", "x inside" if clipped else "x i", "y", axis=1),
    ]  # fmt: skip
    known = {"many": np.array([made_of]), "over": np.array([each]), "many_one": np.array(made_of)}
    proto = model([*SIZES, *nodes], {"x": [1, "T", CHANNELS]}, ["y"], {**KNOWN, **known, "over_one": np.array(each)})
    assert check(proto, None, [2, 146, 147, 160, 161, 330]).pulse == each


def test_counters_that_cannot_be_set_back_in_time_never_are() -> None:
    """Chunks of seven sizes repeat together after 10^10 frames: that ran over 32 bits."""
    sizes = [17, 19, 23, 29, 31, 37, 11]
    nodes, last = list(POSITIONS), "x"
    for n in sizes:
        nodes += [
            node("Div", f"places size{n}", f"c{n}"), node("Unsqueeze", f"c{n} zero", f"r{n}"),
            node("Unsqueeze", f"c{n} one", f"q{n}"), node("Equal", f"r{n} q{n}", f"ok{n}"),
            node("Transpose", "x", f"t{n}", perm=[0, 2, 1]), node("MatMul", f"x t{n}", f"s{n}"),
            node("Where", f"ok{n} s{n} low", f"m{n}"), node("Softmax", f"m{n}", f"w{n}", axis=-1),
            node("MatMul", f"w{n} x", f"v{n}"), node("Add", f"{last} v{n}", f"y{n}"),
        ]  # fmt: skip
        last = f"y{n}"
    known = {f"size{n}": np.array(n) for n in sizes} | {"low": np.array(-1e9, np.float32)}
    proto = model([*SIZES, *nodes], {"x": [1, "T", CHANNELS]}, [last], {**KNOWN, **known})
    spec = check(proto, 1, [1, 40, 120]).spec
    assert spec.rebase == 0 and spec.unknown_length < 1 << 31


# ---- the check itself


def test_several_streams_are_checked_where_their_number_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is right alone and wrong beside others does not pass."""
    proto = model([node("Tanh", "x", "y")], {"x": ["B", "T", 2]}, ["y"])
    stream = pulsify.stream(proto, pulse=2, verify=False)
    plain = verification.run_stream

    def mixed(given: Any, feeds: Any, *more: Any) -> Any:
        out = plain(given, feeds, *more)
        return {name: np.roll(value, 1, 0) for name, value in out.items()}

    assert pulsify.verify(proto, stream).ok
    monkeypatch.setattr(verification, "run_stream", mixed)
    with pytest.raises(pulsify.Mismatch, match=r'(?s)3 streams side by side.*set=\{"B": 1\}'):
        pulsify.verify(proto, stream)
