"""The same small graph in ONNX Runtime, every operator as it is written, and as torch source on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from pulsify.backends.torch.source import Source, function, source
from pulsify.backends.torch.tensors import Weights, to_array, to_wire
from tests.models import Array
from tests.unit.backends.alike import CLOSE, fed, same, small
from tests.unit.graphs import run
from tests.unit.specs import a_stream

__all__ = ["CLOSE", "alike", "by_torch", "fed", "reason", "same", "small", "written"]


def written(model: ir.Model, **settings: Any) -> Source:
    return source(model, a_stream(), 1, "cpu", **settings)


def by_torch(model: ir.Model, feeds: Mapping[str, Array], **settings: Any) -> dict[str, Array]:
    made = written(model, **settings)
    step = function(made, Weights("cpu"))
    results = step(*(to_wire(feeds[name], made.kinds[name], "cpu") for name in made.takes))
    types = {str(v.name): None if v.dtype is None else v.dtype.numpy() for v in made.model.graph.outputs}
    return {name: to_array(wire, types[name]) for name, wire in zip(made.gives, results, strict=True)}


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
