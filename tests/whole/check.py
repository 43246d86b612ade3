"""Stream and batch side by side at every short length, several streams in step, NaN behind the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

import pulsify
from pulsify.core.arrays import Array, Arrays
from tests.side import Batch, streamed

LENGTHS = (*range(1, 14), 23, 40)


def same(got: Arrays, want: Arrays, tolerance: float = 2e-5) -> None:
    assert set(got) == set(want)
    for name, array in want.items():
        assert got[name].shape == array.shape and got[name].dtype == array.dtype, name
        if array.dtype.kind == "f":
            scale = np.abs(array[np.isfinite(array)]).max(initial=1e-6)
            np.testing.assert_allclose(got[name], array, atol=tolerance * scale, rtol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(got[name], array, name)


def cuts(length: int, rng: np.random.Generator) -> list[int]:
    """The stream in pieces of any size."""
    left, out = length, []
    while left:
        out.append(int(rng.integers(1, min(left, 9) + 1)))
        left -= out[-1]
    return out


def check(
    proto: onnx.ModelProto,
    pulses: Sequence[int] = (1, 4, 7),
    lengths: Sequence[int] = LENGTHS,
    batch: int = 2,
    **options: object,
) -> list[pulsify.Stream]:
    """Every length that the stream takes; it takes all but the shortest."""
    rng, whole, streams = np.random.default_rng(0), Batch(proto), []
    for pulse in pulses:
        try:
            stream = pulsify.stream(proto, pulse=pulse, verify=False)
        except pulsify.InvalidPulse:  # a stride of two
            stream = pulsify.stream(proto, pulse=2 * pulse, verify=False)
        port = stream.inputs[0]
        for length in lengths:
            if length < stream.spec.shortest:
                continue
            dims = [length if i == port.axis else batch if isinstance(d, str) else d for i, d in enumerate(port.dims)]
            x: Array = rng.standard_normal(dims).astype(port.dtype)
            same(streamed(stream, x, cuts(length, rng), **options), whole.run({port.name: x}))
        streams.append(stream)
    return streams
