"""What a file says about itself: there and back, and files written before."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from pulsify.core.errors import InvalidModel
from pulsify.core.length import Length, Table
from pulsify.core.spec import PAST, Condition, Input, Output, Proof, Spec, State, Static, concrete

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)
TABLE = Table(3, 2, (0, 1, 1))


def a_spec() -> Spec:
    """Something in every field."""
    return Spec(
        pulse=8,
        granularity=4,
        time="T",
        batch="B",
        step=4,
        shortest=12,
        inputs=(Input("x", 2, Fraction(2), F32, ("B", 2, 16)),),
        statics=(Static("scale", np.dtype(np.float16), ("B", 3, 1)),),
        outputs=(
            Output("y", 2, Fraction(2, 3), 5, 4, F32, ("B", 3, 4), Length(table=TABLE).then(add=-1, floor=True), 0),
            Output("n", None, Fraction(0), 0, 0, np.dtype(np.int64), ("B",), Length().then(1, 1, 2)),
        ),
        states=(
            State("state", ("B", 2, 6), F32, "conv", zero=False, axis=2, frames=6, after="new_state"),
            State("keys", ("B", PAST, 4), F32, "attention", kind="cache", axis=1, after="new_keys"),
            State("position", ("B", 1), I32, "", kind="clock", after="new_position"),
        ),
        conditions=(
            Condition("reshape", Length(table=TABLE), at_least=3, multiple=4),
            Condition("table", Length(cap=90), at_most=512, equals=Length(short=(0, 1)), scaled=0.5),
        ),
        length="length",
        unknown_length=1 << 24,
        position="position",
        rebase=24,
        source="0123abcd",
        proof=Proof(300, 6, 1 << 22, (7, 300), ("mask: it never repeats",)),
        exact_up_to=4000,
    )


def test_properties_and_back_are_the_same_spec() -> None:
    spec = a_spec()
    assert Spec.from_properties(spec.to_properties()) == spec


def test_an_opening_there_and_back_is_the_same() -> None:
    spec = replace(a_spec(), opening=3)
    props = spec.to_properties()
    assert json.loads(props["pulsify.opening"]) == {"pulses": 3}
    assert Spec.from_properties(props) == spec
    assert "pulsify.opening" not in a_spec().to_properties()


def test_what_opens_a_stream_has_its_first_pulses_and_its_states() -> None:
    then = replace(a_spec(), opening=3)
    first = replace(a_spec(), pulse=24)
    assert first.opens(then)
    assert not replace(first, pulse=16).opens(then) and not replace(first, source="another").opens(then)
    assert not replace(first, states=then.states[:1]).opens(then) and not then.opens(then)
    assert not replace(first, length=None).opens(then)


def test_properties_are_text_under_one_prefix_and_other_keys_are_left_alone() -> None:
    props = a_spec().to_properties()
    assert all(k.startswith("pulsify.") and isinstance(v, str) for k, v in props.items())
    assert Spec.from_properties({**props, "author": "somebody", "pulsify.later": "[]"}) == a_spec()


def test_a_table_is_written_once() -> None:
    props = a_spec().to_properties()
    assert json.loads(props["pulsify.tables"]) == [[3, 2, [0, 1, 1]]]
    plain = replace(a_spec(), outputs=a_spec().outputs[1:], conditions=a_spec().conditions[1:])
    assert "pulsify.tables" not in plain.to_properties()
    assert Spec.from_properties(plain.to_properties()) == plain


def test_old_files_are_read_with_what_they_do_not_say() -> None:
    """No proof, no kinds of states, tables in place."""
    props = a_spec().to_properties()
    states = [{k: s[k] for k in ("name", "shape", "dtype", "node")} for s in json.loads(props["pulsify.states"])]
    outputs = json.loads(props["pulsify.outputs"])
    outputs[0]["length"]["table"] = TABLE.to_json()
    time = json.loads(props["pulsify.time"])
    del time["exact_up_to"]
    time["conditions"] = []
    old = {k: v for k, v in props.items() if k not in ("pulsify.proof", "pulsify.tables")}
    old |= {"pulsify.version": "1", "pulsify.states": json.dumps(states), "pulsify.outputs": json.dumps(outputs)}
    found = Spec.from_properties({**old, "pulsify.time": json.dumps(time)})
    assert found.outputs == a_spec().outputs
    assert [s.after for s in found.states] == ["new_state", "new_keys", "new_position"]
    assert found.exact_up_to is None
    assert not found.proof.complete, "nobody proved anything then"
    assert found.states[0].zero, "the safe guess"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("pulsify.version", "99", "reads formats 1, 2, 3, 4 and 5"),
        ("pulsify.pulse", "eight", "damaged"),
        ("pulsify.inputs", "[{}]", "damaged"),
        ("pulsify.outputs", "[", "damaged"),
        ("pulsify.tables", "[[3, 2, [0]]]", "damaged"),
        ("pulsify.tables", "[]", "damaged"),
        ("pulsify.time", "{}", "damaged"),
        ("pulsify.proof", "{}", "damaged"),
    ],
)
def test_damaged_properties_are_said_to_be(key: str, value: str, says: str) -> None:
    with pytest.raises(InvalidModel, match=says):
        Spec.from_properties({**a_spec().to_properties(), key: value})


def test_any_other_model_is_no_stream() -> None:
    with pytest.raises(InvalidModel, match="not a streaming model"):
        Spec.from_properties({"author": "somebody"})


def test_what_replaces_a_state_is_found_by_name() -> None:
    assert a_spec().after("keys") == "new_keys"
    assert a_spec().after("nothing") == a_spec().after(None) == ""


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        (Condition("n", Length()), range(9)),
        (Condition("n", Length(), at_least=3), range(3, 9)),
        (Condition("n", Length().then(add=1), multiple=3), (2, 5, 8)),
        (Condition("n", Length().then(add=-4), multiple=4), (4, 8)),
        (Condition("n", Length().then(2), at_most=6), range(4)),
        (Condition("n", Length().then(2), equals=Length().then(add=3)), (3,)),
        (Condition("n", Length(), equals=Length().then(divide=2), scaled=0.5), range(9)),
        (Condition("n", Length(), equals=Length().then(add=1), scaled=1.5), (2, 3)),
    ],
)
def test_a_condition_takes_just_the_lengths_it_says(condition: Condition, taken: range | tuple[int, ...]) -> None:
    assert [s for s in range(9) if condition.met(s)] == list(taken)


def test_a_scale_is_applied_as_the_runtime_counts() -> None:
    """In float32, 0.7 of 10 frames is 7; in doubles it would be as the nearest float32 has it, 6.9999998."""
    met = Condition("resize", Length(), equals=Length().then(7, 0, 10), scaled=0.7)
    exact = [s for s in range(1, 200) if int(np.float32(s) * np.float32(0.7)) == 7 * s // 10]
    assert [s for s in range(1, 200) if met.met(s)] == exact
    assert 10 in exact


def test_a_state_knows_what_it_costs_for_one_stream() -> None:
    buffer, keys, position = a_spec().states
    assert (buffer.nbytes, buffer.grows) == (2 * 6 * 4, False)
    assert (keys.nbytes, keys.grows) == (0, True), "it starts empty"
    assert position.nbytes == 4


def test_sizes_with_the_batch_filled_in() -> None:
    assert concrete(("B", 3, "4*B", PAST), 2) == (2, 3, 8, 0)
    assert concrete((), 2) == ()


def test_an_input_says_how_many_frames_a_pulse_has() -> None:
    assert a_spec().inputs[0].frames == 16


def test_a_proof_is_complete_until_something_is_sampled() -> None:
    assert Proof().complete and not Proof(sampled=("x: why",)).complete
