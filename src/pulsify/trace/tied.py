"""Exports that run at one length only: a size that was a number in Python when the model was exported.

    x.view(40, -1)  while exporting  -->  Reshape to [40, -1], whatever the length is

The model is run at two lengths. Where both fail at the same node, what differs there between the two goes with the
length, what does not is written down: where the two meet, it would run. If it does, and does at no other length, that
is the length it was exported at.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import zip_longest

import onnx_ir as ir

from pulsify.core.errors import InvalidModel, NotStreamable
from pulsify.core.length import LONGEST
from pulsify.core.refusal import Kind, fix_batch
from pulsify.core.traits import traits
from pulsify.frontend.model import Exporter
from pulsify.trace.traced import CannotRun, Empty, Unlike

SCALES = (64, 1024, 16384)  # frames: of the two lengths
CANDIDATES = 24  # lengths that are tried, and what is near them where several share a size
GUESSES = 6  # to find each of those
NUMBERS = 16  # entries of a known value that may be sizes
SIZES = (
    "without Python numbers made of sizes (int(x.shape[1]), loops over frames, masks from numpy): use x.shape and "
    "torch.arange"
)
HINTS: dict[Exporter, str] = {
    "torch.jit": f"export it again {SIZES}, or torch.onnx.export(..., dynamo=True, dynamic_shapes=...)",
    "torch.export": f"export it again {SIZES}",
    "torch.nn": f"write it {SIZES}",
    "": "export it again with sizes that follow from the length (a dynamic time axis)",
}
MASK = "choose with a mask that has all axes, torch.where(mask[..., None], value, y)"
DYNAMO = ", or export with torch.onnx.export(..., dynamo=True, dynamic_shapes=...)"
Run = Callable[[int, int], object]  # (length, batch): raises CannotRun


def too_deep(node: str, op: str, exporter: Exporter) -> NotStreamable:
    """The refusal of a value that is made of another, that of another, and so on, further than can be followed."""
    return NotStreamable(
        "a value that follows from the length is made by a longer chain of nodes than can be followed: a loop in "
        "Python was written out when the model was exported",
        node=node,
        op=op,
        hint=HINTS[exporter],
        kind=Kind.EXPORT,
    )


def without_entries(*problems: CannotRun | None) -> NotStreamable | None:
    """The refusal of a value that has no entries at any of the lengths tried: the model may well run."""
    first = problems[0]
    if not isinstance(first, Empty) or any(not isinstance(p, Empty) or _none(p) != _none(first) for p in problems):
        return None
    return NotStreamable(
        f"its output has no entries, whatever the length (shape {list(first.dims)}), and such values are not followed",
        node=first.node.name,
        op=first.node.op,
        hint="begin with the first frame instead of with an empty tensor, or collect frames in a list",
        kind=Kind.EXPORT,
    )


def _none(problem: Empty) -> tuple[str, tuple[int, ...]]:
    """The node, and the axes that have no entries."""
    return problem.node.name, tuple(i for i, d in enumerate(problem.dims) if not d)


def tied(
    run: Run, step: int, batches: tuple[int, ...], batch_symbol: str | None = None, exporter: Exporter = ""
) -> NotStreamable | None:
    """The refusal of a model that takes one length, or one number of streams; None if it is not certain that it does.

    step: lengths are multiples of this; batches: numbers of streams to try, the first of which the caller needs.
    batch_symbol: the model's own name of its batch dimension. exporter: what wrote the model.
    """
    for scale in SCALES:
        first, second = (-(-(n * scale + 3) // step) * step for n in (1, 2))
        problem: CannotRun | None = None
        for batch in batches:
            problems = [problem_at(run, n, batch) for n in (first, second)]
            if None in problems and batch == batches[0]:
                return None
            if problems == [None, None]:
                return one_batch(run, first, batches[0], batch_symbol)
            a, b = problems
            problem = a or b or problem
            if a is None or b is None or a.node.name != b.node.name:
                continue
            refusal = _short_mask(a, b, exporter)
            if refusal is None and batch == batches[-1]:  # what goes with the batch is another refusal's
                refusal = _never_alike(a, b, exporter)
            if refusal is not None:
                return refusal
            fixed = sorted({x for x, y in zip(sizes_read(a), sizes_read(b), strict=False) if x == y <= LONGEST})
            for length, size, width in _candidates(run, a, b, first, second, step, batch):
                further = [width * step, length, *(n * width * step for n in (16, *fixed))]
                if _only(run, length, further, batch):
                    alone = batch if problem_at(run, length, batches[0]) else None
                    return _refusal(a, (length, width), size, alone, exporter)
        if problem is None or not traits(problem.node.op, problem.node.domain).windowed:  # it is not too short there
            break
    return None


def _short_mask(a: CannotRun, b: CannotRun, exporter: Exporter) -> NotStreamable | None:
    """The refusal of a mask [B, T] that meets [B, T, C] as it is: its axes are counted from the last one."""
    if not traits(a.node.op, a.node.domain).elementwise:
        return None
    for mask, other in zip(a.read, b.read, strict=False):
        rank = len(mask.dims)
        whole = next((v for v in a.read if len(v.dims) > rank > 0 and v.dims[:rank] == mask.dims), None)
        if mask.dtype != ir.DataType.BOOL or whole is None or mask.dims == other.dims or not _apart(a, b):
            continue
        return NotStreamable(
            f"its mask {list(mask.dims)} has no axes for the entries of a frame of {list(whole.dims)}, and sizes are "
            "compared from the last axis on: y[mask] = value is exported so",
            node=a.node.name,
            op=a.node.op,
            hint=MASK + (DYNAMO if exporter == "torch.jit" else ""),
            kind=Kind.EXPORT,
        )
    return None


def _never_alike(a: CannotRun, b: CannotRun, exporter: Exporter) -> NotStreamable | None:
    """The refusal of two sizes that would have to be the same, and of which none goes with the length."""
    if isinstance(a, Unlike) and a.reason == b.reason:
        raise InvalidModel(
            f"{a.node.op} node '{a.node.name}' cannot run at any length: {a.reason}; run the model in ONNX Runtime, "
            "and export it again"
        )
    if not traits(a.node.op, a.node.domain).elementwise:
        return None
    sizes = next((x for x, y in zip(_met(a), _met(b), strict=False) if x == y and len(x) > 1), None)
    if sizes is None:
        return None
    return NotStreamable(
        f"it cannot run at any length: sizes {' and '.join(map(str, sorted(sizes)))} meet on one axis of "
        f"{' and '.join(str(list(v.dims)) for v in a.read)}",
        node=a.node.name,
        op=a.node.op,
        hint=HINTS[exporter],
        kind=Kind.EXPORT,
    )


def _met(problem: CannotRun) -> list[set[int]]:
    """The sizes that meet on each axis, the last axis first; of one entry goes with any other size."""
    axes = zip_longest(*(v.dims[::-1] for v in problem.read), fillvalue=1)
    return [{n for n in sizes if n != 1} for sizes in axes]


def _apart(a: CannotRun, b: CannotRun) -> bool:
    """Do sizes meet that are different at both lengths, not all of which go with the length?"""
    return any(len(x) > 1 and len(y) > 1 and x & y for x, y in zip(_met(a), _met(b), strict=False))


def problem_at(run: Run, length: int, batch: int) -> CannotRun | None:
    """Why it does not run."""
    try:
        run(length, batch)
    except CannotRun as problem:
        return problem
    return None


def _candidates(
    run: Run, a: CannotRun, b: CannotRun, first: int, second: int, step: int, batch: int
) -> Iterator[tuple[int, int, int]]:
    """(length, size, lengths that share it): where what goes with the length would be a size that does not."""
    pairs = list(zip(sizes_read(a), sizes_read(b), strict=False))
    found: list[tuple[int, int, int, int]] = []
    for index, (x, y) in enumerate(pairs):
        if x == y or x < 0 or y < 0:
            continue
        width = math.ceil((second - first) / abs(y - x))
        for size in {u for u, v in pairs if u == v > 1}:
            middle = first + (size - x) * (second - first) / (y - x)
            found.append((round(middle), size, width, index))
    count = Counter((length, size, width) for length, size, width, _ in found)
    guesses = {(length, size, width): index for length, size, width, index in found}
    seen: set[int] = set()
    for (length, size, width), index in sorted(guesses.items(), key=lambda g: (-count[g[0]], g[0][2]))[:CANDIDATES]:
        near = {0}
        if width > 1:
            length = _nearer(run, a, length, size, width, index, batch)
            near = {0, width // 2, width, -(width // 2), -width}
        for at in ((length + off) // step * step for off in near):
            if 0 < at <= LONGEST and at not in seen:
                seen.add(at)
                yield at, size, width


def _nearer(run: Run, a: CannotRun, length: int, size: int, width: int, index: int, batch: int) -> int:
    """Where a number that grows by one in about so many frames is nearly this size: a few rounds of guesses."""
    for _ in range(GUESSES):
        problem = problem_at(run, length, batch) if 0 < length <= LONGEST else None
        if problem is None or problem.node.name != a.node.name:
            break
        sizes = sizes_read(problem)
        if index >= len(sizes) or abs(off := size - sizes[index]) <= 1:
            break
        length += off * width
    return length


def sizes_read(problem: CannotRun) -> list[int]:
    """Sizes of what the node reads, and numbers it is told: each, and all of an input multiplied."""
    out: list[int] = []
    for value in problem.read:
        out += [*value.dims, math.prod(value.dims)]
        if value.known and value.dtype.is_integer() and math.prod(value.dims) <= NUMBERS:
            numbers = [abs(int(n)) for n in value.array.reshape(-1)]
            out += [*numbers, math.prod(numbers)]
    return out


def _only(run: Run, length: int, further: list[int], batch: int) -> bool:
    """Does it run there, and at no other length? Some models take lengths a fixed number of frames apart.

    A stream of a single frame says nothing: sizes of one are broadcast against any other.
    """
    others = dict.fromkeys([length - further[0], *(length + n for n in further)])
    told = (n for n in others if further[0] < n <= LONGEST and n != length)
    return problem_at(run, length, batch) is None and all(problem_at(run, n, batch) for n in told)


def _refusal(
    problem: CannotRun, at: tuple[int, int], size: int, batch: int | None, exporter: Exporter
) -> NotStreamable:
    streams = f" of {batch} streams" if batch is not None else ""
    near = f"within {at[1]} of " if at[1] > 1 else ""
    return NotStreamable(
        f"the model was exported for one length: it runs at {near}{at[0]} frames{streams} and at no other, because a "
        f"size ({size}) that should go with the length is written into it here",
        node=problem.node.name,
        op=problem.node.op,
        hint=HINTS[exporter],
        kind=Kind.EXPORT,
    )


def one_batch(run: Run, length: int, batch: int, symbol: str | None) -> NotStreamable | None:
    """The refusal of a model that does not take so many streams."""
    problem = problem_at(run, length, batch)
    if problem is None:
        return None
    return NotStreamable(
        f"the model does not take {batch} streams at once, though its batch is symbolic: {problem.reason}",
        node=problem.node.name,
        op=problem.node.op,
        hint=fix_batch(symbol),
        kind=Kind.BATCH,
    )
