"""A step without boundaries: what follows from the clock is worked out once, and the clock goes if nobody asks it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import InvariantError, PreconditionError

from pulsify.core.spec import Output, Spec, State
from pulsify.optimize.steady import DropClock, FoldSettled, steady_form
from tests.models import Array
from tests.unit.graphs import graph, ops, run
from tests.unit.specs import FAR, a_stream

PULSE = 4
CLOCK = "Add position four > next; Identity next > new_position; "
CONSTANTS: dict[str, Array] = {
    "four": np.array(PULSE, np.int32), "places": np.arange(PULSE, dtype=np.int32)[None], "nine": np.array(9, np.int32),
    "zero": np.zeros(1, np.float32), "axis": np.array([1]),
}  # fmt: skip
INT = {"position": np.int32, "new_position": np.int32, "length": np.int32, "passed": np.int32}


def step(text: str, outputs: str = "y new_position", batch: int | str = "B") -> ir.Model:
    """x [B, 2, 4], position and length [B, 1]."""
    inputs = {"x": [batch, 2, PULSE], "position": [batch, 1], "length": [batch, 1]}
    return graph(CLOCK + text, inputs, outputs, used(text), dtypes=INT)


def used(text: str) -> dict[str, Array]:
    return {n: c for n, c in CONSTANTS.items() if f" {n} " in f" {CLOCK}{text} ".replace(";", " ")}


def spec(**fields: object) -> Spec:
    """Its frames, its position and its length."""
    made = a_stream(PULSE, dims=("B", 2, PULSE), batch="B")
    position = State("position", ("B", 1), np.dtype(np.int32), "", kind="clock", after="new_position")
    return replace(made, states=(position,), position="position", length="length", **fields)  # type: ignore[arg-type]


# frames before 0 (with a delay of 9) and past the end are hidden
BOTH_ENDS = (
    "Add position places > at; Sub at nine > late; Less late length > before; GreaterOrEqual late nought > after; "
    "And before after > inside; Unsqueeze inside axis > wide; Where wide x zero > h; Identity h > y"
)
NOUGHT = {"nought": np.array(0, np.int32)}


def both_ends(batch: int | str = "B") -> ir.Model:
    inputs = {"x": [batch, 2, PULSE], "position": [batch, 1], "length": [batch, 1]}
    return graph(CLOCK + BOTH_ENDS, inputs, "y new_position", {**used(BOTH_ENDS), **NOUGHT}, dtypes=INT)


def feeds(position: int, batch: int = 1, length: int = FAR) -> dict[str, Array]:
    x = np.random.default_rng(0).standard_normal((batch, 2, PULSE)).astype(np.float32)
    counters = {"position": position, "length": length}
    return {"x": x, **{n: np.full((batch, 1), v, np.int32) for n, v in counters.items()}}


def taken(model: ir.Model, given: dict[str, Array]) -> dict[str, Array]:
    names = {v.name for v in model.graph.inputs}
    return run(model, {n: a for n, a in given.items() if n in names})


def test_a_step_without_boundaries_starts_at_the_first_pulse_they_leave_alone() -> None:
    model = both_ends()
    found = steady_form(model, spec())
    assert found is not None
    assert found.since == 3, "frame 9 comes at position 9, the first whole pulse behind it is the third"
    assert not found.counts and ops(found.model) == ["Identity"]
    assert [v.name for v in found.model.graph.inputs] == ["x"]
    assert [v.name for v in found.model.graph.outputs] == ["y"]
    assert len(ops(model)) > 5, "the model itself is left as it was"
    for pulse, same in ((2, False), (3, True), (4, True), (1000, True)):
        given = feeds(pulse * PULSE, batch=3)
        want, got = taken(model, given)["y"], taken(found.model, given)["y"]
        assert np.array_equal(want, got) == same


def test_a_step_that_needs_its_position_goes_on_counting() -> None:
    text = BOTH_ENDS.replace("Identity h > y", "Cast at > f to=1; Unsqueeze f axis > g; Add h g > k; Identity k > y")
    inputs = {"x": ["B", 2, PULSE], "position": ["B", 1], "length": ["B", 1]}
    model = graph(CLOCK + text, inputs, "y new_position", {**used(text), **NOUGHT}, dtypes=INT)
    found = steady_form(model, spec())
    assert found is not None and found.counts
    assert [v.name for v in found.model.graph.inputs] == ["x", "position"]
    given = feeds(40)
    assert taken(found.model, given)["new_position"] == 44
    np.testing.assert_array_equal(taken(found.model, given)["y"], taken(model, given)["y"])


def test_a_step_without_a_clock_or_without_comparisons_has_no_other_form() -> None:
    none = replace(spec(), position=None, length=None, states=())
    assert steady_form(both_ends(), none) is None
    only_counts = step("Cast position > f to=1; Unsqueeze f axis > g; Add x g > h; Identity h > y")
    assert steady_form(only_counts, spec()) is None


def test_what_never_settles_stays() -> None:
    """Every other pulse is hidden: a comparison of a remainder, which does not only rise."""
    text = "Mod position eight > m; Less m four > even; Unsqueeze even axis > e; Where e x zero > h; Identity h > y"
    inputs = {"x": ["B", 2, PULSE], "position": ["B", 1], "length": ["B", 1]}
    constants = {**used(text), "eight": np.array(8, np.int32)}
    model = graph(CLOCK + text, inputs, "y new_position", constants, dtypes=INT)
    assert steady_form(model, spec()) is None


# ---- comparisons as constants

WHERE = "Less position nine > c; Unsqueeze c axis > w; Where w x zero > h; Relu h > r; Identity r > y"


def settled(*values: bool) -> dict[str, tuple[Array, ...]]:
    """For one stream and for three."""
    return {"c": tuple(np.full((n, 1), v) for n, v in zip((1, 3), values, strict=True))}


def test_a_choice_with_a_settled_condition_falls_away_if_its_branch_has_the_shape() -> None:
    kept = FoldSettled(settled(True, True))(step(WHERE))
    assert kept.modified
    relu = next(n for n in kept.model.graph if n.op_type == "Relu")
    assert relu.inputs[0] is kept.model.graph.inputs[0]
    spread = FoldSettled(settled(False, False))(step(WHERE)).model  # the other branch is one number
    relu = next(n for n in spread.graph if n.op_type == "Relu")
    assert relu.inputs[0] is not None and relu.inputs[0].producer().op_type == "Where"  # type: ignore[union-attr]
    given = feeds(0, batch=3)
    np.testing.assert_array_equal(taken(spread, given)["y"], np.zeros((3, 2, PULSE)))


def test_a_choice_that_is_given_out_as_it_is_keeps_its_name() -> None:
    text = WHERE.replace("Where w x zero > h; Relu h > r; Identity r > y", "Where w x zero > y")
    made = FoldSettled(settled(True, True))(step(text)).model
    assert [v.name for v in made.graph.outputs] == ["y", "new_position"]
    given = feeds(0)
    np.testing.assert_array_equal(taken(made, given)["y"], given["x"])


def test_what_is_made_of_settled_values_is_a_constant_for_who_reads_it() -> None:
    text = "Less position nine > c; Not c > d; Cast d > f to=1; Unsqueeze f axis > w; Mul x w > h; Identity h > y"
    model = FoldSettled(settled(False, False))(step(text)).model
    product = next(n for n in model.graph if n.op_type == "Mul")
    assert product.inputs[1] is not None and product.inputs[1].const_value is not None
    given = feeds(0, batch=3)  # as if the stream were warm
    np.testing.assert_array_equal(taken(model, given)["y"], given["x"])


def test_a_value_of_as_many_rows_as_there_are_streams_is_not_joined_as_if_it_were_one() -> None:
    text = "Less position nine > c; Cast c > f to=1; Concat f f > g axis=0; Identity g > y"
    model = step(text)
    result = FoldSettled(settled(True, True))(model)
    given = feeds(0, batch=3)
    assert taken(result.model, given)["y"].shape == (6, 1)


def test_a_size_that_counts_the_streams_stays() -> None:
    text = "Less position nine > c; Shape c > s; ReduceMax x > m keepdims=0; Expand m s > e; Identity e > y"
    result = FoldSettled(settled(True, True))(step(text))
    assert taken(result.model, feeds(0, batch=3))["y"].shape == (3, 1)


def test_settled_values_that_nobody_makes_are_turned_down() -> None:
    with pytest.raises(PreconditionError) as refused:
        FoldSettled({"nothing": (np.ones(1),)})(step(WHERE))
    assert "no node makes nothing" in str(refused.value.__cause__)


# ---- the clock


def test_a_clock_that_only_counts_is_dropped_with_the_length() -> None:
    made = DropClock(spec())(step("Relu x > h; Identity h > y"))
    assert made.modified and not made.counts
    assert ops(made.model) == ["Relu", "Identity"]
    assert [v.name for v in made.model.graph.inputs] == ["x"]


def test_a_clock_that_is_read_stays_and_an_unread_length_goes() -> None:
    made = DropClock(spec())(step("Cast position > f to=1; Unsqueeze f axis > g; Add x g > h; Identity h > y"))
    assert made.counts
    assert [v.name for v in made.model.graph.inputs] == ["x", "position"]
    assert [v.name for v in made.model.graph.outputs] == ["y", "new_position"]


def test_a_length_that_is_read_stays() -> None:
    made = DropClock(spec())(step("Cast length > f to=1; Unsqueeze f axis > g; Add x g > h; Identity h > y"))
    assert [v.name for v in made.model.graph.inputs] == ["x", "length"] and not made.counts


def test_what_comes_out_of_flush_alone_is_no_output_of_a_step() -> None:
    last = Output("passed", None, spec().outputs[0].rate, 0, 0, np.dtype(np.int32), ("B", 1), spec().outputs[0].length)
    with_last = replace(spec(), outputs=(*spec().outputs, last))
    model = step("Relu x > h; Identity h > y; Sub length position > d; Identity d > passed", "y passed new_position")
    made = DropClock(with_last)(model)
    assert [v.name for v in made.model.graph.outputs] == ["y"] and ops(made.model) == ["Relu", "Identity"]


def test_a_clock_that_is_no_port_is_turned_down() -> None:
    model = step("Relu x > h; Identity h > y", outputs="y")
    with pytest.raises(PreconditionError) as refused:
        DropClock(spec())(model)
    assert "no port new_position" in str(refused.value.__cause__)


def test_an_output_of_flush_that_is_left_is_a_fault() -> None:
    change = DropClock(replace(spec(), outputs=(replace(spec().outputs[0], axis=None),)))
    with pytest.raises(InvariantError, match="y is no output of a step"):
        change.ensures(step("Relu x > h; Identity h > y"))
