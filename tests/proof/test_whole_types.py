"""Whole numbers of every type, divided by each other and carried: ONNX Runtime lacks kernels for some of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

import pulsify
from tests.models import Array, model
from tests.side import Batch, streamed
from tests.unit.graphs import parsed

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
GRAPHS = {
    "of two streams": "{op} x z > y",
    "behind a delay": "Concat c x > h axis=2; Slice h i j k > g; {op} g z > y",
    "by the sum of all so far": "Cast z > w to=7; CumSum w k > s; Cast s > d to={type}; {op} x d > y",
}


def numbers(dtype: str, length: int, seed: int, low: int) -> Array:
    return np.random.default_rng(seed).integers(low, 9, (1, 2, length)).astype(dtype)


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_whole_numbers_are_divided(graph: str, dtype: str, op: str) -> None:
    kind = onnx_type(dtype)
    constants = {"c": np.full((1, 2, 1), 5, dtype), "i": np.array([0]), "j": np.array([-1]), "k": np.array([2])}
    nodes = parsed(GRAPHS[graph].replace("{op}", op).replace("{type}", str(kind)))
    proto = model(
        nodes, {"x": [1, 2, "T"], "z": [1, 2, "T"]}, ["y"], constants, dtypes=dict.fromkeys("xyz", np.dtype(dtype))
    )
    stream, batch = pulsify.stream(proto, pulse=2, verify=False), Batch(proto)
    for length in (1, 2, 3, 7):
        feeds = {"x": numbers(dtype, length, 1, 0 if dtype[0] == "u" else -9), "z": numbers(dtype, length, 2, 1)}
        want = batch.run(feeds)["y"]
        for backend in ("ort", "torch", "reference", *(["native"] if dtype != "uint64" else [])):  # which C has not
            got = streamed(stream, feeds, [2] * (length // 2) + [length % 2], backend=backend, padding=math.nan)["y"]
            np.testing.assert_array_equal(got, want, err_msg=f"{backend} {length}")


def onnx_type(dtype: str) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
