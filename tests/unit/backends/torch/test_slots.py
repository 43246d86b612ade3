"""Many streams in slots on torch: rows of an arena, batches of few sizes, streams of any age in one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.backends.seam import Options
from pulsify.core.spec import Spec
from tests.models import Array, close, frames
from tests.unit.graphs import graph
from tests.unit.optimize.test_steady import both_ends
from tests.unit.optimize.test_steady import spec as clocked
from tests.unit.specs import a_stream, an_input, an_output, remembered, remembers

torch = pytest.importorskip("torch")

from pulsify.backends.torch import slots as module  # noqa: E402
from pulsify.backends.torch.backend import BACKEND, Executable  # noqa: E402
from pulsify.backends.torch.graphs import Body, Recorder  # noqa: E402
from pulsify.backends.torch.slots import WRITE, Slots  # noqa: E402


def executable(model: ir.Model, spec: Spec, **own: Any) -> Executable:
    made = BACKEND.compile(BACKEND.lower(model, spec, None), spec, Options(own={"device": "cpu", **own}))
    assert isinstance(made, Executable)
    return made


def slots_of(model: ir.Model, spec: Spec, most: int = 5, **own: Any) -> Slots:
    made = executable(model, spec, **own).slots(most)
    assert isinstance(made, Slots)
    return made


def ran(slots: Slots, which: list[int], positions: list[int], lengths: list[int] | None = None) -> list[Array]:
    """The output `y` by stream."""
    far = None if lengths is None else np.array(lengths)
    return [row.copy() for row in slots.run(np.array(which), np.array(positions), far)["y"]]


def groups(slots: Slots, positions: list[int], lengths: list[int] | None = None) -> list[list[int]]:
    found = slots.groups(np.array(positions), None if lengths is None else np.array(lengths))
    return [np.arange(len(positions))[which].tolist() for which in found]


def test_streams_in_any_slots_and_any_company_are_what_they_are_alone() -> None:
    slots, x = slots_of(*remembers("B")), frames(5, 2, 16)
    done: dict[int, list[Array]] = {0: [], 3: [], 4: []}
    for now in [[0, 3], [3], [4, 0, 3], [0], [4, 3], [4, 0], [4]]:  # four pulses of each
        for slot in now:
            n = len(done[slot])
            slots.rows["x"][slot] = x[slot : slot + 1, :, 4 * n : 4 * n + 4]
        for slot, out in zip(now, ran(slots, now, [4 * len(done[s]) for s in now]), strict=True):
            done[slot].append(out)
    assert slots.together and slots.mixed
    for slot, parts in done.items():
        close(np.concatenate(parts, 2), remembered(x[slot : slot + 1]))


def test_a_slot_used_anew_sees_nothing_of_what_it_held() -> None:
    slots, x = slots_of(*remembers("B")), frames(1, 2, 4)
    slots.rows["x"][1] = np.nan
    ran(slots, [1], [0])
    slots.reset(1)
    assert not slots.states(1, 0)["s"].any()
    slots.rows["x"][1] = x
    close(ran(slots, [1], [0])[0], remembered(x))


def test_a_restored_slot_goes_on() -> None:
    slots, x = slots_of(*remembers("B")), frames(1, 2, 4)
    slots.rows["x"][1] = slots.rows["x"][2] = x
    ran(slots, [1], [0])
    kept = slots.states(1, 4)
    np.testing.assert_array_equal(kept["s"], x[..., -2:])
    second = ran(slots, [1], [4])
    slots.restore(2, kept, 4)
    np.testing.assert_array_equal(ran(slots, [2], [4]), second)


def test_starts_middles_and_ends_are_one_batch() -> None:
    spec = clocked()
    slots, x, far = slots_of(both_ends(), spec), frames(4, 2, 4), spec.unknown_length
    for slot in range(4):
        slots.rows["x"][slot] = x[slot : slot + 1]
    assert slots.mixed
    assert groups(slots, [0, 8, 400, 400], [far, far, 402, 404]) == [[0, 1, 2, 3]]
    assert groups(slots, [0, 400, 8000], [far, far, far]) == [[0], [1, 2]], (
        "those that are warm have a step of their own"
    )
    together = ran(slots, [0, 1, 2, 3], [0, 8, 400, 400], [far, far, 393, 404])
    for slot, (at, length) in enumerate([(0, far), (8, far), (400, 393), (400, 404)]):
        np.testing.assert_array_equal(together[slot], ran(slots, [slot], [at], [length])[0])
    assert not together[0].any(), "nine frames are late"
    assert together[2][..., :2].all() and not together[2][..., 2:].any(), "frames 393 and on are none"


def mixing(text: str) -> tuple[ir.Model, Spec]:
    constants = {"first": np.array([0]), "nought": np.zeros(1, np.float32)}
    own = ("B", 2, 4)
    model = graph(text, {"x": own}, "y", {n: c for n, c in constants.items() if f" {n} " in text})
    model.graph.outputs[0].shape = ir.Shape(own)
    return model, a_stream(batch="B", inputs=(an_input(dims=own),), outputs=(an_output(dims=own),))


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        ("Exp x > h; Identity h > y", True),
        ("ReduceMean x > m axes=[0]; Sub x m > h; Identity h > y", False),  # the mean of all streams
        ("ReduceSum x first > m keepdims=1; Mul m nought > n; Add x n > y", False),  # times zero: NaN gets across
    ],
)
def test_streams_that_a_model_mixes_are_calls_of_their_own(text: str, apart: bool) -> None:
    slots = slots_of(*mixing(text))
    assert slots.together is apart
    assert groups(slots, [0, 0]) == ([[0, 1]] if apart else [[0], [1]])


def test_what_follows_from_one_streams_position_for_all_keeps_ages_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a step worked something out of the first stream's position, once a batch."""
    honest = module._outcome

    def first(on: Executable, form: Any, feeds: dict[str, Array]) -> dict[str, Array]:
        at = on.spec.position or ""
        return honest(on, form, {**feeds, at: np.repeat(feeds[at][:1], len(feeds[at]), 0)})

    monkeypatch.setattr(module, "_outcome", first)
    spec = clocked()
    slots, far = slots_of(both_ends(), spec), spec.unknown_length
    assert slots.together and not slots.mixed
    assert groups(slots, [0, 4, 0, 400], [far, far, far, 402]) == [[0, 2], [1], [3]]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row(value: float) -> None:
    """And in nobody else's state, nor in the rows that fill a batch up."""
    slots, x = slots_of(*remembers("B"), most=7), frames(7, 2, 12)
    alone = [remembered(x[i : i + 1]) for i in range(7)]
    for n in range(3):
        for i in range(7):
            slots.rows["x"][i] = value if i % 2 else x[i : i + 1, :, 4 * n : 4 * n + 4]
        which = [0, 1, 2, 3, 4, 5, 6] if n != 1 else [6, 5, 4, 3, 2, 1, 0]
        made = dict(zip(which, ran(slots, which, [4 * n] * 7), strict=True))
        for i in range(0, 7, 2):
            np.testing.assert_allclose(made[i], alone[i][..., 4 * n : 4 * n + 4], rtol=1e-5, atol=1e-6)
    assert np.isfinite(slots.states(0, 12)["s"]).all() and not np.isfinite(slots.states(1, 12)["s"]).any()


