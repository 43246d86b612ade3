"""A stream opens each form once, on each back end, and is a value that travels."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import pulsify
from pulsify.api.model import Stream
from tests.models import frames, look_ahead


@pytest.fixture(scope="module")
def stream() -> Stream:
    return pulsify.stream(look_ahead("B"), 4, verify=False)


def test_each_form_is_opened_once(stream: Stream) -> None:
    assert stream._opened("single") is stream._opened("single")
    assert stream._opened("single") is not stream._opened("single", threads=2)
    assert stream._opened("single") is not stream._opened("batch")


def test_what_is_open_does_not_travel(stream: Stream) -> None:
    stream.session()
    other = pickle.loads(pickle.dumps(stream))
    assert not other._open and other.spec == stream.spec
    x = frames(1, 2, 11)
    np.testing.assert_array_equal(other.run(x), stream.run(x))


def test_the_portable_graph_is_closed_when_asked(stream: Stream) -> None:
    stream.session(portable=True)
    stream.release_portable()
    assert all(kind != "portable" for _, kind, *_ in stream._open)
