"""What an output frame reads: nothing else changes it in batch, and both ends of what is told do."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import pulsify
from pulsify.core.errors import PulsifyError
from pulsify.core.runner import open_model, run_model
from pulsify.report.reading import reading, reading_figures
from pulsify.report.stages import analysed, open_batch
from pulsify.verify.check import valid_length
from pulsify.verify.inputs import make_inputs

ZOO = Path(__file__).parents[2] / "zoo" / "fixtures" / "legacy"
MANY = 600  # frames: a longer input takes too long


def touched(path: Path, stream: pulsify.Stream, length: int, frames: list[int], ats: range) -> dict[int, set[int]]:
    """By output frame, the input frames that change it; on several inputs, for one may hide behind a maximum."""
    runner, rng = open_model(str(path)), np.random.default_rng(0)
    (port,), out = stream.inputs, stream.outputs[0]
    found: dict[int, set[int]] = {k: set() for k in frames}
    for _ in range(3):
        feeds = make_inputs(runner, stream, length, rng)
        before = run_model(runner, feeds)[out.name]
        others = tuple(i for i in range(before.ndim) if i != out.axis)
        for at in ats:
            moved = feeds[port.name].copy()
            moved[(slice(None),) * port.axis + (at,)] *= -1.5
            differs = (run_model(runner, {**feeds, port.name: moved})[out.name] != before).any(others)
            for k in frames:
                found[k] |= {at} if differs[k] else set()
    return found


SILENT = {
    "frames_mirrored": 1
}  # a window of Hann's begins with a weight of zero: what it is told to read tells nothing

# A chunk of these is read at once, and the product behind hides what comes later: they are told to read all of it.
BY_CHUNK = {"delta_chunks", "gated_chunks", "selective_chunks"}
ROUNDED = {"log_sum_by_hand"}  # it subtracts the maximum of all frames: later ones change how it rounds
WRITTEN = {"write_frames"}  # some of its frames are constants, which read nothing


@pytest.mark.parametrize("path", sorted(ZOO.glob("*.onnx")), ids=lambda p: p.stem)
def test_batch_changes_where_frames_are_read_and_nowhere_else(path: Path) -> None:
    try:
        stream = pulsify.stream(path, unbounded="grow", verify=False)
    except PulsifyError:
        pytest.skip("refused: it has no stream")
    course = stream.course
    assert course is not None
    wire = course.outputs[0][1]
    if len(stream.inputs) > 1 or stream.inputs[0].dtype.kind != "f" or wire is None:
        pytest.skip("one input of floats is changed here")
    (told,) = reading_figures(course)
    frames, most = [f["frame"] for f in told["frames"]], int(max(f["arrived"] for f in told["frames"]))
    length = valid_length(stream, most + 4 * stream.pulse)
    if length is None or length > MANY:
        pytest.skip("it looks too far for every frame to be tried")
    got = touched(path, stream, length, frames, range(min(length, most + 2)))
    for k in frames:
        span = reading(course, wire, k)[stream.inputs[0].name]
        first = 0 if span.since else span.first
        heard = first + SILENT.get(path.stem, 0)
        if path.stem in ROUNDED:
            got[k] = {at for at in got[k] if at <= k}
        if path.stem in WRITTEN and not got[k]:
            continue
        assert got[k] <= set(range(first, span.last + 1)), f"frame {k} reads what was not told"
        assert path.stem in BY_CHUNK or max(got[k]) == span.last, f"frame {k}: told to read further ahead than it does"
        assert span.since or min(got[k]) == heard, f"frame {k}: told to read further back than it does"


def test_layers_are_told_from_the_input_to_the_output_with_how_late_they_are() -> None:
    (told,) = reading_figures(analysed(open_batch(ZOO / "unet.onnx"), 4).course)
    assert [x["op"] for x in told["layers"]] == ["input", *["Conv"] * 3, *["ConvTranspose"] * 2, "Conv"]
    assert [x["late_input_frames"] for x in told["layers"]] == [0, 1, 2, 4, 6, 7, 8]
    for f in told["frames"]:
        assert f["read"][-1] == [*f["time"], False] and f["read"][0][0] >= 0
        for layer, (_, end, _) in zip(told["layers"], f["read"], strict=True):
            assert end <= f["arrived"] - layer["late_input_frames"], "what is read is there when the frame comes out"
    ends = [f["arrived"] - x["late_input_frames"] for f in told["frames"] for x in [told["layers"][-1]]]
    assert all(end - f["time"][1] < 4 for end, f in zip(ends, told["frames"], strict=True)), "and no pulse earlier"


def test_a_recurrence_reads_all_since_the_start() -> None:
    (told,) = reading_figures(analysed(open_batch(ZOO / "gru.onnx"), 2).course)
    assert told["frames"][0]["read"][0][2] and told["range"][0] == 0 and Fraction(told["rate"]) == 1
