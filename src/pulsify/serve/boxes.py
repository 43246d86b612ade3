"""Facts and arrays as bytes, and back: length, JSON, the arrays one after the other. Nothing in it is ever executed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def pack(facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    listed = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    head = json.dumps({"facts": facts, "arrays": listed}, separators=(",", ":")).encode()
    return b"".join(
        [len(head).to_bytes(4, "little"), head, *(np.ascontiguousarray(a).tobytes() for a in arrays.values())]
    )


def unpack(blob: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """ValueError if it is not whole."""
    try:
        size = 4 + int.from_bytes(blob[:4], "little")
        head = json.loads(blob[4:size])
        arrays, at = {}, size
        for name, dtype, shape in head["arrays"]:
            kind = np.dtype(dtype)
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(blob, kind, count, at).reshape(shape)
            at += count * kind.itemsize
    except (KeyError, TypeError) as error:
        raise ValueError(f"damaged ({error!r})") from error
    if at != len(blob):
        raise ValueError("cut short, or more than there should be")
    return head["facts"], arrays
