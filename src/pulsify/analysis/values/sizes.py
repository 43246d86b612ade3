"""Sizes, followed apart from what is in a value: a table, or data, may be unknown and its size easy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pulsify.analysis.values.follow import VALUES, Follower, Value
from pulsify.analysis.values.moves import bounds
from pulsify.analysis.values.reshaping import reshaped_sizes
from pulsify.analysis.values.sums import REDUCTIONS, labels, reduced_axes, reduced_sizes
from pulsify.analysis.values.windows import WINDOWED, whole_item, windowed_sizes
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import FAR, Spread
from pulsify.lengths.indexing import met
from pulsify.lengths.series import Series, Unsure

Sizes = tuple[Series, ...]


def sizes_made(f: Follower, node: Node, name: str, sizes_of: Callable[[str], Sizes]) -> Sizes:
    """What an operator makes of sizes, whatever the entries are."""
    kind = traits(node.op, node.domain)
    sizes = [sizes_of(i) if i else () for i in node.inputs]
    own = OWN.get(node.op) if node.domain == "" else None
    if own is not None:
        return own(f, node, sizes)
    if kind.keeps_size:
        return sizes[0]
    if kind.elementwise:
        rank = max(map(len, sizes))
        return tuple(met([s[a - rank] for s in sizes if len(s) >= rank - a]) for a in range(rank))
    inputs = [_stand_in(f, i, s) if i else None for i, s in zip(node.inputs, sizes, strict=True)]
    if kind.regroups or node.op == "Flatten":
        return reshaped_sizes(f, node, sizes[0], inputs)
    if node.op in REDUCTIONS:  # what a sum over time is has no bound; its size has
        return reduced_sizes(f, node, reduced_axes(f, node, inputs), sizes[0])
    rule = VALUES.of(node)
    if rule is None:
        raise Unsure(f"nothing is known of the size of '{name}'")
    made = rule(f, node, inputs)
    made = made[list(node.outputs).index(name)] if isinstance(made, list) else made
    return tuple(f.spread(made).sizes)


def _stand_in(f: Follower, name: str, sizes: Sizes) -> Value:
    if f.first(name).known:
        with contextlib.suppress(Unsure):
            return f.value(name)
    return Spread(sizes, lo=-FAR, hi=FAR)


def _numbers(f: Follower, name: str) -> list[Series]:
    cells = list(f.few(f.value(name)).reshape(-1))
    if not all(isinstance(c, Series) for c in cells):
        raise Unsure("a size is no linear function of the length")
    return cells


def _joined(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    out, axis = list(sizes[0]), node.attr("axis") % len(sizes[0])
    for part in sizes[1:]:
        out[axis] = one.add(out[axis], part[axis])
    return tuple(out)


def _padded(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    out, pads = list(sizes[0]), _numbers(f, node.inputs[1])
    axes = [whole_item(a) % len(out) for a in _numbers(f, node.inputs[3])] if node.input(3) else list(range(len(out)))
    for i, axis in enumerate(axes):
        out[axis] = one.add(out[axis], one.add(pads[i], pads[i + len(axes)]))
    return tuple(out)


def _cut(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    out = list(sizes[0])
    given = [_numbers(f, n) if n else None for n in node.inputs[1:]] + [None, None]
    starts, stops = given[0], given[1]
    assert starts is not None and stops is not None
    axes = [whole_item(n) % len(out) for n in given[2]] if given[2] is not None else list(range(len(starts)))
    steps = [whole_item(n) for n in given[3]] if given[3] is not None else [1] * len(starts)
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        out[axis] = bounds(start, stop, step, out[axis])[1]
    return tuple(out)


def _multiplied(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    a, b = sizes
    if len(a) < 2 or len(b) < 2:
        return (*a[:-1], *b[:-2], *(b[-1:] if len(b) > 1 else ()))
    rank = max(len(a), len(b)) - 2
    lead = [met([s[i - rank - 2] for s in (a, b) if len(s) >= rank + 2 - i]) for i in range(rank)]
    return (*lead, a[-2], b[-1])


def _einsum(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    letters, out = labels(node)
    by_letter: dict[str, list[Series]] = {}
    for own, size in zip(letters, sizes, strict=True):
        for letter, s in zip(own, size, strict=True):
            by_letter.setdefault(letter, []).append(s)
    return tuple(met(by_letter[letter]) for letter in out)


def _transposed(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    perm = node.attr("perm") or tuple(reversed(range(len(sizes[0]))))
    return tuple(sizes[0][p] for p in perm)


def _picked(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    axis = node.attr("axis", 0) % len(sizes[0])
    return (*sizes[0][:axis], *sizes[1], *sizes[0][axis + 1 :])


def _same(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    return sizes[0]


OWN: dict[str, Callable[[Follower, Node, list[Sizes]], Sizes]] = {
    "CumSum": _same,
    "Concat": _joined,
    "Pad": _padded,
    "Slice": _cut,
    "Gather": _picked,
    "MatMul": _multiplied,
    "Einsum": _einsum,
    "Transpose": _transposed,
    **dict.fromkeys(WINDOWED, windowed_sizes),
}
