"""What a client is told of a stream is what the stream holds itself to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pulsify
from pulsify.core.errors import InvalidArgument, NotSupported
from pulsify.core.length import Length, Table
from pulsify.core.spec import Condition, Proof
from pulsify.export import portable
from pulsify.export.clients.frames import evaluated
from pulsify.export.known import Known, departure, hold, known_streams
from tests import models
from tests.unit.export.running import converted
from tests.unit.specs import a_state, a_stream, remembers

CONDITIONS = [
    Condition("n", Length(((2, 3, 4),)), at_least=2),
    Condition("n", Length(((1, -3, 2),)), multiple=3),
    Condition("n", Length(((1, 0, 2),)), equals=Length(((1, 1, 2),))),
    Condition("n", Length(), at_most=37),
    Condition("n", Length(((1, -9, 1),)), outside=(-3, 4)),
    Condition("n", Length(table=Table(3, 2, (0, 1, 5))), multiple=2),
    Condition("n", Length(), equals=Length(((147, 0, 160),)), scaled=147 / 160),
    Condition("n", Length(short=(0, 4, 4)), at_least=3),
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_lengths_that_are_taken_are_those_that_meet_the_conditions(condition: Condition) -> None:
    spec = a_stream(step=2, shortest=3, conditions=(condition,))
    wanted = [n >= 3 and n % 2 == 0 and condition.met(n) for n in range(200)]
    assert [bool(evaluated(portable.takes(spec), n)) for n in range(200)] == wanted
    assert any(wanted) and not all(wanted)


def test_the_longest_stream_ends_with_a_table_or_with_the_counters() -> None:
    assert portable.longest(a_stream(pulse=4)) == (1 << 30) - 4
    assert portable.longest(a_stream(proof=Proof(limit=1000))) == 1000
    half = Condition("n", Length(((1, 1, 2),)), at_most=50)
    assert portable.longest(a_stream(conditions=(half,))) == 100


def test_a_cache_that_grows_is_refused() -> None:
    with pytest.raises(
        NotSupported, match=r"cache node 'conv' cannot be written as X: .* one size\n  hint: .*unbounded=N"
    ):
        portable.refuse_growing(a_stream(states=(a_state(shape=(1, "past", 2)),)), "X")
    portable.refuse_growing(a_stream(states=(a_state(),)), "X")


def test_the_length_is_an_input_for_the_time_being() -> None:
    stream = converted(models.look_ahead())
    kept = stream.model.graph.initializers["length"]
    with portable.told_the_length(stream.model, stream.spec):
        assert "length" not in stream.model.graph.initializers
    assert stream.model.graph.initializers["length"] is kept


def test_a_folder_has_all_files_or_none(tmp_path: Path) -> None:
    with pytest.raises(AttributeError), portable.folder(tmp_path / "out", "x") as place:
        portable.put(place, {"a": "text", "b": None})  # type: ignore[dict-item]
    assert not (tmp_path / "out").exists()
    with portable.folder(tmp_path / "out", "x") as place:
        portable.put(place, {"a": "text", "1/b": b"bytes"})
    assert (tmp_path / "out" / "1" / "b").read_bytes() == b"bytes"
    with (
        pytest.raises(InvalidArgument, match="is a file: x takes a folder"),
        portable.folder(tmp_path / "out" / "a", "x"),
    ):
        pass


def test_known_streams_are_short_ragged_and_long_and_what_departs_is_refused() -> None:
    model, spec = remembers()
    found = list(known_streams(model, spec))
    assert len({k.length for k in found}) == len(found) >= 5 and any(k.length % spec.pulse for k in found)
    first = found[0]
    hold(first.outputs, first, "X")
    other = Known(first.length, {}, first.inputs, {n: y * 1.01 for n, y in first.outputs.items()})
    with pytest.raises(NotSupported, match="X computes otherwise: 'y' of a stream of"):
        hold(first.outputs, other, "X")


def test_a_departure_is_of_the_outputs_scale() -> None:
    y = np.array([1.0, -4.0, np.nan], np.float32)
    assert departure(y, y) == 0 and departure(y + np.float32(0.4), y) == pytest.approx(0.1)
    assert departure(y[:2], y) == np.inf and departure(np.array([0.0, 0, 0], np.float32), y) == np.inf
    assert departure(np.array([1, 2]), np.array([1, 3])) == 1.0


def test_an_unknown_target_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(pulsify.InvalidArgument, match="there are onnx, c, openvino"):
        pulsify.export(converted(models.causal()), "tflite", tmp_path)
