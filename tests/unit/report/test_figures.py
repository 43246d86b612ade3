"""What there is to say about a stream, as plain data."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pulsify.api import Stream
from pulsify.core.length import Length
from pulsify.core.report import Deviation, Report
from pulsify.core.spec import Condition, Proof
from pulsify.report.figures import (
    finite,
    length_figures,
    milliseconds,
    output_figures,
    plain,
    proof_figures,
    shape_text,
    stream_figures,
    verified_figures,
)
from tests.unit.specs import a_stream, an_input, an_output, remembers


def stream(**fields: Any) -> Stream:
    return Stream(remembers()[0], a_stream(**fields))


def test_figures_are_json_and_say_what_the_spec_says() -> None:
    model, spec = remembers("B")
    facts = json.loads(json.dumps(stream_figures(Stream(model, spec), 1000.0), allow_nan=False))
    assert facts["pulse"] == 4 and facts["pulse_ms"] == 4.0 and facts["batch"] == "B"
    assert facts["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": ["B", 2, 4], "axis": 2, "rate": "1", "frames": 4}
    ]
    assert facts["states"][0]["bytes"] == facts["state_bytes"] == 16
    assert facts["nodes"] == 5 and facts["takes_length"] is None
    assert facts["constant_bytes"] == sum(v.const_value.nbytes for v in model.graph.initializers.values())  # type: ignore[union-attr]


def test_a_delay_is_given_in_frames_of_the_output_of_the_first_input_and_in_time() -> None:
    spec = a_stream(inputs=(an_input(rate=160),))
    late = output_figures(spec, an_output(rate=Fraction(1, 4), delay=3), 16000)
    assert late["delay"] == 3 and late["delay_input_frames"] == 3 * 4 * 160 and late["delay_ms"] == 120.0
    uneven = output_figures(a_stream(), an_output(rate=3, delay=1), None)
    assert uneven["delay_input_frames"] == pytest.approx(1 / 3) and uneven["delay_ms"] is None
    last = output_figures(spec, replace(an_output(), axis=None), 16000)
    assert last["delay_input_frames"] is None and last["delay_ms"] is None


def test_time_needs_a_sample_rate_which_counts_frames_of_the_first_input() -> None:
    spec = a_stream(inputs=(an_input(rate=2),))
    assert milliseconds(spec, Fraction(5), None) is None
    assert milliseconds(spec, Fraction(5), 100) == 100.0


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({}, {"shortest": 1, "every": 1, "first": [1, 2, 3, 4], "longest": None}),
        ({"step": 4}, {"shortest": 4, "every": 4, "first": [4, 8, 12, 16], "longest": None}),
        (
            {"conditions": (Condition("t", Length().then(1, 0, 2), at_most=3),)},
            {"shortest": 1, "every": 1, "first": [1, 2, 3, 4], "longest": 7},
        ),
        (
            {"conditions": (Condition("t", Length(), at_most=2),)},
            {"shortest": 1, "every": 1, "first": [1, 2], "longest": 2},
        ),
        (
            {"conditions": (Condition("c", Length(cap=9), at_most=9),)},  # never more than the table has
            {"shortest": 1, "every": 1, "first": [1, 2, 3, 4], "longest": None},
        ),
        (
            {"conditions": (Condition("o", Length(), outside=(2, 4)),)},
            {"shortest": 1, "every": None, "first": [1, 5, 6, 7], "longest": None},
        ),
    ],
)
def test_lengths_the_model_takes(fields: dict[str, Any], want: dict[str, Any]) -> None:
    assert length_figures(stream(**fields)) == want


def test_what_is_only_sampled_is_listed() -> None:
    assert proof_figures(a_stream())["proven"]
    facts = proof_figures(a_stream(proof=Proof(30, 4, 99, (), ("mask",))))
    assert facts == {"proven": False, "horizon": 30, "period": 4, "limit": 99, "sampled": ["mask"], "assumed": []}


def test_a_report_without_end_is_json_too() -> None:
    report = Report((3, 9), 6, {"y": Deviation(float("inf"), 1e-4, None, 9, "shape (1,) for (2,)"), "z": Deviation()})
    facts = json.loads(json.dumps(verified_figures(report), allow_nan=False))
    assert facts["error"] == "inf" and not facts["ok"] and [o["ok"] for o in facts["outputs"]] == [False, True]


def test_small_words() -> None:
    assert finite(1.5) == 1.5 and finite(float("nan")) == "nan" and finite(-np.inf) == "-inf"
    assert plain(Fraction(4, 2)) == 2 and plain(Fraction(1, 2)) == 0.5
    assert shape_text(["B", 2, "4*B"]) == "[B, 2, 4*B]" and shape_text([]) == "[]"
