"""Units to text, piece by piece: what is added never changes what was there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pulsify.asr.greedy import Token
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
        new = "".join(map(self.piece, tokens))
        return new if text else new.lstrip(" ")

    def piece(self, token: int) -> str:
        """The text of one token."""
        unit = self.units[token]
        return f" {unit}" if self.words else unit.replace(SPACE, " ")


@dataclass(frozen=True)
class Word:
    """A word of a transcript. Seconds: from the frame of its first token to the end of the frame of its last one."""

    word: str
    start: float
    end: float


@dataclass
class Words:
    """Tokens become words. A word is complete when a space follows, or at the end.

    since: seconds at which the first frame begins. partial, first, last: the word that is not complete, its frames.
    """

    vocabulary: Vocabulary
    frame_seconds: float
    since: float = 0.0
    partial: str = ""
    first: int = 0
    last: int = 0

    def push(self, token: Token) -> list[Word]:
        """The words that this token completes."""
        out = []
        for letter in self.vocabulary.piece(token.unit):
            if letter.isspace():
                out += self.flush()
            else:
                self.first = self.first if self.partial else token.frame
                self.partial, self.last = self.partial + letter, token.frame
        return out

    def flush(self) -> list[Word]:
        """The last word, if there is one."""
        word, self.partial = self.partial, ""
        if not word:
            return []
        start, end = (round(self.since + frame * self.frame_seconds, 4) for frame in (self.first, self.last + 1))
        return [Word(word, start, end)]


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
