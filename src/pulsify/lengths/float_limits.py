"""How far a float can be off the number it stands for, and for how long it is not off at all.

A float holds a number exactly while that is a multiple of some step (1, 1/8, ...), and no more than 2^digits steps:

    pos + 16776216.0     step 1,      exact while pos + 16776216 <= 2^24
    pos + 1/1024         step 1/1024, exact while pos <= 16383

Beyond that every operation adds up to half a unit in the last place of its result, however small what is left of it
later on. One rounding alone does little harm: it keeps the order of what is rounded, and whole numbers where they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from pulsify.core.length import LONGEST as LONGEST

Array = np.ndarray[Any, Any]
LONG = 1 << 20  # frames: what is exact for so long counts as exact, and has a limit
BLOCK = 1 << 16  # floats that are taken apart at once
DIGITS = {"FLOAT16": 11, "BFLOAT16": 8, "FLOAT": 24, "DOUBLE": 53}  # binary digits of the types of floats
OF_SIZE = {2: 11, 4: 24, 8: 53}  # the same by bytes
NUMPY = {11: np.float16, 24: np.float32, 53: np.float64}
LARGEST = {8: 2.0**127, 11: 65504.0, 24: 2.0**127, 53: 2.0**1023}  # what is larger may be infinite
TINIEST = {8: 2.0**-133, 11: 2.0**-24, 24: 2.0**-149, 53: 2.0**-1074}  # what is smaller is rounded to that, or to zero
SMALL = 2.0**-14  # of this even half precision holds multiples exactly
INT64 = (1 << 63) - 1


class Unsure(Exception):
    """What a value does at some length is not known, and why.

    node: of the model, at which it was lost. value: its name, if it is not the one that was asked for. remedy: a fix.
    """

    node: Any = None
    value: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Drift:
    """Of a float: all of it is exact for streams of up to `fits` frames.

    For streams of up to `exact` frames it is a number rounded no more than `roundings` times, and for those of up to
    `same` frames it is the same wherever the number it stands for is; for those of up to `whole` frames it is exact
    where that number is whole: (T - 7) / 5 + 1. At any length it is off by no more than fuzz + noise * frames.
    """

    digits: int = 24
    fits: int = LONGEST
    exact: int = LONGEST
    roundings: int = 0
    noise: float = 0.0
    fuzz: float = 0.0
    same: int = LONGEST
    whole: int = LONGEST

    @property
    def none(self) -> bool:
        """Nothing was rounded that goes with the length: a float like this is what the runtime has."""
        return self.fits == self.exact == LONGEST and not self.roundings and not self.fuzz and not self.noise

    def off(self, lengths: Any) -> Any:
        """How much it may be off, at these lengths."""
        return self.fuzz + self.noise * lengths

    def until(self, gap: float) -> int:
        """The longest stream for which it is off by less than so much; 0 if there is none."""
        if not gap > self.fuzz:
            return 0
        return int(min((gap - self.fuzz) / self.noise * 0.999, LONGEST)) if self.noise else LONGEST

    def scaled(self, by: float) -> Drift:
        return replace(self, noise=self.noise * abs(by), fuzz=self.fuzz * abs(by), whole=0)

    def rounded(self, cap: int, size: float, steep: float, enough: int = LONG, whole: int = 0) -> Drift:
        """Of a result that fits for `cap` frames, and is no larger than size + steep * frames.

        enough: what is exact for so long counts as exact. whole: for so many frames a whole number of this size fits.
        """
        eps = 1.01 * 2.0**-self.digits
        fits = min(self.fits, cap)
        noise, fuzz = self.noise + eps * steep, self.fuzz + eps * size + TINIEST[self.digits]
        exact, roundings = (self.fits, 1) if self.fits >= enough else (self.exact, self.roundings + 1)
        same = max(self.same, self.fits if self.fits >= enough else 0)
        whole = min(whole, self.fits if self.fits >= enough else self.whole)
        return replace(
            self, fits=fits, exact=exact, roundings=roundings, noise=noise, fuzz=fuzz, same=same, whole=whole
        )

    def certain(self, gap: float, met: bool, whole: bool = False) -> int:
        """How long a stream may be for rounding not to carry it across a point.

        gap: how near it comes to the point otherwise; met: does it stand on that point exactly, too? whole: all points
        are whole numbers.
        """
        best = max(self.fits, min(self.whole, self.until(gap)) if whole else 0)
        if self.roundings <= 1:
            best = max(best, min(self.exact, self.until(gap)))
        if not met:
            best = max(best, self.until(gap))
        if best < 1:
            raise Unsure("rounding may decide how it compares, or where it is cut")
        return best


def beside(*of: Drift) -> Drift:
    """Of what is chosen from several floats, entry by entry."""
    return Drift(
        min((d.digits for d in of), default=24),
        min((d.fits for d in of), default=LONGEST),
        min((d.exact for d in of), default=LONGEST),
        max((d.roundings for d in of), default=0),
        max((d.noise for d in of), default=0.0),
        max((d.fuzz for d in of), default=0.0),
        min((d.same for d in of), default=LONGEST),
        min((d.whole for d in of), default=LONGEST),
    )


def together(a: Drift, b: Drift) -> Drift:
    """Of a sum, before it is rounded itself."""
    roundings = a.roundings + b.roundings
    same = min(a.same, b.same) if a.none or b.none else 0  # two may be rounded otherwise where their sum is the same
    whole = LONGEST if a.none and b.none else 0
    return replace(
        beside(a, b), roundings=roundings, noise=a.noise + b.noise, fuzz=a.fuzz + b.fuzz, same=same, whole=whole
    )


def digits_of(dtype: Any) -> int:
    """Of a type of onnx_ir."""
    if dtype.name not in DIGITS:
        raise Unsure(f"nothing is known of how {dtype.name} is rounded")
    return DIGITS[dtype.name]


def as_held(values: Array, digits: int) -> Array:
    """Numbers of double precision, rounded to a type of float."""
    if digits not in NUMPY:
        raise Unsure("nothing is known of how it is rounded")
    with np.errstate(over="ignore"):
        return values.astype(NUMPY[digits]).astype(np.float64)


def shifts(factor: Fraction, step: Fraction | None) -> bool:
    """Does a product of multiples of a step with it move the binary point only? (What is too small is rounded.)"""
    n, d = abs(factor.numerator), factor.denominator
    power = n > 0 and n & (n - 1) == 0 and d & (d - 1) == 0
    return power and (n >= d or binary(step) * n / d >= SMALL)


def binary(step: Fraction | None) -> float:
    """The largest power of two of which all multiples of a step are multiples; 0 if there is none to speak of."""
    if step is None or not step or step.denominator & (step.denominator - 1) or step.denominator > 1 << 120:
        return 0.0
    return float(Fraction(step.numerator & -step.numerator, step.denominator))


def common(*steps: Fraction | None) -> Fraction | None:
    """The largest number of which several are multiples."""
    out = Fraction(0)
    for s in steps:
        if s is None:
            return None
        n = math.gcd(out.numerator * s.denominator, s.numerator * out.denominator)
        out = Fraction(n, out.denominator * s.denominator)
    return out


def step_of(values: Array) -> Fraction | None:
    """The largest power of two of which all are multiples (0 if they are all zero); None if one is no number."""
    x = np.asarray(values)
    if x.dtype.kind in "biu":
        return Fraction(int(np.gcd.reduce(np.abs(x.astype(np.int64)).reshape(-1)))) if x.size else Fraction(0)
    if x.dtype.kind != "f" or not np.isfinite(x).all():
        return None
    flat = x.reshape(-1)
    powers = [_lowest_bit(flat[n : n + BLOCK]) for n in range(0, flat.size, BLOCK)]  # tables may be large
    power = min((p for p in powers if p is not None), default=None)
    return Fraction(0) if power is None else Fraction(2) ** power


def _lowest_bit(x: Array) -> int | None:
    """The power of two of the lowest bit that is set in any of some floats; None if they are all zero."""
    x = x.astype(np.float64)[x != 0]
    if not x.size:
        return None
    mantissa, exponent = np.frexp(x)
    bits = np.abs(mantissa * 2.0**53).astype(np.int64)
    lowest = np.log2((bits & -bits).astype(np.float64)).astype(np.int64)
    return int((exponent - 53 + lowest).min())
