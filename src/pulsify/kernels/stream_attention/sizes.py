"""What fits together: the sizes of a call, or InvalidArgument that names the one that does not. No tensor is read.

Arrays of any library will do: all that is looked at is `shape` and, as text, `dtype`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pulsify.core.errors import InvalidArgument

FLOATS = ("float32", "bfloat16", "float16", "float64")  # the last in the specification alone
HOLLOW = ("nan", "zero", "quiet")


@dataclass(frozen=True)
class Sizes:
    """Of one call. columns = width + new: what is cached, then what is appended."""

    batch: int
    heads: int
    queries: int
    depth: int
    value_depth: int
    rows: int
    width: int
    new: int

    @property
    def columns(self) -> int:
        return self.width + self.new


def sizes(
    q: Any, keys: Any, values: Any, *, bias: Any = None, mask: Any = None, fill: float = -math.inf,
    hollow: str = "nan", first: Any = None, last: Any = None, table: Any = None, shift: int = 0, u: Any = None,
    v: Any = None, start: Any = None, new_keys: Any = None, new_values: Any = None, read: Any = None,
    write: Any = None, scale: float = 1.0,
) -> Sizes:  # fmt: skip
    """The sizes, once all of it was checked."""
    for name, array in (("q", q), ("keys", keys), ("values", values)):
        if len(array.shape) != 4:
            raise InvalidArgument(f"{name} has rank {len(array.shape)}; it has four axes: batch, heads, frames, depth")
    (batch, heads, queries, depth), (rows, _, width, value_depth) = q.shape, values.shape
    _both("new_keys", new_keys, "new_values", new_values)
    _both("read", read, "write", write)
    new = 0 if new_keys is None else _rank("new_keys", new_keys, 4)[2]
    found = Sizes(batch, heads, queries, depth, value_depth, rows, width, new)
    _not_empty(found)
    _shapes(found, {"keys": keys, "values": values, "new_keys": new_keys, "new_values": new_values, "u": u, "v": v})
    _per_stream(found, {"start": start, "first": first, "last": last, "read": read, "write": write})
    if read is None and rows != batch:
        raise InvalidArgument(f"keys have {rows} rows and q {batch}: read and write say which row is whose")
    _cells(found, q, bias, mask, fill, hollow)
    _types(q, {"keys": keys, "values": values, "new_keys": new_keys, "new_values": new_values, "u": u, "v": v})
    _positions(found, q, table, shift, v)
    return found


def _rank(name: str, array: Any, rank: int) -> Any:
    if len(array.shape) != rank:
        raise InvalidArgument(f"{name} has rank {len(array.shape)}, not {rank}")
    return array.shape


def _both(one: str, a: Any, other: str, b: Any) -> None:
    if (a is None) != (b is None):
        raise InvalidArgument(f"{one} and {other} come together: {other if b is None else one} is missing")


def _not_empty(found: Sizes) -> None:
    for what, size in (
        ("no streams: the batch", found.batch), ("no heads: axis 1 of q", found.heads),
        ("no queries: axis 2 of q", found.queries), ("no depth D: axis 3 of q", found.depth),
        ("no depth Dv: axis 3 of values", found.value_depth),
        ("no columns: the window W and the new frames N", found.columns),
    ):  # fmt: skip
        if size == 0:
            raise InvalidArgument(f"{what} is 0, and attention over nothing is nothing")


def _shapes(found: Sizes, arrays: Mapping[str, Any]) -> None:
    kept, come = (found.rows, found.heads, found.width), (found.batch, found.heads, found.new)
    wanted = {
        "keys": (*kept, found.depth), "values": (*kept, found.value_depth),
        "new_keys": (*come, found.depth), "new_values": (*come, found.value_depth),
        "u": (found.heads, found.depth), "v": (found.heads, found.depth),
    }  # fmt: skip
    for name, array in arrays.items():
        if array is not None and tuple(array.shape) != wanted[name]:
            raise InvalidArgument(f"{name} is {list(array.shape)}, and with q and the others {list(wanted[name])} fits")


def _per_stream(found: Sizes, arrays: Mapping[str, Any]) -> None:
    for name, array in arrays.items():
        if array is None:
            continue
        if tuple(array.shape) != (found.batch,):
            raise InvalidArgument(f"{name} is {list(array.shape)}; it is one number a stream: [{found.batch}]")
        if _type(array) != "int64":
            raise InvalidArgument(f"{name} is {_type(array)}, not int64")


def _cells(found: Sizes, q: Any, bias: Any, mask: Any, fill: float, hollow: str) -> None:
    whole = (found.batch, found.heads, found.queries, found.columns)
    for name, array in (("bias", bias), ("mask", mask)):
        if array is None:
            continue
        if any(size not in (1, full) for size, full in zip(_rank(name, array, 4), whole)):
            raise InvalidArgument(f"{name} is {list(array.shape)}, which does not spread to {list(whole)}")
    if mask is not None and _type(mask) != "bool":
        raise InvalidArgument(f"mask is {_type(mask)}, not bool")
    if bias is not None and _type(bias) not in ("float32", _type(q)):
        raise InvalidArgument(f"bias is {_type(bias)}; it is float32 or what q is, {_type(q)}")
    if math.isnan(fill) or fill == math.inf:
        raise InvalidArgument(f"fill={fill}: a hidden cell's score is -inf or a finite number")
    if hollow not in HOLLOW:
        raise InvalidArgument(f"hollow={hollow!r}: rows that see nothing are 'nan', 'zero' or 'quiet'")


def _types(q: Any, arrays: Mapping[str, Any]) -> None:
    if _type(q) not in FLOATS:
        raise InvalidArgument(f"q is {_type(q)}; it is one of {', '.join(FLOATS[:3])}")
    for name, array in arrays.items():
        if array is not None and _type(array) != _type(q):
            raise InvalidArgument(f"{name} is {_type(array)} and q is {_type(q)}: they are alike")


def _positions(found: Sizes, q: Any, table: Any, shift: int, v: Any) -> None:
    if table is None:
        if v is not None:
            raise InvalidArgument("v is the queries' bias for positions: give the table, too")
        return
    heads, offsets, depth = _rank("table", table, 3)
    if (heads, depth) != (found.heads, found.depth):
        raise InvalidArgument(f"table is {list(table.shape)}; it is [{found.heads}, offsets, {found.depth}]")
    if _type(table) != _type(q):
        raise InvalidArgument(f"table is {_type(table)} and q is {_type(q)}: they are alike")
    least, most = shift - (found.queries - 1), shift + found.columns - 1
    if least < 0 or most >= offsets:
        raise InvalidArgument(
            f"table has {offsets} offsets, and rows {least} to {most} are read: j - i + shift, with shift={shift}, "
            f"{found.queries} queries and {found.columns} columns"
        )


def _type(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")
