"""What is served, and under which name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.errors import InvalidArgument, InvalidModel
from pulsify.serve.sources import Given, Meaning, Served, of_stream, open_source, open_sources, parse_source
from tests.models import look_ahead, model, node, weights


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("model.onnx", Given("model.onnx")),
        ("a=dir/model.onnx", Given("dir/model.onnx", "a")),
        ("a=model.onnx@16000", Given("model.onnx", "a", 16000)),
        ("model.onnx@62.5", Given("model.onnx", None, 62.5)),
        ("dir/x=y.onnx", Given("dir/x=y.onnx")),
    ],
)
def test_a_source_of_the_command_line(text: str, want: Given) -> None:
    assert parse_source(text) == want


def test_a_file_that_is_there_is_taken_by_its_whole_name(tmp_path: Path) -> None:
    path = tmp_path / "a@16000"
    path.write_text("")
    assert parse_source(str(path)) == Given(str(path))


def test_batch_models_are_converted_and_streams_taken_as_they_are(tmp_path: Path) -> None:
    batch, made = tmp_path / "batch.onnx", tmp_path / "stream 1.onnx"
    onnx.save(look_ahead("B"), batch)
    pulsify.stream(look_ahead("B"), 8, verify=False).save(made)
    first = open_source(Given(str(batch), None, 100), Meaning(4, False), None)
    second = open_source(Given(str(made)), Meaning(), 50)
    assert (first.name, first.streams[0].pulse, first.sample_rate) == ("batch", 4, 100)
    assert (second.name, second.streams[0].pulse, second.sample_rate) == ("stream-1", 8, 50)
    with pytest.raises(InvalidArgument, match="stream already"):
        open_source(Given(str(made)), Meaning(pulse=4), None)


def test_names_are_names_and_each_is_there_once(tmp_path: Path) -> None:
    batch = tmp_path / "batch.onnx"
    onnx.save(look_ahead("B"), batch)
    with pytest.raises(InvalidArgument, match="two models"):
        open_sources([Given(str(batch)), Given(str(batch))], Meaning(4, False), None)
    with pytest.raises(InvalidArgument, match="no name"):
        open_source(Given(str(batch), "a" * 100), Meaning(4, False), None)


def test_inputs_without_time_are_refused() -> None:
    proto = model([node("Add", "x b", "y")], {"x": [1, 2, "T"], "b": [1, 2, 1]}, ["y"])
    with pytest.raises(InvalidModel, match="without a time axis"):
        of_stream("m", pulsify.stream(proto, 4, verify=False), None)


def sound(rate: float | None, channels: int = 1) -> Served:
    proto = model(
        [node("Conv", "x w", "y", pads=[1, 1])], {"x": ["B", channels, "T"]}, ["y"], {"w": weights(1, channels, 3)}
    )
    return of_stream("m", pulsify.stream(proto, 4, verify=False), rate)


def test_what_is_sound() -> None:
    assert (sound(16000).hears, sound(16000).sounds) == (True, True)
    assert not sound(None).hears and not sound(62.5).hears
    assert not sound(16000, channels=2).hears
    facts = sound(16000).facts
    assert (facts["latency"], facts["latency_seconds"], facts["sample_rate"]) == (5, 5 / 16000, 16000)
    assert np.allclose(sound(16000).pulses_seconds or (), [4 / 16000])
