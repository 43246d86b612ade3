"""Caches as rings: the same attention whatever slot the frames stand in, and what keeps its order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import PreconditionError

from pulsify.backends.ort import ring
from pulsify.backends.ort.ring import KeepInRings, ring_form
from pulsify.backends.ort.rings import RingStore
from pulsify.backends.seam import Cache, Ring
from pulsify.core.spec import Spec
from tests.models import Array, weights
from tests.unit.graphs import graph, ops, run, stays
from tests.unit.specs import a_state, a_stream

PULSE, PAST, HEADS, WIDTH = 2, 5, 2, 3
SIZE = PAST + PULSE
BOUNDS = {"i": np.array([PULSE]), "j": np.array([SIZE]), "two": np.array([2]), "three": np.array([3])}
NEW = [1, HEADS, PULSE, WIDTH]
# keys lie channel by channel, values frame by frame
JOIN = (
    "Concat keys k > ks axis=3; Slice ks i j three > ks1; Identity ks1 > new_keys; "
    "Concat values v > vs axis=2; Slice vs i j two > vs1; Identity vs1 > new_values; "
)
ATTEND = "MatMul q ks > s; Add s mask > m; Softmax m > p axis=-1; MatMul p vs > o; Identity o > y"


def attention(text: str = JOIN + ATTEND, outputs: str = "y new_keys new_values") -> ir.Model:
    inputs = {
        "q": NEW, "k": [1, HEADS, WIDTH, PULSE], "v": NEW,
        "keys": [1, HEADS, WIDTH, PAST], "values": [1, HEADS, PAST, WIDTH],
    }  # fmt: skip
    constants: dict[str, Array] = {**BOUNDS, "mask": weights(1, 1, PULSE, SIZE), "behind": np.array([0] * 7 + [PULSE])}
    read = set(text.replace(";", " ").split())
    return graph(text, inputs, outputs, {n: c for n, c in constants.items() if n in read})


def spec() -> Spec:
    keys = a_state("keys", (1, HEADS, WIDTH, PAST))
    return a_stream(PULSE, states=(keys, a_state("values", (1, HEADS, PAST, WIDTH), axis=2)))


def given(n: int) -> dict[str, Array]:
    rng = np.random.default_rng(n)
    shapes = {"q": NEW, "k": [1, HEADS, WIDTH, PULSE], "v": NEW}
    return {name: rng.standard_normal(dims).astype(np.float32) for name, dims in shapes.items()}


class Plain:
    """Joined and cut."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.states = {s.name: np.zeros(s.shape, s.dtype) for s in spec().states}

    def pulse(self, feeds: dict[str, Array]) -> Array:
        out = run(self.model, {**feeds, **self.states})
        self.states = {name: out[f"new_{name}"] for name in self.states}
        return out["y"]


class Ringed(Plain):
    """Written in place, as far as they are rings."""

    def __init__(self, model: ir.Model, rings: tuple[Ring, ...]) -> None:
        super().__init__(model)
        self.stores = [RingStore(r, {s.name: s.dtype for s in spec().states}, 1) for r in rings]

    def pulse(self, feeds: dict[str, Array]) -> Array:
        names = {v.name for v in self.model.graph.inputs}
        for store in self.stores:
            store.aim()
        known = {n: a for s in self.stores for n, a in (*s.inputs.items(), *s.arrays.items())}
        out = run(self.model, {n: a for n, a in {**feeds, **self.states, **known}.items() if n in names})
        self.states = {name: out[f"new_{name}"] for name in self.states}
        for store in self.stores:
            for name, array in store.arrays.items():
                array[...] = out[f"new_{name}"]
            store.advance()
            self.states |= store.states()
        return out["y"]


def test_attention_over_rings_is_attention_over_what_was_joined() -> None:
    made = KeepInRings(spec())(attention())
    assert [c.state for c in made.rings[0].caches] == ["keys", "values"] and made.modified
    assert (made.rings[0].size, made.rings[0].pulse) == (SIZE, PULSE)
    plain, ringed = Plain(attention()), Ringed(made.model, made.rings)
    for n in range(2 * SIZE):
        np.testing.assert_allclose(ringed.pulse(given(n)), plain.pulse(given(n)), atol=1e-6)
        for name, array in plain.states.items():
            np.testing.assert_array_equal(ringed.states[name], array)


def test_states_move_between_rings_and_what_is_joined() -> None:
    made = KeepInRings(spec())(attention())
    plain, ringed = Plain(attention()), Ringed(made.model, made.rings)
    for n in range(4):
        plain.pulse(given(n))
    ringed.stores[0].restore(plain.states)
    for n in range(4, 4 + SIZE):
        np.testing.assert_allclose(ringed.pulse(given(n)), plain.pulse(given(n)), atol=1e-6)
    ringed.stores[0].reset()
    assert not any(a.any() for a in ringed.stores[0].states().values())


def test_frames_side_by_side_are_kept_row_by_row() -> None:
    """Keys [.., channels, frames] have their last two axes swapped in the ring: a frame is written in one piece."""
    caches = {c.state: c for c in KeepInRings(spec())(attention()).rings[0].caches}
    assert caches["keys"].swapped and caches["keys"].shape == (1, HEADS, SIZE, WIDTH)
    assert not caches["values"].swapped and caches["values"].shape == (1, HEADS, SIZE, WIDTH)
    assert caches["keys"].index == caches["values"].index, "with the same axes in front of time they share it"


