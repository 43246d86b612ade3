"""What a model does with an input that may be the stream's length, or a mask of its frames.

The input is followed through the graph, which was traced with it bound (`trace/lengths.py`): as a number, as an
extent or positions made of it, as a value that is one thing within the length and another after it. It is the length
if, wherever it is combined with data, frames after it are masked, or if it says how many frames there are, where the
last one is, what a sum is divided by. It is not if it chooses between two values, a row of a table, or positions of
another axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

import numpy as np

from pulsify.core.facet import Facet, full_name
from pulsify.core.traits import Traits, traits
from pulsify.frontend.loop_ports import looped
from pulsify.frontend.model import Model, Node
from pulsify.trace.lengths import Traces
from pulsify.trace.sides import Number, Sides, combined

MOST = 1 << 16  # elements of a known value that is looked at


class Use(Enum):
    """What a use shows, the most telling first."""

    OTHER = "it is something else"
    UNCLEAR = "what it is there is not clear"
    SIZE = "it must be the number of frames"
    LENGTH = "as the length is used"
    PLAIN = "in arithmetic"


@dataclass(frozen=True)
class Finding:
    """One use: the node, and what it does with the input."""

    use: Use
    node: str
    op: str
    text: str

    def __str__(self) -> str:
        return f"{self.op} '{self.node}' {self.text}" if self.op else self.text


class Count:
    """The length, or a number made of it."""


class Extent:
    """An array as long as the length says."""


class Derived:
    """An array whose entries follow from it in some other way."""


@dataclass(frozen=True)
class Offset:
    """Positions minus the length (sign 1), or the other way round (-1). stream: the positions are the stream's."""

    sign: int
    stream: bool = True


Role = Count | Extent | Derived | Offset | Sides


@dataclass(frozen=True)
class Sized:
    """Which inputs say how large something is, or where it is cut.

    what: a new value, a part of the first input, all of it, or something else.
    """

    inputs: tuple[int, ...]
    what: Literal["new", "part", "all", "other"]


def uses(model: Model, traces: Traces, name: str, mask: bool = False) -> tuple[Finding, ...]:
    """All uses of an input that was traced as the length (or as a mask of ones)."""
    walk = Walk(model, traces, {name: Sides(1.0, 0.0) if mask else Count()}, "" if mask else " after it")
    for node in model.nodes:
        if any(i in walk.roles for i in node.reads):
            role = walk.step(node)
            walk.roles |= {o: role for o in node.outputs if o and role is not None and walk.known(o)}
    for decision in model.decisions:
        if decision.name in walk.roles:
            walk.add(Use.PLAIN, decision.node, decision.op, "is decided by it")
    for output in model.outputs:
        if output in walk.roles:
            walk.add(Use.LENGTH, "", "", f"it is counted in output '{output}'")
    return tuple(dict.fromkeys(walk.findings))


