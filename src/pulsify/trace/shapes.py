"""Shapes that inference does not know or gets wrong, and those the runtime would not take: as operators answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from pulsify.core.facet import Facet
from pulsify.core.traits import Traits
from pulsify.frontend.model import Node
from pulsify.trace.traced import CannotRun, Traced

Dims = tuple[int, ...]
Inputs = Sequence[Traced | None]


def _broadcasts(node: Node, ins: Inputs) -> None:
    try:
        np.broadcast_shapes(*(v.dims for v in ins if v is not None))
    except ValueError as error:
        raise CannotRun(node, str(error)[:200]) from error


def _largest_stays(_: Node, ins: Inputs) -> bool:
    """Do all inputs broadcast to the largest, which stays as it is?"""
    largest = max((v.dims for v in ins if v is not None), key=math.prod)
    return all(v is None or _fits(v.dims, largest) for v in ins)


def _fits(dims: Dims, into: Dims) -> bool:
    return len(dims) <= len(into) and all(d in (1, n) for d, n in zip(reversed(dims), reversed(into), strict=False))


def always(_: Node, ins: Inputs) -> bool:
    return True


def _no_larger(kind: Traits) -> Callable[[Node, Inputs], bool] | None:
    if kind.elementwise:
        return _largest_stays
    return always if kind.regroups or kind.keeps_size else None


SHAPE = Facet[Callable[[Node, Inputs], Dims | None]](
    "shape", "the shape of its outputs, if inference does not know it or gets it wrong"
)
INFERRED = Facet[Callable[[Node, Inputs, Dims], Dims]]("inferred shape", "what is wrong with an inferred shape")
CHECK = Facet[Callable[[Node, Inputs], None]](
    "check",
    "which inputs the runtime rejects though inference takes them",
    lambda t: _broadcasts if t.elementwise else None,
)
NO_LARGER = Facet[Callable[[Node, Inputs], bool]](
    "no larger", "whether its output has no more entries than its inputs: seen without inference", _no_larger
)


def check_inputs(node: Node, ins: Inputs) -> None:
    """Raises CannotRun if the runtime does not take them."""
    check = CHECK.of(node)
    if check is not None:
        check(node, ins)


def own_shape(node: Node, ins: Inputs) -> Dims | None:
    """Shapes that inference does not know, or gets wrong."""
    shape = SHAPE.of(node)
    return None if shape is None else shape(node, ins)


def corrected(node: Node, ins: Inputs, dims: Dims) -> Dims:
    """An inferred shape, put right. Raises CannotRun if the node does not run."""
    right = INFERRED.of(node)
    return dims if right is None else right(node, ins, dims)


def no_larger(node: Node, ins: Inputs) -> bool:
    """Its output has no more elements than its inputs: no shape has to be inferred to say so."""
    rule = NO_LARGER.of(node)
    return rule is not None and rule(node, ins)