def test_batches_have_few_sizes_and_are_cut_where_states_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of(*remembers("B"), most=7)
    for which in ([0], [1, 2], [0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6], [6]):
        ran(slots, which, [0] * len(which))
    assert sorted(size for _, size in slots._calls) == [1, 2, 4, 7]
    monkeypatch.setattr(module, "BATCH_BYTES", 5 * 16)
    cut = slots_of(*remembers("B"), most=7)
    assert cut.largest == 4
    assert groups(cut, [0] * 7) == [[0, 1, 2, 3], [4, 5, 6]]


def test_a_batch_that_fails_leaves_states_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of(*remembers("B"))
    slots.rows["x"][:2] = 1
    ran(slots, [0, 1], [0, 0])
    before = [slots.states(i, 4)["s"] for i in range(3)]
    rows = slots._most + 2
    forms = slots._on.forms(2, rows)

    def fails(*given: Any) -> Any:
        raise RuntimeError("no")

    slots._calls.clear()
    slots._on._forms[2, rows] = replace(forms, general=replace(forms.general, call=fails))
    for which in ([0, 1], [1, 2]):  # the third is new
        with pytest.raises(RuntimeError, match="no"):
            ran(slots, which, [4, 4])
    assert slots.intact
    for i in range(3):
        np.testing.assert_array_equal(slots.states(i, 4)["s"], before[i])


def test_tensors_in_tensors_out_and_the_same_numbers() -> None:
    one, other, x = slots_of(*remembers("B")), slots_of(*remembers("B")), frames(3, 2, 8)
    which = np.array([4, 0, 2])
    for n in (0, 4):
        chunk = np.ascontiguousarray(x[:, None, :, n : n + 4])
        tensors = one.run(which, np.full(3, n), None, {"x": torch.from_numpy(chunk)})["y"]
        assert isinstance(tensors, torch.Tensor)
        np.testing.assert_array_equal(tensors.numpy(), other.run(which, np.full(3, n), None, {"x": chunk})["y"])
    close(tensors.numpy()[:, 0], remembered(x)[..., 4:])


def test_types_that_arrays_do_not_share_with_tensors_are_steppers_of_their_own() -> None:
    model, spec = remembers("B")
    assert isinstance(executable(model, spec).slots(2), Slots)
    low = replace(spec, inputs=(replace(spec.inputs[0], dtype=ir.DataType.BFLOAT16.numpy()),))
    made = executable(model, spec)
    assert replace(made, spec=low).slots(2) is None


