"""Which forms a session runs: general and steady, with rings, for one stream, and where their ports live."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pulsify.backends.ort import forms as module
from pulsify.backends.ort.forms import Forms, forms, single, without_rings
from pulsify.backends.seam import Place, Tail
from tests.unit.backends.ort.test_ring import attention
from tests.unit.backends.ort.test_ring import spec as attending
from tests.unit.graphs import graph, made_up, ops, run
from tests.unit.optimize.test_steady import both_ends
from tests.unit.optimize.test_steady import spec as clocked
from tests.unit.specs import a_state, a_stream, remembers


def test_a_model_without_a_clock_has_one_form_and_with_one_two() -> None:
    model, spec = remembers("B")
    assert forms(model, spec) == Forms(model)
    made = forms(both_ends(), clocked())
    assert made.steady is not None and made.since == 3 and not made.counts


def test_large_models_keep_to_the_general_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TWICE", 0)
    assert forms(both_ends(), clocked()).steady is None
    assert without_rings(both_ends(), clocked()).steady is None


def test_streams_at_their_own_pace_have_no_rings() -> None:
    model = attention()
    assert forms(model, attending()).rings
    assert without_rings(model, attending()) == Forms(model)


def test_one_stream_has_fewer_nodes_and_its_state_is_the_end_of_what_was_joined() -> None:
    """Joined along time with nothing in front of it, a state is read where it lies."""
    bounds = {"i": np.array([4]), "j": np.array([6]), "a": np.array([1])}
    text = "Concat s x > full axis=1; Mul full one > f; Relu f > r; ReduceMax r > m; Identity m > y; "
    text += "Slice full i j a > cut; Identity cut > new_s"
    model = graph(text, {"x": ["B", 4], "s": ["B", 2]}, "y new_s", {**bounds, "one": np.ones(1, np.float32)})
    spec = a_stream(batch="B", states=(a_state(shape=("B", 2)),))
    made = single(Forms(model), spec)
    assert made.tails == {"s": Tail("full_new_s", (1, 6), 1)}
    assert ops(made.general) == ["Concat", "Relu", "ReduceMax", "Identity"]
    assert [v.name for v in made.general.graph.outputs] == ["y", "full_new_s"]
    feeds = made_up(made.general)
    got = run(made.general, feeds)
    np.testing.assert_array_equal(got["full_new_s"], np.concatenate([feeds["s"], feeds["x"]], 1))


def test_places_say_where_every_port_lives() -> None:
    model, spec = remembers()
    tail = Tail("full_new_s", (6, 2), 0)
    program = Forms(model, rows=frozenset({"x", "s"}), tails={"s": tail}).program(spec)
    assert program.place("x") == Place(rows=True) and program.place("s") == Place(rows=True, tail=tail)
    assert program.place("y") == Place() and program.rings == ()
    growing = replace(spec, states=(a_state(shape=(1, 2, "past")),))
    assert Forms(model).program(growing).place("s") == Place(grows=True)


def test_rings_are_listed_once_whoever_lives_in_them() -> None:
    made = forms(attention(), attending())
    program = made.program(attending())
    assert program.rings == made.rings and len(made.rings) == 1
    assert program.place("keys").ring is program.place("values").ring is made.rings[0]
