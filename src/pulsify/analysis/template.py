"""Known arrays over (row, col): cut out at one pulse, the same at every pulse, or at every pulse of one phase.

    col  . . . . . . .
row .    [a b c]                      pulse n
    .      [a b c]                    pulse n+1: the same cut-out, moved on by p rows and p cols
    .        [a b c]
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from pulsify.analysis.facts import Window, Windows
from pulsify.trace.traced import Array

MOST_PHASES = 256


@dataclass(frozen=True, eq=False)
class Template:
    """phases[n % len(phases)] is what pulse n sees, wherever that lies inside the array."""

    phases: tuple[Array, ...]
    axes: tuple[int, int]
    windows: Windows

    def fits(self, array: Array) -> bool:
        """Does it say the truth at every pulse, up to both ends of the array?"""
        return all(
            np.array_equal(
                *_overlap(array, self.phases[n % len(self.phases)], self.axes, self.windows, n), equal_nan=_nan(array)
            )
            for n in range(pulses(array, self.axes, self.windows))
        )


def in_step(windows: Windows) -> tuple[Windows, int]:
    """Windows that come so many pulses late without that delay: what they see of an array is the same, so much earlier.

    Before the first pulse they see none of it.
    """
    rows, _ = windows
    late = max(1 - -(-rows.end // rows.p), 0)
    first, second = (Window(w.p, w.start + late * w.p, w.end + late * w.p) for w in windows)
    return (first, second), late


def _nan(array: Array) -> bool:
    return array.dtype.kind == "f"


def pulses(array: Array, axes: tuple[int, int], windows: Windows) -> int:
    """Pulses that see any of the array."""
    return max(-(-(array.shape[a] - w.start) // w.p) for a, w in zip(axes, windows, strict=True))


def _bounds(size: int, window: Window, n: int) -> tuple[int, int]:
    lo = n * window.p + window.start
    return max(lo, 0), max(min(lo + window.frames, size), max(lo, 0))


def _cut(array: Array, axes: tuple[int, int], windows: Windows, n: int) -> Array:
    """What pulse n sees, as far as it lies inside the array."""
    index: list[slice] = [slice(None)] * array.ndim
    for a, w in zip(axes, windows, strict=True):
        index[a] = slice(*_bounds(array.shape[a], w, n))
    return array[tuple(index)]


def _overlap(array: Array, template: Array, axes: tuple[int, int], windows: Windows, n: int) -> tuple[Array, Array]:
    part = _cut(array, axes, windows, n)
    index: list[slice] = [slice(None)] * array.ndim
    for a, w in zip(axes, windows, strict=True):
        lo, hi = _bounds(array.shape[a], w, n)
        index[a] = slice(lo - n * w.p - w.start, hi - n * w.p - w.start)
    return part, template[tuple(index)]


def whole(array: Array, axes: tuple[int, int], windows: Windows) -> list[int]:
    """Pulses whose windows lie wholly inside the array."""
    return [
        n
        for n in range(pulses(array, axes, windows))
        if all(n * w.p + w.start >= 0 and n * w.p + w.end <= array.shape[a] for a, w in zip(axes, windows, strict=True))
    ]


def find(array: Array, axes: tuple[int, int], windows: Windows) -> Template | None:
    """The template with the fewest phases, or None if no small number of phases explains the array.

    Of the numbers of phases that explain all whole windows the smallest divides the others (they are at most half as
    many as the windows), so what it says is what they say.
    """
    inside = whole(array, axes, windows)
    kinds = _kinds(array, axes, windows, inside)
    for count in range(1, min(MOST_PHASES, len(inside) // 2) + 1):
        if np.array_equal(kinds[count:], kinds[:-count]):
            cuts = [_cut(array, axes, windows, n) for n in inside[:count]]
            template = Template(tuple(cuts[(n - inside[0]) % count] for n in range(count)), axes, windows)
            return template if template.fits(array) else None
    return None


def _kinds(array: Array, axes: tuple[int, int], windows: Windows, inside: list[int]) -> Array:
    """A number for each of those pulses: the same where they see the same."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(_content(_cut(array, axes, windows, n)), len(numbers)) for n in inside])


def _content(part: Array) -> bytes:
    """The same bytes for arrays that are equal: neither zeros nor NaN differ."""
    if _nan(part):
        part = np.where(np.isnan(part), np.array(np.nan, part.dtype), part + np.array(0, part.dtype))
    return hashlib.blake2b(np.ascontiguousarray(part).tobytes(), digest_size=16).digest()
