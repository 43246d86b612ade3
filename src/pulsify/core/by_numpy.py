"""What single operators make of arrays, by NumPy: only where ONNX Runtime makes the same of them.

Converting a model runs thousands of such operators on a handful of numbers each, where a call of ONNX Runtime costs
thirty times as much as what it computes. An operator, a type or a value that is not certain to be the same is left to
ONNX Runtime: `by_numpy` returns None. `tests/unit/core/test_by_numpy.py` compares all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.arrays import Array

Attrs = Mapping[str, Any]
Given = Sequence[Array | None]
Operator = Callable[[Attrs, Given], "Array | list[Array] | None"]

OPERATORS: dict[str, Operator] = {}
NUMBERS = frozenset(np.dtype(t) for t in ("float32", "float64", "int32", "int64"))
WHOLE = frozenset(np.dtype(t) for t in ("int32", "int64"))
FLOATS = frozenset(np.dtype(t) for t in ("float32", "float64"))
BOOL = frozenset((np.dtype("bool"),))


def by_numpy(op: str, attrs: Attrs, given: Given) -> list[Array] | None:
    """The outputs of an operator of ONNX's own; None: ask ONNX Runtime. Raises what NumPy raises if it has none."""
    operator = OPERATORS.get(op)
    if operator is None:
        return None
    with np.errstate(all="ignore"):
        made = operator(attrs, given)
    if made is None or isinstance(made, list):
        return made
    return [np.asarray(made)]


def operators(*ops: str) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(ops, function))
        return function

    return register


# ---- entry by entry


def _entrywise(function: Callable[..., Any], types: frozenset[np.dtype[Any]]) -> Operator:
    def run(attrs: Attrs, given: Given) -> Array | None:
        arrays = [a for a in given if a is not None]
        kind = arrays[0].dtype
        if kind not in types or any(a.dtype != kind for a in arrays):
            return None
        return np.asarray(function(*arrays))

    return run


# Of functions that round, NumPy's are a few units in the last place off, and the same at every place.
ENTRYWISE: tuple[tuple[frozenset[np.dtype[Any]], dict[str, Callable[..., Any]]], ...] = (
    (
        NUMBERS,
        {
            "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative, "Abs": np.abs,
            "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
        },
    ),
    (NUMBERS | BOOL, {"Equal": np.equal}),
    (BOOL, {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor, "Not": np.logical_not}),
    (
        FLOATS,
        {
            "Floor": np.floor, "Ceil": np.ceil, "Round": np.rint, "Sqrt": np.sqrt, "Reciprocal": np.reciprocal,
            "Exp": np.exp, "Log": np.log, "Sin": np.sin, "Cos": np.cos, "Pow": np.power,
        },
    ),
    (FLOATS - {np.dtype("float64")}, {"Tan": np.tan, "Atan": np.arctan}),
)  # fmt: skip
OPERATORS |= {op: _entrywise(function, types) for types, table in ENTRYWISE for op, function in table.items()}


@operators("Div")
def _divide(attrs: Attrs, given: Given) -> Array | None:
    """Whole numbers towards zero; by zero it fails, and the least one by -1 has no result."""
    x, y = given
    if x is None or y is None or x.dtype != y.dtype or x.dtype not in NUMBERS:
        return None
    if x.dtype.kind == "f":
        return np.asarray(np.divide(x, y))
    if not y.all() or bool((y == -1).any()):
        return None
    down = np.floor_divide(x, y)
    return np.asarray(down + ((down < 0) & (down * y != x)))


@operators("Mod")
def _remainder(attrs: Attrs, given: Given) -> Array | None:
    x, y = given
    if x is None or y is None or x.dtype != y.dtype or x.dtype not in WHOLE or not y.all() or bool((y == -1).any()):
        return None
    return np.asarray(np.fmod(x, y) if attrs.get("fmod", 0) else np.remainder(x, y))


def _extreme(how: Callable[..., Any]) -> Operator:
    def run(attrs: Attrs, given: Given) -> Array | None:
        arrays = [a for a in given if a is not None]
        if any(a.dtype != arrays[0].dtype for a in arrays) or arrays[0].dtype not in WHOLE:
            return None
        out = arrays[0]
        for a in arrays[1:]:
            out = how(out, a)
        return np.asarray(out)

    return run


OPERATORS |= {"Max": _extreme(np.maximum), "Min": _extreme(np.minimum)}


@operators("Where")
def _where(attrs: Attrs, given: Given) -> Array | None:
    which, x, y = given
    if which is None or x is None or y is None or x.dtype != y.dtype or x.dtype not in NUMBERS | BOOL:
        return None
    return np.where(which, x, y)


