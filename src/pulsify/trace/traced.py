"""Values at one concrete length: known (they follow from the length alone) or merely shaped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pulsify.frontend.model import Node

EAGER_ELEMENTS = 1 << 16  # known values up to this size are computed at once, larger ones when asked for
Array = np.ndarray


class CannotRun(Exception):
    """The model cannot run at this length: which node, what it says, and what the node was given."""

    def __init__(self, node: Node, reason: str) -> None:
        self.node, self.reason = node, reason
        self.read: list[Traced] = []
        super().__init__(f"{node.op} '{node.name}': {reason}")


class Unlike(CannotRun):
    """Two sizes differ that have to be the same; if they are numbers of the model, it runs at no length."""


class Empty(CannotRun):
    """It may well run there: a value without entries, which is not followed."""

    def __init__(self, node: Node, dims: tuple[int, ...]) -> None:
        self.dims = dims
        super().__init__(node, f"the output would have shape {list(dims)}")


class TooLarge(CannotRun):
    """It may well run there, but not here."""


class Recent:
    """The large arrays used last, up to so many bytes in all: they can be computed again."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._arrays: OrderedDict[Traced, Array] = OrderedDict()

    def get(self, key: Traced) -> Array | None:
        array = self._arrays.get(key)
        if array is not None:
            self._arrays.move_to_end(key)
        return array

    def put(self, key: Traced, array: Array) -> None:
        self._arrays[key] = array
        self._bytes += array.nbytes
        while self._bytes > self._most and len(self._arrays) > 1:
            _, old = self._arrays.popitem(last=False)
            self._bytes -= old.nbytes

    def clear(self) -> None:
        self._arrays.clear()
        self._bytes = 0


RECENT = Recent(1 << 27)


@dataclass(eq=False)
class Traced:
    """What is known of one value at one length."""

    dtype: ir.DataType
    dims: tuple[int, ...]
    known: bool
    _array: Array | None = None
    _thunk: Callable[[], Array] | None = None
    _rows: Callable[[int, slice], Array] | None = None  # along an axis counted from the last
    depth: int = 0  # values made only when asked for, each of the one before, that it is the last of

    def cut(self, axis: int | None, rows: slice) -> Array:
        """Some rows along an axis; all, where it has no such axis, or a single one."""
        if axis is None or rows == slice(None) or self.dims[axis] == 1:
            return self.array
        found = RECENT.get(self) if self._array is None else self._array
        if found is None and self._rows is not None:
            return self._rows(axis - len(self.dims), rows)
        return (self.array if found is None else found)[(slice(None),) * axis + (rows,)]

    @property
    def nbytes(self) -> int:
        """What is held; values that are computed when asked for take nothing."""
        return 0 if self._array is None else self._array.nbytes

    @property
    def array(self) -> Array:
        if self._array is not None:
            return self._array
        assert self.known
        assert self._thunk is not None
        found = RECENT.get(self)
        if found is None:
            found = self._thunk()
            if found.size > EAGER_ELEMENTS:
                RECENT.put(self, found)
            else:
                self._array = found
        return found


def known(array: Array) -> Traced:
    return Traced(ir.DataType.from_numpy(array.dtype), array.shape, True, array)


def lazy(dtype: ir.DataType, dims: tuple[int, ...], thunk: Callable[[], Array], depth: int = 0) -> Traced:
    return Traced(dtype, dims, True, None, thunk, depth=depth)


def unknown(value: Traced, without: int | None = None) -> Traced:
    """A value of this type and shape (or of the shape without one axis)."""
    dims = list(value.dims)
    if without is not None:
        del dims[without]
    return Traced(value.dtype, tuple(dims), False)


def same(x: Array, y: Array) -> bool:
    """Equal in type, shape and values. Axes that are mere repetition in both are looked at once."""
    if x.shape == y.shape:
        once = tuple(slice(0, 1) if a == b == 0 else slice(None) for a, b in zip(x.strides, y.strides, strict=True))
        x, y = x[once], y[once]
    return x.shape == y.shape and x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
