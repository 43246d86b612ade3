"""Loops that turn as often at every length, written out turn by turn."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pulsify.core.errors import NotStreamable
from pulsify.frontend import unroll
from pulsify.frontend.load import load
from pulsify.frontend.model import Model
from pulsify.frontend.unroll import unrolled
from tests.models import close, frames, model, run_batch
from tests.unit.build import written
from tests.unit.graphs import parsed

FLOAT = TensorProto.FLOAT


def scan(text: str = "Mul s half > m; Add m f > s2; Exp s2 > o", **directions: Any) -> onnx.ModelProto:
    """Over the channels of x [1, 3, T]: s goes on, o is collected."""
    body = helper.make_graph(
        parsed(text),
        "body",
        [helper.make_tensor_value_info(n, FLOAT, None) for n in ("s", "f")],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in ("s2", "o")],
    )
    axes = {"scan_input_axes": [1], "scan_output_axes": [2], **directions}
    made = helper.make_node("Scan", ["begin", "x"], ["end", "y"], name="scan", body=body, num_scan_inputs=1, **axes)
    begin = parsed("Shape x > d; Slice d two three > t; Concat one t > wide axis=0; Expand start wide > begin")
    bounds = {"two": np.array([2]), "three": np.array([3]), "one": np.array([1])}
    constants = {"start": np.ones((1, 1), np.float32), "half": np.array(0.5, np.float32), **bounds}
    return model([*begin, made], {"x": [1, 3, "T"]}, ["end", "y"], constants)


def flat(settled: Model, count: int) -> Model:
    """The model with its one loop written out."""
    node = next(n for n in settled.nodes if n.body is not None)
    nodes, constants = unrolled(node, count)
    at = settled.nodes.index(node)
    return dataclasses.replace(
        settled,
        nodes=(*settled.nodes[:at], *nodes, *settled.nodes[at + 1 :]),
        constants={**settled.constants, **constants},
        producers={},
    )


@pytest.mark.parametrize(
    "directions",
    [{}, {"scan_input_directions": [1]}, {"scan_output_directions": [1]}, {"scan_output_axes": [0]}],
)
def test_a_scan_written_out_gives_the_same(directions: dict[str, Any]) -> None:
    proto = scan(**directions)
    made = flat(load(proto), 3)
    assert all(n.body is None for n in made.nodes)
    x = frames(1, 3, 5)
    want, got = run_batch(proto, x), run_batch(written(made), x)
    for name in want:
        close(got[name], want[name])


def test_names_of_all_turns_differ() -> None:
    nodes = flat(load(scan()), 3).nodes
    made = [o for n in nodes for o in n.outputs]
    assert len(set(made)) == len(made) and len({n.name for n in nodes}) == len(nodes)


def test_a_final_value_that_is_handed_on_untouched_is_where_it_started() -> None:
    proto = scan("Identity s > s2; Exp f > o")
    x = frames(1, 3, 5)
    close(run_batch(written(flat(load(proto), 3)), x)["end"], run_batch(proto, x)["end"])


@pytest.mark.parametrize("count", [0, -1])
def test_a_loop_that_never_turns_is_refused(count: int) -> None:
    with pytest.raises(NotStreamable, match="it turns 0 times") as refused:
        flat(load(scan()), count)
    assert refused.value.node == "scan" and refused.value.op == "Scan"


def test_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroll, "MOST_NODES", 8)
    with pytest.raises(NotStreamable, match="8 nodes are the most that is written out"):
        flat(load(scan()), 3)
    monkeypatch.setattr(unroll, "MOST_NODES", 9)
    assert flat(load(scan()), 3).nodes
