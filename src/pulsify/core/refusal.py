"""What a refusal is made of: its kind, and remedies that can be tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final


class Kind(StrEnum):
    """Why a model, or a part of it, has no exact stream."""

    LOOK_AHEAD = "look-ahead"  # attention reaches forward without bound
    LOOK_BACK = "look-back"  # attention reaches back without bound
    BACKWARDS = "backwards"  # it starts at the end of the stream: a reversed recurrence, a flip
    WHOLE_STREAM = "whole-stream"  # frames are joined with a result that is known at the end only
    LENGTH = "length"  # it follows from the stream's length in a way that no stream has
    NOT_PROVEN = "not-proven"  # an exact stream may exist, but it is not certain at every length
    DATA = "data"  # a shape, a place or a branch depends on the data
    ATTENTION = "attention"  # a form of masks or scores that no rule covers
    AXES = "axes"  # time is on an axis, or merged with one, where it cannot be followed
    BATCH = "batch"  # streams of a batch depend on each other, or on how many there are
    EXPORT = "export"  # the exported model does not run at other lengths, or is in training mode
    OPERATOR = "operator"  # an operator, or a form of it, that no rule covers
    BUG = "bug"  # pulsify contradicts itself


@dataclass(frozen=True)
class Remedy:
    """A change that helps. `options` are arguments of `pulsify.stream`; `tried`: with them it converts."""

    text: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    tried: bool = field(default=False, compare=False)


Remedies = str | Remedy | Iterable[str | Remedy]

KEEP_PAST: Final = Remedy('pass unbounded="grow" to keep all of the past', {"unbounded": "grow"})
SAMPLED: Final = Remedy('accept what a sample of lengths shows: proof="sampled"', {"proof": "sampled"})


def declare(symbol: str, lengths: str, why: str = "declare the lengths you use") -> Remedy:
    """Declare the lengths of streams, for example "8*n" or "<=3000", by the model's own name of its time dimension."""
    return Remedy(f'{why}: set={{"{symbol}": "{lengths}"}}', {"set": {symbol: lengths}})


def fix_batch(symbol: str | None) -> Remedy:
    """Convert for one stream a call. symbol: the model's own name of its batch dimension; None: it is fixed already."""
    if symbol is None:
        return Remedy("export with a fixed batch of 1")
    return Remedy(f'fix the batch size: set={{"{symbol}": 1}}', {"set": {symbol: 1}})


def as_remedies(remedies: Remedies) -> tuple[Remedy, ...]:
    """One or several remedies, as text or in full."""
    several = (remedies,) if isinstance(remedies, (str, Remedy)) else remedies
    return tuple(r if isinstance(r, Remedy) else Remedy(r) for r in several if r)