def test_a_mask_is_turned_to_match() -> None:
    made = KeepInRings(spec())(attention()).model
    add = next(n for n in made.graph if n.op_type == "Add")
    turned = add.inputs[1]
    assert turned is not None and turned.producer().op_type == "Slice"  # type: ignore[union-attr]
    twice = turned.producer().inputs[0]  # type: ignore[union-attr]
    assert twice is not None and list(twice.shape or ()) == [1, 1, PULSE, 2 * SIZE]


def test_caches_whose_order_shows_stay() -> None:
    """Weights are picked by their place."""
    text = ATTEND.replace("Softmax m > p axis=-1", "Slice m i j three > p0; Pad p0 behind > p")
    stays(KeepInRings(spec()), attention(JOIN + text))


@pytest.mark.parametrize(
    "text",
    [
        JOIN + ATTEND + "; Identity vs > seen",  # the values are given out in their order
        JOIN.replace("vs1; Identity vs1 > new_values", "new_values") + ATTEND,  # a state that is given out as it is cut
        JOIN.replace("Concat values v > vs", "Concat v values > vs") + ATTEND,  # new frames in front
    ],
)
def test_one_cache_may_be_a_ring_where_another_stays(text: str) -> None:
    """If it must: turning all values costs more than the ring saves."""
    model = attention(text, "y new_keys new_values" + " seen" * ("seen" in text))
    stays(KeepInRings(spec()), model.clone())
    made = KeepInRings(spec(), like=KeepInRings(spec())(attention()).rings)(model.clone())
    assert [c.state for r in made.rings for c in r.caches] == ["keys"]
    plain, ringed = Plain(model), Ringed(made.model, made.rings)
    for n in range(SIZE + 2):
        np.testing.assert_allclose(ringed.pulse(given(n)), plain.pulse(given(n)), atol=1e-6)


def test_caches_that_only_one_form_can_keep_in_rings_are_made_just_so_or_not_at_all() -> None:
    rings = KeepInRings(spec())(attention()).rings
    again = KeepInRings(spec(), like=rings)(attention())
    assert again.rings == rings
    none = KeepInRings(spec(), like=())(attention())
    assert none.rings == () and not none.modified


def test_nothing_is_done_where_a_turn_costs_more_than_it_saves() -> None:
    wide = JOIN.replace("; Concat values v > vs axis=2; Slice vs i j two > vs1; Identity vs1 > new_values", "")
    text = wide + "MatMul q ks > s; Mul s big > m; ReduceSum m > o; Identity o > y"
    inputs = {"q": [1, HEADS, 400, WIDTH], "k": [1, HEADS, WIDTH, PULSE], "keys": [1, HEADS, WIDTH, PAST]}
    inputs["big"] = [1, HEADS, 400, SIZE]
    alone = replace(spec(), states=spec().states[:1])
    constants = {n: BOUNDS[n] for n in ("i", "j", "three")}
    stays(KeepInRings(alone), graph(text, inputs, "y new_keys", constants))


def test_short_caches_growing_ones_and_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attention()
    for other in ({"dtype": np.dtype(np.int64)}, {"shape": (1, HEADS, "past", WIDTH)}):
        assert ring_form(model, replace(spec(), states=(replace(spec().states[1], **other),)))[1] == ()  # type: ignore[arg-type]
    monkeypatch.setattr(ring, "SMALLEST", 4 * HEADS * WIDTH * PAST)
    assert ring_form(model, spec())[1] != ()
    monkeypatch.setattr(ring, "SMALLEST", 4 * HEADS * WIDTH * PAST + 1)
    assert ring_form(model, spec()) == (model, ())


def test_the_form_is_another_model_and_the_model_itself_where_there_is_none() -> None:
    model = attention()
    before = ops(model)
    made, rings = ring_form(model, spec())
    assert made is not model and rings and ops(model) == before and "ScatterND" in ops(made)
    plain = graph("Relu x > r; Identity r > y", {"x": [1, 2]}, "y", {})
    assert ring_form(plain, a_stream()) == (plain, ())


def test_a_state_that_is_no_port_is_turned_down() -> None:
    with pytest.raises(PreconditionError) as refused:
        KeepInRings(replace(spec(), states=(a_state("other", (1, 2, 99)),)))(attention())
    assert "no port other, new_other" in str(refused.value.__cause__)


# ---- their memory


@pytest.mark.parametrize(("size", "pulse"), [(7, 2), (6, 2), (4, 4), (5, 1)])
def test_every_slot_is_written_in_turn_and_states_come_in_order(size: int, pulse: int) -> None:
    own = Ring(size, pulse, "start", "stop", (Cache("c", 1, False, (1, size), "at"),))
    store = RingStore(own, {"c": np.float32}, 1)
    seen: list[float] = [0.0] * size
    for n in range(3 * size):
        store.aim()
        slots = store.inputs["at"][0, :, -1]
        fresh = [float(n * pulse + i + 1) for i in range(pulse)]
        store.arrays["c"][0, slots] = fresh
        seen = [*seen, *fresh][-size:]
        start, stop = int(store.inputs["start"][0]), int(store.inputs["stop"][0])
        twice = np.concatenate([seen, seen])
        np.testing.assert_array_equal(twice[start:stop], store.arrays["c"][0])  # a window turned as the ring is
        store.advance()
        np.testing.assert_array_equal(store.states()["c"][0], seen[pulse:])
