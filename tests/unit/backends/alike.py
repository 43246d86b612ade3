"""Small graphs and inputs for them, and whether two results are the same: what tests of all back ends share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from tests.models import Array, Dims
from tests.unit.graphs import graph

CLOSE = 2e-6  # of the scale


def small(
    nodes: str | Sequence[onnx.NodeProto],
    inputs: Mapping[str, Dims],
    constants: Mapping[str, Array] | None = None,
    outputs: str = "y",
    **options: Any,
) -> ir.Model:
    return graph(nodes, inputs, outputs, constants or {}, **options)


def fed(model: ir.Model, seed: int = 1) -> dict[str, Array]:
    """Random numbers; small integers, truths."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for v in model.graph.inputs:
        assert v.shape is not None and v.dtype is not None
        dims = [d if isinstance(d, int) else 2 for d in v.shape]
        kind = v.dtype.numpy()
        if kind.kind == "b":
            out[str(v.name)] = rng.random(dims) < 0.5
        elif kind.kind in "iu":
            out[str(v.name)] = rng.integers(0 if kind.kind == "u" else -9, 9, dims).astype(kind)
        else:
            out[str(v.name)] = rng.standard_normal(dims).astype(kind)
    return out


def same(got: Array, want: Array, tolerance: float = CLOSE) -> None:
    """Shape, type, and elements: integers exactly, floats up to a part of their scale."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, want))
    scale = np.abs(want).max(initial=1.0, where=finite)
    assert np.abs(np.where(finite, got - want, 0)).max(initial=0) <= tolerance * scale
