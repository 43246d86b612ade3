"""The picture of time: what every layer reads for one output frame, and how far each of them is when that comes out.

input    . . [ x x x x x x x ] . |           what is read of it; all that has come so far
layer    . . . . [ x x x ] . |               late by what it waits for
output   . . . . . . k |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from pulsify.core.spec import Output
from pulsify.report.delays import chain, lateness, made_by, moves, waits
from pulsify.report.figures import Figures, plain

if TYPE_CHECKING:
    from pulsify.plan.trail import Course, Look, Trail

FEWEST, MOST = 8, 64  # output frames that are told: those of a pulse, no fewer and no more than so many
PAST = 16  # frames, or more, that lie before those that are told, where all of the past is in them
ROWS = 60  # layers that are told; of more, those that add to the delay and the first of the others


@dataclass(frozen=True)
class Reading:
    """Frames of a wire, first to last; since: and all before."""

    first: int
    last: int
    since: bool = False

    def joined(self, other: Reading | None) -> Reading:
        if other is None:
            return self
        return Reading(min(self.first, other.first), max(self.last, other.last), self.since or other.since)


def reading(course: Course, wire: str, frame: int) -> dict[str, Reading]:
    """For one frame of a wire: what is read of every wire it is made of. Frames before the first count as any other."""
    found = {wire: Reading(frame, frame)}
    begun = False
    for name, trail in reversed(course.trails.items()):  # filed in order: whoever reads comes behind what it reads
        own = found.get(name)
        if own is None:
            continue
        begun = begun or trail.first
        for look in trail.looks:
            first, last = look.span(own.first, own.last)
            found[look.wire] = Reading(first, last, own.since or look.since).joined(found.get(look.wire))
    if begun:  # the first frames of the stream are in all of it
        found = {n: Reading(r.first, r.last, True) for n, r in found.items()}
    return found


def period(course: Course) -> int:
    """Pulses after which every wire is read in the same way again."""
    spans = [(len(look.spans), trail.p) for trail in course.trails.values() for look in trail.looks]
    return math.lcm(1, *(n // math.gcd(n, p) for n, p in spans if p))


def reading_figures(course: Course) -> list[Figures]:
    """For every output with a time axis: layers, and what is read of each for some output frames, far from both ends.

    Times count frames of the first input. `read`, by layer: from the first frame that is read to the end of the last,
    and whether all before are too, by way of a state; null where nothing is read.
    """
    return [
        _output(course, out, wire)
        for out, wire in course.outputs
        if out.axis is not None and out.rate and wire is not None
    ]


def _output(course: Course, out: Output, wire: str) -> Figures:
    first_rate = course.first_rate
    seen = reading(course, wire, 0)
    added = {s.wire: s.added for s in waits(chain(course, out, wire))}
    layers = [n for n in course.trails if n in seen and _is_layer(course, course.trails[n], n in added)]
    layers = _fewer(layers, {*added, wire, *(n for n in layers if not course.trails[n].looks)})
    scale = {n: course.pulse * first_rate / course.trails[n].p for n in layers}  # input frames that a frame lasts
    per = int(out.rate * course.pulse)
    start = _from(course, wire, seen, per)
    frames = [start + k for k in range(min(max(FEWEST, per), MOST))]
    own = first_rate / out.rate
    told = [
        {
            "frame": k,
            "time": [plain(k * own), plain((k + 1) * own)],
            "arrived": plain(_arrived(course, out, k) * first_rate),
            "read": [_read(r, scale[n]) for n, r in _of(layers, reading(course, wire, k))],
        }
        for k in frames
    ]
    return {
        "output": out.name,
        "rate": str(out.rate),
        "layers": [_layer(course, n, added.get(n, Fraction(0)), first_rate) for n in layers],
        "range": _range(told),
        "frames": told,
    }


def _range(told: list[Figures]) -> list[int | float]:
    """The times that all of it lies between."""
    starts = [r[0] for f in told for r in f["read"] if r is not None]
    since = any(r is not None and r[2] for f in told for r in f["read"])
    low = 0 if since else max(min([*starts, *(f["time"][0] for f in told)]), 0)
    return [low, max(f["arrived"] for f in told)]


def _of(layers: list[str], found: dict[str, Reading]) -> list[tuple[str, Reading | None]]:
    return [(n, found.get(n)) for n in layers]


def _read(r: Reading | None, scale: Fraction) -> list[int | float | bool] | None:
    return None if r is None else [plain(r.first * scale), plain((r.last + 1) * scale), r.since]


def _arrived(course: Course, out: Output, frame: int) -> int:
    """Units of the stream that have come in when this frame comes out."""
    per = out.rate * course.pulse
    return (math.floor(Fraction(frame + out.delay) / per) + 1) * course.pulse - course.phase


def _is_layer(course: Course, trail: Trail, adds: bool) -> bool:
    """Inputs, and what reads other frames than its own."""
    wide = any(look.since or _beyond(course, look, trail) for look in trail.looks)
    return not trail.looks or wide or (adds and not moves(trail))


def _beyond(course: Course, look: Look, trail: Trail) -> bool:
    """Does a frame read what lies outside of its own time? A regrouped one does not, nor one at another place."""
    if look.wire not in course.trails or all(a == b for a, b in look.spans):
        return False
    own, read = Fraction(1, trail.p), Fraction(1, course.trails[look.wire].p)
    return any(a * read < k * own or (b + 1) * read > (k + 1) * own for k, (a, b) in enumerate(look.spans))


def _fewer(layers: list[str], kept: set[str]) -> list[str]:
    spare = max(ROWS - len(kept), 0)
    others = {n for n in layers if n not in kept}
    others = set([n for n in layers if n in others][:spare])
    return [n for n in layers if n in kept or n in others]


def _layer(course: Course, wire: str, added: Fraction, first_rate: Fraction) -> Figures:
    trail = course.trails[wire]
    node, op = made_by(course, wire)
    return {
        "wire": wire,
        "node": node,
        "op": op,
        "rate": str(Fraction(trail.p, course.pulse)),
        "late_input_frames": plain(lateness(course, trail) * first_rate),
        "added_input_frames": plain(added * first_rate),
    }


def _from(course: Course, wire: str, seen: dict[str, Reading], per: int) -> int:
    """The first frame of a pulse, behind which nothing in front of the stream is read; of chunks, a first one."""
    pulses = PAST // course.pulse + 1 if any(r.since for r in seen.values()) else 0
    for name, r in seen.items():
        if name in course.trails and course.trails[name].p:
            pulses = max(pulses, -(r.first // course.trails[name].p))
    turn = period(course)
    return per * turn * -(-pulses // turn)
