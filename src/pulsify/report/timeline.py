"""A picture of a stream over time: what comes in and what is given out at every pulse.

pulse 0   #######...                          '#' given out at this pulse
pulse 1          ##########...                '.' came in, still held back (the delay)
flush                      ######
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulsify.core.spec import Output, Spec

MOST_ROWS = 12


def timeline(spec: Spec, length: int, width: int = 48) -> list[tuple[str, str, str]]:
    """Rows of (label, bar, note) for a stream of `length` units; empty if it has too many pulses to draw."""
    port = next((o for o in spec.outputs if o.axis is not None), None)
    if port is None:
        return []
    steps = _steps(spec, port, length)
    if not steps or len(steps) > MOST_ROWS:
        return []
    scale = Fraction(max(width // len(steps), 1), spec.pulse)  # whole columns a pulse
    rows = []
    for n, (taken, low, high) in enumerate(steps):
        arrived = min((n + 1) * spec.pulse, length)
        given = slice(round(low * scale), round(high * scale))
        held = round(arrived * scale)
        bar = " " * given.start + "#" * (given.stop - given.start)
        bar += "." * (held - len(bar))
        out = int((high - low) * port.rate)
        rows.append((f"pulse {n}" if taken == spec.pulse else "flush", bar, f"{taken:5d} in, {out:4d} out"))
    return rows


def _steps(spec: Spec, port: Output, length: int) -> list[tuple[int, Fraction, Fraction]]:
    """Per pulse: units taken in, and the units of time its output frames stand for."""
    total = max(port.length.at(length), 0)
    out: list[tuple[int, Fraction, Fraction]] = []
    n = 0
    while n * spec.pulse < length or n * port.frames - port.delay < total:
        low = min(max(n * port.frames - port.delay, 0), total)
        high = min(max((n + 1) * port.frames - port.delay, 0), total)
        taken = max(min(length - n * spec.pulse, spec.pulse), 0)
        out.append((taken, low / port.rate, high / port.rate))
        n += 1
        if n > MOST_ROWS:
            break
    return out
