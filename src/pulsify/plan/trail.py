"""Where a wire comes from in time: frames it is made of, what its windows wait for. Nothing is computed by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from pulsify.core.length import Length
from pulsify.core.reach import POINTWISE, Reach
from pulsify.core.spec import Output

Span = tuple[int, int]


@dataclass(frozen=True)
class Look:
    """Frames of one wire that are read: frame c * n + i reads c * step + spans[i], first to last, n being their number.

    since: all earlier frames too (it carries a state, or looks back to the start).
    """

    wire: str
    spans: tuple[Span, ...] = ((0, 0),)
    step: int = 1
    since: bool = False

    def span(self, first: int, last: int) -> Span:
        """The first and the last frame that frames first ... last read."""
        n = len(self.spans)
        frames = range(first, min(last, first + n - 1) + 1), range(max(first, last - n + 1), last + 1)
        low = min(k // n * self.step + self.spans[k % n][0] for k in frames[0])
        return low, max(k // n * self.step + self.spans[k % n][1] for k in frames[1])


@dataclass(frozen=True)
class Trail:
    """p, end: of the wire's windows. after: the wire that comes last of those it waits for; why: what for.

    ahead     frames that it reads come later
    look      the same, where every frame may look at every other: attention
    length    whether a frame exists is known only later
    carry     it sees every frame once, and none before its pulse
    start     the first frames show later ones
    first     it is made of the first frames of the stream, too

    spared: what it reads where windows end elsewhere (`plan/phase.py`); least: what it surely reads far from both ends
    (`plan/start_up.py`); the same as `looks`, if empty. length: of the wire.
    """

    p: int
    end: int
    looks: tuple[Look, ...] = ()
    after: str | None = None
    why: str = "ahead"
    first: bool = False
    spared: tuple[Look, ...] = ()
    least: tuple[Look, ...] = ()
    length: Length | None = None


@dataclass(frozen=True, eq=False)
class Course:
    """Time through a whole plan: its wires, each behind what it reads, and the nodes that make them, by wire.

    outputs: with the wire each is given out of, if it is a stream of data. first_rate: frames of the first input per
    unit of the stream's length.
    """

    pulse: int
    phase: int
    first_rate: Fraction
    trails: dict[str, Trail]
    makers: Mapping[str, tuple[str, str]]
    outputs: tuple[tuple[Output, str | None], ...]


def look(wire: str, reach: Reach = POINTWISE, since: bool = False) -> Look:
    """What a reach reads of a wire."""
    spans = tuple((reach.first(k), reach.last(k)) for k in range(reach.den))
    return Look(wire, spans, reach.num, since)
