"""All of it in order: granularity, ports, states, and what the spec says."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pulsify.analysis.ledger import shortest_length
from pulsify.convert.convert import convert
from pulsify.convert.pulses import natural
from pulsify.core.errors import InvalidPulse, NotStreamable
from pulsify.core.length import Length
from pulsify.core.spec import Condition
from tests import models
from tests.models import model, node
from tests.unit.build import converting, traced


@pytest.mark.parametrize(
    ("proto", "wanted"), [(models.look_ahead(), 1), (models.strided(), 4), (models.two_rates(), 1), (models.valid(), 1)]
)
def test_the_granularity_is_the_smallest_pulse_of_whole_frames(proto: onnx.ModelProto, wanted: int) -> None:
    assert natural(traced(proto)).granularity == wanted
    assert convert(traced(proto), None).spec.pulse == wanted


def test_a_pulse_between_is_turned_down_with_one_that_fits() -> None:
    with pytest.raises(InvalidPulse, match="try pulse=8") as caught:
        convert(traced(models.strided()), 6)
    assert caught.value.granularity == 4


def test_the_spec_tells_delays_rates_and_states() -> None:
    made = convert(traced(models.look_ahead()), 4)
    (out,) = made.spec.outputs
    assert (out.delay, out.frames, out.rate, out.dims) == (3, 4, 1, (1, 3, 4))
    assert {s.kind for s in made.spec.states} == {"buffer", "clock"}
    assert made.spec.length is not None and made.spec.position is not None
    assert made.spec.rebase > 0, "only the ends depend on the position: the counter may be set back"


def test_a_causal_model_counts_nothing() -> None:
    spec = convert(traced(models.causal()), 4).spec
    assert (spec.length, spec.position, spec.outputs[0].delay) == (None, None, 0)
    assert [s.kind for s in spec.states] == ["buffer"] and spec.states[0].zero


def test_a_model_that_counts_positions_may_not_set_them_back() -> None:
    nodes = [node("Shape", "x", "dims"), node("Gather", "dims time", "t", axis=0), node("Range", "n0 t n1", "p"),
             node("Cast", "p", "f", to=1), node("Add", "x f", "y")]  # fmt: skip
    given = {"time": np.array(2), "n0": np.array(0), "n1": np.array(1)}
    assert convert(traced(model(nodes, {"x": [1, 1, "T"]}, ["y"], given)), 4).spec.rebase == 0


def test_graph_inputs_and_outputs_are_those_of_the_spec_and_states_pair_up() -> None:
    made = convert(traced(models.look_ahead("B")), 4)
    names = [str(v.name) for v in made.model.graph.inputs]
    assert names[:2] == ["x", made.spec.length] and names[2:] == [s.name for s in made.spec.states]
    assert [str(v.name) for v in made.model.graph.outputs] == ["y", *(s.after for s in made.spec.states)]
    assert all(s.shape[0] == "B" for s in made.spec.states)
    onnx.checker.check_model(ir.to_proto(made.model))


def test_static_inputs_are_given_once() -> None:
    spec = convert(traced(models.conditioned("B")), 4).spec
    assert [(s.name, s.dims) for s in spec.statics] == [("scale", ("B", 3, 1))]
    assert [i.name for i in spec.inputs] == ["x"]


def test_inputs_of_several_rates_come_in_step() -> None:
    spec = convert(traced(models.two_rates()), 3).spec
    assert {i.name: i.frames for i in spec.inputs} == {"slow": 3, "fast": 12}
    assert {o.name: o.frames for o in spec.outputs} == {"sum": 3, "negative": 12}


def test_an_output_that_is_a_length_comes_when_the_stream_ends() -> None:
    spec = convert(traced(models.with_length(), bind={"length": "T"}), 4).spec
    out = next(o for o in spec.outputs if o.name == "encoded_lengths")
    assert out.axis is None and [out.length.at(s) for s in (7, 8)] == [4, 4]
    assert "length" not in {s.name for s in spec.statics}


OUTPUTS: list[tuple[list[onnx.NodeProto], Any, str]] = [
    ([node("MatMul", "x z", "y")], {"x": [1, "T", 3], "z": [1, 3, "T"]}, "has 2 time axes"),
    ([node("Softmax", "x", "y", axis=1)], {"x": [1, "T", 3]}, "known only when the stream has ended"),
    ([node("Reshape", "x flat", "y")], {"x": [2, "T", 3]}, "merged with another axis"),
]


@pytest.mark.parametrize(("nodes", "inputs", "reason"), OUTPUTS)
def test_outputs_that_no_stream_has_are_refused(nodes: list[onnx.NodeProto], inputs: Any, reason: str) -> None:
    given = {"n0": np.array([0]), "n1": np.array([1]), "n2": np.array([2]), "flat": np.array([-1, 3])}
    used = {n: v for n, v in given.items() if any(n in k.input for k in nodes)}
    with pytest.raises(NotStreamable, match=reason) as caught:
        converting(model(nodes, inputs, ["y"], used))
    assert caught.value.node == "y" and caught.value.hint


def test_an_operator_without_a_rule_is_refused_by_name() -> None:
    proto = model([node("Det", "x", "y")], {"x": ["T", 2, 2]}, ["y"])
    with pytest.raises(NotStreamable, match="no streaming rule is known for operator Det"):
        converting(proto)


def test_what_only_has_its_shape_read_is_not_computed() -> None:
    nodes = [node("Softmax", "x", "soft"), node("Shape", "soft", "dims"), node("Gather", "dims n1", "c", axis=0),
             node("Cast", "c", "f", to=1), node("Mul", "x f", "y")]  # fmt: skip
    ctx = converting(model(nodes, {"x": [1, 2, "T"]}, ["y"], {"n1": np.array(1)}))
    assert "soft" not in ctx.ask.facts


def test_the_shortest_stream_meets_every_condition() -> None:
    conditions = [Condition("a", Length().then(1, -4, 2), at_least=1), Condition("b", Length(), at_least=3)]
    assert shortest_length(conditions, 1) == 6
    assert shortest_length(conditions, 4) == 8, "as long as streams are: so many at a time"
    assert shortest_length([], 1) == 1


def test_lengths_that_the_model_takes_become_conditions() -> None:
    proto = model([node("Reshape", "x to", "y")], {"x": [1, "T", 2]}, ["y"], {"to": np.array([1, -1, 6])})
    spec = convert(traced(proto), 3).spec
    assert [all(c.met(s) for c in spec.conditions) for s in (6, 7, 8, 9)] == [True, False, False, True]


def test_a_declared_bound_comes_last() -> None:
    spec = convert(traced(models.valid(), set={"T": "<=3000"}), 4).spec
    assert spec.conditions[-1].at_most == 3000 and spec.shortest == 5
