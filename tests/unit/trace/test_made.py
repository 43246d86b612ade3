"""What nodes made of known values: once, however often it is asked for, and never what was made of others."""

from __future__ import annotations

import numpy as np

from pulsify.trace import made as under_test
from pulsify.trace.made import Made
from pulsify.trace.traced import Traced, known
from tests.models import model, node
from tests.unit.build import traced


def test_equal_values_are_one_object_and_made_once(monkeypatch) -> None:
    made, steps = _made(monkeypatch)
    first = made.of(made.evaluator.model.nodes[0], _taken(3))
    again = made.of(made.evaluator.model.nodes[0], _taken(3))
    assert first["s"] is again["s"]  # shapes by their sizes
    twice = [made.of(made.evaluator.model.nodes[1], {"s": v["s"], "one": ONE})["y"] for v in (first, again)]
    assert twice[0] is twice[1] and steps == ["Shape", "Add"]


def test_other_values_are_made_anew(monkeypatch) -> None:
    made, steps = _made(monkeypatch)
    shapes = [made.of(made.evaluator.model.nodes[0], _taken(n))["s"] for n in (3, 4)]
    sums = [made.of(made.evaluator.model.nodes[1], {"s": s, "one": ONE})["y"].array for s in shapes]
    assert [s.tolist() for s in sums] == [[2, 3, 4], [2, 3, 5]] and len(steps) == 4


def test_what_is_large_is_kept_while_there_is_room(monkeypatch) -> None:
    made, _ = _made(monkeypatch)
    monkeypatch.setattr(under_test, "ROOM", 3 * under_test.SMALL)
    large = [known(np.zeros(under_test.SMALL // 4, np.int64)) for _ in range(2)]
    assert [made.keeps(v) for v in (*large, large[0])] == [True, False, True]
    made.clear()
    assert made.keeps(large[1])


ONE = known(np.ones(1, np.int64))


def _taken(frames: int) -> dict[str, Traced]:
    return {"x": Traced(known(np.zeros(1, np.float32)).dtype, (1, 2, frames), False)}


def _made(monkeypatch) -> tuple[Made, list[str]]:
    nodes = [node("Shape", "x", "s"), node("Add", "s one", "y")]
    proto = model(nodes, {"x": [1, 2, "T"]}, ["y"], {"one": np.ones(1, np.int64)})
    evaluator, steps = traced(proto, time="T").evaluator, list[str]()
    step = evaluator.step
    monkeypatch.setattr(evaluator, "step", lambda n, values: (steps.append(n.op), step(n, values)))
    return Made(evaluator), steps
