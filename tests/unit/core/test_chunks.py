"""Ways to cut a stream: whatever the way, the pieces are the stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulsify.core.chunks import CHUNKINGS, chunking, chunkings, sizes
from pulsify.core.errors import InvalidArgument


@pytest.mark.parametrize(
    ("chunks", "length", "want"),
    [
        (None, 7, [7]),
        (None, 0, [0]),
        (3, 7, [3, 3, 1]),
        (3, 6, [3, 3]),
        (9, 4, [4]),
        (1, 0, []),
        ([2, 0, 3], 5, [2, 0, 3]),
        ([2], 5, [2, 3]),
        ([], 4, [4]),
        (np.int64(2), 3, [2, 1]),
        (iter([1, 1]), 3, [1, 1, 1]),
    ],
)
def test_sizes_add_up_to_the_length(chunks: Any, length: int, want: list[int]) -> None:
    assert sizes(chunks, length) == want


@pytest.mark.parametrize("chunks", [0, -1, True, 2.0, "ab", [1, -1], [1.5], [False]])
def test_what_is_no_number_of_frames_is_turned_down(chunks: Any) -> None:
    with pytest.raises(InvalidArgument, match="not a number of frames"):
        sizes(chunks, 9)


def test_more_frames_than_there_are_is_turned_down() -> None:
    with pytest.raises(InvalidArgument, match="add up to 7 frames, the input has 6"):
        sizes([3, 4], 6)


@pytest.mark.parametrize("length", [0, 1, 5, 64])
@pytest.mark.parametrize("pulse", [1, 4])
def test_every_chunking_is_the_whole_stream(length: int, pulse: int) -> None:
    for cut in chunkings(length, pulse, np.random.default_rng(0)):
        assert sum(cut) == length and min(cut, default=0) >= 0


def test_random_chunks_include_empty_ones_and_long_ones() -> None:
    cut = chunking("random", 400, 4, np.random.default_rng(0))
    assert min(cut) == 0 and max(cut) > 4
    assert list(chunkings(8, 4, np.random.default_rng(0)))[CHUNKINGS.index("pulses")] == [4, 4]
