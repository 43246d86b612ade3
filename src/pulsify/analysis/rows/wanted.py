"""What a reach is asked for and what it answers: rows of an output, and the rows of inputs that they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsify.analysis.rows.place import Place
from pulsify.lengths.series import Series

if TYPE_CHECKING:
    from pulsify.analysis.rows.walk import Rows
    from pulsify.frontend.model import Node


@dataclass(frozen=True, eq=False)
class RowRead:
    """Rows of an input; name "": zeros. shortest: in shorter streams it is others."""

    name: str
    axis: int | None
    place: Place | None
    shortest: int = 1


@dataclass(frozen=True, eq=False)
class Wanted:
    """The rows asked for: of output `name` of a node."""

    rows: Rows
    node: Node
    name: str
    axis: int | None
    place: Place | None

    def sizes(self, index: int = 0) -> tuple[Series, ...]:
        return self.rows.sizes(self.node.inputs[index])

    def read(self, index: int, axis: int | None) -> RowRead:
        """The same rows of an input."""
        return RowRead(self.node.inputs[index], axis, None if axis is None else self.place)

    def attr_or_input(self, attr: str, index: int) -> list[int] | None:
        given = self.node.attr(attr)
        if given is None and self.node.input(index):
            return self.rows.integers(self.node.inputs[index])
        return None if given is None else [int(a) for a in given]