# ---- recorded, without a card


def taped(log: list[str]) -> Recorder:
    """Records as a card does: the body is run beforehand, and again and again with nothing but what lies in memory."""

    def record(body: Body) -> Body:
        for _ in range(3):
            body()
        log.append("recorded")

        def replay() -> None:
            log.append("replayed")
            body()

        return replay

    return record


def recording(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From here on everything is recorded."""
    log: list[str] = []
    form = Executable._form
    monkeypatch.setattr(
        Executable, "_form", lambda self, name, made, rows=None: replace(form(self, name, made), recorded=True)
    )
    monkeypatch.setattr(Executable, "recorder", lambda self: taped(log))
    return log


@pytest.mark.parametrize("build", [lambda: remembers("B"), lambda: (both_ends(), clocked())], ids=["states", "clock"])
def test_recorded_is_eager_to_the_last_bit(
    build: Callable[[], tuple[ir.Model, Spec]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At starts, in the steady state, at ends; and the runs of a recording leave no trace."""
    eager, x = slots_of(*build()), frames(5, 2, 4)
    log, taken = recording(monkeypatch), slots_of(*build())
    far = taken._spec.unknown_length
    turns = [([0], [0], [far]), ([0, 1], [4, 0], [far, far]), ([1, 2, 0], [4, 0, 8], [far] * 3)]
    turns += [([0, 1, 2], [400, 804, 4000], [far] * 3), ([2, 0, 4], [4004, 404, 0], [4006, far, 3])]
    for which, positions, lengths in turns:
        for slots in (taken, eager):
            for slot in which:
                slots.rows["x"][slot] = x[slot : slot + 1] * (1 + positions[0])
        got, want = (ran(slots, which, positions, lengths) for slots in (taken, eager))
        np.testing.assert_array_equal(got, want)
    for slot in (0, 1, 2, 4):
        for name, state in eager.states(slot, 0).items():
            np.testing.assert_array_equal(taken.states(slot, 0)[name], state)
    assert log.count("replayed") == len(turns)
    assert log.count("recorded") == len(taken._calls), "one each size and each form"


def test_addresses_never_change(monkeypatch: pytest.MonkeyPatch) -> None:
    recording(monkeypatch)
    slots = slots_of(*remembers("B"))
    mirrors = [*slots._inputs.values(), *slots._outputs.values()]

    def addresses() -> list[int]:
        own = [m.there.data_ptr() for m in mirrors] + [a.data_ptr() for a in slots._arena.values()]
        return own + [call.block.there.data_ptr() for call in slots._calls.values()]

    ran(slots, [0, 1], [0, 0])
    before = addresses()
    for n in range(1, 4):
        ran(slots, [2, n], [0, 4])
        slots.reset(2)
    assert addresses() == before
    assert (slots._calls[False, 2].block.there[WRITE] == torch.tensor([2, 3])).all()


def test_recorded_sessions_know_nothing_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions of one program: neither is written over by the other."""
    recording(monkeypatch)
    on, x, z = executable(*remembers("B")), frames(1, 2, 12), frames(1, 2, 12, seed=4)
    one, other = on.stepper(1, {}), on.stepper(1, {})
    assert type(one).__name__ == "RecordedStep"
    parts: tuple[list[Array], list[Array]] = ([], [])
    for n in range(0, 12, 4):
        for step, own, out in ((one, x, parts[0]), (other, z, parts[1])):
            step.inputs["x"][...] = own[..., n : n + 4]
            out.append(step.run()["y"].copy())
    close(np.concatenate(parts[0], 2), remembered(x))
    close(np.concatenate(parts[1], 2), remembered(z))
    one.reset()
    one.inputs["x"][...] = z[..., :4]
    close(one.run()["y"], remembered(z)[..., :4])
    np.testing.assert_array_equal(other.states()["s"], z[..., -2:])


def test_a_recorded_session_counts_as_an_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = clocked()
    eager = executable(both_ends(), spec).stepper(1, {})
    recording(monkeypatch)
    taken = executable(both_ends(), spec).stepper(1, {})
    x = frames(1, 2, 4)
    for length in (None, None, None, None, None, 27, 27):
        for step in (taken, eager):
            step.inputs["x"][...] = x
        np.testing.assert_array_equal(taken.run(length)["y"], eager.run(length)["y"])
        for name, state in eager.states().items():
            np.testing.assert_array_equal(taken.states()[name], state)
    for step in (taken, eager):
        step.rebase(8)
        step.inputs["x"][...] = x
    np.testing.assert_array_equal(taken.run(21)["y"], eager.run(21)["y"])
    assert taken.states()["position"] == eager.states()["position"]
