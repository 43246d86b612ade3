"""Which columns of a field its rows look at: all that windows are chosen from, worked out some rows at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from pulsify.trace.traced import Array


@dataclass(frozen=True, eq=False)
class Spans:
    """rows: those that look at any column; they look at `count` columns, from `first` to `last`.

    front: how many of the first columns of the stream they look at; rest: the first column that they look at behind
    one they do not. Without such a column that is the number of all columns.
    """

    shape: tuple[int, int]
    rows: Array
    first: Array
    last: Array
    count: Array
    front: Array
    rest: Array

    @property
    def all_before(self) -> bool:
        """Does every row look at all columns from the first of the stream on, up to its last?"""
        whole = len(self.rows) == self.shape[0] and not self.first.any()
        return bool(whole and (self.count == self.last + 1).all())

    def behind(self, first: int) -> Spans:
        """The same without so many first columns of the stream; rows that look at no others count from their last."""
        if not first:
            return self
        others = np.where(self.front <= first, np.where(self.rest < self.shape[1], self.rest, self.last), first)
        return replace(self, first=np.minimum(np.where(self.first < first, others, self.first), self.last))

    @property
    def mask(self) -> Array:
        """The cells, of rows that look at all columns before their last."""
        assert self.all_before
        return np.arange(self.shape[1])[None] <= self.last[:, None]


def spans(looked: Array, start: int = 0) -> Spans:
    """Of the cells that rows from `start` on look at."""
    rows = np.flatnonzero(looked.any(1))
    some = looked[rows]
    first, last, count = some.argmax(1), looked.shape[1] - 1 - some[:, ::-1].argmax(1), some.sum(1)
    front = np.where(first == 0, count, 0)
    rest = np.where(first == 0, looked.shape[1], first)
    apart = np.flatnonzero((first == 0) & (count <= last))
    front[apart] = some[apart].argmin(1)
    behind = some[apart] & (np.arange(looked.shape[1])[None] >= front[apart][:, None])
    rest[apart] = behind.argmax(1)
    return Spans((looked.shape[0], looked.shape[1]), rows + start, first, last, count, front, rest)


def joined(parts: Iterable[Spans]) -> Spans:
    """One below the other."""
    found = list(parts)
    if len(found) == 1:
        return found[0]
    every = ("rows", "first", "last", "count", "front", "rest")
    rows, first, last, count, front, rest = (np.concatenate([getattr(p, w) for p in found]) for w in every)
    return Spans((sum(p.shape[0] for p in found), found[0].shape[1]), rows, first, last, count, front, rest)
