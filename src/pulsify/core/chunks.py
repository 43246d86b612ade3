"""Ways to cut a stream into the pieces that are pushed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from pulsify.core.boundary import foreign
from pulsify.core.errors import InvalidArgument

T = TypeVar("T")
Chunks = int | Iterable[int] | None  # pieces of so many frames, pieces of these sizes, or all at once
CHUNKINGS = ("pulses", "random", "whole")


def sizes(chunks: Chunks, length: int) -> list[int]:
    """Sizes that add up to `length`. Of listed ones that add up to less, the rest is one more piece."""
    if chunks is None:
        return [length]
    if not isinstance(chunks, Iterable) or getattr(chunks, "ndim", 1) == 0:  # an array of one number too
        size = _whole(chunks, least=1)
        return [size] * (length // size) + [length % size] * bool(length % size)
    with foreign("the iterable given as chunks"):
        given = list(chunks)
    listed = [_whole(n, least=0) for n in given]
    if sum(listed) > length:
        raise InvalidArgument(f"chunks add up to {sum(listed)} frames, the input has {length}")
    return [*listed, length - sum(listed)] if sum(listed) < length else listed


def entries(chunks: Iterable[T]) -> Iterator[T]:
    """The chunks one after the other; what is no iterable is InvalidArgument."""
    try:
        return iter(chunks)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # from the caller's own __iter__
        given = type(chunks).__name__
        raise InvalidArgument(f"expected an iterable of chunks, got {given}; `push` takes a single one") from None


def _whole(value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or number < least:
        raise InvalidArgument(f"chunks: {value!r} is not a number of frames, at least {least}")
    return number


def check_seed(seed: Any) -> None:
    """Raises InvalidArgument unless random inputs can be drawn with it."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidArgument(f"seed={seed!r}: expected a whole number, at least 0")


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