@operators("Cast")
def _cast(attrs: Attrs, given: Given) -> Array | None:
    """Between numbers that fit; what does not fit the type is the compiler's choice."""
    (x,) = given
    to = ir.DataType(attrs["to"])
    if x is None or x.dtype not in NUMBERS | BOOL or to.value not in CAST_TO:
        return None
    wanted = to.numpy()
    if x.dtype.kind == "f" and wanted.kind == "i":
        if not x.size:
            return x.astype(wanted)
        low, high = float(x.min()), float(x.max())
        end = 2.0 ** (8 * wanted.itemsize - 1)
        if not -end < low <= high < end:  # nor NaN
            return None
    return x.astype(wanted)


CAST_TO = {int(t) for t in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64)}
CAST_TO.add(int(ir.DataType.BOOL))


# ---- moved about


@operators("Identity")
def _identity(attrs: Attrs, given: Given) -> Array | None:
    return given[0]


def _axes(attrs: Attrs, given: Given, at: int) -> list[int] | None:
    axes = attrs.get("axes")
    if axes is None and len(given) > at:
        array = given[at]
        axes = None if array is None else array.reshape(-1).tolist()
    return None if axes is None else [int(a) for a in axes]


def _apart(axes: list[int] | None, rank: int) -> bool:
    """Are they axes, each once? ONNX Runtime takes others in some places."""
    return all(-rank <= a < rank for a in axes or ()) and len({a % rank for a in axes or ()}) == len(axes or ())


@operators("Unsqueeze")
def _unsqueeze(attrs: Attrs, given: Given) -> Array | None:
    x, axes = given[0], _axes(attrs, given, 1)
    if x is None or axes is None:
        return None
    rank = x.ndim + len(axes)
    if len({a % rank for a in axes}) < len(axes) or any(not -rank <= a < rank for a in axes):
        return None
    new, rest = {a % rank for a in axes}, iter(x.shape)
    return x.reshape([1 if a in new else next(rest) for a in range(rank)])


@operators("Squeeze")
def _squeeze(attrs: Attrs, given: Given) -> Array | None:
    x, axes = given[0], _axes(attrs, given, 1)
    if x is None or (len(given) > 1 and given[1] is None) or not _apart(axes, x.ndim):
        return None
    return np.squeeze(x, None if not axes else tuple(axes))


@operators("Reshape")
def _reshape(attrs: Attrs, given: Given) -> Array | None:
    x, shape = given
    if x is None or shape is None:
        return None
    wanted = shape.reshape(-1).tolist()
    if not attrs.get("allowzero", 0):
        wanted = [x.shape[i] if d == 0 else d for i, d in enumerate(wanted)]
    if min(wanted, default=0) < -1 or (not x.size and -1 in wanted):
        return None
    return x.reshape(wanted)


@operators("Flatten")
def _flatten(attrs: Attrs, given: Given) -> Array | None:
    (x,), axis = given, attrs.get("axis", 1)
    if x is None or not -x.ndim <= axis <= x.ndim:
        return None
    axis += x.ndim if axis < 0 else 0
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operators("Transpose")
def _transpose(attrs: Attrs, given: Given) -> Array | None:
    (x,) = given
    return None if x is None else np.transpose(x, attrs.get("perm"))


@operators("Concat")
def _concat(attrs: Attrs, given: Given) -> Array | None:
    arrays = [a for a in given if a is not None]
    if any(a.dtype != arrays[0].dtype for a in arrays):
        return None
    return np.concatenate(arrays, attrs["axis"])


@operators("Slice")
def _slice(attrs: Attrs, given: Given) -> Array | None:
    """Forwards, as Python has it; backwards ONNX clamps otherwise."""
    x, starts, ends, axes, steps = [*given, None, None][:5]
    if x is None or starts is None or ends is None:
        return None
    which: list[slice] = [slice(None)] * x.ndim
    by = [1] * starts.size if steps is None else steps.reshape(-1).tolist()
    along = list(range(starts.size)) if axes is None else axes.reshape(-1).tolist()
    if min(by, default=1) < 1 or any(not -x.ndim <= a < x.ndim for a in along):
        return None
    if len({a % x.ndim for a in along}) < len(along):
        return None
    for start, end, axis, step in zip(starts.reshape(-1).tolist(), ends.reshape(-1).tolist(), along, by, strict=True):
        which[axis] = slice(start, end, step)
    return x[tuple(which)]


@operators("Gather")
def _gather(attrs: Attrs, given: Given) -> Array | None:
    x, index = given
    return None if x is None or index is None or not x.size or not x.ndim else np.take(x, index, attrs.get("axis", 0))


@operators("Expand")
def _expand(attrs: Attrs, given: Given) -> Array | None:
    x, shape = given
    if x is None or shape is None or min(shape.reshape(-1).tolist(), default=1) < 1:
        return None
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.reshape(-1).tolist())))


