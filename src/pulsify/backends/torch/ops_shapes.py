"""Operators that move elements and compute nothing: shapes, axes, cuts and joins."""

from __future__ import annotations

import math

import numpy as np

from pulsify.backends.padding import shown
from pulsify.backends.site import Uncovered
from pulsify.backends.torch.site import Site
from pulsify.backends.torch.table import Written, op

FAR = 2**31 - 1  # ends from here on mean the end


@op("Reshape")
def reshape(n: Site) -> Written:
    try:
        return f"{n.x()}.reshape({_listed(n.gives())})"
    except Uncovered:
        target = n.ints(1, "target")
    if n.attr("allowzero", 0) and 0 in target:
        raise Uncovered("a size of zero beside sizes that are not known")
    dims = [f"{n.x()}.shape[{i}]" if d == 0 else str(d) for i, d in enumerate(target)]
    return f"{n.x()}.reshape({', '.join(dims) or '()'})"


def _listed(dims: tuple[int, ...]) -> str:
    return ", ".join(map(str, dims)) or "()"


@op("Flatten")
def flatten(n: Site) -> Written:
    axis = int(n.attr("axis", 1))
    rank = n.rank()
    axis = axis + rank if axis < 0 else axis
    sizes = n.sizes()
    return f"{n.x()}.reshape({math.prod(sizes[:axis])}, {math.prod(sizes[axis:])})"


def _axes(n: Site) -> list[int] | None:
    """Of Squeeze and Unsqueeze, as an attribute up to opset 12."""
    if n.opset < 13:
        found = n.attr("axes")
        return None if found is None else [int(a) for a in found]
    return n.ints(1, "axes") if n.has(1) else None


@op("Unsqueeze")
def unsqueeze(n: Site) -> Written:
    axes = _axes(n)
    if axes is None:
        raise Uncovered("it has no axes")
    if any(a < 0 for a in axes):
        rank = n.rank() + len(axes)
        axes = [a % rank for a in axes]
    return n.x() + "".join(f".unsqueeze({a})" for a in sorted(axes))


@op("Squeeze")
def squeeze(n: Site) -> Written:
    axes = _axes(n)
    if axes is None:
        axes = [i for i, d in enumerate(n.sizes()) if d == 1]
    return n.x() + "".join(f".squeeze({a})" for a in sorted(set(n.counted(axes)), reverse=True))


@op("Transpose")
def transpose(n: Site) -> Written:
    order = [int(p) for p in n.attr("perm", range(n.rank())[::-1])]
    if order == list(range(len(order))):
        return n.x()
    moved = [i for i, p in enumerate(order) if i != p]
    if len(moved) == 2:
        return f"{n.x()}.transpose({moved[0]}, {moved[1]})"
    return f"{n.x()}.permute({_listed(tuple(order))})"


@op("Expand")
def expand(n: Site) -> Written:
    try:
        return f"{n.x()}.expand({_listed(n.gives())})"
    except Uncovered:
        target = tuple(n.ints(1, "target"))
    return f"{n.x()}.expand(torch.broadcast_shapes({n.x()}.shape, {target}))"


@op("Tile")
def tile(n: Site) -> Written:
    return f"{n.x()}.repeat({_listed(tuple(n.ints(1, 'repeats')))})"


@op("Concat")
def concat(n: Site) -> Written:
    """Where the innermost axis may be another than the last, `op.join` keeps to it."""
    given = [n.x(i) for i in range(n.count())]
    if len(given) == 1:
        return given[0]
    last = n.value(n.count() - 1)
    plain = n.rank() < 3 or not n.floating() or last is None or last in n.scope.constants
    return f"{'torch.cat' if plain else 'op.join'}([{', '.join(given)}], {n.axis()})"


