"""What is looked up in a value that follows from the length: Gather."""

from __future__ import annotations

import math

import numpy as np

from pulsify.analysis.proof.failing import LOOKS_UP
from pulsify.analysis.values.follow import FEW, VALUES, Few, Fixed, Follower, Value
from pulsify.analysis.values.moves import carried, numbers_of, taken
from pulsify.analysis.values.sizes import SIZES
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths.indexing import moved_axes
from pulsify.lengths.series import Unsure
from pulsify.lengths.sizes import Sizes


@VALUES("Gather")
def gather_values(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    data, index = ins[0], ins[1]
    if isinstance(data, Few) and isinstance(index, Fixed) and math.prod(index.dims) <= FEW:
        return carried(f, node, data, [index])
    v = f.spread(data)
    axis = node.attr("axis", 0) % v.rank
    places, wraps = f.spread(index), True
    if isinstance(index, Fixed) and axis in v.times:
        array = index.array()
        if array.size and array.max() < 0:  # counted from the end
            size = f.spread(Few(np.array(v.sizes[axis], object)))
            places = many.summed(places.sizes, places, moved_axes(size, {}, places.sizes))
            wraps = False
        elif array.size and array.min() < 0:
            raise Unsure("it takes frames from both ends")
    sizes = (*v.sizes[:axis], *places.sizes, *v.sizes[axis + 1 :])
    moved = moved_axes(places, {c: c + axis for c in range(places.rank)}, sizes)
    to = {c: c if c < axis else c + places.rank - 1 for c in range(v.rank) if c != axis}
    return numbers_of(f, node, taken(f, data, v, axis, moved, to, wraps))


@SIZES("Gather")
def gather_sizes(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    axis = node.attr("axis", 0) % len(sizes[0])
    return (*sizes[0][:axis], *sizes[1], *sizes[0][axis + 1 :])


@LOOKS_UP("Gather")
def gather_axis(f: Follower, node: Node) -> int:
    axis: int = node.attr("axis", 0)
    return axis
