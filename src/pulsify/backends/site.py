"""A node as the function of its operator sees it, whichever back end writes it: inputs, attributes, sizes.

Whatever a function needs and does not find raises `Uncovered`, with the reason: the back end does without, or refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import onnx_ir as ir

from pulsify.backends.seam import Array


class Uncovered(Exception):
    """There is nothing for this here; the reason is what a person reads."""


class Knows(Protocol):
    """What holds for a whole step."""

    @property
    def opset(self) -> int: ...

    def array(self, value: ir.Value | None, /) -> Array | None:
        """A constant's elements."""
        ...


S = TypeVar("S", bound=Knows)


@dataclass(frozen=True)
class NodeSite(Generic[S]):
    """One node, in the step that it is part of."""

    node: ir.Node
    scope: S

    @property
    def op(self) -> str:
        return self.node.op_type

    @property
    def opset(self) -> int:
        return self.scope.opset

    # ---- inputs

    def value(self, i: int) -> ir.Value | None:
        return self.node.inputs[i] if i < len(self.node.inputs) else None

    def has(self, i: int) -> bool:
        return self.value(i) is not None

    def count(self) -> int:
        return len(self.node.inputs)

    def given(self, i: int) -> ir.Value:
        value = self.value(i)
        if value is None:
            raise Uncovered(f"its input {i} is missing")
        return value

    def const(self, i: int) -> Array | None:
        return self.scope.array(self.value(i))

    def known(self, i: int, what: str) -> Array:
        """The elements of an input that must be constant."""
        array = self.const(i)
        if array is None:
            raise Uncovered(f"its {what} must be known before it runs")
        return array

    def ints(self, i: int, what: str) -> list[int]:
        return [int(k) for k in self.known(i, what).reshape(-1)]

    # ---- sizes

    def sizes(self, i: int = 0) -> tuple[int, ...]:
        return sizes_of(self.value(i), f"the sizes of its input {i}")

    def gives(self, i: int = 0) -> tuple[int, ...]:
        return sizes_of(self.node.outputs[i], "the sizes of its result")

    def rank(self, i: int = 0) -> int:
        value = self.value(i)
        if value is None or value.shape is None:
            raise Uncovered(f"the number of axes of its input {i} is not known")
        return len(value.shape)

    def axis(self, name: str = "axis", default: int = 0, i: int = 0) -> int:
        return self.counted([int(self.attr(name, default))], i)[0]

    def counted(self, axes: Sequence[int], i: int = 0) -> list[int]:
        """Axes of an input, counted from the front."""
        return [a if a >= 0 else a + max(self.rank(i), 1) for a in axes]

    # ---- attributes and outputs

    def attr(self, name: str, default: Any = None) -> Any:
        found = self.node.attributes.get(name)
        return default if found is None else found.value

    def text(self, name: str, default: str) -> str:
        found = self.attr(name, default)
        return found.decode() if isinstance(found, bytes) else str(found)

    def wanted(self, i: int) -> bool:
        """Does anybody read this output?"""
        if i >= len(self.node.outputs):
            return False
        value = self.node.outputs[i]
        return bool(value.name) and (bool(value.uses()) or value.is_graph_output())

    def only(self, *wanted: int) -> None:
        """Other outputs than these are not made here."""
        for i in range(len(self.node.outputs)):
            if i not in wanted and self.wanted(i):
                raise Uncovered(f"its output {i} is not made here")


def sizes_of(value: ir.Value | None, what: str) -> tuple[int, ...]:
    dims = () if value is None or value.shape is None else tuple(value.shape)
    if value is None or value.shape is None or not all(isinstance(d, int) for d in dims):
        raise Uncovered(f"{what} are not known before it runs")
    return tuple(d for d in dims if isinstance(d, int))
