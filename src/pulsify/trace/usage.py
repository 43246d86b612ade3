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

import numpy as np

from pulsify.core.traits import traits
from pulsify.frontend.loop_ports import looped
from pulsify.frontend.model import Model, Node
from pulsify.trace.lengths import Traces
from pulsify.trace.sides import Number, Sides, combined

MOST = 1 << 16  # elements of a known value that is looked at
PLACES = (
    "Identity", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Expand", "Tile", "Slice", "Gather", "Concat", "Split",
    "Flatten", "Pad", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "Resize",
)  # fmt: skip
SIZES: Mapping[str, tuple[int, ...]] = {  # inputs that say how large something is
    "Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Tile": (1,), "Slice": (1, 2), "Range": (0, 1, 2),
    "Pad": (1,), "Resize": (3,), "Split": (1,), "Trilu": (1,), "OneHot": (1,), "TopK": (1,),
}  # fmt: skip
LESS, GREATER = ("Less", "LessOrEqual"), ("Greater", "GreaterOrEqual")
RECURRENT = ("LSTM", "GRU", "RNN")
REDUCED_TO_EITHER = ("ReduceMax", "ReduceMin")


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


def uses(model: Model, traces: Traces, name: str, mask: bool = False) -> tuple[Finding, ...]:
    """All uses of an input that was traced as the length (or as a mask of ones)."""
    walk = _Walk(model, traces, {name: Sides(1.0, 0.0) if mask else Count()}, "" if mask else " after it")
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
class _Walk:
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
        if own and all(i in SIZES.get(node.op, ()) for i in own):
            return self._sized(node, own)
        special = SPECIAL.get(node.op)
        if special is not None and not node.domain:
            return special(self, node, own)
        if node.op in PLACES and not node.domain:
            return self._moved(node, own)
        if traits(node.op, node.domain).elementwise:
            return self._entries(node, own)
        if self.known(node.outputs[0]):
            self.say(node, Use.UNCLEAR, "reads it")
            return Derived()
        self._into_data(node, own)
        return None

    def _into_data(self, node: Node, own: Mapping[int, Role]) -> None:
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

    def _sized(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        """It says how large something is, or where it is cut."""
        if node.op in ("Range", "ConstantOfShape") or self.known(node.outputs[0]):
            return Extent() if any(isinstance(r, Count) for r in own.values()) else next(iter(own.values()))
        data = node.inputs[0]
        if node.op in ("Slice", "Pad", "Split", "Trilu", "Resize", "TopK") and not self.timed(data):
            self.say(node, Use.OTHER, f"takes a part of '{data}', which has no frames of the stream")
        elif node.op in ("Reshape", "Expand") and self.timed(data):
            self.say(node, Use.SIZE, "takes it as the number of frames")
        else:
            self.say(node, Use.LENGTH, "takes it as the number of frames")
        return None

    def _moved(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        """Cut, joined or spread, or looked up by it."""
        if node.op in ("Gather", "GatherND", "GatherElements") and 0 not in own:
            return self._looked_up(node, own)
        role = next(iter(own.values()))
        if not self.known(node.outputs[0]):
            self.say(node, Use.PLAIN, "joins it with data")
            return None
        if isinstance(role, Sides | Offset) and self.timed(node.outputs[0]) and not self.timed(node.inputs[0]):
            return replace(role, stream=True)  # a table of positions, cut to the stream
        return role

    def _looked_up(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        table, role = node.inputs[0], own[1]
        axes = self.timed(table)
        if node.op != "GatherND":
            axes &= {int(node.attr("axis", 0)) % max(len(self.traces.runs[0][table].dims), 1)}
        if self.known(node.outputs[0]) and not isinstance(role, Count):
            return role if isinstance(role, Extent) else Derived()
        if isinstance(role, Count) and not axes:
            self.say(node, Use.OTHER, f"looks up an entry of '{table}', which has no frames of the stream there")
            return None
        self.say(node, Use.LENGTH if axes else Use.PLAIN, f"looks up a frame of '{table}'")
        return Derived()

    def _scattered(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        """Some of its entries are replaced."""
        known = self.known(node.outputs[0])
        if tuple(own) == (0,) and known:
            return own[0]
        if known and self.timed(node.inputs[0]):
            self.say(node, Use.LENGTH, f"marks a frame of '{node.inputs[0]}'")
        else:
            self._into_data(node, own)
        return Derived()

    def _reduced(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        role = own.get(0)
        if role is None or not self.known(node.outputs[0]):
            self._into_data(node, own)
            return None
        if isinstance(role, Sides) and not role.stream:
            self.say(node, Use.OTHER, f"counts positions of '{node.inputs[0]}', which are not those of the stream")
            return None
        over = len(self.timed(node.outputs[0])) < len(self.timed(node.inputs[0]))
        if isinstance(role, Count) or over or not self.timed(node.inputs[0]):
            return Count()
        kept = isinstance(role, Extent) or (isinstance(role, Sides) and node.op in REDUCED_TO_EITHER)
        return role if kept else Derived()

    def _summed_up(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        return own[0] if isinstance(own.get(0), Extent) else Derived()

    def _measured(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        return Count()

    def _pooled(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        """A mask at a lower rate."""
        if self.known(node.outputs[0]):
            return own.get(0)
        self._into_data(node, own)
        return None

    def _product(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        operands = [own.get(i) for i in (0, 1)]
        if self.known(node.outputs[0]) and all(isinstance(o, Sides) for o in operands):
            return combined("Mul", [o for o in operands if isinstance(o, Sides)])
        side = next((o for o in operands if isinstance(o, Sides)), None)
        if not self.known(node.outputs[0]) and side is not None:
            dropped = side.beyond == 0
            self.say(node, Use.LENGTH if dropped else Use.PLAIN, "sums the frames before it" if dropped else "reads it")
            return None
        if self.known(node.outputs[0]):
            return next((r for r in own.values() if isinstance(r, Extent)), Derived())
        self.say(node, Use.PLAIN, "reads it")
        return None

    def _recurrent(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        if tuple(own) == (4,):
            timed = 0 in self.timed(node.inputs[0])
            text = (
                "takes it as the length of its sequences"
                if timed
                else "takes it as the length of sequences that are not the stream"
            )
            self.say(node, Use.LENGTH if timed else Use.OTHER, text)
        else:
            self._into_data(node, own)
        return None

    def _reversed(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        if tuple(own) == (1,) and not self.known(node.outputs[0]):
            timed = int(node.attr("time_axis", 0)) in self.timed(node.inputs[0])
            self.say(node, Use.LENGTH if timed else Use.OTHER, "reverses frames within it")
            return None
        self._into_data(node, own)
        return Derived()

    # ---- entry by entry

    def _entries(self, node: Node, own: Mapping[int, Role]) -> Role | None:
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
            self._number_and_data(node, own, data)
            return None
        against = [n for n in others if self.size(n) > 1 and self.number(n) is None]
        if not against:
            return Count()
        return self._number_and_positions(node, own, against[0])

    def _number_and_data(self, node: Node, own: Mapping[int, Role], data: list[str]) -> None:
        if node.op in (*LESS, *GREATER, "Equal"):
            self.say(node, Use.OTHER, f"compares it with the values of '{data[0]}'")
        elif node.op == "Where" and 0 in own and len(data) == 2:
            self.say(node, Use.OTHER, f"chooses by it between '{data[0]}' and '{data[1]}'")
        elif node.op == "Div" and 1 in own:
            self.say(node, Use.LENGTH, f"divides '{data[0]}' by it")
        else:
            self.say(node, Use.PLAIN, f"combines it with '{data[0]}'")

    def _number_and_positions(self, node: Node, own: Mapping[int, Role], other: str) -> Role | None:
        axes = self.counting(other)
        if not axes:
            self.say(node, Use.UNCLEAR if node.op in (*LESS, *GREATER) else Use.PLAIN, f"combines it with '{other}'")
            return Derived()
        first = 0 in own  # length, positions
        stream = bool(axes & self.timed(other))
        if node.op == "Sub":
            return Offset(-1 if first else 1, stream)
        return _against(node.op, 1 if first else -1, stream) or Derived()

    def _extent(self, node: Node, own: Mapping[int, Role], others: list[str]) -> Role | None:
        if len(node.inputs) == 2 and {type(r) for r in own.values()} == {Extent, Count}:
            first = isinstance(own[0], Count)
            side = _against(node.op, 1 if first else -1)
            if side is not None or node.op == "Sub":
                return side or Offset(-1 if first else 1)
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
        if isinstance(role, Offset) and not more and len(node.inputs) == 2:
            other = node.inputs[1 - index]
            if self.number(other) is not None and (
                side := _against(node.op, -role.sign * (1 - 2 * index), role.stream)
            ):
                return side
            if self.number(other) is not None and node.op in ("Add", "Sub", "Mul", "Div"):
                return role if index == 0 and node.op != "Mul" else Derived()
        if isinstance(role, Offset) and not more and node.op == "Neg":
            return Offset(-role.sign, role.stream)
        if not self.known(node.outputs[0]):
            self.say(node, Use.PLAIN, "combines positions counted from it with data")
        return role if node.op in ("Cast", "Identity") else Derived()

    def _derived(self, node: Node, own: Mapping[int, Role], others: list[str]) -> Role | None:
        if self.known(node.outputs[0]):
            return Derived()
        data = [n for n in others if not self.known(n)]
        if node.op == "Where" and 0 in own and len(data) == 2:
            self.say(node, Use.OTHER, f"chooses by it between '{data[0]}' and '{data[1]}'")
        else:
            self.say(node, Use.PLAIN, f"combines it with '{data[0]}'" if data else "reads it")
        return None

    def _split(self, node: Node, own: Mapping[int, Role]) -> Role | None:
        operands: list[Sides | Number] = []
        for i, n in enumerate(node.inputs):
            role = own.get(i)
            operands.append(role if isinstance(role, Sides) else self.number(n) if n else None)
        if node.op == "CastLike":
            operands = operands[:1]
        boolean = self.traces.runs[0][node.outputs[0]].dtype.numpy().kind == "b"
        made = combined("Identity" if node.op == "CastLike" else node.op, operands, boolean)
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


def _against(op: str, sign: int, stream: bool = True) -> Sides | None:
    """The length (sign 1) or positions (-1) compared with the other."""
    if op not in (*LESS, *GREATER):
        return None
    inside = (op in GREATER) == (sign > 0)
    return Sides(1.0, 0.0, stream) if inside else Sides(0.0, 1.0, stream)


Special = Callable[[_Walk, Node, Mapping[int, Role]], Role | None]
SPECIAL: Mapping[str, Special] = {
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceProd", "ArgMax", "ArgMin", *REDUCED_TO_EITHER), _Walk._reduced),
    **dict.fromkeys(("Shape", "Size"), _Walk._measured),
    **dict.fromkeys(("CumSum", "NonZero"), _Walk._summed_up),
    **dict.fromkeys(("MatMul", "Gemm", "Einsum"), _Walk._product),
    **dict.fromkeys(("ScatterND", "ScatterElements"), _Walk._scattered),
    **dict.fromkeys(("MaxPool", "AveragePool"), _Walk._pooled),
    **dict.fromkeys(RECURRENT, _Walk._recurrent),
    "ReverseSequence": _Walk._reversed,
}
