"""Which input frames an output frame reads.

input   . . [ x x x ] . . .
              \\ | /
output  . . . . k . . . . .       Reach: first(k) .. last(k), both floor((k*num + c) / den)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Reach:
    """Output frame k reads input frames first(k) to last(k), which advance by num/den per output frame."""

    num: int = 1
    den: int = 1
    lo: int = 0
    hi: int = 0

    def first(self, k: int) -> int:
        return (k * self.num + self.lo) // self.den

    def last(self, k: int) -> int:
        return (k * self.num + self.hi) // self.den

    def span(self, a: int, b: int) -> tuple[int, int]:
        """The input window [lo, hi) read by the output window [a, b)."""
        return self.first(a), self.last(b - 1) + 1

    def latest_end(self, b: int) -> int:
        """The largest output end b' such that all of [.., b') reads only input frames below b."""
        return (b * self.den - self.hi - 1) // self.num + 1

    @property
    def ratio(self) -> Fraction:
        """Output frames per input frame."""
        return Fraction(self.den, self.num)

    @property
    def pointwise(self) -> bool:
        return self == POINTWISE


POINTWISE = Reach()


def shift(frames: int) -> Reach:
    """Output frame k reads input frame k + frames."""
    return Reach(lo=frames, hi=frames)


def fit(firsts: Sequence[int], lasts: Sequence[int], step: Fraction) -> Reach:
    """The tightest Reach of slope `step` (input frames per output frame) that covers firsts[k] .. lasts[k]."""
    num, den = step.numerator, step.denominator
    lo = min(f * den + den - 1 - k * num for k, f in enumerate(firsts))
    hi = max(g * den - k * num for k, g in enumerate(lasts))
    return Reach(num, den, lo, hi)