@op("Split")
def split(n: Site) -> Written:
    axis, count = n.axis(), len(n.node.outputs)
    given = n.ints(1, "sizes") if n.has(1) else n.attr("split")
    if given is None:
        size = n.sizes()[axis]
        piece = -(-size // count)
        given = [min(piece, size - i * piece) for i in range(count)]
    outs = ", ".join(n.out(i) for i in range(count))
    return [f"{outs}{',' * (count == 1)} = torch.split({n.x()}, {[int(g) for g in given]}, {axis})"]


@op("Slice")
def cut(n: Site) -> Written:
    if n.opset < 10:
        starts, ends = ([int(k) for k in n.attr(name)] for name in ("starts", "ends"))
        axes = [int(k) for k in n.attr("axes", range(len(starts)))]
        steps = [1] * len(starts)
    else:
        starts, ends = n.ints(1, "start"), n.ints(2, "end")
        axes = n.ints(3, "axes") if n.has(3) else list(range(len(starts)))
        steps = n.ints(4, "steps") if n.has(4) else [1] * len(starts)
    text, pieces = n.x(), dict[int, str]()
    for axis, start, end, step in zip(n.counted(axes), starts, ends, steps, strict=True):
        if step < 0:
            text += _backwards(n, axis, start, end, step)
            continue
        piece = f"{start or ''}:{'' if end >= FAR else end}" + (f":{step}" if step > 1 else "")
        if piece != ":":
            pieces[axis] = piece
    if not pieces:
        return text
    return f"{text}[{', '.join(pieces.get(i, ':') for i in range(max(pieces) + 1))}]"


def _backwards(n: Site, axis: int, start: int, end: int, step: int) -> str:
    """The steps that a negative one takes; torch has none."""
    size = n.sizes()[axis]
    start = min(max(start + size if start < 0 else start, 0), size - 1)
    end = min(max(end + size if end < 0 else end, -1), size - 1)
    places = np.arange(start, end, step)
    if list(places) == list(range(size))[::-1]:
        return f".flip({axis})"
    return f".index_select({axis}, {n.put(f'places_{axis}', places)})"


@op("Pad")
def pad(n: Site) -> Written:
    mode = n.attr("mode", "constant")
    pads = n.ints(1, "pads") if n.opset >= 11 else [int(p) for p in n.attr("pads")]
    rank = n.rank()
    axes = [a % rank for a in n.ints(3, "axes")] if n.has(3) else list(range(rank))
    if mode != "constant":
        return _mirrored(n, mode, axes, pads)
    value = "0" if n.opset >= 11 else repr(float(n.attr("value", 0.0)))
    if n.has(2):
        value = n.number(2) or ""
        if not value:
            raise Uncovered("what it pads with must be known before it runs")
    return f"F.pad({n.x()}, {turned(rank, axes, pads)}, value={value})"


def turned(rank: int, axes: list[int], pads: list[int]) -> list[int]:
    """Pads as torch takes them: the last axis first, before and after; axes in front that have none are left out."""
    out = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        out[2 * (rank - 1 - axis)], out[2 * (rank - 1 - axis) + 1] = pads[i], pads[i + len(axes)]
    while out and out[-2:] == [0, 0]:
        del out[-2:]
    return out


def _mirrored(n: Site, mode: str, axes: list[int], pads: list[int]) -> str:
    text, sizes = n.x(), n.sizes()
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[i + len(axes)]
        if before or after:
            places = shown(sizes[axis], before, after, mode)
            text += f".index_select({axis}, {n.put(f'places_{axis}', places)})"
    return text


@op("Shape")
def shape(n: Site) -> Written:
    start, end = int(n.attr("start", 0)), n.attr("end")
    try:
        dims = n.sizes()[start : None if end is None else int(end)]
    except Uncovered:
        bounds = "" if (start, end) == (0, None) else f"[{start}:{'' if end is None else int(end)}]"
        return f"torch.tensor({n.x()}.shape{bounds}, dtype=torch.int64, device='cpu')"
    return n.put("shape", np.array(dims, np.int64))


@op("Size")
def size(n: Site) -> Written:
    return n.put("size", np.array(math.prod(n.sizes()), np.int64))


@op("Range")
def arange(n: Site) -> Written:
    ends = [n.number(i) or (f"{n.scope.names.name(v)}.item()" if (v := n.value(i)) in n.scope.host else None)
            for i in range(3)]  # fmt: skip
    if any(e is None for e in ends):
        raise Uncovered("its ends must be known before it runs")
    return f"torch.arange({', '.join(map(str, ends))}, dtype=torch.{n.made()}, device=device)"


@op("ConstantOfShape")
def filled(n: Site) -> Written:
    value = n.attr("value")
    number = 0.0 if value is None else value.numpy().reshape(-1)[0].item()
    try:
        dims: str = str(n.gives())
    except Uncovered:
        dims = str(tuple(n.ints(0, "shape")))
    return f"torch.full({dims}, {number!r}, dtype=torch.{n.made()}, device=device)"


@op("DepthToSpace", "SpaceToDepth")
def blocks(n: Site) -> Written:
    b, (batch, c, h, w) = int(n.attr("blocksize")), n.sizes()
    if n.op == "SpaceToDepth":
        seen, order = (batch, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4)
    elif n.attr("mode", "DCR") == "DCR":
        seen, order = (batch, b, b, c // b**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        seen, order = (batch, c // b**2, b, b, h, w), (0, 1, 4, 2, 5, 3)
    return f"{n.x()}.reshape({_listed(seen)}).permute({_listed(order)}).reshape({_listed(n.gives())})"


@op("Trilu")
def triangle(n: Site) -> Written:
    k = n.ints(1, "diagonal")[0] if n.has(1) else 0
    return f"torch.{'triu' if n.attr('upper', 1) else 'tril'}({n.x()}, {k})"
