"""Units to text, piece by piece: what is added never changes what was there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pulsify.core.errors import InvalidModel

SPACE = "▁"  # SentencePiece's mark for the start of a word


@dataclass(frozen=True)
class Vocabulary:
    """The units by index; `blank` says nothing. words: every unit is a word, else "▁" is a space."""

    units: tuple[str, ...]
    blank: int
    words: bool = False

    def added(self, text: str, tokens: Iterable[int]) -> str:
        """What `tokens` add to a transcript that so far is `text`."""
        pieces = [self.units[t] for t in tokens]
        new = "".join(f" {p}" for p in pieces) if self.words else "".join(pieces).replace(SPACE, " ")
        return new if text else new.lstrip(" ")


def read_vocabulary(path: Path, size: int, blank: int | None, words: bool) -> Vocabulary:
    """One unit a line, for a model with `size` scores a frame; the blank's own line may be left out if it is last."""
    try:
        units = path.read_text("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidModel(f"{path.name}: not a text file in UTF-8 ({error.reason})") from error
    units = [u.removesuffix("\r") for u in units]
    blank = size - 1 if blank is None else blank
    if blank >= size:
        raise InvalidModel(f"blank = {blank}: the model has {size} scores a frame, counted from 0")
    if len(units) == size - 1 and blank == size - 1:
        units.append("")
    if len(units) != size:
        raise InvalidModel(
            f"{path.name} has {len(units)} units, the model {size} scores a frame: one line a score is expected, "
            "in order; the blank's may be left out if it is the last"
        )
    return Vocabulary(tuple(units), blank, words)
