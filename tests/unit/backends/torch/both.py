"""The same small graph in ONNX Runtime, every operator as it is written, and as torch source on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from pulsify.backends.torch.source import Source, function, source
from pulsify.backends.torch.tensors import Weights, to_array, to_wire
from tests.models import Array, Dims
from tests.unit.graphs import graph, run
from tests.unit.specs import a_stream

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


def written(model: ir.Model, **settings: Any) -> Source:
    return source(model, a_stream(), 1, "cpu", **settings)


def by_torch(model: ir.Model, feeds: Mapping[str, Array], **settings: Any) -> dict[str, Array]:
    made = written(model, **settings)
    step = function(made, Weights("cpu"))
    results = step(*(to_wire(feeds[name], made.kinds[name], "cpu") for name in made.takes))
    types = {str(v.name): None if v.dtype is None else v.dtype.numpy() for v in made.model.graph.outputs}
    return {name: to_array(wire, types[name]) for name, wire in zip(made.gives, results, strict=True)}


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


def alike(model: ir.Model, feeds: Mapping[str, Array] | None = None, tolerance: float = CLOSE, **settings: Any) -> None:
    """Torch gives what the runtime gives, and leaves nothing to it."""
    given = fed(model) if feeds is None else feeds
    made = written(model, **settings)
    assert not made.islands, [made.plan.reasons[n].text for part in made.plan.islands for n in part.nodes]
    want, got = run(model, given), by_torch(model, given, **settings)
    for name, array in want.items():
        same(got[name], array, tolerance)


def reason(model: ir.Model) -> str:
    """Why a node is on the CPU; what comes out is the same all the same."""
    made, feeds = written(model), fed(model)
    assert made.islands
    want, got = run(model, feeds), by_torch(model, feeds)
    for name, array in want.items():
        same(got[name], array)
    return next(iter(made.plan.reasons.values())).text
