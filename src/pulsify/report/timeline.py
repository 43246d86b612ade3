"""A picture of a stream over time: what comes in and what is given out at every pulse.

pulse 0   #######...                          '#' given out at this pulse
pulse 1          ##########...                '.' came in, still held back (the delay)
flush                      ######
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pulsify.core.framing import given

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
    scale = Fraction(max(width // (len(steps) + max(spec.opening - 1, 0)), 1), spec.pulse)  # whole columns a pulse
    rows, arrived = [], 0
    for n, (taken, low, high) in enumerate(steps):
        arrived += taken
        shown = slice(round(low * scale), round(high * scale))
        held = round(arrived * scale)
        bar = " " * shown.start + "#" * (shown.stop - shown.start)
        bar += "." * (held - len(bar))
        out = int((high - low) * port.rate)
        whole = taken == (spec.pulse if n else spec.first_call)
        name = ("opening" if spec.opening and not n else f"pulse {n}") if whole else "flush"
        rows.append((name, bar, f"{taken:5d} in, {out:4d} out"))
    return rows


def _steps(spec: Spec, port: Output, length: int) -> list[tuple[int, Fraction, Fraction]]:
    """Per call: units taken in, and the units of time its output frames stand for."""
    total = max(port.length.at(length), 0)
    out: list[tuple[int, Fraction, Fraction]] = []
    n, step, needed = 0, spec.opening or 1, port.framing.until(total)
    while n * spec.pulse - spec.phase < length or n < needed:
        low, high = (given(pulses, port.frames, port.delay, total) for pulses in (n, n + step))
        begun = max(n * spec.pulse - spec.phase, 0)
        taken = max(min(length, (n + step) * spec.pulse - spec.phase) - begun, 0)
        out.append((taken, low / port.rate, high / port.rate))
        n, step = n + step, 1
        if len(out) > MOST_ROWS:
            break
    return out
