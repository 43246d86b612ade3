"""Ways to cut a stream into the pieces that are pushed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pulsify.core.errors import InvalidArgument

Chunks = int | Iterable[int] | None  # pieces of so many frames, pieces of these sizes, or all at once
CHUNKINGS = ("pulses", "random", "whole")


def sizes(chunks: Chunks, length: int) -> list[int]:
    """Sizes that add up to `length`. Of listed ones that add up to less, the rest is one more piece."""
    if chunks is None:
        return [length]
    if not isinstance(chunks, Iterable):
        size = _whole(chunks, least=1)
        return [size] * (length // size) + [length % size] * bool(length % size)
    listed = [_whole(n, least=0) for n in chunks]
    if sum(listed) > length:
        raise InvalidArgument(f"chunks add up to {sum(listed)} frames, the input has {length}")
    return [*listed, length - sum(listed)] if sum(listed) < length else listed


def _whole(value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or number < least:
        raise InvalidArgument(f"chunks: {value!r} is not a number of frames, at least {least}")
    return number


def chunking(how: str, length: int, pulse: int, rng: np.random.Generator) -> list[int]:
    """One of CHUNKINGS: pulse by pulse and a rest; at random, with empty chunks; all at once."""
    if how == "whole":
        return [length]
    if how == "pulses":
        return sizes(pulse, length)
    out, left = list[int](), length
    while left:
        out.append(min(left, int(rng.integers(0, 3 * pulse + 1))))
        left -= out[-1]
    return out


def chunkings(length: int, pulse: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Every way, one after the other."""
    for how in CHUNKINGS:
        yield chunking(how, length, pulse, rng)
