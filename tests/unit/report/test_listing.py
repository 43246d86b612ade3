"""A graph as text: a line a node, small constants in place."""

from __future__ import annotations

import numpy as np

from pulsify.report.listing import INLINE, listing
from tests.models import weights
from tests.unit.graphs import graph


def test_every_port_and_node_is_a_line() -> None:
    constants = {"w": weights(3, 2, 3), "half": np.array(0.5, np.float32)}
    model = graph("Conv x w _ > c strides=[2]; Mul c half > y", {"x": ["B", 2, 9]}, "y", constants)
    assert listing(model).splitlines() == [
        "in   x: float32[B, 2, 9]",
        "",
        "     c = Conv(x, w: float32[3, 2, 3], _) strides=[2]",
        "     y = Mul(c, 0.5)",
        "",
        "out  y: float32[B, 3, 4]",
    ]


def test_constants_are_written_out_up_to_a_size() -> None:
    for count in (INLINE, INLINE + 1):
        shown = listing(graph("Add x c > y", {"x": [1]}, "y", {"c": np.ones(count, np.float32)}))
        assert (f"c: float32[{count}]" in shown) == (count > INLINE)


def test_an_input_with_a_default_is_optional_and_named() -> None:
    shown = listing(graph("Add x c > y", {"x": [1], "c": [1]}, "y", {"c": np.ones(1, np.float32)}))
    assert "in   c: float32[1]  (optional)" in shown and "Add(x, c)" in shown


def test_other_domains_and_unknown_shapes_are_shown() -> None:
    model = graph("Relu x > y", {"x": [1]}, "y", {})
    model.graph[0].domain = "acme"
    model.graph.outputs[0].shape = None
    shown = listing(model)
    assert "y = acme.Relu(x)" in shown and "out  y: float32[?]" in shown
