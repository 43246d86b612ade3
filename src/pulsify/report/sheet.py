"""Tables that fit a terminal without losing a digit.

    numbers   never shrink: a column is as wide as its widest number ("fixed" is the same, to the left)
    labels    are shortened in the middle, where names differ least: state_009_blo…sidual
    text      goes on in the next line, between words

If even that does not fit, the table is wider than the terminal: a line that wraps can still be read, a digit that is
cut off cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from rich.console import Console, ConsoleOptions
from rich.text import Text

Kind = Literal["number", "fixed", "label", "text"]
Cell = str | Text
ELLIPSIS = "…"
GAPS = (3, 2, 1)  # spaces between columns: the widest that fits
LABEL, LEAST = 16, 6  # characters of a label: as many while text can still be wrapped, and then
WORD = 24  # a longer word of a text may be broken (a path, a hash)


@dataclass(frozen=True)
class Column:
    """A header and how its cells take it when room is short. style: of every cell."""

    header: str
    kind: Kind = "text"
    style: str = ""


@dataclass(frozen=True)
class Row:
    """Cells from the left; or one text that spans all columns."""

    cells: tuple[Cell, ...]
    style: str = ""
    spans: str = ""


@dataclass
class Sheet:
    """A table. A row of no cells is a blank line."""

    columns: list[Column]
    headed: bool = True
    margin: int = 0  # spaces in front of every line
    rows: list[Row] = field(default_factory=list)

    def add(self, *cells: Cell, style: str = "", spans: str = "") -> None:
        self.rows.append(Row(cells, style, spans))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.lines(options.max_width)

    def lines(self, room: int) -> Iterator[Text]:
        """Line by line; without trailing spaces."""
        widths, gap = self._widths(room - self.margin)
        if self.headed:
            heads = [Text(c.header, "bold") for c in self.columns]
            yield from self._row(Row(tuple(heads)), widths, gap, bottom=True)
            yield Text(" " * self.margin + "─" * (sum(widths) + gap * (len(widths) - 1)), overflow="ignore")
        for row in self.rows:
            if row.spans:
                yield Text(" " * self.margin + row.spans, row.style)
            else:
                yield from self._row(row, widths, gap)

    def _row(self, row: Row, widths: Sequence[int], gap: int, bottom: bool = False) -> Iterator[Text]:
        cells: list[list[Text]] = []
        for at, (column, width) in enumerate(zip(self.columns, widths, strict=True)):
            cell = row.cells[at] if at < len(row.cells) else ""
            text = cell if isinstance(cell, Text) else Text(cell, column.style)
            cells.append(_fitted(text, width, "text" if bottom else column.kind))
        height = max((len(c) for c in cells), default=1)
        for n in range(height):
            line = Text(" " * self.margin, no_wrap=True, overflow="ignore")
            for at, (column, width) in enumerate(zip(self.columns, widths, strict=True)):
                own = cells[at]
                k = n - (height - len(own)) if bottom else n
                piece = own[k].copy() if 0 <= k < len(own) else Text("")
                piece.align("right" if column.kind == "number" else "left", max(width, piece.cell_len))
                line.append_text(piece).append(" " * gap if at + 1 < len(widths) else "")
            line.rstrip()
            line.stylize(row.style)
            yield line

    def _widths(self, room: int) -> tuple[list[int], int]:
        """Of every column, and of the gap between them: labels give way first, then text, then labels again."""
        full = [self._width(i, whole=True) for i in range(len(self.columns))]
        tight = [self._width(i, whole=False) for i in range(len(self.columns))]
        labels = [i for i, c in enumerate(self.columns) if c.kind == "label"]
        others = [i for i, c in enumerate(self.columns) if c.kind != "label"]
        widths, gap = list(full), GAPS[0]
        for gap in GAPS:
            over = sum(full) + gap * (len(full) - 1) - room
            widths = list(full)
            for some, least in (
                (labels, [min(w, LABEL) for w in full]),
                (others, tight),
                (labels, [min(w, LEAST) for w in full]),
            ):
                over = _shrink(widths, some, least, over)
            if over <= 0:
                break
        return widths, gap

    def _width(self, at: int, whole: bool) -> int:
        """Of a column with nothing wrapped, or with as much as possible."""
        kind = self.columns[at].kind
        cells = [str(r.cells[at]) for r in self.rows if at < len(r.cells)]
        header = self.columns[at].header if self.headed else ""
        if whole:
            return max((len(line) for text in (header, *cells) for line in text.split("\n")), default=0)
        words = [min(len(w), WORD) for w in header.split()]
        if kind in ("number", "fixed"):
            return max([*map(len, cells), *words], default=0)
        return max([min(len(w), WORD) for text in cells for w in text.split()] + words, default=0)


def _shrink(widths: list[int], some: Sequence[int], least: Sequence[int], over: int) -> int:
    """Takes characters from the widest of some columns, one by one; what is still too much."""
    while over > 0:
        free = [i for i in some if widths[i] > least[i]]
        if not free:
            break
        widths[max(free, key=lambda i: widths[i])] -= 1
        over -= 1
    return over


def _fitted(text: Text, width: int, kind: Kind) -> list[Text]:
    if text.cell_len <= width or kind in ("number", "fixed"):
        return [text]
    if kind == "label":
        return [Text(shortened(text.plain, width), text.style)]
    return list(text.wrap(_anywhere(), max(width, 1))) or [Text("")]


@cache
def _anywhere() -> Console:
    """rich wants one to wrap a text, and asks it for nothing."""
    return Console()


def shortened(label: str, width: int) -> str:
    """A label with its middle left out: both ends say more."""
    if len(label) <= width:
        return label
    kept = max(width - len(ELLIPSIS), 0)
    return label[: kept - kept // 2] + ELLIPSIS + label[len(label) - kept // 2 :]