@dataclass(eq=False)
class Walk:
    model: Model
    traces: Traces
    roles: dict[str, Role]
    after: str = " after it"
    findings: list[Finding] = field(default_factory=list)

    # ---- what the traces say

    def known(self, name: str) -> bool:
        return all(run[name].known for run in self.traces.runs)

    def timed(self, name: str) -> set[int]:
        """Axes that grow with the stream."""
        first, last = self.traces.runs[0][name].dims, self.traces.longest[name].dims
        return {a for a, (x, y) in enumerate(zip(first, last, strict=False)) if x != y}

    def number(self, name: str) -> Number:
        """The one number that an untouched value is, at every place and length."""
        value = self.traces.runs[0][name]
        if name in self.roles or not self.known(name) or not 0 < np.prod(value.dims) <= MOST:
            return None
        array = value.array
        if array.dtype.kind not in "biuf" or not (array == array.flat[0]).all():
            return None
        last = self.traces.longest[name]
        if np.prod(last.dims) > 1 << 22 or not (last.array == array.flat[0]).all():
            return None
        return float(array.flat[0])

    def counting(self, name: str) -> set[int]:
        """Axes along which it counts up."""
        value = self.traces.runs[0][name]
        if not self.known(name) or not 1 < np.prod(value.dims) <= MOST or value.dtype.numpy().kind not in "iuf":
            return set()
        array = value.array.astype(np.float64)
        return {a for a, n in enumerate(array.shape) if n > 1 and bool((np.diff(array, axis=a) > 0).all())}

    def size(self, name: str) -> int:
        return int(np.prod(self.traces.runs[0][name].dims))

    def add(self, use: Use, node: str, op: str, text: str) -> None:
        self.findings.append(Finding(use, node, op, text))

    def say(self, node: Node, use: Use, text: str) -> None:
        self.add(use, node.name, node.op, text)

    # ---- one node

    def step(self, node: Node) -> Role | None:
        """What its outputs are, if they are known; a finding where the input's way ends, in data."""
        own = {i: self.roles[n] for i, n in enumerate(node.inputs) if n in self.roles}
        if node.body is not None:
            return self._looped(node)
        sized = SIZED.of(node)
        if sized is not None and own and all(i in sized.inputs for i in own):
            return self._sized(node, own, sized.what)
        follow = ROLE.of(node)
        if follow is not None:
            return follow(self, node, own)
        if self.known(node.outputs[0]):
            self.say(node, Use.UNCLEAR, "reads it")
            return Derived()
        self.into_data(node, own)
        return None

    def into_data(self, node: Node, own: Mapping[int, Role]) -> None:
        plain = all(isinstance(r, Extent | Derived) for r in own.values())
        self.say(node, Use.PLAIN if plain else Use.UNCLEAR, "reads it")

    def _looped(self, node: Node) -> Role | None:
        assert node.body is not None
        parts = looped(node, nested=True)
        count = bool(parts.count) and parts.count in self.roles
        along = {a.outer for a in parts.scanned if isinstance(self.roles.get(a.outer), Extent)}
        others = [n for n in node.reads if n in self.roles and n != parts.count and n not in along]
        if (count or along) and not others:
            self.say(node, Use.LENGTH, "runs that many times")
        else:
            self.say(node, Use.UNCLEAR, "reads it")
        return None

    def _sized(self, node: Node, own: Mapping[int, Role], what: str) -> Role | None:
        """It says how large something is, or where it is cut."""
        if what == "new" or self.known(node.outputs[0]):
            return Extent() if any(isinstance(r, Count) for r in own.values()) else next(iter(own.values()))
        data = node.inputs[0]
        if what == "part" and not self.timed(data):
            self.say(node, Use.OTHER, f"takes a part of '{data}', which has no frames of the stream")
        elif what == "all" and self.timed(data):
            self.say(node, Use.SIZE, "takes it as the number of frames")
        else:
            self.say(node, Use.LENGTH, "takes it as the number of frames")
        return None

    def moved(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        """Cut, joined or spread."""
        role = next(iter(own.values()))
        if not self.known(node.outputs[0]):
            self.say(node, Use.PLAIN, "joins it with data")
            return None
        if isinstance(role, Sides | Offset) and self.timed(node.outputs[0]) and not self.timed(node.inputs[0]):
            return replace(role, stream=True)  # a table of positions, cut to the stream
        return role

    # ---- entry by entry

    def entries(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        if any(isinstance(r, Sides) for r in own.values()):
            return self._split(node, own)
        if any(isinstance(r, Offset) for r in own.values()):
            return self._offset(node, own)
        others = [n for i, n in enumerate(node.inputs) if n and i not in own]
        if any(isinstance(r, Extent) for r in own.values()):
            return self._extent(node, own, others)
        if any(isinstance(r, Derived) for r in own.values()):
            return self._derived(node, own, others)
        data = [n for n in others if not self.known(n)]
        if data:
            self._number_and_data(node, data)
            return None
        against = [n for n in others if self.size(n) > 1 and self.number(n) is None]
        if not against:
            return Count()
        return self._number_and_positions(node, own, against[0])

    def _number_and_data(self, node: Node, data: list[str]) -> None:
        if traits(node.op, node.domain).compares:
            self.say(node, Use.OTHER, f"compares it with the values of '{data[0]}'")
        else:
            self.say(node, Use.PLAIN, f"combines it with '{data[0]}'")

    def _number_and_positions(self, node: Node, own: Mapping[int, Role], other: str) -> Role | None:
        axes = self.counting(other)
        if not axes:
            ordered = _against(node, 1) is not None
            self.say(node, Use.UNCLEAR if ordered else Use.PLAIN, f"combines it with '{other}'")
            return Derived()
        return _beside_positions(node, 0 in own, bool(axes & self.timed(other))) or Derived()

    def _extent(self, node: Node, own: Mapping[int, Role], others: list[str]) -> Role | None:
        if len(node.inputs) == 2 and {type(r) for r in own.values()} == {Extent, Count}:
            role = _beside_positions(node, isinstance(own[0], Count))
            if role is not None:
                return role
        if any(self._as_long(node, i, n) for i in own for n in others):
            self.say(node, Use.SIZE, f"combines as many entries with the frames of '{others[0]}'")
        elif not self.known(node.outputs[0]):
            self.say(node, Use.PLAIN, f"combines as many entries with '{others[0]}'")
        return Extent()

    def _as_long(self, node: Node, own: int, other: str) -> bool:
        """Do both grow along the same axis?"""
        mine, theirs = node.inputs[own], other
        ranks = [len(self.traces.runs[0][n].dims) for n in (mine, theirs)]
        return bool({a - ranks[0] for a in self.timed(mine)} & {a - ranks[1] for a in self.timed(theirs)})

    def _offset(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        (index, role), *more = own.items()
        if isinstance(role, Offset) and not more and len(node.inputs) <= 2:
            sign = _sign(node, index)
            if len(node.inputs) == 2:
                is_number = self.number(node.inputs[1 - index]) is not None
                side = _against(node, -role.sign * (1 - 2 * index), role.stream) if is_number else None
                if side is not None:
                    return side
                sign = sign if is_number else 0
            if sign:
                return Offset(role.sign * sign, role.stream)
        if not self.known(node.outputs[0]):
            self.say(node, Use.PLAIN, "combines positions counted from it with data")
        return Derived()

    def _derived(self, node: Node, own: Mapping[int, Role], others: list[str]) -> Role | None:
        if self.known(node.outputs[0]):
            return Derived()
        data = [n for n in others if not self.known(n)]
        self.say(node, Use.PLAIN, f"combines it with '{data[0]}'" if data else "reads it")
        return None

    def _split(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        operands: list[Sides | Number] = []
        for i, n in enumerate(node.inputs):
            role = own.get(i)
            operands.append(role if isinstance(role, Sides) else self.number(n) if n else None)
        boolean = self.traces.runs[0][node.outputs[0]].dtype.numpy().kind == "b"
        made = combined(full_name(node), operands, boolean)
        if self.known(node.outputs[0]):
            return made
        self._applied(node, own, made)
        return None

    def _applied(self, node: Node, own: Mapping[int, Role], made: Sides) -> None:
        """Where a mask is combined with data: what lies behind the length must be dropped, and nothing else."""
        sides = {n: r for i, r in own.items() if isinstance(r, Sides) and (n := node.inputs[i])}
        data = ", ".join(f"'{n}'" for n in node.inputs if n and not self.known(n))
        if not all(r.stream for r in sides.values()):
            self.say(node, Use.OTHER, f"masks {data} by positions that are not those of the stream")
        elif made.beyond is not None:
            if made.within is None or any(r.within is None for r in sides.values()):
                self.say(node, Use.LENGTH, f"masks the frames of {data}{self.after}")
            else:
                self.say(node, Use.UNCLEAR, f"masks all of {data}")
        elif made.within is not None:
            self.say(node, Use.OTHER, f"masks the frames of {data} before it")
        elif any(r.beyond is None for r in sides.values()):
            self.say(node, Use.UNCLEAR, f"combines it with {data}")
        else:
            self.say(node, Use.OTHER, f"makes one thing of {data} before it and another after it")


def _beside_positions(node: Node, first: bool, stream: bool = True) -> Role | None:
    """The length and positions: compared, or one minus the other. first: the length is the first input."""
    if _sign(node, 0) * _sign(node, 1) < 0:
        return Offset(_sign(node, 1 if first else 0), stream)
    return _against(node, 1 if first else -1, stream)


def _against(node: Node, sign: int, stream: bool = True) -> Sides | None:
    """The length (sign 1) or positions (-1) compared with the other."""
    how = traits(node.op, node.domain).compares
    if how in ("", "=="):
        return None
    inside = how.startswith(">") == (sign > 0)
    return Sides(1.0, 0.0, stream) if inside else Sides(0.0, 1.0, stream)


def _sign(node: Node, index: int) -> int:
    signs = SIGNS.of(node) or ()
    return signs[index] if index < len(signs) else 0


def _by_traits(kind: Traits) -> Follow | None:
    if kind.elementwise:
        return Walk.entries
    places = kind.moves or kind.regroups or kind.axes in ("regroup", "transpose", "pick", "elements")
    return Walk.moved if places else None


Follow = Callable[[Walk, Node, Mapping[int, Role]], Role | None]
ROLE = Facet[Follow]("role", "what it makes of an input that may be the length, or a mask of frames", _by_traits)
SIZED = Facet[Sized]("size inputs", "which inputs say how large something is, or where it is cut")
SIGNS = Facet[tuple[int, ...]]("signs", "with which sign each input goes into the output")
