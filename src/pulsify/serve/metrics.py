"""Figures of a server, as Prometheus reads them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping

EDGES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # seconds
MEMORY = 5.0  # seconds over which the duty cycle is taken


class Meter:
    """What one thread has done. It alone writes; whoever reads may see a number one round old."""

    def __init__(self) -> None:
        self.rounds = self.pulses = self.lags = 0
        self.busy = self.lag_seconds = 0.0
        self.counts = [0] * (len(EDGES) + 1)
        self._slowest = (time.monotonic(), 0.0)
        self._window = (time.monotonic(), 0.0)
        self._duty = 0.0

    def round(self, pulses: int, seconds: float, one: float) -> None:
        """one: of those seconds, for a pulse of each stream."""
        self.rounds += 1
        self.pulses += pulses
        self.busy += seconds
        if one > self.slowest:
            self._slowest = time.monotonic(), one

    def lag(self, seconds: float) -> None:
        self.lags += 1
        self.lag_seconds += seconds
        self.counts[bisect_left(EDGES, seconds)] += 1

    @property
    def slowest(self) -> float:
        """Seconds for a pulse of each in the slowest round of late: one of a second ago counts half."""
        when, seconds = self._slowest
        return seconds * 0.5 ** (time.monotonic() - when)

    @property
    def duty(self) -> float:
        """The share of the last seconds in which it was computing."""
        since, busy = self._window
        now = time.monotonic()
        if now - since >= MEMORY:
            self._duty = min((self.busy - busy) / (now - since), 1.0)
            self._window = now, self.busy
        elif now - since > 0.5:
            return max(self._duty, min((self.busy - busy) / (now - since), 1.0))
        return self._duty


def text(rows: Iterable[tuple[str, str, Mapping[str, str], float]]) -> str:
    """Rows of name, type, labels and value, those of one name in a row."""
    out, last = [], ""
    for name, kind, labels, value in rows:
        if name != last:
            out.append(f"# TYPE pulsify_{name} {kind}")
            last = name
        shown = ",".join(f'{k}="{v}"' for k, v in labels.items())
        out.append(f"pulsify_{name}{{{shown}}} {value:.10g}" if shown else f"pulsify_{name} {value:.10g}")
    return "\n".join(out) + "\n"


def histogram(name: str, labels: Mapping[str, str], meter: Meter) -> list[str]:
    """How long frames were on their way, in seconds."""
    shown = "".join(f'{k}="{v}",' for k, v in labels.items())
    out, total = [f"# TYPE pulsify_{name} histogram"], 0
    for edge, count in zip([*EDGES, "+Inf"], meter.counts, strict=True):
        total += count
        out.append(f'pulsify_{name}_bucket{{{shown}le="{edge}"}} {total}')
    plain = f"{{{shown[:-1]}}}" if shown else ""
    return [*out, f"pulsify_{name}_sum{plain} {meter.lag_seconds:.10g}", f"pulsify_{name}_count{plain} {total}"]
