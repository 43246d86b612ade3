"""What nodes made of known values, at whatever length: the same of the same.

Many lengths differ in little (eight of them make as many tokens), and a model is looked at several times. What is
equal is one object here, so that whatever is made of the same objects was made before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pulsify.frontend.model import Node
from pulsify.trace.evaluate import Evaluator
from pulsify.trace.traced import Traced

FEW = 64  # elements of values that are compared with each other
SMALL = 1 << 15  # bytes: values up to this size are always kept
ROOM = 1 << 28  # bytes: larger ones too, as long as all of them take no more


@dataclass(eq=False)
class Made:
    """Results by node and what it took: known values by identity (they are held as well), others by their shape."""

    evaluator: Evaluator
    _results: dict[Any, tuple[dict[str, Traced], tuple[Traced, ...]]] = field(default_factory=dict)
    _few: dict[Any, Traced] = field(default_factory=dict)
    _large: dict[int, Traced] = field(default_factory=dict)
    _bytes: int = 0

    def of(self, node: Node, values: dict[str, Traced]) -> dict[str, Traced]:
        """The outputs of a node. Raises CannotRun if it has none of these values."""
        key = (node.name, *((i, id(v)) if v.known else (i, v.dims) for i, v in values.items()))
        if key not in self._results:
            given = tuple(values.values())
            self.evaluator.step(node, values)
            found = {o: self._one_object(values[o]) for o in node.outputs if o}
            if not all(self.keeps(v) for v in found.values()):
                return found
            self._results[key] = found, given
        return self._results[key][0]

    def keeps(self, value: Traced) -> bool:
        """Is it kept for all lengths? What is small, and what is large while there is room for it."""
        nbytes = math.prod(value.dims) * value.dtype.itemsize
        if nbytes <= SMALL or id(value) in self._large:
            return True
        if self._bytes + nbytes > ROOM:
            return False
        self._large[id(value)] = value
        self._bytes += int(nbytes)
        return True

    def clear(self) -> None:
        for kept in (self._results, self._few, self._large):
            kept.clear()
        self._bytes = 0

    def _one_object(self, value: Traced) -> Traced:
        """Of values that are equal, the first."""
        if not value.known or math.prod(value.dims) > FEW:
            return value
        return self._few.setdefault((value.dtype, value.dims, value.array.tobytes()), value)
