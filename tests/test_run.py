"""`Stream.run`: a whole stream in one call, however it is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.core.chunks import chunkings, sizes
from tests import models
from tests.models import close, frames, run_batch


@pytest.mark.parametrize("chunks", [None, 1, 4, 7, 100, [3, 0, 9], [33], np.array([1, 2])], ids=str)
def test_one_input_and_output(chunks: Any) -> None:
    proto, x = models.look_ahead(), frames(1, 2, 33)
    y = pulsify.stream(proto, pulse=4).run(x, chunks)
    assert isinstance(y, np.ndarray)
    close(y, run_batch(proto, x)["y"])


def test_several_inputs_and_rates() -> None:
    proto, feeds = models.two_rates(), {"slow": frames(1, 2, 9), "fast": frames(1, 2, 36)}
    got = pulsify.stream(proto, pulse=2).run(feeds, chunks=[2, 5])
    assert isinstance(got, dict)
    for name, want in run_batch(proto, feeds).items():
        close(got[name], want)


def test_static_inputs_and_a_batch() -> None:
    proto, feeds = models.conditioned("B"), {"x": frames(3, 2, 13), "scale": frames(3, 3, 1)}
    stream = pulsify.stream(proto, pulse=4)
    for portable in (False, True):
        close(np.asarray(stream.run(feeds, 5, portable=portable)), run_batch(proto, feeds)["y"])


def test_what_is_known_at_the_end() -> None:
    proto, x = models.with_length(), frames(1, 2, 11)
    got = pulsify.stream(proto, pulse=4).run(x)
    assert isinstance(got, dict)
    assert got["encoded_lengths"].tolist() == [6]


@pytest.mark.parametrize(
    ("inputs", "chunks", "says"),
    [
        ({"z": frames(1, 2, 9)}, None, r"\['x'\] missing, there is no \['z'\]"),
        (frames(2, 9), None, "has 3 axes"),
        (frames(1, 2, 9), 0, "at least 1"),
        (frames(1, 2, 9), True, "at least 1"),
        (frames(1, 2, 9), [3, -1], "at least 0"),
        (frames(1, 2, 9), [5, 5], "add up to 10 frames, the input has 9"),
    ],
    ids=str,
)
def test_wrong_arguments(inputs: Any, chunks: Any, says: str) -> None:
    stream = pulsify.stream(models.look_ahead(), pulse=4, verify=False)
    with pytest.raises(pulsify.InvalidArgument, match=says):
        stream.run(inputs, chunks)


def test_no_frames_at_all() -> None:
    assert np.asarray(pulsify.stream(models.look_ahead(), pulse=4).run(frames(1, 2, 0))).shape == (1, 3, 0)


def test_ways_to_cut() -> None:
    assert (sizes(4, 9), sizes(None, 9), sizes([2], 9), sizes(4, 8)) == ([4, 4, 1], [9], [2, 7], [4, 4])
    ways = list(chunkings(29, 4, np.random.default_rng(0)))
    assert [sum(way) for way in ways] == [29, 29, 29]
    assert ways[0] == [4] * 7 + [1]
    assert ways[2] == [29]
