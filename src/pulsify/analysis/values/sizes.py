"""Sizes, followed apart from what is in a value: a table, or data, may be unknown and its size easy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pulsify.analysis.values.follow import VALUES, Follower, Value
from pulsify.core.facet import Facet
from pulsify.core.traits import Traits
from pulsify.frontend.model import Node
from pulsify.lengths.affine_array import FAR, Spread
from pulsify.lengths.indexing import met
from pulsify.lengths.series import Unsure
from pulsify.lengths.sizes import Sizes

SizeLaw = Callable[[Follower, Node, list[Sizes]], Sizes]


def same_size(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    return sizes[0]


def broadcast(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    rank = max(map(len, sizes))
    return tuple(met([s[a - rank] for s in sizes if len(s) >= rank - a]) for a in range(rank))


def _by_trait(kind: Traits) -> SizeLaw | None:
    return same_size if kind.keeps_size else broadcast if kind.elementwise else None


SIZES = Facet[SizeLaw]("size", "how large its output is, whatever the entries are", _by_trait)


def sizes_made(f: Follower, node: Node, name: str, sizes_of: Callable[[str], Sizes]) -> Sizes:
    """What an operator makes of sizes, whatever the entries are: as its own law says, or that of its values."""
    sizes = [sizes_of(i) if i else () for i in node.inputs]
    law = SIZES.of(node)
    if law is not None:
        return law(f, node, sizes)
    values = VALUES.of(node)
    if values is None:
        raise Unsure(f"nothing is known of the size of '{name}'")
    result = values(f, node, stand_ins(f, node, sizes))
    result = result[list(node.outputs).index(name)] if isinstance(result, list) else result
    return tuple(f.spread(result).sizes)


def stand_ins(f: Follower, node: Node, sizes: list[Sizes]) -> list[Value | None]:
    """The operands of a node: what is known of them, or else anything of their sizes."""
    return [_stand_in(f, i, s) if i else None for i, s in zip(node.inputs, sizes, strict=True)]


def _stand_in(f: Follower, name: str, sizes: Sizes) -> Value:
    if f.first(name).known:
        with contextlib.suppress(Unsure):
            return f.value(name)
    return Spread(sizes, lo=-FAR, hi=FAR)
