"""Which columns of a field its rows look at: all that windows are chosen from, worked out some rows at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pulsify.trace.traced import Array


@dataclass(frozen=True, eq=False)
class Spans:
    """rows: those that look at any column; they look at `count` columns, from `first` to `last`."""

    shape: tuple[int, int]
    rows: Array
    first: Array
    last: Array
    count: Array

    @property
    def all_before(self) -> bool:
        """Does every row look at all columns from the first of the stream on, up to its last?"""
        whole = len(self.rows) == self.shape[0] and not self.first.any()
        return bool(whole and (self.count == self.last + 1).all())

    @property
    def mask(self) -> Array:
        """The cells, of rows that look at all columns before their last."""
        assert self.all_before
        return np.arange(self.shape[1])[None] <= self.last[:, None]


def spans(looked: Array, start: int = 0) -> Spans:
    """Of the cells that rows from `start` on look at."""
    rows = np.flatnonzero(looked.any(1))
    some = looked[rows]
    last = looked.shape[1] - 1 - some[:, ::-1].argmax(1)
    return Spans((looked.shape[0], looked.shape[1]), rows + start, some.argmax(1), last, some.sum(1))


def joined(parts: Iterable[Spans]) -> Spans:
    """One below the other."""
    found = list(parts)
    if len(found) == 1:
        return found[0]
    rows, first, last, count = (
        np.concatenate([getattr(p, what) for p in found]) for what in ("rows", "first", "last", "count")
    )
    return Spans((sum(p.shape[0] for p in found), found[0].shape[1]), rows, first, last, count)
