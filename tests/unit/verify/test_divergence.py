"""The first wire that departs, in the model's own order."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.analysis.facts import Window
from pulsify.api import Stream
from pulsify.verify.divergence import first_departure
from tests.models import model, node, weights
from tests.unit.graphs import graph
from tests.unit.specs import a_stream

BATCH = model(
    [node("Mul", "x g", "a"), node("Relu", "a", "b"), node("Mul", "b h", "y")],
    {"x": [1, 2, "T"]}, ["y"], {"g": weights(2, 1), "h": weights(2, 1, seed=2)},
)  # fmt: skip


def stream(wrong: str = "", tapped: bool = True, pulse: int = 4, opening: Stream | None = None) -> Stream:
    """Frame by frame the same model; one of its factors may be another."""
    constants = {"g": weights(2, 1), "h": weights(2, 1, seed=2)}
    constants = {n: -c if n == wrong else c for n, c in constants.items()}
    step = graph("Mul x g > sa; Relu sa > sb; Mul sb h > sy; Identity sy > y", {"x": [1, 2, pulse]}, "y", constants)
    made = {str(v.name): v for n in step.graph for v in n.outputs}
    probes = {name: (made[f"s{name}"], Window(pulse, 0, pulse), 2) for name in ("a", "b", "y")}
    spec = a_stream(pulse, opening=0 if opening is None else opening.pulse // pulse)
    return Stream(step, spec, probes=probes if tapped else None, opening=opening)


@pytest.mark.parametrize(("wrong", "wire"), [("g", "a"), ("h", "y"), ("", None)])
@pytest.mark.parametrize("length", [1, 4, 11])
def test_the_first_wire_that_departs_is_named(wrong: str, wire: str | None, length: int) -> None:
    source = ir.from_proto(BATCH)
    assert first_departure(source, stream(wrong), length, np.random.default_rng(0)) == wire
    assert first_departure(BATCH.SerializeToString(), stream(wrong), length, np.random.default_rng(0)) == wire


@pytest.mark.parametrize(("first", "then", "length", "wire"), [
    ("h", "", 3, "y"), ("h", "g", 9, "a"), ("", "g", 9, "a"), ("", "g", 8, None), ("", "", 11, None),
])  # fmt: skip
def test_an_opening_is_looked_at_too(first: str, then: str, length: int, wire: str | None) -> None:
    looked_at = stream(then, opening=stream(first, pulse=8))
    assert first_departure(ir.from_proto(BATCH), looked_at, length, np.random.default_rng(0)) == wire


def test_a_stream_that_was_loaded_does_not_know_its_wires() -> None:
    assert first_departure(ir.from_proto(BATCH), stream("g", tapped=False), 4, np.random.default_rng(0)) is None
