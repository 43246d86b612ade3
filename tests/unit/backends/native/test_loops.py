"""Scan and Loop as loops of C: what goes from turn to turn, rows that move, what a body reads from outside."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import ShapeInferencePass

from pulsify.ops import scan as rule
from tests.models import model, node, weights
from tests.recurrence import check
from tests.recurrence.build import built
from tests.recurrence.scans import AHEAD, Scanned, gated, scanned
from tests.unit.backends.native.both import alike, reason
from tests.unit.backends.torch.test_ops_recurrent import body


@pytest.mark.parametrize("backwards", [0, 1])
def test_scan(backwards: int) -> None:
    """Two states that change places, a weight and a value from outside, rows from either end."""
    inner = body(
        [node("Mul", "s w", "m"), node("Add", "m row", "n"), node("Add", "n outer", "o"), node("Identity", "s", "t")],
        {"s": [3], "other": [3], "row": [3]}, {"n": [3], "t": [3], "o": [3]},
    )  # fmt: skip
    ways = {"scan_input_directions": [backwards], "scan_output_directions": [1 - backwards]}
    scan = node("Scan", "z z x", "last before all", body=inner, num_scan_inputs=1, scan_input_axes=[1],
                scan_output_axes=[1], **ways)  # fmt: skip
    nodes = [node("Relu", "z", "outer"), scan]
    proto = model(nodes, {"x": [3, 4], "z": [3]}, ["last", "before", "all"], {"w": weights(3)})
    alike(ShapeInferencePass()(ir.from_proto(proto)).model)


def test_states_that_change_places() -> None:
    inner = body([node("Identity", "b", "c"), node("Identity", "a", "d"), node("Add", "a r", "o")],
                 {"a": [3], "b": [3], "r": [3]}, {"c": [3], "d": [3], "o": [3]})  # fmt: skip
    scan = node("Scan", "z u x", "p q all", body=inner, num_scan_inputs=1)
    proto = model([scan], {"x": [5, 3], "z": [3], "u": [3]}, ["p", "q", "all"], {})
    alike(ShapeInferencePass()(ir.from_proto(proto)).model)


def test_loop_of_a_known_count() -> None:
    inner = body(
        [node("Identity", "go", "on"), node("Cast", "i", "f", to=1), node("Mul", "s w", "m"), node("Add", "m f", "n")],
        {"i": [], "go": [], "s": [3]}, {"on": [], "n": [3], "m": [3]},
    )  # fmt: skip
    loop = node("Loop", "count true x", "last all", body=inner)
    constants = {"w": weights(3), "count": np.array(4), "true": np.array(True)}
    alike(ShapeInferencePass()(ir.from_proto(model([loop], {"x": [3]}, ["last", "all"], constants))).model)


def test_a_loop_that_data_ends_is_refused() -> None:
    inner = body(
        [node("ReduceMax", "s", "top", keepdims=0), node("Less", "top limit", "on"), node("Add", "s outer", "n")],
        {"i": [], "go": [], "s": [3]}, {"on": [], "n": [3]},
    )  # fmt: skip
    constants = {"count": np.array(50), "true": np.array(True), "limit": np.array(9, np.float32)}
    nodes = [node("Exp", "x", "outer"), node("Loop", "count true x", "y", body=inner)]
    made = ShapeInferencePass()(ir.from_proto(model(nodes, {"x": [3]}, ["y"], constants))).model
    assert "follows from data" in reason(made)


STREAMS = {
    "starts": Scanned(("static", "int", "bool", "computed"), (1,), (1, 0), front=AHEAD, finals=True, batch="B"),
    "axes": Scanned(("zero", "constant"), (0, 1, 2, -1), (2, 0, 1), front=AHEAD, captured="of_static", finals=True),
    "cells": None,
}


@pytest.mark.parametrize("name", STREAMS)
def test_over_time_it_is_the_batch_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "WRITTEN_OUT", 0)
    case, opened = STREAMS[name], check.open_session
    made = built(gated(AHEAD, 2), batch=1) if case is None else scanned(case)

    def native(*given, portable=False, **options):  # type: ignore[no-untyped-def]
        return opened(*given, backend="native", **options)

    monkeypatch.setattr(check, "open_session", native)
    stream = check.check(made, 3)
    assert "Scan" in {n.op_type for n in stream.model.graph}
    assert " scan_" in stream.sources("native")["general"]
