"""Batch and stream side by side, at every length from one frame on, with inputs that are bound filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

import pulsify
from tests.models import Array
from tests.side import Batch, streamed

TOLERANCE = 1e-4


def feeds(proto: onnx.ModelProto, length: int, batch: int, filled: Mapping[str, int]) -> dict[str, Array]:
    """Random inputs: 'B' is the batch, every other open size the length."""
    rng, out = np.random.default_rng(length), {}
    for port in proto.graph.input:
        shape = port.type.tensor_type.shape.dim
        dims = [d.dim_value if d.HasField("dim_value") else batch if d.dim_param == "B" else length for d in shape]
        dtype = helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
        if port.name in filled:
            out[port.name] = np.full(dims, filled[port.name], dtype)
        elif dtype.kind in "iu":
            out[port.name] = rng.integers(1, 9, dims).astype(dtype)
        else:
            out[port.name] = rng.standard_normal(dims).astype(dtype)
    return out


def check(
    proto: onnx.ModelProto,
    pulse: int | None = 4,
    lengths: Iterable[int] = range(1, 24),
    *,
    batch: int = 1,
    filled: Mapping[str, int] | None = None,
    **options: Any,
) -> pulsify.Stream:
    """Where batch gives frames the stream gives the same, pulse by pulse and at once; where it fails, an error."""
    stream = pulsify.stream(proto, pulse=pulse, **options)
    reference, compared = Batch(proto), 0
    for length in lengths:
        given = feeds(proto, length, batch, filled or {})
        wanted = reference.attempt(given)
        if wanted is None:
            _turned_down(stream, given, length)
            continue
        for cuts, portable in (([length], False), (_pulses(length, stream.pulse), True)):
            got = streamed(stream, given, cuts, portable=portable)
            assert got.keys() == wanted.keys()
            for name, want in wanted.items():
                _equal(got[name], want, f"{name} at length {length}, cuts {cuts[:4]}")
        compared += 1
    assert compared, "the batch model ran at none of the lengths"
    return stream


def _pulses(length: int, pulse: int) -> list[int]:
    return [min(pulse, length - at) for at in range(0, length, pulse)]


def _turned_down(stream: pulsify.Stream, given: Mapping[str, Array], length: int) -> None:
    try:
        streamed(stream, given, [length])
    except pulsify.PulsifyError:
        return
    raise AssertionError(f"numbers at length {length}, where batch fails")


def _equal(got: Array, want: Array, where: str) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype, (where, got.shape, want.shape)
    if want.dtype.kind != "f":
        assert (got == want).all(), where
    elif want.size:
        scale = float(np.abs(want).max()) or 1.0
        assert np.abs(got.astype(np.float64) - want).max() <= TOLERANCE * scale, where
