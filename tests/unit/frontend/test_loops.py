"""Loops over frames become scans of the same result; what is no scan stays a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pulsify.frontend.load import load
from pulsify.frontend.loop_ports import looped
from tests.models import close, frames, model, node, run_batch
from tests.unit.build import written

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, kind: int, dims: list[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def loop(
    body_nodes: list[onnx.NodeProto], before: list[onnx.NodeProto] | None = None, cond: str = "_"
) -> onnx.ModelProto:
    """for t in range(T): h, y[t] = body(h, t); x is [1, T, 2], h [1, 2] starts at one."""
    body = helper.make_graph(
        body_nodes,
        "body",
        [info("t", INT, []), info("go", BOOL, []), info("h", FLOAT, [1, 2])],
        [info("go2", BOOL, []), info("h2", FLOAT, [1, 2]), info("out", FLOAT, [1, 2])],
    )
    around = [
        node("Shape", "x", "dims"),
        node("Gather", "dims one", "count", axis=0),
        *(before or []),
        helper.make_node(
            "Loop", ["count", "" if cond == "_" else cond, "start"], ["last", "y"], name="loop", body=body
        ),
    ]
    constants: dict[str, Any] = {
        "one": np.array(1), "zero": np.array(0), "start": np.ones((1, 2), np.float32), "true": np.array(True),
        "half": np.array(0.5, np.float32),
    }  # fmt: skip
    return model(around, {"x": [1, "T", 2]}, ["last", "y"], constants)


STEP = [node("Identity", "go", "go2"), node("Mul", "h half", "m"), node("Add", "m f", "h2"), node("Exp", "h2", "out")]
FRAME = node("Gather", "x t", "f", axis=1)


def agrees(proto: onnx.ModelProto, lengths: tuple[int, ...] = (1, 2, 7)) -> None:
    settled = written(load(proto))
    for length in lengths:
        x = frames(1, length, 2)
        got, want = run_batch(settled, x), run_batch(proto, x)
        for name, value in want.items():
            close(got[name], value)


def test_a_loop_over_frames_is_a_scan_of_them() -> None:
    proto = loop([FRAME, *STEP])
    settled = load(proto)
    scan = next(n for n in settled.nodes if n.body is not None)
    assert scan.op == "Scan" and scan.attr("num_scan_inputs") == 1
    assert list(scan.attr("scan_input_axes")) == [1]
    parts = looped(scan)
    assert len(parts.carried) == 1 and len(parts.scanned) == 1 and parts.number == ""
    agrees(proto)


@pytest.mark.parametrize("condition", ["true", "computed"])
def test_a_condition_that_never_ends_it_does_not_count(condition: str) -> None:
    before = [node("Identity", "true", "computed")] if condition == "computed" else []
    proto = loop([FRAME, *STEP], before, condition)
    assert any(n.op == "Scan" for n in load(proto).nodes)
    agrees(proto)


def test_a_loop_that_may_end_early_stays_a_loop() -> None:
    nodes = [FRAME, node("ReduceSum", "f", "s", keepdims=0), node("Less", "s half", "go2"), *STEP[1:]]
    assert any(n.op == "Loop" for n in load(loop(nodes)).nodes)


def test_the_number_of_the_turn_is_scanned_where_it_is_used() -> None:
    nodes = [FRAME, node("Cast", "t", "tf", to=FLOAT), node("Add", "f tf", "g"), STEP[0], STEP[1],
             node("Add", "m g", "h2"), STEP[3]]  # fmt: skip
    proto = loop(nodes)
    scan = next(n for n in load(proto).nodes if n.body is not None)
    assert scan.op == "Scan" and scan.attr("num_scan_inputs") == 2
    agrees(proto)


def test_a_slice_of_one_frame_is_a_frame_that_keeps_its_axis() -> None:
    nodes = [
        node("Unsqueeze", "t axes0", "from"), node("Add", "t one", "next"), node("Unsqueeze", "next axes0", "to"),
        node("Slice", "x from to axes1", "kept"), node("Squeeze", "kept axes1", "f"), *STEP,
    ]  # fmt: skip
    proto = loop(nodes)
    for name, value in (("axes0", [0]), ("axes1", [1])):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    scan = next(n for n in load(proto).nodes if n.body is not None)
    assert scan.op == "Scan"
    agrees(proto)


def test_a_frame_further_on_is_none_of_this_turn() -> None:
    """x[t + 1] is not the turn's own frame: it may not be scanned."""
    nodes = [
        node("Add", "t one", "next"),
        node("Min", "next last_frame", "at"),
        node("Gather", "x at", "f", axis=1),
        *STEP,
    ]
    before = [node("Sub", "count one", "last_frame")]
    proto = loop(nodes, before)
    scan = next(n for n in load(proto).nodes if n.body is not None)
    assert not any(a.outer.startswith("x") for a in looped(scan).scanned)
    agrees(proto)


