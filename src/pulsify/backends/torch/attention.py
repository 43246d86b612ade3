"""An attention as one line: a call of the kernel `stream_attention`, by whoever has it on this device.

    MatMul, Mul, Add, Where, Softmax, MatMul ...     attend(queries, keys, values, mask=..., table=...)

What the emitter said is an attention (`core.roles`) is read by `optimize.attention`; here it becomes text. Sizes in
front of rows and columns are streams and heads: [B, H, rows, d], with ones where the step has fewer axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pulsify.backends.seam import Array
from pulsify.backends.site import Uncovered
from pulsify.backends.torch.rings import READ, WRITE, Ring, both
from pulsify.backends.torch.site import Need, Scope, Site, literal, narrowed
from pulsify.kernels.targets import chosen
from pulsify.optimize.attention import Apart, Attention, Mask, Positions, Term
from pulsify.optimize.views import constant, only_reader, sizes

MOST_ROWS = 64  # of queries that one program of the kernel takes
MOST_DEPTH = 256


def attention_by(device: str, low: str | None) -> str | None:
    """Who has the kernel on such a device. In float32, torch's own operators are no better than the nodes."""
    found = chosen(device)
    return found if found != "torch" or low is not None else None


@dataclass(frozen=True, eq=False)
class Queries:
    """What several products take as queries, each with a constant of its own added.

    node, at: whose input it is; turned: [B, rows, H, d]. added: by product, [H, d], or None; nodes: those that add.
    """

    node: ir.Node
    at: int
    turned: bool
    added: tuple[Array | None, ...]
    nodes: tuple[ir.Node, ...]


@dataclass(frozen=True, eq=False)
class Rings:
    """Caches that a call appends to, and the nodes that it does not need for that any more."""

    made: tuple[Ring, ...] = ()
    nodes: tuple[ir.Node, ...] = ()


@dataclass(frozen=True, eq=False)
class Writer:
    """One attention, in a scope. needs: the constants that its line names."""

    found: Attention
    scope: Scope
    needs: dict[str, Need]

    @property
    def rank(self) -> int:
        return len(self.found.queries.shape or ())

    @property
    def lead(self) -> tuple[int, int]:
        """Streams and heads."""
        return _lead(self.found.last.outputs[0])

    @property
    def rows(self) -> int:
        return _known(self.found.queries, -2)

    @property
    def depth(self) -> int:
        return _known(self.found.queries, -1)

    def site(self, node: ir.Node) -> Site:
        return Site(node, self.scope, self.needs)

    def text(self) -> tuple[list[ir.Node], str, tuple[Ring, ...]]:
        """The nodes that it stands for, the line, and the caches that it appends to."""
        if self.rows > MOST_ROWS or self.depth > MOST_DEPTH:
            raise Apart(f"{self.rows} rows of {self.depth} are more than the kernel takes at once")
        found, inside = self.found, list(self.found.nodes)
        asked = self._about_queries()
        if asked is None:
            queries, positions = self._four(self.site(found.scores).x(0), found.queries), None
        else:
            queries, positions = self._common(asked), found.positions
            inside += [*asked.nodes, *(positions.nodes if positions else ())]
        named = [f"scale={literal(found.scale)}"]
        terms = [*found.terms, *([found.positions.term] if found.positions and positions is None else [])]
        named += [f"bias={self._sum(terms)}"] if terms else []
        named += [f"mask={self._masks(found.masks)}"] if found.masks else []
        named += [f"fill={literal(found.fill)}"] if found.masks and found.fill > -math.inf else []
        named += [f"hollow={found.hollow!r}"] if found.hollow != "nan" else []
        if positions is not None and asked is not None:
            named += self._positions(positions, asked)
        kept, rings, more = self._kept()
        call = f"attend({queries}, {kept}, {', '.join((*named, *more))})"
        return [*inside, *rings.nodes], {4: call, 3: f"{call}.squeeze(1)", 2: f"{call}[0, 0]"}[self.rank], rings.made

    # ---- operands

    def _kept(self) -> tuple[str, Rings, list[str]]:
        """Keys and values: joined from caches and what is new, or as rings with what is new beside them."""
        found = self.found
        try:
            caches = both(found, *self.scope.keeps) if self.scope.keeps is not None else None
        except Apart:  # why is of interest to nobody but for speed
            caches = None
        if caches is None:
            keys = self._four(f"{self.site(found.scores).x(1)}.transpose(-1, -2)", found.keys)
            return f"{keys}, {self._four(self.site(found.last).x(1), found.values)}", Rings(), []
        (keys_site, values_site), (one, other) = (self.site(c.join) for c in caches), (c.ring for c in caches)
        names = [self.scope.names.name(_input(c.join)) for c in caches]
        news = [
            self._four(f"{keys_site.x(1)}.transpose(-1, -2)", found.keys),
            self._four(values_site.x(1), found.values),
        ]
        more = [f"new_keys={news[0]}", f"new_values={news[1]}", f"start={one.start}", f"read={READ}", f"write={WRITE}"]
        return ", ".join(names), Rings((one, other), tuple(n for c in caches for n in c.nodes)), more

    def _four(self, text: str, value: ir.Value) -> str:
        """With streams and heads in front."""
        text = {4: text, 3: f"{text}.unsqueeze(1)", 2: f"{text}[None, None]"}[self.rank]
        return text if _lead(value) == self.lead else f"{text}.expand({self.lead[0]}, {self.lead[1]}, -1, -1)"

    def _about_queries(self) -> Queries | None:
        """Queries that the table of positions is read with too; None: there is none, or they have nothing in common."""
        found = self.found
        if found.positions is None:
            return None
        if found.positions.queries is found.queries:
            return Queries(found.scores, 0, False, (None, None), ())
        both = [_added(self.rank, found.scores), _added(self.rank, found.positions.product)]
        one, other = both
        if one is None or other is None or one.turned != other.turned:
            return None
        if one.node.inputs[one.at] is not other.node.inputs[other.at]:
            return None
        return Queries(one.node, one.at, one.turned, (*one.added, *other.added), (*one.nodes, *other.nodes))

    def _common(self, asked: Queries) -> str:
        text = self.site(asked.node).x(asked.at)
        text = f"{text}.transpose(1, 2)" if asked.turned else text
        return self._four(text, self.found.queries)

    def _positions(self, positions: Positions, asked: Queries) -> list[str]:
        heads, scale = self.lead[1], self.found.scale
        table = positions.table.reshape((1,) * (4 - positions.table.ndim) + positions.table.shape)
        if self.rank == 3:
            table = table.swapaxes(0, 1)  # what stands there is streams
        if table.shape[0] != 1 or table.shape[1] not in (1, heads):
            raise Apart("its table of positions differs from stream to stream")
        rows = table[0].swapaxes(-1, -2)  # [H or 1, offsets, d]
        rows = np.broadcast_to(rows, (heads, *rows.shape[1:])) * np.float32(positions.factor / scale)
        kind, site = self.site(self.found.scores).kind(0), self.site(positions.product)
        named = [f"table={site.put('table', np.ascontiguousarray(rows, np.float32), kind)}", f"shift={self.rows - 1}"]
        for name, array in zip("uv", asked.added, strict=True):
            if array is not None:
                full = np.ascontiguousarray(np.broadcast_to(array, (heads, self.depth)), np.float32)
                named.append(f"{name}={site.put(name, full, kind)}")
        return named

    # ---- cells

    def _sum(self, terms: Sequence[Term]) -> str:
        """All that is added, [B or 1, H or 1, rows or 1, columns or 1]."""
        parts = []
        for t in terms:
            value = t.node.inputs[t.at]
            assert value is not None
            site = self.site(t.node)
            text, factor = self._cells(site.x(t.at), value), narrowed(np.float32(t.factor), site.kind(t.at))
            parts.append(text if t.factor == 1 else f"{text} * {literal(factor)}")
        return " + ".join(parts)

    def _masks(self, masks: Sequence[Mask]) -> str:
        parts = []
        for m in masks:
            value = m.node.inputs[0]
            assert value is not None
            text = self._cells(self.site(m.node).x(0), value)
            parts.append(f"~{text}" if m.inverted else text)
        return " & ".join(parts)

    def _cells(self, text: str, value: ir.Value) -> str:
        own = len(value.shape or ())
        if self.rank == 3 and own == 3:
            return f"{text}.unsqueeze(1)"
        return text if own == 4 else f"{text}[{', '.join(['None'] * (4 - own))}]"


