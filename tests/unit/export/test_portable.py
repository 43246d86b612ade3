"""What a client is told of a stream is what the stream holds itself to."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.errors import InvalidArgument, NotSupported
from pulsify.core.length import Length, Table
from pulsify.core.spec import Condition, Proof
from pulsify.export import portable
from pulsify.export.clients.frames import evaluated
from pulsify.export.doubles import computes_double
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


def test_a_folder_is_for_everybody_and_keeps_what_it_was(tmp_path: Path) -> None:
    """As new files are: temporary folders are for one user, and a server's is another."""
    asked = os.umask(0o022)
    try:
        (tmp_path / "there").mkdir(mode=0o775)
        (tmp_path / "there").chmod(0o775)
        (tmp_path / "there" / "own").write_text("mine")
        for name in ("new", "there"):
            with portable.folder(tmp_path / name, "x") as place:
                portable.put(place, {"a": "text", "1/b": b"bytes"})
    finally:
        os.umask(asked)
    modes = {n: (tmp_path / n).stat().st_mode & 0o777 for n in ("new", "there", "new/1", "new/a", "there/1/b")}
    assert modes == {"new": 0o755, "there": 0o775, "new/1": 0o755, "new/a": 0o644, "there/1/b": 0o644}
    assert (tmp_path / "there" / "own").read_text() == "mine"


def test_a_folder_of_another_target_is_left_alone(tmp_path: Path) -> None:
    for _ in range(2):  # its own it may write again
        with portable.folder(tmp_path, "web") as place:
            portable.put(place, {portable.FACTS: portable.as_json({"pulse": 4}, "web")})
    said = r"holds an export to 'web': triton takes a folder of its own"
    with pytest.raises(InvalidArgument, match=said), portable.folder(tmp_path, "triton"):
        pass
    (tmp_path / portable.FACTS).write_text("[]")  # somebody else's
    with portable.folder(tmp_path, "triton"):
        pass


def test_a_place_that_cannot_be_written_to_is_named_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("")
    said = r"web cannot be written to .*m.onnx/sub: a file is in the way"
    with pytest.raises(InvalidArgument, match=said), portable.folder(tmp_path / "m.onnx" / "sub", "web"):
        pass
    with (
        pytest.raises(InvalidArgument, match=r"web cannot be written to /proc/x: "),
        portable.folder(Path("/proc/x"), "web"),
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


def test_streams_of_whole_numbers_go_as_far_as_the_types_and_the_model_do() -> None:
    node, kinds = models.node, {"x": np.int64, "y": np.int64}
    stream = converted(models.model([node("Neg", "x", "y")], {"x": [1, "T"]}, ["y"], dtypes=kinds))
    found = list(known_streams(stream.model, stream.spec, wide=1 << 30))
    plain = list(known_streams(stream.model, stream.spec))
    assert [np.abs(k.inputs["x"]).max() for k in plain] == [1] * len(plain) and len(found) == len(plain) + 2
    assert found[-1].inputs["x"].min() >= 0 and found[-2].inputs["x"].min() == -found[-1].inputs["x"].max() < -(1 << 29)
    tokens = converted(models.tokens())  # what is no index fails in the model itself
    assert len(list(known_streams(tokens.model, tokens.spec, wide=1 << 30))) == len(plain)


def test_a_double_that_float32_was_cast_to_is_held_to_float32() -> None:
    node, double = models.node, onnx.TensorProto.DOUBLE
    nodes = [node("Neg", "x", "n"), node("Cast", "n", "y", to=double), node("Mul", "y y", "z")]
    kinds = {"y": np.float64, "z": np.float64}
    stream = converted(models.model(nodes, {"x": [1, "T"]}, ["y", "z"], dtypes=kinds))
    first = next(known_streams(stream.model, stream.spec))
    assert first.computed == {"y": "float32"} and computes_double(stream.model)
    assert not computes_double(converted(models.look_ahead()).model)
    near = {n: v * (1 + 1e-7) for n, v in first.outputs.items()}
    with pytest.raises(NotSupported, match="'z' of a stream"):
        hold(near, first, "X")