@operators("Tile")
def _tile(attrs: Attrs, given: Given) -> Array | None:
    x, repeats = given
    if x is None or repeats is None or repeats.size != x.ndim or min(repeats.tolist(), default=1) < 1:
        return None
    return np.tile(x, repeats.tolist())


@operators("Pad")
def _pad(attrs: Attrs, given: Given) -> Array | None:
    """A constant around it."""
    x, pads, fill, axes = [*given, None, None][:4]
    mode = attrs.get("mode", "constant")
    if x is None or pads is None or mode not in ("constant", b"constant") or x.dtype not in NUMBERS | BOOL:
        return None
    amounts, own = pads.reshape(-1).tolist(), range(x.ndim) if axes is None else axes.reshape(-1).tolist()
    if min(amounts, default=0) < 0 or len(amounts) != 2 * len(own):
        return None
    front, behind = [0] * x.ndim, [0] * x.ndim
    for i, a in enumerate(own):
        front[a], behind[a] = amounts[i], amounts[i + len(own)]
    shape = [d + p + q for d, p, q in zip(x.shape, front, behind, strict=True)]
    out = np.full(shape, 0 if fill is None else fill.reshape(-1)[0], x.dtype)
    out[tuple(slice(p, p + d) for p, d in zip(front, x.shape, strict=True))] = x
    return out


@operators("Trilu")
def _trilu(attrs: Attrs, given: Given) -> Array | None:
    x, k = [*given, None][:2]
    if x is None or x.dtype not in NUMBERS | BOOL or x.ndim < 2:
        return None
    offset = 0 if k is None else int(k.reshape(-1)[0])
    return np.asarray((np.triu if attrs.get("upper", 1) else np.tril)(x, offset))


# ---- made of numbers


@operators("Range")
def _range(attrs: Attrs, given: Given) -> Array | None:
    numbers = [a for a in given if a is not None]
    if len(numbers) != 3 or any(a.dtype != numbers[0].dtype or a.size != 1 for a in numbers):
        return None
    start, limit, step = (a.reshape(-1)[0].item() for a in numbers)
    if numbers[0].dtype not in WHOLE or not step:
        return None
    return np.asarray(np.arange(start, limit, step, dtype=numbers[0].dtype))


@operators("ConstantOfShape")
def _filled(attrs: Attrs, given: Given) -> Array | None:
    (shape,), value = given, attrs.get("value")
    entry = np.zeros(1, np.float32) if value is None else np.asarray(value.numpy())
    if shape is None or min(shape.reshape(-1).tolist(), default=0) < 0:
        return None
    return np.full(shape.reshape(-1).tolist(), entry.reshape(-1)[0], entry.dtype)


@operators("NonZero")
def _places(attrs: Attrs, given: Given) -> Array | None:
    (x,) = given
    if x is None or x.dtype not in (NUMBERS | BOOL) - {np.dtype("float64")} or not x.ndim:
        return None
    return np.array(np.nonzero(x), np.int64)


# ---- whole numbers, gathered


@operators("CumSum")
def _running(attrs: Attrs, given: Given) -> Array | None:
    x, at = given
    if x is None or at is None or x.dtype not in WHOLE or not x.ndim:
        return None
    axis = int(at.reshape(-1)[0])
    turned = np.flip(x, axis) if attrs.get("reverse", 0) else x
    out = np.cumsum(turned, axis, x.dtype)
    out = out - turned if attrs.get("exclusive", 0) else out
    return np.flip(out, axis) if attrs.get("reverse", 0) else out


def _gathered(how: Callable[..., Any], sums: bool) -> Operator:
    def run(attrs: Attrs, given: Given) -> Array | None:
        x, axes = given[0], _axes(attrs, given, 1)
        if x is None or x.dtype not in WHOLE or not x.size or not _apart(axes, x.ndim):
            return None
        if sums and _span(x) * x.size >= LARGEST[x.dtype.itemsize]:
            return None
        if not axes and attrs.get("noop_with_empty_axes", 0):
            return x
        along = tuple(axes) if axes else tuple(range(x.ndim))
        return np.asarray(how(x, along, keepdims=bool(attrs.get("keepdims", 1)))).astype(x.dtype, copy=False)

    return run


LARGEST = {4: 2.0**31, 8: 2.0**52}  # sums that ONNX Runtime makes of doubles are exact below


def _span(x: Array) -> float:
    return max(abs(float(x.min())), abs(float(x.max())))


OPERATORS |= {
    "ReduceSum": _gathered(np.sum, sums=True),
    "ReduceMax": _gathered(np.max, sums=False),
    "ReduceMin": _gathered(np.min, sums=False),
}
