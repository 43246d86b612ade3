"""Chunks to pulses and back, as every client has it: the same as a session, and nothing of pulsify's."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pulsify.export import portable
from pulsify.export.clients import frames as client
from pulsify.export.clients.frames import Frames, evaluated, fixed, read, whole, write
from tests import models
from tests.models import close, frames, run_batch
from tests.unit.export.running import ZOO, converted, is_batch, stepping, zoo


@pytest.mark.parametrize("chunk", [1, 5, 1000])
@pytest.mark.parametrize("name", sorted(ZOO))
def test_whatever_the_chunks_it_is_the_batch_model(name: str, chunk: int) -> None:
    stream = converted(zoo(name))
    facts = portable.facts(stream.spec)
    is_batch(zoo(name), stream, lambda inputs, statics: whole(Frames(facts, stepping(stream)), inputs, chunk))


def test_only_the_last_pulse_is_the_last() -> None:
    facts, seen = portable.facts(converted(models.look_ahead(1)).spec), list[tuple[int | None, bool]]()

    def step(inputs: dict[str, client.Array], total: int | None, last: bool) -> dict[str, client.Array]:
        seen.append((total, last))
        return {"y": np.zeros((1, 3, 4), np.float32)}

    whole(Frames(facts, step), {"x": frames(1, 2, 10)})
    assert seen == [(None, False), (None, False), (10, False), (10, True)]


def test_padding_is_zeros_or_a_whole_number_that_was_there() -> None:
    given = list[client.Array]()

    def step(inputs: dict[str, client.Array], total: int | None, last: bool) -> dict[str, client.Array]:
        given.append(inputs["x"])
        return {"y": np.zeros((1, 3, 4), np.float32)}

    whole(Frames(portable.facts(converted(models.tokens()).spec), step), {"x": np.array([[1, 2, 3, 4, 5]])})
    assert given[1].tolist() == [[5, 5, 5, 5]]
    given.clear()
    whole(Frames(portable.facts(converted(models.look_ahead(1)).spec), step), {"x": np.ones((1, 2, 5), np.float32)})
    assert given[1][0, 0].tolist() == [1, 0, 0, 0]


def test_a_file_has_its_arrays_by_name_or_is_the_only_one(tmp_path: Path) -> None:
    facts = portable.facts(converted(models.conditioned(1)).spec)
    x, scale = frames(1, 2, 9), frames(1, 3, 1)
    np.savez(tmp_path / "a.npz", x=x, scale=scale)
    inputs, statics = read(str(tmp_path / "a.npz"), facts)
    assert np.array_equal(inputs["x"], x) and np.array_equal(statics["scale"], scale)
    np.save(tmp_path / "a.npy", x)
    inputs, statics = read(str(tmp_path / "a.npy"), portable.facts(converted(models.causal(1)).spec))
    assert np.array_equal(inputs["x"], x) and not statics


def test_an_expression_is_of_the_length() -> None:
    assert evaluated(["floor_divide", ["add", "S", 3], 4], 9) == 3 and evaluated([1, 2], 9) == [1, 2]


def test_inputs_of_two_rates_may_come_at_their_own_pace() -> None:
    source = models.two_rates()
    stream = converted(source)
    facts = portable.facts(stream.spec)
    assert [i["rate"] for i in facts["inputs"]] == [1, 4] and Fraction(facts["outputs"][1]["rate"]) == 4
    slow, fast, wanted = (
        frames(1, 2, 9),
        frames(1, 2, 36),
        run_batch(source, {"slow": frames(1, 2, 9), "fast": frames(1, 2, 36)}),
    )
    own = Frames(facts, stepping(stream))
    assert own.push({"fast": fast[..., :30]})["sum"].shape == (1, 3, 0)
    parts = [own.push({"slow": slow[..., :7]}), own.push({"fast": fast[..., 30:]})]
    with pytest.raises(ValueError, match="have not the same length"):
        own.flush()
    parts += [own.push({"slow": slow[..., 7:]}), own.flush()]
    for name in ("sum", "negative"):
        close(np.concatenate([p[name] for p in parts], 2), wanted[name])


def test_an_empty_stream_has_no_frames() -> None:
    facts = portable.facts(converted(models.causal()).spec)
    assert whole(Frames(facts, lambda inputs, total, last: {}), {"x": frames(1, 2, 0)})["y"].shape == (1, 3, 0)


def test_a_stream_longer_than_its_counters_is_turned_down() -> None:
    facts = portable.facts(converted(models.causal()).spec) | {"most": 10}
    with pytest.raises(ValueError, match="longer than 10 frames: end this one"):
        Frames(facts, lambda inputs, total, last: {}).push({"x": frames(1, 2, 11)})


def two() -> tuple[dict[str, Any], client.Step]:
    """a + b, frame by frame."""
    source = models.model([models.node("Add", "a b", "y")], {"a": [1, 1, "T"], "b": [1, 1, "T"]}, ["y"])
    stream = converted(source)
    return portable.facts(stream.spec), stepping(stream)


def test_a_refused_push_takes_nothing() -> None:
    facts, step = two()
    own, a, b = Frames(facts, step), frames(1, 1, 8), frames(1, 1, 8, seed=2)
    wrong = {
        "b is .* but for time, axis 2": {"a": a, "b": frames(1, 2, 8)},
        "b takes float32, got float64": {"a": a, "b": b.astype(np.float64)},
        "b has a number that is not finite": {"a": a, "b": b * np.nan},
        r"no streamed input is called \['c'\]; they are \['a', 'b'\]": {"a": a, "c": b},
    }
    for says, chunks in wrong.items():
        with pytest.raises(ValueError, match=says):
            own.push(chunks)
    close(own.push({"a": a, "b": b})["y"], a + b)


def test_a_stream_that_was_flushed_is_over() -> None:
    facts, step = two()
    own, a = Frames(facts, step), frames(1, 1, 5)
    own.push({"a": a, "b": a})
    own.flush()
    for again in (own.flush, lambda: own.push({"a": a, "b": a})):
        with pytest.raises(ValueError, match="has been flushed: open another one"):
            again()


def test_whole_numbers_are_not_cut_off_floats() -> None:
    facts = portable.facts(converted(models.tokens()).spec)
    with pytest.raises(ValueError, match="x takes int64, got float32"):
        Frames(facts, lambda inputs, total, last: {}).push({"x": np.full((1, 9), 1.9, np.float32)})


def test_static_inputs_are_all_there_and_as_they_should_be() -> None:
    facts = portable.facts(converted(models.conditioned(1)).spec)
    scale = frames(1, 3, 1)
    assert np.array_equal(fixed(facts, {"scale": scale})["scale"], scale)
    for given, says in (
        ({}, r"the static inputs are \['scale'\]; got \[\]"),
        ({"scale": scale[:, :2]}, r"scale is \[1, 3, 1\]; got \[1, 2, 1\]"),
        ({"scale": scale.astype(np.int32)}, "scale takes float32"),
    ):
        with pytest.raises(ValueError, match=says):
            fixed(facts, given)


def test_outputs_may_be_called_what_numpy_calls_its_options(tmp_path: Path) -> None:
    made = {"file": frames(1, 2), "allow_pickle": frames(3), "a/b": np.array(7)}
    write(str(tmp_path / "y"), made)
    found = np.load(tmp_path / "y.npz")
    assert set(found) == set(made) and all(np.array_equal(found[n], made[n]) for n in made)


def test_after_a_step_that_failed_the_stream_is_over() -> None:
    """Its frames were taken and nothing came out: what followed would be another stream."""
    fails = [False, True, False, False]

    def step(inputs: dict[str, client.Array], total: int | None, last: bool) -> dict[str, client.Array]:
        if fails.pop(0):
            raise OSError("the server is gone")
        return {"y": np.zeros((1, 3, 4), np.float32)}

    stream = Frames(portable.facts(converted(models.look_ahead(1)).spec), step)
    stream.push({"x": frames(1, 2, 4)})
    with pytest.raises(OSError, match="gone"):
        stream.push({"x": frames(1, 2, 4)})
    for call in (lambda: stream.push({"x": frames(1, 2, 4)}), stream.flush):
        with pytest.raises(ValueError, match=r"broke off \(the server is gone\)"):
            call()
