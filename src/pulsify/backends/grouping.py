"""Which streams of a pool may be computed together."""

from __future__ import annotations

import numpy as np

from pulsify.backends.seam import Array, Which


def alike(*keys: Array) -> list[Which]:
    """Those of which all keys are equal, in the order in which the first of each comes."""
    count = len(keys[0])
    different = [key for key in keys if count and (key != key[0]).any()]
    if not different:
        return [slice(0, count)] if count else []
    _, first, inverse = np.unique(np.stack(different), axis=1, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(inverse))[:-1])
    return [parts[i] for i in np.argsort(first)]


def apart(count: int) -> list[Which]:
    """Each by itself."""
    return [slice(i, i + 1) for i in range(count)]


def at_most(groups: list[Which], largest: int) -> list[Which]:
    """The same in pieces of no more than that."""
    out: list[Which] = []
    for group in groups:
        if isinstance(group, slice):
            out += [slice(i, min(i + largest, group.stop)) for i in range(group.start, group.stop, largest)]
        else:
            out += [group[i : i + largest] for i in range(0, len(group), largest)]
    return out
