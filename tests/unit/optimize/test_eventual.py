"""Values of the clock as lines of the pulse's number: right at every pulse from the one they name on."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from pulsify.core.spec import Spec
from pulsify.optimize.eventual import lines
from tests.unit.specs import a_stream

PULSE, UNKNOWN = 4, 4000
Step = tuple[str, int]  # an operator and a constant
STEPS = st.tuples(
    st.sampled_from(["Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Abs", "Neg", "Less", "GreaterOrEqual", "Equal"]),
    st.integers(1, 12),
)


def clock(steps: list[Step], lanes: int = 3) -> onnx.ModelProto:
    """position + 0 1 2 ..., then the steps, one after the other; a comparison is the last."""
    nodes = [helper.make_node("Add", ["position", "lanes"], ["v0"])]
    constants = [numpy_helper.from_array(np.arange(lanes, dtype=np.int32)[None], "lanes")]
    for i, (op, number) in enumerate(steps):
        inputs = [f"v{i}"]
        if op not in ("Abs", "Neg"):
            constants.append(numpy_helper.from_array(np.array(number, np.int32), f"c{i}"))
            inputs.append(f"c{i}")
        nodes.append(helper.make_node(op, inputs, [f"v{i + 1}"]))
    port = helper.make_tensor_value_info("position", 6, ["B", 1])
    graph = helper.make_graph(nodes, "clock", [port], [onnx.ValueInfoProto(name=f"v{len(steps)}")], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def spec() -> Spec:
    return a_stream(PULSE, position="position", unknown_length=UNKNOWN)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=5), st.sampled_from([1, 3]))
def test_a_line_is_the_value_at_every_pulse_from_its_first_on(steps: list[Step], batch: int) -> None:
    last = next((i for i, (op, _) in enumerate(steps) if op in ("Less", "GreaterOrEqual", "Equal")), len(steps))
    proto = clock(steps[: last + 1])
    model = ir.from_proto(proto)
    found = lines(model, list(model.graph), spec(), batch)
    reference = onnx.reference.ReferenceEvaluator(_with_all_outputs(proto))
    for n in [*range(12), 50, UNKNOWN // 2 // PULSE]:
        values = dict(zip(reference.output_names, reference.run(None, {"position": _at(n, batch)}), strict=True))
        for value, line in found.items():
            if value.name in values and n >= line.since:
                assert np.array_equal(line.at(n) if not line.flat else line.start, values[value.name]), (value.name, n)


def _at(n: int, batch: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    return np.full((batch, 1), n * PULSE, np.int32)


def _with_all_outputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    del out.graph.output[:]
    out.graph.output.extend(onnx.ValueInfoProto(name=n.output[0]) for n in proto.graph.node)
    return out


@pytest.mark.parametrize(
    ("steps", "since", "value"),
    [
        ([("Less", 9)], 3, [[False, False, False]]),  # 8, 9, 10 at pulse 2
        ([("Sub", 7), ("Abs", 0), ("Less", 2)], 3, [[False, False, False]]),
        ([("Mod", 4)], 0, [[0, 1, 2]]),
    ],
)
def test_what_settles_says_from_which_pulse_on(steps: list[Step], since: int, value: list[list[int]]) -> None:
    model = ir.from_proto(clock(steps))
    found = lines(model, list(model.graph), spec(), 1)
    line = found[model.graph.outputs[0]]
    assert line.flat and line.since == since
    assert line.start.tolist() == value


def test_what_goes_round_with_the_pulses_is_no_line() -> None:
    model = ir.from_proto(clock([("Mod", 3)]))
    assert model.graph.outputs[0] not in lines(model, list(model.graph), spec(), 1)
