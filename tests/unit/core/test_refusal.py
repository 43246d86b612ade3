"""Refusals carry a kind and remedies; their text is made of these."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import pulsify
from pulsify.core.refusal import KEEP_PAST, SAMPLED, Kind, Remedy, as_remedies, declare, fix_batch
from tests.models import model, weights
from tests.unit.graphs import parsed


def test_remedies_are_text_or_options() -> None:
    several = as_remedies(("cut at a fixed place", "", declare("s27", "8*n"), SAMPLED))
    assert several == (
        Remedy("cut at a fixed place"),
        Remedy('declare the lengths you use: set={"s27": "8*n"}', {"set": {"s27": "8*n"}}),
        SAMPLED,
    )
    assert as_remedies("one") == (Remedy("one"),) and as_remedies(KEEP_PAST) == (KEEP_PAST,) and as_remedies("") == ()


def test_a_batch_of_fixed_size_is_not_fixed_by_an_option() -> None:
    assert fix_batch("streams").options == {"set": {"streams": 1}}
    assert not fix_batch(None).options and "export" in fix_batch(None).text


def test_the_text_of_a_refusal_is_made_of_its_remedies() -> None:
    error = pulsify.NotStreamable("why", node="n", op="Slice", hint=("this", declare("T", "<=9")), kind=Kind.LENGTH)
    assert str(error) == 'Slice node \'n\': why\n  hint: this; or declare the lengths you use: set={"T": "<=9"}'
    again = pickle.loads(pickle.dumps(error))
    assert (again.kind, again.remedies, again.node, str(again)) == (error.kind, error.remedies, "n", str(error))


CONSTANTS = {
    "last": np.array([-1]), "far": np.array([-(1 << 31)]), "back": np.array([-1]), "axis": np.array([2]),
    "zero": np.array([0]), "one": np.array([1]), "place": np.array(2),
}  # fmt: skip


KINDS = {
    Kind.BACKWARDS: "Slice x last far axis back > y",
    Kind.WHOLE_STREAM: "ReduceMean x > m axes=[2] keepdims=1; Sub x m > y",
    Kind.DATA: "ReduceMax x > m keepdims=0; Cast m > n to=7; Reshape n one > k; Slice x zero k axis > y",
    Kind.LENGTH: "Shape x > s; Gather s place > n; Cast n > f to=1; Div x f > y",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_says_what_stands_in_the_way(kind: Kind) -> None:
    used = {word for word in KINDS[kind].split() if word in CONSTANTS}
    made = model(parsed(KINDS[kind]), {"x": [1, 4, "frames"]}, ["y"], {name: CONSTANTS[name] for name in used})
    with pytest.raises(pulsify.NotStreamable) as refused:
        pulsify.stream(made, pulse=4)
    assert refused.value.kind is kind, refused.value
    assert refused.value.remedies and refused.value.reason


def test_a_remedy_names_the_symbols_of_the_model_and_works() -> None:
    """SAME padding with a stride pads the start by an amount that follows from the length."""
    nodes = parsed("Conv x w > y auto_pad='SAME_UPPER' strides=[2]")
    batch = model(nodes, {"x": [1, 4, "frames"]}, ["y"], {"w": weights(4, 4, 3)})
    with pytest.raises(pulsify.NotStreamable) as refused:
        pulsify.stream(batch, pulse=4)
    assert refused.value.kind is Kind.LENGTH
    (options,) = (r.options for r in refused.value.remedies if r.options)
    assert options == {"set": {"frames": "2*n"}}
    assert pulsify.stream(batch, pulse=4, **options).verification.ok