def _input(join: ir.Node) -> ir.Value:
    value = join.inputs[0]
    assert value is not None
    return value


def _known(value: ir.Value, axis: int) -> int:
    size = None if value.shape is None else value.shape[axis]
    if not isinstance(size, int):
        raise Uncovered("how many queries there are is not known")
    return size


def _lead(value: ir.Value) -> tuple[int, int]:
    dims = tuple(value.shape or ())[:-2]
    if not all(isinstance(d, int) for d in dims):
        raise Uncovered("how many heads there are is not known")
    known = [d for d in dims if isinstance(d, int)]
    return (known[0] if known else 1, known[1] if len(known) > 1 else 1)


def _added(rank: int, product: ir.Node) -> Queries | None:
    """What a product's queries are, but for a constant by head that is added, before they are turned or afterwards."""
    value = product.inputs[0]
    node = None if value is None else value.producer()
    turn = node if node is not None and node.op_type == "Transpose" and rank == 4 else None
    if turn is not None:
        if list(turn.attributes.get_ints("perm", ())) != [0, 2, 1, 3] or value is None or not only_reader(value):
            return None
        value = turn.inputs[0]
        node = None if value is None else value.producer()
    if node is None or value is None or node.op_type != "Add" or not only_reader(value) or rank < 3:
        return None
    for at in (0, 1):
        array = constant(node.inputs[1 - at])
        if array is None or sizes(node.inputs[at]) != sizes(node.outputs[0]):
            continue
        full = array.reshape((1,) * (4 - array.ndim) + array.shape) if array.ndim <= 4 else None
        if full is None or (rank == 3 and full.shape[1:3] != (1, 1)):
            return None
        by_head = full if turn is not None or rank == 3 else full.swapaxes(1, 2)  # [1, 1, H, d]
        if by_head.shape[:2] != (1, 1):
            return None
        return Queries(node, at, turn is not None, (by_head[0, 0],), (*([turn] if turn else ()), node))
    return None
