"""What a conversion has claimed, and what it asks of the stream."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pulsify.core.length import Length
from pulsify.core.spec import Condition, Proof
from pulsify.lengths import series as one
from pulsify.lengths.series import LONGEST, Series

CRITICAL = 8  # lengths around which something changes that a file names: so many of the shortest and longest


@dataclass(eq=False)
class Ledger:
    """What was claimed of a conversion and proven, what was only sampled, and what is required of the stream."""

    horizon: int = 1
    period: int = 1
    limit: int = LONGEST
    limited_by: str = ""  # the value, or node, that is exact no further
    claims: int = 0
    critical: set[int] = field(default_factory=set)  # lengths around which something changes
    sampled: dict[str, str] = field(default_factory=dict)  # what -> why it is not certain
    assumed: dict[str, float] = field(default_factory=dict)  # scores -> what is lower by this has no weight
    taken: dict[str, None] = field(default_factory=dict)  # what else is taken of the data, in words
    tables: dict[int, str] = field(default_factory=dict)  # length at which values end -> the node that reads them
    failing: list[Any] = field(default_factory=list)  # lengths at which batch fails, see proof/failing
    conditions: dict[Condition, None] = field(default_factory=dict)  # on the stream's length
    denominators: set[int] = field(default_factory=set)  # of rates: the pulse must be a multiple of each
    chunks: set[int] = field(default_factory=set)  # frames of the stream that attention takes as a whole
    kept: int | None = None  # the longest stream, in frames of the stream, for which what is kept is enough

    def require(self, node: str, length: Length, **what: Any) -> None:
        """A wire of this length must have so many frames (what: see `Condition`), or the stream is rejected."""
        self.conditions[Condition(node, length, **what)] = None

    def saw(self, horizon: int, period: int) -> None:
        self.horizon = max(self.horizon, horizon)
        self.period = math.lcm(self.period, period) if period <= one.MOST else self.period
        if horizon > 1:
            self.critical.add(horizon)
        if period > 1:
            self.critical.add(horizon + period)

    def up_to(self, limit: int, name: str) -> None:
        """What is certain is so for streams of no more frames than this."""
        if limit < self.limit:
            self.limit, self.limited_by = limit, name

    def assume(self, scores: str, margin: float) -> None:
        """Masks of finite numbers hide only scores that differ by less than this."""
        self.assumed[scores] = min(self.assumed.get(scores, math.inf), margin)

    def proof(self) -> Proof:
        """As the file has it."""
        near = sorted(self.critical)
        return Proof(
            self.horizon,
            self.period,
            self.limit if self.limit < LONGEST else None,
            (*near[:CRITICAL], *near[CRITICAL:][-CRITICAL:]),
            tuple(f"{what}: {why}" for what, why in self.sampled.items()),
            (*_assumed(self.assumed), *self.taken),
        )

    def series(self, s: Series, name: str = "") -> None:
        self.claims += 1
        self.up_to(s.certain, name)
        self.saw(s.settled if s.horizon else 1, s.repeats)


def _assumed(margins: dict[str, float]) -> tuple[str, ...]:
    """By margin: layers are masked alike."""
    by: dict[float, list[str]] = {}
    for name, margin in margins.items():
        by.setdefault(margin, []).append(name)
    return tuple(
        f"scores of one row differ by less than {margin:.4g} (their mask is a finite number): "
        f"'{names[0]}'" + (f" and {len(names) - 1} more" if names[1:] else "")
        for margin, names in sorted(by.items())
    )


def shortest_length(conditions: Iterable[Condition], step: int) -> int:
    """The shortest stream the batch model takes (all conditions are on numbers that grow with the length)."""
    low, high = 0, 1
    floors = [r for r in conditions if r.at_least]
    while not all(r.length.at(high) >= r.at_least for r in floors):
        high *= 2
        if high > 1 << 40:
            break
    while high - low > 1:
        middle = (low + high) // 2
        if all(r.length.at(middle) >= r.at_least for r in floors):
            high = middle
        else:
            low = middle
    return max(-(-high // step) * step, 1)
