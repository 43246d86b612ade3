"""A model as each stage left it: time found, values traced, wires windowed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pulsify.core.errors import InvalidPulse
from pulsify.report.stages import open_batch, time_figures, trace_figures, window_figures
from tests.models import conditioned, look_ahead, model, strided, with_length
from tests.unit.graphs import parsed


def test_what_every_input_is_for() -> None:
    found = time_figures(open_batch(with_length("B")))
    assert found["symbol"] == "T" and found["batch"] == "B" and found["length_inputs"] == ["length"]
    assert found["streamed"] == [
        {"name": "x", "dtype": "float32", "shape": ["B", 2, "T"], "axis": 2, "frames_per_unit": 1}
    ]
    static = time_figures(open_batch(conditioned()))["static"]
    assert static == [{"name": "scale", "dtype": "float32", "shape": [1, 3, 1]}]


def test_values_are_data_or_known_with_their_sizes_at_every_length() -> None:
    proto = model(
        parsed("Shape x > d; Gather d two > t axis=0; Cast t > f to=1; Div x f > y"), {"x": ["B", 2, "T"]}, ["y"],
        {"two": np.array(2)},
    )  # fmt: skip
    found = json.loads(json.dumps(trace_figures(open_batch(proto))))
    rows = {r["output"]: r for r in found["values"]}
    assert (found["nodes"], found["data_nodes"], found["known_nodes"]) == (4, 1, 3)
    assert rows["t"]["values"] == found["lengths"] and not rows["t"]["data"]
    assert rows["y"]["data"] and rows["y"]["values"] is None and rows["y"]["batch_axes"] == [0]
    assert [d[2] for d in rows["y"]["dims"]] == found["lengths"]


def test_wires_have_windows_delays_and_what_is_kept_of_them() -> None:
    found = window_figures(open_batch(look_ahead()), 4)
    assert found["pulse"] == 4 and found["granularity"] == 1 and found["refusal"] is None
    wires = {w["wire"]: w for w in found["wires"]}
    assert wires["x"]["window"] == [0, 4] and wires["x"]["kept"] == 2 and wires["x"]["delay"] == 0
    assert wires["h"]["window"] == wires["r"]["window"] == [-1, 3] and wires["h"]["delay"] == 1
    assert wires["y"]["delay"] == 3 and wires["y"]["rate"] == "1"
    assert wires["h"]["changes"] and not wires["r"]["changes"], "element by element nothing moves"


def test_without_a_pulse_the_smallest_is_taken_and_one_that_does_not_fit_is_told() -> None:
    assert window_figures(open_batch(strided()), None)["pulse"] == 4
    with pytest.raises(InvalidPulse, match="try pulse=8"):
        window_figures(open_batch(strided()), 6)


def test_of_a_refused_model_the_wires_up_to_the_refusal_are_shown() -> None:
    proto = model(
        parsed("Relu x > r; ReduceMean r > m axes=[2]; Sub r m > y"), {"x": [1, 2, "T"]}, ["y"]
    )  # fmt: skip
    found = window_figures(open_batch(proto), 4)
    assert found["refusal"] is not None and found["refusal"].op == "Sub"
    assert [w["wire"] for w in found["wires"]] == ["x", "r", "m"]