def test_what_no_turn_changes_is_computed_in_front() -> None:
    nodes = [node("Mul", "half half", "quarter"), FRAME, STEP[0], node("Mul", "h quarter", "m"), *STEP[2:]]
    settled = load(loop(nodes))
    scan = next(n for n in settled.nodes if n.body is not None)
    assert scan.body is not None and not any("quarter" in o for n in scan.body.nodes for o in n.outputs)
    agrees(loop(nodes))


def test_a_list_that_is_stacked_is_a_scan_output() -> None:
    """out = []; for t: out.append(f(x[:, t])); y = stack(out, 1)."""
    body = helper.make_graph(
        [node("Identity", "go", "go2"), FRAME, node("Exp", "f", "e"), node("SequenceInsert", "seq e", "seq2")],
        "body",
        [info("t", INT, []), info("go", BOOL, []), helper.make_tensor_sequence_value_info("seq", FLOAT, None)],
        [info("go2", BOOL, []), helper.make_tensor_sequence_value_info("seq2", FLOAT, None)],
    )
    proto = model(
        [
            node("Shape", "x", "dims"),
            node("Gather", "dims one", "count", axis=0),
            node("SequenceEmpty", "", "empty", dtype=FLOAT),
            helper.make_node("Loop", ["count", "", "empty"], ["list"], name="loop", body=body),
            node("ConcatFromSequence", "list", "y", axis=1, new_axis=1),
        ],
        {"x": [1, "T", 2]},
        ["y"],
        {"one": np.array(1)},
    )
    settled = load(proto)
    scan = next(n for n in settled.nodes if n.body is not None)
    assert scan.op == "Scan" and list(scan.attr("scan_output_axes")) == [1]
    assert not any("Sequence" in n.op for n in settled.nodes)
    agrees(proto)


def listing(begun: str, join: dict[str, int], kept: bool) -> onnx.ModelProto:
    """out = [first ...]; for t in range(T - 1): out.append(x[:, t + 1] - x[:, t]); y = stack(out, 1), or cat."""
    sliced = [node("Unsqueeze", "d axes1", "frame")] if kept else [node("Identity", "d", "frame")]
    nodes = [
        node("Identity", "go", "go2"), node("Mul", "t one", "same"), node("Add", "one same", "next"),
        node("Gather", "x next", "f", axis=1), node("Gather", "x t", "e", axis=1), node("Sub", "f e", "d"),
        *sliced, node("SequenceInsert", "seq frame", "seq2"),
    ]  # fmt: skip
    body = helper.make_graph(
        nodes, "body",
        [info("t", INT, []), info("go", BOOL, []), helper.make_tensor_sequence_value_info("seq", FLOAT, None)],
        [info("go2", BOOL, []), helper.make_tensor_sequence_value_info("seq2", FLOAT, None)],
    )  # fmt: skip
    around = [
        node("Shape", "x", "dims"), node("Gather", "dims one", "count", axis=0), node("Sub", "count one", "turns"),
        node("Gather", "x zero", "flat", axis=1), node("Slice", "x axes0 axes1 axes1", "wide"),
        node("SequenceConstruct", begun, "start"),
        helper.make_node("Loop", ["turns", "", "start"], ["list"], name="loop", body=body),
        node("ConcatFromSequence", "list", "y", **join),
    ]  # fmt: skip
    constants = {"one": np.array(1), "zero": np.array(0), "axes0": np.array([0]), "axes1": np.array([1])}
    return model(around, {"x": [1, "T", 2]}, ["y"], constants)


@pytest.mark.parametrize(
    ("begun", "join", "kept"),
    [
        ("flat", {"axis": 1, "new_axis": 1}, False),
        ("flat flat", {"axis": 1, "new_axis": 1}, False),
        ("flat", {"axis": -2, "new_axis": 1}, False),
        ("wide wide", {"axis": 1}, True),
        ("x", {"axis": 1}, True),
    ],
    ids=["stacked", "two", "from the end", "joined", "all"],
)
def test_a_list_that_starts_with_frames_has_them_in_front(begun: str, join: dict[str, int], kept: bool) -> None:
    proto = listing(begun, join, kept)
    settled = load(proto)
    scan = next(n for n in settled.nodes if n.body is not None)
    assert scan.op == "Scan" and len(looped(scan).scanned) == 2
    assert not any("Sequence" in n.op for n in settled.nodes)
    agrees(proto, (2, 3, 7))
